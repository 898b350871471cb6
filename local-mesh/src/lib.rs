//! A mesh of processes on this machine: spec, start, kill, wait for the exit, last log lines.

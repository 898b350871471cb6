//! What a checkpoint on disk promises, held against a bad disk, a crash, a race and a stranger's bytes.

mod cost;
mod damage;
mod decision;
mod faults;
mod fixture;
mod foreign;
mod hostile;
mod round_trip;
mod stop_and_sweep;

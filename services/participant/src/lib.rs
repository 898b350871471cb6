//! The checkpoint control plane of a server, written once: core and store behind gRPC, with a few functions to fill in.

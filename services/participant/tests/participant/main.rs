//! A participant as its coordinator and its server see it, on real files.

#![allow(clippy::unwrap_used)]

mod counters;
mod dropped;
mod gate;
mod idempotency;
mod persist;
mod restore;
mod retire;
mod rig;
mod stress;
mod time;
mod wire;

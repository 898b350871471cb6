//! The participant as a plain value: every call in every phase, every call twice, the rules of protocol 3.2, random histories.

#![allow(clippy::unwrap_used)]

mod idempotency;
mod marks;
mod random;
mod rig;
mod rules;
mod transitions;

//! What an operator asks of a mesh: one file a command.

pub mod checkpoint;
pub mod forget;
pub mod open;
pub mod restore;
pub mod retire;
pub mod status;

//! The coordinator: discovery, the journal, checkpoint and restore runs.

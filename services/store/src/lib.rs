//! Crash-safe files, record framing and manifests: checkpoints on disk.

//! The contracts of Belay: the messages and gRPC services of `proto/`, one module per package.
//!
//! Whoever calls a server needs the `.proto` files only; their comments say what a caller must know.

/// Generated code: the documentation is in the `.proto` files, and comes with the items.
#[allow(missing_docs, clippy::all, clippy::unwrap_used)]
mod belay {
    pub mod episode {
        pub mod v1 {
            tonic::include_proto!("belay.episode.v1");
        }
    }
    pub mod worker {
        pub mod v1 {
            tonic::include_proto!("belay.worker.v1");
        }
    }
    pub mod checkpoint {
        pub mod v1 {
            tonic::include_proto!("belay.checkpoint.v1");
        }
    }
    pub mod record {
        pub mod v1 {
            tonic::include_proto!("belay.record.v1");
        }
    }
}

pub use belay::{
    checkpoint::v1 as checkpoint, episode::v1 as episode, record::v1 as record, worker::v1 as worker,
};

/// All of the above as an encoded `google.protobuf.FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/belay.fds"));

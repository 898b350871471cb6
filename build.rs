//! Compiles `proto/` to Rust, and to the descriptor set that serves gRPC reflection.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 9] = [
    "belay/episode/v1/identity.proto",
    "belay/episode/v1/environment.proto",
    "belay/episode/v1/agent.proto",
    "belay/episode/v1/resources.proto",
    "belay/episode/v1/policy_model.proto",
    "belay/worker/v1/worker.proto",
    "belay/checkpoint/v1/participant.proto",
    "belay/checkpoint/v1/coordinator.proto",
    "belay/record/v1/record.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("belay.fds"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(descriptors)?;
    Ok(())
}

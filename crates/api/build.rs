//! Compiles the contracts in `proto/` with a compiler written in Rust: no `protoc` is needed to build Hotbay.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files =
        protox::compile(["access.proto", "agent.proto", "cms.proto", "join.proto"], ["proto"])?;
    tonic_prost_build::configure().codec_path("crate::codec::SmallCodec").compile_fds(files)?;
    Ok(())
}

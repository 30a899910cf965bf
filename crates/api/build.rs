//! Compiles the contracts in `proto/` with a compiler written in Rust: no `protoc` is needed to build Hotbay.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let protos =
        ["access.proto", "agent.proto", "cms.proto", "csi.proto", "join.proto", "volumes.proto"];
    let files = protox::compile(protos, ["proto"])?;
    tonic_prost_build::configure()
        .codec_path("crate::codec::SmallCodec")
        // In one order, so that the same message has the same bytes.
        .btree_map(".")
        // Much larger than the others, and sent once.
        .boxed(".hotbay.agent.v1.AgentMessage.kind.register")
        // It holds secrets, which are not for logs.
        .skip_debug(["hotbay.join.v1.JoinRequest"])
        .compile_fds(files)?;
    Ok(())
}

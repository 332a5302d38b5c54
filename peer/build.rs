//! Generates the protobuf types without needing `protoc`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/peer.proto");
    let files = protox::compile(["proto/peer.proto"], ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}

//! The CSI services over a simulated platform, on two sockets as a controller and an agent serve them. For csi-sanity
//! (`cargo xtask csi`) and for whoever wants to call them by hand.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use hotbay_core::ids::NodeId;
use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, Socket};
use hotbay_csi::simulated::Simulated;

/// Serves CSI over a platform in memory, until it is interrupted
#[derive(Parser)]
struct Args {
    /// The socket for the Controller service
    #[arg(long)]
    controller: PathBuf,
    /// The socket for the Node service
    #[arg(long)]
    node: PathBuf,
    /// How much room the one node has
    #[arg(long, default_value_t = 1 << 40)]
    capacity_bytes: u64,
    /// How many volumes the node takes
    #[arg(long, default_value_t = 16)]
    max_volumes: u32,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args = Args::parse();
    let (cluster, here) = (Simulated::default(), NodeId::from_bits(1));
    cluster.add_node(here, args.capacity_bytes, Some(args.max_volumes));
    let identity = || Identity::new(env!("CARGO_PKG_VERSION"), || true);
    let controller = serve::controller(identity(), Arc::new(cluster.controller()));
    let node = serve::node(identity(), Arc::new(cluster.node(here)));
    let sockets = (Socket::bind(&args.controller)?, Socket::bind(&args.node)?);
    println!("ready");
    let stop = || async { tokio::signal::ctrl_c().await.unwrap_or_default() };
    tokio::try_join!(
        serve::serve(sockets.0, controller, stop()),
        serve::serve(sockets.1, node, stop()),
    )?;
    Ok(())
}

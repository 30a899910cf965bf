//! `hotbay node`: the agent of one machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hotbay_core::ids::{Incarnation, NodeName};
use hotbay_node::{Config, Place};
use uuid::Uuid;

use super::checkpoint::checkpoint;
use super::{descriptors, logging, stop};

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The registry's Unix socket
    #[arg(long)]
    join: PathBuf,
    /// The node's name
    #[arg(long)]
    name: NodeName,
    /// Where the agent keeps what must survive
    #[arg(long)]
    data_dir: PathBuf,
    /// A drive to look at: a path or pattern, or BAY=PATH
    #[arg(long, value_name = "GLOB")]
    drives: Vec<Place>,
}

pub(crate) fn node(args: NodeArgs) -> anyhow::Result<ExitCode> {
    logging::start();
    stop::with_supervisor()?;
    descriptors::allow_many();
    let NodeArgs { join, name, data_dir, drives } = args;
    let config = Config {
        name,
        data_dir,
        registry: join,
        places: drives,
        incarnation: Incarnation::from_bits(Uuid::new_v4().as_u128()),
        folder_id: Uuid::new_v4().as_u128(),
        checkpoint,
    };
    // One thread: everything that may wait for a drive is in a child.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = runtime.block_on(hotbay_node::run(config, stop::told_to_stop()));
    // A blocking call that hangs must not keep the process.
    runtime.shutdown_background();
    ran?;
    Ok(ExitCode::SUCCESS)
}

//! The parts of Hotbay that run and stay: controller, agent, and the commands that start both.

mod checkpoint;
mod controller;
mod csi;
mod demo;
mod demo_folder;
mod descriptors;
mod door;
mod kubernetes;
pub(crate) mod listen;
mod logging;
mod loops;
mod node;
mod node_scan;
mod ready;
mod size;
mod stop;
mod supervise;
mod up;

use std::process::ExitCode;

use clap::Subcommand;
use hotbay_host::scan::PatternError;
use thiserror::Error;

use crate::client::Exit;
use crate::config::ConfigError;

/// Commands that run and stay.
#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// Runs Hotbay on this machine, with its real drives
    #[command(after_help = up::EXAMPLES)]
    Up(up::UpArgs),
    /// Shows Hotbay working, on drives that are files in a folder
    #[command(after_help = demo::EXAMPLES)]
    Demo(demo::DemoArgs),
    /// Runs the registry alone
    #[command(hide = true)]
    Controller(controller::ControllerArgs),
    /// Runs the agent of this machine, for a registry on another one; or shows what it would see
    #[command(after_help = node::EXAMPLES)]
    Node(node::NodeArgs),
    /// Does what may wait for a drive, on behalf of an agent
    #[command(hide = true)]
    DriveWorker,
}

/// Why a command does not run, or not any more.
#[derive(Debug, Error)]
pub(crate) enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("that cannot be looked for")]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

impl RunError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit(),
            Self::Pattern(_) => Exit::Usage,
            Self::Failed(_) => Exit::Failed,
        }
    }

    pub(crate) fn next_steps(&self) -> Vec<String> {
        match self {
            Self::Config(error) => error.next_steps(),
            Self::Pattern(_) => vec!["name a path or pattern, such as '/dev/nvme*n1'".to_owned()],
            Self::Failed(_) => Vec::new(),
        }
    }
}

/// Runs a command until it ends or is told to stop.
pub(crate) fn run(command: RunCommand) -> Result<ExitCode, RunError> {
    match command {
        RunCommand::Up(args) => up::up(args),
        RunCommand::Demo(args) => Ok(demo::demo(args)?),
        RunCommand::Controller(args) => controller::controller(args),
        RunCommand::Node(args) => node::node(args),
        RunCommand::DriveWorker => Ok(hotbay_host::worker::worker_main(checkpoint::checkpoint)),
    }
}

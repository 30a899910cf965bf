//! `hotbay store check`: whether a data directory holds sound records. Needs no registry, and changes nothing.

use std::path::PathBuf;

use clap::Subcommand;
use hotbay_registry::{CheckError, check_with, codec};
use thiserror::Error;

use crate::client::{Exit, Screen};

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay store check --data-dir /var/lib/hotbay/registry
  hotbay store check --data-dir ./copy-of-it && echo sound";

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Says whether the records in a data directory are sound; changes nothing. Not while a registry runs on it
    #[command(after_help = EXAMPLES)]
    Check {
        /// The registry's data directory
        #[arg(long, value_name = "DIR")]
        data_dir: PathBuf,
    },
}

/// Why a check has no result.
#[derive(Debug, Error)]
pub(crate) enum StoreCommandError {
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
}

impl StoreCommandError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Check(CheckError::NoStore { .. }) => Exit::NotFound,
            Self::Check(CheckError::Locked(_)) => Exit::TryAgain,
            Self::Check(CheckError::Io { .. }) | Self::Output(_) => Exit::Failed,
        }
    }

    pub(crate) fn next_steps(&self) -> Vec<String> {
        match self {
            Self::Check(CheckError::Locked(_)) => {
                vec!["nothing was checked; stop the registry first, or check a copy".to_owned()]
            }
            Self::Check(CheckError::NoStore { .. }) => {
                vec!["name the directory that the registry was started with".to_owned()]
            }
            Self::Check(CheckError::Io { .. }) | Self::Output(_) => Vec::new(),
        }
    }
}

/// Checks, and prints what was found. A store that is not sound is a failure.
pub(crate) fn run(command: StoreCommand) -> Result<Exit, StoreCommandError> {
    let StoreCommand::Check { data_dir } = command;
    let report = check_with(&data_dir, &mut codec::judge)?;
    Screen::new().print(&report.to_string())?;
    Ok(if report.is_sound() { Exit::Done } else { Exit::Failed })
}

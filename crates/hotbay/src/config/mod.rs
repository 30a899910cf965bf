//! Settings of what runs and stays: from the command line, the environment, a file, or by default, in that order.
//! [`run`](crate::run) asks for them, and `hotbay config check` shows them.
//!
//! - [`table`]: every setting there is. [`mod@file`]: the file. [`settings`]: what counts, and why.
//! - [`auto_add`]: the rules that add drives, which are tables of their own.
//! - [`check`]: the command. [`error`]: what is wrong with them.

pub(crate) mod auto_add;
mod check;
mod error;
mod file;
mod settings;
pub(crate) mod table;

pub(crate) use auto_add::ToldRule;
pub(crate) use check::{ConfigCommand, EXAMPLES, run};
pub(crate) use error::ConfigError;
pub(crate) use settings::{Given, Settings};
pub(crate) use table::AtStart;

use std::path::{Path, PathBuf};

use clap::Args;
use file::ConfigFile;
use settings::Surroundings;

/// Where the file is if nobody says.
pub(crate) const DEFAULT_FILE: &str = "/etc/hotbay/hotbay.toml";

/// Options that say where settings are.
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    /// The file with settings; what is given here or in the environment counts before it [default:
    /// /etc/hotbay/hotbay.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "HOTBAY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// No file at all: for parts, which are told everything by what starts them
    #[arg(long, hide = true)]
    no_config: bool,
}

impl ConfigArgs {
    /// The settings that count, with those given on the command line first.
    pub(crate) fn settings(self, given: Given) -> Result<Settings, ConfigError> {
        let file = if self.no_config { None } else { find(self.config.as_deref())? };
        let variable = |name: &str| std::env::var(name).ok();
        Ok(Settings::resolve(given, variable, file.as_ref(), &Surroundings::now()))
    }
}

/// Where the agent of this machine keeps its things, if nobody says.
pub(crate) fn usual_agent_dir() -> Result<PathBuf, ConfigError> {
    let usual = ConfigArgs { config: None, no_config: false };
    usual.settings(Given::default())?.folder("node", None)
}

/// The file that was named, which must be there, or the usual one, which may be.
fn find(named: Option<&Path>) -> Result<Option<ConfigFile>, ConfigError> {
    match named {
        Some(path) => match ConfigFile::read(path)? {
            Some(file) => Ok(Some(file)),
            None => Err(ConfigError::Absent { path: path.to_owned() }),
        },
        None => ConfigFile::read(Path::new(DEFAULT_FILE)),
    }
}

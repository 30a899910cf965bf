//! `hotbay recover`: a registry whose records are lost is rebuilt from the labels on its drives. Needs no registry, and
//! only reads from drives.
//!
//! - [`read`]: the labels, from this machine's drives and from files that were written on others.
//! - [`show`]: what would be rebuilt. [`manifests`]: the volumes, for Kubernetes. [`error`]: why not.
//!
//! What labels mean is decided in [`hotbay_core::recover`].

mod error;
mod manifests;
mod read;
mod show;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use hotbay_core::ids::{ClusterId, DriveId};
use hotbay_core::recover::{Choice, Plan};
use hotbay_registry::{CheckError, check, fill};

pub(crate) use error::RecoverError;

use crate::client::{Exit, Screen, typed};
use crate::config::{ConfigArgs, Given, Settings};

pub(crate) const EXAMPLES: &str = "\
Shows what would be rebuilt, and asks. Drives are only read. Drives of other
machines come in files: run it there with --output, and here with --input.
Afterwards start the registry, and run 'hotbay registry adopt' when the nodes
are back: it learns from them what no label has.

Examples:
  hotbay recover --output store-2.json          on each other machine
  hotbay recover --input store-2.json           here, with this machine's drives";

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// A drive to read: a path or pattern, may be repeated. All drives of the machine if left out, or what the settings
    /// say
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// A file that was written by --output on another machine; may be repeated
    #[arg(long, value_name = "FILE")]
    input: Vec<PathBuf>,
    /// Read no drive of this machine, only files
    #[arg(long, requires = "input", conflicts_with = "paths")]
    no_drives: bool,
    /// Write what was read into a new file, and rebuild nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifests", "yes"])]
    output: Option<PathBuf>,
    /// The cluster that is meant, if there are drives of several
    #[arg(long, value_name = "ID")]
    cluster: Option<ClusterId>,
    /// A drive that is left out, by its id; may be repeated
    #[arg(long, value_name = "ID")]
    without: Vec<DriveId>,
    /// Print a PersistentVolume for every volume, and rebuild nothing
    #[arg(long, conflicts_with = "yes")]
    manifests: bool,
    /// The storage class of the PersistentVolumes; labels do not have it
    #[arg(long, value_name = "NAME", requires = "manifests")]
    storage_class: Option<String>,
    /// Where the registry's store is to be [default: the folder registry in the data directory of hotbay up]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn run(args: RecoverArgs) -> Result<Exit, RecoverError> {
    let mut screen = Screen::new();
    let drives = read::absolute(&args.paths)?;
    let settings = args.config.settings(Given { drives, ..Given::default() })?;
    let mut readings = Vec::new();
    if !args.no_drives {
        readings.extend(read::drives(&mut screen, &settings, !args.paths.is_empty())?);
    }
    for file in &args.input {
        readings.extend(read::file(file)?);
    }
    if let Some(file) = &args.output {
        read::write(file, &readings)?;
        screen.line(&show::written(file, readings.len()))?;
        return Ok(if readings.is_empty() { Exit::NotFound } else { Exit::Done });
    }
    let choice = Choice { cluster: args.cluster, without: args.without.into_iter().collect() };
    let plan = Plan::new(readings, &choice).map_err(RecoverError::Conflicts)?;
    if args.manifests {
        screen.print(&manifests::text(&plan, args.storage_class.as_deref())?)?;
        return Ok(Exit::Done);
    }
    let place = settings.folder("registry", args.data_dir.clone())?;
    refuse_what_is_there(&place)?;
    show::plan(&mut screen, &plan, &place)?;
    if !args.yes {
        typed(&mut screen, "recover", "recover", "--yes").map_err(RecoverError::NotConfirmed)?;
    }
    make(&settings, args.data_dir.is_none(), &place, &plan)?;
    show::what_is_next(&mut screen, &place)?;
    Ok(Exit::Done)
}

/// Before anybody is asked anything.
fn refuse_what_is_there(data_dir: &Path) -> Result<(), RecoverError> {
    match check(data_dir) {
        Ok(report) if report.is_sound() && report.records.is_empty() => Ok(()),
        Ok(report) => Err(RecoverError::Filled { path: report.path }),
        Err(CheckError::NoStore { .. }) => Ok(()),
        Err(error) => Err(RecoverError::Check(error)),
    }
}

fn make(
    settings: &Settings,
    by_default: bool,
    data_dir: &Path,
    plan: &Plan,
) -> Result<(), RecoverError> {
    if by_default {
        let all = settings.data_dir()?;
        let failed = |source| RecoverError::Folder { path: all.to_owned(), source };
        std::fs::create_dir_all(all).map_err(failed)?;
    }
    Ok(fill(data_dir, plan.records(wall_ms()))?)
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

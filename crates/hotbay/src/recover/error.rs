//! Why nothing is recovered: one sentence, what to do next, and the exit code.

use std::io;
use std::path::PathBuf;

use hotbay_core::recover::Conflict;
use hotbay_registry::{CheckError, FillError};
use thiserror::Error;

use crate::client::{ClientError, Exit};
use crate::config::ConfigError;

/// Most conflicts that are told beside the first one.
const CONFLICTS_TOLD: usize = 10;

/// Why `hotbay recover` ends without a result. No drive and no store has changed.
#[derive(Debug, Error)]
pub(crate) enum RecoverError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the drives of this machine cannot be read")]
    Survey(#[source] anyhow::Error),
    #[error("{path} is not there")]
    NoSuchPath { path: String },
    #[error("{path} cannot be read, and may have volumes on it")]
    Unreadable {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("{path} has a label of format {version}, which this release does not read")]
    LaterFormat { path: String, version: u32 },
    #[error("{path} has a label, and no copy of it can be trusted")]
    Damaged { path: String },
    #[error("cannot read the file {}", path.display())]
    Input {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not what `hotbay recover --output` writes", path.display())]
    NotOurs {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
    #[error("{} is of format {format}; this release reads format {reads}", path.display())]
    OtherFormat { path: PathBuf, format: u32, reads: u32 },
    #[error("cannot write the file {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{}", told_first(.0))]
    Conflicts(Vec<Conflict>),
    #[error("{storage_class:?} cannot be the name of a storage class")]
    StorageClass { storage_class: String },
    #[error("the registry's store {} is there already, and not empty", path.display())]
    Filled { path: PathBuf },
    #[error(transparent)]
    Check(CheckError),
    #[error("cannot use {} as the data directory", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Fill(#[from] FillError),
    #[error(transparent)]
    NotConfirmed(ClientError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

fn told_first(conflicts: &[Conflict]) -> String {
    conflicts.first().map(|first| format!("nothing is recovered: {first}")).unwrap_or_default()
}

impl RecoverError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Config(error) => error.exit(),
            Self::NotConfirmed(error) => error.exit(),
            Self::NoSuchPath { .. } => Exit::NotFound,
            Self::Conflicts(conflicts) => match conflicts.first() {
                Some(
                    Conflict::NoDrives
                    | Conflict::NoSuchCluster { .. }
                    | Conflict::NoSuchDrive { .. },
                ) => Exit::NotFound,
                _ => Exit::Refused,
            },
            Self::Filled { .. }
            | Self::Fill(FillError::NotEmpty { .. })
            | Self::LaterFormat { .. }
            | Self::Damaged { .. } => Exit::Refused,
            Self::Check(CheckError::Locked(_)) => Exit::TryAgain,
            Self::NotOurs { .. } | Self::OtherFormat { .. } | Self::StorageClass { .. } => {
                Exit::Usage
            }
            Self::Survey(_)
            | Self::Unreadable { .. }
            | Self::Input { .. }
            | Self::Write { .. }
            | Self::Check(_)
            | Self::Folder { .. }
            | Self::Fill(FillError::Store(_))
            | Self::Output(_) => Exit::Failed,
        }
    }

    pub(crate) fn next_steps(&self) -> Vec<String> {
        let unchanged = |next: &str| vec!["nothing was changed".to_owned(), next.to_owned()];
        match self {
            Self::Config(error) => error.next_steps(),
            Self::NotConfirmed(error) => error.next_steps(),
            Self::Conflicts(conflicts) => way_out(conflicts),
            Self::Filled { .. } | Self::Fill(FillError::NotEmpty { .. }) => unchanged(
                "a registry that has records needs no recovery; if these are not its own, move that file away first",
            ),
            Self::Check(CheckError::Locked(_)) => unchanged("stop the registry first"),
            Self::NoSuchPath { .. } => unchanged("see which drives there are:  hotbay node scan"),
            Self::Unreadable { .. } => {
                unchanged("run it as root; to go on without a drive, name the others")
            }
            Self::LaterFormat { .. } => unchanged("use the release of hotbay that wrote it"),
            Self::Damaged { .. } => unchanged(
                "see what is left:  hotbay drive inspect PATH; to go on without a drive, name the others",
            ),
            Self::NotOurs { .. } | Self::OtherFormat { .. } | Self::Input { .. } => {
                unchanged("write it again on its machine:  hotbay recover --output FILE")
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                unchanged("name a file that is not there yet")
            }
            Self::StorageClass { .. } => {
                unchanged("use letters a-z, digits, '-' and '.', as Kubernetes does")
            }
            Self::Survey(_)
            | Self::Write { .. }
            | Self::Check(_)
            | Self::Folder { .. }
            | Self::Fill(FillError::Store(_)) => vec!["nothing was changed".to_owned()],
            Self::Output(_) => Vec::new(),
        }
    }
}

/// The other conflicts, and what a person can do about them.
fn way_out(conflicts: &[Conflict]) -> Vec<String> {
    let others = conflicts.iter().skip(1);
    let mut lines: Vec<_> =
        others.take(CONFLICTS_TOLD).map(|conflict| format!("also: {conflict}")).collect();
    if let Some(more) = conflicts.len().checked_sub(CONFLICTS_TOLD + 1).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    lines.push("nothing was changed".to_owned());
    let next = match conflicts.first() {
        Some(Conflict::NoDrives) => {
            "see which drives there are, and what is on them:  hotbay node scan"
        }
        Some(Conflict::SeveralClusters { .. }) => "say which one is meant:  --cluster ID",
        Some(Conflict::NoSuchCluster { .. }) => "name one of these:  --cluster ID",
        Some(Conflict::NoSuchDrive { .. }) => "drives are left out by their ids, of 32 digits",
        Some(
            Conflict::SameDrive { .. }
            | Conflict::Overlap { .. }
            | Conflict::SameVolume { .. }
            | Conflict::NotWhole { .. }
            | Conflict::SameName { .. },
        )
        | None => {
            "leave out the drive that is not to be used:  --without ID, or name the paths of the others"
        }
    };
    lines.push(next.to_owned());
    lines
}

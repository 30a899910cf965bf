//! What can go wrong with the rig itself, as opposed to what a test finds out on it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

#[derive(Debug, Error)]
pub enum RigError {
    #[error("{} is not built; `cargo xtask rig build` does it", path.display())]
    NotBuilt { path: PathBuf },
    #[error("{} is missing; scripts/setup-rig gets it by apt", path.display())]
    NotFetched { path: PathBuf },
    #[error("nodes need root: they have namespaces and mounts of their own")]
    NotRoot,
    #[error("a rig is or was in {0}; first: cargo xtask rig down --dir {0}", folder.display())]
    Taken { folder: PathBuf },
    #[error("{} is no rig's folder and not empty; name another", folder.display())]
    NotOurs { folder: PathBuf },
    #[error("{}: name a folder with an absolute path of at most {max} bytes outside of {without}", folder.display())]
    UnfitFolder { folder: PathBuf, max: usize, without: &'static str },
    #[error("cannot {doing} {}", path.display())]
    File {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make the certificate of {whom}")]
    Certificate {
        whom: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("no free address for the cluster was found in {tries} tries")]
    NoAddress { tries: u32 },
    #[error("cannot start {program}")]
    Start {
        program: String,
        #[source]
        source: io::Error,
    },
    #[error("{command} failed: {said}")]
    Command { command: String, said: String },
    #[error("{name} ended by itself ({status}); the end of {}:\n{tail}", log.display())]
    Ended { name: String, status: String, log: PathBuf, tail: String },
    #[error("cannot signal {name}, process {pid}")]
    Signal {
        name: String,
        pid: u32,
        #[source]
        source: io::Error,
    },
    #[error("not within {} s: {what}; last heard: {heard}", limit.as_secs())]
    NotInTime { what: String, limit: Duration, heard: String },
}

impl RigError {
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }
}

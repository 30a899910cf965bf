//! Where the programs of a cluster are: those in Go, built into the cache by `cargo xtask rig build`, and those of
//! Debian, unpacked there by scripts/setup-rig. Nothing of either is installed.

use std::env;
use std::path::{Path, PathBuf};

use crate::components::Component;
use crate::error::RigError;

/// The cache of the rig, outside of every clone.
pub(crate) fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/rig")
}

/// A program that was built from Go's modules.
pub(crate) fn built(component: &Component, program: &str) -> Result<PathBuf, RigError> {
    let path = component.folder().join(program);
    if path.is_file() { Ok(path) } else { Err(RigError::NotBuilt { path }) }
}

/// A program of a Debian package, by its path in the package.
pub(crate) fn fetched(program: &str) -> Result<PathBuf, RigError> {
    let path = cache().join("debian").join(program);
    if path.is_file() { Ok(path) } else { Err(RigError::NotFetched { path }) }
}

//! The cache that the programs of a cluster are in: those in Go, built there by `cargo xtask rig build` (`components`),
//! and those of Debian, unpacked there by scripts/setup-rig. Nothing of either is installed.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::RigError;

/// The cache of the rig, outside of every clone.
pub(crate) fn cache() -> PathBuf {
    let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    cache.unwrap_or_default().join("hotbay/rig")
}

/// A program of a Debian package, by its path in the package.
pub(crate) fn fetched(program: &str) -> Result<PathBuf, RigError> {
    let path = cache().join("debian").join(program);
    if path.is_file() { Ok(path) } else { Err(RigError::NotFetched { path }) }
}

/// The tree of files that Hotbay's image is made of, without Hotbay.
pub(crate) fn image_tree() -> Result<PathBuf, RigError> {
    let path = cache().join("image");
    if path.is_dir() { Ok(path) } else { Err(RigError::NotFetched { path }) }
}

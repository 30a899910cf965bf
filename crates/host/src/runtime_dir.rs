//! The directory under `/run` that holds the lock files of this machine.
//!
//! Locks must outlive no reboot and must not travel with a copied data directory, so they are kept apart from it.
//! Every agent of one machine, whatever its data directory, meets the others here.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A directory that exists, belongs to us and lets nobody else in.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    path: PathBuf,
}

/// Why a directory cannot hold our locks.
#[derive(Debug, Error)]
pub enum RuntimeDirError {
    #[error("cannot make the directory {}", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} must be a directory of user {uid}, closed to others (mode 0700)", path.display())]
    NotOurs { path: PathBuf, uid: u32 },
}

impl RuntimeDir {
    /// The directory of this user, made if it is missing.
    pub fn of_this_user() -> Result<Self, RuntimeDirError> {
        Self::at(Self::place_of_this_user())
    }

    /// Where it is for this user, there or not: `/run/hotbay` for root, else `$XDG_RUNTIME_DIR/hotbay`, else
    /// `/tmp/hotbay-UID`.
    pub fn place_of_this_user() -> PathBuf {
        let uid = rustix::process::geteuid();
        if uid.is_root() {
            return PathBuf::from("/run/hotbay");
        }
        match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
            Some(dir) => Path::new(&dir).join("hotbay"),
            None => PathBuf::from(format!("/tmp/hotbay-{}", uid.as_raw())),
        }
    }

    /// A directory of the caller's choice, made if it is missing (its parent must exist).
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, RuntimeDirError> {
        let path = path.into();
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RuntimeDirError::Make { path, source: error });
            }
            Ok(()) | Err(_) => {}
        }
        let uid = rustix::process::geteuid().as_raw();
        // Not through a link: in /tmp anyone may have put one there first.
        let found = fs::symlink_metadata(&path);
        match found {
            Ok(found) if found.is_dir() && found.uid() == uid && found.mode() & 0o077 == 0 => {
                Ok(Self { path })
            }
            Ok(_) => Err(RuntimeDirError::NotOurs { path, uid }),
            Err(source) => Err(RuntimeDirError::Make { path, source }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_and_found_again() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("locks");
        let made = RuntimeDir::at(&path).unwrap();
        assert_eq!(fs::metadata(made.path()).unwrap().mode() & 0o777, 0o700);
        RuntimeDir::at(&path).unwrap();
    }

    #[test]
    fn a_link_a_file_and_an_open_directory_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let real = parent.path().join("real");
        RuntimeDir::at(&real).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = parent.path().join("file");
        fs::write(&file, "").unwrap();
        for bad in [&link, &file] {
            assert!(matches!(RuntimeDir::at(bad), Err(RuntimeDirError::NotOurs { .. })), "{bad:?}");
        }
        fs::set_permissions(&real, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(RuntimeDir::at(&real), Err(RuntimeDirError::NotOurs { .. })));
        let nowhere = parent.path().join("missing/locks");
        assert!(matches!(RuntimeDir::at(nowhere), Err(RuntimeDirError::Make { .. })));
    }
}

//! The folder that everything of one rig is in: keys, settings, logs, data, and who runs. What is noted in it outlives
//! the program that started the rig, so that `rig down`, or the next `rig up`, ends what is left.
//!
//! ```text
//! hotbay-rig        marks the folder as a rig's: nothing without it is ever removed
//! running/NAME      pid and start time of each process
//! logs/NAME.log     what each printed
//! bridge            the name of the network bridge, in a rig with nodes
//! ```

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::RigError;
use crate::process::Running;

const MARK: &str = "hotbay-rig";
/// The sockets below it have paths of at most 107 bytes.
const PATH_MAX: usize = 60;
/// A node has these for itself, so a rig in them could not be seen from its nodes.
const OF_NODES: [&str; 3] = ["/run", "/var/lib", "/var/log"];

#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    /// Whether what runs in it shall outlive the caller.
    outlives: bool,
}

impl Folder {
    /// A new folder, or an empty one. In that of another rig, also one that ended, may be what belongs to no other.
    pub(crate) fn make(path: &Path, outlives: bool) -> Result<Self, RigError> {
        let unfit = !path.is_absolute()
            || path.as_os_str().as_bytes().len() > PATH_MAX
            || OF_NODES.iter().any(|place| path.starts_with(place));
        if unfit {
            let without = "/run, /var/lib and /var/log";
            return Err(RigError::UnfitFolder { folder: path.to_owned(), max: PATH_MAX, without });
        }
        let folder = Self { path: path.to_owned(), outlives };
        if folder.is_marked() {
            return Err(RigError::Taken { folder: folder.path });
        }
        if folder.path.exists() && !folder.is_empty() {
            return Err(RigError::NotOurs { folder: folder.path });
        }
        for sub in ["running", "logs", "keys"] {
            folder.subfolder(sub)?;
        }
        folder
            .write(MARK, "A rig of Kubernetes for tests; `cargo xtask rig down` removes it.\n")?;
        Ok(folder)
    }

    /// The folder of a rig that is or was there.
    pub(crate) fn existing(path: &Path) -> Result<Self, RigError> {
        let folder = Self { path: path.to_owned(), outlives: true };
        if folder.is_marked() { Ok(folder) } else { Err(RigError::NotOurs { folder: folder.path }) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn outlives(&self) -> bool {
        self.outlives
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.path.join(format!("logs/{name}.log"))
    }

    pub(crate) fn note(&self, name: &str) -> PathBuf {
        self.path.join("running").join(name)
    }

    pub(crate) fn subfolder(&self, name: &str) -> Result<PathBuf, RigError> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).map_err(RigError::file("make the folder", &path))?;
        Ok(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> Result<PathBuf, RigError> {
        let path = self.path.join(name);
        fs::write(&path, text).map_err(RigError::file("write", &path))?;
        Ok(path)
    }

    /// The noted processes that still run, whoever started them.
    pub(crate) fn running(&self) -> Vec<Running> {
        let entries = fs::read_dir(self.path.join("running")).into_iter().flatten().flatten();
        entries.filter_map(|entry| Running::noted(&entry.path())).collect()
    }

    fn is_marked(&self) -> bool {
        self.path.join(MARK).is_file()
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.path).is_ok_and(|mut entries| entries.next().is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_elses_folder_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("letter"), "dear").unwrap();
        let made = Folder::make(folder.path(), false);
        assert!(matches!(made, Err(RigError::NotOurs { .. })), "{made:?}");
        assert!(matches!(Folder::existing(folder.path()), Err(RigError::NotOurs { .. })));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folder_that_nodes_could_not_see_is_refused() {
        for path in ["relative", "/var/lib/rig", "/run/rig", &format!("/tmp/{}", "x".repeat(60))] {
            let made = Folder::make(Path::new(path), false);
            assert!(matches!(made, Err(RigError::UnfitFolder { .. })), "{path}: {made:?}");
        }
    }

    #[test]
    fn two_rigs_do_not_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        Folder::make(folder.path(), false).unwrap();
        let second = Folder::make(folder.path(), false);
        assert!(matches!(second, Err(RigError::Taken { .. })), "{second:?}");
    }
}

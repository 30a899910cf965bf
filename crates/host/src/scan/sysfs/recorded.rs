//! Trees of sysfs that tests make, file by file and link by link, after those of real machines. Nothing in them was
//! ever hardware.

use std::os::unix::fs::symlink;
use std::path::Path;

use super::Sysfs;
use crate::scan::udev::Database;

/// A directory that looks like `/sys`, with udev's database beside it.
pub(in crate::scan) struct Tree(pub(in crate::scan) tempfile::TempDir);

impl Tree {
    /// With these files below `/sys/block`.
    pub(in crate::scan) fn new(files: &[(&str, &[u8])]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir_all(tree.0.path().join("sys/block")).unwrap();
        for (path, contents) in files {
            tree.file(&format!("block/{path}"), contents);
        }
        tree
    }

    pub(in crate::scan) fn file(&self, path: &str, contents: &[u8]) {
        self.write(&format!("sys/{path}"), contents);
    }

    /// A link below `/sys` to another place there.
    pub(in crate::scan) fn link(&self, path: &str, to: &str) {
        let root = self.0.path().join("sys");
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(root.join(to), path).unwrap();
    }

    /// A block device, where it is in the tree of devices, and with its number.
    pub(in crate::scan) fn disk(&self, name: &str, place: &str, number: &str) {
        self.file(&format!("{place}/dev"), number.as_bytes());
        self.link(&format!("block/{name}"), place);
        self.link(&format!("dev/block/{number}"), place);
    }

    /// What udev has on a device.
    pub(in crate::scan) fn udev(&self, number: &str, contents: &[u8]) {
        self.write(&format!("udev/b{number}"), contents);
    }

    pub(in crate::scan) fn sysfs(&self) -> Sysfs {
        let udev = Database::at(self.0.path().join("udev"));
        Sysfs { udev, ..Sysfs::at(self.0.path().join("sys")) }
    }

    fn write(&self, path: &str, contents: &[u8]) {
        let path: &Path = &self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
}

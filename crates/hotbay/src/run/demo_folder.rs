//! The demo's folder: what is in it, made once, found again later, and removed only if it is one.
//!
//! ```text
//! hotbay-demo/
//!   demo.json           how many nodes and drives; also the mark by which the folder is known
//!   api.sock            where the registry listens
//!   http.sock           where it answers in HTTP and JSON
//!   registry/           its store
//!   node-a/bay-0.img    a drive
//!   node-a/state/       the agent's record
//!   logs/
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::loops;

const MARK: &str = "demo.json";
/// A Unix socket's path may not be longer.
const SOCKET_PATH_LIMIT: usize = 107;

/// How large a demo is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) drives: usize,
    pub(crate) drive_bytes: u64,
}

/// A demo's folder that exists.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    pub(crate) shape: Shape,
}

/// One node of a demo.
#[derive(Debug)]
pub(crate) struct DemoNode {
    pub(crate) name: String,
    pub(crate) state: PathBuf,
    pub(crate) drives: Vec<PathBuf>,
}

impl Folder {
    /// Opens the folder, or makes it. A demo that is there keeps its shape: `wanted` must fit it.
    pub(crate) fn open(
        path: &Path,
        wanted: impl FnOnce(Option<Shape>) -> anyhow::Result<Shape>,
    ) -> anyhow::Result<Self> {
        let known = known_shape(path)?;
        let shape = wanted(known)?;
        if let Some(known) = known.filter(|known| *known != shape) {
            bail!(
                "the demo in {} has {} nodes with {} drives of {} bytes each\n  start it without these options, or \
                 remove it first:  hotbay demo --delete",
                path.display(),
                known.nodes,
                known.drives,
                known.drive_bytes
            );
        }
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        let path = path.canonicalize()?;
        let folder = Self { path, shape };
        let longest = folder.http();
        if longest.as_os_str().len() > SOCKET_PATH_LIMIT {
            bail!(
                "{} is too long a path for a socket (at most {SOCKET_PATH_LIMIT} bytes); choose another --dir",
                longest.display()
            );
        }
        folder.make()?;
        Ok(folder)
    }

    /// Opens the folder of a demo that must be there.
    pub(crate) fn existing(path: &Path) -> anyhow::Result<Self> {
        let shape = known_shape(path)?;
        let Some(shape) = shape else {
            bail!("there is no demo in {}\n  nothing was changed", path.display());
        };
        Ok(Self { path: path.canonicalize()?, shape })
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.path.join("api.sock")
    }

    pub(crate) fn http(&self) -> PathBuf {
        self.path.join("http.sock")
    }

    pub(crate) fn registry(&self) -> PathBuf {
        self.path.join("registry")
    }

    pub(crate) fn log(&self, part: &str) -> PathBuf {
        self.path.join("logs").join(format!("{part}.log"))
    }

    pub(crate) fn nodes(&self) -> Vec<DemoNode> {
        let letters = ('a'..='z').take(self.shape.nodes);
        letters
            .map(|letter| {
                let name = format!("node-{letter}");
                let home = self.path.join(&name);
                let drives = (0..self.shape.drives).map(|bay| home.join(format!("bay-{bay}.img")));
                DemoNode { state: home.join("state"), drives: drives.collect(), name }
            })
            .collect()
    }

    /// Removes the folder, with the loop devices over its files.
    pub(crate) fn delete(self) -> anyhow::Result<()> {
        self.remove_loops()?;
        fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }

    pub(crate) fn remove_loops(&self) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        for file in self.nodes().iter().flat_map(|node| &node.drives) {
            if file.exists() {
                loops::remove(file)?;
            }
        }
        Ok(())
    }

    fn make(&self) -> anyhow::Result<()> {
        let shape = serde_json::to_string_pretty(&self.shape)?;
        fs::write(self.path.join(MARK), format!("{shape}\n"))
            .with_context(|| format!("cannot write in {}", self.path.display()))?;
        fs::create_dir_all(self.path.join("logs"))?;
        for node in self.nodes() {
            fs::create_dir_all(&node.state)?;
            for drive in node.drives {
                // Sparse: it takes no room until something is written.
                if !drive.exists() {
                    let file = fs::File::create_new(&drive)?;
                    file.set_len(self.shape.drive_bytes)
                        .with_context(|| format!("cannot make {}", drive.display()))?;
                }
            }
        }
        Ok(())
    }
}

/// The shape of the demo in a folder; `None` if the folder is missing or empty. Anything else is not ours to touch.
fn known_shape(path: &Path) -> anyhow::Result<Option<Shape>> {
    let mark = path.join(MARK);
    match fs::read_to_string(&mark) {
        Ok(text) => serde_json::from_str(&text)
            .map(Some)
            .with_context(|| format!("{} is not a demo's description", mark.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let occupied = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
            if occupied {
                bail!(
                    "{} is not empty and not a demo\n  nothing was changed; choose another folder:  --dir DIR",
                    path.display()
                );
            }
            Ok(None)
        }
        Err(error) => Err(error)
            .with_context(|| format!("cannot use {} as the demo's folder", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { nodes: 2, drives: 1, drive_bytes: 1 << 24 };

    #[test]
    fn a_demo_is_found_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("demo");
        let made = Folder::open(&path, |known| Ok(known.unwrap_or(SHAPE))).unwrap();
        assert_eq!(made.nodes().len(), 2);
        assert_eq!(fs::metadata(&made.nodes()[1].drives[0]).unwrap().len(), 1 << 24);
        let again = Folder::open(&path, |known| Ok(known.unwrap())).unwrap();
        assert_eq!(again.shape, SHAPE);
        let other = Folder::open(&path, |_| Ok(Shape { nodes: 3, ..SHAPE }));
        assert!(other.unwrap_err().to_string().contains("has 2 nodes"));
    }

    #[test]
    fn a_folder_that_is_no_demo_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "x").unwrap();
        assert!(Folder::open(dir.path(), |_| Ok(SHAPE)).is_err());
        assert!(Folder::existing(dir.path()).is_err());
        assert!(dir.path().join("precious").exists());
        assert!(!dir.path().join(MARK).exists());
    }
}

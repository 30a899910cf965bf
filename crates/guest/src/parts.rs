//! What `scripts/setup-guest` left in the cache: a kernel with its modules, and programs that only the guest runs.
//! `initramfs` takes its files from here.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::GuestError;

#[derive(Debug)]
pub(crate) struct Parts {
    folder: PathBuf,
    /// The kernel's version, as its files are named by.
    version: String,
    /// What must be loaded before each module; both as paths below the folder of modules.
    dependencies: BTreeMap<String, Vec<String>>,
}

impl Parts {
    pub(crate) fn find() -> Result<Self, GuestError> {
        let home = || env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
        let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
        Self::at(cache.unwrap_or_default().join("hotbay/guest/parts"))
    }

    fn at(folder: PathBuf) -> Result<Self, GuestError> {
        let missing = || GuestError::NoParts { path: folder.clone() };
        let mut versions = fs::read_dir(folder.join("lib/modules")).map_err(|_| missing())?;
        let version = versions.next().and_then(Result::ok).ok_or_else(missing)?.file_name();
        let version = version.to_string_lossy().into_owned();
        let path = folder.join("lib/modules").join(&version).join("modules.dep");
        let text = fs::read_to_string(&path).map_err(GuestError::file("read", path))?;
        let dependencies = parse_dependencies(&text);
        Ok(Self { folder, version, dependencies })
    }

    pub(crate) fn kernel(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.version))
    }

    /// The files of the named modules and of those they need, relative to the root of either system.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<String>, GuestError> {
        let mut files = BTreeSet::new();
        let mut open = Vec::new();
        for name in names {
            let path = self.dependencies.keys().find(|path| module_name(path) == *name);
            open.push(path.ok_or_else(|| GuestError::NoModule {
                name: (*name).to_owned(),
                folder: self.folder.clone(),
            })?);
        }
        while let Some(path) = open.pop() {
            if files.insert(path) {
                open.extend(self.dependencies.get(path).into_iter().flatten());
            }
        }
        let folder = format!("lib/modules/{}", self.version);
        let paths = files.into_iter().map(|path| format!("{folder}/{path}"));
        Ok(paths.chain([format!("{folder}/modules.dep")]).collect())
    }

    pub(crate) fn root(&self) -> &Path {
        &self.folder
    }
}

/// Reads `PATH: PATH PATH ...`, a line for every module.
fn parse_dependencies(text: &str) -> BTreeMap<String, Vec<String>> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let one = |(path, needs): (&str, &str)| {
        (path.to_owned(), needs.split_whitespace().map(str::to_owned).collect())
    };
    lines.map(one).collect()
}

/// The name of a module as `lsmod` writes it, which has no dashes.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_brings_what_it_needs() {
        let folder = tempfile::tempdir().unwrap();
        let modules = folder.path().join("lib/modules/6.1.0");
        fs::create_dir_all(&modules).unwrap();
        let text = "kernel/fs/ext4/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2/jbd2.ko\n\
                    kernel/lib/crc16.ko:\nkernel/fs/jbd2/jbd2.ko:\nkernel/drivers/md/dm-mod.ko:\n";
        fs::write(modules.join("modules.dep"), text).unwrap();
        let parts = Parts::at(folder.path().to_owned()).unwrap();
        assert_eq!(
            parts.modules(&["ext4"]).unwrap(),
            [
                "lib/modules/6.1.0/kernel/fs/ext4/ext4.ko",
                "lib/modules/6.1.0/kernel/fs/jbd2/jbd2.ko",
                "lib/modules/6.1.0/kernel/lib/crc16.ko",
                "lib/modules/6.1.0/modules.dep"
            ]
        );
        assert!(parts.modules(&["dm_mod"]).is_ok());
        assert!(matches!(parts.modules(&["xfs"]), Err(GuestError::NoModule { .. })));
    }
}

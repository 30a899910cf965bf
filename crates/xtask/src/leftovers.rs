//! Loop devices and mounts of this machine, looked at before and after the tests that make some. The `root` tier
//! fails if its tests left any behind, even when each of them passed.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// The kernel takes a loop device apart a moment after its last user is gone, on its own time.
const SETTLE_MAX: Duration = Duration::from_secs(5);
const SETTLE_STEP: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// `loop0 over /tmp/drive.img`
    loops: BTreeSet<String>,
    /// `/mnt from /dev/loop0`
    mounts: BTreeSet<String>,
}

impl Leftovers {
    pub(crate) fn now() -> anyhow::Result<Self> {
        let mountinfo = "/proc/self/mountinfo";
        let mounts = fs::read_to_string(mountinfo)
            .with_context(|| format!("cannot read the mounts from {mountinfo}"))?;
        Ok(Self {
            loops: bound_loops(Path::new("/sys/block"))?,
            mounts: mounts.lines().filter_map(mount).collect(),
        })
    }

    /// Fails with the names of everything that is there now and was not in `self`.
    pub(crate) fn nothing_new(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + SETTLE_MAX;
        let mut after = Self::now()?;
        while !after.without(self).is_empty() && Instant::now() < give_up {
            sleep(SETTLE_STEP);
            after = Self::now()?;
        }
        println!("after: {after}");
        let new = after.without(self);
        ensure!(
            new.is_empty(),
            "the tests left behind {new} (if something else on this machine made them, try again)"
        );
        Ok(())
    }

    fn without(&self, before: &Self) -> Self {
        Self { loops: &self.loops - &before.loops, mounts: &self.mounts - &before.mounts }
    }

    fn is_empty(&self) -> bool {
        self.loops.is_empty() && self.mounts.is_empty()
    }
}

impl fmt::Display for Leftovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &BTreeSet<String>| match names.len() {
            0 => "none".to_owned(),
            _ => names.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        };
        write!(f, "loop devices: {}; mounts: {}", list(&self.loops), list(&self.mounts))
    }
}

/// The loop devices that have a file behind them, from the kernel's list of block devices.
fn bound_loops(block: &Path) -> anyhow::Result<BTreeSet<String>> {
    let entries = fs::read_dir(block)
        .with_context(|| format!("cannot list the block devices in {}", block.display()))?;
    let mut loops = BTreeSet::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", block.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only a bound loop device has this file; it may be unbound between listing and reading.
        if let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) {
            loops.insert(format!("{name} over {}", file.trim_end()));
        }
    }
    Ok(loops)
}

/// One line of mountinfo: `36 35 98:0 / /mnt rw shared:1 - ext4 /dev/loop0 rw`, as proc(5) tells.
fn mount(line: &str) -> Option<String> {
    let (before, after) = line.split_once(" - ")?;
    let place = before.split(' ').nth(4)?;
    let source = after.split(' ').nth(1)?;
    Some(format!("{place} from {source}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftovers(loops: &[&str], mounts: &[&str]) -> Leftovers {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Leftovers { loops: set(loops), mounts: set(mounts) }
    }

    #[test]
    fn mount_is_named_by_place_and_source() {
        let line = "36 35 98:0 / /mnt rw,noatime shared:1 - ext4 /dev/loop0 rw,errors=continue";
        assert_eq!(mount(line).as_deref(), Some("/mnt from /dev/loop0"));
        assert_eq!(mount("no such line"), None);
    }

    #[test]
    fn only_what_is_new_counts() {
        let before = leftovers(&["loop0 over /a"], &["/ from /dev/sda1"]);
        let after = leftovers(&["loop0 over /a", "loop1 over /b"], &["/ from /dev/sda1"]);
        assert_eq!(after.without(&before), leftovers(&["loop1 over /b"], &[]));
        assert!(before.without(&after).is_empty());
    }

    #[test]
    fn loop_bound_to_another_file_is_new() {
        let before = leftovers(&["loop0 over /a"], &[]);
        let after = leftovers(&["loop0 over /b"], &[]);
        assert!(!after.without(&before).is_empty());
    }

    #[test]
    fn this_machine_can_be_read() {
        assert!(!Leftovers::now().unwrap().mounts.is_empty());
    }
}

//! Loop devices and mounts of this machine, looked at before and after the tests that make some. A tier with such tests
//! fails if they left any behind, even when each of them passed. What they left is removed then: `scratch` knows it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::scratch::Scratch;
use crate::tier::{Plan, Step, Work};

/// The kernel takes a loop device apart a moment after its last user is gone, on its own time: on a machine that has
/// just run all tests, a long moment.
const SETTLE_MAX: Duration = Duration::from_secs(20);
const SETTLE_STEP: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Leftovers {
    /// `loop0 over /tmp/drive.img`
    loops: BTreeSet<String>,
    /// `/mnt from /dev/loop0`
    mounts: BTreeSet<String>,
}

/// The steps, and after them a look at what they have left, whatever became of them. It is judged before it is removed:
/// a test that passed and left something is at fault. `rig` is the rig's program.
pub(crate) fn and_nothing_left(mut steps: Vec<Step>, rig: PathBuf) -> anyhow::Result<Plan> {
    let before = Leftovers::now()?;
    println!("before: {before}");
    let scratch = Scratch::make()?;
    scratch.give(&mut steps);
    let look = move || {
        let left = before.nothing_new();
        scratch.clear(&rig)?;
        let Err(left) = left else { return Ok(()) };
        before.nothing_new().context("not all could be removed")?;
        bail!("{left:#}; now it is removed")
    };
    steps.push(Step { name: "leftovers".to_owned(), work: Work::Check(Box::new(look)) });
    Ok(Plan::Steps(steps))
}

impl Leftovers {
    fn now() -> anyhow::Result<Self> {
        let loops = bound_loops(Path::new("/sys/block"))?;
        let mounts = mountinfo()?;
        let mounts = mounts.lines().filter_map(mount);
        Ok(Self {
            loops: loops.iter().map(|(name, file)| format!("{name} over {file}")).collect(),
            mounts: mounts.map(|(place, source)| format!("{place} from {source}")).collect(),
        })
    }

    /// Fails with the names of everything that is there now and was not in `self`.
    fn nothing_new(&self) -> anyhow::Result<()> {
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

/// The loop devices that have a file behind them, each with that, from the kernel's list of block devices.
pub(crate) fn bound_loops(block: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let entries = fs::read_dir(block)
        .with_context(|| format!("cannot list the block devices in {}", block.display()))?;
    let mut loops = BTreeMap::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", block.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // Only a bound loop device has this file; it may be unbound between listing and reading.
        if let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) {
            loops.insert(name, file.trim_end().to_owned());
        }
    }
    Ok(loops)
}

pub(crate) fn mountinfo() -> anyhow::Result<String> {
    let mountinfo = "/proc/self/mountinfo";
    fs::read_to_string(mountinfo)
        .with_context(|| format!("cannot read the mounts from {mountinfo}"))
}

/// Place and source in one line of mountinfo: `36 35 98:0 / /mnt rw shared:1 - ext4 /dev/loop0 rw`, as proc(5) tells.
pub(crate) fn mount(line: &str) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let place = before.split(' ').nth(4)?;
    let source = after.split(' ').nth(1)?;
    Some((place, source))
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
        assert_eq!(mount(line), Some(("/mnt", "/dev/loop0")));
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

//! Finds what no event tells: a partition that was resized, a device that was set read-only, and whatever a lost event
//! would have told. The agent's loop sweeps every second or so.
//!
//! Size and flag of each disk are read from files of sysfs that stay open, which costs under a microsecond each.
//! Nothing is written, and nothing of a device is opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use hotbay_core::device::DeviceNumber;
use hotbay_core::discovery::probes::{Needs, Probes};
use hotbay_core::discovery::queue::{DeviceKey, Run};
use hotbay_core::discovery::triage::Change;
use rustix::io::Errno;
use thiserror::Error;

use crate::scan::sysfs::Sysfs;

/// So many files are kept open; those of more devices are opened for each sweep, at eight times the cost. Well below
/// the 1,024 that a process may have open if nobody says otherwise.
const MAX_KEPT: usize = 512;

/// Longer than any number.
const NUMBER_BYTES: usize = 32;

#[derive(Debug, Error)]
pub enum PollError {
    #[error("cannot list the block devices in /sys/block")]
    List(#[source] io::Error),
    #[error("cannot open the kernel's counter of events, /sys/kernel/uevent_seqnum")]
    OpenCounter(#[source] io::Error),
    #[error("cannot read the kernel's counter of events, /sys/kernel/uevent_seqnum")]
    ReadCounter(#[source] io::Error),
}

/// How many events the kernel has sent since it started.
#[derive(Debug)]
pub struct KernelCounter {
    file: File,
}

impl KernelCounter {
    pub fn open() -> Result<Self, PollError> {
        let file = File::open("/sys/kernel/uevent_seqnum").map_err(PollError::OpenCounter)?;
        Ok(Self { file })
    }

    pub fn read(&self) -> Result<u64, PollError> {
        let number =
            read_number(&self.file).map_err(|error| PollError::ReadCounter(error.into()))?;
        let garbled = || PollError::ReadCounter(io::ErrorKind::InvalidData.into());
        number.ok_or_else(garbled)
    }
}

/// What the disks were like when they were last looked at.
#[derive(Debug)]
pub struct Poll {
    root: PathBuf,
    disks: BTreeMap<String, Watched>,
    kept: usize,
    most_kept: usize,
}

#[derive(Debug)]
struct Watched {
    key: DeviceKey,
    size: Value,
    read_only: Value,
    /// Their sizes.
    partitions: Vec<(DeviceNumber, Value)>,
}

/// A number in a file, and where to read it again.
#[derive(Debug)]
struct Value {
    path: PathBuf,
    file: Option<File>,
    last: Option<u64>,
}

/// What a second look at a file has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Same,
    Changed,
    Gone,
}

impl Poll {
    /// Watches nothing yet: see [`Poll::relist`].
    pub fn new() -> Self {
        Self::at(Path::new("/sys"), MAX_KEPT)
    }

    fn at(root: &Path, most_kept: usize) -> Self {
        Self { root: root.to_owned(), disks: BTreeMap::new(), kept: 0, most_kept }
    }

    /// Reads the list of disks again, and watches those whose name is `wanted`. Adds to `found` what differs from the
    /// time before: disks that came, went or got another sequence, and other partitions. Call it after work on such a
    /// change, so that it is known here too, and when an event may have been lost.
    pub fn relist(
        &mut self,
        wanted: impl Fn(&str) -> bool,
        found: &mut Vec<Run>,
    ) -> Result<(), PollError> {
        let sysfs = Sysfs::at(&self.root);
        let names = sysfs.disks().map_err(PollError::List)?;
        self.disks.retain(|name, watched| {
            let stays = names.contains(name) && wanted(name);
            if !stays {
                self.kept -= watched.kept();
                found.push(run(watched.key, Change::Went, Probes::NONE));
            }
            stays
        });
        for name in names.iter().filter(|name| wanted(name)) {
            let disk = sysfs.disk(name);
            let Some(number) = disk.number() else { continue };
            let key = DeviceKey { number, sequence: disk.sequence() };
            let partitions = disk.partitions();
            let known = self.disks.get(name);
            if known.is_some_and(|known| known.key == key) {
                let same = known.is_some_and(|known| known.has_partitions(partitions.values()));
                if same {
                    continue;
                }
                let table = Probes::HIERARCHY | Probes::INSIDE | Probes::MOUNTS;
                found.push(run(key, Change::Changed, table));
            } else {
                found.push(run(key, Change::Came, Probes::ALL));
            }
            let old = self.disks.remove(name).map_or(0, |old| old.kept());
            self.kept -= old;
            let watched = self.watch(name, key, &partitions);
            self.kept += watched.kept();
            self.disks.insert(name.clone(), watched);
        }
        Ok(())
    }

    /// Reads every file again, and adds to `found` what has changed since the last time. Without a change, nothing is
    /// allocated. What has gone is not watched any more.
    pub fn sweep(&mut self, found: &mut Vec<Run>) {
        let before = found.len();
        for watched in self.disks.values_mut() {
            watched.sweep(found);
        }
        if found[before..].iter().any(|run| run.change == Change::Went) {
            let gone = |key: &DeviceKey| {
                found.iter().any(|run| run.change == Change::Went && run.device == *key)
            };
            self.disks.retain(|_, watched| !gone(&watched.key));
            self.kept = self.disks.values().map(Watched::kept).sum();
        }
    }

    /// How many disks are watched.
    pub fn len(&self) -> usize {
        self.disks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.disks.is_empty()
    }

    fn watch(
        &self,
        name: &str,
        key: DeviceKey,
        partitions: &BTreeMap<String, DeviceNumber>,
    ) -> Watched {
        let directory = self.root.join("block").join(name);
        let mut room = self.most_kept.saturating_sub(self.kept);
        let mut value = |path: PathBuf| {
            let value = Value::read(path, room > 0);
            room -= usize::from(value.file.is_some());
            value
        };
        Watched {
            key,
            size: value(directory.join("size")),
            read_only: value(directory.join("ro")),
            partitions: partitions
                .iter()
                .map(|(name, number)| (*number, value(directory.join(name).join("size"))))
                .collect(),
        }
    }
}

impl Default for Poll {
    fn default() -> Self {
        Self::new()
    }
}

impl Watched {
    fn sweep(&mut self, found: &mut Vec<Run>) {
        let mut probes = Probes::NONE;
        match (self.size.look(), self.read_only.look()) {
            (Seen::Gone, _) | (_, Seen::Gone) => {
                found.push(run(self.key, Change::Went, Probes::NONE));
                return;
            }
            (size, read_only) => {
                if size == Seen::Changed {
                    probes |= Probes::SIZE;
                }
                if read_only == Seen::Changed {
                    probes |= Probes::READ_ONLY;
                }
            }
        }
        self.partitions.retain_mut(|(_, size)| {
            let seen = size.look();
            if seen != Seen::Same {
                probes |= Probes::HIERARCHY;
            }
            seen != Seen::Gone
        });
        if !probes.is_empty() {
            found.push(run(self.key, Change::Changed, probes));
        }
    }

    fn has_partitions<'a>(&self, numbers: impl Iterator<Item = &'a DeviceNumber>) -> bool {
        self.partitions.iter().map(|(number, _)| number).eq(numbers)
    }

    fn kept(&self) -> usize {
        let values = [&self.size, &self.read_only].into_iter();
        let values = values.chain(self.partitions.iter().map(|(_, value)| value));
        values.filter(|value| value.file.is_some()).count()
    }
}

impl Value {
    fn read(path: PathBuf, keep: bool) -> Self {
        let file = File::open(&path).ok();
        let last = file.as_ref().and_then(|file| read_number(file).ok().flatten());
        Self { path, file: file.filter(|_| keep), last }
    }

    fn look(&mut self) -> Seen {
        let number = match &self.file {
            Some(file) => read_number(file),
            None => match File::open(&self.path) {
                Ok(file) => read_number(&file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Errno::NODEV),
                Err(_) => return Seen::Same,
            },
        };
        match number {
            // A file of sysfs outlives its device, and says so.
            Err(Errno::NODEV) => Seen::Gone,
            Ok(Some(number)) if self.last != Some(number) => {
                self.last = Some(number);
                Seen::Changed
            }
            // What cannot be read now is not known to have changed.
            Ok(_) | Err(_) => Seen::Same,
        }
    }
}

fn run(device: DeviceKey, change: Change, probes: Probes) -> Run {
    Run { device, change, needs: Needs::only(probes) }
}

/// Reads a file that holds one number, from its start; `None` if it holds something else.
fn read_number(file: &File) -> Result<Option<u64>, Errno> {
    let mut bytes = [0; NUMBER_BYTES];
    let length = rustix::io::pread(file, &mut bytes, 0)?;
    let text = std::str::from_utf8(&bytes[..length]).ok();
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

#[cfg(test)]
#[path = "poll_tests.rs"]
mod tests;

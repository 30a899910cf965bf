//! The proof, at run time, that a drive is closed: nothing on this machine has it open, mapped or mounted.
//!
//! Only a child that closes a drive calls it. Each place is asked because the others do not show it:
//!
//! ```text
//! loop devices      a loop device over the drive shows in neither descriptors nor holders, and O_EXCL succeeds
//! holders           device-mapper, software RAID
//! descriptors       of every thread of every process: a killed process that hangs shows only under its thread
//! O_EXCL / lease    a mount in another namespace, a lazily unmounted filesystem; any opener of a plain file
//! ```

pub(crate) mod loops;
mod processes;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use hotbay_core::device::DeviceKind;
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_core::ids::VolumeId;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::identity::evidence_of;
use crate::kernel_id::{DeviceNumber, KernelId};
use crate::mapping;
use crate::scan::mountinfo::Mounts;
use crate::scan::sysfs::Sysfs;

/// The inode of the initial pid namespace, fixed by the kernel.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// A drive is looked at by others for milliseconds at a time (udev, blkid, our own questions to loop devices): a
/// proof that fails is tried again for this long before anyone is told.
const SETTLE: Duration = Duration::from_millis(500);
const SETTLE_PAUSE: Duration = Duration::from_millis(50);

/// Most blockers that are named, and the longest path among them.
const MAX_BLOCKERS: usize = 32;
const MAX_MOUNT_CHARS: usize = 256;

/// Something that has the drive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Blocker {
    /// A process has the drive or a partition of it open. `thread` is set if only that thread of it has.
    Process { pid: u32, command: String, thread: Option<u32> },
    /// A loop device is over the drive or a partition of it.
    LoopDevice { path: String },
    /// A volume on the drive is mapped there.
    Mapping { volume: VolumeId, path: String },
    /// The guard that holds the claim on the drive for us.
    Guard { path: String },
    /// Another block device holds it.
    Holder { name: String },
    /// It is mounted there, or swaps.
    Mount { at: String },
    /// Something has it exclusively that shows nowhere else, such as a mount in another namespace.
    Exclusive,
    /// Something has the plain file open that shows nowhere else.
    Leased,
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Process { pid, command, thread: None } => write!(f, "process {pid} ({command})"),
            Self::Process { pid, command, thread: Some(thread) } => {
                write!(f, "thread {thread} of process {pid} ({command})")
            }
            Self::LoopDevice { path } => write!(f, "loop device {path}"),
            Self::Mapping { volume, path } => write!(f, "volume {volume}, mapped at {path}"),
            Self::Guard { path } => write!(f, "the drive's own guard {path}"),
            Self::Holder { name } => write!(f, "block device {name}"),
            Self::Mount { at } => write!(f, "a mount at {at}"),
            Self::Exclusive => f.write_str("a mount in another namespace, or the kernel itself"),
            Self::Leased => f.write_str("a process that cannot be seen from here"),
        }
    }
}

/// What a proof came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    Proved,
    Blocked {
        by: Vec<Blocker>,
    },
    /// Nothing was found, but not everything could be looked at.
    CannotProve {
        why: String,
    },
}

/// Proves that the drive once at `path`, with this evidence, is closed. `known` is what the kernel called it when
/// it was open, if that is known.
///
/// A drive that is gone from the machine, or has another in its place, is closed if no process has `known` open; if
/// that is not known, any block device that the machine no longer has counts. If `known` stands for another drive
/// meanwhile, nobody has the old one: the kernel gives a number again only after the last close.
pub(crate) fn prove(
    path: &Path,
    kind: DeviceKind,
    evidence: &Evidence,
    known: Option<KernelId>,
) -> Proof {
    bounded(settled(|| match present(path, evidence) {
        Ok(Some(KernelId::Block(number))) => prove_block_device(path, number),
        Ok(Some(id @ KernelId::File { .. })) => prove_plain_file(path, id),
        Ok(None) => prove_gone(path, kind, evidence, known),
        Err(error) => cannot(format!("{} cannot be looked at: {error}", path.display())),
    }))
}

/// The last of several tries, as long as what is in the way may pass by itself.
fn settled(try_once: impl Fn() -> Proof) -> Proof {
    let until = Instant::now() + SETTLE;
    loop {
        let proof = try_once();
        let passing = matches!(&proof, Proof::Blocked { by } if by.iter().all(may_pass));
        if !passing || Instant::now() >= until {
            return proof;
        }
        std::thread::sleep(SETTLE_PAUSE);
    }
}

/// Who uses a block device that is to go, as far as can be told. Looks that pass by themselves are waited for.
pub(crate) fn users_of(path: &Path, number: DeviceNumber) -> Vec<Blocker> {
    match settled(|| prove_block_device(path, number)) {
        Proof::Blocked { by } => first_few(by),
        Proof::Proved | Proof::CannotProve { .. } => vec![],
    }
}

/// What keeps a block device from being opened exclusively, as far as can be told.
pub(crate) fn exclusive_users(number: DeviceNumber) -> Vec<Blocker> {
    let sysfs = Sysfs::of_machine();
    let drive = Drive::of(&sysfs, number);
    let mut by = drive.holders(&sysfs);
    by.extend(drive.mounts());
    by.extend(processes::find(&drive.searched()).blockers);
    if by.is_empty() {
        by.push(Blocker::Exclusive);
    }
    first_few(by)
}

/// Loop devices over a drive or a partition of it; also such that no path tells of.
pub(crate) fn loops_over(id: KernelId) -> io::Result<Vec<Blocker>> {
    let sysfs = Sysfs::of_machine();
    match id {
        KernelId::Block(number) => {
            loops::over(&sysfs, &Drive::of(&sysfs, number).searched(), number)
        }
        KernelId::File { .. } => {
            loops::over(&sysfs, &Searched::one(id), DeviceNumber { major: 0, minor: 0 })
        }
    }
}

/// What is mapped on a drive: loop devices over it and devices that hold it, but not its own guard.
pub(crate) fn mapped(id: KernelId) -> io::Result<Vec<Blocker>> {
    let mut by = loops_over(id)?;
    if let KernelId::Block(number) = id {
        let sysfs = Sysfs::of_machine();
        let drive = Drive::of(&sysfs, number);
        by.extend(drive.holders(&sysfs));
        by.extend(drive.mounts());
    }
    by.retain(|blocker| !matches!(blocker, Blocker::Guard { .. }));
    Ok(first_few(by))
}

/// Whether nobody else has a drive that is open here. A block device was opened exclusively; of a plain file the kernel
/// grants a lease only then.
pub(crate) fn has_sole_opener(file: &std::fs::File, id: KernelId) -> io::Result<bool> {
    if matches!(id, KernelId::Block(_)) {
        return Ok(true);
    }
    match set_lease(file, libc::F_WRLCK) {
        // Dropped at once: whoever opens the file would have to wait for its end.
        Ok(()) => set_lease(file, libc::F_UNLCK).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// The first few of many: a message has room for so much.
fn bounded(proof: Proof) -> Proof {
    match proof {
        Proof::Blocked { by } => Proof::Blocked { by: first_few(by) },
        proof @ (Proof::Proved | Proof::CannotProve { .. }) => proof,
    }
}

fn first_few(mut by: Vec<Blocker>) -> Vec<Blocker> {
    by.truncate(MAX_BLOCKERS);
    for blocker in &mut by {
        if let Blocker::Mount { at } = blocker {
            *at = at.chars().take(MAX_MOUNT_CHARS).collect();
        }
    }
    by
}

fn may_pass(blocker: &Blocker) -> bool {
    match blocker {
        Blocker::Process { .. } | Blocker::Exclusive | Blocker::Leased => true,
        Blocker::LoopDevice { .. }
        | Blocker::Mapping { .. }
        | Blocker::Guard { .. }
        | Blocker::Holder { .. }
        | Blocker::Mount { .. } => false,
    }
}

/// The drive at the path, if it is there and not another one.
fn present(path: &Path, evidence: &Evidence) -> io::Result<Option<KernelId>> {
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let id = match KernelId::of_path(path) {
        Ok(Some(id)) => id,
        Ok(None) => return Ok(None),
        Err(error) if absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    match evidence_of(path, id, None) {
        Ok(found) => Ok((found.compare(evidence) != Comparison::Different).then_some(id)),
        Err(error) if absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn prove_block_device(path: &Path, number: DeviceNumber) -> Proof {
    let sysfs = Sysfs::of_machine();
    let drive = Drive::of(&sysfs, number);
    let mut by = match loops::over(&sysfs, &drive.searched(), number) {
        Ok(loops) => loops,
        Err(error) => return cannot(format!("loop devices cannot be listed: {error}")),
    };
    by.extend(drive.holders(&sysfs));
    let processes = processes::find(&drive.searched());
    by.extend(processes.blockers);
    if !by.is_empty() {
        return Proof::Blocked { by };
    }
    if let Some(why) = not_everything_is_visible(processes.unreadable) {
        return cannot(why);
    }
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(opened) => match KernelId::of_descriptor(&opened) {
            Ok(Some(KernelId::Block(found))) if found == number => Proof::Proved,
            Ok(_) | Err(_) => cannot(format!("{} changed meanwhile", path.display())),
        },
        Err(Errno::BUSY) => {
            let mut by = drive.mounts();
            if by.is_empty() {
                by.push(Blocker::Exclusive);
            }
            Proof::Blocked { by }
        }
        // It went away in the middle; the next proof says so.
        Err(error) => cannot(format!("{} cannot be opened exclusively: {error}", path.display())),
    }
}

/// The lease is the proof: the kernel grants it only if nobody else has the file open, in whatever namespace and of
/// whatever user, loop devices included. Processes and loop devices are searched only to name who it is.
fn prove_plain_file(path: &Path, id: KernelId) -> Proof {
    match lease(path, id) {
        Ok(Lease::Granted) => Proof::Proved,
        Ok(Lease::Refused) => {
            let searched = Searched::one(id);
            let sysfs = Sysfs::of_machine();
            let none = DeviceNumber { major: 0, minor: 0 };
            let mut by = loops::over(&sysfs, &searched, none).unwrap_or_default();
            by.extend(processes::find(&searched).blockers);
            if by.is_empty() {
                by.push(Blocker::Leased);
            }
            Proof::Blocked { by }
        }
        Err(error) => cannot(format!("no lease on {}: {error}", path.display())),
    }
}

fn prove_gone(
    path: &Path,
    kind: DeviceKind,
    evidence: &Evidence,
    known: Option<KernelId>,
) -> Proof {
    if known.is_some_and(|id| stands_for_another(id, evidence)) {
        return Proof::Proved;
    }
    let searched = match known {
        Some(id) => Searched::one(id),
        None => Searched { vanished: Some(path.display().to_string()), ..Searched::default() },
    };
    // A loop device keeps a drive that was pulled out, and no process shows it.
    let mut by = match known {
        Some(_) => {
            let none = DeviceNumber { major: 0, minor: 0 };
            match loops::over(&Sysfs::of_machine(), &searched, none) {
                Ok(loops) => loops,
                Err(error) => return cannot(format!("loop devices cannot be listed: {error}")),
            }
        }
        None => vec![],
    };
    // So does a mapping by device-mapper, and a drive that is gone has no `holders` that would show it.
    let mapped = match known {
        Some(KernelId::Block(number)) => mapping::over_gone(Some(number)),
        None if kind != DeviceKind::File => mapping::over_gone(None),
        Some(KernelId::File { .. }) | None => Ok(vec![]),
    };
    match mapped {
        Ok(mappings) => by.extend(mappings),
        Err(error) => return cannot(error.to_string()),
    }
    let processes = processes::find(&searched);
    by.extend(processes.blockers);
    if !by.is_empty() {
        return Proof::Blocked { by };
    }
    match not_everything_is_visible(processes.unreadable) {
        // A file that is gone frees nothing that anyone could wait for; what can be seen is enough.
        Some(_) if kind == DeviceKind::File => Proof::Proved,
        Some(why) => cannot(why),
        None => Proof::Proved,
    }
}

fn stands_for_another(id: KernelId, evidence: &Evidence) -> bool {
    let KernelId::Block(number) = id else { return false };
    let path = format!("/dev/block/{number}");
    evidence_of(Path::new(&path), id, None)
        .is_ok_and(|found| found.compare(evidence) == Comparison::Different)
}

fn not_everything_is_visible(unreadable: Option<u32>) -> Option<String> {
    if let Some(pid) = unreadable {
        return Some(format!("the descriptors of process {pid} cannot be read: root is needed"));
    }
    match std::fs::read_link("/proc/self/ns/pid") {
        Ok(namespace) if namespace.as_os_str() == INITIAL_PID_NAMESPACE => None,
        Ok(_) => Some("processes outside of this pid namespace cannot be seen".into()),
        Err(error) => Some(format!("the pid namespace is not known: {error}")),
    }
}

fn cannot(why: String) -> Proof {
    Proof::CannotProve { why }
}

/// What an open descriptor is compared with.
#[derive(Debug, Default)]
struct Searched {
    /// The drive and its partitions.
    devices: BTreeSet<DeviceNumber>,
    file: Option<(DeviceNumber, u64)>,
    /// Any block device that is gone from the machine, or a deleted file once at this path.
    vanished: Option<String>,
}

impl Searched {
    fn one(id: KernelId) -> Self {
        match id {
            KernelId::Block(number) => Self { devices: [number].into(), ..Self::default() },
            KernelId::File { on, inode } => Self { file: Some((on, inode)), ..Self::default() },
        }
    }
}

/// A block device with its partitions.
struct Drive {
    name: Option<String>,
    numbers: BTreeSet<DeviceNumber>,
}

impl Drive {
    fn of(sysfs: &Sysfs, number: DeviceNumber) -> Self {
        let name = sysfs.device(number).map(|(name, _)| name);
        let partitions = name.iter().flat_map(|name| sysfs.disk(name).partitions().into_values());
        Self { numbers: partitions.chain([number]).collect(), name }
    }

    fn searched(&self) -> Searched {
        Searched { devices: self.numbers.clone(), ..Searched::default() }
    }

    fn holders(&self, sysfs: &Sysfs) -> Vec<Blocker> {
        let holders = self.name.iter().flat_map(|name| sysfs.disk(name).holders());
        // One that is going holds it for a moment longer: whether it is free in the end is asked by opening it.
        let staying = holders.filter(|name| !sysfs.disk(name).is_going());
        let blocker = |name: String| {
            let holder = sysfs.disk(&name);
            match mapping::volume_held_by(&holder) {
                Some(volume) => Blocker::Mapping { volume, path: holder.path() },
                None if mapping::is_guard_by_sysfs(&holder) => {
                    Blocker::Guard { path: holder.path() }
                }
                None => Blocker::Holder { name },
            }
        };
        staying.map(blocker).collect()
    }

    fn mounts(&self) -> Vec<Blocker> {
        // Without the table the mount is still there, only without its name.
        let Ok(mounts) = Mounts::read() else { return vec![] };
        let at = self.numbers.iter().flat_map(|number| mounts.of(*number));
        at.map(|at| Blocker::Mount { at: at.to_owned() }).collect()
    }
}

enum Lease {
    Granted,
    Refused,
}

/// Takes a write lease and drops it again.
fn lease(path: &Path, id: KernelId) -> io::Result<Lease> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    if KernelId::of_descriptor(&file)? != Some(id) {
        return Err(io::Error::other("another file has taken its place"));
    }
    // It ends with the descriptor.
    match set_lease(&file, libc::F_WRLCK) {
        Ok(()) => Ok(Lease::Granted),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Lease::Refused),
        Err(error) => Err(error),
    }
}

fn set_lease(file: impl AsFd, kind: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    #[expect(unsafe_code, reason = "no safe wrapper for F_SETLEASE")]
    // SAFETY: the descriptor is open for the length of the call, and F_SETLEASE takes an integer.
    let result = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLEASE, kind) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

//! Searches the descriptors of every thread of every process.
//!
//! Threads mostly share one table of descriptors, which is then read once. A killed process of which one thread
//! hangs in the kernel has an empty table of its own, and only that thread still shows what it holds.

use std::fs::ReadDir;
use std::io;

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags};

use super::{Blocker, MAX_BLOCKERS, Searched};
use crate::kernel_id::DeviceNumber;
use crate::process::command_of;

/// What a search found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) blockers: Vec<Blocker>,
    /// A process whose descriptors may not be read.
    pub(super) unreadable: Option<u32>,
}

/// Looks for descriptors of what is searched. Processes that end meanwhile are no concern.
pub(super) fn find(searched: &Searched) -> Found {
    let mut found = Found::default();
    for pid in numbers_in("/proc") {
        let threads = numbers_in(&format!("/proc/{pid}/task"));
        for tid in threads {
            if tid != pid && shares_descriptors(pid, tid) {
                continue;
            }
            match has_open(pid, tid, searched) {
                Ok(true) => {
                    let thread = (tid != pid).then_some(tid);
                    found.blockers.push(Blocker::Process { pid, command: command_of(pid), thread });
                    break;
                }
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    found.unreadable.get_or_insert(pid);
                }
                // The thread is gone, and its descriptors with it.
                Err(_) => {}
            }
        }
        if found.blockers.len() >= MAX_BLOCKERS {
            break;
        }
    }
    found
}

fn has_open(pid: u32, tid: u32, searched: &Searched) -> io::Result<bool> {
    let directory = format!("/proc/{pid}/task/{tid}/fd");
    let descriptors = std::fs::read_dir(&directory)?;
    Ok(names(descriptors).any(|name| {
        let path = format!("{directory}/{name}");
        // Not asking a server keeps a hanging network filesystem elsewhere from holding this up.
        let found = rustix::fs::statx(
            CWD,
            &path,
            AtFlags::STATX_DONT_SYNC,
            StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK,
        );
        found.is_ok_and(|found| is_searched(&found, &path, searched))
    }))
}

fn is_searched(found: &Statx, descriptor: &str, searched: &Searched) -> bool {
    match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::BlockDevice => {
            let number = DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor };
            searched.devices.contains(&number)
                || (searched.vanished.is_some() && !is_on_machine(number))
        }
        FileType::RegularFile => {
            let on = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
            let deleted = |path: &String| {
                found.stx_nlink == 0
                    && std::fs::read_link(descriptor)
                        .is_ok_and(|target| target.to_str() == Some(&format!("{path} (deleted)")))
            };
            searched.file == Some((on, found.stx_ino))
                || searched.vanished.as_ref().is_some_and(deleted)
        }
        _ => false,
    }
}

fn is_on_machine(number: DeviceNumber) -> bool {
    std::path::Path::new(&format!("/sys/dev/block/{number}")).exists()
}

/// Whether two threads have one table of descriptors. If the kernel does not say, both are read.
fn shares_descriptors(pid: u32, tid: u32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    #[expect(unsafe_code, reason = "no safe wrapper for kcmp")]
    // SAFETY: kcmp takes integers and writes to no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pid, tid, KCMP_FILES, 0, 0) };
    result == 0
}

fn numbers_in(directory: &str) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).ok().into_iter();
    entries.flat_map(names).filter_map(|name| name.parse().ok()).collect()
}

fn names(entries: ReadDir) -> impl Iterator<Item = String> {
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

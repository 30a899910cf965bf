//! Device-mapper's control device: devices made, given a table, suspended, removed.
//!
//! Calls may wait for the drives below a device, so they are made in a child.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::OFlags;

use super::dm_message::{
    BUFFER_FULL, HAS_TABLE, HEADER_BYTES, Message, NO_FLUSH, READ_ONLY, SKIP_LOCKFS, STATUS_TABLE,
    SUSPENDED, Target,
};
use crate::kernel_id::DeviceNumber;
use crate::loop_ioctl::open;

const CONTROL: &str = "/dev/mapper/control";

/// Room for a first answer, and the most that is tried.
const FIRST_ROOM: usize = 16 << 10;
const MOST_ROOM: usize = 16 << 20;

/// Commands, by their number in the interface.
#[derive(Debug, Clone, Copy)]
enum Command {
    Version = 0,
    ListDevices = 2,
    Create = 3,
    Remove = 4,
    Suspend = 6,
    Status = 7,
    Load = 9,
    Table = 12,
}

/// What device-mapper says of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) number: DeviceNumber,
    pub(super) uuid: String,
    pub(super) read_only: bool,
    pub(super) suspended: bool,
    /// It has a table that is in effect.
    pub(super) has_table: bool,
}

#[derive(Debug)]
pub(super) struct Control {
    file: File,
}

impl Control {
    /// `None` if the kernel has no device-mapper that answers.
    pub(super) fn open() -> io::Result<Option<Self>> {
        let file = match open(Path::new(CONTROL), OFlags::RDWR) {
            Ok(file) => file,
            Err(error) => {
                let absent = [libc::ENOENT, libc::ENXIO, libc::ENODEV];
                return match error.raw_os_error() {
                    Some(code) if absent.contains(&code) => Ok(None),
                    _ => Err(error),
                };
            }
        };
        let control = Self { file };
        match control.call(Command::Version, Message::new("", 0, 0)?) {
            Ok(_) => Ok(Some(control)),
            // It speaks another version.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names and numbers of all devices.
    pub(super) fn list(&self) -> io::Result<Vec<(String, DeviceNumber)>> {
        self.ask(Command::ListDevices, "", 0)?.devices()
    }

    /// Makes a device without a table. `EBUSY`: there is one of that name or uuid.
    pub(super) fn create(&self, name: &str, uuid: &str, read_only: bool) -> io::Result<()> {
        let flags = if read_only { READ_ONLY } else { 0 };
        self.call(Command::Create, Message::new(name, flags, 0)?.with_uuid(uuid)?)?;
        Ok(())
    }

    /// `None` if there is no such device.
    pub(super) fn status(&self, name: &str) -> io::Result<Option<Status>> {
        let answer = match self.call(Command::Status, Message::new(name, 0, 0)?) {
            Ok(answer) => answer,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(None),
            Err(error) => return Err(error),
        };
        let flags = answer.flags();
        Ok(Some(Status {
            number: answer.device(),
            uuid: answer.uuid(),
            read_only: flags & READ_ONLY != 0,
            suspended: flags & SUSPENDED != 0,
            has_table: flags & HAS_TABLE != 0,
        }))
    }

    /// The table that is in effect; empty if there is none, or no such device: others may go at any moment.
    pub(super) fn table(&self, name: &str) -> io::Result<Vec<Target>> {
        match self.ask(Command::Table, name, STATUS_TABLE) {
            Ok(answer) => answer.table(),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(vec![]),
            Err(error) => Err(error),
        }
    }

    /// Gives a device a table and puts it into effect. What is under way in the old one ends first; what waits goes to
    /// the new one. Nothing that is mounted is asked to write its data out: it could not end on a drive that hangs.
    pub(super) fn replace_table(
        &self,
        name: &str,
        table: &[Target],
        read_only: bool,
        checkpoint: &dyn Fn(&'static str),
    ) -> io::Result<()> {
        let flags = if read_only { READ_ONLY } else { 0 };
        self.call(Command::Load, Message::with_table(name, flags, table)?)?;
        checkpoint("table-loaded");
        let flags = SUSPENDED | NO_FLUSH | SKIP_LOCKFS;
        self.call(Command::Suspend, Message::new(name, flags, 0)?)?;
        checkpoint("table-suspended");
        self.resume(name)
    }

    pub(super) fn resume(&self, name: &str) -> io::Result<()> {
        self.call(Command::Suspend, Message::new(name, 0, 0)?)?;
        Ok(())
    }

    /// Removes a device that nobody has open; false if there is none. `EBUSY`: someone has.
    pub(super) fn remove(&self, name: &str) -> io::Result<bool> {
        match self.call(Command::Remove, Message::new(name, 0, 0)?) {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Asks with more and more room until the answer fits.
    fn ask(&self, command: Command, name: &str, flags: u32) -> io::Result<Message> {
        let mut room = FIRST_ROOM;
        loop {
            let answer = self.call(command, Message::new(name, flags, room)?)?;
            if answer.flags() & BUFFER_FULL == 0 {
                return Ok(answer);
            }
            if room >= MOST_ROOM {
                let words = "device-mapper's answer is too long";
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, words));
            }
            room *= 4;
        }
    }

    fn call(&self, command: Command, mut message: Message) -> io::Result<Message> {
        let request = request_of(command);
        #[expect(unsafe_code, reason = "no safe wrapper for messages of changing length")]
        // SAFETY: the message begins with a `struct dm_ioctl` that says how long it is, and the kernel reads and writes
        // no more than that; it lives until the call returns.
        let result =
            unsafe { libc::ioctl(self.file.as_raw_fd(), request, message.bytes.as_mut_ptr()) };
        if result == 0 { Ok(message) } else { Err(io::Error::last_os_error()) }
    }
}

/// `_IOWR(0xfd, command, struct dm_ioctl)`
fn request_of(command: Command) -> libc::c_ulong {
    const READ_AND_WRITE: libc::c_ulong = 3;
    READ_AND_WRITE << 30
        | (HEADER_BYTES as libc::c_ulong) << 16
        | 0xfd << 8
        | command as libc::c_ulong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_as_in_the_kernel() {
        assert_eq!(request_of(Command::Version), 0xc138_fd00);
        assert_eq!(request_of(Command::Table), 0xc138_fd0c);
    }
}

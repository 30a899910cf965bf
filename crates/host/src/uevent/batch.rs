//! Many datagrams with one call and without an allocation for each. Called by [`super::source`].
//!
//! Not done with rustix: it has no `recvmmsg`, and it takes the process id of a message's credentials for one that is
//! never zero, which that of the kernel is, and that of a sender outside our process namespace.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use hotbay_core::discovery::event::MAX_DATAGRAM_BYTES;

/// How many datagrams are received with one call.
pub(super) const BATCH: usize = 32;

/// Room for one set of credentials with its header, and to spare.
const CONTROL_BYTES: usize = 64;

/// The places that datagrams are received into, and what is in them.
pub(super) struct Batch {
    slots: Box<[Slot]>,
    filled: usize,
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("filled", &self.filled).finish_non_exhaustive()
    }
}

struct Slot {
    bytes: [u8; MAX_DATAGRAM_BYTES],
    length: usize,
    truncated: bool,
    sender: libc::sockaddr_nl,
    /// All zero unless the kernel has written credentials.
    control: [u8; CONTROL_BYTES],
}

/// One datagram, with what the kernel says of its sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram<'a> {
    pub(super) bytes: &'a [u8],
    /// It was longer than what is shown.
    pub(super) truncated: bool,
    /// The sender's port; zero is the kernel's, and no process can have it.
    pub(super) port: u32,
    /// The groups it was sent to; zero if to our port alone.
    pub(super) groups: u32,
    /// The sender's user, where the socket asks for it.
    pub(super) user: Option<u32>,
}

impl Batch {
    pub(super) fn new() -> Self {
        Self { slots: (0..BATCH).map(|_| Slot::new()).collect(), filled: 0 }
    }

    /// Receives what is there, at most [`BATCH`] datagrams, from a socket that does not block. What was received
    /// before is forgotten.
    pub(super) fn receive(&mut self, socket: impl AsFd) -> io::Result<()> {
        self.filled = 0;
        let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut pieces = [none; BATCH];
        #[expect(unsafe_code, reason = "the struct has fields that only its C name knows")]
        // SAFETY: all zero is a valid value of this plain C struct.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for ((slot, piece), header) in self.slots.iter_mut().zip(&mut pieces).zip(&mut headers) {
            slot.describe(piece, &mut header.msg_hdr);
        }
        let count = libc::c_uint::try_from(BATCH).expect("a small constant");
        let socket = socket.as_fd().as_raw_fd();
        #[expect(unsafe_code, reason = "no safe wrapper for this call")]
        // SAFETY: `headers` has `count` entries. Each points to parts of its own slot with their true lengths, and to
        // its own piece, which points to another part of the slot; all outlive the call.
        let received =
            unsafe { libc::recvmmsg(socket, headers.as_mut_ptr(), count, 0, ptr::null_mut()) };
        self.filled = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        for (slot, header) in self.slots.iter_mut().zip(&headers).take(self.filled) {
            slot.length = usize::try_from(header.msg_len).unwrap_or(usize::MAX);
            slot.truncated = header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
        }
        Ok(())
    }

    /// What the last call received.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.slots.iter().take(self.filled).map(Slot::datagram)
    }
}

impl Slot {
    fn new() -> Self {
        #[expect(unsafe_code, reason = "the struct has fields that only its C name knows")]
        // SAFETY: all zero is a valid value of this plain C struct.
        let sender = unsafe { std::mem::zeroed() };
        Self {
            bytes: [0; MAX_DATAGRAM_BYTES],
            length: 0,
            truncated: false,
            sender,
            control: [0; CONTROL_BYTES],
        }
    }

    /// Writes where the slot's parts are, and empties what the kernel may leave as it is.
    fn describe(&mut self, piece: &mut libc::iovec, header: &mut libc::msghdr) {
        piece.iov_base = self.bytes.as_mut_ptr().cast();
        piece.iov_len = self.bytes.len();
        header.msg_name = ptr::from_mut(&mut self.sender).cast();
        header.msg_namelen =
            libc::socklen_t::try_from(size_of::<libc::sockaddr_nl>()).expect("twelve bytes");
        header.msg_iov = ptr::from_mut(piece);
        header.msg_iovlen = 1;
        // The sender of the last datagram must not be taken for that of the next.
        self.sender.nl_groups = 0;
        self.control = [0; CONTROL_BYTES];
        header.msg_control = self.control.as_mut_ptr().cast();
        // Its type differs between C libraries.
        header.msg_controllen = CONTROL_BYTES as _;
    }

    fn datagram(&self) -> Datagram<'_> {
        Datagram {
            bytes: &self.bytes[..self.length.min(MAX_DATAGRAM_BYTES)],
            truncated: self.truncated,
            port: self.sender.nl_pid,
            groups: self.sender.nl_groups,
            user: user_in(&self.control),
        }
    }
}

/// The user in a first message of credentials: a header of length, level and type, then process, user and group.
#[expect(clippy::host_endian_bytes, reason = "the kernel writes memory of this machine")]
fn user_in(control: &[u8]) -> Option<u32> {
    const WORD: usize = size_of::<usize>();
    let int = |at: usize| Some(i32::from_ne_bytes(control.get(at..at + 4)?.try_into().ok()?));
    let length = usize::from_ne_bytes(control.get(..WORD)?.try_into().ok()?);
    let is_credentials = int(WORD)? == libc::SOL_SOCKET
        && int(WORD + 4)? == libc::SCM_CREDENTIALS
        && length >= WORD + 8 + size_of::<libc::ucred>();
    let user = control.get(WORD + 12..WORD + 16)?.try_into().ok()?;
    is_credentials.then(|| u32::from_ne_bytes(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::host_endian_bytes, reason = "the kernel writes memory of this machine")]
    fn credentials_are_read_and_anything_else_is_not() {
        let length = size_of::<usize>() + 8 + 12;
        let mut control = length.to_ne_bytes().to_vec();
        for int in [libc::SOL_SOCKET, libc::SCM_CREDENTIALS, 0, 1_000, 5] {
            control.extend(int.to_ne_bytes());
        }
        assert_eq!(user_in(&control), Some(1_000));
        for short in 0..control.len() - 4 {
            assert_eq!(user_in(&control[..short]), None, "{short} bytes");
        }
        control[size_of::<usize>() + 4] ^= 1;
        assert_eq!(user_in(&control), None, "another type of message");
    }
}

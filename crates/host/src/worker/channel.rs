//! Messages over a socket pair, with descriptors beside them.
//!
//! The socket keeps packets apart (`SOCK_SEQPACKET`). A message is one packet, or several if it is longer than the
//! socket takes at once: a label with all the extents that it has room for is. Each packet begins with a byte that says
//! whether it is the last one of its message; the descriptors are beside that.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest packet; the kernel's default socket buffer holds three of them.
const MAX_PACKET: usize = 64 << 10;

/// Longest message. A label with as many extents as it has room for, all with the longest names, is half of that.
pub(super) const MAX_MESSAGE: usize = 2 << 20;

/// The first byte of a packet.
const MORE: u8 = 1;
const LAST: u8 = 0;

/// Most descriptors beside one message.
pub(super) const MAX_DESCRIPTORS: usize = 4;

/// Both ends, closed on exec.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    Ok(ends)
}

/// The bytes of a message, or an error if there are too many.
pub(super) fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let message = serde_json::to_vec(message)?;
    if message.len() > MAX_MESSAGE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("a message of {} bytes, at most {MAX_MESSAGE} are sent", message.len()),
        ));
    }
    Ok(message)
}

pub(super) fn decode<T: DeserializeOwned>(message: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(message)?)
}

/// A message on its way out, as far as it is sent.
pub(super) struct Outgoing<'a> {
    rest: &'a [u8],
    descriptors: &'a [BorrowedFd<'a>],
    done: bool,
}

impl<'a> Outgoing<'a> {
    pub(super) fn new(message: &'a [u8], descriptors: &'a [BorrowedFd<'a>]) -> Self {
        Self { rest: message, descriptors, done: false }
    }

    /// Sends what is left. `wait`: until there is room for it; else it goes on from there when called again after
    /// `WouldBlock`.
    pub(super) fn send(&mut self, socket: impl AsFd, wait: bool) -> io::Result<()> {
        while !self.done {
            let length = self.rest.len().min(MAX_PACKET - 1);
            let (piece, rest) = self.rest.split_at(length);
            let (mark, beside) =
                if rest.is_empty() { (LAST, self.descriptors) } else { (MORE, &[][..]) };
            send_packet(&socket, mark, piece, beside, wait)?;
            (self.rest, self.done) = (rest, rest.is_empty());
        }
        Ok(())
    }
}

/// A message on its way in, as far as it has come.
#[derive(Default)]
pub(super) struct Incoming {
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Incoming {
    /// Receives one message. `wait`: until it has come; else it goes on from there when called again after
    /// `WouldBlock`.
    pub(super) fn receive(&mut self, socket: impl AsFd, wait: bool) -> io::Result<()> {
        let mut packet = Vec::new();
        loop {
            self.descriptors.extend(receive_packet(&socket, &mut packet, wait)?);
            let Some((mark, piece)) = packet.split_first() else {
                // The end. What came of a message that nobody finishes is of no use.
                self.message.clear();
                return Ok(());
            };
            if self.message.len() + piece.len() > MAX_MESSAGE {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a message does not end"));
            }
            self.message.extend_from_slice(piece);
            if *mark == LAST {
                return Ok(());
            }
        }
    }

    /// What was received; `None` if the other side has ended.
    pub(super) fn whole(self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        (!self.message.is_empty()).then_some((self.message, self.descriptors))
    }
}

fn send_packet(
    socket: impl AsFd,
    mark: u8,
    piece: &[u8],
    descriptors: &[BorrowedFd<'_>],
    wait: bool,
) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = beside.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the buffer is made for that many");
    }
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, !wait);
    let packet = [IoSlice::new(std::slice::from_ref(&mark)), IoSlice::new(piece)];
    let sent = retry(|| rustix::net::sendmsg(&socket, &packet, &mut beside, flags))?;
    assert_eq!(sent, 1 + piece.len(), "packets are sent whole");
    Ok(())
}

/// Receives one packet into `buffer`; an empty one is the end.
fn receive_packet(socket: impl AsFd, buffer: &mut Vec<u8>, wait: bool) -> io::Result<Vec<OwnedFd>> {
    buffer.resize(MAX_PACKET, 0);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, !wait);
    let received = retry(|| {
        rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut beside, flags)
    })?;
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet was cut"));
    }
    buffer.truncate(received.bytes);
    Ok(descriptors)
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    fn received(socket: impl AsFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let mut incoming = Incoming::default();
        incoming.receive(socket, true).unwrap();
        incoming.whole()
    }

    #[test]
    fn messages_stay_apart_and_carry_descriptors() {
        let (one, other) = pair().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        Outgoing::new(b"first", &[file.as_fd()]).send(&one, true).unwrap();
        Outgoing::new(b"second", &[]).send(&one, true).unwrap();
        drop((one, file));
        let (message, descriptors) = received(&other).unwrap();
        assert_eq!((message.as_slice(), descriptors.len()), (&b"first"[..], 1));
        let mut text = String::new();
        File::from(descriptors.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        let (message, descriptors) = received(&other).unwrap();
        assert_eq!((message.as_slice(), descriptors.len()), (&b"second"[..], 0));
        assert!(received(&other).is_none(), "the end");
        assert!(Outgoing::new(b"x", &[]).send(&other, true).is_err(), "nobody is there");
    }

    #[test]
    fn a_long_message_comes_in_pieces_as_there_is_room() {
        let (one, other) = pair().unwrap();
        let message: Vec<u8> =
            (0..MAX_MESSAGE).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect();
        let file = File::open("/proc/self/comm").unwrap();
        let descriptors = [file.as_fd()];
        let mut outgoing = Outgoing::new(&message, &descriptors);
        let mut incoming = Incoming::default();
        let mut waits = 0;
        loop {
            let sent = outgoing.send(&one, false);
            let came = incoming.receive(&other, false);
            match (sent, came) {
                (Ok(()), Ok(())) => break,
                (Err(full), _) => assert_eq!(full.kind(), io::ErrorKind::WouldBlock),
                (Ok(()), Err(empty)) => assert_eq!(empty.kind(), io::ErrorKind::WouldBlock),
            }
            waits += 1;
        }
        assert!(waits > 3, "no socket holds it as a whole");
        let (whole, descriptors) = incoming.whole().unwrap();
        assert!(whole == message && descriptors.len() == 1);
    }

    #[test]
    fn what_is_too_long_is_refused_on_either_side() {
        assert!(encode(&"x".repeat(MAX_MESSAGE)).is_err());
        let (one, other) = pair().unwrap();
        send_packet(&one, LAST, &vec![0; MAX_PACKET], &[], true).unwrap();
        let cut = Incoming::default().receive(&other, true).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::InvalidData);
        let empty = Incoming::default().receive(&other, false).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);

        let mut endless = Incoming::default();
        let refused = (0..=MAX_MESSAGE / MAX_PACKET + 1).find_map(|_| {
            send_packet(&one, MORE, &vec![0; MAX_PACKET - 1], &[], true).unwrap();
            let error = endless.receive(&other, false).unwrap_err();
            (error.kind() != io::ErrorKind::WouldBlock).then_some(error.kind())
        });
        assert_eq!(refused, Some(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_message_that_nobody_finishes_is_none() {
        let (one, other) = pair().unwrap();
        send_packet(&one, MORE, b"half", &[], true).unwrap();
        drop(one);
        assert!(received(&other).is_none());
    }
}

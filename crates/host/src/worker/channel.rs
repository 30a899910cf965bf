//! One packet per message over a socket pair, with descriptors beside it.
//!
//! The socket keeps packets apart (`SOCK_SEQPACKET`), so that a message is read whole or not at all.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message; the kernel's default socket buffer holds three of them.
pub(super) const MAX_PACKET: usize = 64 << 10;

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
    let packet = serde_json::to_vec(message)?;
    if packet.len() > MAX_PACKET {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("a message of {} bytes, at most {MAX_PACKET} are sent", packet.len()),
        ));
    }
    Ok(packet)
}

pub(super) fn decode<T: DeserializeOwned>(packet: &[u8]) -> io::Result<T> {
    Ok(serde_json::from_slice(packet)?)
}

/// Sends one packet. `wait`: until there is room for it.
pub(super) fn send(
    socket: impl AsFd,
    packet: &[u8],
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
    let sent =
        retry(|| rustix::net::sendmsg(&socket, &[IoSlice::new(packet)], &mut beside, flags))?;
    assert_eq!(sent, packet.len(), "packets are sent whole");
    Ok(())
}

/// Receives one packet into `buffer`; an empty one is the end.
pub(super) fn receive(
    socket: impl AsFd,
    buffer: &mut Vec<u8>,
    wait: bool,
) -> io::Result<Vec<OwnedFd>> {
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

    #[test]
    fn packets_stay_apart_and_carry_descriptors() {
        let (one, other) = pair().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        send(&one, b"first", &[file.as_fd()], true).unwrap();
        send(&one, b"second", &[], true).unwrap();
        drop((one, file));
        let mut buffer = Vec::new();
        let descriptors = receive(&other, &mut buffer, true).unwrap();
        assert_eq!((buffer.as_slice(), descriptors.len()), (&b"first"[..], 1));
        let mut text = String::new();
        File::from(descriptors.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert!(receive(&other, &mut buffer, true).unwrap().is_empty());
        assert_eq!(buffer, b"second");
        receive(&other, &mut buffer, true).unwrap();
        assert!(buffer.is_empty(), "the end");
        assert!(send(&other, b"x", &[], true).is_err(), "nobody is there");
    }

    #[test]
    fn what_is_too_long_is_refused_on_either_side() {
        assert!(encode(&"x".repeat(MAX_PACKET)).is_err());
        let (one, other) = pair().unwrap();
        send(&one, &vec![0; MAX_PACKET + 1], &[], true).unwrap();
        let cut = receive(&other, &mut Vec::new(), true).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::InvalidData);
        let empty = receive(&other, &mut Vec::new(), false).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);
    }
}

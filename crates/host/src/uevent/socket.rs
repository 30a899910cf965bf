//! A netlink socket for events of devices: the kernel's own, or those that udev sends when it is done with them.
//!
//! Called by [`super::source`]. Any process with the right to administer the network of our namespace can send to the
//! socket, so that the sender of each datagram is checked before a byte of it is read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use thiserror::Error;

use super::batch::Datagram;

/// Room for some 150,000 events of the kernel while the agent is busy. It is a limit; memory is taken as needed.
pub const RECEIVE_BUFFER_BYTES: usize = 128 << 20;

/// Whose events a socket gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    Kernel,
    Udev,
}

impl Group {
    /// As a mask of groups.
    fn mask(self) -> u32 {
        match self {
            Self::Kernel => 1,
            Self::Udev => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "the kernel's events",
            Self::Udev => "udev's events",
        }
    }
}

#[derive(Debug, Error)]
pub enum SocketError {
    #[error("cannot open a socket for {whose}")]
    Open {
        whose: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot listen to {whose}")]
    Bind {
        whose: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("cannot set up the socket for {whose}")]
    Option {
        whose: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Why a datagram is not even read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RefusedSender {
    #[error("it was sent by a process (port {port}), not by the kernel")]
    NotTheKernel { port: u32 },
    #[error("it was sent to this socket alone, not to all that listen")]
    NotToTheGroup,
    #[error("it was sent by user {user}, not by root")]
    NotRoot { user: u32 },
    #[error("the kernel does not say who sent it")]
    NoCredentials,
}

/// A bound socket that does not block.
#[derive(Debug)]
pub(super) struct Socket {
    descriptor: OwnedFd,
    group: Group,
    buffer_bytes: usize,
}

impl Socket {
    /// Opens and binds, with a receive buffer of `buffer_bytes` if the kernel allows it; says so if not.
    pub(super) fn open(group: Group, buffer_bytes: usize) -> Result<Self, SocketError> {
        let whose = group.name();
        let descriptor = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(KOBJECT_UEVENT),
        )
        .map_err(|error| SocketError::Open { whose, source: error.into() })?;
        let option = |error: rustix::io::Errno| SocketError::Option { whose, source: error.into() };
        let got = set_buffer(descriptor.as_fd(), buffer_bytes).map_err(option)?;
        if got < buffer_bytes {
            tracing::warn!(
                "the receive buffer for {whose} has {got} bytes, not {buffer_bytes}: without the right to \
                 administer the network (CAP_NET_ADMIN), net.core.rmem_max limits it; a burst of events may be \
                 lost, which is noticed and costs a look at all devices"
            );
        }
        // The kernel's own events need no credentials: nothing else can send from port zero.
        if group == Group::Udev {
            sockopt::set_socket_passcred(&descriptor, true).map_err(option)?;
        }
        bind(&descriptor, &SocketAddrNetlink::new(0, group.mask()))
            .map_err(|error| SocketError::Bind { whose, source: error.into() })?;
        Ok(Self { descriptor, group, buffer_bytes: got })
    }

    pub(super) fn group(&self) -> Group {
        self.group
    }

    /// How large the receive buffer became.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// The port that the kernel gave it, by which others can reach it.
    pub(super) fn port(&self) -> io::Result<u32> {
        Ok(SocketAddrNetlink::try_from(getsockname(&self.descriptor)?)?.pid())
    }

    /// Whether the sender of a datagram is who it has to be.
    pub(super) fn admit(&self, datagram: &Datagram<'_>) -> Result<(), RefusedSender> {
        admit(self.group, datagram)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// Returns the size that the kernel says it has now. It doubles what it is asked for, for its own needs.
fn set_buffer(socket: BorrowedFd<'_>, bytes: usize) -> rustix::io::Result<usize> {
    // Without the right to force it, as much as the machine allows.
    if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, bytes)?;
    }
    sockopt::socket_recv_buffer_size(socket)
}

fn admit(group: Group, datagram: &Datagram<'_>) -> Result<(), RefusedSender> {
    match group {
        Group::Kernel if datagram.port != 0 => {
            Err(RefusedSender::NotTheKernel { port: datagram.port })
        }
        // udev sends to all that listen; what comes to us alone is somebody's who knows our port.
        Group::Kernel | Group::Udev if datagram.groups != group.mask() => {
            Err(RefusedSender::NotToTheGroup)
        }
        Group::Kernel => Ok(()),
        Group::Udev => match datagram.user {
            Some(0) => Ok(()),
            // In a user namespace the machine's root is a stranger: then udev is not heard.
            Some(user) => Err(RefusedSender::NotRoot { user }),
            None => Err(RefusedSender::NoCredentials),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: Datagram<'static> =
        Datagram { bytes: b"", truncated: false, port: 0, groups: 1, user: None };
    const UDEV: Datagram<'static> = Datagram { port: 77, groups: 2, user: Some(0), ..KERNEL };

    #[test]
    fn only_the_kernel_and_roots_udev_are_heard() {
        assert_eq!(admit(Group::Kernel, &KERNEL), Ok(()));
        let process = Datagram { port: 77, user: Some(0), ..KERNEL };
        let refused = Err(RefusedSender::NotTheKernel { port: 77 });
        assert_eq!(admit(Group::Kernel, &process), refused);
        let alone = Err(RefusedSender::NotToTheGroup);
        assert_eq!(admit(Group::Kernel, &Datagram { groups: 0, ..KERNEL }), alone);
        assert_eq!(admit(Group::Udev, &UDEV), Ok(()));
        assert_eq!(admit(Group::Udev, &Datagram { groups: 0, ..UDEV }), alone);
        let user = Datagram { user: Some(1_000), ..UDEV };
        assert_eq!(admit(Group::Udev, &user), Err(RefusedSender::NotRoot { user: 1_000 }));
        let unknown = Datagram { user: None, ..UDEV };
        assert_eq!(admit(Group::Udev, &unknown), Err(RefusedSender::NoCredentials));
    }
}

//! Where the parts of a cluster listen: on loopback addresses that nobody else uses, so that every part keeps its usual
//! port and several rigs run beside each other.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};

use crate::error::RigError;

const TRIES: u32 = 50;

pub(crate) const ETCD: u16 = 2379;
pub(crate) const ETCD_PEERS: u16 = 2380;
pub(crate) const API_SERVER: u16 = 6443;
pub(crate) const CONTROLLERS: u16 = 10257;
pub(crate) const SCHEDULER: u16 = 10259;

/// An address of the loopback network on which all these ports are free.
pub(crate) fn free_loopback() -> Result<IpAddr, RigError> {
    let ports = [ETCD, ETCD_PEERS, API_SERVER, CONTROLLERS, SCHEDULER];
    for _ in 0..TRIES {
        let [a, b, ..] = random();
        // Neither the first network, where everybody is, nor the last.
        let address = IpAddr::V4(Ipv4Addr::new(127, a.clamp(1, 254), b, 1));
        let is_free = |port: &u16| TcpListener::bind(SocketAddr::new(address, *port)).is_ok();
        if ports.iter().all(is_free) {
            return Ok(address);
        }
    }
    Err(RigError::NoAddress { tries: TRIES })
}

/// Differs from call to call and from process to process.
pub(crate) fn random() -> [u8; 8] {
    RandomState::new().hash_one(0).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_rigs_do_not_meet() {
        let first = free_loopback().unwrap();
        assert!(first.is_loopback());
        let _taken = TcpListener::bind(SocketAddr::new(first, ETCD)).unwrap();
        assert_ne!(free_loopback().unwrap(), first);
    }
}

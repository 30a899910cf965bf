//! The network between the nodes of a cluster: a bridge on this machine, and a cable from it into each node's own
//! network namespace. Nothing of it reaches any other network.
//!
//! ```text
//! 10.213.N.1          this machine, on the bridge; the API server listens there
//! 10.213.N.11 ...     the nodes
//! 10.213.N.128/25     services; the first, .129, leads pods to the API server; .130 is for one of a test
//! 10.M.N.0/24         the pods of one node: M is 215 for node1, and so on
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use crate::address;
use crate::control_plane::Front;
use crate::error::RigError;
use crate::folder::Folder;

const TRIES: u32 = 50;
const NETWORK: [u8; 2] = [10, 213];
/// For so many there are networks of pods.
pub(crate) const NODES_MAX: u8 = 20;
/// The file in the rig's folder that has the bridge's name.
const NOTE: &str = "bridge";

/// Goes with the bridge when it is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    third: u8,
    bridge: String,
    kept: bool,
}

impl Network {
    pub(crate) fn make(folder: &Folder) -> Result<Self, RigError> {
        let third = free_network()?;
        let network = Self { third, bridge: format!("hotbay-rig{third}"), kept: false };
        // First the note: with it the bridge is removed whatever happens.
        folder.write(NOTE, &network.bridge)?;
        let bridge = network.bridge.as_str();
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", network.address(1)), "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        Ok(network)
    }

    pub(crate) fn front(&self) -> Front {
        Front {
            server: SocketAddr::new(IpAddr::V4(self.address(1)), address::API_SERVER),
            services: format!("{}/25", self.address(128)),
            for_pods: Some(IpAddr::V4(self.address(129))),
        }
    }

    /// Out of the first addresses, which are given to nobody who does not ask for one.
    pub(crate) fn service(&self) -> Ipv4Addr {
        self.address(130)
    }

    /// The address of the node of that number, from 1.
    pub(crate) fn node(&self, number: u8) -> Ipv4Addr {
        self.address(10 + number)
    }

    /// The addresses of the pods on the node of that number.
    pub(crate) fn pods(&self, number: u8) -> String {
        format!("{}.{}.{}.0/24", NETWORK[0], NETWORK[1] + 1 + number, self.third)
    }

    /// Lays the cable to the node whose first process this is, and tells everybody the way to its pods.
    pub(crate) fn connect(&self, number: u8, init: u32) -> Result<(), RigError> {
        let (near, init) = (format!("hb{}n{number}", self.third), init.to_string());
        ip(&["link", "add", &near, "type", "veth", "peer", "name", "eth0", "netns", &init])?;
        ip(&["link", "set", &near, "master", &self.bridge, "up"])?;
        let within = |words: &[&str]| {
            let mut command = Command::new("nsenter");
            command.args(["--target", &init, "--net", "--"]).args(words);
            run(command)
        };
        within(&["ip", "link", "set", "lo", "up"])?;
        within(&["ip", "addr", "add", &format!("{}/24", self.node(number)), "dev", "eth0"])?;
        within(&["ip", "link", "set", "eth0", "up"])?;
        within(&["ip", "route", "add", "default", "via", &self.address(1).to_string()])?;
        // The node's own setting: the machine's is another.
        within(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])?;
        for other in (1..=NODES_MAX).filter(|other| *other != number) {
            let via = self.node(other).to_string();
            within(&["ip", "route", "add", &self.pods(other), "via", &via])?;
        }
        ip(&["route", "add", &self.pods(number), "via", &self.node(number).to_string()])
    }

    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(NETWORK[0], NETWORK[1], self.third, last)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if !self.kept {
            drop(ip(&["link", "delete", &self.bridge]));
        }
    }
}

/// Removes the bridge that is noted in a rig's folder, if it is there.
pub(crate) fn remove(folder: &Folder) -> Result<(), RigError> {
    let Ok(bridge) = std::fs::read_to_string(folder.join(NOTE)) else { return Ok(()) };
    if Path::new("/sys/class/net").join(&bridge).exists() {
        ip(&["link", "delete", &bridge])?;
    }
    Ok(())
}

fn free_network() -> Result<u8, RigError> {
    for _ in 0..TRIES {
        let [third, ..] = address::random();
        let range = format!("{}.{}.{third}.0/24", NETWORK[0], NETWORK[1]);
        let is_free = |what: &str| {
            let output = Command::new("ip").args(["-4", what, "show", "to"]).arg(&range).output();
            output.is_ok_and(|output| output.status.success() && output.stdout.is_empty())
        };
        if is_free("addr") && !Path::new(&format!("/sys/class/net/hotbay-rig{third}")).exists() {
            return Ok(third);
        }
    }
    Err(RigError::NoAddress { tries: TRIES })
}

fn ip(args: &[&str]) -> Result<(), RigError> {
    let mut command = Command::new("ip");
    command.args(args);
    run(command)
}

fn run(mut command: Command) -> Result<(), RigError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let words = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let output =
        command.output().map_err(|source| RigError::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(RigError::Command { command: format!("{program} {words}"), said })
}

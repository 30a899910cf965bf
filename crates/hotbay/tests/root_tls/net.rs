//! Machines for tests: network namespaces with one cable each to a switch, all inside of this machine.
//!
//! A namespace lives as long as the process that holds it, and that one ends with the test: nothing is mounted and no
//! name is left behind, even when a test is killed.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cluster::eventually;

/// One network namespace.
pub(crate) struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Self {
        // It ends when its input does, and that ends with this process.
        let holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let namespace = Self { holder };
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        eventually("a namespace is made", || {
            let made = std::fs::read_link(namespace.path()).ok()?;
            (made != own).then_some(())
        });
        namespace
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.holder.id())
    }

    /// A command that will run inside.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path())).arg(program);
        command
    }

    /// Runs something of this process inside, on a thread of its own.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = std::fs::File::open(self.path()).unwrap();
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).unwrap();
                work()
            });
            thread.join().unwrap()
        })
    }

    fn ip(&self, words: &str) {
        run(self.command("ip").args(words.split(' ')));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.holder.kill().unwrap_or_default();
        self.holder.wait().ok();
    }
}

/// Machines on one switch. Machine 0 has the address 10.99.0.1, and so on: nothing of it is seen outside.
pub(crate) struct Net {
    switch: Namespace,
    pub(crate) machines: Vec<Namespace>,
}

impl Net {
    pub(crate) fn new(machines: u8) -> Self {
        let switch = Namespace::new();
        switch.ip("link add name switch type bridge");
        switch.ip("link set switch up");
        let connected = |number: u8| {
            let machine = Namespace::new();
            let (port, holder) = (format!("port{number}"), machine.holder.id());
            switch.ip(&format!("link add name {port} type veth peer name eth0 netns {holder}"));
            switch.ip(&format!("link set {port} master switch"));
            switch.ip(&format!("link set {port} up"));
            machine.ip("link set lo up");
            machine.ip(&format!("addr add {}/24 dev eth0", address(number)));
            machine.ip("link set eth0 up");
            machine
        };
        let machines = (0..machines).map(connected).collect();
        Self { switch, machines }
    }

    /// Pulls the cable of a machine, without a word to anybody.
    pub(crate) fn cut(&self, machine: usize) {
        self.switch.ip(&format!("link set port{machine} down"));
    }

    /// Plugs it in again.
    pub(crate) fn mend(&self, machine: usize) {
        self.switch.ip(&format!("link set port{machine} up"));
    }
}

/// The address of a machine.
pub(crate) fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, number + 1)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {words}");
}

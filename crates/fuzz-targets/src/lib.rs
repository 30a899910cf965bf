//! Every parser of bytes from outside, and the agent's machine, each as one function from bytes to nothing: it must
//! not panic, and it checks what can be checked beyond that. Defined once and run twice: `fuzz/` runs each target under
//! libFuzzer for hours (`cargo xtask soak`), the test of this crate runs each on its seeds and on some thousand changed
//! copies of them in every `check`, so that no target rots.
//!
//! - [`drive`]: what is read from a drive.
//! - [`stored`]: what agent and registry read from their own disks.
//! - [`machine`]: what the Linux machine and its programs say.
//! - [`typed`]: what people type.
//! - [`wire`]: what comes over a socket.
//! - [`http_volumes`]: what programs ask of volumes over HTTP.
//! - [`csi`]: what Kubernetes asks for.
//! - [`agent`]: any legal sequence of events.

mod agent;
mod bytes;
mod csi;
mod drive;
mod http_volumes;
mod machine;
mod stored;
mod typed;
mod wire;
mod wire_volumes;

use std::fmt;

/// One thing to be fed with bytes.
pub struct Target {
    /// Also the name of its program and folders in `fuzz/`.
    pub name: &'static str,
    /// Panics when something is wrong.
    pub run: fn(&[u8]),
    /// Inputs that get past the first checks; made by the program itself, so that they follow every format.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: [Target; 22] = [
    Target { name: "label", run: drive::label, seeds: drive::label_seeds },
    Target { name: "extents", run: drive::extents, seeds: drive::extents_seeds },
    Target { name: "table", run: drive::table, seeds: drive::table_seeds },
    Target { name: "agent_record", run: stored::agent_record, seeds: stored::agent_record_seeds },
    Target { name: "registry_record", run: stored::registry_record, seeds: stored::record_seeds },
    Target { name: "store_file", run: stored::store_file, seeds: stored::store_file_seeds },
    Target { name: "mountinfo", run: machine::mountinfo, seeds: machine::mountinfo_seeds },
    Target { name: "uevent", run: machine::uevent, seeds: machine::uevent_seeds },
    Target { name: "blkid", run: machine::blkid, seeds: machine::blkid_seeds },
    Target { name: "sysfs", run: machine::sysfs, seeds: machine::sysfs_seeds },
    Target { name: "udev", run: machine::udev, seeds: machine::udev_seeds },
    Target { name: "glob", run: machine::glob, seeds: machine::glob_seeds },
    Target { name: "names", run: typed::names, seeds: typed::names_seeds },
    Target { name: "token", run: typed::token, seeds: typed::token_seeds },
    Target { name: "filters", run: typed::filters, seeds: typed::filters_seeds },
    Target { name: "agent_message", run: wire::agent_message, seeds: wire::agent_message_seeds },
    Target { name: "registry_message", run: wire::registry_message, seeds: wire::registry_seeds },
    Target { name: "action", run: wire::action, seeds: wire::action_seeds },
    Target { name: "http_body", run: wire::http_body, seeds: wire::http_body_seeds },
    Target { name: "http_volumes", run: http_volumes::bodies, seeds: http_volumes::body_seeds },
    Target { name: "csi_request", run: csi::requests, seeds: csi::request_seeds },
    Target { name: "agent_machine", run: agent::agent_machine, seeds: agent::machine_seeds },
];

/// The target of this name. For the programs in `fuzz/`.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("every program in fuzz/ is named after its target").run)(data);
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The words of a refusal are shown in terminals and logs: nothing in them may steer one.
fn assert_plain(words: impl fmt::Display) {
    let words = words.to_string();
    assert!(!words.is_empty(), "a refusal without words");
    assert!(!words.chars().any(char::is_control), "control characters in {words:?}");
}

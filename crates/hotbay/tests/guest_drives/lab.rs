//! The guest with `hotbay up` in it, and the questions that cases ask: of the registry by its client, of the kernel by
//! a shell.

use std::sync::Arc;

use hotbay_guest::{Bus, Drive, Guest, Machine, Output, cases};
use serde_json::Value;

pub(crate) const SIZE: u64 = 64 << 20;
const MIB: usize = 1 << 20;

pub(crate) struct Lab {
    pub(crate) machine: Arc<Machine>,
    pub(crate) guest: Guest,
    /// A command that runs at every boot before anything of ours does.
    first: &'static str,
}

/// The drives that are there from the start, one of each kind.
pub(crate) fn cold() -> [Drive; 3] {
    let scsi = Bus::Scsi { wwn: Some(0x5000_c500_a1b2_c3d4), rotation_rate: 7_200 };
    [
        Drive::new("cold-nvme", Bus::Nvme { slot: 1 }, "COLD-NVME", SIZE),
        Drive::new("cold-scsi", scsi, "COLD-SCSI", SIZE),
        Drive::new("cold-virtio", Bus::Virtio { slot: 2 }, "COLD-VIRTIO", SIZE),
    ]
}

pub(crate) fn nvme(name: &str, slot: u8) -> Drive {
    Drive::new(&name.to_lowercase(), Bus::Nvme { slot }, name, SIZE)
}

pub(crate) fn virtio(name: &str, slot: u8) -> Drive {
    Drive::new(&name.to_lowercase(), Bus::Virtio { slot }, name, SIZE)
}

/// A drive that does not turn, on the SCSI controller: it takes no slot.
pub(crate) fn scsi(name: &str) -> Drive {
    Drive::new(&name.to_lowercase(), Bus::Scsi { wwn: None, rotation_rate: 1 }, name, SIZE)
}

impl cases::Subject for Lab {
    fn guest(&mut self) -> &mut Guest {
        &mut self.guest
    }
}

impl Lab {
    pub(crate) fn boot(machine: &Arc<Machine>, drives: &[Drive], first: &'static str) -> Self {
        let guest = Guest::boot(machine, drives).unwrap();
        let mut lab = Self { machine: Arc::clone(machine), guest, first };
        lab.up();
        lab
    }

    /// Cuts the power and starts again, with these drives.
    pub(crate) fn power_cycle(&mut self, drives: &[Drive]) {
        self.guest.power_cycle(drives).unwrap();
        self.up();
    }

    fn up(&mut self) {
        self.ok(self.first);
        // The console of a case that failed shows what discovery saw.
        let log = "NO_COLOR=1 HOTBAY_LOG=info,hotbay_node=debug";
        let up = "setsid hotbay up --name guest --data-dir /var/lib/hotbay >/dev/console 2>&1 &";
        self.ok(&format!("{log} {up}"));
        self.wait_ready();
    }

    pub(crate) fn wait_ready(&mut self) {
        self.wait_until("the agent is registered", |guest| {
            let nodes = guest.run("hotbay get nodes -o json").unwrap();
            let nodes: Value = serde_json::from_str(&nodes.stdout).unwrap_or_default();
            nodes["items"][0]["status"]["ready"] == true
        });
    }

    pub(crate) fn run(&mut self, command: &str) -> Output {
        self.guest.run(command).unwrap()
    }

    /// Runs a command that must succeed, and gives what it printed.
    pub(crate) fn ok(&mut self, command: &str) -> String {
        let output = self.run(command);
        assert!(output.success(), "{command}: {output:?}");
        output.stdout
    }

    /// Every drive that the registry knows with this serial number.
    pub(crate) fn with_serial(&mut self, serial: &str) -> Vec<Value> {
        with_serial(&mut self.guest, serial)
    }

    /// The drive with this serial number, once it is as `is` says.
    pub(crate) fn until(&mut self, serial: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Vec::new();
        let found = self.guest.wait_until(&format!("{serial} is {what}"), |guest| {
            last = with_serial(guest, serial);
            let [drive] = &last[..] else { return None };
            is(drive).then(|| drive.clone())
        });
        found.unwrap_or_else(|error| panic!("{error}; it is {last:#?}"))
    }

    pub(crate) fn until_present(&mut self, serial: &str) -> Value {
        self.until(serial, "there, and can be added", |drive| {
            drive["status"]["present"] == true && drive["status"]["denied"] == serde_json::json!([])
        })
    }

    pub(crate) fn until_missing(&mut self, serial: &str) -> Value {
        self.until(serial, "missing", |drive| drive["status"]["present"] == false)
    }

    /// Puts drives into operation and waits for it.
    pub(crate) fn add(&mut self, serials: &[&str]) {
        self.ok(&format!("hotbay drive add {} --wait", serials.join(" ")));
        self.all_are(serials, "AttachedDevice");
    }

    /// Takes drives out of operation, which succeeds only with the proof that they are closed.
    pub(crate) fn remove(&mut self, serials: &[&str]) {
        self.ok(&format!("hotbay drive remove {} --wait", serials.join(" ")));
        self.all_are(serials, "DetachedDevice");
    }

    fn all_are(&mut self, serials: &[&str], state: &str) {
        let listed = drives(&mut self.guest);
        let is_one =
            |drive: &&Value| serials.iter().any(|serial| drive["status"]["serial"] == *serial);
        let drives: Vec<_> = listed.iter().filter(is_one).collect();
        assert_eq!(drives.len(), serials.len(), "{drives:#?}");
        for drive in drives {
            assert_eq!(drive["status"]["state"], state, "{drive:#}");
            assert_eq!(drive["spec"]["inOperation"], state == "AttachedDevice", "{drive:#}");
        }
    }

    /// The process of the agent.
    pub(crate) fn agent(&mut self) -> u32 {
        match agents(&mut self.guest)[..] {
            [agent] => agent,
            ref others => panic!("not one agent: {others:?}"),
        }
    }

    pub(crate) fn wait_until(&mut self, what: &str, is: impl Fn(&mut Guest) -> bool) {
        self.guest.wait_until(what, |guest| is(guest).then_some(())).unwrap();
    }

    /// Leaves nothing on a drive of the usual size.
    pub(crate) fn zero(&mut self, path: &str) {
        let count = SIZE / MIB as u64;
        self.ok(&format!("dd if=/dev/zero of={path} bs=1M count={count} conv=fsync 2>/dev/null"));
    }

    /// The first MiB of a drive, as it is outside the guest.
    pub(crate) fn first_mib(&self, drive: &Drive) -> Vec<u8> {
        let mut bytes = std::fs::read(self.machine.image(drive).unwrap()).unwrap();
        bytes.truncate(MIB);
        bytes
    }
}

pub(crate) fn with_serial(guest: &mut Guest, serial: &str) -> Vec<Value> {
    let has_it = |drive: &Value| drive["status"]["serial"] == serial;
    drives(guest).into_iter().filter(has_it).collect()
}

/// What the registry holds.
pub(crate) fn drives(guest: &mut Guest) -> Vec<Value> {
    let output = guest.run("hotbay get drives -o json").unwrap();
    assert!(output.success(), "{output:?}");
    let list: Value = serde_json::from_str(&output.stdout).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// Every agent that runs.
pub(crate) fn agents(guest: &mut Guest) -> Vec<u32> {
    let output = guest.run(LIST_AGENTS).unwrap();
    output.stdout.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

const LIST_AGENTS: &str = r#"
for process in /proc/[0-9]*; do
    case "$(tr '\0' ' ' <$process/cmdline)" in
    'hotbay node '*) echo "${process#/proc/}" ;;
    esac
done"#;

/// What the process has open, or every process if none is named: paths, as the kernel tells them.
pub(crate) fn open_paths(guest: &mut Guest, pid: Option<u32>) -> Vec<String> {
    let pid = pid.map_or("[0-9]*".to_owned(), |pid| pid.to_string());
    let list = format!("for link in /proc/{pid}/fd/*; do readlink $link; done");
    guest.run(&list).unwrap().stdout.lines().map(str::to_owned).collect()
}

/// How many descriptors of the device at `path` the process has, or every process together. That of a device which is
/// gone counts for nothing: the kernel tells its path as deleted.
pub(crate) fn descriptors(guest: &mut Guest, path: &str, pid: Option<u32>) -> usize {
    open_paths(guest, pid).iter().filter(|open| *open == path).count()
}

pub(crate) fn in_operation(drive: &Value) -> bool {
    drive["status"]["state"] == "AttachedDevice"
}

pub(crate) fn path(drive: &Value) -> String {
    drive["status"]["path"].as_str().unwrap().to_owned()
}

pub(crate) fn id(drive: &Value) -> String {
    drive["metadata"]["uid"].as_str().unwrap().to_owned()
}

pub(crate) fn generation(drive: &Value) -> u64 {
    drive["status"]["goal"]["generation"].as_u64().unwrap()
}

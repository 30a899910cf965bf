//! One boot of a machine. QEMU runs as a child and is killed when the value is dropped; it is in the process group of
//! the test, and ends with that as well.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::commands::{Commands, Output};
use crate::drive::{Drive, SLOTS, slot_name};
use crate::error::GuestError;
use crate::machine::Machine;
use crate::qmp::Qmp;

/// How long the guest may take to boot. Everything is emulated in software, on a machine that has much else to do.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// How long a command may take, unless told otherwise.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);
/// How long [`Guest::wait_until`] waits.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
const WAIT_PAUSE: Duration = Duration::from_millis(500);
/// After so long without a drive that was plugged the guest's bus is scanned: a slot whose interrupt is lost tells
/// nothing any more.
const SLOT_PATIENCE: Duration = Duration::from_secs(20);
/// What a machine in trouble is asked: what its kernel has and said, and what Hotbay makes of it.
const EXPLAIN: &str = "
echo '-- block devices'; cat /proc/partitions
echo '-- serial numbers'; grep -H . /sys/class/nvme/nvme*/serial /sys/block/vd*/serial
echo '-- PCI'; ls /sys/bus/pci/devices
echo '-- processes'; ps
echo '-- kernel'; dmesg | tail -n 60
command -v hotbay >/dev/null && echo '-- hotbay' && hotbay get drives -o wide
true";
/// How long the guest may take to let go of a drive.
const UNPLUG_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Guest {
    machine: Arc<Machine>,
    qemu: Child,
    qmp: Qmp,
    commands: Commands,
}

impl Guest {
    /// Boots the machine with these drives, and waits until it takes commands.
    pub fn boot(machine: &Arc<Machine>, drives: &[Drive]) -> Result<Self, GuestError> {
        let mut qemu = start(machine, drives)?;
        match greet(machine) {
            Ok((qmp, commands)) => Ok(Self { machine: Arc::clone(machine), qemu, qmp, commands }),
            Err(error) => {
                end(&mut qemu);
                Err(error)
            }
        }
    }

    /// Cuts the power, and boots again with these drives. What the guest had not synced is lost to it.
    pub fn power_cycle(&mut self, drives: &[Drive]) -> Result<(), GuestError> {
        end(&mut self.qemu);
        *self = Self::boot(&self.machine, drives)?;
        Ok(())
    }

    /// Runs a shell command in the guest.
    pub fn run(&mut self, command: &str) -> Result<Output, GuestError> {
        self.commands.run(command, COMMAND_LIMIT)
    }

    /// Asks `look` again and again until it has an answer. `what` is awaited is told if there is none in time.
    pub fn wait_until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, GuestError> {
        let until = Instant::now() + WAIT_LIMIT;
        loop {
            if let Some(found) = look(self) {
                return Ok(found);
            }
            if Instant::now() >= until {
                return Err(GuestError::NotInTime { what: what.to_owned(), limit: WAIT_LIMIT });
            }
            std::thread::sleep(WAIT_PAUSE);
        }
    }

    /// How it stands with the guest, for whoever reads why a case failed.
    pub(crate) fn explain(&mut self) -> String {
        match self.run(EXPLAIN) {
            Ok(Output { stdout, stderr, .. }) => stdout + &stderr,
            Err(error) => format!("the guest does not say how it is: {error}\n"),
        }
    }

    /// Puts a drive in while the guest runs, and waits until its kernel has it: what Hotbay makes of it is another
    /// question.
    pub fn plug(&mut self, drive: &Drive) -> Result<(), GuestError> {
        let image = self.machine.image(drive)?;
        let before = self.drives_like(drive)?;
        self.qmp("blockdev-add", drive.blockdev(&image.to_string_lossy()))?;
        self.qmp("device_add", drive.device())?;
        if !drive.is_in_a_slot() {
            return Ok(());
        }
        let Drive { id, serial, .. } = drive;
        let what = format!("the kernel of the guest has {id}, serial number {serial}");
        let mut scan_at = Some(Instant::now() + SLOT_PATIENCE);
        self.wait_until(&what, |guest| {
            // One that was pulled a moment ago may still have been counted.
            let enough = if scan_at.is_some() { before + 1 } else { 1 };
            if scan_at.is_some_and(|at| Instant::now() >= at) {
                scan_at = None;
                println!(
                    "the slot of {id} has told nothing: the bus is scanned, as a person would do"
                );
                guest.run("echo 1 >/sys/bus/pci/rescan").ok()?;
            }
            guest.drives_like(drive).ok().filter(|now| *now >= enough)
        })?;
        Ok(())
    }

    /// How many drives in slots the kernel of the guest has with the serial number of this one.
    fn drives_like(&mut self, drive: &Drive) -> Result<usize, GuestError> {
        // Not all of these files end with a new line.
        let all = "grep -h . /sys/class/nvme/*/serial /sys/block/vd*/serial 2>/dev/null";
        let serials = self.run(all)?;
        Ok(serials.stdout.lines().filter(|serial| serial.trim() == drive.serial).count())
    }

    /// Takes a drive out while the guest runs, without a word to anyone in it but the kernel. What is on it stays for
    /// the next plug.
    pub fn unplug(&mut self, drive: &Drive) -> Result<(), GuestError> {
        let id = drive.device_id();
        self.qmp("device_del", json!({"id": id}))?;
        self.qmp.event("DEVICE_DELETED", UNPLUG_LIMIT, |data| data["device"] == id.as_str())?;
        // The event may come a moment before the last use of the image ends.
        let node = json!({"node-name": drive.node_name()});
        self.wait_until("QEMU lets go of the image", |guest| {
            guest.qmp("blockdev-del", node.clone()).ok()
        })?;
        Ok(())
    }

    /// Makes a virtio or SCSI drive larger or smaller. NVMe drives refuse.
    pub fn resize(&mut self, drive: &Drive, size_bytes: u64) -> Result<(), GuestError> {
        let arguments = json!({"node-name": drive.node_name(), "size": size_bytes});
        self.qmp("block_resize", arguments).map(drop)
    }

    /// Any command of QEMU's control socket.
    pub fn qmp(&mut self, command: &str, arguments: Value) -> Result<Value, GuestError> {
        self.qmp.execute(command, arguments)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

fn end(qemu: &mut Child) {
    // It may have ended by itself; then there is nothing to kill, and it is reaped all the same.
    qemu.kill().unwrap_or_default();
    drop(qemu.wait());
}

fn greet(machine: &Machine) -> Result<(Qmp, Commands), GuestError> {
    let qmp = Qmp::connect(&machine.path("qmp.sock"))?;
    let mut commands = Commands::connect(&machine.path("commands.sock"))?;
    commands.ready(BOOT_LIMIT)?;
    Ok((qmp, commands))
}

fn start(machine: &Machine, drives: &[Drive]) -> Result<Child, GuestError> {
    for socket in ["qmp.sock", "commands.sock"] {
        // Of the last boot; a connection to it would only be refused.
        std::fs::remove_file(machine.path(socket)).unwrap_or_default();
    }
    let log = || {
        let path = machine.console();
        let opened = File::options().create(true).append(true).open(&path);
        opened.map(Stdio::from).map_err(GuestError::file("write", path))
    };
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-display", "none", "-no-reboot", "-no-user-config"])
        // Hardware virtualization is not to be had everywhere, and where it is it does not always work. With a second
        // processor the kernel now and then lost its timer for good on a machine that has much else to do.
        .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "1024"])
        .arg("-kernel")
        .arg(machine.kernel())
        .arg("-initrd")
        .arg(machine.initramfs())
        // Without multipath a drive has the names that its controller gives it.
        .args(["-append", "console=ttyS0 quiet panic=-1 nvme_core.multipath=N"])
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", machine.path("qmp.sock").display()))
        .arg("-chardev")
        .arg(format!("file,id=console,path={},append=on", machine.console().display()))
        .args(["-serial", "chardev:console", "-device", "virtio-serial-pci", "-chardev"])
        .arg(format!(
            "socket,id=commands,path={},server=on,wait=off",
            machine.path("commands.sock").display()
        ))
        .args(["-device", "virtserialport,chardev=commands,name=commands"])
        .args(["-device", "virtio-scsi-pci,id=scsi"]);
    for slot in 1..=SLOTS {
        let name = slot_name(slot);
        qemu.arg("-device").arg(format!("pcie-root-port,id={name},chassis={slot},slot={slot}"));
    }
    for drive in [&machine.state_drive()].into_iter().chain(drives) {
        let image = machine.image(drive)?;
        qemu.arg("-blockdev").arg(drive.blockdev(&image.to_string_lossy()).to_string());
        qemu.arg("-device").arg(drive.device().to_string());
    }
    let started = qemu.stdin(Stdio::null()).stdout(log()?).stderr(log()?).spawn();
    started.map_err(|source| GuestError::Start { program: "qemu-system-x86_64", source })
}

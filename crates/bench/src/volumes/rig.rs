//! A registry and an agent of the real program over loop devices. All of it goes with the value: processes, mounts,
//! loop devices and files, whatever has happened before.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::life::Client;
use super::peer::{loop_device, run};

/// A label has room for 1016 extents: enough of them for 10,000 volumes, and for those that are measured.
pub(super) const DRIVES: usize = 14;
const DRIVE_BYTES: u64 = 4 << 30;
/// Until everything is ready.
const START_LIMIT: Duration = Duration::from_secs(60);
const START_PAUSE: Duration = Duration::from_millis(100);
/// Until a process that was told to stop is killed.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const STOP_PAUSE: Duration = Duration::from_millis(20);
const NODE: &str = "bench";

/// The processes and what they work on.
pub(super) struct Rig {
    program: PathBuf,
    processes: Vec<Child>,
    drives: Vec<String>,
    folder: tempfile::TempDir,
}

impl Rig {
    /// Makes the drives; nothing runs yet.
    pub(super) fn new() -> anyhow::Result<Self> {
        let program = std::env::current_exe()?.with_file_name("hotbay");
        anyhow::ensure!(
            program.is_file(),
            "{} is not there; run cargo xtask bench volumes",
            program.display()
        );
        let folder = tempfile::tempdir()?;
        let mut this = Self { program, processes: Vec::new(), drives: Vec::new(), folder };
        for bay in 0..DRIVES {
            let file = this.folder().join(format!("bay-{bay}.img"));
            File::create_new(&file)?.set_len(DRIVE_BYTES)?;
            this.drives.push(loop_device(&file)?);
        }
        Ok(this)
    }

    /// Where everything is.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn api(&self) -> PathBuf {
        self.folder().join("api.sock")
    }

    /// Starts registry and agent, and puts all drives into operation.
    pub(super) async fn start(&mut self) -> anyhow::Result<()> {
        let mut controller = self.part("controller");
        controller.arg("--data-dir").arg(self.folder().join("registry"));
        controller.arg("--listen").arg(self.api()).stdout(Stdio::piped());
        let mut child = controller.spawn()?;
        let said = child.stdout.take().context("its output is a pipe")?;
        self.processes.push(child);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        anyhow::ensure!(line.trim() == "ready", "the controller did not start: it said {line:?}");
        let mut agent = self.part("node");
        agent.arg("--join").arg(self.api()).args(["--name", NODE]).stdout(Stdio::null());
        agent.arg("--data-dir").arg(self.folder().join("node"));
        for (bay, drive) in self.drives.iter().enumerate() {
            agent.arg("--drives").arg(format!("{bay}={drive}"));
        }
        self.processes.push(agent.spawn()?);
        let until = Instant::now() + START_LIMIT;
        while let Err(error) = self.add_host() {
            anyhow::ensure!(Instant::now() < until, "the drives are not in operation: {error:#}");
            tokio::time::sleep(START_PAUSE).await;
        }
        Ok(())
    }

    fn part(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args([name, "--no-config"]).stdin(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is for this process, which takes things apart in their order; the others end with it at the latest.
        command.process_group(0);
        command.env("HOTBAY_SUPERVISOR", std::process::id().to_string());
        command.env("HOTBAY_LOG", "error");
        command
    }

    /// Every drive is in operation, and its label is known to the registry.
    fn add_host(&self) -> anyhow::Result<()> {
        let client = |arguments: &[&str]| {
            run(Command::new(&self.program).args(arguments).env("HOTBAY_API", self.api()))
        };
        client(&["host", "add", NODE, "--wait"])?;
        let size = format!("{}MiB", (DRIVE_BYTES >> 20) * 3 / 4);
        client(&["volume", "explain", "--size", &size]).map(drop)
    }

    /// Callers, all of them connected.
    pub(super) async fn clients(&self, many: usize) -> anyhow::Result<Vec<Client>> {
        let (controller, node) =
            (self.folder().join("csi.sock"), self.folder().join("node/csi.sock"));
        let mut clients = Vec::new();
        for _ in 0..many {
            clients.push(Client::connect(&controller, &node).await?);
        }
        Ok(clients)
    }

    /// The loop devices with what is below each.
    fn loop_devices() -> Vec<(String, String)> {
        let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
        let over = |device: fs::DirEntry| {
            let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            Some((format!("/dev/{}", device.file_name().to_string_lossy()), file.trim().to_owned()))
        };
        devices.flatten().filter_map(over).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for child in self.processes.iter_mut().rev() {
            stop(child);
        }
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // What was mounted last goes first.
        for point in table.lines().rev().filter_map(|line| line.split(' ').nth(4)) {
            if Path::new(point).starts_with(self.folder())
                && unmount(point, UnmountFlags::empty()).is_err()
            {
                unmount(point, UnmountFlags::DETACH).unwrap_or_default();
            }
        }
        // The volumes first: they are over the drives.
        let devices = Self::loop_devices();
        let volumes = devices.iter().filter(|(_, below)| self.drives.contains(below));
        let others =
            devices.iter().filter(|(_, below)| Path::new(below).starts_with(self.folder()));
        for (device, _) in volumes.chain(others) {
            if let Err(error) = run(Command::new("losetup").args(["-d", device])) {
                eprintln!("{device} is left: {error:#}");
            }
        }
    }
}

/// Tells a process to stop, and kills it if it does not.
fn stop(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let Some(pid) = pid {
        kill_process(pid, Signal::TERM).unwrap_or_default();
    }
    let until = Instant::now() + STOP_LIMIT;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(STOP_PAUSE);
    }
    child.kill().unwrap_or_default();
    child.wait().ok();
}

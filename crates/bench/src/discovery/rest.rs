//! What an agent costs that has nothing to do: a real registry and a real agent with 24 loop devices, left alone.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_core::device::DeviceNumber;

use super::is_root;
use crate::registry::resident_kib;

const DRIVES: usize = 24;
const DRIVE_BYTES: u64 = 64 << 20;
/// After so long everything is found and registered.
const SETTLE: Duration = Duration::from_secs(10);
/// How long it is left alone.
const REST: Duration = Duration::from_secs(600);
/// The kernel counts the time of a process in these.
pub(crate) const TICKS_PER_SECOND: f64 = 100.0;

/// A loop device over a file; both end with this value.
pub(crate) struct LoopDevice {
    pub(crate) path: String,
    _file: tempfile::NamedTempFile,
}

impl LoopDevice {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let file = tempfile::NamedTempFile::new()?;
        file.as_file().set_len(DRIVE_BYTES)?;
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output()?;
        anyhow::ensure!(
            made.status.success(),
            "losetup: {}",
            String::from_utf8_lossy(&made.stderr)
        );
        let path = String::from_utf8(made.stdout)?.trim().to_owned();
        Ok(Self { path, _file: file })
    }

    pub(crate) fn number(&self) -> anyhow::Result<DeviceNumber> {
        let name = self.path.trim_start_matches("/dev/");
        let text = std::fs::read_to_string(format!("/sys/block/{name}/dev"))?;
        DeviceNumber::parse(text.trim()).context("a loop device has a number")
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        Command::new("losetup").arg("--detach").arg(&self.path).status().ok();
    }
}

/// A process of the product; it ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().ok();
    }
}

pub(crate) fn run() -> anyhow::Result<()> {
    let program = std::env::current_exe()?.with_file_name("hotbay");
    if !is_root() || !program.is_file() {
        println!(
            "!! An agent at rest is NOT MEASURED: that needs root, and cargo xtask bench discovery.\n"
        );
        return Ok(());
    }
    let drives = (0..DRIVES).map(|_| LoopDevice::new()).collect::<anyhow::Result<Vec<_>>>()?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("api.sock");
    let mut registry = Command::new(&program);
    registry.arg("controller").arg("--data-dir").arg(folder.path().join("registry"));
    registry.arg("--listen").arg(&socket).arg("--http").arg(folder.path().join("http.sock"));
    let mut registry = Running(registry.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    let said = registry.0.stdout.take().context("its output is a pipe")?;
    let mut line = String::new();
    BufReader::new(said).read_line(&mut line)?;
    anyhow::ensure!(line.trim() == "ready", "the registry did not start: it said {line:?}");
    let mut agent = Command::new(&program);
    agent.args(["node", "--name", "bench", "--join"]).arg(&socket);
    agent.arg("--data-dir").arg(folder.path().join("node"));
    for drive in &drives {
        agent.arg("--drives").arg(&drive.path);
    }
    let agent = Running(agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    // Nothing tells that nothing more will happen.
    std::thread::sleep(SETTLE);
    let pid = agent.0.id().to_string();
    let (began, before) = (Instant::now(), ticks(&pid)?);
    std::thread::sleep(REST);
    let share = (ticks(&pid)? - before) / TICKS_PER_SECOND / began.elapsed().as_secs_f64();
    let mib = resident_kib(&pid, "VmRSS:")? as f64 / 1024.0;
    println!(
        "An agent with {DRIVES} drives, left alone for {} s: {mib:.0} MiB resident, {:.3} % of a core.\n",
        REST.as_secs(),
        share * 100.0
    );
    Ok(())
}

/// The time that a process has had of the processor, its own and the kernel's for it.
pub(crate) fn ticks(pid: &str) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(')').context("a name in parentheses")?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    number(11).zip(number(12)).map(|(user, system)| user + system).context("times of a process")
}

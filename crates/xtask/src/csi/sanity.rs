//! The harness: starts a driver, whichever it is, runs csi-sanity against its two sockets, stops it, and judges.
//! `cargo xtask csi-sanity --help`; the `csi` tier runs it for the simulated driver.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};

use super::report;

/// How long a driver may take until it can be called, with an API server of its own, and to stop.
const START_MAX: Duration = Duration::from_secs(180);
const STOP_MAX: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);
/// csi-sanity itself; it ends by itself long before, or hangs.
const RUN_MAX: &str = "5m";

/// Volumes of 64 MiB, expanded to 128: whole extents, as csi-sanity wants the very size that it asked for.
const SIZES: [&str; 2] = ["--csi.testvolumesize=67108864", "--csi.testvolumeexpandsize=134217728"];

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Access {
    Mount,
    Block,
}

/// In all of these, {dir} stands for a fresh folder that is removed at the end.
#[derive(Debug, Args)]
pub(crate) struct SanityArgs {
    /// How volumes are used
    #[arg(long)]
    access: Access,
    /// Where the driver serves the Node service
    #[arg(long)]
    node_socket: String,
    /// Where the driver serves the Controller service
    #[arg(long)]
    controller_socket: String,
    /// The names of the cases that csi-sanity may skip, a line for each
    #[arg(long)]
    skips: PathBuf,
    /// Parameters of the storage class: a file in YAML
    #[arg(long)]
    parameters: Option<PathBuf>,
    /// The driver's program and its arguments; it is told to stop by SIGTERM
    #[arg(last = true, required = true)]
    driver: Vec<String>,
}

/// Runs it all, and prints the line that tells how it went.
pub(crate) fn run(args: &SanityArgs) -> anyhow::Result<()> {
    let expected = report::expected_skips(&args.skips)?;
    let program = super::program();
    ensure!(program.is_file(), "csi-sanity is not built: cargo xtask csi does it");
    let dir = Folder::make()?;
    let here = |text: &String| text.replace("{dir}", &dir.path.to_string_lossy());
    let sockets = [here(&args.node_socket), here(&args.controller_socket)];
    let command: Vec<_> = args.driver.iter().map(here).collect();
    let mut driver = Driver::start(&command, &dir.path.join("driver.log"))?;
    let judged = driver
        .wait_for(&sockets)
        .and_then(|()| sanity(&program, args, &sockets, &dir.path))
        .and_then(|report| report::judge(&report, &expected));
    let stopped = driver.stop();
    let access = format!("{:?}", args.access).to_lowercase();
    match judged.and_then(|line| stopped.map(|()| line)) {
        Ok(line) => {
            println!("csi-sanity {}, {access}: {line}", super::VERSION);
            Ok(())
        }
        Err(error) => {
            eprintln!("the driver's log:\n{}", driver.log());
            Err(error)
        }
    }
}

/// Returns csi-sanity's report. Its exit code says no more than that.
fn sanity(
    program: &Path,
    args: &SanityArgs,
    sockets: &[String; 2],
    dir: &Path,
) -> anyhow::Result<String> {
    let (dir, report) = (dir.display(), dir.join("report.json"));
    let access = match args.access {
        Access::Mount => "mount",
        Access::Block => "block",
    };
    let mut command = Command::new(program);
    command
        .args(SIZES)
        .arg(format!("--csi.endpoint={}", sockets[0]))
        .arg(format!("--csi.controllerendpoint={}", sockets[1]))
        .arg(format!("--csi.mountdir={dir}/mount"))
        .arg(format!("--csi.stagingdir={dir}/staging"))
        .arg(format!("--csi.testvolumeaccesstype={access}"))
        .arg("--csi.testnodevolumeattachlimit")
        .arg(format!("--ginkgo.json-report={}", report.display()))
        .arg(format!("--ginkgo.timeout={RUN_MAX}"))
        .arg("--ginkgo.no-color");
    if let Some(parameters) = &args.parameters {
        command.arg(format!("--csi.testvolumeparameters={}", parameters.display()));
    }
    command.status().with_context(|| format!("cannot run {}", program.display()))?;
    fs::read_to_string(report).context("csi-sanity has left no report")
}

/// A driver that runs; ended when it is dropped.
struct Driver {
    child: Child,
    log: PathBuf,
}

impl Driver {
    fn start(command: &[String], log: &Path) -> anyhow::Result<Self> {
        let Some((program, arguments)) = command.split_first() else { bail!("no driver is named") };
        let output = File::create(log).context("cannot make the driver's log")?;
        let child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot share the driver's log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start the driver {program}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    fn wait_for(&mut self, sockets: &[String]) -> anyhow::Result<()> {
        let give_up = Instant::now() + START_MAX;
        for socket in sockets {
            while let Err(error) = UnixStream::connect(socket) {
                if let Some(status) = self.child.try_wait()? {
                    bail!("the driver ended before it served {socket}: {status}");
                }
                ensure!(Instant::now() < give_up, "the driver does not serve {socket}: {error}");
                sleep(STEP);
            }
        }
        Ok(())
    }

    /// It must still be there, and stop when it is told to.
    fn stop(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the driver ended before it was told to: {status}");
        }
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let give_up = Instant::now() + STOP_MAX;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < give_up, "the driver did not stop in {STOP_MAX:?}");
            sleep(STEP);
        }
        Ok(())
    }

    fn log(&self) -> String {
        fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Ended already, most often; then both say so.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Closed to others, and removed with what is in it. If something is still mounted there it stays, with a word.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn make() -> anyhow::Result<Self> {
        let name = format!("hotbay-csi-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if mounts.contains(&*self.path.to_string_lossy()) {
            eprintln!("left as it is, because something is mounted in it: {}", self.path.display());
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_that_ends_early_is_told_of() {
        let dir = Folder::make().unwrap();
        let command = ["sh", "-c", "echo no drives; exit 3"].map(str::to_owned);
        let mut driver = Driver::start(&command, &dir.path.join("log")).unwrap();
        let socket = dir.path.join("none.sock").display().to_string();
        let error = driver.wait_for(&[socket]).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error:#}");
        assert_eq!(driver.log(), "no drives\n");
        assert!(driver.stop().is_err());
    }
}

//! Drives, mounts and processes that clean up after themselves, and short ways to ask a child.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hotbay_core::device::{DeviceKind, Observed};
use hotbay_core::ids::{ClusterId, DriveId, NodeId};
use hotbay_core::label::update::Want;
use hotbay_core::order::Generation;
use hotbay_host::proof::Proof;
use hotbay_host::scan::{Candidate, Selection, list, observe};
use hotbay_host::worker::{
    Attach, AttachError, Attached, Detach, Detached, LabelWant, Limits, Request, Response, Workers,
};
use hotbay_host::{KernelId, RuntimeDir};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes, shorter than anyone's patience.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
pub(crate) const CLUSTER: ClusterId = ClusterId::from_bits(0xc1);
pub(crate) const DRIVE_BYTES: u64 = 64 << 20;

pub(crate) const WANT: Want = Want {
    cluster: CLUSTER,
    drive: DriveId::from_bits(0xd1),
    node: NodeId::from_bits(0xa1),
    generation: Generation::from_number(1),
    in_operation: true,
    take_over: false,
};

/// True if the test cannot run here; says so.
pub(crate) fn skipped(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    let loops = Path::new("/dev/loop-control").exists();
    if !root || !loops {
        eprintln!("SKIPPED {test}: needs root and loop devices");
    }
    !root || !loops
}

pub(crate) fn skipped_without(program: &str, test: &str) -> bool {
    let installed = Command::new(program).arg("--version").output().is_ok();
    if !installed {
        eprintln!("SKIPPED {test}: {program} is not installed");
    }
    !installed
}

/// A directory for one test, with its locks in it.
pub(crate) struct Rig {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) runtime_dir: RuntimeDir,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime_dir = RuntimeDir::at(dir.path().join("run")).unwrap();
        Self { dir, runtime_dir }
    }

    pub(crate) fn workers(&self) -> Workers {
        self.workers_with(&["drive-worker"])
    }

    pub(crate) fn workers_with(&self, arguments: &[&str]) -> Workers {
        Workers::new("/proc/self/exe", arguments, self.runtime_dir.clone(), Limits::default())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.file_of(name, DRIVE_BYTES)
    }

    pub(crate) fn file_of(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.dir.path().canonicalize().unwrap().join(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    pub(crate) fn loop_drive(&self, name: &str) -> LoopDevice {
        LoopDevice::over(&self.file(name))
    }
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub(crate) struct LoopDevice {
    pub(crate) path: String,
}

impl LoopDevice {
    pub(crate) fn over(backing: &Path) -> Self {
        Self { path: run("losetup", &["-f", "--show", backing.to_str().unwrap()]) }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.path]).status();
    }
}

pub(crate) struct Mounted {
    pub(crate) at: String,
}

impl Mounted {
    pub(crate) fn new(device: &str, at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        let at = at.to_str().unwrap().to_owned();
        run("mount", &[device, &at]);
        Self { at }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).status();
    }
}

/// Another process, killed with the test.
pub(crate) struct Other(pub(crate) Child);

impl Other {
    /// Starts a command and waits until it has written a line.
    pub(crate) fn ready(command: &mut Command) -> Self {
        let mut child = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready", "{command:?}");
        child
    }

    /// This program, holding something.
    pub(crate) fn holding(how: &str, path: &str) -> Self {
        Self::ready(Command::new("/proc/self/exe").args([how, path]))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test's future, bounded.
pub(crate) fn block_on(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(4 * LIMIT, test).await }).expect("in time");
    runtime.shutdown_background();
}

/// Waits for something that no event tells.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "not so in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A drive as a scan sees it.
pub(crate) async fn seen(workers: &Workers, path: &str) -> Observed {
    observe(workers, &candidate(path), Some(CLUSTER), LIMIT).await.observed
}

pub(crate) fn candidate(path: &str) -> Candidate {
    let mut found = list(&Selection::Patterns(vec![path.to_owned()])).unwrap();
    assert_eq!(found.len(), 1, "{path}");
    found.remove(0)
}

pub(crate) fn attach_of(drive: &Observed) -> Attach {
    Attach {
        path: drive.path.clone(),
        kind: drive.kind,
        evidence: drive.evidence.clone(),
        want: LabelWant(WANT),
        wipe: vec![],
    }
}

pub(crate) fn detach_of(drive: &Observed) -> Detach {
    Detach {
        path: drive.path.clone(),
        kind: drive.kind,
        evidence: drive.evidence.clone(),
        known: None,
        release: Some(LabelWant(Want { in_operation: false, ..WANT })),
        even_with_volumes: false,
    }
}

pub(crate) async fn attach(
    workers: &Workers,
    request: Attach,
) -> Result<(Attached, OwnedFd), AttachError> {
    let running = workers.start(Request::Attach(request), vec![]).unwrap();
    let mut done = tokio::time::timeout(LIMIT, running).await.expect("in time").unwrap();
    match done.response {
        Response::Attached(result) => result.map(|attached| {
            assert_eq!(done.descriptors.len(), 1);
            (attached, done.descriptors.remove(0))
        }),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn detach(
    workers: &Workers,
    request: Detach,
    descriptor: Option<OwnedFd>,
) -> Detached {
    let descriptors = descriptor.into_iter().collect();
    let running = workers.start(Request::Detach(request), descriptors).unwrap();
    let done = tokio::time::timeout(LIMIT, running).await.expect("in time").unwrap();
    match done.response {
        Response::Detached(detached) => detached,
        other => panic!("{other:?}"),
    }
}

/// Only proves, as a repeated proof does.
pub(crate) async fn prove(workers: &Workers, path: &str, kind: DeviceKind) -> Proof {
    let known: Option<KernelId> = None;
    let evidence = seen(workers, path).await.evidence;
    let path = path.to_owned();
    let request = Detach { path, kind, evidence, known, release: None, even_with_volumes: false };
    detach(workers, request, None).await.proof
}

/// Whether an exclusive open succeeds.
pub(crate) fn exclusive_is_free(path: &str) -> bool {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).is_ok()
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

pub(crate) fn is_dead(pid: u32) -> bool {
    matches!(state_of(pid), None | Some('Z' | 'X'))
}

/// What the kernel says a process is doing: `T` is stopped, `D` waits and does not even die.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

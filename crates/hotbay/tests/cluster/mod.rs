//! A real Hotbay for tests: registry and agent as processes of their own, over loop devices or plain files, that can
//! be killed and started again. Everything is cleaned up when the value is dropped, also when a test fails.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The longest that anything here may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `condition` gives a value; asks again and again, because it looks at another process.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that is killed with the value.
pub(crate) struct Part {
    child: Child,
}

impl Part {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// kill -9, and waits for the end.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    /// Asks it to end, and waits; gives whether it ended well.
    pub(crate) fn stop(mut self) -> bool {
        signal(self.pid(), "TERM");
        eventually("a part ends", || self.child.try_wait().expect("our own child")).success()
    }

    /// Takes over a process that a test has started itself.
    pub(crate) fn of(child: Child) -> Self {
        Self { child }
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().ok();
    }
}

/// Sends a signal with the `kill` command, to one process by its id.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(sent.expect("kill exists").success(), "kill -{name} {pid}");
}

/// A drive of a test.
pub(crate) struct TestDrive {
    pub(crate) file: PathBuf,
    /// The loop device, for root; else the file itself.
    pub(crate) path: PathBuf,
    looped: bool,
}

impl TestDrive {
    /// A drive of 64 MiB, over a loop device if `looped`.
    pub(crate) fn new(file: PathBuf, looped: bool) -> Self {
        Self::sized(file, looped, 64)
    }

    /// A drive of another size.
    pub(crate) fn sized(file: PathBuf, looped: bool, mebibytes: u64) -> Self {
        File::create_new(&file).unwrap().set_len(mebibytes << 20).unwrap();
        let path = if looped { losetup(&file) } else { file.clone() };
        Self { file, path, looped }
    }

    /// A drive that the test makes and takes apart itself.
    pub(crate) fn of(path: PathBuf) -> Self {
        Self { file: path.clone(), path, looped: false }
    }
}

impl Drop for TestDrive {
    fn drop(&mut self) {
        if self.looped {
            Command::new("losetup").arg("-d").arg(&self.path).status().ok();
        }
    }
}

fn losetup(file: &Path) -> PathBuf {
    let output = Command::new("losetup").args(["-f", "--show"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

/// A registry and one agent, with some drives.
pub(crate) struct Cluster {
    pub(crate) registry: Option<Part>,
    pub(crate) agent: Option<Part>,
    pub(crate) drives: Vec<TestDrive>,
    pub(crate) name: String,
    dir: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Cluster {
    /// Starts nothing yet.
    pub(crate) fn new(drives: usize, looped: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let drive = |bay| TestDrive::new(dir.path().join(format!("bay-{bay}.img")), looped);
        let drives = (0..drives).map(drive).collect();
        let name = format!("test-{}", dir.path().file_name().unwrap().to_string_lossy())
            .to_lowercase()
            .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
        Self { registry: None, agent: None, drives, name, dir, environment: Vec::new() }
    }

    /// Starts both and waits until the node is ready.
    pub(crate) fn started(drives: usize, looped: bool) -> Self {
        let mut cluster = Self::new(drives, looped);
        cluster.start_registry();
        cluster.start_agent();
        cluster.wait_ready();
        cluster
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.path().join("api.sock")
    }

    pub(crate) fn http(&self) -> PathBuf {
        self.path().join("http.sock")
    }

    /// Sets a variable for the parts started from here on.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.environment.push((name.to_owned(), value.to_owned()));
    }

    pub(crate) fn start_registry(&mut self) {
        self.start_registry_by(self.hotbay());
    }

    /// Starts the registry by a command that ends in the program's name.
    pub(crate) fn start_registry_by(&mut self, mut command: Command) {
        command.args(["controller", "--no-config", "--data-dir"]).arg(self.path().join("registry"));
        command.arg("--listen").arg(self.api()).arg("--http").arg(self.http());
        command.stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        self.registry = Some(Part { child });
    }

    pub(crate) fn start_agent(&mut self) {
        self.start_agent_with(&[]);
    }

    pub(crate) fn start_agent_with(&mut self, options: &[&str]) {
        let mut command = self.hotbay();
        command
            .args(["node", "--no-config", "--join"])
            .arg(self.api())
            .args(["--name", &self.name]);
        command.arg("--data-dir").arg(self.path().join("node")).stdout(Stdio::null());
        command.args(options);
        for (bay, drive) in self.drives.iter().enumerate() {
            command.arg("--drives").arg(format!("{bay}={}", drive.path.display()));
        }
        self.agent = Some(Part { child: command.spawn().unwrap() });
    }

    pub(crate) fn wait_ready(&self) {
        eventually("the node is ready", || {
            let nodes = self.try_get("nodes")?;
            (nodes["items"][0]["status"]["ready"] == true).then_some(())
        });
    }

    /// Runs the client.
    pub(crate) fn client(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_hotbay"))
            .args(arguments)
            .env("HOTBAY_API", self.api())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs the client, which must answer with this exit code; gives what it printed.
    pub(crate) fn expect(&self, arguments: &[&str], code: i32) -> String {
        let output = self.client(arguments);
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(code), "hotbay {arguments:?} printed:\n{text}");
        text
    }

    fn try_get(&self, kind: &str) -> Option<Value> {
        let output = self.client(&["get", kind, "-o", "json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The status of the drive in a bay; asks until the registry is there.
    pub(crate) fn drive(&self, bay: usize) -> Value {
        eventually("the drive is listed", || {
            let drives = self.try_get("drives")?;
            let bay = bay.to_string();
            let fits = |drive: &&Value| drive["status"]["bay"] == bay.as_str();
            drives["items"].as_array()?.iter().find(fits).cloned()
        })
    }

    pub(crate) fn state(&self, bay: usize) -> String {
        self.drive(bay)["status"]["state"].as_str().unwrap().to_owned()
    }

    pub(crate) fn wait_state(&self, bay: usize, state: &str) {
        eventually(&format!("bay {bay} is {state}"), || (self.state(bay) == state).then_some(()));
    }

    /// `NODE:bay-N`.
    pub(crate) fn target(&self, bay: usize) -> String {
        format!("{}:bay-{bay}", self.name)
    }

    /// The descriptors that the agent has on a drive: number, and what tells one opening from another.
    pub(crate) fn agent_descriptors(&self, bay: usize) -> Vec<(String, String)> {
        let pid = self.agent.as_ref().unwrap().pid();
        descriptors(pid, &self.drives[bay].path)
    }

    /// The program, with the log and the variables of this cluster.
    pub(crate) fn hotbay(&self) -> Command {
        self.started_by(Command::new(env!("CARGO_BIN_EXE_hotbay")))
    }

    /// A command that starts the program, with the same.
    pub(crate) fn started_by(&self, mut command: Command) -> Command {
        let log = self.path().join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        command
            .stdin(Stdio::null())
            .stderr(log)
            .env("HOTBAY_LOG", "info,hotbay_node=debug,hotbay_control=debug");
        command.envs(self.environment.iter().cloned());
        command
    }

    /// How many lines of the log have this text.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.path().join("log")).unwrap();
        log.lines().filter(|line| line.contains(text)).count()
    }

    /// The bytes of a file below the cluster's folder.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path().join(name)).unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path().join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            let last = lines.len().saturating_sub(40);
            eprintln!("--- the last lines of the log\n{}", lines[last..].join("\n"));
        }
        self.agent = None;
        self.registry = None;
    }
}

/// The descriptors of a process on a path, with their `fdinfo` inode or position line.
pub(crate) fn descriptors(pid: u32, path: &Path) -> Vec<(String, String)> {
    let folder = PathBuf::from(format!("/proc/{pid}/fd"));
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            let number = entry.file_name().to_string_lossy().into_owned();
            let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"));
            found.push((number, info.unwrap_or_default()));
        }
    }
    found.sort();
    found
}

/// Whether any process of this machine has a path open.
pub(crate) fn anyone_has_open(path: &Path) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.into_iter().any(|pid| !descriptors(pid, path).is_empty())
}

//! A registry and agents as real processes, each on a machine of its own; killed, cut off and started again at will.
//! Machine 0 is the registry's.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::cluster::{TestDrive, descriptors, eventually};
use crate::net::{Namespace, Net, address};

pub(crate) const PORT: u16 = 7443;

/// A process that is killed with the value.
pub(crate) struct Running(Child);

impl Running {
    /// kill -9, and waits for the end.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Waits until it ends by itself; gives its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        eventually("a process ends", || self.0.try_wait().unwrap()).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().ok();
    }
}

/// An agent: one machine, one data directory, one drive.
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) machine: usize,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) running: Option<Running>,
    drive: TestDrive,
}

impl Agent {
    pub(crate) fn membership(&self) -> PathBuf {
        self.data_dir.join("tls/membership")
    }

    pub(crate) fn has_logged(&self, words: &str) -> bool {
        has_logged(&self.log, words)
    }

    /// Waits until it has its drive open.
    pub(crate) fn wait_open(&self) {
        let pid = self.running.as_ref().unwrap().0.id();
        eventually(&format!("{} opens its drive", self.name), || {
            (!descriptors(pid, &self.drive.path).is_empty()).then_some(())
        });
    }

    /// Waits until its log has these words.
    pub(crate) fn wait_logged(&self, words: &str) {
        let what = format!("{} logs {words:?}", self.name);
        eventually(&what, || self.has_logged(words).then_some(()));
    }
}

pub(crate) struct Rig {
    pub(crate) registry: Option<Running>,
    pub(crate) net: Net,
    pub(crate) environment: Vec<(&'static str, String)>,
    dir: tempfile::TempDir,
    /// Tests run at the same time, and names of agents are one per machine that they really share.
    prefix: String,
}

impl Rig {
    /// A registry that runs, and machines for agents.
    pub(crate) fn new(agents: u8, environment: Vec<(&'static str, String)>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let unique = dir.path().file_name().unwrap().to_string_lossy().to_lowercase();
        let prefix = format!("t{}", unique.replace(|c: char| !c.is_ascii_alphanumeric(), ""));
        let net = Net::new(agents + 1);
        let mut rig = Self { registry: None, net, environment, dir, prefix };
        rig.start_registry();
        rig
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn start_registry(&mut self) {
        let log = self.registry_log();
        let mut command = self.hotbay(0, &log);
        command.args(["controller", "--no-config", "--data-dir"]).arg(self.path().join("registry"));
        command.arg("--listen").arg(self.path().join("api.sock"));
        command.arg(format!("--listen-agents={}:{PORT}", address(0)));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.registry = Some(Running(child));
        assert_eq!(line, "ready\n", "{}", fs::read_to_string(log).unwrap());
    }

    pub(crate) fn registry_log(&self) -> PathBuf {
        self.path().join("registry.log")
    }

    /// Waits until the registry's log has these words.
    pub(crate) fn wait_registry_logged(&self, words: &str) {
        let log = self.registry_log();
        eventually(&format!("the registry logs {words:?}"), || {
            has_logged(&log, words).then_some(())
        });
    }

    pub(crate) fn name(&self, short: &str) -> String {
        format!("{}-{short}", self.prefix)
    }

    /// An agent that does not run yet; `folder` tells agents of one name apart.
    pub(crate) fn agent(&self, short: &str, folder: &str, machine: usize) -> Agent {
        let file = self.path().join(format!("{folder}.img"));
        Agent {
            name: self.name(short),
            machine,
            data_dir: self.path().join(folder),
            log: self.path().join(format!("{folder}.log")),
            running: None,
            drive: TestDrive::new(file, true),
        }
    }

    /// Starts an agent, with a token or with what it has stored.
    pub(crate) fn start(&self, agent: &mut Agent, more: &[&str]) {
        let mut command = self.hotbay(agent.machine, &agent.log);
        agent.running = Some(Running(with_arguments(&mut command, agent, more).spawn().unwrap()));
    }

    /// Starts an agent that sees other locks, as on a machine of its own.
    pub(crate) fn start_apart(&self, agent: &mut Agent, more: &[&str]) {
        let script = "mount -t tmpfs -o mode=0700 locks /run/hotbay && exec \"$0\" \"$@\"";
        let mut command = self.net.machines[agent.machine].command("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(env!("CARGO_BIN_EXE_hotbay"));
        self.prepare(&mut command, &agent.log);
        agent.running = Some(Running(with_arguments(&mut command, agent, more).spawn().unwrap()));
    }

    /// An agent that joined and is ready.
    pub(crate) fn joined(&self, short: &str, machine: usize) -> Agent {
        let mut agent = self.agent(short, short, machine);
        let token = self.token(&agent.name, &[]);
        self.start(&mut agent, &["--join", &token]);
        self.wait_ready(&agent, true);
        agent
    }

    pub(crate) fn token(&self, node: &str, more: &[&str]) -> String {
        let mut arguments = vec!["token", "create", node];
        arguments.extend(more);
        self.expect(&arguments, 0).trim().to_owned()
    }

    pub(crate) fn nodes(&self) -> Vec<Value> {
        let output = self.client(&["get", "nodes", "-o", "json"]);
        if !output.status.success() {
            return Vec::new();
        }
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    pub(crate) fn wait_ready(&self, agent: &Agent, ready: bool) {
        eventually(&format!("{} ready: {ready}", agent.name), || {
            let nodes = self.nodes();
            let node = nodes.iter().find(|node| node["metadata"]["name"] == agent.name.as_str())?;
            (node["status"]["ready"] == ready).then_some(())
        });
    }

    /// Runs the client.
    pub(crate) fn client(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_hotbay"))
            .args(arguments)
            .env("HOTBAY_API", self.path().join("api.sock"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Runs the client, which must answer with this exit code; gives what it printed.
    pub(crate) fn expect(&self, arguments: &[&str], code: i32) -> String {
        let Output { status, stdout, stderr } = self.client(arguments);
        let text =
            format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert_eq!(status.code(), Some(code), "hotbay {arguments:?} printed:\n{text}");
        text
    }

    pub(crate) fn machine(&self, number: usize) -> &Namespace {
        &self.net.machines[number]
    }

    fn hotbay(&self, machine: usize, log: &Path) -> Command {
        let mut command = self.net.machines[machine].command(env!("CARGO_BIN_EXE_hotbay"));
        self.prepare(&mut command, log);
        command
    }

    fn prepare(&self, command: &mut Command, log: &Path) {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.env("HOTBAY_LOG", "info,hotbay_node=debug,hotbay_control=debug");
        command.envs(self.environment.iter().cloned());
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for entry in fs::read_dir(self.path()).unwrap().flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|extension| extension == "log") {
                    let text = fs::read_to_string(&path).unwrap_or_default();
                    let lines: Vec<_> = text.lines().collect();
                    let last = lines.len().saturating_sub(25);
                    eprintln!("--- the end of {}\n{}", path.display(), lines[last..].join("\n"));
                }
            }
        }
    }
}

fn with_arguments<'a>(command: &'a mut Command, agent: &Agent, more: &[&str]) -> &'a mut Command {
    command.args(["node", "--no-config", "--data-dir"]).arg(&agent.data_dir);
    command.arg(format!("--drives=0={}", agent.drive.path.display())).args(more)
}

fn has_logged(log: &Path, words: &str) -> bool {
    fs::read_to_string(log).unwrap_or_default().contains(words)
}

//! Controllers as processes on one real API server, one address for all of them, as a Service has, and an agent. Tests
//! of who leads, of what comes of a restored etcd and of bad input use it.
//!
//! - [`agent`]: an agent over files, with what it mounts.
//! - [`csi`]: what sidecars ask for.
//! - [`moment`]: when something happens that is soon over.
//! - [`mounted`]: a volume in use.
//! - [`service`]: the one address.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod agent;
pub(crate) mod csi;
pub(crate) mod moment;
pub(crate) mod mounted;
mod service;

use std::cell::Cell;
use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hotbay_rig::{ControlPlane, Kubectl, Settings};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use agent::Agent;
use service::Service;

pub(crate) const HOTBAY: &str = env!("CARGO_BIN_EXE_hotbay");
pub(crate) const DEFINITIONS: &str = include_str!("../../../../deploy/crds.yaml");
/// Seconds. For tests in which another is to lead soon.
pub(crate) const LEASE_DURATION: u64 = 3;
/// The same where nobody is to lose the lead because the machine has much else to do: what the program has by itself.
pub(crate) const STEADY_LEASE: u64 = 15;
/// The first of the ports that controllers listen on, one after the other.
const FIRST_PORT: u16 = 7443;
/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(90);
/// How long a controller may take to answer a probe on such a machine. Tests ask once, and tell a no from no answer.
const PROBE_LIMIT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(50);

/// Asks until the answer is as wanted; fails with what was heard last.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> T {
    let give_up = Instant::now() + LIMIT;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(heard) => {
                assert!(Instant::now() < give_up, "not in time: {what}; last heard: {heard}");
            }
        }
        sleep(STEP);
    }
}

/// Waits for something that is or is not.
pub(crate) fn until_true(what: &str, mut is: impl FnMut() -> bool) {
    until(what, || is().then_some(()).ok_or_else(|| "not yet".to_owned()));
}

/// The agents of a program have one name, and one machine has one agent of a name: its tests take turns. Programs that
/// run beside each other have names of their own.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Rig {
    /// Ended first, in this order.
    pub(crate) agent: Option<Agent>,
    pub(crate) controllers: Vec<Controller>,
    /// What the agent is called.
    pub(crate) node: String,
    service: Service,
    /// Of the API server, which no other rig has: what listens on it meets nobody.
    ip: IpAddr,
    /// A new one for every door, also of a controller that starts again: whoever knows the old one finds nobody there.
    next_port: Cell<u16>,
    pub(crate) plane: ControlPlane,
    /// Seconds.
    lease_duration: u64,
    /// Whose rights the controllers have.
    pub(crate) kubeconfig: PathBuf,
    /// What the controllers find in their environment.
    pub(crate) environment: Vec<(&'static str, String)>,
    folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Rig {
    pub(crate) fn new(controllers: usize) -> Self {
        Self::with_lease(controllers, LEASE_DURATION)
    }

    pub(crate) fn with_lease(controllers: usize, lease_duration: u64) -> Self {
        let mut rig = Self::without_controllers(lease_duration);
        rig.controllers = (0..controllers).map(|number| rig.controller(number)).collect();
        rig
    }

    /// A control plane with the definitions, and nothing of Hotbay that runs.
    pub(crate) fn without_controllers(lease_duration: u64) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new().prefix("hotbay-lead-").tempdir().unwrap();
        let plane = ControlPlane::start(folder.path(), &Settings::default()).unwrap();
        let kubectl = plane.kubectl();
        kubectl.apply(DEFINITIONS).unwrap();
        let wait = ["wait", "--for=condition=Established", "crd", "--all", "--timeout=90s"];
        // A watch: the rig's own limit for a request would cut it short.
        kubectl.run(&[&["--request-timeout=0"], &wait[..]].concat()).unwrap();
        kubectl.run(&["create", "namespace", "hotbay"]).unwrap();
        let (ip, kubeconfig) = (address_of(kubectl), plane.kubeconfig().to_owned());
        Self {
            agent: None,
            controllers: Vec::new(),
            node: format!("node-{}", std::process::id()),
            service: Service::start(ip),
            ip,
            next_port: Cell::new(FIRST_PORT),
            plane,
            lease_duration,
            kubeconfig,
            environment: Vec::new(),
            folder,
            _turn: turn,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The address of all controllers.
    pub(crate) fn address(&self) -> String {
        self.service.address.to_string()
    }

    /// A file that names a step: the controller that reaches it removes the file, and stops.
    pub(crate) fn stop_file(&self) -> PathBuf {
        self.path("stop")
    }

    fn free_address(&self) -> SocketAddr {
        let port = self.next_port.get();
        self.next_port.set(port + 1);
        SocketAddr::new(self.ip, port)
    }

    /// A controller with doors of its own.
    pub(crate) fn controller(&self, number: usize) -> Controller {
        let folder = self.path(&format!("c{number}"));
        fs::create_dir_all(&folder).unwrap();
        let (agents, health) = (self.free_address(), self.free_address());
        let mut command = Command::new(HOTBAY);
        command
            .args(["controller", "--no-config", "--kubernetes", "--kubeconfig"])
            .arg(&self.kubeconfig)
            .args(["--identity", &format!("c{number}"), "--advertise", &self.ip.to_string()])
            .args(["--lease-duration", &self.lease_duration.to_string()])
            .args(["--listen-agents", &agents.to_string(), "--health", &health.to_string()])
            .arg("--listen")
            .arg(folder.join("api.sock"))
            .arg("--http")
            .arg(folder.join("http.sock"))
            .arg("--csi")
            .arg(folder.join("csi.sock"))
            .arg("--data-dir")
            .arg(folder.join("data"))
            .env("HOTBAY_STOP", self.stop_file())
            .envs(self.environment.iter().cloned());
        let process = Ended::start(command, &folder.join("log"));
        self.service.serve_with(number, agents);
        Controller { number, folder, health, process }
    }

    /// Starts a controller that has ended, as a kubelet does.
    pub(crate) fn restart(&mut self, number: usize) {
        self.controllers[number].process.kill();
        self.controllers[number] = self.controller(number);
    }

    /// Starts every controller that has ended; says how many.
    pub(crate) fn restart_ended(&mut self) -> usize {
        self.restart_ended_but(&[])
    }

    /// The same but for these, whose end is the test's own business.
    pub(crate) fn restart_ended_but(&mut self, theirs: &[usize]) -> usize {
        let others = self.controllers.iter_mut().filter(|each| !theirs.contains(&each.number));
        let ended = others
            .filter_map(|controller| controller.process.has_ended().then_some(controller.number));
        let ended: Vec<_> = ended.collect();
        ended.iter().for_each(|number| self.restart(*number));
        ended.len()
    }

    /// Tells all controllers to end. The one that leads gives its lead back, so that nobody waits for its lease.
    pub(crate) fn end_controllers(&mut self) {
        for controller in &mut self.controllers {
            if !controller.process.has_ended() {
                controller.process.signal(Signal::TERM);
            }
        }
        for controller in &mut self.controllers {
            controller.process.ends();
        }
    }

    /// Ends all controllers, and starts them with another lease, in seconds.
    pub(crate) fn lead_with(&mut self, lease_duration: u64) {
        self.end_controllers();
        self.lease_duration = lease_duration;
        (0..self.controllers.len()).for_each(|number| self.restart(number));
    }

    /// Which controller holds the Lease, once one does that is not `not`.
    pub(crate) fn leader(&self, not: Option<usize>) -> usize {
        until("somebody leads", || {
            let lease = self.lease();
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            let number = holder.split('_').next().and_then(|name| name.strip_prefix('c'));
            let leader = number.and_then(|number| number.parse().ok());
            leader.filter(|leader| Some(*leader) != not).ok_or_else(|| holder.to_owned())
        })
    }

    pub(crate) fn lease(&self) -> Value {
        let lease = ["get", "lease", "-n", "hotbay", "hotbay-controller", "-o", "json"];
        let lease = self.plane.kubectl().run(&lease);
        lease.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap())
    }

    /// The client, at the controller that leads; asked again until somebody does, and says yes.
    pub(crate) fn client(&self, arguments: &[&str]) -> String {
        until(&format!("hotbay {arguments:?}"), || self.try_client(arguments))
    }

    /// The same for a test in which the lead changes hands: on a machine that has much else to do one may lose it by
    /// itself, and ends. Whoever has ended is started again.
    pub(crate) fn insist(&mut self, arguments: &[&str]) -> String {
        until(&format!("hotbay {arguments:?}"), || {
            self.restart_ended();
            self.try_client(arguments)
        })
    }

    /// The same once, with each of the controllers that run: only the one that leads answers. One that does not run is
    /// not asked: a command with `--wait` would wait for it.
    pub(crate) fn try_client(&self, arguments: &[&str]) -> Result<String, String> {
        let mut said = Vec::new();
        for controller in self.controllers.iter().filter(|each| each.process.is_running()) {
            match controller.run(arguments) {
                Ok(answer) => return Ok(answer),
                Err(error) => said.push(error),
            }
        }
        Err(said.join("; "))
    }

    /// What the client prints of objects, as JSON.
    pub(crate) fn shown(&self, arguments: &[&str]) -> Value {
        let text = self.client(&[arguments, &["-o", "json"]].concat());
        serde_json::from_str(&text).unwrap()
    }

    /// All objects of a kind, as the API server has them.
    pub(crate) fn objects(&self, plural: &str) -> Vec<Value> {
        let kind = format!("{plural}.hotbay.dev");
        let text = self.plane.kubectl().run(&["get", &kind, "-o", "json"]).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// An agent over files of these sizes, none of them in operation. It knows the one address alone.
    pub(crate) fn start_idle_agent(&mut self, drives: &[u64]) {
        let token = self.token(&self.node);
        self.agent = Some(Agent::start(self.path("agent"), &token, drives));
        self.until_ready(&self.node);
    }

    /// What lets an agent in under this name.
    pub(crate) fn token(&self, node: &str) -> String {
        let token = self.client(&["token", "create", node, "--address", &self.address()]);
        token.trim().to_owned()
    }

    pub(crate) fn until_ready(&self, node: &str) {
        until(&format!("{node} is ready"), || {
            let shown = self.try_client(&["get", "nodes", node, "-o", "json"])?;
            shown.contains("\"ready\": true").then_some(()).ok_or(shown)
        });
    }

    /// An agent over so many files of the same size, which are in operation.
    pub(crate) fn start_agent(&mut self, drives: usize, bytes: u64) {
        self.start_agent_over(&vec![bytes; drives]);
    }

    /// An agent over files of these sizes, which are in operation.
    pub(crate) fn start_agent_over(&mut self, drives: &[u64]) {
        self.start_idle_agent(drives);
        self.drives_are_in_operation();
    }

    /// The agent that was there before, after its end.
    pub(crate) fn start_agent_again(&mut self) {
        self.agent.as_mut().unwrap().restart();
    }

    /// Has every drive added, which changes nothing where they are, and waits until the agent has them open.
    pub(crate) fn drives_are_in_operation(&self) {
        self.client(&["host", "add", &self.node, "--wait"]);
    }

    /// What the drive over the agent's file of this number is called.
    pub(crate) fn drive_name(&self, number: usize) -> String {
        let path = self.agent().drives[number].to_str().unwrap();
        let drives = self.objects("drives");
        let is_it = |drive: &&Value| drive["status"]["path"] == path;
        let drive = drives.iter().find(is_it).unwrap_or_else(|| panic!("no {path} in {drives:?}"));
        drive["metadata"]["name"].as_str().unwrap().to_owned()
    }

    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    pub(crate) fn logs(&self) -> String {
        let all = self.controllers.iter().map(|each| format!("c{}:\n{}", each.number, each.log()));
        let agent = self.agent.as_ref().map(Agent::log).unwrap_or_default();
        all.collect::<Vec<_>>().join("\n") + "\nagent:\n" + &agent
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

pub(crate) struct Controller {
    pub(crate) number: usize,
    folder: PathBuf,
    health: SocketAddr,
    pub(crate) process: Ended,
}

impl Controller {
    pub(crate) fn csi(&self) -> PathBuf {
        self.folder.join("csi.sock")
    }

    /// What all processes of this number have said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// What it answers to a kubelet's probe: the code, and the words.
    pub(crate) fn probe(&self, path: &str) -> Result<String, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.health)?;
            stream.set_read_timeout(Some(PROBE_LIMIT))?;
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        if answer.starts_with("HTTP/1.1 200") { Ok(answer) } else { Err(answer) }
    }

    /// The client, at the socket of this controller; it answers only while it leads.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<String, String> {
        let api = format!("unix:{}", self.folder.join("api.sock").display());
        let mut command = Command::new(HOTBAY);
        command.args(["--api", &api]).args(arguments).stdin(Stdio::null());
        let output = command.output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        if output.status.success() {
            return Ok(printed);
        }
        Err(printed + &String::from_utf8_lossy(&output.stderr))
    }
}

/// A process that ends with the test.
pub(crate) struct Ended {
    child: Child,
}

impl Ended {
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let log = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Self { child: command.spawn().unwrap() }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Whether it is stopped, as by SIGSTOP.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state() == Some('T')
    }

    /// Whether it has neither ended nor is stopped.
    pub(crate) fn is_running(&self) -> bool {
        !matches!(self.state(), None | Some('T' | 'Z'))
    }

    /// What the kernel says of it, in a letter.
    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; whether it ended well.
    pub(crate) fn ends(&mut self) -> bool {
        until("the process ends", || {
            let ended = self.child.try_wait().unwrap();
            ended.map(|status| status.success()).ok_or_else(|| "it runs".to_owned())
        })
    }

    pub(crate) fn kill(&mut self) {
        // It may be gone already.
        self.child.kill().unwrap_or_default();
        self.child.wait().unwrap();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The loopback address of an API server.
fn address_of(kubectl: &Kubectl) -> IpAddr {
    let server = ["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"];
    let server = kubectl.run(&server).unwrap();
    let address = server.trim().strip_prefix("https://").unwrap();
    address.parse::<SocketAddr>().unwrap().ip()
}

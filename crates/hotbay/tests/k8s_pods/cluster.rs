//! Two nodes with a drive each, and the chart on them.

use std::env;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hotbay_rig::chart::NAMESPACE;
use hotbay_rig::{Cluster, Kubectl, Node, RigError, product};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_hotbay");
/// Only the files that the test made: the machine's own drives are nobody's business.
pub(crate) const VALUES: &str = "node: {extraArgs: [--drives, /var/lib/hotbay/*.img]}\n";
/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);

/// Asks until the answer is as wanted; fails with what was heard last.
pub(crate) fn until<T>(what: &str, ask: impl FnMut() -> Result<T, String>) -> T {
    within(LIMIT, what, ask)
}

/// The same, for what takes its time.
pub(crate) fn within<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<T, String>,
) -> T {
    let give_up = Instant::now() + limit;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(heard) => {
                assert!(Instant::now() < give_up, "not in time: {what}; last heard: {heard}");
            }
        }
        sleep(Duration::from_millis(200));
    }
}

pub(crate) struct Installed {
    pub(crate) cluster: Cluster,
    pub(crate) values: String,
    place: TempDir,
}

impl Installed {
    /// The chart is installed with these values, and both drives are in operation, each of this size.
    pub(crate) fn new(values: &str, drive_bytes: u64) -> Self {
        let place = tempfile::Builder::new().prefix("hotbay-k8s-").tempdir().unwrap();
        let cluster = Cluster::start(place.path(), 2).unwrap();
        let this = Self { cluster, values: values.to_owned(), place };
        for node in 0..2 {
            fs::create_dir_all(this.drive(node).parent().unwrap()).unwrap();
            File::create(this.drive(node)).unwrap().set_len(drive_bytes).unwrap();
        }
        this.install();
        this.add_drives();
        this
    }

    /// Puts both drives into operation, each by another way that people have: with their kubectl, and in a pod.
    fn add_drives(&self) {
        let [first, second] = self.cluster.nodes() else { panic!("there are two nodes") };
        let kubeconfig = self.person();
        self.plugin(&kubeconfig, &["host", "add", first.name(), "--wait"]);
        self.hotbay(&["host", "add", second.name(), "--wait"]).unwrap();
        let drives = self.plugin(&kubeconfig, &["get", "drives", "-o", "json"]);
        let list: Value = serde_json::from_str(&drives).unwrap();
        let drives = list["items"].as_array().unwrap();
        let is_added = |drive: &Value| drive["status"]["state"] == "AttachedDevice";
        assert!(drives.len() == 2 && drives.iter().all(is_added), "{list:#}");
    }

    pub(crate) fn install(&self) {
        product::install(&self.cluster, Path::new(PROGRAM), &self.values).unwrap();
        self.until_ready();
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.cluster.plane().kubectl()
    }

    /// The file that is the drive of a node. The nodes share a kernel, which tells loop devices apart by path alone.
    pub(crate) fn drive(&self, node: usize) -> PathBuf {
        let node = &self.cluster.nodes()[node];
        node.folder().join(format!("lib/hotbay/{}.img", node.name()))
    }

    /// Waits until all pods of the chart are ready; tells what they say if they are not.
    pub(crate) fn until_ready(&self) {
        for what in ["deployment/hotbay-controller", "daemonset/hotbay-node"] {
            let status = ["-n", NAMESPACE, "rollout", "status", what, "--timeout=180s"];
            // A watch: the rig's own limit for a request would cut it short.
            let status: Vec<_> = ["--request-timeout=0"].into_iter().chain(status).collect();
            if let Err(error) = self.kubectl().run(&status) {
                panic!("{error}\n{}", self.said());
            }
        }
    }

    /// What explains most failures.
    pub(crate) fn said(&self) -> String {
        let logs = ["-n", NAMESPACE, "logs", "--all-containers", "--prefix", "--tail=40", "-l"];
        let asked = [
            vec!["get", "pods,pvc,drives,volumes.hotbay.dev,attachments", "-A", "-o", "wide"],
            vec!["get", "events", "-A"],
            [logs.as_slice(), &["app.kubernetes.io/name=hotbay"]].concat(),
        ];
        let said =
            asked.map(|args| self.kubectl().run(&args).unwrap_or_else(|error| error.to_string()));
        said.join("\n")
    }

    /// The pod of the controller that leads, or led last.
    pub(crate) fn leader(&self) -> String {
        let holder = "jsonpath={.spec.holderIdentity}";
        let lease = ["-n", NAMESPACE, "get", "lease", "hotbay-controller", "-o", holder];
        let holder = self.kubectl().run(&lease).unwrap();
        holder.split('_').next().unwrap().to_owned()
    }

    /// `hotbay` in the pod of the controller that leads.
    pub(crate) fn hotbay(&self, words: &[&str]) -> Result<String, RigError> {
        let leader = self.leader();
        let exec = ["-n", NAMESPACE, "exec", &leader, "-c", "hotbay", "--", "hotbay"];
        self.kubectl().run(&[exec.as_slice(), words].concat())
    }

    /// The kubeconfig of somebody who has what docs/kubernetes.md gives to whoever uses `kubectl hotbay`, and no more.
    fn person(&self) -> PathBuf {
        let kubectl = self.kubectl();
        let run = |words: &str| kubectl.run(&words.split(' ').collect::<Vec<_>>()).unwrap();
        run("-n default create serviceaccount person");
        let whose = "--role hotbay-admin --serviceaccount default:person";
        run(&format!("-n {NAMESPACE} create rolebinding person {whose}"));
        let token = run("-n default create token person");
        let mut config: Value = serde_json::from_str(&run("config view --raw -o json")).unwrap();
        for user in config["users"].as_array_mut().unwrap() {
            user["user"] = json!({ "token": token.trim() });
        }
        let path = self.place.path().join("person.kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// `kubectl hotbay` on this machine; it must succeed. Whichever controller kubectl forwards it to answers.
    fn plugin(&self, kubeconfig: &Path, words: &[&str]) -> String {
        let kubectl = PathBuf::from(self.kubectl().command().get_program());
        let plugins = self.place.path().join("plugins");
        if !plugins.exists() {
            fs::create_dir(&plugins).unwrap();
            symlink(PROGRAM, plugins.join("kubectl-hotbay")).unwrap();
        }
        let path = env::join_paths([plugins.as_path(), kubectl.parent().unwrap()]).unwrap();
        let mut command = Command::new(&kubectl);
        command.arg("hotbay").args(words).stdin(Stdio::null());
        command.env("PATH", path).env("KUBECONFIG", kubeconfig);
        let Output { status, stdout, stderr } = command.output().unwrap();
        let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        let asked = words.join(" ");
        assert!(
            status.success(),
            "kubectl hotbay {asked}: {status}: {stdout}{stderr}\n{}",
            self.said()
        );
        stdout.into_owned()
    }

    /// The controller that leads.
    pub(crate) fn leading(&self) -> Leader<'_> {
        let pod = self.leader();
        let on = self.json(&["-n", NAMESPACE, "pod", &pod])["spec"]["nodeName"].clone();
        let node = self.cluster.nodes().iter().find(|node| on == node.name()).unwrap();
        let begins = format!("/usr/bin/hotbay controller .*--identity={pod} ");
        Leader { process: process(node, &begins).unwrap(), pod, node }
    }

    pub(crate) fn json(&self, what: &[&str]) -> Value {
        let text = self.kubectl().run(&[&["get"][..], what, &["-o", "json"]].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// Waits until no volume is left, and nothing of one: no object, no mount, no loop device over a drive.
    pub(crate) fn until_empty(&self) {
        until("every volume is gone", || {
            let kinds = "pv,volumeattachments,volumes.hotbay.dev,attachments";
            let left = self.kubectl().run(&["get", kinds, "-o", "name"]).unwrap();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        for (number, node) in self.cluster.nodes().iter().enumerate() {
            until(&format!("nothing of a volume is left on {}", node.name()), || {
                let mut left = volume_mounts(node);
                let mut losetup = Command::new("losetup");
                let loops = printed(losetup.arg("--associated").arg(self.drive(number)));
                left.extend(loops.lines().map(str::to_owned));
                if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
            });
        }
    }
}

/// A controller, found before it is to be killed: that takes longer than what it does meanwhile.
pub(crate) struct Leader<'a> {
    pub(crate) pod: String,
    node: &'a Node,
    process: String,
}

impl Leader<'_> {
    /// Kills it, as its machine's power cut would.
    pub(crate) fn kill(&self) {
        kill(self.node, &self.process);
    }
}

/// Every place of a node where a volume is mounted: where it is staged, and where pods have it.
pub(crate) fn volume_mounts(node: &Node) -> Vec<String> {
    let mounts = printed(node.command("cat").arg("/proc/self/mountinfo"));
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let is_volume =
        |place: &&str| place.contains("kubernetes.io~csi") || place.contains("kubernetes.io/csi");
    places.filter(is_volume).map(str::to_owned).collect()
}

/// The process of a node whose command begins so: a pattern.
pub(crate) fn process(node: &Node, begins: &str) -> Result<String, String> {
    let found = printed(node.command("pgrep").args(["--full", &format!("^{begins}")]));
    let first = found.lines().next().map(str::to_owned);
    first.ok_or_else(|| format!("{} runs no {begins}", node.name()))
}

/// Ends a process of a node, by what `process` said, without a chance to tidy up.
pub(crate) fn kill(node: &Node, process: &str) {
    let kill = format!("kill -KILL {process}");
    assert!(node.command("sh").args(["-c", &kill]).status().unwrap().success());
}

fn printed(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Nothing that the controllers, or their sidecars, asked for was refused.
pub(crate) fn rights(installed: &Installed) {
    let log = fs::read_to_string(installed.cluster.plane().audit_log()).unwrap();
    let ours = "system:serviceaccount:hotbay:hotbay-controller";
    // Not every 403 is about rights: nothing is made of a kind whose definition is being deleted.
    let refused = r#""authorization.k8s.io/decision":"forbid""#;
    let is_refused = |line: &&str| line.contains(refused) && line.contains(ours);
    assert_eq!(log.lines().find(is_refused), None, "the chart gives too few rights");
}

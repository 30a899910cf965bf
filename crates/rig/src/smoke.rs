//! The rig's own test: a cluster comes up, a pod runs on each node, and nothing is left afterwards. `cargo xtask k8s`
//! runs it before the tests that use the rig.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use hotbay_rig::image::BUSYBOX;
use hotbay_rig::{Cluster, cluster};

const NODES: u8 = 2;
/// A pod may take so long on a machine that has much else to do.
const POD_LIMIT: &str = "--timeout=120s";
/// The kernel takes namespaces apart on its own time.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(200);

pub(crate) fn run() -> anyhow::Result<()> {
    // Always the same folder: what a run by hand that was killed has left, this one finds and ends. In a tier it is in
    // the tier's own folder, and the tier ends what is left there.
    let dir = env::temp_dir().join("hotbay-rig-smoke");
    if dir.exists() {
        cluster::end(&dir).context("cannot end what an earlier run left")?;
    }
    let before = Traces::now(&dir);
    let started = Instant::now();
    let cluster = Cluster::start(&dir, NODES)?;
    println!("a cluster with {NODES} nodes is up after {} s", started.elapsed().as_secs());
    let ran = pods(&cluster).and_then(|()| leave_loops(&cluster));
    drop(cluster);
    if ran.is_err() {
        println!("the logs are in {}", dir.join("logs").display());
    }
    for file in ran? {
        let left = losetup(&mut Command::new("losetup"), &["--associated", &file])?;
        ensure!(left.is_empty(), "the cluster has left: {left}");
    }
    before.nothing_new(&dir)?;
    cluster::end(&dir)?;
    println!("it is down, and nothing is left of it, after {} s", started.elapsed().as_secs());
    Ok(())
}

/// A pod on every node, seen running and answering.
fn pods(cluster: &Cluster) -> anyhow::Result<()> {
    let kubectl = cluster.plane().kubectl();
    for node in cluster.nodes() {
        let name = node.name();
        kubectl.apply(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: smoke-{name}}}, spec: {{\
             nodeSelector: {{kubernetes.io/hostname: {name}}}, \
             terminationGracePeriodSeconds: 0, containers: [{{name: shell, image: {BUSYBOX}, \
             imagePullPolicy: Never, command: [sleep, '3600']}}]}}}}"
        ))?;
    }
    for node in cluster.nodes() {
        let pod = format!("smoke-{}", node.name());
        // A watch: the rig's own limit for a request would cut it short.
        let wait = ["--request-timeout=0", "wait", "--for=condition=Ready", POD_LIMIT];
        kubectl
            .run(&[&wait[..], &[&format!("pod/{pod}")]].concat())
            .with_context(|| events(cluster, &pod))?;
        let said = kubectl.run(&["exec", &pod, "--", "cat", "/proc/1/comm"])?;
        ensure!(said.trim_end() == "sleep", "{pod} runs {said:?}, not what it was told to");
        // By the address that Kubernetes has given it: the network of pods and kube-proxy are there.
        let call = "busybox nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null";
        kubectl
            .run(&["exec", &pod, "--", "sh", "-c", call])
            .with_context(|| format!("{pod} does not reach the API server"))?;
        println!("a pod runs on {}, and reaches the API server", node.name());
    }
    Ok(())
}

/// Leaves a loop device on a node, as a driver that is killed does, and one over it, as the kubelet makes for raw
/// block. Answers with what they are over, as it is seen from here.
fn leave_loops(cluster: &Cluster) -> anyhow::Result<[String; 2]> {
    let node = cluster.nodes().first().context("there is no node")?;
    let file = node.folder().join("lib/left.img");
    fs::File::create(&file)?.set_len(4 << 20)?;
    let make = ["--find", "--show"];
    let first =
        losetup(&mut node.command("losetup"), &[&make[..], &["/var/lib/left.img"]].concat())?;
    losetup(&mut node.command("losetup"), &[&make[..], &[&first]].concat())?;
    Ok([file.display().to_string(), first])
}

fn losetup(command: &mut Command, args: &[&str]) -> anyhow::Result<String> {
    let output = command.args(args).output().context("cannot run losetup")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "losetup {}: {said}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Why a pod does not run, as far as Kubernetes knows.
fn events(cluster: &Cluster, pod: &str) -> String {
    let of_pod = format!("involvedObject.name={pod}");
    let told = cluster.plane().kubectl().run(&["get", "events", "--field-selector", &of_pod]);
    format!("{pod} does not run:\n{}", told.unwrap_or_else(|error| error.to_string()))
}

/// What a rig makes on a machine, outside of its folder.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: BTreeSet<String>,
    interfaces: BTreeSet<String>,
    processes: BTreeSet<String>,
    cgroups: BTreeSet<String>,
}

impl Traces {
    fn now(dir: &Path) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let place = |line: &str| line.split(' ').nth(4).unwrap_or_default().to_owned();
        let of_rig = |name: &String| name.starts_with("hotbay-rig") || name.starts_with("hb");
        let hierarchies = names("/sys/fs/cgroup");
        let inner = hierarchies.iter().flat_map(|name| names(format!("/sys/fs/cgroup/{name}")));
        Self {
            mounts: mounts.lines().map(place).collect(),
            interfaces: names("/sys/class/net").into_iter().filter(of_rig).collect(),
            processes: processes(dir),
            cgroups: inner.chain(hierarchies.clone()).filter(of_rig).collect(),
        }
    }

    fn nothing_new(&self, dir: &Path) -> anyhow::Result<()> {
        let give_up = Instant::now() + SETTLE_LIMIT;
        loop {
            let now = Self::now(dir);
            let new: Vec<_> = [
                (&now.mounts - &self.mounts, "mount"),
                (&now.interfaces - &self.interfaces, "network interface"),
                (&now.processes - &self.processes, "process"),
                (&now.cgroups - &self.cgroups, "control group"),
            ]
            .iter()
            .flat_map(|(new, kind)| new.iter().map(move |name| format!("{kind} {name}")))
            .collect();
            if new.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < give_up, "the cluster has left: {}", new.join(", "));
            sleep(STEP);
        }
    }
}

fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The processes whose command line speaks of the folder, and all shims of containerd.
fn processes(dir: &Path) -> BTreeSet<String> {
    let own = std::process::id().to_string();
    let pids = names("/proc").into_iter().filter(|name| name.parse::<u32>().is_ok());
    pids.filter(|pid| *pid != own)
        .filter_map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            let is_ours =
                line.contains(&*dir.to_string_lossy()) || line.contains("containerd-shim");
            is_ours.then(|| format!("{pid} ({})", line.chars().take(80).collect::<String>()))
        })
        .collect()
}

//! From a claim to a volume, and to a pod that runs with it: Hotbay in the pods of its chart, and csi-driver-host-path
//! beside it, in turn on one node. Then what each of them has written to the API server for it.

use std::fs::{self, File};
use std::time::Duration;

use hotbay_rig::chart::NAMESPACE;
use hotbay_rig::image::BUSYBOX;
use hotbay_rig::{Cluster, Kubectl, product};

use super::audit::{Audit, Writes};
use super::peer::{self, Peer};
use super::timeline::{Became, Kind, Timeline};
use super::{percentile_ms, place};
use crate::discovery::is_root;

/// Lives of each kind.
pub(crate) const ROUNDS: usize = 20;
const DRIVE_BYTES: u64 = 8 << 30;
/// Only the file that is made here: the machine's own drives are nobody's business.
const VALUES: &str = "node: {extraArgs: [--drives, /var/lib/hotbay/*.img]}\n";
/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);
/// The account of the controllers and of their sidecars.
const HOTBAY_USER: &str = "system:serviceaccount:hotbay:hotbay-controller";

/// What is claimed, and from whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Offer {
    driver: Driver,
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Driver {
    Hotbay,
    HostPath,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Filesystem,
    Block,
}

const OFFERS: [Offer; 4] = [
    Offer { driver: Driver::Hotbay, mode: Mode::Filesystem },
    Offer { driver: Driver::HostPath, mode: Mode::Filesystem },
    Offer { driver: Driver::Hotbay, mode: Mode::Block },
    Offer { driver: Driver::HostPath, mode: Mode::Block },
];

impl Offer {
    fn words(self) -> &'static str {
        match (self.driver, self.mode) {
            (Driver::Hotbay, Mode::Filesystem) => "Hotbay, ext4 made on a mapped extent",
            (Driver::HostPath, Mode::Filesystem) => "host-path, a folder",
            (Driver::Hotbay, Mode::Block) => "Hotbay, raw block",
            (Driver::HostPath, Mode::Block) => "host-path, a file under a loop device",
        }
    }

    fn class(self) -> &'static str {
        match self.driver {
            Driver::Hotbay => "bench-hotbay",
            Driver::HostPath => "bench-hostpath",
        }
    }
}

/// The times of one kind of life.
#[derive(Debug, Default, Clone)]
struct Times {
    bound: Vec<Duration>,
    running: Vec<Duration>,
    gone: Vec<Duration>,
}

pub(crate) fn run(rounds: usize) -> anyhow::Result<()> {
    if !is_root() {
        println!("!! Claims are NOT MEASURED: nodes need root.\n");
        return Ok(());
    }
    let folder = place()?;
    let cluster = Cluster::start(folder.path(), 1)?;
    let (plane, kubectl) = (cluster.plane(), cluster.plane().kubectl());
    install(&cluster)?;
    let _peer = Peer::start(plane, &cluster.nodes()[0])?;
    kubectl.apply(&classes())?;
    let timeline = Timeline::start(kubectl)?;
    let bench = Bench { kubectl, timeline };
    // What is only slow once, such as images and caches.
    for offer in OFFERS {
        bench.life(offer, "warm")?;
    }
    let mut times = vec![Times::default(); OFFERS.len()];
    for round in 0..rounds {
        eprintln!("claims: round {} of {rounds}", round + 1);
        for (offer, times) in OFFERS.into_iter().zip(&mut times) {
            times.bound.push(bench.bound(offer, &format!("now-{round}"))?);
        }
    }
    let audit = Audit::from_now(&plane.audit_log())?;
    for round in 0..rounds {
        eprintln!("pods: round {} of {rounds}", round + 1);
        for (offer, times) in OFFERS.into_iter().zip(&mut times) {
            let (running, gone) = bench.life(offer, &format!("pod-{round}"))?;
            times.running.push(running);
            times.gone.push(gone);
        }
    }
    print_times(rounds, &times);
    let lives = rounds * OFFERS.len() / 2;
    let hotbay = audit.writes_of(|user| user == HOTBAY_USER)?;
    let host_path = audit.writes_of(|user| user == peer::USER)?;
    print_writes(lives, &hotbay, &host_path);
    Ok(())
}

/// The chart with its default values, and its drive in operation.
fn install(cluster: &Cluster) -> anyhow::Result<()> {
    let (node, kubectl) = (&cluster.nodes()[0], cluster.plane().kubectl());
    let drives = node.folder().join("lib/hotbay");
    fs::create_dir_all(&drives)?;
    File::create(drives.join("drive.img"))?.set_len(DRIVE_BYTES)?;
    product::install(cluster, &super::product()?, VALUES)?;
    for what in ["deployment/hotbay-controller", "daemonset/hotbay-node"] {
        let status = ["rollout", "status", what, "--timeout=240s"];
        kubectl.run(&[&["--request-timeout=0", "-n", NAMESPACE][..], &status].concat())?;
    }
    let holder = "jsonpath={.spec.holderIdentity}";
    let lease = ["-n", NAMESPACE, "get", "lease", "hotbay-controller", "-o", holder];
    let leader = kubectl.run(&lease)?;
    let pod = leader.split('_').next().unwrap_or_default();
    let exec = ["-n", NAMESPACE, "exec", pod, "-c", "hotbay", "--", "hotbay"];
    kubectl.run(&[&exec[..], &["host", "add", node.name(), "--wait"]].concat())?;
    Ok(())
}

/// For each driver a class that waits for a pod, and one that does not.
fn classes() -> String {
    let hotbay = "provisioner: csi.hotbay.dev\nparameters: {csi.storage.k8s.io/fstype: ext4}\n";
    let of = |name: &str, class: &str| {
        let one = |name: &str, binding: &str| {
            format!(
                "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {name}}}\n\
                 volumeBindingMode: {binding}\n{class}"
            )
        };
        one(name, "WaitForFirstConsumer") + &one(&format!("{name}-now"), "Immediate")
    };
    of(OFFERS[0].class(), hotbay) + &of(OFFERS[1].class(), &peer::class())
}

struct Bench<'a> {
    kubectl: &'a Kubectl,
    timeline: Timeline,
}

impl Bench<'_> {
    /// A claim alone, of a class that waits for nobody: how long until it is bound. Gone when this returns.
    fn bound(&self, offer: Offer, round: &str) -> anyhow::Result<Duration> {
        let name = named(offer, round);
        let claim = claim(&name, offer, &format!("{}-now", offer.class()));
        self.kubectl.with_input(&["create", "-f", "-"], &claim)?;
        let asked = self.timeline.when(Kind::Claim, &name, Became::Made, LIMIT)?;
        let bound = self.timeline.when(Kind::Claim, &name, Became::Phase("Bound"), LIMIT)?;
        self.kubectl.run(&["delete", "pvc", &name, "--wait=false"])?;
        self.timeline.when(Kind::Volume, &name, Became::Gone, LIMIT)?;
        Ok(bound - asked)
    }

    /// A claim with its pod: how long until the pod runs, and how long from the pod's end until the volume is gone.
    fn life(&self, offer: Offer, round: &str) -> anyhow::Result<(Duration, Duration)> {
        let name = named(offer, round);
        let both = claim(&name, offer, offer.class()) + "---\n" + &pod(&name, offer);
        self.kubectl.with_input(&["create", "-f", "-"], &both)?;
        let asked = self.timeline.when(Kind::Claim, &name, Became::Made, LIMIT)?;
        let runs = self.timeline.when(Kind::Pod, &name, Became::Phase("Running"), LIMIT)?;
        let both = [&format!("pod/{name}"), &format!("pvc/{name}")];
        self.kubectl.run(&["delete", both[0], both[1], "--wait=false"])?;
        let ended = self.timeline.when(Kind::Pod, &name, Became::Gone, LIMIT)?;
        let gone = self.timeline.when(Kind::Volume, &name, Became::Gone, LIMIT)?;
        Ok((runs - asked, gone.saturating_duration_since(ended)))
    }
}

fn named(offer: Offer, round: &str) -> String {
    let mode = match offer.mode {
        Mode::Filesystem => "fs",
        Mode::Block => "raw",
    };
    format!("{}-{mode}-{round}", offer.class())
}

fn claim(name: &str, offer: Offer, class: &str) -> String {
    let mode = offer.mode;
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{storageClassName: {class}, \
         volumeMode: {mode:?}, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 64Mi}}}}}}\n"
    )
}

fn pod(name: &str, offer: Offer) -> String {
    let uses = match offer.mode {
        Mode::Filesystem => "volumeMounts: [{name: v, mountPath: /v}]",
        Mode::Block => "volumeDevices: [{name: v, devicePath: /dev/v}]",
    };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  volumes: \
         [{{name: v, persistentVolumeClaim: {{claimName: {name}}}}}]\n  containers: [{{name: c, image: {BUSYBOX}, \
         imagePullPolicy: Never, command: [sleep, '3600'], {uses}}}]\n"
    )
}

fn print_times(rounds: usize, times: &[Times]) {
    println!(
        "A claim of 64 MiB on one node, in ms, {rounds} of each kind in turn. Bound: of a class that waits for nobody. \
         Running: claim and pod made at once, of a class that waits for the pod. Gone: from the end of the pod to the \
         end of the volume. p99 of {rounds} is the slowest.\n"
    );
    println!(
        "| driver | to Bound p50 | p99 | to pod Running p50 | p99 | to gone p50 | p99 |\n\
         |---|---|---|---|---|---|---|"
    );
    for (offer, times) in OFFERS.into_iter().zip(times) {
        let row = [&times.bound, &times.running, &times.gone].map(|times| {
            format!("{:.0} | {:.0}", percentile_ms(times, 50), percentile_ms(times, 99))
        });
        println!("| {} | {} |", offer.words(), row.join(" | "));
    }
    println!();
}

/// What a driver with its sidecars has written for one life, kind by kind.
fn print_writes(lives: usize, hotbay: &Writes, host_path: &Writes) {
    let each = |count: usize| count as f64 / lives as f64;
    println!(
        "Writes to the API server for one life of a volume with a pod, by a driver and its sidecars; mean of {lives}. \
         What kubelet, scheduler and Kubernetes' own controllers write is the same for both, and not in it.\n"
    );
    println!("| on | Hotbay | host-path |\n|---|---|---|");
    let kinds: std::collections::BTreeSet<_> = hotbay.kinds().chain(host_path.kinds()).collect();
    for kind in kinds {
        println!("| {kind} | {:.2} | {:.2} |", each(hotbay.of(kind)), each(host_path.of(kind)));
    }
    println!("| all | {:.2} | {:.2} |", each(hotbay.all()), each(host_path.all()));
    println!("| of these on hotbay.dev | {:.2} | |", each(hotbay.own()));
    println!(
        "\nRefused or in conflict, among these: {} of Hotbay, {} of host-path. Leases, by the clock: {} and {}.\n",
        hotbay.failed, host_path.failed, hotbay.leases, host_path.leases
    );
}

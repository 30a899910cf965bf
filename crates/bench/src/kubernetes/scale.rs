//! A large cluster on one controller: agents simulated, API server and etcd real. How long until everything is written,
//! what is written for it, what it costs to have it, and what the next leader costs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hotbay_rig::ControlPlane;
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::agents::{self, Progress};
use super::audit::Audit;
use super::controllers::{Controller, control_plane, made, sidecar};
use super::{percentile_ms, pid_of, place};
use crate::cluster::DRIVES_PER_NODE;
use crate::connections::{allow_descriptors, attached_drives};
use crate::discovery::ticks;
use crate::registry::resident_kib;

/// How large.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    nodes: usize,
    volumes: usize,
    rest: Duration,
}

/// It rests for as long as takes a node from one heartbeat in its object to the next.
pub(crate) const LARGE: Size =
    Size { nodes: 1_000, volumes: 10_000, rest: Duration::from_secs(300) };
pub(crate) const SMALL: Size = Size { nodes: 50, volumes: 500, rest: Duration::from_secs(10) };

/// Under this name the API server knows the controller.
const USER: &str = "hotbay";
const CONTROLLER: &str = "controller";
const VOLUME_BYTES: u32 = 1 << 30;
/// Calls of sidecars at the same time; csi-provisioner has 100 workers.
const CALLERS: usize = 64;
/// One step of it may take so long, and no longer.
const LIMIT: Duration = Duration::from_secs(900);
const STEP: Duration = Duration::from_millis(200);
/// What comes after the last answer, such as buffers given back.
const SETTLE: Duration = Duration::from_secs(5);

pub(crate) fn run(size: Size) -> anyhow::Result<()> {
    allow_descriptors()?;
    let folder = place()?;
    let plane = control_plane(folder.path())?;
    let kubeconfig = plane.kubeconfig_of(USER)?;
    let controller = Controller::start(&plane, &kubeconfig, CONTROLLER, None)?;
    controller.leads()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let bench = Bench { size, plane: &plane, runtime: &runtime };
    println!(
        "{} nodes with {DRIVES_PER_NODE} drives each and {} volumes: agents simulated over the controller's Unix \
         socket, one real controller, API server and etcd.\n",
        size.nodes, size.volumes
    );
    println!("| what | took s | writes to the API server | of each |\n|---|---|---|---|");
    let _on_it = runtime.enter();
    let progress = bench.drives(&controller)?;
    bench.volumes(&controller)?;
    println!();
    bench.costs(&controller)?;
    let controller = bench.restart(controller, &kubeconfig, progress)?;
    bench.memory("After the restart", &controller)?;
    println!();
    drop(controller);
    runtime.shutdown_timeout(Duration::from_secs(10));
    Ok(())
}

struct Bench<'a> {
    size: Size,
    plane: &'a ControlPlane,
    runtime: &'a Runtime,
}

impl Bench<'_> {
    fn audit(&self) -> anyhow::Result<Audit> {
        Audit::from_now(&self.plane.audit_log())
    }

    fn row(&self, what: &str, took: Duration, audit: &Audit, many: usize) -> anyhow::Result<()> {
        let writes = audit.writes_of(|user| user == USER)?;
        let each = writes.all() as f64 / many as f64;
        println!("| {what} | {:.1} | {writes} | {each:.2} |", took.as_secs_f64());
        Ok(())
    }

    /// All agents come at once, and all drives are put into operation.
    fn drives(&self, controller: &Controller) -> anyhow::Result<watch::Receiver<Progress>> {
        let audit = self.audit()?;
        let began = Instant::now();
        let progress = agents::start(&controller.socket("api.sock"), self.size.nodes);
        let wanted = self.size.nodes * DRIVES_PER_NODE;
        let http = controller.socket("http.sock");
        let mut told = Instant::now();
        loop {
            // It answers with what is durable.
            let attached = attached_drives(&http)?;
            if attached >= wanted {
                break;
            }
            let so_far = *progress.borrow();
            anyhow::ensure!(began.elapsed() < LIMIT, "{attached} of {wanted} drives: {so_far:?}");
            if told.elapsed() > 20 * STEP {
                told = Instant::now();
                eprintln!("{attached} of {wanted} drives are in operation; {so_far:?}");
            }
            std::thread::sleep(STEP);
        }
        let what = "nodes registered, drives in operation, each drive";
        self.row(what, began.elapsed(), &audit, wanted)?;
        let Progress { lost, refused, .. } = *progress.borrow();
        if lost + refused > 0 {
            println!("!! {lost} sessions were lost meanwhile, {refused} registrations refused.");
        }
        Ok(progress)
    }

    fn volumes(&self, controller: &Controller) -> anyhow::Result<()> {
        let audit = self.audit()?;
        let began = Instant::now();
        let socket = controller.socket("csi.sock");
        let times = self.runtime.block_on(make_volumes(&socket, self.size.volumes))?;
        let what = format!(
            "volumes made by {CALLERS} callers (CreateVolume p50 {:.0} ms, p99 {:.0} ms), each volume",
            percentile_ms(&times, 50),
            percentile_ms(&times, 99)
        );
        self.row(&what, began.elapsed(), &audit, self.size.volumes)
    }

    /// What it costs to have all of that and do nothing.
    fn costs(&self, controller: &Controller) -> anyhow::Result<()> {
        std::thread::sleep(SETTLE);
        self.memory("With all of it", controller)?;
        let audit = self.audit()?;
        let rig = self.plane.folder().path();
        let pids = [controller.pid(), pid_of(rig, "kube-apiserver")?, pid_of(rig, "etcd")?];
        let (began, before) = (Instant::now(), used(&pids)?);
        std::thread::sleep(self.size.rest);
        let after = used(&pids)?;
        let took = began.elapsed().as_secs_f64();
        let [own, server, etcd] =
            [0, 1, 2].map(|which| (after[which] - before[which]) / took * 100.0);
        println!(
            "At rest for {took:.0} s, with every agent beating each 2 s: {own:.1} % of a core, the API server \
             {server:.1} %, etcd {etcd:.1} %. Writes meanwhile: {}.\n",
            audit.writes_of(|user| user == USER)?
        );
        Ok(())
    }

    fn memory(&self, when: &str, controller: &Controller) -> anyhow::Result<()> {
        let rig = self.plane.folder().path();
        let mib = |pid: &str, what| resident_kib(pid, what).map(|kib| kib as f64 / 1024.0);
        let (own, server) = (controller.pid(), pid_of(rig, "kube-apiserver")?);
        let etcd = rig.join("etcd/member/snap/db").metadata()?.len() >> 20;
        println!(
            "{when}: the controller has {:.0} MiB resident, at most {:.0}; the API server {:.0} MiB; etcd's file has \
             {etcd} MiB.",
            mib(&own, "VmRSS:")?,
            mib(&own, "VmHWM:")?,
            mib(&server, "VmRSS:")?,
        );
        Ok(())
    }

    /// The leader is told to stop, and the next process leads.
    fn restart(
        &self,
        controller: Controller,
        kubeconfig: &Path,
        mut progress: watch::Receiver<Progress>,
    ) -> anyhow::Result<Controller> {
        let before = *progress.borrow();
        let audit = self.audit()?;
        let told = Instant::now();
        controller.end(Signal::TERM)?;
        let (stopping, began) = (told.elapsed(), Instant::now());
        let next = Controller::start(self.plane, kubeconfig, CONTROLLER, None)?;
        let leads = next.leads()?.saturating_duration_since(began);
        let all = |count: usize, before: usize, wanted: usize| count >= before + wanted;
        let nodes = self.size.nodes;
        let mut until = |what: &str, is_so: &dyn Fn(&Progress) -> bool| {
            let waited = tokio::time::timeout(LIMIT, progress.wait_for(|now| is_so(now)));
            match self.runtime.block_on(waited) {
                Ok(_) => Ok(began.elapsed()),
                Err(_) => anyhow::bail!("not within {LIMIT:?}: {what}"),
            }
        };
        let registered =
            until("all agents registered", &|now| all(now.registered, before.registered, nodes))?;
        let drives = nodes * DRIVES_PER_NODE;
        let attached =
            until("all drives confirmed", &|now| all(now.attached, before.attached, drives))?;
        let socket = next.socket("csi.sock");
        self.runtime.block_on(make_volumes_named(&socket, "after", 1))?;
        let answered = began.elapsed();
        let writes = audit.writes_of(|user| user == USER)?;
        println!(
            "The leader is told to stop and ends after {:.1} s; the next process leads {:.1} s after its start, has \
             all agents registered after {:.1} s, all drives confirmed after {:.1} s, and has answered a CreateVolume \
             after {:.1} s. Writes meanwhile, with those for the one volume: {writes}.\n",
            stopping.as_secs_f64(),
            leads.as_secs_f64(),
            registered.as_secs_f64(),
            attached.as_secs_f64(),
            answered.as_secs_f64(),
        );
        std::thread::sleep(SETTLE);
        Ok(next)
    }
}

/// The time that each has had of the processors, in seconds.
fn used(pids: &[String; 3]) -> anyhow::Result<Vec<f64>> {
    pids.iter()
        .map(|pid| ticks(pid).map(|ticks| ticks / crate::discovery::TICKS_PER_SECOND))
        .collect()
}

async fn make_volumes(socket: &Path, many: usize) -> anyhow::Result<Vec<Duration>> {
    make_volumes_named(socket, "pvc", many).await
}

/// Makes volumes, as many at the same time as there are callers; gives how long each took.
async fn make_volumes_named(
    socket: &Path,
    prefix: &'static str,
    many: usize,
) -> anyhow::Result<Vec<Duration>> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS.min(many) {
        let (mut client, next) = (sidecar(socket.to_owned()), Arc::clone(&next));
        callers.spawn(async move {
            let mut times = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= many {
                    return anyhow::Ok(times);
                }
                let began = Instant::now();
                made(&mut client, &format!("{prefix}-{number}"), VOLUME_BYTES).await?;
                times.push(began.elapsed());
            }
        });
    }
    let mut times = Vec::new();
    while let Some(ended) = callers.join_next().await {
        times.extend(ended??);
    }
    Ok(times)
}

//! How long nobody answers when the leader is gone: killed, or told to stop. Two controllers, and a real agent that
//! finds them by one address. A volume is asked for at once, through the controller that lives, as its sidecar does.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hotbay_rig::ControlPlane;
use rustix::process::Signal;

use super::controllers::{Controller, control_plane, made, sidecar, until};
use super::service::Service;
use super::{percentile_ms, place};

const DRIVE_BYTES: u64 = 4 << 30;
const VOLUME_BYTES: u32 = 1 << 20;
/// The chart's.
const USUAL: u64 = 15;
const SHORT: u64 = 3;

/// How often each is done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runs {
    killed: usize,
    killed_short: usize,
    stopped: usize,
}

pub(crate) const RUNS: Runs = Runs { killed: 5, killed_short: 9, stopped: 9 };
pub(crate) const FEW: Runs = Runs { killed: 0, killed_short: 2, stopped: 2 };

/// From the signal on.
#[derive(Debug, Default)]
struct Times {
    leads: Vec<Duration>,
    answered: Vec<Duration>,
}

pub(crate) fn run(runs: Runs) -> anyhow::Result<()> {
    let folder = place()?;
    let plane = control_plane(folder.path())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let _on_it = runtime.enter();
    let mut pair = Pair::start(&plane, SHORT)?;
    let _agent = Agent::start(&plane, &pair)?;
    let stopped = pair.gone(&runtime, Signal::TERM, runs.stopped, "stopped")?;
    let short = pair.gone(&runtime, Signal::KILL, runs.killed_short, "short")?;
    pair.take_leases_of(USUAL)?;
    let usual = pair.gone(&runtime, Signal::KILL, runs.killed, "usual")?;
    println!(
        "Two controllers and an agent; the leader gets a signal, and a volume is asked for at once, through the other \
         one. In ms, from the signal:\n"
    );
    println!("| the leader | runs | another leads, median | worst | volume made, median | worst |");
    println!("|---|---|---|---|---|---|");
    for (what, times) in [
        (format!("killed, lease of {USUAL} s"), &usual),
        (format!("killed, lease of {SHORT} s"), &short),
        ("told to stop".to_owned(), &stopped),
    ] {
        if times.leads.is_empty() {
            continue;
        }
        let row = [&times.leads, &times.answered].map(|times| {
            format!("{:.0} | {:.0}", percentile_ms(times, 50), percentile_ms(times, 100))
        });
        println!("| {what} | {} | {} |", times.leads.len(), row.join(" | "));
    }
    println!();
    Ok(())
}

/// The controllers: one leads, and the other waits for its turn.
struct Pair<'a> {
    plane: &'a ControlPlane,
    service: Service,
    lease: u64,
    started: usize,
    leader: Option<Controller>,
    other: Option<Controller>,
}

impl<'a> Pair<'a> {
    fn start(plane: &'a ControlPlane, lease: u64) -> anyhow::Result<Self> {
        let service = Service::start()?;
        let mut this = Self { plane, service, lease, started: 0, leader: None, other: None };
        let leader = this.controller()?;
        leader.leads()?;
        this.leader = Some(leader);
        this.follow()?;
        Ok(this)
    }

    /// A new process; each has a name of its own, as pods have.
    fn controller(&mut self) -> anyhow::Result<Controller> {
        self.started += 1;
        let name = format!("c{}", self.started);
        Controller::start(self.plane, self.plane.kubeconfig(), &name, Some(self.lease))
    }

    fn leader(&self) -> &Controller {
        self.leader.as_ref().expect("somebody leads between two runs")
    }

    /// Starts one that follows, and waits until it knows whom.
    fn follow(&mut self) -> anyhow::Result<()> {
        let other = self.controller()?;
        other.follows()?;
        self.service.lead_to(vec![self.leader().agents, other.agents]);
        self.other = Some(other);
        Ok(())
    }

    /// From now on leases are that long.
    fn take_leases_of(&mut self, lease: u64) -> anyhow::Result<()> {
        self.lease = lease;
        // The one that follows says how long when it leads.
        if let Some(other) = self.other.take() {
            other.end(Signal::TERM)?;
        }
        self.follow()?;
        if let Some(leader) = self.leader.take() {
            leader.end(Signal::TERM)?;
        }
        self.other_leads()?;
        self.follow()
    }

    fn other_leads(&mut self) -> anyhow::Result<Instant> {
        let other = self.other.take().expect("somebody follows between two runs");
        let when = other.leads()?;
        self.leader = Some(other);
        Ok(when)
    }

    fn gone(
        &mut self,
        runtime: &tokio::runtime::Runtime,
        signal: Signal,
        runs: usize,
        name: &str,
    ) -> anyhow::Result<Times> {
        let mut times = Times::default();
        for run in 0..runs {
            eprintln!("failover: {name}, {} of {runs}", run + 1);
            let socket = self.other.as_ref().expect("somebody follows").socket("csi.sock");
            // Both are connected, and the agent as well.
            let mut client = sidecar(socket);
            runtime.block_on(made(&mut client, &format!("{name}-{run}-before"), VOLUME_BYTES))?;
            let leader = self.leader.take().expect("somebody leads");
            let began = Instant::now();
            leader.signal(signal)?;
            runtime.block_on(made(&mut client, &format!("{name}-{run}"), VOLUME_BYTES))?;
            times.answered.push(began.elapsed());
            times.leads.push(self.other_leads()?.saturating_duration_since(began));
            // It has ended, or is about to.
            drop(leader);
            self.follow()?;
        }
        Ok(times)
    }
}

/// A real agent over a file; it ends with this value.
struct Agent(Child);

impl Agent {
    fn start(plane: &ControlPlane, pair: &Pair<'_>) -> anyhow::Result<Self> {
        let folder = plane.folder().join("agent");
        fs::create_dir_all(&folder)?;
        File::create(folder.join("drive.img"))?.set_len(DRIVE_BYTES)?;
        let address = pair.service.address.to_string();
        let token = ["token", "create", "node-a", "--address", &address];
        let token = until("a token is made", || pair.leader().run(&token))?;
        let mut command = Command::new(super::product()?);
        command.args(["node", "--no-config", "--join", token.trim(), "--data-dir"]);
        command.arg(folder.join("data")).arg("--drives").arg(folder.join("*.img"));
        let log = File::create(folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let this = Self(command.spawn()?);
        until("the drive is in operation", || {
            pair.leader().run(&["host", "add", "node-a", "--wait"])
        })?;
        Ok(this)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.0.kill().unwrap_or_default();
        self.0.wait().ok();
    }
}

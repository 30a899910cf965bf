//! Clients: automation that asks for drives and hosts to be added and removed, polls until it is done or gives up, and
//! others that have volumes (`volumes.rs`).

use hotbay_core::cluster::{Event as Happens, Reply};
use hotbay_core::cms::{Action, Code, TakeOver, Target};

use crate::drive::path_of;
use crate::fault::Fault;
use crate::log::note;
use crate::registry::Caller;
use crate::scenario::{Millis, SECOND};
use crate::volumes::{Ask, Owned, VolumeTold};
use crate::world::{Event, World};

/// A client that hears nothing for so long asks again.
const PATIENCE: Millis = 5 * SECOND;
/// How often an action is asked for before its client gives up in any case.
const TRIES_MAX: u32 = 60;

#[derive(Debug, Default)]
pub(crate) struct Client {
    pub(crate) site: usize,
    /// It has volumes; the others add and remove drives.
    pub(crate) places: bool,
    task: Option<Task>,
    /// The call whose answer it waits for.
    waits: Option<u64>,
    /// The volumes that it was told are there.
    pub(crate) owned: Vec<Owned>,
}

impl Client {
    pub(crate) fn new(places: bool) -> Self {
        Self { places, ..Self::default() }
    }
}

#[derive(Debug, Clone)]
struct Task {
    request: Request,
    tries: u32,
}

#[derive(Debug, Clone)]
pub(crate) enum Request {
    Act { action: Action, dry_run: bool },
    Volume(Ask),
}

impl World {
    /// The client asks for something new, or again for what it has not got.
    pub(crate) fn client_acts(&mut self, client: usize) {
        if self.trouble_over {
            return;
        }
        self.users_write(client);
        if self.clients[client].task.is_none() {
            let request = if self.clients[client].places {
                self.wish_for_volume(client)
            } else {
                Some(self.wish())
            };
            let Some(request) = request else {
                return self.after(2 * SECOND, Event::ClientActs { client });
            };
            self.clients[client].task = Some(Task { request, tries: 0 });
        }
        let call = self.number();
        let there = &mut self.clients[client];
        there.waits = Some(call);
        let task = there.task.as_mut().expect("just given");
        task.tries += 1;
        let request = task.request.clone();
        let pause = self.latency();
        self.after(pause, Event::Asked { client, call, request });
        self.after(PATIENCE, Event::Unanswered { client, call });
    }

    /// The request arrives at the registry, if there is one.
    pub(crate) fn asked(&mut self, client: usize, call: u64, request: Request) {
        let site = self.clients[client].site;
        let serving = self.sites[site].process.as_ref().is_some_and(|process| process.serving);
        if !serving {
            return;
        }
        note!(self, "client {client}: asks registry {site}: {request:?}");
        let event = match request {
            Request::Act { action, dry_run } => {
                if dry_run {
                    self.fault(Fault::DryRun);
                }
                let asked_by = format!("client-{client}");
                Happens::Act { actions: vec![action], asked_by, dry_run }
            }
            Request::Volume(ask) => {
                let Some(event) = self.ask_about_volume(client, &ask) else { return };
                event
            }
        };
        self.apply(site, event, Caller::Client { client, call });
    }

    pub(crate) fn answered(
        &mut self,
        client: usize,
        call: u64,
        reply: Option<Reply>,
        volume: Option<VolumeTold>,
    ) {
        if self.clients[client].waits != Some(call) {
            return;
        }
        self.clients[client].waits = None;
        let Some(Task { request, tries }) = self.clients[client].task.clone() else { return };
        let again = match (&request, reply) {
            (Request::Act { .. }, Some(Reply::Acted(outcomes))) => {
                let worst = outcomes.iter().map(|outcome| outcome.code).max();
                note!(self, "client {client}: answered {}", worst.map_or("nothing", Code::as_str));
                (worst == Some(Code::TryAgain)).then(|| self.rng.between(SECOND, 5 * SECOND))
            }
            (Request::Act { .. }, None) => Some(self.rng.between(500, 3_000)),
            (Request::Act { .. }, Some(_)) => None,
            (Request::Volume(ask), _) => {
                note!(self, "client {client}: answered {volume:?}");
                let done = self.volume_answered(client, ask, volume);
                (!done).then(|| self.rng.between(200, 3_000))
            }
        };
        let gives_up = again.is_some() && (tries >= TRIES_MAX || self.rng.chance(30));
        if gives_up && matches!(request, Request::Act { .. }) {
            self.fault(Fault::ClientGivesUp);
        } else if let Some(pause) = again {
            return self.after(pause, Event::ClientActs { client });
        }
        self.clients[client].task = None;
        let pause = self.rng.between(100, 15 * SECOND);
        self.after(pause, Event::ClientActs { client });
    }

    pub(crate) fn unanswered(&mut self, client: usize, call: u64) {
        if self.clients[client].waits == Some(call) {
            self.fault(Fault::ClientUnanswered);
            self.clients[client].waits = None;
            let pause = self.rng.between(100, 2 * SECOND);
            self.after(pause, Event::ClientActs { client });
        }
    }

    fn wish(&mut self) -> Request {
        let machine = self.rng.index(self.machines.len());
        let bay = self.rng.index(self.machines[machine].bays.len());
        let host = self.machines[machine].name.to_string();
        let dry_run = self.rng.chance(30);
        let device = match self.rng.between(0, 2) {
            0 => format!("bay-{bay}"),
            _ => path_of(bay),
        };
        let target = Target { host: Some(host.clone()), device };
        if self.scenario.purges && self.rng.chance(80) {
            return Request::Act { action: self.give_up_or_take_back(machine, host), dry_run };
        }
        if self.scenario.takes_over
            && self.rng.chance(500)
            && let Some(action) = self.take_over(machine)
        {
            return Request::Act { action, dry_run };
        }
        let action = match self.rng.between(0, 99) {
            0..=39 => Action::AddDevice(target),
            40..=74 => Action::RemoveDevice(target),
            75..=87 => {
                Action::AddHost { host, with_removed: self.rng.chance(300), returned: false }
            }
            88..=96 => Action::RemoveHost { host },
            _ => Action::GetDependentVolumes(target),
        };
        Request::Act { action, dry_run }
    }

    /// A host that is away is purged; one that was purged is taken back.
    fn give_up_or_take_back(&mut self, machine: usize, host: String) -> Action {
        let site = self.machines[machine].site;
        let cluster = self.sites[site].process.as_ref().map(|process| &process.cluster);
        let name = &self.machines[machine].name;
        let purged = cluster.is_some_and(|cluster| {
            cluster.nodes().any(|node| node.record.name == *name && node.record.purged)
        });
        if purged {
            Action::AddHost { host, with_removed: self.rng.chance(300), returned: true }
        } else {
            Action::PurgeHost { host }
        }
    }

    /// A drive that looks like one of another node is said to be that one, as a person sees it now.
    fn take_over(&mut self, machine: usize) -> Option<Action> {
        let site = self.machines[machine].site;
        let cluster = &self.sites[site].process.as_ref()?.cluster;
        let newcomers: Vec<_> = cluster.newcomers().collect();
        let newcomer = self.rng.pick(&newcomers)?;
        let host = cluster.node(newcomer.node)?.record.name.to_string();
        let target = Target { host: Some(host), device: newcomer.device.path.clone() };
        let serial = cluster.word_for(newcomer.like, &newcomer.device);
        let state = self.rng.chance(500).then(|| cluster.newcomer_state(newcomer));
        Some(Action::TakeOver(TakeOver { target, serial, state }))
    }
}

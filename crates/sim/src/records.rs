//! A registry's writes to a store that keeps each record by itself: that of Kubernetes.
//!
//! Core's `Pipeline` says which writes may be under way; each lands by itself, whenever it does. One record may be
//! refused for a while: what rests on it waits, and nobody else does.

use std::collections::BTreeMap;

use hotbay_core::cluster::{Cluster, RecordKey, Write};
use hotbay_core::gate::Gate;
use hotbay_core::ids::{NodeId, SessionNumber};
use hotbay_core::pipeline::{Pipeline, StepId};

use crate::chaos::Undo;
use crate::check::Invariant;
use crate::fault::Fault;
use crate::log::note;
use crate::network::FromRegistry;
use crate::registry::{CALM_LIMIT, FIRST_WRITE_PAUSE, LONGEST_WRITE_PAUSE, Writer};
use crate::release::Held;
use crate::scenario::{Kind, Millis};
use crate::volumes::{Seen, VolumeTold};
use crate::world::{Event, World};

#[derive(Debug)]
pub(crate) struct Records {
    pipeline: Pipeline<RecordKey, Write>,
    under_way: BTreeMap<StepId, Write>,
    /// How many are under way at the most.
    most: usize,
    /// The pause of what has failed.
    pauses: BTreeMap<StepId, Millis>,
}

/// What somebody on a node that is well waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    Reply { call: u64 },
    Registered(SessionNumber),
}

impl Records {
    pub(crate) fn new(most: usize) -> Self {
        let pipeline = Pipeline::default();
        Self { pipeline, under_way: BTreeMap::new(), most, pauses: BTreeMap::new() }
    }

    pub(crate) fn add(&mut self, gate: &mut Gate<Held, RecordKey>, writes: Vec<Write>) {
        let number = gate.decide_records(writes.iter().map(Write::key));
        self.pipeline.add(number, writes.into_iter().map(|write| (write.key(), write)));
    }

    /// The writes that may begin now.
    pub(crate) fn begin(&mut self) -> Vec<(StepId, RecordKey)> {
        let mut begun = Vec::new();
        while self.under_way.len() < self.most {
            let Some((step, write)) = self.pipeline.next() else { break };
            begun.push((step, write.key()));
            self.under_way.insert(step, write.clone());
        }
        begun
    }

    /// What the store was given and has not said done, each by itself.
    pub(crate) fn under_way(self) -> impl Iterator<Item = Write> {
        self.under_way.into_values()
    }
}

impl World {
    pub(crate) fn write_record_later(
        &mut self,
        site: usize,
        reign: u64,
        (step, key): (StepId, RecordKey),
    ) {
        let chance = self.scenario.record_refusals;
        if !self.trouble_over && self.may_be_refused(site, key) && self.rng.chance(chance) {
            note!(self, "registry {site}: {key:?} cannot be written");
            self.sites[site].refused.insert(key);
            self.undo_later(Undo::Refused { site, key });
        }
        let most = self.scenario.commit_max;
        let pause = self.rng.between(1, most);
        self.after(pause, Event::RecordWritten { site, reign, step });
    }

    /// Whether it is not a record of a node that is to be well, nor one that all rest on.
    fn may_be_refused(&self, site: usize, key: RecordKey) -> bool {
        let Some(process) = &self.sites[site].process else { return false };
        let calm = |node| self.is_calm(&process.cluster, node);
        match (self.scenario.kind, key) {
            (Kind::Isolation, RecordKey::Registry) => false,
            (Kind::Isolation, key) => {
                let mut nodes = nodes_of(&process.cluster, key).peekable();
                nodes.peek().is_some() && !nodes.any(calm)
            }
            (Kind::Ordinary | Kind::Restored | Kind::Rival, _) => true,
        }
    }

    fn is_calm(&self, cluster: &Cluster, node: NodeId) -> bool {
        let name = cluster.node(node).map(|node| &node.record.name);
        self.machines.iter().any(|machine| machine.calm && Some(&machine.name) == name)
    }

    /// The store is done with the write of one record, well or not.
    pub(crate) fn record_written(&mut self, site: usize, reign: u64, step: StepId) {
        if self.process(site, reign).is_none() {
            return;
        }
        let crash = self.scenario.write_crash;
        if !self.trouble_over && self.may_crash(site) && self.rng.chance(crash) {
            return self.crash_registry(site);
        }
        let there = &mut self.sites[site];
        let process = there.process.as_mut().expect("looked at above");
        let Writer::Records(records) = &mut process.writer else { return };
        let write = records.under_way.remove(&step).expect("it was begun");
        let refused = there.refused.contains(&write.key());
        let slips = !self.trouble_over && self.rng.chance(self.scenario.write_failures);
        if refused || there.failing || slips {
            records.pipeline.failed(step);
            let pause = records.pauses.get(&step).map_or(FIRST_WRITE_PAUSE, |last| last * 2);
            let pause = pause.min(LONGEST_WRITE_PAUSE);
            records.pauses.insert(step, pause);
            let landed = !refused && self.rng.chance(300);
            if landed {
                there.store.commit(std::slice::from_ref(&write));
            }
            match (refused, landed) {
                (true, _) => self.fault(Fault::RecordRefused),
                (false, true) => self.fault(Fault::RecordErrorAfterLanding),
                (false, false) => self.fault(Fault::RecordError),
            }
            note!(self, "registry {site}: the write of {:?} fails, landed: {landed}", write.key());
            self.after(pause, Event::RecordAgain { site, reign, step });
            return self.turn_ends(site);
        }
        there.store.commit(std::slice::from_ref(&write));
        records.pauses.remove(&step);
        let (key, number) = records.pipeline.done(step);
        let ready = process.gate.durable_record(&key, number);
        note!(self, "registry {site}: {key:?} is written");
        self.written(site, ready);
    }

    /// What failed is tried again, as it is by now.
    pub(crate) fn record_again(&mut self, site: usize, reign: u64, step: StepId) {
        let Some(process) = self.process(site, reign) else { return };
        let Writer::Records(records) = &mut process.writer else { return };
        records.pipeline.again(step);
        self.turn_ends(site);
    }

    /// Something is held back. On a node that is well it is not for long, whatever becomes of other nodes' records.
    pub(crate) fn await_release(&mut self, site: usize, held: &Held) {
        if self.scenario.kind != Kind::Isolation {
            return;
        }
        let Some(process) = &self.sites[site].process else { return };
        let (cluster, reign) = (&process.cluster, process.reign);
        let (about, awaited): (Vec<_>, _) = match held {
            Held::ToAgent(session, FromRegistry::Registered(registered)) => {
                (vec![registered.node], Awaited::Registered(*session))
            }
            Held::ToAgent(..) => return,
            Held::Reply { call, told, volume, .. } => {
                let seen = volume.as_ref().and_then(|told| match told {
                    VolumeTold::There(Seen { drive, .. }) => *drive,
                    VolumeTold::Gone => None,
                });
                let drives = told.iter().map(|told| told.drive).chain(seen);
                let nodes = drives.filter_map(|id| Some(cluster.drive(id)?.record.node));
                (nodes.collect(), Awaited::Reply { call: *call })
            }
        };
        if !about.is_empty() && about.iter().all(|node| self.is_calm(cluster, *node)) {
            self.after(CALM_LIMIT, Event::Overdue { site, reign, awaited });
        }
    }

    pub(crate) fn overdue(&mut self, site: usize, reign: u64, awaited: Awaited) {
        let Some(process) = self.process(site, reign) else { return };
        let late = match awaited {
            Awaited::Reply { call } => process.unanswered.contains(&call),
            Awaited::Registered(session) => process.parked.contains_key(&session),
        };
        if late {
            let what = format!("{awaited:?} is held back, and about nodes that are well");
            self.breaks(Invariant::Delayed, what);
        }
    }
}

/// The nodes that a record is of.
fn nodes_of(cluster: &Cluster, key: RecordKey) -> impl Iterator<Item = NodeId> {
    let of_drive = |id| cluster.drive(id).map(|drive| drive.record.node);
    let of_volume = |id| {
        let volume = cluster.volume(id);
        let drive = volume.and_then(|volume| of_drive(volume.drive?));
        let users = volume.into_iter().flat_map(|volume| volume.attachments.keys().copied());
        drive.into_iter().chain(users).collect()
    };
    let nodes: Vec<_> = match key {
        RecordKey::Registry => Vec::new(),
        RecordKey::Node(id) => vec![id],
        RecordKey::Drive(id) => of_drive(id).into_iter().collect(),
        RecordKey::Volume(id) => of_volume(id),
        RecordKey::Attachment(id) => {
            let volumes = cluster.volumes_after(None);
            let mut attachments = volumes.flat_map(|volume| &volume.attachments);
            let node = attachments.find(|(_, attachment)| attachment.record.id == id);
            node.map(|(node, _)| *node).into_iter().collect()
        }
    };
    nodes.into_iter()
}

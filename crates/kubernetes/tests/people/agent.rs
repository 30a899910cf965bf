//! An agent that does all that it is told at once, in memory: opens and closes drives, keeps labels, grants uses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use hotbay_core::cluster::FreshIds;
use hotbay_core::device::{DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{DriveId, Incarnation, MachineId, NodeId, SessionNumber, VolumeId};
use hotbay_core::label::change::{Basis, Change, LabelTold, applied};
use hotbay_core::message::{Answer, AnswerResult, Order, RecordHealth, Registration, UseReport};
use hotbay_core::order::Goal;
use hotbay_core::volume::orders::{
    Grant, LabelAnswer, LabelOrder, LabelResult, UseAnswer, UseResult, VolumeOrder,
};
use hotbay_registry::{CallError, Registry, ToAgent};
use tokio::sync::mpsc;

/// What a drive has.
pub(crate) const DRIVE_BYTES: u64 = 1 << 30;

const NODE: u128 = 0xa << 64;
/// Of the first start of the agent.
const INCARNATION: u128 = 5;

/// The id of a drive of the node.
pub(crate) fn drive(number: usize) -> DriveId {
    DriveId::from_bits((number as u128 + 1) << 96)
}

/// The machine of `node-a`: what is on its drives, and on the agent's own disk. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    drives: usize,
    disks: Arc<Mutex<Disks>>,
}

#[derive(Default)]
struct Disks {
    labels: BTreeMap<DriveId, LabelTold>,
    uses: BTreeMap<VolumeId, Grant>,
    /// How often the agent has started.
    starts: u128,
    is_silent: bool,
}

/// Registers `node-a` with so many new drives, and serves it for as long as its session lasts.
pub(crate) async fn join(registry: &Registry, drives: usize) -> SessionNumber {
    Machine::new(drives).join(registry).await.unwrap()
}

impl Machine {
    pub(crate) fn new(drives: usize) -> Self {
        Self { drives, ..Self::default() }
    }

    /// Registers, and serves for as long as its session lasts.
    pub(crate) async fn join(&self, registry: &Registry) -> Result<SessionNumber, CallError> {
        let (outbox, mut told) = mpsc::channel(4_096);
        let session = registry.accept(outbox).await?;
        let drives = (0..self.drives).map(drive).collect();
        let fresh = FreshIds { node: NodeId::from_bits(NODE), drives };
        registry.register(session, None, self.registration(), fresh).await?;
        let (machine, registry) = (self.clone(), registry.clone());
        tokio::spawn(async move {
            while let Some(message) = told.recv().await {
                if machine.disks().is_silent {
                    continue;
                }
                match message {
                    ToAgent::Order(order) => machine.obey(&registry, session, *order).await,
                    ToAgent::Registered(registered) => {
                        for order in registered.allowed {
                            machine.obey(&registry, session, order).await;
                        }
                    }
                    ToAgent::Volume(order) => {
                        machine.obey_about_volume(&registry, session, *order).await;
                    }
                    ToAgent::ReportTaken { .. } => {}
                }
            }
        });
        Ok(session)
    }

    /// Nothing is answered any more, until it starts anew.
    pub(crate) fn fall_silent(&self) {
        self.disks().is_silent = true;
    }

    /// The extents on all labels.
    pub(crate) fn extents(&self) -> usize {
        self.disks().labels.values().map(|told| told.extents.len()).sum()
    }

    fn disks(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock().unwrap()
    }

    async fn obey(&self, registry: &Registry, session: SessionNumber, order: Order) {
        let Order { drive, ordered, incarnation, .. } = order;
        let is_open = ordered.goal == Goal::Attach;
        let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
        // An order that was overtaken meanwhile is answered in vain.
        drop(registry.answer(session, answer).await);
        if is_open {
            let basis = Basis { sequence: 1, checksum: 0 };
            let empty = LabelTold { basis, extents: Vec::new(), limit_bytes: DRIVE_BYTES };
            let told = self.disks().labels.entry(drive).or_insert(empty).clone();
            drop(registry.label_told(session, drive, told).await);
        }
    }

    async fn obey_about_volume(
        &self,
        registry: &Registry,
        session: SessionNumber,
        order: VolumeOrder,
    ) {
        match order {
            VolumeOrder::Label(order) => {
                let result = self.change_label(&order);
                let LabelOrder { drive, incarnation, basis: on, changes, .. } = order;
                let answer = LabelAnswer { drive, incarnation, on, changes, result };
                drop(registry.label_answer(session, answer).await);
            }
            VolumeOrder::Use(order) => {
                let answer = UseAnswer {
                    volume: order.volume,
                    incarnation: order.incarnation,
                    epoch: order.grant.epoch,
                    granted: order.grant.granted,
                    result: self.grant(order.volume, order.grant),
                };
                drop(registry.use_answer(session, answer).await);
            }
        }
    }

    fn change_label(&self, order: &LabelOrder) -> LabelResult {
        let mut disks = self.disks();
        let told = disks.labels.get_mut(&order.drive).unwrap();
        if told.basis != order.basis {
            return LabelResult::Refused { why: "another label".into(), told: told.clone() };
        }
        match applied(&told.extents, &order.changes, told.limit_bytes) {
            Ok(changed) => {
                told.extents = changed.extents;
                told.basis.sequence += 1;
                let now = told.basis;
                // Nobody uses what is off its drive.
                for change in &order.changes {
                    if let Change::Free { volume } | Change::Withdraw { volume } = change {
                        disks.uses.remove(volume);
                    }
                }
                LabelResult::Done { now }
            }
            Err(refused) => LabelResult::Refused { why: refused.to_string(), told: told.clone() },
        }
    }

    fn grant(&self, volume: VolumeId, grant: Grant) -> UseResult {
        let mut disks = self.disks();
        match disks.uses.get(&volume).filter(|before| !grant.may_follow(before)) {
            Some(before) => {
                UseResult::Refused { why: "a later use was seen".into(), seen: before.epoch }
            }
            None => {
                disks.uses.insert(volume, grant);
                UseResult::Done
            }
        }
    }

    fn registration(&self) -> Registration {
        let mut disks = self.disks();
        let incarnation = Incarnation::from_bits(INCARNATION + disks.starts);
        disks.starts += 1;
        disks.is_silent = false;
        let uses = disks.uses.clone().into_iter();
        Registration {
            incarnation,
            uses: uses.map(|(volume, grant)| UseReport { volume, grant }).collect(),
            ..registration(self.drives)
        }
    }
}

/// What it says when it registers.
pub(crate) fn registration(drives: usize) -> Registration {
    let device = |bay: usize| Observed {
        evidence: Evidence { serial: Some(format!("S{bay}")), ..Evidence::default() },
        path: format!("/dev/drive{bay}"),
        bay: Some(bay.to_string()),
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: DRIVE_BYTES,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: Vec::new(),
    };
    Registration {
        node: None,
        name: "node-a".parse().unwrap(),
        machine: MachineId::from_bits(NODE),
        incarnation: Incarnation::from_bits(INCARNATION),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Absent,
        drives: Vec::new(),
        devices: (0..drives).map(device).collect(),
        conditions: vec![],
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    }
}

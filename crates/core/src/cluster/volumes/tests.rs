//! A registry with one node and its drives, and an agent that keeps labels: lives of volumes, and every row of the
//! table in [`super::labels`].

mod cut;
mod erasing;

use std::collections::{BTreeMap, BTreeSet};

use super::super::AttachmentState;
use super::super::testing::{act, device, lead, store};
use super::super::{Effects, Event, FreshIds, Records, Refused, Reply};
use super::*;
use crate::cms::{Action, Target};
use crate::ids::{ClusterId, Incarnation, MachineId, SessionNumber};
use crate::label::change::{Basis, Change, LabelTold, applied};
use crate::label::extents::{Extent, Use};
use crate::message::{Answer, AnswerResult, RecordHealth, Registration};
use crate::node_labels::NodeLabels;
use crate::volume::class::{Asked, Class, Spread};
use crate::volume::orders::{
    LabelAnswer, LabelOrder, LabelResult, UseAnswer, UseResult, VolumeOrder,
};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const NODE: NodeId = NodeId::from_bits(50);
pub(super) const SESSION: SessionNumber = SessionNumber::from_number(1);
pub(super) const INCARNATION: Incarnation = Incarnation::from_bits(3);

/// A registry, its store, and the labels of the drives of its one node.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) records: Records,
    pub(super) labels: BTreeMap<DriveId, LabelTold>,
    /// Orders that the agent has not carried out.
    pub(super) orders: Vec<VolumeOrder>,
    pub(super) drawn: u128,
    /// What the agent says of its node when it registers.
    pub(super) device_mapper: bool,
}

/// What an agent answers.
pub(super) fn answer_to(order: &LabelOrder, result: LabelResult) -> LabelAnswer {
    let LabelOrder { drive, incarnation, basis: on, changes, .. } = order.clone();
    LabelAnswer { drive, incarnation, on, changes, result }
}

impl World {
    /// Drives in operation, with so many MiB for volumes each.
    pub(super) fn new(sizes_mib: &[u64]) -> Self {
        let (cluster, writes) = lead(Records::default(), 1);
        let mut records = Records::default();
        store(&mut records, writes);
        let mut world = Self {
            cluster,
            records,
            labels: BTreeMap::new(),
            orders: Vec::new(),
            drawn: 1000,
            device_mapper: false,
        };
        for (number, mib) in sizes_mib.iter().enumerate() {
            let basis = Basis { sequence: 1, checksum: 0 };
            let limit_bytes = FIRST_MIB * MIB + mib * MIB;
            let told = LabelTold { basis, extents: Vec::new(), limit_bytes };
            world.labels.insert(DriveId::from_bits(number as u128 + 1), told);
        }
        world.register();
        let add = Action::AddHost { host: "node-a".into(), with_removed: false, returned: false };
        let event = Event::Act { actions: vec![add], asked_by: "me".into(), dry_run: false };
        world.apply(event).unwrap();
        world.attach_all();
        world
    }

    pub(super) fn register(&mut self) {
        let devices: Vec<_> =
            self.labels.keys().map(|id| device(&format!("S{}", id.to_bits()))).collect();
        let fresh = FreshIds { node: NODE, drives: self.labels.keys().copied().collect() };
        let registration = Registration {
            node: None,
            name: "node-a".parse().unwrap(),
            machine: MachineId::from_bits(9),
            incarnation: INCARNATION,
            cluster: Some(ClusterId::from_bits(1)),
            newest_term: None,
            record: RecordHealth::Usable,
            drives: Vec::new(),
            devices,
            conditions: Vec::new(),
            labels: NodeLabels::default(),
            uses: vec![],
            device_mapper: self.device_mapper,
            program: Default::default(),
        };
        let event = Event::Register { session: SESSION, certificate: None, registration, fresh };
        self.apply(event).unwrap();
    }

    /// The agent has every drive open, and tells its label.
    pub(super) fn attach_all(&mut self) {
        for (drive, told) in self.labels.clone() {
            if let Some((_, order)) = self.cluster.owed(drive) {
                let result = AnswerResult::Done;
                let answer =
                    Answer { drive, ordered: order.ordered, incarnation: INCARNATION, result };
                self.apply(Event::Answer { session: SESSION, answer }).unwrap();
            }
            self.apply(Event::LabelTold { session: SESSION, drive, told }).unwrap();
        }
    }

    pub(super) fn apply(&mut self, event: Event) -> Result<Effects, Refused> {
        let effects = self.cluster.apply(event, 0)?;
        store(&mut self.records, effects.writes.clone());
        self.orders.extend(effects.volume_orders.iter().map(|(_, order)| order.clone()));
        Ok(effects)
    }

    pub(super) fn ask(&mut self, request: VolumeRequest) -> Result<VolumeId, VolumeRefused> {
        match self.apply(Event::Volume { request, asked_by: "me".into() }) {
            Ok(Effects { reply: Reply::Volume(id), .. }) => Ok(id),
            Err(Refused::Volume(refused)) => Err(refused),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn create(
        &mut self,
        name: &str,
        mib: u64,
        parameters: &[(&str, &str)],
    ) -> Result<VolumeId, VolumeRefused> {
        self.drawn += 1;
        let parameters: BTreeMap<_, _> =
            parameters.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let Asked { class, claim } = Asked::parse(&parameters).unwrap();
        let wish = Wish {
            name: name.parse().unwrap(),
            size: Size::of(mib * MIB).unwrap(),
            class,
            parameters,
            nodes: BTreeSet::new(),
            preferred: Vec::new(),
            claim,
        };
        self.ask(VolumeRequest::Create {
            id: VolumeId::from_bits(self.drawn),
            wish: Box::new(wish),
        })
    }

    /// The agent carries out one label order, as the host does.
    pub(super) fn carry_out(&mut self, order: &LabelOrder) -> LabelAnswer {
        let told = self.labels.get_mut(&order.drive).unwrap();
        let result = if told.basis != order.basis {
            LabelResult::Refused { why: "another label".into(), told: told.clone() }
        } else {
            match applied(&told.extents, &order.changes, told.limit_bytes) {
                Ok(changed) => {
                    told.extents = changed.extents;
                    told.basis.sequence += 1;
                    LabelResult::Done { now: told.basis }
                }
                Err(refused) => {
                    LabelResult::Refused { why: refused.to_string(), told: told.clone() }
                }
            }
        };
        answer_to(order, result)
    }

    /// The agent carries out everything, until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..1000 {
            let Some(order) = self.orders.pop() else { return };
            let event = match order {
                VolumeOrder::Label(order) => {
                    let answer = self.carry_out(&order);
                    Event::LabelAnswer { session: SESSION, answer }
                }
                VolumeOrder::Use(order) => Event::UseAnswer {
                    session: SESSION,
                    answer: UseAnswer {
                        volume: order.volume,
                        incarnation: INCARNATION,
                        epoch: order.grant.epoch,
                        granted: order.grant.granted,
                        result: UseResult::Done,
                    },
                },
            };
            drop(self.apply(event));
        }
        panic!("it never ends");
    }

    /// The agent carries out one label order.
    fn step(&mut self) {
        let Some(VolumeOrder::Label(order)) = self.orders.pop() else { panic!("no label order") };
        let answer = self.carry_out(&order);
        self.apply(Event::LabelAnswer { session: SESSION, answer }).unwrap();
    }

    /// The registry is killed, and started again from its store; the agent registers again.
    pub(super) fn restart(&mut self) {
        let (cluster, writes) = lead(self.records.clone(), 2);
        self.cluster = cluster;
        store(&mut self.records, writes);
        self.orders.clear();
        self.register();
        self.attach_all();
    }

    pub(super) fn state(&self, id: VolumeId) -> Option<VolumeState> {
        self.cluster.volume(id).map(|volume| volume.record.state)
    }

    pub(super) fn drive_of(&self, id: VolumeId) -> u128 {
        self.cluster.volume(id).unwrap().drive.unwrap().to_bits()
    }
}

const FIRST_MIB: u64 = crate::label::extents::FIRST_EXTENT_BYTES / MIB;

#[test]
fn a_volume_is_made_when_its_extent_is_on_the_label() {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, &[]).unwrap();
    assert_eq!(world.state(id), Some(VolumeState::Pending));
    assert_eq!(world.create("db", 10, &[]), Ok(id), "asked again");
    world.settle();
    assert_eq!(world.state(id), Some(VolumeState::Created));
    let label = &world.labels[&DriveId::from_bits(1)];
    assert_eq!(label.extents[0].name.as_str(), "db");
    assert_eq!(world.records.volumes[0].state, VolumeState::Created);
    let other = world.create("db", 11, &[]);
    assert!(matches!(other, Err(VolumeRefused::NameTaken { .. })), "{other:?}");
    let other = world.create("db", 10, &[("erase", "required")]);
    assert!(matches!(other, Err(VolumeRefused::NameTaken { .. })), "{other:?}");
}

#[test]
fn a_registry_that_starts_again_goes_on_with_what_it_owes() {
    let mut world = World::new(&[100]);
    let made = world.create("made", 10, &[]).unwrap();
    world.settle();
    let pending = world.create("pending", 10, &[]).unwrap();
    world.restart();
    assert_eq!(
        (world.state(made), world.state(pending)),
        (Some(VolumeState::Created), Some(VolumeState::Pending))
    );
    world.settle();
    assert_eq!(world.state(pending), Some(VolumeState::Created));
    world.ask(VolumeRequest::Delete { volume: made }).unwrap();
    world.restart();
    world.settle();
    assert_eq!(world.state(made), None);
    assert_eq!(world.records.volumes.len(), 1);
    assert_eq!(world.labels[&DriveId::from_bits(1)].extents.len(), 1, "freed and erased");
}

#[test]
fn a_deleted_volume_is_gone_at_once_and_its_place_is_given_out_when_erased() {
    let mut world = World::new(&[300]);
    let id = world.create("big", 300, &[]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume: id }).unwrap();
    let Some(VolumeOrder::Label(free)) = world.orders.pop() else { panic!("no label order") };
    assert_eq!(free.changes, [Change::Free { volume: id }]);
    let answer = world.carry_out(&free);
    world.apply(Event::LabelAnswer { session: SESSION, answer }).unwrap();
    assert_eq!(world.state(id), None, "gone for its users");
    let refused = world.create("next", 300, &[]).unwrap_err();
    assert!(matches!(refused, VolumeRefused::NoPlace { .. }), "{refused}");
    let dirty =
        world.cluster.drive(DriveId::from_bits(1)).unwrap().space.as_ref().unwrap().dirty_bytes();
    assert_eq!(dirty, 300 * MIB);
    world.settle();
    world.create("next", 300, &[]).unwrap();
}

#[test]
fn a_volume_whose_erasing_is_required_stays_until_then() {
    let mut world = World::new(&[300]);
    let id = world.create("secret", 200, &[("erase", "required")]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume: id }).unwrap();
    let mut steps = 0;
    while let Some(VolumeOrder::Label(order)) = world.orders.pop() {
        assert_eq!(world.state(id), Some(VolumeState::Deleting));
        let answer = world.carry_out(&order);
        world.apply(Event::LabelAnswer { session: SESSION, answer }).unwrap();
        steps += 1;
    }
    assert_eq!((steps, world.state(id)), (5, None), "freed, and erased in four steps");
}

#[test]
fn a_pending_volume_that_is_deleted_is_withdrawn() {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, &[]).unwrap();
    let Some(VolumeOrder::Label(late)) = world.orders.pop() else { panic!("no label order") };
    world.restart();
    world.orders.clear();
    world.ask(VolumeRequest::Delete { volume: id }).unwrap();
    // The order of before the restart is under way again; it is carried out or not.
    world.restart();
    world.settle();
    assert_eq!(world.state(id), None);
    assert!(world.labels[&DriveId::from_bits(1)].extents.is_empty());
    let answer = world.carry_out(&late);
    assert!(matches!(answer.result, LabelResult::Refused { .. }), "it comes too late for good");
}

/// 20 MiB at the beginning of a drive, of which there is no record.
pub(super) fn forgotten(volume: VolumeId) -> Extent {
    Extent {
        volume,
        part: 0,
        start_bytes: FIRST_MIB * MIB,
        length_bytes: 20 * MIB,
        usage: Use::Used,
        formatted: true,
        name: "old".parse().unwrap(),
        claim: None,
    }
}

#[test]
fn what_the_label_has_and_nobody_knows_is_an_orphan() {
    let mut world = World::new(&[100]);
    let drive = DriveId::from_bits(1);
    let orphan = VolumeId::from_bits(77);
    world.labels.get_mut(&drive).unwrap().extents.push(forgotten(orphan));
    world.attach_all();
    world.settle();
    let orphans: Vec<_> = world.cluster.orphans().map(|(_, extent)| extent.volume).collect();
    assert_eq!(orphans, [orphan]);
    assert_eq!(world.cluster.volume_name(orphan), "old", "called as the label says");
    assert_eq!(world.labels[&drive].extents.len(), 1, "never freed unasked");
    let id = world.create("new", 80, &[]).unwrap();
    world.settle();
    assert_eq!(
        world.labels[&drive].extents[1].start_bytes,
        (FIRST_MIB + 20) * MIB,
        "counted as used"
    );
    let target = Target { host: Some("node-a".into()), device: "S1".into() };
    let remove = Action::RemoveDevice(target);
    let event = Event::Act { actions: vec![remove], asked_by: "me".into(), dry_run: true };
    let Reply::Acted(outcomes) = world.apply(event).unwrap().reply else { panic!("not acted") };
    assert_eq!(outcomes[0].dependent, [orphan, id]);
    world.ask(VolumeRequest::Delete { volume: orphan }).unwrap();
    world.settle();
    assert_eq!(world.labels[&drive].extents.len(), 1, "a person may delete it");
}

#[test]
fn a_volume_that_its_label_has_lost_is_never_made_again() {
    let mut world = World::new(&[100]);
    let drive = DriveId::from_bits(1);
    let id = world.create("db", 10, &[]).unwrap();
    world.settle();
    let kept = std::mem::take(&mut world.labels.get_mut(&drive).unwrap().extents);
    world.attach_all();
    world.settle();
    assert_eq!(world.state(id), Some(VolumeState::Lost));
    assert!(world.labels[&drive].extents.is_empty());
    world.labels.get_mut(&drive).unwrap().extents = kept;
    world.attach_all();
    assert_eq!(world.state(id), Some(VolumeState::Created), "found again");
}

#[test]
fn overlapping_extents_stop_the_drive_from_taking_more() {
    let mut world = World::new(&[100]);
    let drive = DriveId::from_bits(1);
    world.create("db", 10, &[]).unwrap();
    world.settle();
    let mut twin = world.labels[&drive].extents[0].clone();
    twin.volume = VolumeId::from_bits(5);
    world.labels.get_mut(&drive).unwrap().extents.push(twin);
    world.attach_all();
    let refused = world.create("more", 1, &[]).unwrap_err();
    assert!(refused.to_string().contains("overlap"), "{refused}");
}

#[test]
fn the_least_filled_drive_that_fits_is_taken() {
    let mut world = World::new(&[100, 200, 50]);
    let big = world.create("big", 60, &[]).unwrap();
    assert_eq!(world.drive_of(big), 1, "all are empty: by id");
    let next = world.create("next", 60, &[]).unwrap();
    assert_eq!(world.drive_of(next), 2, "the third is emptier than none, and too small");
    let small = world.create("small", 10, &[]).unwrap();
    assert_eq!(world.drive_of(small), 3);
    let alone = world.create("alone", 10, &[("drive", "exclusive")]).unwrap_err();
    assert!(alone.to_string().contains("not empty"), "{alone}");
}

#[test]
fn an_exclusive_volume_has_its_drive_for_itself() {
    let mut world = World::new(&[100, 100]);
    let alone = world.create("alone", 10, &[("drive", "exclusive")]).unwrap();
    let others: Vec<_> =
        (0..3).map(|n| world.create(&format!("other-{n}"), 20, &[]).unwrap()).collect();
    assert!(others.iter().all(|id| world.drive_of(*id) != world.drive_of(alone)));
}

#[test]
fn a_cordoned_node_keeps_its_volumes_and_gets_no_new_one() {
    let mut world = World::new(&[100]);
    let first = world.create("first", 10, &[]).unwrap();
    world.settle();
    let cordon = |cordoned| Action::CordonHost { host: "node-a".into(), cordoned };
    act(&mut world.cluster, cordon(true));
    let (class, nodes) = (Class { max_shares: 1, ..Class::default() }, BTreeSet::new());
    let sought = Sought { bytes: MIB, class: &class, group: None, nodes: &nodes, preferred: &[] };
    assert_eq!(world.cluster.room(&sought), Room::default());
    let (place, judged) = world.cluster.explain_placement(&sought);
    assert_eq!((place, &judged[0].unfit[..]), (None, &[Unfit::Cordoned][..]));
    assert!(world.create("second", 10, &[]).is_err());
    assert_eq!(world.state(first), Some(VolumeState::Created));
    act(&mut world.cluster, cordon(false));
    assert!(world.create("second", 10, &[]).is_ok());
}

#[test]
fn the_volumes_of_a_group_spread() {
    let mut world = World::new(&[100, 100]);
    let required = [("spread", "required"), ("spreadKey", "db")];
    let first = world.create("db-0", 1, &required).unwrap();
    let second = world.create("db-1", 1, &required).unwrap();
    assert_ne!(world.drive_of(first), world.drive_of(second));
    let refused = world.create("db-2", 1, &required).unwrap_err();
    assert!(refused.to_string().contains("same group"), "{refused}");
    let preferred = [("spread", "preferred"), ("spreadKey", "db")];
    world.create("db-2", 1, &preferred).unwrap();
    let class = Class { spread: Spread::Required, max_shares: 1, ..Class::default() };
    let nodes = BTreeSet::new();
    let sought =
        Sought { bytes: MIB, class: &class, group: Some("db"), nodes: &nodes, preferred: &[] };
    let (place, judged) = world.cluster.explain_placement(&sought);
    assert_eq!(place, None);
    assert_eq!(judged.len(), 2);
    assert!(judged.iter().all(|judged| judged.unfit[0].to_string().contains("same group")));
}

#[test]
fn a_use_counts_when_the_agent_has_it() {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, &[]).unwrap();
    let attach = |id: VolumeId, drawn: u128| VolumeRequest::Attach {
        id: AttachmentId::from_bits(drawn),
        volume: id,
        node: NODE,
        read_only: false,
    };
    let early = world.ask(attach(id, 1));
    assert_eq!(early, Err(VolumeRefused::WrongState { state: VolumeState::Pending }));
    world.settle();
    world.ask(attach(id, 1)).unwrap();
    let epoch = |world: &World| world.cluster.volume(id).unwrap().attachments[&NODE].record.epoch;
    assert_eq!(epoch(&world).get(), 1);
    world.ask(attach(id, 2)).unwrap();
    assert_eq!(epoch(&world).get(), 1, "the same use");
    world.restart();
    world.settle();
    let attached = |world: &World| world.records.attachments[0].state;
    assert_eq!(attached(&world), AttachmentState::Attached);
    let refused = world.ask(VolumeRequest::Delete { volume: id }).unwrap_err();
    assert!(matches!(refused, VolumeRefused::InUse { .. }));
    world.ask(VolumeRequest::Detach { volume: id, node: None }).unwrap();
    let again = world.ask(attach(id, 3)).unwrap_err();
    assert!(matches!(again, VolumeRefused::InUse { .. }), "not before it is given back");
    world.settle();
    assert!(world.records.attachments.is_empty());
    world.ask(attach(id, 3)).unwrap();
    assert_eq!(epoch(&world).get(), 2);
}

#[test]
fn a_purged_host_loses_its_volumes_and_they_can_be_deleted() {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, &[]).unwrap();
    world.settle();
    world.apply(Event::SessionClosed(SESSION)).unwrap();
    let purge = Action::PurgeHost { host: "node-a".into() };
    let event = Event::Act { actions: vec![purge], asked_by: "me".into(), dry_run: false };
    let Reply::Acted(outcomes) = world.apply(event).unwrap().reply else { panic!("not acted") };
    assert_eq!(outcomes[0].dependent, [id]);
    assert_eq!(world.state(id), Some(VolumeState::Lost));
    world.ask(VolumeRequest::Delete { volume: id }).unwrap();
    assert_eq!(world.state(id), None);
}

//! What an answer rests on: the records that must be durable, as they are in memory, before it may be said.
//!
//! A store that keeps each record by itself may have one that it cannot write. Whoever asks about that one waits, and
//! nobody else does: the registry's actor asks here, after each event, what its outcome was computed from, and holds it
//! behind the [`Gate`](crate::gate::Gate) for those records alone. Where it is not certain what something was computed
//! from, that is everything.
//!
//! ```text
//! order about a drive     the drive, its node                          label order: and the volumes that it changes
//! word about a volume     the volume, its attachments, also those that are over, and of its drive as above
//! word to or of a node    the node, its drives, and of the volumes on them as above
//! word on an action       what it changed, and of each drive as above; everything, if it is about none
//! ```
//!
//! Every one of them rests on the registry's own record, too: it holds the term. A place is found by looking at all
//! drives, and rests on the one that was chosen: what another one would have said, had its last change been lost,
//! makes the choice no worse.

use std::collections::BTreeSet;

use super::{Cluster, Effects, Event, Reply, Volume, VolumeRequest, Write};
use crate::cms::Outcome;
use crate::ids::{AttachmentId, DriveId, NodeId, NodeName, SessionNumber, VolumeId};
use crate::label::change::Change;
use crate::message::Order;
use crate::volume::orders::{LabelOrder, VolumeOrder};

/// Names a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecordKey {
    Registry,
    Node(NodeId),
    Drive(DriveId),
    Volume(VolumeId),
    Attachment(AttachmentId),
}

impl Write {
    /// The record that it changes.
    pub fn key(&self) -> RecordKey {
        match self {
            Self::Registry(_) => RecordKey::Registry,
            Self::Node(record) => RecordKey::Node(record.id),
            Self::NodeGone(id) => RecordKey::Node(*id),
            Self::Drive(record) => RecordKey::Drive(record.id),
            Self::DriveGone(id) => RecordKey::Drive(*id),
            Self::Volume(record) => RecordKey::Volume(record.id),
            Self::VolumeGone(id) => RecordKey::Volume(*id),
            Self::Attachment(record) => RecordKey::Attachment(record.id),
            Self::AttachmentGone(id) => RecordKey::Attachment(*id),
        }
    }
}

/// The records that something was computed from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ground {
    Everything,
    These(BTreeSet<RecordKey>),
}

impl Ground {
    /// That of what rests on these records alone.
    pub fn of(keys: impl IntoIterator<Item = RecordKey>) -> Self {
        let mut these = BTreeSet::from([RecordKey::Registry]);
        these.extend(keys);
        Self::These(these)
    }

    /// That of what rests on both.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::These(mut these), Self::These(others)) => {
                these.extend(others);
                Self::These(these)
            }
            (Self::Everything, _) | (_, Self::Everything) => Self::Everything,
        }
    }
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Session(SessionNumber),
    Node(NodeName),
    Drive(DriveId),
    Volume(VolumeId),
    /// Its outcomes name the drives.
    Actions,
    Everything,
}

impl Event {
    /// What it is about, to be noted before it is applied.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Register { session, .. }
            | Self::Devices { session, .. }
            | Self::SessionClosed(session) => Subject::Session(*session),
            Self::Answer { answer, .. } => Subject::Drive(answer.drive),
            Self::LabelTold { drive, .. } => Subject::Drive(*drive),
            Self::LabelAnswer { answer, .. } => Subject::Drive(answer.drive),
            Self::UseAnswer { answer, .. } => Subject::Volume(answer.volume),
            Self::VolumeReport { report, .. } => Subject::Volume(report.volume),
            Self::Volume { request, .. } => Subject::Volume(request.volume()),
            Self::Certify { node, .. } => Subject::Node(node.clone()),
            Self::Act { .. } => Subject::Actions,
            Self::Adopt { .. } => Subject::Everything,
        }
    }
}

impl VolumeRequest {
    /// The volume that it is about; of a new one, the id that it would get.
    pub fn volume(&self) -> VolumeId {
        match self {
            Self::Create { id, .. } => *id,
            Self::Delete { volume }
            | Self::Expand { volume, .. }
            | Self::Attach { volume, .. }
            | Self::Detach { volume, .. }
            | Self::Annotate { volume, .. } => *volume,
        }
    }
}

impl Cluster {
    /// What the outcome of an event rests on, asked after it was applied.
    pub fn ground(&self, subject: &Subject, effects: &Effects) -> Ground {
        let about = match subject {
            Subject::Session(session) => match self.sessions.get(session) {
                Some(node) => self.ground_of_node(*node),
                None => Ground::of([]),
            },
            Subject::Node(name) => {
                Ground::of(self.node_by_name.get(name).copied().map(RecordKey::Node))
            }
            Subject::Drive(drive) => self.ground_of_drive(*drive),
            Subject::Volume(volume) => self.ground_of_volume(*volume),
            Subject::Actions => Ground::of([]),
            Subject::Everything => Ground::Everything,
        };
        let answered = match &effects.reply {
            Reply::Nothing | Reply::Certify(_) => Ground::of([]),
            // Its orders may be about drives that were taken over from the node.
            Reply::Registered(answer) => answer
                .allowed
                .iter()
                .chain(&answer.unknown)
                .fold(Ground::of([]), |all, order| all.and(self.ground_of_order(order))),
            Reply::Adopted => Ground::Everything,
            Reply::Volume(volume) => self.ground_of_volume(*volume),
            Reply::Acted(outcomes) => outcomes
                .iter()
                .fold(Ground::of([]), |all, one| all.and(self.ground_of_outcome(one))),
        };
        about.and(answered).and(Ground::of(effects.writes.iter().map(Write::key)))
    }

    fn ground_of_outcome(&self, outcome: &Outcome) -> Ground {
        let drives = || outcome.drives.iter().filter_map(|each| each.drive).chain(outcome.drive);
        // That there is no such host or drive, or a word about a whole host.
        if drives().next().is_none() {
            return Ground::Everything;
        }
        let each = outcome.drives.iter().flat_map(|each| &each.dependent);
        let volumes = outcome.dependent.iter().chain(each).map(|id| self.ground_of_volume(*id));
        drives()
            .map(|drive| self.ground_of_drive(drive))
            .chain(volumes)
            .fold(Ground::of([]), Ground::and)
    }

    /// What an order about a drive rests on, and whatever else is said of it.
    pub fn ground_of_drive(&self, id: DriveId) -> Ground {
        let node = self.drives.get(&id).map(|drive| RecordKey::Node(drive.record.node));
        Ground::of(node.into_iter().chain([RecordKey::Drive(id)]))
    }

    /// What an order to attach or detach rests on.
    pub fn ground_of_order(&self, order: &Order) -> Ground {
        self.ground_of_drive(order.drive)
    }

    /// What an order about volumes rests on.
    pub fn ground_of_volume_order(&self, order: &VolumeOrder) -> Ground {
        match order {
            VolumeOrder::Label(LabelOrder { drive, changes, .. }) => {
                let volumes = changes.iter().map(changed).map(RecordKey::Volume);
                self.ground_of_drive(*drive).and(Ground::of(volumes))
            }
            VolumeOrder::Use(order) => {
                self.ground_of_volume(order.volume).and(self.ground_of_drive(order.drive))
            }
        }
    }

    /// What a word about a volume rests on; also that it is not there.
    pub fn ground_of_volume(&self, id: VolumeId) -> Ground {
        let Some(volume) = self.volumes.get(&id) else {
            return Ground::of([RecordKey::Volume(id)]);
        };
        let drive =
            volume.drive.map_or_else(|| Ground::of([]), |drive| self.ground_of_drive(drive));
        drive.and(Ground::of(keys_of_volume(volume)))
    }

    /// What a word to or about a node rests on.
    pub fn ground_of_node(&self, id: NodeId) -> Ground {
        let mut keys = BTreeSet::from([RecordKey::Registry, RecordKey::Node(id)]);
        let drives = self.nodes.get(&id).into_iter().flat_map(|node| &node.drives);
        for drive in drives {
            keys.insert(RecordKey::Drive(*drive));
            let on_it =
                self.drives.get(drive).into_iter().flat_map(|drive| drive.record.volumes.keys());
            for volume in on_it {
                keys.insert(RecordKey::Volume(*volume));
                keys.extend(self.volumes.get(volume).into_iter().flat_map(keys_of_volume));
            }
        }
        for (_, volume) in
            self.uses.range((id, VolumeId::from_bits(0))..=(id, VolumeId::from_bits(u128::MAX)))
        {
            keys.extend(self.volumes.get(volume).into_iter().flat_map(keys_of_volume));
        }
        Ground::These(keys)
    }
}

fn keys_of_volume(volume: &Volume) -> impl Iterator<Item = RecordKey> {
    let attachments =
        volume.attachments.values().map(|known| RecordKey::Attachment(known.record.id));
    let nodes = volume.attachments.keys().map(|node| RecordKey::Node(*node));
    // That a use is over rests on its record being gone.
    let over = volume.over.values().map(|id| RecordKey::Attachment(*id));
    attachments.chain(over).chain(nodes).chain([RecordKey::Volume(volume.record.id)])
}

fn changed(change: &Change) -> VolumeId {
    match change {
        Change::Place(extent) => extent.volume,
        Change::Grow { volume, .. }
        | Change::Free { volume }
        | Change::Erase { volume, .. }
        | Change::Formatted { volume }
        | Change::Withdraw { volume } => *volume,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{DRIVE, act, device, lead, register, registered, says, volume_on};
    use super::super::{AttachmentState, Records, Refused};
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cms::{Action, Target};
    use crate::ids::Incarnation;
    use crate::message::{Answer, AnswerResult};
    use crate::rules::Rules;
    use crate::volume::orders::{UseAnswer, UseOrder, UseResult};

    const A: SessionNumber = SessionNumber::from_number(1);

    /// Two nodes, with a drive each; that of the first is in operation.
    fn cluster() -> Cluster {
        let (mut cluster, _) = lead(Records::default(), 1);
        for (session, name) in [(1, "node-a"), (2, "node-b")] {
            let (rules, start) = (Rules::default(), Incarnation::from_bits(session.into()));
            let (found, devices) = (RecordFound::Absent(None), vec![device(name)]);
            let agent = Agent::start(rules, start, found, devices, AttachAtStart::default()).0;
            let effects = register(&mut cluster, session, says(&agent, name)).unwrap();
            assert_eq!(registered(&effects).session.get(), session);
        }
        let (effects, _) = act(&mut cluster, Action::AddDevice(target("node-a")));
        let Order { drive, ordered, incarnation, .. } = effects.orders[0].1;
        let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
        cluster.apply(Event::Answer { session: A, answer }, 0).unwrap();
        cluster
    }

    fn target(serial: &str) -> Target {
        Target { host: None, device: serial.into() }
    }

    fn keys(ground: Ground) -> BTreeSet<RecordKey> {
        match ground {
            Ground::These(keys) => keys,
            Ground::Everything => panic!("it does not rest on everything"),
        }
    }

    /// Applies an event, and gives what its outcome rests on: never less than what was written.
    fn applied(cluster: &mut Cluster, event: Event) -> Result<(Effects, Ground), Refused> {
        let subject = event.subject();
        let effects = cluster.apply(event, 0)?;
        let ground = cluster.ground(&subject, &effects);
        if let Ground::These(keys) = &ground {
            assert!(keys.contains(&RecordKey::Registry), "the term");
            assert!(effects.writes.iter().all(|write| keys.contains(&write.key())), "{keys:?}");
        }
        Ok((effects, ground))
    }

    fn acts(cluster: &mut Cluster, action: Action) -> Ground {
        let event = Event::Act { actions: vec![action], asked_by: "me".into(), dry_run: false };
        applied(cluster, event).unwrap().1
    }

    #[test]
    fn a_word_about_a_drive_rests_on_it_and_its_node_alone() {
        let mut cluster = cluster();
        let node = cluster.drive(DRIVE).unwrap().record.node;
        let own =
            BTreeSet::from([RecordKey::Registry, RecordKey::Node(node), RecordKey::Drive(DRIVE)]);
        for action in [Action::AddDevice(target("node-a")), Action::RemoveDevice(target("node-a"))]
        {
            assert_eq!(keys(acts(&mut cluster, action)), own);
        }
        let (_, order) = cluster.owed(DRIVE).unwrap();
        assert_eq!(keys(cluster.ground_of_order(&order)), own);
        assert_eq!(acts(&mut cluster, Action::AddDevice(target("nobody"))), Ground::Everything);
    }

    #[test]
    fn a_word_about_a_volume_rests_on_its_drive_and_on_who_uses_it() {
        let mut cluster = cluster();
        let volume = volume_on(&mut cluster, A, DRIVE);
        let node = cluster.drive(DRIVE).unwrap().record.node;
        let id = AttachmentId::from_bits(30);
        let request = VolumeRequest::Attach { id, volume, node, read_only: false };
        let event = Event::Volume { request, asked_by: "me".into() };
        let (effects, ground) = applied(&mut cluster, event).unwrap();
        let all = BTreeSet::from([
            RecordKey::Registry,
            RecordKey::Node(node),
            RecordKey::Drive(DRIVE),
            RecordKey::Volume(volume),
            RecordKey::Attachment(id),
        ]);
        assert_eq!(keys(ground), all);
        let [(_, order)] = &effects.volume_orders[..] else { panic!("{effects:?}") };
        assert_eq!(keys(cluster.ground_of_volume_order(order)), all);
        let VolumeOrder::Use(order) = order else { panic!("{order:?}") };
        let UseOrder { grant, incarnation, .. } = *order;
        let (epoch, granted) = (grant.epoch, grant.granted);
        let answer = UseAnswer { volume, incarnation, epoch, granted, result: UseResult::Done };
        applied(&mut cluster, Event::UseAnswer { session: A, answer }).unwrap();
        let attachment = &cluster.volume(volume).unwrap().attachments[&node];
        assert_eq!(attachment.record.state, AttachmentState::Attached);
        // A word about the node rests on all of it as well.
        assert!(keys(cluster.ground_of_node(node)).is_superset(&all));
        is_detached(&mut cluster, volume, &all);
        // That there is no volume rests on its record being gone.
        let other = VolumeId::from_bits(99);
        let gone = BTreeSet::from([RecordKey::Registry, RecordKey::Volume(other)]);
        assert_eq!(keys(cluster.ground_of_volume(other)), gone);
    }

    /// The story: the record of a use that was over could not be removed. Who asked was told that nobody uses the
    /// volume, the registry died, and to the next one it was in use still, by a node that had gone for good meanwhile.
    fn is_detached(cluster: &mut Cluster, volume: VolumeId, all: &BTreeSet<RecordKey>) {
        let request = VolumeRequest::Detach { volume, node: None };
        let event = Event::Volume { request, asked_by: "me".into() };
        let (effects, _) = applied(cluster, event.clone()).unwrap();
        let [(_, VolumeOrder::Use(order))] = &effects.volume_orders[..] else {
            panic!("{effects:?}")
        };
        let UseOrder { grant, incarnation, .. } = *order;
        let (epoch, granted) = (grant.epoch, grant.granted);
        let answer = UseAnswer { volume, incarnation, epoch, granted, result: UseResult::Done };
        applied(cluster, Event::UseAnswer { session: A, answer }).unwrap();
        assert!(cluster.volume(volume).unwrap().attachments.is_empty());
        let (effects, ground) = applied(cluster, event).unwrap();
        assert_eq!((effects.writes, keys(ground)), (vec![], all.clone()));
    }
}

//! A registry rebuilt from labels: any set of them gives conflicts or records that agree with them, and the whole way
//! back, with an agent that knows more than labels do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::agent::{
    Agent, AgentRecord, AttachAtStart, DriveMemory, Identity, RecordFound, UseMemory,
};
use hotbay_core::cluster::{
    AttachmentState, Cluster, Difference, Event, FreshIds, Records, Refused, RegistrationRefused,
    Reply, State, VolumeRequest, VolumeState,
};
use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{
    AttachmentId, ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId,
    VolumeId,
};
use hotbay_core::label::change::{Basis, LabelTold};
use hotbay_core::label::extents::{Extent, Use};
use hotbay_core::message::{Answer, AnswerResult};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::recover::{Choice, Conflict, Plan, Reading};
use hotbay_core::rules::Rules;
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::Grant;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn extent(volume: u128, part: u32, start_mib: u64, mib: u64, usage: Use) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part,
        start_bytes: start_mib * MIB,
        length_bytes: mib * MIB,
        usage,
        formatted: false,
        name: format!("pvc-{}", volume % 5).parse().unwrap(),
        claim: None,
    }
}

fn reading(cluster: u128, drive: u128, serial: u128, extents: Vec<Extent>) -> Reading {
    let label = LabelSeen {
        cluster: ClusterId::from_bits(cluster),
        drive: DriveId::from_bits(drive),
        node: NodeId::from_bits(drive % 2 + 50),
        generation: Generation::from_number(3),
        in_operation: true,
        sequence: 8,
    };
    let evidence = Evidence { serial: Some(format!("S{serial}")), ..Evidence::default() };
    let device = Observed {
        evidence,
        path: format!("/dev/sd{serial}"),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: Some(label),
        denied: Vec::new(),
    };
    Reading { host: "a".into(), device, label, extents, from_third_copy: false }
}

fn lead(records: Records) -> Cluster {
    let (fresh, term) = (ClusterId::from_bits(99), TermId::from_bits(77));
    Cluster::lead(Rules::default(), records, fresh, term).0
}

prop_compose! {
    fn any_extent()(
        volume in 1..12_u128,
        part in prop_oneof![9 => Just(0_u32), 1 => Just(1)],
        start in 2..200_u64,
        mib in prop_oneof![9 => 1..4_u64, 1 => Just(u64::MAX / MIB)],
        used in prop::bool::weighted(0.8),
    ) -> Extent {
        let length_bytes = mib.saturating_mul(MIB);
        let usage = if used { Use::Used } else { Use::Dirty };
        Extent { length_bytes, ..extent(volume, part, start, 1, usage) }
    }
}

prop_compose! {
    fn any_reading()(
        cluster in prop_oneof![12 => Just(1_u128), 1 => Just(2)],
        drive in 1..30_u128,
        other_serial in prop::bool::weighted(0.2),
        in_operation in any::<bool>(),
        extents in prop::collection::vec(any_extent(), 0..4),
    ) -> Reading {
        let serial = if other_serial { drive + 100 } else { drive };
        let mut read = reading(cluster, drive, serial, extents);
        read.label.in_operation = in_operation;
        read
    }
}

/// Whether the labels contradict each other, found the slow way.
fn contradict(drives: &[Reading]) -> bool {
    let used: Vec<(usize, &Extent)> = drives
        .iter()
        .enumerate()
        .flat_map(|(at, read)| read.extents.iter().map(move |extent| (at, extent)))
        .collect();
    let pairs = used
        .iter()
        .enumerate()
        .flat_map(|(at, one)| used[at + 1..].iter().map(move |other| (one, other)));
    let mut clash = pairs.filter(|((at, one), (there, other))| {
        let both = one.usage == Use::Used && other.usage == Use::Used;
        let same_volume = one.volume == other.volume;
        (at == there && one.overlaps(other))
            || (both && same_volume && (at != there || one.part == other.part))
            || (both && !same_volume && one.name == other.name)
    });
    let no_first = used.iter().any(|(at, extent)| {
        let first = |(there, other): &&(usize, &Extent)| {
            there == at
                && other.volume == extent.volume
                && other.usage == Use::Used
                && other.part == 0
        };
        extent.usage == Use::Used && extent.part > 0 && used.iter().find(first).is_none()
    });
    let two_clusters = drives.iter().any(|read| read.label.cluster != drives[0].label.cluster);
    let copied = drives
        .iter()
        .enumerate()
        .any(|(at, one)| drives[at + 1..].iter().any(|other| one.label.drive == other.label.drive));
    two_clusters || copied || no_first || clash.next().is_some()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn labels_give_conflicts_or_records_that_agree_with_them(
        readings in prop::collection::vec(any_reading(), 1..5),
    ) {
        let alike = |one: &Reading, other: &Reading| {
            one.label.drive == other.label.drive && one.device.evidence == other.device.evidence
                && one.label.cluster == other.label.cluster
        };
        // What was read twice is told apart elsewhere.
        let twice = readings.iter().enumerate().any(|(at, one)| {
            readings[at + 1..].iter().any(|other| alike(one, other))
        });
        prop_assume!(!twice);
        match Plan::new(readings.clone(), &Choice::default()) {
            Err(conflicts) => {
                prop_assert!(contradict(&readings), "{conflicts:?}");
                prop_assert!(conflicts.iter().all(|conflict| conflict.to_string().len() > 20));
            }
            Ok(plan) => {
                prop_assert!(!contradict(&readings));
                let cluster = lead(plan.records(5));
                prop_assert_eq!(cluster.id(), readings[0].label.cluster);
                prop_assert_eq!(cluster.drives().count(), readings.len());
                let mut volumes = 0;
                for read in &readings {
                    let drive = cluster.drive(read.label.drive).unwrap();
                    let goal = if read.label.in_operation { Goal::Attach } else { Goal::Detach };
                    prop_assert_eq!(drive.record.state.goal(), goal);
                    prop_assert_eq!(drive.record.generation, read.label.generation);
                    let node = cluster.node(read.label.node).unwrap();
                    prop_assert!(node.drives.contains(&read.label.drive));
                    prop_assert_eq!(drive.record.volumes.len(), read.volumes().len());
                    for extent in read.extents.iter().filter(|extent| extent.usage == Use::Used) {
                        let at = &drive.record.volumes[&extent.volume].parts[extent.part as usize];
                        prop_assert_eq!(at.start_bytes, extent.start_bytes);
                        prop_assert_eq!(at.length_bytes, extent.length_bytes);
                        let volume = cluster.volume(extent.volume).unwrap();
                        prop_assert_eq!(volume.record.state, VolumeState::Created);
                        prop_assert_eq!(&volume.record.name, &extent.name);
                        prop_assert_eq!(volume.drive, Some(read.label.drive));
                    }
                    volumes += read.volumes().len();
                }
                prop_assert_eq!(cluster.volumes_after(None).count(), volumes);
            }
        }
    }
}

#[test]
fn drives_of_two_clusters_need_a_persons_word() {
    let readings = vec![reading(1, 1, 1, vec![]), reading(2, 2, 2, vec![])];
    let refused = Plan::new(readings.clone(), &Choice::default()).unwrap_err();
    let Conflict::SeveralClusters { clusters } = &refused[0] else { panic!("{refused:?}") };
    assert_eq!(clusters.values().copied().collect::<Vec<_>>(), [1, 1]);
    let meant = |bits| Choice { cluster: Some(ClusterId::from_bits(bits)), ..Choice::default() };
    let plan = Plan::new(readings.clone(), &meant(2)).unwrap();
    assert_eq!((plan.drives.len(), plan.left_out), (1, 1));
    let refused = Plan::new(readings, &meant(3)).unwrap_err();
    assert!(matches!(refused[0], Conflict::NoSuchCluster { .. }), "{refused:?}");
    assert_eq!(Plan::new(vec![], &Choice::default()).unwrap_err(), [Conflict::NoDrives]);
}

#[test]
fn what_was_read_twice_counts_once_and_a_copy_is_a_conflict() {
    let mut newer = reading(1, 1, 1, vec![]);
    newer.label.sequence = 9;
    let older = reading(1, 1, 1, vec![]);
    for both in [vec![older.clone(), newer.clone()], vec![newer.clone(), older]] {
        assert_eq!(Plan::new(both, &Choice::default()).unwrap().drives, [newer.clone()]);
    }
    let copied = vec![reading(1, 1, 1, vec![]), reading(1, 1, 2, vec![])];
    let refused = Plan::new(copied.clone(), &Choice::default()).unwrap_err();
    assert!(refused[0].to_string().ends_with("a:/dev/sd1 and a:/dev/sd2: one is a copy"));
    let without = |bits| Choice { without: [DriveId::from_bits(bits)].into(), cluster: None };
    assert_eq!(Plan::new(copied.clone(), &without(1)).unwrap().left_out, 2);
    let refused = Plan::new(copied, &without(7)).unwrap_err();
    assert!(matches!(refused[0], Conflict::NoSuchDrive { .. }));
}

const DRIVE: DriveId = DriveId::from_bits(1);
const NODE: NodeId = NodeId::from_bits(51);
const USED: VolumeId = VolumeId::from_bits(1);
const IDLE: VolumeId = VolumeId::from_bits(2);

/// An agent that has the drive in operation, uses one volume and has used another.
fn agent(read: &Reading) -> Agent {
    agent_told(read, Goal::Attach, read.label.generation)
}

fn agent_told(read: &Reading, goal: Goal, generation: Generation) -> Agent {
    let term = Term { number: 5, id: TermId::from_bits(9) };
    let ordered = Ordered { goal, stamp: Stamp { term, generation } };
    let memory = DriveMemory {
        seen: ordered,
        in_force: Some(ordered),
        evidence: read.device.evidence.clone(),
        take_over: false,
        wipe: None,
        wiped: None,
        given_up: false,
    };
    let seen = |epoch, granted| {
        let epoch = Epoch::from_number(epoch);
        let grant = Grant { epoch, granted, read_only: false, ignore_if_inaccessible: false };
        UseMemory { drive: DRIVE, grant }
    };
    let record = AgentRecord {
        identity: Some(Identity { cluster: ClusterId::from_bits(1), node: NODE }),
        term: Some(term),
        drives: [(DRIVE, memory)].into(),
        volumes: [(USED, seen(4, true)), (IDLE, seen(2, false))].into(),
    };
    let devices = vec![read.device.clone()];
    let (found, at_start) = (RecordFound::Usable(record), AttachAtStart::default());
    Agent::start(Rules::default(), Incarnation::from_bits(5), found, devices, at_start).0
}

fn register(cluster: &mut Cluster, agent: &Agent, session: u64) -> Result<Reply, Refused> {
    let registration = agent.registration("store-1".parse().unwrap(), MachineId::from_bits(8));
    let session = SessionNumber::from_number(session);
    let fresh = FreshIds { node: NodeId::from_bits(700), drives: vec![DriveId::from_bits(701)] };
    let event = Event::Register { session, certificate: None, registration, fresh };
    cluster.apply(event, 0).map(|effects| effects.reply)
}

/// All the way back: the registry is rebuilt, the node is heard, a person lets it count, and everything goes on as it
/// was, above all numbers that the node has seen.
#[test]
fn a_rebuilt_registry_learns_the_rest_from_its_nodes() {
    let extents = vec![
        extent(1, 0, 2, 4, Use::Used),
        extent(2, 0, 8, 2, Use::Used),
        extent(3, 0, 12, 2, Use::Dirty),
    ];
    let read = reading(1, 1, 1, extents.clone());
    let plan = Plan::new(vec![read.clone()], &Choice::default()).unwrap();
    let mut cluster = lead(plan.records(5));
    let mut agent = agent(&read);
    assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Attaching);

    let refused = register(&mut cluster, &agent, 1).unwrap_err();
    let Refused::Registration(RegistrationRefused::RegistryRewound { differences, .. }) = refused
    else {
        panic!("{refused:?}")
    };
    let later: BTreeSet<_> = differences
        .iter()
        .filter_map(|difference| match difference {
            Difference::Epoch { volume, .. } => Some(*volume),
            _ => None,
        })
        .collect();
    assert_eq!(later, [USED, IDLE].into(), "{differences:?}");
    assert_eq!(differences.len(), 3, "and the term: {differences:?}");

    cluster.apply(Event::Adopt { term: TermId::from_bits(78) }, 0).unwrap();
    let Reply::Registered(registered) = register(&mut cluster, &agent, 2).unwrap() else {
        panic!("not registered")
    };
    assert_eq!((registered.node, registered.term.number), (NODE, 6));
    let ordered = registered.allowed[0].ordered;
    assert_eq!(ordered.goal, Goal::Attach);
    let incarnation = registered.allowed[0].incarnation;
    agent.step(hotbay_core::agent::Event::Registered(*registered));
    assert_eq!(agent.in_force(DRIVE), Some(ordered), "the agent takes the order");
    let node = cluster.node(NODE).unwrap();
    assert_eq!(node.record.name.as_str(), "store-1");
    assert!(!node.record.recovered);

    let session = SessionNumber::from_number(2);
    let answer = Answer { drive: DRIVE, ordered, incarnation, result: AnswerResult::Done };
    cluster.apply(Event::Answer { session, answer }, 0).unwrap();
    let basis = Basis { sequence: 8, checksum: 1 };
    let told = LabelTold { basis, extents, limit_bytes: 1 << 30 };
    let effects = cluster.apply(Event::LabelTold { session, drive: DRIVE, told }, 0).unwrap();
    assert_eq!(effects.writes, [], "the label says what is known");
    let states: BTreeMap<_, _> =
        cluster.volumes_after(None).map(|volume| (volume.record.id, volume.record.state)).collect();
    assert_eq!(states, [(USED, VolumeState::Created), (IDLE, VolumeState::Created)].into());

    let used = &cluster.volume(USED).unwrap().attachments[&NODE].record;
    assert_eq!((used.state, used.epoch.get()), (AttachmentState::Attached, 4));
    let id = AttachmentId::from_bits(1);
    let request = VolumeRequest::Attach { id, volume: IDLE, node: NODE, read_only: false };
    cluster.apply(Event::Volume { request, asked_by: "me".into() }, 0).unwrap();
    let idle = &cluster.volume(IDLE).unwrap().attachments[&NODE].record;
    assert_eq!(idle.epoch.get(), 3, "above what the node has seen");
}

/// The node was told to close the drive after what the records are of: nothing was on it then, and whatever turns up on
/// its label after all is found again.
#[test]
fn volumes_of_a_drive_that_was_closed_since_are_lost_until_they_are_found() {
    let extents = vec![extent(1, 0, 2, 4, Use::Used)];
    let read = reading(1, 1, 1, extents.clone());
    let plan = Plan::new(vec![read.clone()], &Choice::default()).unwrap();
    let mut cluster = lead(plan.records(5));
    let agent = agent_told(&read, Goal::Detach, Generation::from_number(4));
    register(&mut cluster, &agent, 1).unwrap_err();
    cluster.apply(Event::Adopt { term: TermId::from_bits(78) }, 0).unwrap();
    let volume = cluster.volume(USED).unwrap();
    assert_eq!((volume.record.state, volume.drive), (VolumeState::Lost, None));
    assert_eq!(volume.record.epoch.get(), 4, "no use is granted twice");
    let drive = cluster.drive(DRIVE).unwrap();
    assert_eq!((drive.record.state, drive.record.volumes.len()), (State::Closing, 0));

    register(&mut cluster, &agent, 2).unwrap();
    let session = SessionNumber::from_number(2);
    let basis = Basis { sequence: 8, checksum: 1 };
    let told = LabelTold { basis, extents, limit_bytes: 1 << 30 };
    cluster.apply(Event::LabelTold { session, drive: DRIVE, told }, 0).unwrap();
    let volume = cluster.volume(USED).unwrap();
    assert_eq!((volume.record.state, volume.drive), (VolumeState::Created, Some(DRIVE)));
}

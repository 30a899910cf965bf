//! What an agent does without being asked: what it opens at its start, how it finishes a release that could not be
//! written when the drive was closed, and that it opens again a drive that was pulled.

use std::collections::BTreeMap;

use hotbay_core::agent::{
    Agent, AgentRecord, AttachAtStart, DriveMemory, Effect, Event, Identity, RecordFound,
};
use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, NodeId, SessionNumber, TermId, VolumeId};
use hotbay_core::label::change::{Basis, Change};
use hotbay_core::message::{AnswerResult, Obstacle, Order, Registered};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::LabelResult;

const IDENTITY: Identity =
    Identity { cluster: ClusterId::from_bits(1), node: NodeId::from_bits(2) };
const DRIVE: DriveId = DriveId::from_bits(3);
const INCARNATION: Incarnation = Incarnation::from_bits(4);
const TERM: Term = Term { number: 1, id: TermId::from_bits(5) };
const GENERATION: Generation = Generation::from_number(6);

const IN_OPERATION: LabelSeen = LabelSeen {
    cluster: IDENTITY.cluster,
    drive: DRIVE,
    node: IDENTITY.node,
    generation: GENERATION,
    in_operation: true,
    sequence: 7,
};
const RELEASED: LabelSeen = LabelSeen { in_operation: false, ..IN_OPERATION };

fn evidence() -> Evidence {
    Evidence { serial: Some("S1".into()), model: Some("M".into()), ..Evidence::default() }
}

fn device(label: LabelSeen) -> Observed {
    Observed {
        evidence: evidence(),
        path: "/dev/sda".into(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 4_096,
        details: Default::default(),
        label: Some(label),
        denied: Vec::new(),
    }
}

/// A record in which the drive is to be closed.
fn removed() -> RecordFound {
    record(Goal::Detach)
}

/// A record in which the drive is to be open.
fn allowed() -> RecordFound {
    record(Goal::Attach)
}

fn record(goal: Goal) -> RecordFound {
    let seen = Ordered { goal, ..detach().ordered };
    let memory = DriveMemory {
        seen,
        in_force: Some(seen),
        evidence: evidence(),
        take_over: false,
        wipe: None,
        wiped: None,
        given_up: false,
    };
    RecordFound::Usable(AgentRecord {
        identity: Some(IDENTITY),
        term: Some(TERM),
        drives: BTreeMap::from([(DRIVE, memory)]),
        ..AgentRecord::default()
    })
}

fn detach() -> Order {
    let stamp = Stamp { term: TERM, generation: GENERATION };
    Order {
        drive: DRIVE,
        ordered: Ordered { goal: Goal::Detach, stamp },
        incarnation: INCARNATION,
        evidence: evidence(),
        take_over: false,
        wipe: None,
        given_up: false,
    }
}

fn start(found: RecordFound, label: LabelSeen, at_start: AttachAtStart) -> (Agent, Vec<Effect>) {
    Agent::start(Rules::default(), INCARNATION, found, vec![device(label)], at_start)
}

fn closed(label: Option<LabelSeen>, result: Result<(), Obstacle>) -> Event {
    Event::Closed { drive: DRIVE, label, result }
}

const PROVE: Effect = Effect::Prove { drive: DRIVE, generation: GENERATION };
const LATER: Effect = Effect::RetryLater(DRIVE);

#[test]
fn a_release_that_could_not_be_written_is_finished_without_being_asked() {
    let (mut agent, effects) = start(removed(), IN_OPERATION, AttachAtStart::Allowed);
    assert_eq!(effects, [PROVE], "the label would have the drive opened, were the record lost");
    let busy = Err(Obstacle::Blocked { by: vec!["fsck (7)".into()] });
    assert_eq!(agent.step(closed(None, busy)), [LATER]);
    assert_eq!(agent.step(Event::Retry(DRIVE)), [PROVE]);
    // Closed and proved, but the label cannot be written: again.
    assert_eq!(agent.step(closed(None, Ok(()))), [LATER]);
    assert_eq!(agent.step(Event::Retry(DRIVE)), [PROVE]);
    assert_eq!(agent.step(closed(Some(RELEASED), Ok(()))), []);
    assert_eq!(agent.step(Event::Retry(DRIVE)), [], "there is nothing left to do");
    assert_eq!(agent.devices()[0].label, Some(RELEASED), "the registry is told what is on it");
}

#[test]
fn a_released_drive_is_left_alone() {
    let (_, effects) = start(removed(), RELEASED, AttachAtStart::Allowed);
    assert_eq!(effects, []);
    // Nor is one that another node, or a later order, has taken meanwhile.
    let elsewhere = LabelSeen { node: NodeId::from_bits(22), ..IN_OPERATION };
    let later = LabelSeen { generation: GENERATION.next(), ..IN_OPERATION };
    for label in [elsewhere, later] {
        assert_eq!(start(removed(), label, AttachAtStart::Allowed).1, []);
    }
}

#[test]
fn an_unreleased_label_does_not_hold_up_the_answer() {
    let (mut agent, _) = start(removed(), RELEASED, AttachAtStart::Allowed);
    register(&mut agent, Vec::new());
    assert_eq!(agent.step(Event::Order(detach())), [PROVE]);
    let told = agent.step(closed(Some(IN_OPERATION), Ok(())));
    assert!(matches!(&told[0], Effect::Send(answer) if answer.result == AnswerResult::Done));
    assert_eq!(told[1..], [LATER]);
}

#[test]
fn all_drives_of_the_node_are_opened_at_the_start_if_so_told() {
    for label in [IN_OPERATION, RELEASED] {
        let (agent, effects) = start(removed(), label, AttachAtStart::All);
        let [Effect::Attach(work)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!((work.drive, work.generation), (DRIVE, GENERATION));
        assert_eq!(work.in_operation, label.in_operation, "the label stays as it is");
        let name = "node-a".parse().unwrap();
        let report = &agent.registration(name, hotbay_core::ids::MachineId::from_bits(8)).drives[0];
        assert!(report.open, "the registry must not take it for closed");
    }
    let elsewhere = LabelSeen { node: NodeId::from_bits(22), ..IN_OPERATION };
    assert_eq!(start(removed(), elsewhere, AttachAtStart::All).1, []);
}

#[test]
fn what_was_opened_at_the_start_is_closed_when_the_registry_says_so() {
    let (mut agent, _) = start(removed(), RELEASED, AttachAtStart::All);
    agent.step(Event::Attached { drive: DRIVE, result: Ok(RELEASED) });
    let effects = register(&mut agent, vec![detach()]);
    let close = Effect::Detach { drive: DRIVE, generation: GENERATION };
    assert_eq!(effects, [Effect::TellLabel(DRIVE), close]);
    let told = agent.step(closed(Some(RELEASED), Ok(())));
    assert!(matches!(&told[..], [Effect::Send(answer)] if answer.result == AnswerResult::Done));
}

/// A drive that was pulled and put back stayed in operation by name only: the agent kept the descriptor of the device
/// that was gone, and every read and write failed.
#[test]
fn a_drive_that_was_pulled_is_opened_anew_when_it_is_back() {
    let (mut agent, _) = start(allowed(), IN_OPERATION, AttachAtStart::Allowed);
    assert_eq!(agent.step(Event::Gone(DRIVE)), [], "the step under way ends first");
    agent.step(Event::Attached { drive: DRIVE, result: Ok(IN_OPERATION) });
    assert_eq!(agent.step(Event::Devices(Vec::new())), []);
    let close = Effect::Detach { drive: DRIVE, generation: GENERATION };
    assert_eq!(agent.step(Event::Gone(DRIVE)), [close]);
    assert_eq!(agent.step(Event::Gone(DRIVE)), [], "once is enough");
    assert_eq!(agent.step(closed(None, Ok(()))), [], "there is nothing to open");
    let effects = agent.step(Event::Devices(vec![device(IN_OPERATION)]));
    assert!(matches!(&effects[..], [Effect::Attach(work)] if work.in_operation), "{effects:?}");
}

#[test]
fn a_drive_with_volumes_stays_open_and_says_so_until_they_are_gone() {
    let (mut agent, _) = start(record(Goal::Attach), IN_OPERATION, AttachAtStart::Allowed);
    agent.step(Event::Attached { drive: DRIVE, result: Ok(IN_OPERATION) });
    register(&mut agent, Vec::new());
    let generation = GENERATION.next();
    let order = |goal, generation| {
        let stamp = Stamp { term: TERM, generation };
        Event::Order(Order { ordered: Ordered { goal, stamp }, ..detach() })
    };
    let close = Effect::Detach { drive: DRIVE, generation };
    agent.step(order(Goal::Detach, generation));
    assert_eq!(agent.step(Event::Saved), std::slice::from_ref(&close));
    let in_use = || Obstacle::InUse { volumes: vec!["pvc-1".into()] };
    let refused = || Event::StillOpen { drive: DRIVE, obstacle: in_use() };
    let told = agent.step(refused());
    let [Effect::Send(answer), later] = &told[..] else { panic!("{told:?}") };
    assert_eq!(answer.result, AnswerResult::Waiting(in_use()));
    assert_eq!(*later, LATER);
    // The same again is not told again.
    assert_eq!(agent.step(Event::Retry(DRIVE)), std::slice::from_ref(&close));
    assert_eq!(agent.step(refused()), [LATER]);

    // It is to stay after all: it was open all the time, and its label is brought up to date.
    agent.step(order(Goal::Attach, generation.next()));
    let effects = agent.step(Event::Saved);
    assert!(matches!(&effects[..], [Effect::Relabel(_)]), "{effects:?}");
}

fn register(agent: &mut Agent, unknown: Vec<Order>) -> Vec<Effect> {
    let Identity { cluster, node } = IDENTITY;
    let session = SessionNumber::from_number(1);
    let allowed = Vec::new();
    agent.step(Event::Registered(Registered {
        session,
        cluster,
        node,
        term: TERM,
        allowed,
        unknown,
    }))
}

#[test]
fn a_filesystem_is_noted_on_the_label_when_nothing_else_is_under_way() {
    let (mut agent, _) = start(allowed(), IN_OPERATION, AttachAtStart::Allowed);
    let (volume, basis) = (VolumeId::from_bits(9), Basis { sequence: 7, checksum: 1 });
    let formatted = || Event::Formatted { drive: DRIVE, volume, basis };
    assert_eq!(agent.step(formatted()), [], "it is not open");
    let attached = Event::Attached { drive: DRIVE, result: Ok(IN_OPERATION) };
    assert_eq!(agent.step(attached), []);
    let effects = agent.step(formatted());
    let [Effect::ChangeLabel { generation: GENERATION, order }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((order.drive, order.basis), (DRIVE, basis));
    assert_eq!(order.changes, [Change::Formatted { volume }]);
    assert_eq!(agent.step(formatted()), [], "it is under way");
    let result = LabelResult::Done { now: Basis { sequence: 8, ..basis } };
    assert_eq!(agent.step(Event::LabelChanged { drive: DRIVE, result }), []);
}

/// A device of another size than it had.
fn of_size(size_bytes: u64) -> Event {
    Event::Devices(vec![Observed { size_bytes, ..device(IN_OPERATION) }])
}

#[test]
fn the_label_of_an_open_drive_follows_its_size() {
    let (mut agent, effects) = start(allowed(), IN_OPERATION, AttachAtStart::Allowed);
    assert!(matches!(effects[..], [Effect::Attach(_)]), "{effects:?}");
    assert_eq!(agent.step(of_size(2 << 30)), [], "a step is under way");
    let attached = || Event::Attached { drive: DRIVE, result: Ok(IN_OPERATION) };
    let relabels =
        |effects: &[Effect]| matches!(effects, [Effect::Relabel(work)] if work.drive == DRIVE);
    let effects = agent.step(attached());
    assert!(relabels(&effects), "it has grown meanwhile: {effects:?}");
    assert_eq!(agent.step(attached()), []);
    assert_eq!(agent.step(of_size(2 << 30)), [], "nothing has changed");
    assert_eq!(agent.step(of_size(0)), [], "nothing could be written");
    assert_eq!(agent.step(of_size(2 << 30)), [], "it is as it was");
    let effects = agent.step(of_size(1 << 30));
    assert!(relabels(&effects), "the registry hears how much room is left: {effects:?}");
    let failed = Err(Obstacle::AttachFailed { error: "I/O error".into() });
    assert_eq!(agent.step(Event::Attached { drive: DRIVE, result: failed }), [LATER]);
    let effects = agent.step(Event::Retry(DRIVE));
    assert!(relabels(&effects), "it is tried again: {effects:?}");
    assert_eq!(agent.step(attached()), []);
}

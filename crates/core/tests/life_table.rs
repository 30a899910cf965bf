//! The table of answers to Add and Remove, row by row: every request in every state, with everything that the agent may
//! have said of the drive.

use std::collections::BTreeMap;

use hotbay_core::cluster::{
    Allocation, Cluster, Contact, Difference, DriveRecord, Event, FreshIds, NodeRecord, Records,
    Refused, RegistrationRefused, RegistryRecord, Reply, State,
};
use hotbay_core::cms::{Action, Code, Target};
use hotbay_core::device::{Denied, DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{
    CertificateNumber, ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId,
    VolumeId,
};
use hotbay_core::message::{
    Answer, AnswerResult, DriveReport, Obstacle, OrderRefused, RecordHealth, Registration,
};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp};
use hotbay_core::rules::Rules;

const CLUSTER: ClusterId = ClusterId::from_bits(1);
const NODE: NodeId = NodeId::from_bits(2);
const DRIVE: DriveId = DriveId::from_bits(3);
const INCARNATION: Incarnation = Incarnation::from_bits(4);
const SESSION: SessionNumber = SessionNumber::from_number(1);
const STATES: [State; 5] =
    [State::Unknown, State::Attaching, State::Attached, State::Closing, State::Detached];

/// What the agent has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// It has not registered.
    Nothing,
    Closed,
    Open,
    Done,
    Waiting,
    Refused,
}

const SAID: [Said; 6] =
    [Said::Nothing, Said::Closed, Said::Open, Said::Done, Said::Waiting, Said::Refused];

/// A drive as the table's rows tell them apart.
#[derive(Debug, Clone, Copy)]
struct Case {
    state: State,
    volumes: bool,
    removal_wanted: bool,
    denied: bool,
    said: Said,
}

/// What a row says: the answer, the state after it, whether the generation rises, whether removal is wanted after it.
type Row = (Code, State, bool, bool);

/// Every case that can be.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for state in STATES {
        for said in SAID {
            for bits in 0..8 {
                let [volumes, removal_wanted, denied] =
                    [bits & 1, bits & 2, bits & 4].map(|bit| bit != 0);
                let case = Case { state, volumes, removal_wanted, denied, said };
                cases.extend(can_be(case).then_some(case));
            }
        }
    }
    cases
}

fn can_be(case: Case) -> bool {
    let wanted = matches!(case.state, State::Attaching | State::Attached);
    let answered = match case.said {
        Said::Nothing | Said::Closed => true,
        // A detached drive that is reported open is closing from then on.
        Said::Open => case.state != State::Detached,
        // An answer that moves the drive leads to another case.
        Said::Done => case.state == State::Attached,
        Said::Waiting | Said::Refused => !matches!(case.state, State::Unknown | State::Detached),
    };
    answered && (wanted || !case.volumes) && (case.volumes || !case.removal_wanted)
}

fn added(case: Case) -> Row {
    match case.state {
        State::Unknown | State::Closing | State::Detached if case.denied => {
            (Code::InvalidState, case.state, false, false)
        }
        State::Unknown | State::Closing | State::Detached => {
            (Code::Ok, State::Attaching, true, false)
        }
        State::Attaching | State::Attached if case.removal_wanted => {
            (Code::Ok, case.state, true, false)
        }
        State::Attaching | State::Attached => (Code::Already, case.state, false, false),
    }
}

fn removed(case: Case) -> Row {
    if case.volumes {
        return (Code::TryAgain, case.state, false, true);
    }
    match case.state {
        State::Attaching | State::Attached => (Code::TryAgain, State::Closing, true, false),
        State::Closing => (Code::TryAgain, State::Closing, false, false),
        State::Detached => (Code::Ok, State::Detached, false, false),
        State::Unknown if case.said == Said::Closed => (Code::Ok, State::Unknown, false, false),
        State::Unknown => (Code::TryAgain, State::Unknown, false, false),
    }
}

#[test]
fn add_is_answered_as_the_table_says() {
    for case in cases() {
        let target = Target { host: None, device: DRIVE.to_string() };
        assert_eq!(asked(case, Action::AddDevice(target)), added(case), "Add: {case:?}");
    }
}

#[test]
fn remove_is_answered_as_the_table_says() {
    for case in cases() {
        let target = Target { host: None, device: DRIVE.to_string() };
        assert_eq!(asked(case, Action::RemoveDevice(target)), removed(case), "Remove: {case:?}");
    }
}

#[test]
fn a_detached_drive_that_is_reported_open_is_closing_again() {
    let case = Case {
        state: State::Detached,
        volumes: false,
        removal_wanted: false,
        denied: false,
        said: Said::Open,
    };
    let cluster = cluster(case);
    let record = &cluster.drive(DRIVE).unwrap().record;
    assert_eq!((record.state, record.generation), (State::Closing, generation(State::Detached)));
}

#[test]
fn what_does_not_exist_is_not_found_and_what_is_malformed_is_an_argument() {
    let case = Case {
        state: State::Attached,
        volumes: false,
        removal_wanted: false,
        denied: false,
        said: Said::Done,
    };
    for (host, device, code) in [
        (None, "no-such-drive", Code::NotFound),
        (Some("no-such-host"), "/dev/x", Code::NotFound),
        (None, "", Code::Argument),
        (None, "a\nb", Code::Argument),
    ] {
        let target = Target { host: host.map(str::to_owned), device: device.to_owned() };
        for action in [Action::AddDevice(target.clone()), Action::RemoveDevice(target)] {
            let expected = (code, State::Attached, false, false);
            assert_eq!(asked(case, action.clone()), expected, "{action:?}");
        }
    }
}

/// A backup from before the drive was known was restored while the drive was being opened for the first time: it had no
/// label yet, the registry took it for a new one, and it stayed open under an id that nobody knew any more.
#[test]
fn a_drive_that_is_open_without_a_label_is_never_taken_for_a_new_one() {
    let (mut cluster, _) =
        Cluster::lead(Rules::default(), Records::default(), CLUSTER, TermId::from_bits(7));
    let stamp = Stamp { term: cluster.term(), generation: Generation::from_number(1) };
    let seen = Ordered { goal: Goal::Attach, stamp };
    cluster.apply(registers(MachineId::from_bits(5), seen, true, false), 0).unwrap();
    assert_eq!(cluster.drives().count(), 1, "it is one drive");
    let record = &cluster.drive(DRIVE).expect("under the id that the node knows").record;
    assert_eq!((record.state, record.generation.get()), (State::Attaching, 2));
}

/// The same, but the registry has seen the drive meanwhile and gave it another id: a person must decide, and then the
/// drive is closed under the id that the registry never knew.
#[test]
fn a_drive_that_is_open_under_another_id_waits_for_a_person_and_is_then_closed() {
    let (mut cluster, _) =
        Cluster::lead(Rules::default(), Records::default(), CLUSTER, TermId::from_bits(7));
    let stamp = Stamp { term: cluster.term(), generation: Generation::from_number(1) };
    let seen = Ordered { goal: Goal::Attach, stamp };
    let Event::Register { session, certificate, mut registration, fresh } =
        registers(MachineId::from_bits(5), seen, true, false)
    else {
        unreachable!()
    };
    let reports = std::mem::take(&mut registration.drives);
    let first = Event::Register { session, certificate, registration: registration.clone(), fresh };
    cluster.apply(first, 0).unwrap();
    registration.drives = reports;
    let again = |session: u64| Event::Register {
        session: SessionNumber::from_number(session),
        certificate,
        registration: registration.clone(),
        fresh: FreshIds { node: NODE, drives: vec![DriveId::from_bits(10)] },
    };
    let refused = cluster.apply(again(20), 0);
    let Err(Refused::Registration(RegistrationRefused::RegistryRewound { differences, .. })) =
        refused
    else {
        panic!("{refused:?}")
    };
    let (theirs, ours) = (Generation::from_number(1), Generation::ZERO);
    assert_eq!(differences, [Difference::Generation { drive: DRIVE, theirs, ours }]);
    cluster.apply(Event::Adopt { term: TermId::from_bits(8) }, 0).unwrap();
    let effects = cluster.apply(again(21), 0).unwrap();
    let Reply::Registered(registered) = effects.reply else { panic!("not registered") };
    let order = registered.unknown.first().expect("it is told to close");
    assert_eq!((order.drive, order.ordered.goal), (DRIVE, Goal::Detach));
}

/// Asks, and says what became of the drive.
fn asked(case: Case, action: Action) -> Row {
    let mut cluster = cluster(case);
    let before = cluster.drive(DRIVE).expect("the drive is known").clone();
    let event = Event::Act { actions: vec![action], asked_by: "test".into(), dry_run: true };
    let dry = cluster.apply(event.clone(), 0).expect("an action is always answered");
    assert_eq!(cluster.drive(DRIVE), Some(&before), "a dry run changed something: {case:?}");
    let Event::Act { actions, asked_by, .. } = event else { unreachable!() };
    let effects = cluster
        .apply(Event::Act { actions, asked_by, dry_run: false }, 0)
        .expect("an action is always answered");
    assert_eq!(effects.reply, dry.reply, "a dry run answers otherwise: {case:?}");
    let Reply::Acted(outcomes) = effects.reply else { panic!("no answer") };
    let after = &cluster.drive(DRIVE).expect("the drive is known").record;
    let raised = after.generation == before.record.generation.next();
    assert!(raised || after.generation == before.record.generation, "{case:?}");
    let orders = usize::from(raised && case.said != Said::Nothing);
    assert_eq!(effects.orders.len(), orders, "an order for every change that the agent can hear");
    (outcomes[0].code, after.state, raised, after.removal_wanted)
}

fn generation(state: State) -> Generation {
    Generation::from_number(if state == State::Unknown { 0 } else { 5 })
}

fn observed(denied: bool) -> Observed {
    Observed {
        evidence: Evidence { wwn: Some("w".into()), ..Evidence::default() },
        path: "/dev/x".into(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 40,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: if denied { vec![Denied::ReadOnly] } else { Vec::new() },
    }
}

/// A registry that knows the drive as the case says, and has heard what the agent said.
fn cluster(case: Case) -> Cluster {
    let name = "n".parse().expect("a plain name");
    let machine = MachineId::from_bits(5);
    let volumes = BTreeMap::from([(VolumeId::from_bits(6), Allocation::default())]);
    let record = DriveRecord {
        id: DRIVE,
        name: "d".into(),
        node: NODE,
        observed: observed(case.denied).into(),
        generation: generation(case.state),
        state: case.state,
        removal_wanted: case.removal_wanted,
        removed_alone: false,
        take_over: false,
        wipe: None,
        added_bytes: 0,
        volumes: if case.volumes { volumes } else { BTreeMap::new() },
        since_ms: 0,
        asked_by: String::new(),
    };
    let records = Records {
        registry: Some(RegistryRecord {
            cluster: CLUSTER,
            terms: Vec::new(),
            newest_certificate: CertificateNumber::default(),
        }),
        nodes: vec![NodeRecord::new(NODE, name, machine)],
        drives: vec![record],
        ..Records::default()
    };
    let term = TermId::from_bits(7);
    let (mut cluster, _) = Cluster::lead(Rules::default(), records, CLUSTER, term);
    if case.said != Said::Nothing {
        register(&mut cluster, case, machine);
    }
    let result = match case.said {
        Said::Nothing | Said::Closed | Said::Open => return cluster,
        Said::Done => AnswerResult::Done,
        Said::Waiting => AnswerResult::Waiting(Obstacle::DeviceMissing),
        Said::Refused => AnswerResult::Refused(OrderRefused::Evidence),
    };
    let stamp = Stamp { term: cluster.term(), generation: generation(case.state) };
    let ordered = Ordered { goal: case.state.goal(), stamp };
    let answer = Answer { drive: DRIVE, ordered, incarnation: INCARNATION, result };
    cluster.apply(Event::Answer { session: SESSION, answer }, 0).expect("the answer counts");
    assert_ne!(cluster.drive(DRIVE).expect("the drive is known").contact, Contact::Silent);
    cluster
}

fn register(cluster: &mut Cluster, case: Case, machine: MachineId) {
    let stamp = Stamp { term: cluster.term(), generation: generation(case.state) };
    let seen = Ordered { goal: case.state.goal(), stamp };
    let event = registers(machine, seen, case.said == Said::Open, case.denied);
    cluster.apply(event, 0).expect("the agent may register");
}

/// A registration of the node, with the drive and no label on it.
fn registers(machine: MachineId, seen: Ordered, open: bool, denied: bool) -> Event {
    let registration = Registration {
        node: Some(NODE),
        name: "n".parse().expect("a plain name"),
        machine,
        incarnation: INCARNATION,
        cluster: Some(CLUSTER),
        newest_term: None,
        record: RecordHealth::Usable,
        drives: vec![DriveReport {
            drive: DRIVE,
            seen: Some(seen),
            evidence: observed(denied).evidence,
            label: None,
            open,
        }],
        devices: vec![observed(denied)],
        conditions: vec![],
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    };
    let fresh = FreshIds { node: NODE, drives: vec![DriveId::from_bits(9)] };
    Event::Register { session: SESSION, certificate: None, registration, fresh }
}

//! Every row of the table of a take-over, and what becomes of an old node that comes back.

use super::{Holder, NotTakenOver};
use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
use crate::cluster::testing::{
    DRIVE, act, device, lead, register, registered, says, store, volume_on,
};
use crate::cluster::{
    Cluster, Effects, Event, Ground, Newcomer, RecordKey, Records, Refused, Reply, State,
    StateHash, Subject,
};
use crate::cms::{Action, Code, Outcome, Reason, TakeOver, Target};
use crate::device::{Denied, LabelSeen, Observed};
use crate::ids::{DriveId, Incarnation, SessionNumber, TermId};
use crate::message::{Answer, AnswerResult, DriveReport, Obstacle, Order, Registration};
use crate::order::{Generation, Goal};
use crate::rules::Rules;

pub(super) const A: SessionNumber = SessionNumber::from_number(1);
const B: SessionNumber = SessionNumber::from_number(2);

pub(super) fn at(path: &str) -> Observed {
    Observed { path: path.into(), ..device("S1") }
}

pub(super) fn agent(devices: Vec<Observed>) -> Agent {
    let (rules, start) = (Rules::default(), Incarnation::from_bits(5));
    Agent::start(rules, start, RecordFound::Absent(None), devices, AttachAtStart::default()).0
}

pub(super) fn target(device: &str) -> Target {
    Target { host: None, device: device.into() }
}

fn wish(device: &str, serial: &str, state: Option<StateHash>) -> Action {
    Action::TakeOver(TakeOver { target: target(device), serial: serial.into(), state })
}

fn take_over(cluster: &mut Cluster) -> (Effects, Outcome) {
    act(cluster, wish("node-b:/dev/sdb", "S1", None))
}

pub(super) fn reports(
    cluster: &mut Cluster,
    session: SessionNumber,
    devices: Vec<Observed>,
) -> Effects {
    let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
    cluster.apply(Event::Devices { session, devices, conditions: vec![], fresh }, 0).unwrap()
}

pub(super) fn done(
    cluster: &mut Cluster,
    session: SessionNumber,
    order: &Order,
) -> Result<Effects, Refused> {
    let Order { drive, ordered, incarnation, .. } = *order;
    let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
    cluster.apply(Event::Answer { session, answer }, 0)
}

fn place(cluster: &Cluster) -> (String, State, u64) {
    let record = &cluster.drive(DRIVE).unwrap().record;
    let node = cluster.node(record.node).unwrap().record.name.to_string();
    (node, record.state, record.generation.get())
}

/// The drive is in operation on node-a, and node-b reports it too.
fn in_operation() -> (Cluster, Agent) {
    let (mut cluster, _) = lead(Records::default(), 1);
    let mut agent_a = agent(vec![at("/dev/sda")]);
    let effects = register(&mut cluster, 1, says(&agent_a, "node-a")).unwrap();
    agent_a.step(AgentEvent::Registered(registered(&effects)));
    let (effects, _) = act(&mut cluster, Action::AddDevice(target("S1")));
    let order = effects.orders[0].1.clone();
    agent_a.step(AgentEvent::Order(order.clone()));
    done(&mut cluster, A, &order).unwrap();
    register(&mut cluster, 2, says(&agent(vec![at("/dev/sdb")]), "node-b")).unwrap();
    assert_eq!(place(&cluster), ("node-a".into(), State::Attached, 1));
    (cluster, agent_a)
}

pub(super) fn goes_silent(cluster: &mut Cluster, session: SessionNumber, now_ms: u64) {
    cluster.apply(Event::SessionClosed(session), now_ms).unwrap();
}

fn why(outcome: &Outcome) -> &NotTakenOver {
    assert_eq!(outcome.code, Code::InvalidState, "{outcome:?}");
    match &outcome.reasons[..] {
        [Reason::NotTakenOver(why)] => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drive_that_its_node_still_reports_is_not_taken_over() {
    let (mut cluster, _) = in_operation();
    let before = cluster.clone();
    let (effects, outcome) = take_over(&mut cluster);
    let (drive, node) = ("d-00000000".to_owned(), "node-a".to_owned());
    let path = "/dev/sda".to_owned();
    assert_eq!(*why(&outcome), NotTakenOver::HolderHasIt { drive, node, path });
    assert!(outcome.reasons[0].to_string().contains("hotbay drive remove d-00000000"));
    assert!(effects.writes.is_empty() && effects.orders.is_empty() && cluster == before);
}

#[test]
fn a_drive_that_was_pulled_in_operation_goes_where_it_is() {
    let (mut cluster, mut agent_a) = in_operation();
    reports(&mut cluster, A, vec![]);
    let (effects, outcome) = take_over(&mut cluster);
    assert_eq!((outcome.code, outcome.drive), (Code::Ok, Some(DRIVE)));
    let lost = Reason::TakenFrom { node: "node-a".into(), holder: Holder::Lost };
    assert_eq!(outcome.reasons, [lost]);
    assert_eq!(place(&cluster), ("node-b".into(), State::Attaching, 3));
    assert_eq!(cluster.newcomers().count(), 0);
    let drive = cluster.drive(DRIVE).unwrap();
    assert!(drive.present && drive.record.take_over && drive.record.asked_by == "me");
    assert_eq!(drive.record.observed.path, "/dev/sdb");
    assert_eq!((drive.record.name.as_str(), drive.record.id), ("d-00000000", DRIVE));
    // One order each: the old node closes, the new one attaches.
    let [(to_a, close), (to_b, attach)] = &effects.orders[..] else { panic!("{effects:?}") };
    assert_eq!((*to_a, close.ordered.goal, close.take_over), (A, Goal::Detach, false));
    assert_eq!((*to_b, attach.ordered.goal, attach.take_over), (B, Goal::Attach, true));
    agent_a.step(AgentEvent::Order(close.clone()));
    assert_eq!(agent_a.in_force(DRIVE).map(|ordered| ordered.goal), Some(Goal::Detach));
    let told = &effects.notices[0];
    assert!(told.warning && told.text.contains("taken over from node-a, asked by me"), "{told:?}");
    done(&mut cluster, B, attach).unwrap();
    assert_eq!(place(&cluster), ("node-b".into(), State::Attached, 3));
    assert!(!cluster.drive(DRIVE).unwrap().record.take_over, "void from here on");
}

/// It was told to close what has come back to it since, with every report of its devices.
#[test]
fn a_node_that_gets_a_drive_back_is_not_told_to_close_it() {
    let (mut cluster, _) = in_operation();
    reports(&mut cluster, A, vec![]);
    let (effects, _) = take_over(&mut cluster);
    done(&mut cluster, B, &effects.orders[1].1).unwrap();
    reports(&mut cluster, B, vec![]);
    let told_again = reports(&mut cluster, A, vec![at("/dev/sda")]);
    assert_eq!(told_again.orders[0].1.ordered.goal, Goal::Detach, "it is node-b's");
    let (_, outcome) = act(&mut cluster, wish("node-a:/dev/sda", "S1", None));
    assert_eq!((outcome.code, place(&cluster).0.as_str()), (Code::Ok, "node-a"));
    assert_eq!(reports(&mut cluster, A, vec![at("/dev/sda")]).orders, []);
}

/// It was told so under the generation that attaches the drive to its new node, and its next registration looked as if
/// the registry had gone back in time.
#[test]
fn an_old_node_that_lost_its_record_sees_no_generation_with_two_goals() {
    let (mut cluster, _) = in_operation();
    goes_silent(&mut cluster, A, 0);
    let (effects, _) = take_over(&mut cluster);
    done(&mut cluster, B, &effects.orders[0].1).unwrap();
    // Opened by its label; and the drive is not there any more.
    let (seen, evidence, label) = (None, Default::default(), None);
    let report = DriveReport { drive: DRIVE, seen, evidence, label, open: true };
    let mut agent_a = agent(vec![]);
    let said = Registration { drives: vec![report], ..says(&agent_a, "node-a") };
    let effects = register(&mut cluster, 3, said).unwrap();
    let close = registered(&effects).unknown.remove(0);
    assert!(close.ordered.stamp.generation.get() < place(&cluster).2);
    agent_a.step(AgentEvent::Registered(registered(&effects)));
    assert_eq!(agent_a.in_force(DRIVE), Some(close.ordered));
    register(&mut cluster, 4, says(&agent_a, "node-a")).unwrap();
}

#[test]
fn the_word_of_a_person_stands_for_a_node_that_is_silent() {
    for closing in [false, true] {
        let (mut cluster, _) = in_operation();
        goes_silent(&mut cluster, A, 1_000);
        if closing {
            act(&mut cluster, Action::RemoveDevice(target("S1")));
        }
        let event = |dry_run| Event::Act {
            actions: vec![wish("node-b:/dev/sdb", "S1", None)],
            asked_by: "me".into(),
            dry_run,
        };
        let dry = cluster.apply(event(true), 181_000).unwrap();
        assert!(dry.writes.is_empty() && dry.orders.is_empty());
        let real = cluster.apply(event(false), 181_000).unwrap();
        assert_eq!(dry.reply, real.reply, "a dry run cannot differ");
        let Reply::Acted(outcomes) = real.reply else { panic!("not acted") };
        assert_eq!(outcomes[0].code, Code::Ok);
        let told = outcomes[0].reasons[0].to_string();
        assert!(told.starts_with("node-a has not been heard for 3 min; if it still"), "{told}");
        assert_eq!((place(&cluster).0.as_str(), place(&cluster).1), ("node-b", State::Attaching));
    }
}

#[test]
fn volumes_come_along() {
    let (mut cluster, _) = in_operation();
    let volume = volume_on(&mut cluster, A, DRIVE);
    act(&mut cluster, Action::RemoveDevice(target("S1")));
    goes_silent(&mut cluster, A, 0);
    let (_, outcome) = take_over(&mut cluster);
    assert_eq!(outcome.reasons[1], Reason::VolumesComeAlong { volumes: 1 });
    let record = &cluster.drive(DRIVE).unwrap().record;
    assert!(record.volumes.contains_key(&volume) && !record.removal_wanted);
    let (_, outcome) = act(&mut cluster, Action::RemoveDevice(target("S1")));
    assert_eq!(outcome.dependent, [volume], "it counts where it is now");
}

#[test]
fn what_is_not_meant_or_not_known_is_refused_and_changes_nothing() {
    let (mut cluster, _) = in_operation();
    goes_silent(&mut cluster, A, 0);
    let newcomer = cluster.newcomers().next().unwrap().clone();
    let seen = cluster.newcomer_state(&newcomer);
    let mut other = reports_another(&mut cluster);
    let before = cluster.clone();
    let (given, expected) = ("S2".to_owned(), "S1".to_owned());
    let changed = NotTakenOver::Changed { now: cluster.newcomer_state(&other) };
    for (action, expected) in [
        (wish("node-b:/dev/sdb", "S2", None), NotTakenOver::OtherSerial { given, expected }),
        (wish("node-b:/dev/sdb", "S1", Some(seen)), changed),
    ] {
        let (effects, outcome) = act(&mut cluster, action);
        assert_eq!(*why(&outcome), expected);
        assert!(effects.writes.is_empty() && effects.orders.is_empty() && cluster == before);
    }
    let (_, outcome) = act(&mut cluster, wish("d-00000000", "S1", None));
    let here = "node-b:/dev/sdb".to_owned();
    let drive = "d-00000000".to_owned();
    assert_eq!(*why(&outcome), NotTakenOver::WhereIsIt { drive, here });
    let (_, outcome) = act(&mut cluster, wish("node-b:/dev/sdq", "S1", None));
    assert_eq!(outcome.code, Code::NotFound);
    // What the new node cannot use, it is not given.
    other.device.denied = vec![Denied::ReadOnly];
    reports(&mut cluster, B, vec![other.device]);
    assert_eq!(take_over(&mut cluster).1.reasons, [Reason::Denied(Denied::ReadOnly)]);
    reports(&mut cluster, B, vec![at("/dev/sdb")]);
    goes_silent(&mut cluster, B, 0);
    assert_eq!(take_over(&mut cluster).1.reasons, [Reason::AgentUnreachable]);
}

/// The newcomer has become larger since somebody looked at it.
fn reports_another(cluster: &mut Cluster) -> Newcomer {
    reports(cluster, B, vec![Observed { size_bytes: 1 << 31, ..at("/dev/sdb") }]);
    cluster.newcomers().next().unwrap().clone()
}

#[test]
fn a_nodes_own_drive_is_added_and_not_taken_over() {
    let (mut cluster, _) = lead(Records::default(), 1);
    register(&mut cluster, 1, says(&agent(vec![at("/dev/sdb")]), "node-b")).unwrap();
    let (_, outcome) = take_over(&mut cluster);
    assert!(matches!(why(&outcome), NotTakenOver::NotElsewhere { .. }), "{outcome:?}");
    assert!(outcome.reasons[0].to_string().contains("hotbay drive add d-00000000"));
    act(&mut cluster, Action::AddDevice(target("S1")));
    assert_eq!(take_over(&mut cluster).1.code, Code::Already);
    // Its twin in the same machine is no drive of another node.
    reports(&mut cluster, A, vec![at("/dev/sdb"), at("/dev/sdc")]);
    let (_, outcome) = act(&mut cluster, wish("node-b:/dev/sdc", "S1", None));
    assert!(matches!(why(&outcome), NotTakenOver::SameNode { .. }), "{outcome:?}");
}

fn label_of(cluster: &Cluster, drive: DriveId, generation: u64) -> Option<LabelSeen> {
    Some(LabelSeen {
        cluster: cluster.id(),
        drive,
        node: cluster.drive(DRIVE).unwrap().record.node,
        generation: Generation::from_number(generation),
        in_operation: true,
        sequence: 1,
    })
}

#[test]
fn a_copy_is_not_taken_over_and_of_two_that_look_alike_neither() {
    let (mut cluster, _) = in_operation();
    goes_silent(&mut cluster, A, 0);
    let label = label_of(&cluster, DRIVE, 1);
    let copy = Observed { path: "/dev/sdb".into(), label, ..device("S2") };
    reports(&mut cluster, B, vec![copy]);
    let (_, outcome) = act(&mut cluster, wish("node-b:/dev/sdb", "S2", None));
    assert!(matches!(why(&outcome), NotTakenOver::Copy { .. }), "{outcome:?}");
    reports(&mut cluster, B, vec![at("/dev/sdb"), at("/dev/sdc")]);
    let (_, outcome) = take_over(&mut cluster);
    assert!(matches!(outcome.reasons[..], [Reason::Obstacle(Obstacle::LooksAlike { .. })]));
    // The label tells which one it is.
    reports(&mut cluster, B, vec![Observed { label, ..at("/dev/sdb") }, at("/dev/sdc")]);
    let (_, outcome) = act(&mut cluster, wish("node-b:/dev/sdc", "S1", None));
    assert!(matches!(outcome.reasons[..], [Reason::Obstacle(Obstacle::LooksAlike { .. })]));
    assert_eq!(take_over(&mut cluster).1.code, Code::Ok);
}

/// The story: a drive was taken over from a node that was away, and its record could not be written. The node came back
/// and was told to close the drive, under a generation that was in no record: the registry died, and the next one was
/// refused by that node as one that had gone back in time.
#[test]
fn the_answer_to_an_old_node_rests_on_the_drive_that_was_taken_from_it() {
    let (mut cluster, mut agent_a) = in_operation();
    agent_a.step(AgentEvent::SessionLost);
    goes_silent(&mut cluster, A, 0);
    take_over(&mut cluster);
    let effects = register(&mut cluster, 3, says(&agent_a, "node-a")).unwrap();
    assert_eq!(registered(&effects).unknown[0].drive, DRIVE);
    let subject = Subject::Session(SessionNumber::from_number(3));
    let Ground::These(keys) = cluster.ground(&subject, &effects) else { panic!("not on all") };
    assert!(keys.contains(&RecordKey::Drive(DRIVE)), "{keys:?}");
}

/// node-a was silent, node-b has the drive now; every later word of node-a is in this test.
#[test]
fn an_old_node_that_comes_back_is_told_to_close_and_changes_nothing() {
    let (mut cluster, mut agent_a) = in_operation();
    let attached_by_a = {
        let (_, order) = cluster.owed(DRIVE).unwrap_or_else(|| {
            let drive = cluster.drive(DRIVE).unwrap();
            (A, cluster.order_for(drive, Incarnation::from_bits(5)))
        });
        order
    };
    agent_a.step(AgentEvent::SessionLost);
    goes_silent(&mut cluster, A, 0);
    let (effects, _) = take_over(&mut cluster);
    let attach = effects.orders[0].1.clone();
    done(&mut cluster, B, &attach).unwrap();
    assert_eq!(take_over(&mut cluster).1.code, Code::Already, "asked again");
    let record = cluster.drive(DRIVE).unwrap().record.clone();

    // It has lost the drive, and then it sees it too: dual port, or a clone.
    let label = Some(LabelSeen { node: record.node, ..label_of(&cluster, DRIVE, 3).unwrap() });
    for (session, devices) in [(3, vec![]), (4, vec![Observed { label, ..at("/dev/sda") }])] {
        let newcomers = devices.len();
        agent_a.step(AgentEvent::Devices(devices.clone()));
        let effects = register(&mut cluster, session, says(&agent_a, "node-a")).unwrap();
        let answer = registered(&effects);
        assert!(answer.allowed.is_empty(), "{answer:?}");
        let [close] = &answer.unknown[..] else { panic!("{answer:?}") };
        assert_eq!((close.ordered.goal, close.take_over), (Goal::Detach, false));
        assert!(close.ordered.stamp.generation < record.generation);
        assert!(close.given_up, "volumes on its label, if it brought that back, keep nothing open");
        assert_eq!(cluster.newcomers().count(), newcomers);
        // Neither what it did before nor what it does now counts.
        let session = SessionNumber::from_number(session);
        assert_eq!(done(&mut cluster, session, &attached_by_a), Err(Refused::StaleAnswer));
        assert_eq!(done(&mut cluster, session, close), Err(Refused::StaleAnswer));
        let told_again = reports(&mut cluster, session, devices);
        assert_eq!(told_again.orders, [(session, close.clone())]);
        assert_eq!(cluster.drive(DRIVE).unwrap().record, record);
        goes_silent(&mut cluster, session, 0);
    }
    // It takes the order, and comes back before it has got to it: it is told the same, and no more than that.
    let effects = register(&mut cluster, 5, says(&agent_a, "node-a")).unwrap();
    let close = registered(&effects).unknown.remove(0);
    agent_a.step(AgentEvent::Registered(registered(&effects)));
    assert_eq!(agent_a.in_force(DRIVE), Some(close.ordered));
    let mut says_open = says(&agent_a, "node-a");
    says_open.drives[0].open = true;
    let effects = register(&mut cluster, 6, says_open).unwrap();
    assert_eq!(registered(&effects).unknown, [close]);
    // What it has seen is not newer than the registry.
    let effects = register(&mut cluster, 7, says(&agent_a, "node-a")).unwrap();
    assert!(registered(&effects).unknown.is_empty());
    assert_eq!(cluster.drive(DRIVE).unwrap().record, record);
}

#[test]
fn a_take_over_outlives_the_registry() {
    let (cluster, agent_a) = in_operation();
    let mut disk = Records {
        registry: Some(cluster.registry.clone()),
        nodes: cluster.nodes().map(|node| node.record.clone()).collect(),
        drives: cluster.drives().map(|drive| drive.record.clone()).collect(),
        ..Records::default()
    };
    let (mut cluster, writes) = lead(disk.clone(), 2);
    store(&mut disk, writes);
    let agent_b = agent(vec![at("/dev/sdb")]);
    register(&mut cluster, 2, says(&agent_b, "node-b")).unwrap();
    let (effects, outcome) = take_over(&mut cluster);
    let told = outcome.reasons[0].to_string();
    assert!(told.contains("not been heard since the registry started"), "{told}");
    store(&mut disk, effects.writes);
    let (mut cluster, _) = lead(disk, 3);
    let effects = register(&mut cluster, 3, says(&agent_a, "node-a")).unwrap();
    assert!(registered(&effects).allowed.is_empty());
    let effects = register(&mut cluster, 4, says(&agent_b, "node-b")).unwrap();
    assert!(registered(&effects).allowed[0].take_over);
}

/// A backup from before the take-over is restored: the drive stays where it was taken to.
#[test]
fn a_restored_registry_adopts_the_node_that_was_told_last() {
    let (mut cluster, mut agent_a) = in_operation();
    let mut agent_b = agent(vec![at("/dev/sdb")]);
    let effects = register(&mut cluster, 3, says(&agent_b, "node-b")).unwrap();
    agent_b.step(AgentEvent::Registered(registered(&effects)));
    let backup = Records {
        registry: Some(cluster.registry.clone()),
        nodes: cluster.nodes().map(|node| node.record.clone()).collect(),
        drives: cluster.drives().map(|drive| drive.record.clone()).collect(),
        ..Records::default()
    };
    goes_silent(&mut cluster, A, 0);
    let (effects, _) = take_over(&mut cluster);
    agent_b.step(AgentEvent::Order(effects.orders[0].1.clone()));
    agent_a.step(AgentEvent::SessionLost);
    agent_b.step(AgentEvent::SessionLost);

    let (mut restored, _) = lead(backup, 2);
    register(&mut restored, 1, says(&agent_b, "node-b")).expect_err("it knows more");
    restored.apply(Event::Adopt { term: TermId::from_bits(8) }, 0).unwrap();
    assert_eq!(place(&restored), ("node-b".into(), State::Attaching, 4));
    let effects = register(&mut restored, 2, says(&agent_a, "node-a")).unwrap();
    assert_eq!(registered(&effects).unknown[0].ordered.goal, Goal::Detach);
    let effects = register(&mut restored, 3, says(&agent_b, "node-b")).unwrap();
    assert_eq!(registered(&effects).allowed.len(), 1);
}

/// The drive was pulled in operation, then removed, then put into node-b: the label still has node-a's name.
#[test]
fn a_label_that_another_node_holds_can_be_taken_over_on_the_nodes_own_drive() {
    let (mut cluster, _) = in_operation();
    let label = label_of(&cluster, DRIVE, 1);
    reports(&mut cluster, B, vec![]);
    reports(&mut cluster, A, vec![]);
    let (effects, _) = act(&mut cluster, Action::RemoveDevice(target("S1")));
    done(&mut cluster, A, &effects.orders[0].1).unwrap();
    let effects = reports(&mut cluster, B, vec![Observed { label, ..at("/dev/sdb") }]);
    done(&mut cluster, B, &effects.orders[0].1).unwrap();
    assert_eq!(place(&cluster), ("node-b".into(), State::Detached, 2));
    assert!(cluster.held_by_label(DRIVE).is_some());
    let (effects, _) = act(&mut cluster, Action::AddDevice(target("S1")));
    assert!(!effects.orders[0].1.take_over, "nobody said so");
    let (effects, outcome) = take_over(&mut cluster);
    assert_eq!(outcome.code, Code::Ok, "{outcome:?}");
    let (to, attach) = effects.orders.last().unwrap();
    assert_eq!((*to, attach.take_over), (B, true));
    done(&mut cluster, B, &attach.clone()).unwrap();
    assert_eq!(cluster.held_by_label(DRIVE), None);
}

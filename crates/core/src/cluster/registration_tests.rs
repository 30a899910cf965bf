//! A drive that is out of operation, and an agent or a label that does not bear it out: it is closed once more before
//! anybody hears that it is. And a registration that comes twice.

use crate::agent::{Agent, AttachAtStart, RecordFound};
use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says, volume_on};
use crate::cluster::{Cluster, Effects, Event, Records, State, VolumeRequest};
use crate::cms::{Action, Code, Target};
use crate::device::{LabelSeen, Observed};
use crate::ids::{ClusterId, DriveId, Incarnation, NodeId, SessionNumber};
use crate::message::{Answer, AnswerResult, Order, RecordHealth, Registration};
use crate::rules::Rules;

const SESSION: SessionNumber = SessionNumber::from_number(1);

/// Starts without a record.
fn agent(devices: Vec<Observed>) -> Agent {
    let (rules, start) = (Rules::default(), Incarnation::from_bits(5));
    Agent::start(rules, start, RecordFound::Absent(None), devices, AttachAtStart::default()).0
}

fn target() -> Target {
    Target { host: Some("node-a".into()), device: "S1".into() }
}

fn done(cluster: &mut Cluster, session: SessionNumber, order: &Order) {
    let Order { drive, ordered, incarnation, .. } = *order;
    let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
    cluster.apply(Event::Answer { session, answer }, 0).unwrap();
}

/// The drive was in operation and was pulled; then it was removed, and proved to be closed: nobody has it open. Its
/// label could not be told.
fn pulled_and_removed() -> Cluster {
    let (mut cluster, _) = lead(Records::default(), 1);
    register(&mut cluster, 1, says(&agent(vec![device("S1")]), "node-a")).unwrap();
    for action in [Action::AddDevice(target()), Action::RemoveDevice(target())] {
        let (effects, _) = act(&mut cluster, action);
        reports(&mut cluster, vec![]);
        done(&mut cluster, SESSION, &effects.orders[0].1);
        reports(&mut cluster, vec![device("S1")]);
    }
    reports(&mut cluster, vec![]);
    assert_eq!(state(&cluster), State::Detached);
    cluster
}

fn reports(cluster: &mut Cluster, devices: Vec<Observed>) -> Effects {
    let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
    let event = Event::Devices { session: SESSION, devices, conditions: vec![], fresh };
    cluster.apply(event, 0).unwrap()
}

fn state(cluster: &Cluster) -> State {
    cluster.drive(DRIVE).unwrap().record.state
}

fn removal(cluster: &mut Cluster) -> Code {
    act(cluster, Action::RemoveHost { host: "node-a".into() }).1.code
}

/// A child of an earlier start may have it, opened by its label: only a record, or a proof, says that none has.
#[test]
fn an_agent_without_a_record_proves_what_is_out_of_operation() {
    let mut cluster = pulled_and_removed();
    assert_eq!(removal(&mut cluster), Code::Ok);
    let effects = register(&mut cluster, 2, says(&agent(vec![]), "node-a")).unwrap();
    assert_eq!((state(&cluster), effects.writes.len()), (State::Closing, 1));
    assert_eq!(removal(&mut cluster), Code::TryAgain);
    let [order] = registered(&effects).unknown.try_into().unwrap();
    done(&mut cluster, SessionNumber::from_number(2), &order);
    assert_eq!((state(&cluster), removal(&mut cluster)), (State::Detached, Code::Ok));
}

#[test]
fn an_agent_with_its_record_is_believed() {
    let mut cluster = pulled_and_removed();
    let said = Registration { record: RecordHealth::Usable, ..says(&agent(vec![]), "node-a") };
    let effects = register(&mut cluster, 2, said).unwrap();
    assert_eq!((state(&cluster), effects.writes.len()), (State::Detached, 0));
    assert_eq!(removal(&mut cluster), Code::Ok);
}

/// The next agent that starts without a record would open it.
#[test]
fn a_drive_that_comes_back_with_a_label_in_operation_is_closed_again() {
    let mut cluster = pulled_and_removed();
    let drive = cluster.drive(DRIVE).unwrap();
    let (node, generation) = (drive.record.node, drive.record.generation);
    let (drive, sequence) = (DRIVE, 1);
    let seen = |node, in_operation| {
        let cluster = ClusterId::from_bits(1);
        Some(LabelSeen { cluster, drive, node, generation, in_operation, sequence })
    };
    for label in [None, seen(node, false), seen(NodeId::from_bits(99), true)] {
        let effects = reports(&mut cluster, vec![Observed { label, ..device("S1") }]);
        assert_eq!((state(&cluster), effects.orders.len()), (State::Detached, 0), "{label:?}");
        reports(&mut cluster, vec![]);
    }
    let label = seen(node, true);
    let effects = reports(&mut cluster, vec![Observed { label, ..device("S1") }]);
    assert_eq!((state(&cluster), effects.writes.len()), (State::Closing, 1));
    assert_eq!(removal(&mut cluster), Code::TryAgain);
    done(&mut cluster, SESSION, &effects.orders[0].1);
    // A label that cannot be written, as of a drive that has become read-only, is no reason to go on for ever.
    let effects = reports(&mut cluster, vec![Observed { label, ..device("S1") }]);
    assert_eq!((state(&cluster), effects.writes.len()), (State::Detached, 0));
}

/// The story: a registration arrived twice in its session, and the answer to the second was lost. The registry had
/// forgotten the labels with it; the agent, which was registered, had told them and told them no more. No volume of
/// the node could be made or deleted until another session, and no drive with a volume be removed.
#[test]
fn a_registration_that_comes_twice_in_a_session_forgets_no_label() {
    let (mut cluster, _) = lead(Records::default(), 1);
    let said = says(&agent(vec![device("S1")]), "node-a");
    register(&mut cluster, 1, said.clone()).unwrap();
    let (effects, _) = act(&mut cluster, Action::AddDevice(target()));
    done(&mut cluster, SESSION, &effects.orders[0].1);
    let volume = volume_on(&mut cluster, SESSION, DRIVE);

    register(&mut cluster, 1, said.clone()).unwrap();
    let (_, again) = cluster.owed(DRIVE).expect("it is asked again whether the drive is open");
    done(&mut cluster, SESSION, &again);
    let request = VolumeRequest::Delete { volume };
    let deleted = cluster.apply(Event::Volume { request, asked_by: "me".into() }, 0).unwrap();
    assert_eq!(deleted.volume_orders.len(), 1, "the label is told to free it");

    // Another session knows nothing of what may have happened to the label since.
    register(&mut cluster, 2, said).unwrap();
    assert!(cluster.drive(DRIVE).unwrap().space.is_none());
}

//! Two registries on copies of one store, and an agent that has served one of them.

use super::Difference;
use crate::agent::{Agent, AttachAtStart, Effect, Event, Kept, RecordFound};
use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says, store};
use crate::cluster::{
    Cluster, Event as Asked, Records, Refused, RegistrationRefused as Why, State,
};
use crate::cms::{Action, Code, Target};
use crate::ids::{Incarnation, SessionNumber};
use crate::rules::Rules;

fn start(found: RecordFound, start: u128) -> Agent {
    let (rules, devices) = (Rules::default(), vec![device("S1")]);
    let start = Incarnation::from_bits(start);
    Agent::start(rules, start, found, devices, AttachAtStart::default()).0
}

/// The agent registers, does what it is told and answers; gives what the registry has written for it.
fn joins(agent: &mut Agent, cluster: &mut Cluster, session: u64) -> Result<Records, Refused> {
    let effects = register(cluster, session, says(agent, "node-a"))?;
    let mut records = Records::default();
    store(&mut records, effects.writes.clone());
    let mut todo = agent.step(Event::Registered(registered(&effects)));
    while let Some(effect) = todo.pop() {
        let more = if let Effect::Save(_) = effect {
            agent.step(Event::Saved)
        } else if let Effect::Prove { drive, .. } = effect {
            agent.step(Event::Closed { drive, label: None, result: Ok(()) })
        } else if let Effect::Send(answer) = effect {
            let session = SessionNumber::from_number(session);
            cluster.apply(Asked::Answer { session, answer }, 0).unwrap();
            Vec::new()
        } else {
            panic!("{effect:?}")
        };
        todo.extend(more);
    }
    Ok(records)
}

fn target() -> Target {
    Target { host: Some("node-a".into()), device: "S1".into() }
}

/// The registry, its copy, and what an agent has on disk that has closed a drive for the copy, which never had a label.
fn closed_for_the_copy() -> (Cluster, Cluster, Agent) {
    let (mut first, writes) = lead(Records::default(), 1);
    let mut agent = start(RecordFound::Absent(None), 1);
    let mut records = joins(&mut agent, &mut first, 1).unwrap();
    store(&mut records, writes);
    let (mut copy, _) = lead(records, 2);
    act(&mut copy, Action::AddDevice(target()));
    act(&mut copy, Action::RemoveDevice(target()));
    joins(&mut agent, &mut copy, 1).unwrap();
    assert_eq!(copy.drive(DRIVE).unwrap().record.state, State::Detached);
    assert_eq!(act(&mut copy, Action::RemoveDevice(target())).1.code, Code::Ok);
    (first, copy, agent)
}

/// The story: a copy of the store ran as a second registry. It had a drive added and removed before anything was
/// written on it, and answered `S_OK`. The agent lost its record and turned to the first registry, which knew nothing
/// of that; it had the drive opened, and the copy went on saying that it was closed. Only the term tells, and it was
/// lost with the record.
#[test]
fn an_agent_that_lost_its_record_still_knows_whom_it_has_served() {
    let (mut first, mut copy, agent) = closed_for_the_copy();
    let identity = agent.record().identity.unwrap();
    let kept = Some(Kept { identity, term: agent.record().term });
    let damaged = RecordFound::Damaged { kept, why: "its checksum is wrong".into() };
    for (number, found) in [RecordFound::Absent(kept), damaged].into_iter().enumerate() {
        let session = number as u64 + 2;
        let mut agent = start(found, 2 + number as u128);
        let refused = joins(&mut agent, &mut first, session).unwrap_err();
        let Refused::Registration(Why::RegistryRewound { differences, .. }) = refused else {
            panic!("{refused}");
        };
        let (accepted, ours) = (copy.term(), first.term());
        assert_eq!(differences, [Difference::UnknownTerm { accepted, ours }]);
        joins(&mut agent, &mut copy, session).unwrap();
    }
}

/// With the term gone as well nothing on the machine could tell: this is among the known limits.
#[test]
fn without_record_and_term_any_registry_of_the_cluster_is_served() {
    let (mut first, _, agent) = closed_for_the_copy();
    let identity = agent.record().identity.unwrap();
    let mut agent = start(RecordFound::Absent(Some(Kept { identity, term: None })), 2);
    joins(&mut agent, &mut first, 2).unwrap();
}

/// Else every start until the next order would find no record.
#[test]
fn an_agent_without_a_record_writes_one_when_it_is_registered_also_if_it_knew_the_term() {
    let (mut first, _) = lead(Records::default(), 1);
    let mut agent = start(RecordFound::Absent(None), 1);
    joins(&mut agent, &mut first, 1).unwrap();
    let kept = Kept { identity: agent.record().identity.unwrap(), term: agent.record().term };
    let mut agent = start(RecordFound::Absent(Some(kept)), 2);
    let effects = register(&mut first, 2, says(&agent, "node-a")).unwrap();
    let effects = agent.step(Event::Registered(registered(&effects)));
    assert!(matches!(&effects[..], [Effect::Save(record)] if record.term == kept.term));
}

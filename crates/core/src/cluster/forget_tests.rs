//! A host is forgotten only when nothing of it is needed, and what comes back of it is new, and safe.

use crate::agent::{Agent, AttachAtStart, Event as AgentEvent, RecordFound};
use crate::cluster::testing::{
    DRIVE, act, device, lead, register, registered, says, store, volume_on,
};
use crate::cluster::{
    AttachmentRecord, AttachmentState, Cluster, Effects, Event, FreshIds, Kept, Records, Refused,
    Reply, State, VolumeRecord, Write,
};
use crate::cms::{Action, Code, Outcome, Reason, Target};
use crate::device::Observed;
use crate::ids::{AttachmentId, DriveId, Incarnation, NodeId, SessionNumber, VolumeId};
use crate::label::extents::{Extent, Use};
use crate::message::{Answer, AnswerResult, Order};
use crate::order::{Generation, Goal};
use crate::rules::Rules;
use crate::volume::Epoch;

const NODE: NodeId = NodeId::from_bits(DRIVE.to_bits());

fn agent(devices: Vec<Observed>) -> Agent {
    let (rules, start) = (Rules::default(), Incarnation::from_bits(5));
    Agent::start(rules, start, RecordFound::Absent(None), devices, AttachAtStart::default()).0
}

fn forget(cluster: &mut Cluster) -> (Effects, Outcome) {
    act(cluster, Action::ForgetHost { host: "node-a".into() })
}

fn kept(reason: &Reason) -> Kept {
    let Reason::Kept(why) = reason else { panic!("{reason}") };
    why.clone()
}

fn ask(cluster: &mut Cluster, action: fn(Target) -> Action) -> Order {
    let target = Target { host: Some("node-a".into()), device: "S1".into() };
    act(cluster, action(target)).0.orders[0].1.clone()
}

fn confirm(cluster: &mut Cluster, session: u64, order: &Order) {
    let Order { drive, ordered, incarnation, .. } = *order;
    let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
    let session = SessionNumber::from_number(session);
    cluster.apply(Event::Answer { session, answer }, 0).unwrap();
}

fn leaves(cluster: &mut Cluster, agent: &mut Agent, session: u64) {
    agent.step(AgentEvent::SessionLost);
    cluster.apply(Event::SessionClosed(SessionNumber::from_number(session)), 0).unwrap();
}

/// node-a with a drive that nobody has added.
fn cluster() -> (Cluster, Agent) {
    let (mut cluster, _) = lead(Records::default(), 1);
    let mut agent = agent(vec![device("S1")]);
    let effects = register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
    agent.step(AgentEvent::Registered(registered(&effects)));
    (cluster, agent)
}

/// The same after its drive was in operation and was removed; its agent is gone.
fn after_a_removal() -> (Cluster, Agent) {
    let (mut cluster, mut agent) = cluster();
    for action in [Action::AddDevice, Action::RemoveDevice] {
        let order = ask(&mut cluster, action);
        agent.step(AgentEvent::Order(order.clone()));
        confirm(&mut cluster, 1, &order);
    }
    assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Detached);
    leaves(&mut cluster, &mut agent, 1);
    (cluster, agent)
}

#[test]
fn a_host_that_is_needed_is_kept_and_says_why() {
    let (mut cluster, mut agent) = cluster();
    let reasons = |cluster: &mut Cluster| {
        let (effects, outcome) = forget(cluster);
        assert_eq!(outcome.code, Code::InvalidState);
        assert_eq!((effects.writes, effects.orders), (vec![], vec![]));
        let keeps: Vec<_> = outcome.reasons.iter().map(kept).collect();
        assert_eq!(keeps, cluster.keeps_host(NODE));
        let dry_run = Event::Act {
            actions: vec![Action::ForgetHost { host: "node-a".into() }],
            asked_by: String::new(),
            dry_run: true,
        };
        let dry = cluster.apply(dry_run, 0).unwrap();
        assert_eq!(dry.reply, Reply::Acted(vec![outcome.clone()]));
        keeps
    };
    assert_eq!(reasons(&mut cluster), [Kept::AgentConnected]);
    let order = ask(&mut cluster, Action::AddDevice);
    agent.step(AgentEvent::Order(order.clone()));
    let drives = || Kept::DrivesInOperation { drives: vec!["d-00000000".into()] };
    assert_eq!(reasons(&mut cluster), [Kept::AgentConnected, drives()], "Attaching");
    confirm(&mut cluster, 1, &order);
    let session = SessionNumber::from_number(1);
    let volume = volume_on(&mut cluster, session, DRIVE);
    leaves(&mut cluster, &mut agent, 1);
    let (_, outcome) = forget(&mut cluster);
    assert_eq!(outcome.dependent, [volume]);
    let there = Kept::VolumesThere { volumes: vec!["pvc-9".into()] };
    assert_eq!(cluster.keeps_host(NODE), [drives(), there]);
    // A person gives it up: then its record stays, for its certificates.
    act(&mut cluster, Action::PurgeHost { host: "node-a".into() });
    assert_eq!(cluster.keeps_host(NODE)[0], Kept::Revoked);
    act(
        &mut cluster,
        Action::AddHost { host: "node-a".into(), with_removed: false, returned: true },
    );
    assert_eq!(cluster.keeps_host(NODE)[0], Kept::Revoked);
}

/// The drive of the volume went to node-b; node-a has not said that it gives the volume back.
#[test]
fn a_host_that_may_use_a_volume_of_another_is_kept() {
    let (mut cluster, writes) = lead(Records::default(), 1);
    let mut records = Records::default();
    store(&mut records, writes);
    for (session, name, serial) in [(1, "node-a", "S1"), (2, "node-b", "S2")] {
        let agent = self::agent(vec![device(serial)]);
        let effects = register(&mut cluster, session, says(&agent, name)).unwrap();
        store(&mut records, effects.writes);
    }
    let volume = VolumeId::from_bits(9);
    let extent = Extent {
        volume,
        part: 0,
        start_bytes: 0,
        length_bytes: 1 << 20,
        usage: Use::Used,
        formatted: false,
        name: "pvc-9".parse().unwrap(),
        claim: None,
    };
    records.volumes.push(VolumeRecord::of_label(&extent, &[], 0));
    records.attachments.push(AttachmentRecord {
        id: AttachmentId::from_bits(3),
        volume,
        node: NODE,
        epoch: Epoch::default(),
        state: AttachmentState::Detaching,
        read_only: false,
        since_ms: 0,
    });
    let (mut cluster, _) = lead(records, 2);
    let (_, outcome) = forget(&mut cluster);
    assert_eq!(cluster.keeps_host(NODE), [Kept::UsesVolumes { volumes: vec!["pvc-9".into()] }]);
    assert_eq!(outcome.dependent, [volume]);
}

#[test]
fn what_was_forgotten_is_gone_from_memory_and_store_also_in_part() {
    let (mut cluster, writes) = lead(Records::default(), 1);
    let mut records = Records::default();
    store(&mut records, writes);
    let two = vec![device("S1"), Observed { path: "/dev/sdy".into(), ..device("S2") }];
    let mut agent = agent(two);
    let fresh = FreshIds { node: NODE, drives: vec![DRIVE, DriveId::from_bits(8)] };
    let (session, registration) = (SessionNumber::from_number(1), says(&agent, "node-a"));
    let event = Event::Register { session, certificate: None, registration, fresh };
    let effects = cluster.apply(event, 0).unwrap();
    store(&mut records, effects.writes);
    leaves(&mut cluster, &mut agent, 1);
    let (effects, outcome) = forget(&mut cluster);
    assert_eq!((outcome.code, outcome.drives.len()), (Code::Ok, 2));
    let gone =
        [Write::DriveGone(DRIVE), Write::DriveGone(DriveId::from_bits(8)), Write::NodeGone(NODE)];
    assert_eq!(effects.writes, gone);
    assert_eq!(effects.notices[0].reason, "HostForgotten");
    assert_eq!((cluster.nodes().count(), cluster.drives().count()), (0, 0));
    assert_eq!(forget(&mut cluster).1.code, Code::NotFound);
    // Whatever part of it is durable: the next registry can finish it, and can work.
    for durable in 0..=gone.len() {
        let mut left = records.clone();
        store(&mut left, gone[..durable].to_vec());
        let (mut next, _) = lead(left.clone(), 2);
        if durable < gone.len() {
            let (effects, outcome) = forget(&mut next);
            assert_eq!(outcome.code, Code::Ok, "after {durable}");
            store(&mut left, effects.writes);
        }
        assert!(left.nodes.is_empty() && left.drives.is_empty(), "after {durable}");
        let (mut next, _) = lead(left, 3);
        register(&mut next, 1, says(&self::agent(vec![device("S1")]), "node-a")).unwrap();
        assert_eq!(next.drives().count(), 1);
    }
}

/// The machine was in a cupboard. It knows its node id, its drive and the generation of the last order.
#[test]
fn a_machine_that_comes_back_is_a_new_one_and_not_a_sign_of_a_rewound_registry() {
    let (mut cluster, mut agent) = after_a_removal();
    let generation = cluster.drive(DRIVE).unwrap().record.generation;
    assert!(generation > Generation::ZERO);
    assert_eq!(forget(&mut cluster).1.code, Code::Ok);
    let effects = register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
    let answer = registered(&effects);
    assert_eq!(answer.node, NODE, "it keeps the id that it was told");
    assert!(answer.allowed.is_empty());
    let [order] = &answer.unknown[..] else { panic!("{answer:?}") };
    assert_eq!((order.drive, order.ordered.goal), (DRIVE, Goal::Detach));
    assert!(order.ordered.stamp.generation > generation, "above all that it has seen");
    let order = order.clone();
    agent.step(AgentEvent::Registered(answer));
    assert_eq!(agent.in_force(DRIVE), Some(order.ordered));
    confirm(&mut cluster, 2, &order);
    assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Detached);
    // It works as ever.
    let order = ask(&mut cluster, Action::AddDevice);
    agent.step(AgentEvent::Order(order.clone()));
    confirm(&mut cluster, 2, &order);
    assert_eq!(cluster.drive(DRIVE).unwrap().record.state, State::Attached);
}

#[test]
fn a_machine_that_comes_back_after_another_took_its_name_is_refused() {
    let (mut cluster, agent) = after_a_removal();
    forget(&mut cluster);
    let replacement = self::agent(vec![device("S2")]);
    let mut said = says(&replacement, "node-a");
    said.machine = crate::ids::MachineId::from_bits(1);
    register(&mut cluster, 2, said).expect("the name is free");
    let refused = register(&mut cluster, 3, says(&agent, "node-a")).unwrap_err();
    assert!(matches!(refused, Refused::Registration(_)), "{refused}");
}

/// A late word over its last session reaches nobody.
#[test]
fn an_old_session_of_a_forgotten_host_is_over() {
    let (mut cluster, mut agent) = cluster();
    // The agent has dialled again; the first session has not been noticed to be gone.
    agent.step(AgentEvent::SessionLost);
    let effects = register(&mut cluster, 2, says(&agent, "node-a")).unwrap();
    agent.step(AgentEvent::Registered(registered(&effects)));
    leaves(&mut cluster, &mut agent, 2);
    assert_eq!(forget(&mut cluster).1.code, Code::Ok);
    let session = SessionNumber::from_number(1);
    let (devices, conditions, fresh) = (vec![], vec![], vec![]);
    let late = Event::Devices { session, devices, conditions, fresh };
    assert_eq!(cluster.apply(late, 0), Err(Refused::OldSession));
    let closed = cluster.apply(Event::SessionClosed(session), 0).unwrap();
    assert_eq!(closed, Effects::default());
}

/// Its drive is in another machine already, where it could not be told from a copy.
#[test]
fn a_drive_that_is_elsewhere_by_now_belongs_there() {
    let (mut cluster, mut agent) = cluster();
    leaves(&mut cluster, &mut agent, 1);
    let other = self::agent(vec![device("S1")]);
    register(&mut cluster, 2, says(&other, "node-b")).unwrap();
    assert_eq!(cluster.newcomers().count(), 1);
    let (effects, outcome) = forget(&mut cluster);
    assert_eq!((outcome.code, outcome.drives.len()), (Code::Ok, 0));
    assert_eq!(cluster.newcomers().count(), 0);
    let record = &cluster.drive(DRIVE).unwrap().record;
    assert_eq!(cluster.node(record.node).unwrap().record.name.as_str(), "node-b");
    assert!(cluster.drive(DRIVE).unwrap().present);
    assert!(matches!(effects.writes.last(), Some(Write::NodeGone(NODE))), "{effects:?}");
}

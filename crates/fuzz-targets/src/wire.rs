//! What comes over a socket. What is taken must mean the same when it is said again.

use hotbay_api::convert::{
    FromAgent, FromRegistry, action_from_wire, action_to_wire, from_agent, from_registry, to_agent,
    to_registry,
};
use hotbay_api::{agent, cms};
use hotbay_control::fuzzing as control;
use hotbay_core::cms::{Action, TakeOver, Target};
use hotbay_core::device::{Denied, DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId};
use hotbay_core::message::{
    AgentProgram, Answer, AnswerResult, DriveReport, NodeCondition, Obstacle, Order, RecordHealth,
    Registered, Registration,
};
use hotbay_core::node_labels::{LabelChange, NodeLabels};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::wipe::{Content, Wipe};
use prost::Message;

use crate::{assert_plain, wire_volumes};

/// What an agent says to the registry.
pub(crate) fn agent_message(data: &[u8]) {
    let Ok(message) = agent::AgentMessage::decode(data) else { return };
    match from_agent(message) {
        Err(malformed) => assert_plain(malformed),
        Ok(value) => {
            let again = to_registry(&value).encode_to_vec();
            let again = agent::AgentMessage::decode(&*again).expect("it was just encoded");
            assert_eq!(from_agent(again).expect("it was taken before"), value);
        }
    }
}

/// What the registry says to an agent.
pub(crate) fn registry_message(data: &[u8]) {
    let Ok(message) = agent::RegistryMessage::decode(data) else { return };
    match from_registry(message) {
        Err(malformed) => assert_plain(malformed),
        Ok(value) => {
            let again = to_agent(&value).encode_to_vec();
            let again = agent::RegistryMessage::decode(&*again).expect("it was just encoded");
            assert_eq!(from_registry(again).expect("it was taken before"), value);
        }
    }
}

/// What a program asks for over gRPC.
pub(crate) fn action(data: &[u8]) {
    let Ok(message) = cms::Action::decode(data) else { return };
    match action_from_wire(message) {
        Err(malformed) => assert_plain(malformed),
        Ok(action) => same_on_the_wire(&action),
    }
}

/// What a program asks for over HTTP.
pub(crate) fn http_body(data: &[u8]) {
    let actions = match control::actions(data) {
        Ok(actions) => actions,
        Err(malformed) => return assert_plain(malformed),
    };
    for action in actions {
        match action {
            Ok(action) => same_on_the_wire(&action),
            Err(malformed) => assert_plain(malformed),
        }
    }
}

fn same_on_the_wire(action: &Action) {
    let again = action_to_wire(action).encode_to_vec();
    let again = cms::Action::decode(&*again).expect("it was just encoded");
    assert_eq!(&action_from_wire(again).expect("it was taken before"), action);
}

fn ordered(goal: Goal) -> Ordered {
    let term = Term { number: 2, id: TermId::from_bits(3) };
    Ordered { goal, stamp: Stamp { term, generation: Generation::from_number(4) } }
}

fn label() -> LabelSeen {
    LabelSeen {
        cluster: ClusterId::from_bits(1),
        drive: DriveId::from_bits(5),
        node: NodeId::from_bits(2),
        generation: Generation::from_number(4),
        in_operation: true,
        sequence: 9,
    }
}

fn evidence() -> Evidence {
    Evidence {
        serial: Some("S1".to_owned()),
        model: Some("M".to_owned()),
        wwn: Some("5000c500a1b2c3d4".to_owned()),
        ..Evidence::default()
    }
}

fn observed() -> Observed {
    Observed {
        evidence: evidence(),
        path: "/dev/sda".to_owned(),
        bay: Some("3".to_owned()),
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 40,
        block_bytes: 4096,
        details: Default::default(),
        label: Some(label()),
        denied: vec![Denied::ReadOnly, Denied::Mounted { at: vec!["/mnt".to_owned()] }],
    }
}

pub(crate) fn agent_message_seeds() -> Vec<Vec<u8>> {
    let registration = Registration {
        node: Some(NodeId::from_bits(2)),
        name: "node-a".parse().expect("a plain name"),
        machine: MachineId::from_bits(6),
        incarnation: Incarnation::from_bits(7),
        cluster: Some(ClusterId::from_bits(1)),
        newest_term: Some(ordered(Goal::Attach).stamp.term),
        record: RecordHealth::Damaged { why: "its checksum is wrong".to_owned() },
        drives: vec![DriveReport {
            drive: DriveId::from_bits(5),
            seen: Some(ordered(Goal::Attach)),
            evidence: evidence(),
            label: Some(label()),
            open: true,
        }],
        devices: vec![observed()],
        conditions: vec![NodeCondition::FiltersInvalid { why: "x.toml, line 2".into() }],
        labels: NodeLabels::of_texts(&["rack=a"]).expect("it is well formed"),
        uses: vec![],
        device_mapper: false,
        program: Box::new(AgentProgram { version: "1.2.3-rc.4+5".parse().ok(), address: None }),
    };
    let answer = |goal, result| {
        let (drive, incarnation) = (DriveId::from_bits(5), Incarnation::from_bits(7));
        FromAgent::Answer(Answer { drive, ordered: ordered(goal), incarnation, result })
    };
    let blocked = Obstacle::Blocked { by: vec!["pid 7 (dd)".to_owned()] };
    [
        FromAgent::Register(registration),
        FromAgent::Heartbeat,
        FromAgent::Report { number: 8, devices: vec![observed()], conditions: vec![] },
        answer(Goal::Attach, AnswerResult::Done),
        answer(Goal::Detach, AnswerResult::Waiting(blocked)),
    ]
    .into_iter()
    .chain(wire_volumes::from_agents())
    .map(|message| to_registry(&message).encode_to_vec())
    .collect()
}

pub(crate) fn registry_seeds() -> Vec<Vec<u8>> {
    let order = |goal| Order {
        drive: DriveId::from_bits(5),
        ordered: ordered(goal),
        incarnation: Incarnation::from_bits(7),
        evidence: evidence(),
        take_over: false,
        wipe: None,
        given_up: goal == Goal::Detach,
    };
    let wipe = Wipe { generation: Generation::from_number(1), contents: vec![Content::Nameless] };
    let wiping = Order { wipe: Some(wipe), ..order(Goal::Attach) };
    let registered = Registered {
        session: SessionNumber::from_number(3),
        cluster: ClusterId::from_bits(1),
        node: NodeId::from_bits(2),
        term: ordered(Goal::Attach).stamp.term,
        allowed: vec![order(Goal::Attach)],
        unknown: vec![order(Goal::Detach)],
    };
    let (reason, message) = ("DuplicateNode".to_owned(), "another has the name".to_owned());
    [
        FromRegistry::Registered(registered),
        FromRegistry::RegistrationRefused { reason, message },
        FromRegistry::Order(order(Goal::Attach)),
        FromRegistry::Order(order(Goal::Detach)),
        FromRegistry::Order(wiping),
        FromRegistry::ReportTaken { number: 8 },
    ]
    .into_iter()
    .chain(wire_volumes::from_registries())
    .map(|message| to_agent(&message).encode_to_vec())
    .collect()
}

pub(crate) fn action_seeds() -> Vec<Vec<u8>> {
    let host = "node-a".to_owned();
    let target = Target { host: Some(host.clone()), device: "/dev/sda".to_owned() };
    [
        Action::AddHost { host: host.clone(), with_removed: true, returned: true },
        Action::RemoveHost { host: host.clone() },
        Action::PurgeHost { host: host.clone() },
        Action::CordonHost { host: host.clone(), cordoned: true },
        Action::CordonHost { host: host.clone(), cordoned: false },
        Action::ForgetHost { host: host.clone() },
        Action::LabelHost {
            host,
            change: LabelChange::of_texts(&["example.com/rack=a", "zone-"], true)
                .expect("it is well formed"),
        },
        Action::AddDevice(target.clone()),
        Action::AddPlanned {
            target: target.clone(),
            state: "s-0152ee94c346268c".parse().expect("it is well formed"),
        },
        Action::AddWiped {
            target: target.clone(),
            state: "s-0152ee94c346268c".parse().expect("it is well formed"),
            serial: "S1".to_owned(),
        },
        Action::RemoveDevice(target.clone()),
        Action::TakeOver(TakeOver {
            target: target.clone(),
            serial: "S3X1A9".to_owned(),
            state: "s-0152ee94c346268c".parse().ok(),
        }),
        Action::GetDependentVolumes(target),
    ]
    .map(|action| action_to_wire(&action).encode_to_vec())
    .into()
}

pub(crate) fn http_body_seeds() -> Vec<Vec<u8>> {
    [
        r#"{"actions":[{"type":"ADD_DEVICE","host":"node-a","device":"/dev/sda"}],"dryRun":true}"#,
        r#"{"actions":[{"type":"ADD_HOST","host":"node-a","withRemoved":true,"returned":true}]}"#,
        r#"{"actions":[{"type":"ADD_DEVICE","device":"d-1","expectedState":"s-0152ee94c346268c"}]}"#,
        r#"{"actions":[{"type":"LABEL_HOST","host":"a","labels":{"rack":"a"},"removeLabels":["z"]}]}"#,
        r#"{"actions":[{"type":"REMOVE_HOST","host":"a"},{"type":"NO_SUCH","device":"b"}]}"#,
        r#"{"actions":[{"type":"UNKNOWN"}],"more":1}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

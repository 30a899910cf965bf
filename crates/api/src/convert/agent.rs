//! The agent's session: both directions, both ways.

use hotbay_core::device::Observed;
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{DriveId, Incarnation, SessionNumber};
use hotbay_core::label::change::LabelTold;
use hotbay_core::message::{
    AgentProgram, Answer, AnswerResult, DriveReport, NodeCondition, Order, Registered, Registration,
};
use hotbay_core::node_labels::NodeLabels;
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::volume::orders::{LabelAnswer, LabelOrder, UseAnswer, UseOrder, VolumeReport};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::fit::{numbers_fit, observed_fits, within_bounds};
use super::{Malformed, check_protocol};
use crate::PROTOCOL;
use crate::agent as wire;

/// What an agent says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromAgent {
    Register(Registration),
    Heartbeat,
    Report { number: u64, devices: Vec<Observed>, conditions: Vec<NodeCondition> },
    Answer(Answer),
    LabelTold { drive: DriveId, told: LabelTold },
    LabelAnswer(LabelAnswer),
    UseAnswer(UseAnswer),
    VolumeReport(VolumeReport),
}

/// What a registry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromRegistry {
    Registered(Registered),
    RegistrationRefused { reason: String, message: String },
    Order(Order),
    LabelOrder(LabelOrder),
    UseOrder(UseOrder),
    ReportTaken { number: u64 },
}

/// Encodes for the registry.
pub fn to_registry(message: &FromAgent) -> wire::AgentMessage {
    use wire::agent_message::Kind;
    let kind = match message {
        FromAgent::Register(registration) => Kind::Register(Box::new(register(registration))),
        FromAgent::Heartbeat => Kind::Heartbeat(wire::Heartbeat {}),
        FromAgent::Report { number, devices, conditions } => Kind::Report(wire::Report {
            number: *number,
            observed_json: devices.iter().map(json).collect(),
            condition_json: conditions.iter().map(json).collect(),
        }),
        FromAgent::Answer(answer) => {
            let wire_answer = Some(device_answer(answer));
            match answer.ordered.goal {
                Goal::Attach => {
                    Kind::AttachDeviceResponse(wire::AttachDeviceResponse { answer: wire_answer })
                }
                Goal::Detach => {
                    Kind::DetachDeviceResponse(wire::DetachDeviceResponse { answer: wire_answer })
                }
            }
        }
        FromAgent::LabelTold { drive, told } => Kind::LabelTold(wire::LabelTold {
            device_id: drive.to_string(),
            label_json: json(told),
        }),
        FromAgent::LabelAnswer(answer) => {
            Kind::ChangeLabelResponse(wire::ChangeLabelResponse { answer_json: json(answer) })
        }
        FromAgent::UseAnswer(answer) => {
            Kind::UseVolumeResponse(wire::UseVolumeResponse { answer_json: json(answer) })
        }
        FromAgent::VolumeReport(report) => {
            Kind::VolumeReport(wire::VolumeReport { report_json: json(report) })
        }
    };
    wire::AgentMessage { protocol: PROTOCOL, kind: Some(kind) }
}

/// Decodes what an agent sent.
pub fn from_agent(message: wire::AgentMessage) -> Result<FromAgent, Malformed> {
    use wire::agent_message::Kind;
    check_protocol(message.protocol)?;
    Ok(match message.kind.ok_or(Malformed::Kind)? {
        Kind::Register(register) => FromAgent::Register(registration(*register)?),
        Kind::Heartbeat(wire::Heartbeat {}) => FromAgent::Heartbeat,
        Kind::Report(wire::Report { number, observed_json, condition_json }) => FromAgent::Report {
            number,
            devices: observed_devices(&observed_json)?,
            conditions: from_json_list("condition_json", &condition_json)?,
        },
        Kind::AttachDeviceResponse(response) => {
            FromAgent::Answer(answer(required("answer", response.answer)?, Goal::Attach)?)
        }
        Kind::DetachDeviceResponse(response) => {
            FromAgent::Answer(answer(required("answer", response.answer)?, Goal::Detach)?)
        }
        Kind::LabelTold(wire::LabelTold { device_id, label_json }) => FromAgent::LabelTold {
            drive: parsed("device_id", &device_id)?,
            told: from_json("label_json", &label_json)?,
        },
        Kind::ChangeLabelResponse(wire::ChangeLabelResponse { answer_json }) => {
            FromAgent::LabelAnswer(from_json("answer_json", &answer_json)?)
        }
        Kind::UseVolumeResponse(wire::UseVolumeResponse { answer_json }) => {
            FromAgent::UseAnswer(from_json("answer_json", &answer_json)?)
        }
        Kind::VolumeReport(wire::VolumeReport { report_json }) => {
            FromAgent::VolumeReport(from_json("report_json", &report_json)?)
        }
    })
}

/// Encodes for an agent.
pub fn to_agent(message: &FromRegistry) -> wire::RegistryMessage {
    use wire::registry_message::Kind;
    let kind = match message {
        FromRegistry::Registered(registered) => Kind::Registered(wire::Registered {
            session: registered.session.get(),
            cluster_id: registered.cluster.to_string(),
            node_id: registered.node.to_string(),
            term: Some(term(registered.term)),
            allowed_devices: registered.allowed.iter().map(attach).collect(),
            unknown_devices: registered.unknown.iter().map(detach).collect(),
        }),
        FromRegistry::RegistrationRefused { reason, message } => {
            Kind::RegistrationRefused(wire::RegistrationRefused {
                reason: reason.clone(),
                message: message.clone(),
            })
        }
        FromRegistry::Order(order) => match order.ordered.goal {
            Goal::Attach => Kind::AttachDeviceRequest(attach(order)),
            Goal::Detach => Kind::DetachDeviceRequest(detach(order)),
        },
        FromRegistry::LabelOrder(order) => {
            Kind::ChangeLabelRequest(wire::ChangeLabelRequest { order_json: json(order) })
        }
        FromRegistry::UseOrder(order) => {
            Kind::UseVolumeRequest(wire::UseVolumeRequest { order_json: json(order) })
        }
        FromRegistry::ReportTaken { number } => {
            Kind::ReportTaken(wire::ReportTaken { number: *number })
        }
    };
    wire::RegistryMessage { protocol: PROTOCOL, kind: Some(kind) }
}

/// Decodes what a registry sent.
pub fn from_registry(message: wire::RegistryMessage) -> Result<FromRegistry, Malformed> {
    use wire::registry_message::Kind;
    check_protocol(message.protocol)?;
    Ok(match message.kind.ok_or(Malformed::Kind)? {
        Kind::Registered(registered) => {
            let allowed = registered.allowed_devices.into_iter().map(attach_order);
            let unknown = registered.unknown_devices.into_iter().map(detach_order);
            FromRegistry::Registered(Registered {
                session: SessionNumber::from_number(registered.session),
                cluster: parsed("cluster_id", &registered.cluster_id)?,
                node: parsed("node_id", &registered.node_id)?,
                term: term_of(required("term", registered.term)?)?,
                allowed: allowed.collect::<Result<_, _>>()?,
                unknown: unknown.collect::<Result<_, _>>()?,
            })
        }
        Kind::RegistrationRefused(wire::RegistrationRefused { reason, message }) => {
            FromRegistry::RegistrationRefused { reason, message }
        }
        Kind::AttachDeviceRequest(request) => FromRegistry::Order(attach_order(request)?),
        Kind::DetachDeviceRequest(request) => FromRegistry::Order(detach_order(request)?),
        Kind::ReportTaken(wire::ReportTaken { number }) => FromRegistry::ReportTaken { number },
        Kind::ChangeLabelRequest(wire::ChangeLabelRequest { order_json }) => {
            FromRegistry::LabelOrder(from_json("order_json", &order_json)?)
        }
        Kind::UseVolumeRequest(wire::UseVolumeRequest { order_json }) => {
            FromRegistry::UseOrder(from_json("order_json", &order_json)?)
        }
    })
}

fn register(registration: &Registration) -> wire::Register {
    let text = |id: Option<String>| id.unwrap_or_default();
    wire::Register {
        node_name: registration.name.to_string(),
        node_id: text(registration.node.map(|id| id.to_string())),
        cluster_id: text(registration.cluster.map(|id| id.to_string())),
        machine_id: registration.machine.to_string(),
        incarnation: registration.incarnation.to_string(),
        newest_term: registration.newest_term.map(term),
        record_json: json(&registration.record),
        known_devices: registration.drives.iter().map(known_device).collect(),
        observed_json: registration.devices.iter().map(json).collect(),
        condition_json: registration.conditions.iter().map(json).collect(),
        labels: registration.labels.to_texts(),
        use_json: registration.uses.iter().map(json).collect(),
        device_mapper: registration.device_mapper,
        version: text(registration.program.version.as_ref().map(ToString::to_string)),
    }
}

fn registration(register: wire::Register) -> Result<Registration, Malformed> {
    let drives = register.known_devices.into_iter().map(drive_report);
    Ok(Registration {
        node: parsed_if_given("node_id", &register.node_id)?,
        name: parsed("node_name", &register.node_name)?,
        machine: parsed("machine_id", &register.machine_id)?,
        incarnation: parsed("incarnation", &register.incarnation)?,
        cluster: parsed_if_given("cluster_id", &register.cluster_id)?,
        newest_term: register.newest_term.map(term_of).transpose()?,
        record: from_json("record_json", &register.record_json)?,
        drives: drives.collect::<Result<_, _>>()?,
        devices: observed_devices(&register.observed_json)?,
        conditions: from_json_list("condition_json", &register.condition_json)?,
        labels: NodeLabels::of_pairs(register.labels)
            .map_err(|error| Malformed::field("labels", error))?,
        uses: from_json_list("use_json", &register.use_json)?,
        device_mapper: register.device_mapper,
        program: Box::new(AgentProgram {
            version: parsed_if_given("version", &register.version)?,
            address: None,
        }),
    })
}

fn known_device(report: &DriveReport) -> wire::KnownDevice {
    wire::KnownDevice {
        device_id: report.drive.to_string(),
        seen: report.seen.map(|seen| stamp(seen.stamp)),
        seen_attach: report.seen.is_some_and(|seen| seen.goal == Goal::Attach),
        label_json: report.label.as_ref().map(json).unwrap_or_default(),
        open: report.open,
        evidence_json: json(&report.evidence),
    }
}

fn drive_report(known: wire::KnownDevice) -> Result<DriveReport, Malformed> {
    let goal = if known.seen_attach { Goal::Attach } else { Goal::Detach };
    let seen = known.seen.map(stamp_of).transpose()?;
    let labelled = !known.label_json.is_empty();
    Ok(DriveReport {
        drive: parsed("device_id", &known.device_id)?,
        seen: seen.map(|stamp| Ordered { goal, stamp }),
        label: labelled.then(|| from_json("label_json", &known.label_json)).transpose()?,
        open: known.open,
        evidence: if known.evidence_json.is_empty() {
            Evidence::default()
        } else {
            from_json("evidence_json", &known.evidence_json)?
        },
    })
}

fn attach(order: &Order) -> wire::AttachDeviceRequest {
    wire::AttachDeviceRequest {
        device_id: order.drive.to_string(),
        stamp: Some(stamp(order.ordered.stamp)),
        incarnation: order.incarnation.to_string(),
        evidence_json: json(&order.evidence),
        take_over: order.take_over,
        wipe_json: order.wipe.as_ref().map(json).unwrap_or_default(),
    }
}

fn detach(order: &Order) -> wire::DetachDeviceRequest {
    wire::DetachDeviceRequest {
        device_id: order.drive.to_string(),
        stamp: Some(stamp(order.ordered.stamp)),
        incarnation: order.incarnation.to_string(),
        evidence_json: json(&order.evidence),
        given_up: order.given_up,
    }
}

fn attach_order(request: wire::AttachDeviceRequest) -> Result<Order, Malformed> {
    let stamp = stamp_of(required("stamp", request.stamp)?)?;
    Ok(Order {
        drive: parsed("device_id", &request.device_id)?,
        ordered: Ordered { goal: Goal::Attach, stamp },
        incarnation: parsed("incarnation", &request.incarnation)?,
        evidence: from_json("evidence_json", &request.evidence_json)?,
        take_over: request.take_over,
        wipe: if request.wipe_json.is_empty() {
            None
        } else {
            Some(from_json("wipe_json", &request.wipe_json)?)
        },
        given_up: false,
    })
}

fn detach_order(request: wire::DetachDeviceRequest) -> Result<Order, Malformed> {
    let stamp = stamp_of(required("stamp", request.stamp)?)?;
    Ok(Order {
        drive: parsed("device_id", &request.device_id)?,
        ordered: Ordered { goal: Goal::Detach, stamp },
        incarnation: parsed("incarnation", &request.incarnation)?,
        evidence: from_json("evidence_json", &request.evidence_json)?,
        take_over: false,
        wipe: None,
        given_up: request.given_up,
    })
}

fn device_answer(answer: &Answer) -> wire::DeviceAnswer {
    use wire::device_answer::Result as Wire;
    wire::DeviceAnswer {
        device_id: answer.drive.to_string(),
        stamp: Some(stamp(answer.ordered.stamp)),
        incarnation: answer.incarnation.to_string(),
        result: Some(match &answer.result {
            AnswerResult::Done => Wire::Done(wire::Done {}),
            AnswerResult::Waiting(obstacle) => Wire::ObstacleJson(json(obstacle)),
            AnswerResult::Refused(refused) => Wire::RefusedJson(json(refused)),
        }),
    }
}

fn answer(answer: wire::DeviceAnswer, goal: Goal) -> Result<Answer, Malformed> {
    use wire::device_answer::Result as Wire;
    let incarnation: Incarnation = parsed("incarnation", &answer.incarnation)?;
    let stamp = stamp_of(required("stamp", answer.stamp)?)?;
    Ok(Answer {
        drive: parsed("device_id", &answer.device_id)?,
        ordered: Ordered { goal, stamp },
        incarnation,
        result: match required("result", answer.result)? {
            Wire::Done(wire::Done {}) => AnswerResult::Done,
            Wire::ObstacleJson(text) => AnswerResult::Waiting(from_json("obstacle_json", &text)?),
            Wire::RefusedJson(text) => AnswerResult::Refused(from_json("refused_json", &text)?),
        },
    })
}

fn term(term: Term) -> wire::Term {
    wire::Term { number: term.number, id: term.id.to_string() }
}

fn term_of(term: wire::Term) -> Result<Term, Malformed> {
    let number = within_bounds("term.number", term.number)?;
    Ok(Term { number, id: parsed("term.id", &term.id)? })
}

fn stamp(stamp: Stamp) -> wire::Stamp {
    wire::Stamp { term: Some(term(stamp.term)), device_generation: stamp.generation.get() }
}

fn stamp_of(stamp: wire::Stamp) -> Result<Stamp, Malformed> {
    let generation = within_bounds("stamp.device_generation", stamp.device_generation)?;
    Ok(Stamp {
        term: term_of(required("stamp.term", stamp.term)?)?,
        generation: Generation::from_number(generation),
    })
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Malformed> {
    value.ok_or(Malformed::Missing { field })
}

fn parsed<T>(field: &'static str, text: &str) -> Result<T, Malformed>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| Malformed::field(field, error))
}

fn parsed_if_given<T>(field: &'static str, text: &str) -> Result<Option<T>, Malformed>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    if text.is_empty() { Ok(None) } else { parsed(field, text).map(Some) }
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("plain values with text keys become JSON")
}

fn from_json<T: DeserializeOwned>(field: &'static str, text: &str) -> Result<T, Malformed> {
    numbers_fit(field, text)?;
    serde_json::from_str(text).map_err(|error| Malformed::field(field, error))
}

/// What a node sees becomes records, and these have to fit every store.
fn observed_devices(texts: &[String]) -> Result<Vec<Observed>, Malformed> {
    observed_fits("observed_json", texts)?;
    from_json_list("observed_json", texts)
}

fn from_json_list<T: DeserializeOwned>(
    field: &'static str,
    texts: &[String],
) -> Result<Vec<T>, Malformed> {
    texts.iter().map(|text| from_json(field, text)).collect()
}

//! What only the leading controller's memory knows, in the objects; and machines that leave the cluster. Asked of the
//! server in memory, and of a real one.

use std::time::{Duration, Instant};

use hotbay_core::cluster::FreshIds;
use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{MachineId, NodeId, SessionNumber, TermId, VolumeId};
use hotbay_core::message::{Answer, AnswerResult, Obstacle, Order, Registration};
use hotbay_core::order::Term;
use hotbay_core::volume::orders::{StagedAs, VolumeReport};
use hotbay_kubernetes::living::Times;
use hotbay_registry::{CallError, ToAgent};
use http::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::agent;
use crate::world::{ATTACHMENT, TIMES, VOLUME, World, condition};
use crate::{Server, server};

/// A leader that waits for nobody for long.
const IMPATIENT: Times =
    Times { heard: Duration::from_millis(1_500), away: Duration::from_millis(2_500), ..TIMES };

/// One that waits for longer than a new start of an agent takes here.
const PATIENT: Times = Times { hold: Duration::from_secs(3), ..TIMES };

fn node(world: &World) -> Value {
    world.find("storagenodes", "node-a").unwrap_or_default()
}

pub(crate) fn until_ready(world: &World, status: &str) {
    world.until(&format!("Ready is {status}"), || {
        world.condition("storagenodes", "node-a", "Ready") == status
    });
}

pub(crate) fn close(world: &World, session: SessionNumber) {
    world.wait(world.registry.close(session)).unwrap();
}

/// Whether there is a Kubernetes Node.
pub(crate) fn set_machine(server: &Server, name: &str, there: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = server.client();
        let machine = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        let path = format!("/api/v1/nodes/{name}");
        let answer = match there {
            true => client.post("/api/v1/nodes", &machine).await.unwrap(),
            false => client.delete(&path, &json!({})).await.unwrap(),
        };
        assert!(answer.code < 300 || [404, 409].contains(&answer.code), "{answer:?}");
    });
}

/// The versions of all drives: none of them is written while these are the same.
fn drives(world: &World) -> Vec<Value> {
    let all = world.people.list("drives").into_iter();
    all.map(|drive| drive["metadata"]["resourceVersion"].clone()).collect()
}

/// The same of every object of every kind.
fn everything(world: &World) -> Vec<Value> {
    let kinds = ["registries", "storagenodes", "drives", "volumes", "attachments"];
    let all = kinds.iter().flat_map(|plural| world.people.list(plural));
    all.map(|object| object["metadata"]["resourceVersion"].clone()).collect()
}

/// The agent ends and starts; gives how many writes there were before, and what was written. On a machine that stood
/// still meanwhile it was away for long enough to be told, and does it again.
fn starts_anew(world: &World) -> (usize, Vec<Value>) {
    for _ in 0..5 {
        let before = (world.settled(), everything(world));
        let gone = Instant::now();
        world.agent_goes();
        // The leader looks at it meanwhile.
        std::thread::sleep(TIMES.pace * 10);
        world.agent_comes();
        let away = gone.elapsed();
        std::thread::sleep(PATIENT.settle + PATIENT.hold * 2);
        if away < PATIENT.hold / 2 {
            return before;
        }
        until_ready(world, "True");
    }
    panic!("it is away for too long each time");
}

#[test]
fn an_agent_that_starts_anew_costs_no_write_and_one_that_stays_away_does() {
    let world = World::in_use(PATIENT);
    let (writes, before) = starts_anew(&world);
    assert_eq!((world.settled(), everything(&world)), (writes, before));
    assert_eq!(world.condition("storagenodes", "node-a", "Ready"), "True");
    let gone = Instant::now();
    world.agent_goes();
    until_ready(&world, "False");
    assert!(gone.elapsed() >= PATIENT.hold);
    assert!(node(&world)["status"]["incarnation"].is_null());
    assert_eq!(world.settled(), writes + 1);
    world.agent_comes();
    until_ready(&world, "True");
    assert_eq!(world.settled(), writes + 2);
    assert!(world.follows());
}

#[test]
fn a_node_that_falls_silent_and_comes_back_is_written_once_each() {
    let world = World::start(server(), 10);
    let session = world.wait(agent::join(&world.registry, 3));
    world.add("S0");
    until_ready(&world, "True");
    let (writes, before) = (world.settled(), drives(&world));
    let status = &node(&world)["status"];
    assert_eq!((&status["ready"], &status["drives"]), (&json!(true), &json!(3)));
    assert_eq!(status["drivesInOperation"], 1);
    assert_eq!(status["lastHeartbeat"], "2025-11-16T13:33:20Z");
    let ready = condition(&node(&world), "Ready");
    assert_eq!(
        (&ready["reason"], &ready["observedGeneration"]),
        (&json!("AgentConnected"), &json!(1))
    );
    close(&world, session);
    until_ready(&world, "False");
    assert_eq!(world.reason("storagenodes", "node-a", "Ready").0, "AgentUnreachable");
    assert_eq!(world.settled(), writes + 1);
    assert_eq!(node(&world)["status"]["ready"], false);
    world.wait(agent::join(&world.registry, 3));
    until_ready(&world, "True");
    assert_eq!(world.settled(), writes + 2);
    assert_eq!(drives(&world), before, "an agent that starts anew costs no write of a drive");
    assert!(world.follows());
}

/// It was taken for one that this leader had never heard, and what is wrong with it was told half a minute later.
#[test]
fn an_agent_that_comes_and_goes_between_two_looks_was_heard() {
    let never = Duration::from_secs(3_600);
    let times = Times { pace: Duration::from_secs(2), heard: never, ..TIMES };
    let world = World::start_with(server(), 10, times);
    let session = world.wait(agent::join(&world.registry, 1));
    close(&world, session);
    until_ready(&world, "False");
}

#[test]
fn a_new_leader_writes_its_term_and_no_node_and_no_drive() {
    let world = World::start(server(), 10);
    world.wait(agent::join(&world.registry, 20));
    world.add("S0");
    world.add("S1");
    world.until("counted", || node(&world)["status"]["drivesInOperation"] == 2);
    world.settled();
    let (before, machine) = (drives(&world), node(&world));
    let next = World::start(world.stop(), 11);
    next.settled();
    next.wait(agent::join(&next.registry, 20));
    // Longer than it takes until what its agent says counts.
    std::thread::sleep(TIMES.settle + TIMES.hold);
    next.settled();
    assert_eq!((drives(&next), node(&next)), (before, machine));
    assert_eq!(next.store.writes(), 1, "its term");
}

#[test]
fn an_agent_that_stays_away_is_told_of_once_by_its_node_and_its_drives_in_operation() {
    let world = World::start(server(), 10);
    world.wait(agent::join(&world.registry, 3));
    world.add("S0");
    until_ready(&world, "True");
    let name = world.drive_name("S0");
    world.settled();
    let world = World::start_with(world.stop(), 11, IMPATIENT);
    until_ready(&world, "False");
    world.until("the drive says so", || world.condition("drives", &name, "Waiting") == "True");
    let (reason, message) = world.reason("drives", &name, "Waiting");
    assert_eq!(reason, "AgentUnreachable");
    assert_eq!(world.people.named("drives", &name)["status"]["waitingFor"], message);
    // Its term, the node, the drive that is in operation.
    assert_eq!(world.settled(), 3);
    world.wait(agent::join(&world.registry, 3));
    world.until("as it was", || world.condition("drives", &name, "Waiting").is_empty());
    until_ready(&world, "True");
    assert_eq!(world.settled(), 5);
    assert!(world.people.named("drives", &name)["status"]["waitingFor"].is_null());
}

#[test]
fn a_volume_whose_agent_stays_away_says_that_it_cannot_be_reached() {
    let world = World::start_with(World::new().stop(), 11, IMPATIENT);
    let told = || world.reason("volumes", VOLUME, "Inaccessible");
    world.until("told", || told().0 == "Unreachable");
    assert!(told().1.contains("cannot be reached"), "{}", told().1);
    assert_eq!(world.condition("volumes", VOLUME, "Created"), "True");
    // Its term, the node, its drive, its volume.
    assert_eq!(world.settled(), 4);
}

#[test]
fn an_attachment_says_that_its_node_cannot_reach_the_volume() {
    let world = World::new();
    let session = world.session();
    let told = || world.reason("attachments", ATTACHMENT, "Inaccessible");
    let report = |number, devices| {
        let fresh = vec![agent::drive(8), agent::drive(9)];
        let reporting = world.registry.report(session, number, devices, vec![], fresh);
        world.wait(reporting).unwrap();
    };
    assert_eq!(told().0, "");
    let devices = agent::registration(2).devices;
    report(1, devices[1..].to_vec());
    world.until("told", || told().0 == "Unreachable");
    assert!(told().1.contains("is missing"), "{}", told().1);
    assert_eq!(world.condition("attachments", ATTACHMENT, "Attached"), "True");
    // Both are written at the same time, by different calls.
    world.until("of the volume", || world.condition("volumes", VOLUME, "Inaccessible") == "True");
    report(2, devices);
    world.until("over", || told().0.is_empty());
    // Of what is wrong in other ways its agent alone knows.
    let (volume, access) = (VolumeId::from_bits(9 << 96), StagedAs::Real);
    let epoch = world.registry.read(move |cluster| cluster.volume(volume).unwrap().record.epoch);
    let epoch = world.wait(epoch).unwrap();
    let inaccessible = Some("it cannot be read".to_owned());
    let report = VolumeReport { volume, epoch, access, inaccessible };
    world.wait(world.registry.volume_report(session, report)).unwrap();
    world.until("told", || told().1 == "it cannot be read");
    assert_eq!(world.condition("attachments", ATTACHMENT, "Attached"), "True");
}

#[test]
fn at_rest_a_node_is_written_at_its_pace_and_no_drive() {
    let times = Times { beat: Duration::from_secs(1), ..TIMES };
    let world = World::start_with(server(), 10, times);
    world.wait(agent::join(&world.registry, 5));
    world.add("S0");
    until_ready(&world, "True");
    world.until("the node says so", || node(&world)["status"]["drivesInOperation"] == 1);
    let (writes, before, began) = (world.store.writes(), drives(&world), Instant::now());
    std::thread::sleep(Duration::from_secs(4));
    let written = world.store.writes() - writes;
    // A slow machine may have slept for longer.
    let most = usize::try_from(began.elapsed().as_secs()).unwrap() + 1;
    assert!((2..=most).contains(&written), "{written} in {:?}", began.elapsed());
    assert_eq!(drives(&world), before);
}

/// Registers as an agent that says this, and answers nothing.
fn register(
    world: &World,
    registration: Registration,
) -> Result<(SessionNumber, mpsc::Receiver<ToAgent>), CallError> {
    let (outbox, told) = mpsc::channel(64);
    world.wait(async {
        let session = world.registry.accept(outbox).await?;
        let drives = (0..registration.devices.len()).map(agent::drive).collect();
        let fresh = FreshIds { node: NodeId::from_bits(0xa << 64), drives };
        world.registry.register(session, None, registration, fresh).await?;
        Ok((session, told))
    })
}

#[test]
fn a_registry_that_went_back_in_time_says_so() {
    // At once, however long it waits for an agent that has only just gone.
    let times = Times { hold: Duration::from_secs(600), ..TIMES };
    let world = World::start_with(server(), 10, times);
    let session = world.wait(agent::join(&world.registry, 1));
    until_ready(&world, "True");
    close(&world, session);
    let newest_term = Some(Term { number: 99, id: TermId::from_bits(99) });
    register(&world, Registration { newest_term, ..agent::registration(1) }).unwrap_err();
    world.until("told", || {
        world.condition("storagenodes", "node-a", "RegistryRewound") == "True"
            && world.condition("registries", "registry", "RegistryRewound") == "True"
    });
    assert_eq!(world.reason("storagenodes", "node-a", "Ready").0, "RegistryRewound");
    let message = world.reason("registries", "registry", "RegistryRewound").1;
    assert!(message.contains("node-a") && message.contains("registry adopt"), "{message}");
    world.wait(agent::join(&world.registry, 1));
    until_ready(&world, "True");
    let gone = || world.condition("storagenodes", "node-a", "RegistryRewound").is_empty();
    world.until("over", gone);
}

#[test]
fn another_machine_under_the_name_of_a_node_is_told_of() {
    let world = World::start(server(), 10);
    world.wait(agent::join(&world.registry, 1));
    until_ready(&world, "True");
    let other = Registration { machine: MachineId::from_bits(7), ..agent::registration(1) };
    let refused = register(&world, other).unwrap_err().to_string();
    assert!(refused.contains("DuplicateNode"), "{refused}");
    world.until("told", || world.condition("storagenodes", "node-a", "DuplicateNode") == "True");
    assert_eq!(world.condition("storagenodes", "node-a", "Ready"), "True");
}

/// The next order of a drive.
fn order(world: &World, told: &mut mpsc::Receiver<ToAgent>) -> Order {
    world.wait(async {
        loop {
            match told.recv().await.unwrap() {
                ToAgent::Order(order) => return *order,
                ToAgent::Registered(_) | ToAgent::Volume(_) | ToAgent::ReportTaken { .. } => {}
            }
        }
    })
}

#[test]
fn a_drive_says_what_it_waits_for_and_that_it_is_gone() {
    let world = World::start(server(), 10);
    let (session, mut told) = register(&world, agent::registration(1)).unwrap();
    let name = world.drive_name("S0");
    world.act(Action::AddDevice(Target { host: None, device: "S0".into() }));
    let Order { drive, ordered, incarnation, .. } = order(&world, &mut told);
    let answer = |result| {
        let answer = Answer { drive, ordered, incarnation, result };
        world.wait(world.registry.answer(session, answer)).unwrap();
    };
    answer(AnswerResult::Waiting(Obstacle::AttachFailed { error: "it is dead".into() }));
    world.until("why", || world.reason("drives", &name, "Waiting").0 == "AttachFailed");
    let told = world.people.named("drives", &name);
    assert_eq!(told["status"]["waitingFor"], "it cannot be attached: it is dead");
    assert_eq!(condition(&told, "InOperation")["status"], "False");
    answer(AnswerResult::Done);
    world.until("over", || {
        let now = world.people.named("drives", &name);
        condition(&now, "Waiting").is_null() && condition(&now, "InOperation")["status"] == "True"
    });
    let report = |number, devices| {
        let fresh = vec![agent::drive(9)];
        let reporting = world.registry.report(session, number, devices, vec![], fresh);
        world.wait(reporting).unwrap();
    };
    report(1, vec![]);
    world.until("gone", || world.condition("drives", &name, "Missing") == "True");
    assert_eq!(world.people.named("drives", &name)["status"]["present"], false);
    report(2, agent::registration(1).devices);
    world.until("back", || world.condition("drives", &name, "Missing").is_empty());
}

/// A world whose `node-a` is a Kubernetes Node, and is known to be one.
pub(crate) fn in_a_cluster(drives: usize, times: Times) -> (World, SessionNumber) {
    let server = server();
    set_machine(&server, "node-a", true);
    let world = World::start_with(server, 10, times);
    let session = world.wait(agent::join(&world.registry, drives));
    world.until("noted", || node(&world)["status"]["kubernetesNode"] == "node-a");
    until_ready(&world, "True");
    (world, session)
}

#[test]
fn a_machine_that_leaves_the_cluster_is_forgotten_and_is_new_when_it_comes_back() {
    let (world, session) = in_a_cluster(2, TIMES);
    close(&world, session);
    until_ready(&world, "False");
    set_machine(&world.server, "node-a", false);
    world.until("forgotten", || {
        world.people.list("storagenodes").is_empty() && world.people.list("drives").is_empty()
    });
    world.until_told("Host node-a is forgotten", 1);
    let writes = world.settled();
    world.until_told("written again", 0);
    assert_eq!(world.settled(), writes);
    world.wait(agent::join(&world.registry, 2));
    until_ready(&world, "True");
    assert_eq!(world.people.list("drives").len(), 2);
    // It is no Kubernetes Node now: nothing follows from that.
    std::thread::sleep(TIMES.gone * 2);
    assert!(node(&world)["status"]["kubernetesNode"].is_null());
    assert_eq!(world.condition("storagenodes", "node-a", "KubernetesNodeGone"), "");
}

#[test]
fn a_machine_that_is_needed_is_kept_and_says_why_until_its_node_is_back() {
    let (world, session) = in_a_cluster(2, TIMES);
    world.add("S0");
    set_machine(&world.server, "node-a", false);
    let gone = || world.reason("storagenodes", "node-a", "KubernetesNodeGone");
    world.until("kept", || gone().0 == "StillNeeded");
    let drive = world.drive_name("S0");
    world.until("why", || gone().1.contains("its agent is connected") && gone().1.contains(&drive));
    std::thread::sleep(TIMES.gone * 2);
    close(&world, session);
    world.settled();
    assert_eq!(world.condition("storagenodes", "node-a", "KubernetesNodeGone"), "True");
    assert_eq!(world.people.list("drives").len(), 2, "a drive is in operation");
    set_machine(&world.server, "node-a", true);
    let over = || world.condition("storagenodes", "node-a", "KubernetesNodeGone").is_empty();
    world.until("back", over);
    set_machine(&world.server, "node-a", false);
}

/// It was deleted while nobody led. That it was a Kubernetes Node stands in the object.
#[test]
fn a_new_leader_forgets_what_left_the_cluster_before_it() {
    let (world, _) = in_a_cluster(1, TIMES);
    let server = world.stop();
    set_machine(&server, "node-a", false);
    let world = World::start_with(server, 11, IMPATIENT);
    world.until("forgotten", || world.people.list("storagenodes").is_empty());
    assert!(world.people.list("drives").is_empty());
}

#[test]
fn a_machine_from_outside_of_the_cluster_is_not_forgotten() {
    let server = server();
    set_machine(&server, "node-a", false);
    set_machine(&server, "another", true);
    let world = World::start_with(server, 10, IMPATIENT);
    let session = world.wait(agent::join(&world.registry, 1));
    until_ready(&world, "True");
    close(&world, session);
    until_ready(&world, "False");
    std::thread::sleep(TIMES.gone * 2);
    world.settled();
    assert_eq!(world.people.list("storagenodes").len(), 1);
    assert_eq!(world.condition("storagenodes", "node-a", "KubernetesNodeGone"), "");
    // The list of Nodes was read: one that comes is noticed.
    set_machine(&world.server, "node-a", true);
    world.until("noted", || node(&world)["status"]["kubernetesNode"] == "node-a");
    set_machine(&world.server, "node-a", false);
    set_machine(&world.server, "another", false);
}

#[test]
fn a_deleted_storage_node_comes_back_with_all_that_was_said_of_it() {
    let (world, _) = in_a_cluster(1, TIMES);
    world.settled();
    let before = node(&world)["status"].clone();
    world.people.succeed(Method::DELETE, "storagenodes/node-a", &json!({}));
    world.until("back", || node(&world)["status"] == before);
    set_machine(&world.server, "node-a", false);
}

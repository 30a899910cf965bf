//! The leader stalls between a decision and its write, between the two calls of a new object, and between two writes of
//! one action, with creates and updates under way; it goes on when another leads, at once or long after. What it still
//! sends stands as an earlier decision or comes too late, and nothing is done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::LEASE;
use crate::rig::csi::{create, dial, publish};
use crate::rig::{Rig, until, until_true};

/// Volumes that are asked for in each round.
const VOLUMES: usize = 16;

/// When the stalled process goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goes {
    /// As soon as another holds the Lease: before that one has written anything, maybe.
    AtOnce,
    /// When all that was asked for is done.
    Late,
}

/// A step, and when it goes on from there.
type Round = (&'static str, Goes);

/// It has only to send an object, and does so before it hears that its time is over; as a rule.
const TOO_LATE: Round = ("object-begun", Goes::Late);
/// So many more of them, if nothing came too late.
const MORE_ROUNDS: usize = 8;

const ROUNDS: [Round; 6] = [
    ("registry-batch-decided", Goes::AtOnce),
    ("object-made", Goes::Late),
    ("object-written", Goes::AtOnce),
    TOO_LATE,
    ("object-made", Goes::AtOnce),
    ("object-written", Goes::Late),
];

/// Follows all objects of a kind, from the first to the last version.
struct Follower {
    plural: &'static str,
    kubectl: Child,
    file: PathBuf,
}

/// One version of an object.
#[derive(Debug)]
struct Version {
    uid: String,
    /// Its version for the server, which counts over all objects.
    number: u64,
    /// Of a drive.
    generation: u64,
    /// The number of the term that wrote its status; 0 if it has none.
    term: u64,
    /// The same of the term that made it.
    made_under: u64,
}

impl Follower {
    fn start(rig: &Rig, plural: &'static str) -> Self {
        let file = rig.path(&format!("{plural}.seen"));
        let path = concat!(
            "jsonpath={.metadata.uid} {.metadata.resourceVersion} {.status.record.generation}",
            " {.status.term.number} {.metadata.annotations.hotbay\\.dev/made-under-term}{\"\\n\"}"
        );
        let mut kubectl = rig.plane.kubectl().command();
        kubectl.args(["get", &format!("{plural}.hotbay.dev"), "--watch", "--request-timeout=0"]);
        kubectl.args(["--output", path]).stdout(File::create(&file).unwrap());
        let kubectl = kubectl.stdin(Stdio::null()).spawn().unwrap();
        let mut this = Self { plural, kubectl, file };
        this.until_up_to_date(rig);
        this
    }

    /// Waits until it has seen every object as it is now.
    fn until_up_to_date(&mut self, rig: &Rig) {
        let objects = rig.objects(self.plural);
        until(&format!("{} are seen as they are", self.plural), || {
            let ended = self.kubectl.try_wait().unwrap();
            assert!(ended.is_none(), "{} are not followed any more: {ended:?}", self.plural);
            let seen = self.seen();
            let is_seen = |object: &&Value| {
                let meta = &object["metadata"];
                let number: u64 = meta["resourceVersion"].as_str().unwrap().parse().unwrap();
                seen.iter().any(|version| meta["uid"] == version.uid && version.number >= number)
            };
            let behind = objects.iter().filter(|object| !is_seen(object)).count();
            if behind == 0 { Ok(()) } else { Err(format!("{behind} are not")) }
        });
    }

    fn seen(&self) -> Vec<Version> {
        let text = fs::read_to_string(&self.file).unwrap();
        // The last line may still be on its way.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let version = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            let [uid, number, generation, term, made_under] = words[..] else { panic!("{line:?}") };
            let [number, generation, term, made_under] =
                [number, generation, term, made_under].map(|text| text.parse().unwrap_or(0));
            Version { uid: uid.to_owned(), number, generation, term, made_under }
        };
        whole.lines().map(version).collect()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.kubectl.kill().unwrap_or_default();
        self.kubectl.wait().unwrap();
    }
}

/// Neither the generation of a drive nor the term of whoever wrote an object ever went down, and somebody wrote in
/// every round.
fn assert_only_rising(follower: &Follower, rounds: usize) {
    let mut seen = follower.seen();
    seen.retain(|version| version.term > 0);
    let mut last: BTreeMap<&str, &Version> = BTreeMap::new();
    for version in &seen {
        if let Some(before) = last.insert(&version.uid, version) {
            assert!(before.generation <= version.generation, "{before:?}, then {version:?}");
            assert!(before.term <= version.term, "{before:?}, then {version:?}");
        }
    }
    let terms: BTreeSet<_> = seen.iter().map(|version| version.term).collect();
    println!("{} versions of {} under {} terms", seen.len(), follower.plural, terms.len());
    assert!(terms.len() >= rounds, "{}: {terms:?}", follower.plural);
}

/// How many objects were made under a term after the next one had begun: by a leader that did not know it yet.
fn late_creates(registry: &Follower, objects: &Follower) -> usize {
    let registry = registry.seen();
    let ended = |term: u64| {
        let later = registry.iter().filter(|version| version.term > term);
        later.map(|version| version.number).min().unwrap_or(u64::MAX)
    };
    let mut made: BTreeMap<String, Version> = BTreeMap::new();
    for version in objects.seen() {
        made.entry(version.uid.clone()).or_insert(version);
    }
    let is_late = |first: &&Version| first.made_under > 0 && first.number > ended(first.made_under);
    made.values().filter(is_late).count()
}

/// Asks for volumes, and has the node use them, through controllers that do not lead; counts what is done.
fn ask(rig: &Rig, runtime: &Runtime, leader: usize, round: usize) -> Arc<AtomicUsize> {
    let done = Arc::new(AtomicUsize::new(0));
    let node = rig.objects("storagenodes")[0]["status"]["id"].as_str().unwrap().to_owned();
    let _on_it = runtime.enter();
    let others = rig.controllers.iter().filter(|each| each.number != leader);
    let clients: Vec<_> = others.map(|each| dial(each.csi())).collect();
    for number in 0..VOLUMES {
        let (client, done) = (clients[number % clients.len()].clone(), Arc::clone(&done));
        let (name, node) = (format!("stall-{round}-{number}"), node.clone());
        runtime.spawn(async move {
            let volume = create(client.clone(), name).await;
            publish(client, &volume, &node).await;
            done.fetch_add(1, Ordering::SeqCst);
        });
    }
    done
}

/// Wishes by its object that a drive be in operation, or not.
fn wish(rig: &Rig, drive: &str, in_operation: bool) {
    let patch = format!(r#"{{"spec":{{"inOperation":{in_operation}}}}}"#);
    let drive = format!("drive/{drive}");
    rig.plane.kubectl().run(&["patch", &drive, "--type", "merge", "-p", &patch]).unwrap();
}

/// Whether the wish about a drive is fulfilled.
fn is_as_wished(rig: &Rig, drive: &str, in_operation: bool) -> bool {
    let drives = rig.objects("drives");
    let drive = drives.iter().find(|each| each["metadata"]["name"] == drive).unwrap();
    let state = drive["status"]["state"].as_str().unwrap_or_default();
    state == if in_operation { "AttachedDevice" } else { "DetachedDevice" }
}

/// One stall; gives how long nobody led.
fn stall(
    rig: &mut Rig,
    runtime: &Runtime,
    round: usize,
    (step, goes): Round,
    spare: &str,
) -> Duration {
    until("everybody is ready", || {
        rig.restart_ended();
        rig.controllers.iter().try_for_each(|each| each.probe("/readyz").map(drop))
    });
    let leader = rig.leader(None);
    let (stop, in_operation) = (rig.stop_file(), round.is_multiple_of(2));
    fs::write(&stop, step).unwrap();
    let done = ask(rig, runtime, leader, round);
    wish(rig, spare, in_operation);
    until_true("the leader stalls", || !stop.exists());
    let since = Instant::now();
    until_true("it is stopped", || rig.controllers[leader].process.is_stopped());
    let next = rig.leader(Some(leader));
    let took = since.elapsed();
    assert!(rig.controllers[next].probe("/readyz").is_ok());
    if goes == Goes::AtOnce {
        rig.controllers[leader].process.signal(Signal::CONT);
    }
    // One that finds a late write of the one before ends, and starts again.
    let mut restarted = 0;
    until("all that was asked for is done", || {
        restarted += rig.restart_ended();
        let done = done.load(Ordering::SeqCst);
        let wished = is_as_wished(rig, spare, in_operation);
        if done == VOLUMES && wished { Ok(()) } else { Err(format!("{done}, drive {wished}")) }
    });
    if goes == Goes::Late {
        rig.controllers[leader].process.signal(Signal::CONT);
        until_true("the old leader ends", || rig.controllers[leader].process.has_ended());
    }
    until("everybody is ready again", || {
        restarted += rig.restart_ended();
        if restarted == 0 {
            return Err("the process that has lost its lead goes on".to_owned());
        }
        rig.controllers.iter().try_for_each(|each| each.probe("/readyz").map(drop))
    });
    println!(
        "stalled at {step}, went on {goes:?}: another led after {took:?} (lease {LEASE} s), all done after \
         {:?}, {restarted} processes started again",
        since.elapsed()
    );
    took
}

/// What is on the labels, in the objects and in the agent's memory is the same.
fn assert_all_agree(rig: &Rig, rounds: usize) {
    let volumes = rig.objects("volumes");
    let name = |volume: &Value| volume["status"]["record"]["name"].to_string();
    let names: BTreeSet<_> = volumes.iter().map(name).collect();
    assert_eq!((volumes.len(), names.len()), (VOLUMES * rounds, VOLUMES * rounds));
    let id = |object: &Value| object["status"]["id"].as_str().unwrap().to_owned();
    let mut known: Vec<_> = volumes.iter().map(id).collect();
    let labels = rig.agent().labels();
    let extents = labels.iter().flat_map(|label| label["extents"].as_array().unwrap());
    let mut on_labels: Vec<_> =
        extents.map(|extent| extent["volume"].as_str().unwrap().replace('-', "")).collect();
    known.sort();
    on_labels.sort();
    assert_eq!(on_labels, known, "the labels have other volumes than the objects");
    let registry = &rig.objects("registries")[0];
    let terms = registry["status"]["record"]["terms"].as_array().unwrap().clone();
    for kind in ["registries", "storagenodes", "drives", "volumes", "attachments"] {
        for object in rig.objects(kind) {
            let term = &object["status"]["term"];
            assert!(terms.contains(term), "{kind}: {term} is none of {terms:?}");
        }
    }
    let memory = rig.agent().memory();
    assert_eq!(&memory["term"], terms.last().unwrap(), "the agent obeys somebody else");
    for drive in rig.objects("drives") {
        let seen = memory["drives"].as_object().unwrap().iter();
        let seen = seen.map(|(id, drive)| (id.replace('-', ""), &drive["seen"]));
        let seen: BTreeMap<_, _> = seen.collect();
        let ours = &drive["status"]["record"]["generation"];
        assert_eq!(&seen[&id(&drive)]["stamp"]["generation"], ours, "{drive}");
    }
}

#[test]
fn a_leader_that_stalls_between_two_steps_does_no_harm_when_it_goes_on() {
    let mut rig = Rig::with_lease(3, LEASE);
    // The last one has no room for any volume: it goes in and out of operation.
    rig.start_agent_over(&[1 << 30, 1 << 30, 16 << 20]);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let spare = rig.drive_name(2);
    rig.client(&["drive", "remove", &spare, "--wait"]);
    let mut followers = ["registries", "drives", "volumes", "attachments"]
        .map(|plural| Follower::start(&rig, plural));
    let (mut took, mut late) = (Vec::new(), 0);
    for round in ROUNDS.into_iter().chain([TOO_LATE; MORE_ROUNDS]) {
        if took.len() >= ROUNDS.len() && late > 0 {
            break;
        }
        took.push(stall(&mut rig, &runtime, took.len(), round, &spare));
        followers.iter_mut().for_each(|follower| follower.until_up_to_date(&rig));
        let [registry, _, volumes, uses] = &followers;
        late = late_creates(registry, volumes) + late_creates(registry, uses);
    }
    println!("failover: {took:?}");
    let settled = || -> Result<(), String> {
        let half = |object: &Value| object["status"]["term"].is_null();
        let half: Vec<_> = rig.objects("volumes").into_iter().filter(half).collect();
        if half.is_empty() { Ok(()) } else { Err(format!("{half:?}")) }
    };
    until("late creates are removed", settled);
    assert_all_agree(&rig, took.len());
    println!("{late} objects were made by a leader whose time was over");
    assert!(late > 0, "nobody came too late");
    followers.iter_mut().for_each(|follower| follower.until_up_to_date(&rig));
    followers.iter().for_each(|follower| assert_only_rising(follower, took.len()));
}

//! etcd as it was before two elections, with drives removed and added, volumes made, attached and deleted since.

use std::collections::BTreeMap;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::controllers::csi::{dial, publish};
use crate::controllers::mounted::{Writer, mount, unmount};
use crate::controllers::{Rig, STEADY_LEASE, until, until_true};

const MIB: u64 = 1 << 20;
/// How long an agent is watched to get no order; it registers again many times.
const WATCHED: Duration = Duration::from_secs(4);
const LETTER: &str = "dear reader";

fn target(rig: &Rig, drive: usize) -> String {
    format!("{}:{}", rig.node, rig.agent().drives[drive].display())
}

/// Another one leads; the one before is started again.
fn elect(rig: &mut Rig, signal: Signal) {
    let before = rig.leader(None);
    rig.controllers[before].process.signal(signal);
    rig.controllers[before].process.ends();
    rig.leader(Some(before));
    rig.restart(before);
}

/// State and generation of every drive, by its name.
fn drives(rig: &Rig) -> BTreeMap<String, (String, u64)> {
    let list = rig.shown(&["get", "drives"]);
    let drive = |drive: &Value| {
        let (name, status) = (drive["metadata"]["name"].as_str().unwrap(), &drive["status"]);
        let generation = status["goal"]["generation"].as_u64().unwrap_or(0);
        (name.to_owned(), (status["state"].as_str().unwrap().to_owned(), generation))
    };
    list["items"].as_array().unwrap().iter().map(drive).collect()
}

fn volume(rig: &Rig, name: &str) -> Option<Value> {
    let list = rig.shown(&["get", "volumes"]);
    let volumes = list["items"].as_array().unwrap();
    volumes.iter().find(|volume| volume["metadata"]["name"] == name).cloned()
}

/// The number of the drive whose label has a volume, and which MiB of it.
fn place(rig: &Rig, volume: &str) -> (usize, std::ops::Range<usize>) {
    let labels = rig.agent().labels();
    let found = labels.iter().enumerate().find_map(|(number, label)| {
        let extents = label["extents"].as_array()?;
        let extent = extents.iter().find(|extent| extent["name"] == volume)?;
        let at = |field: &str| usize::try_from(extent[field].as_u64().unwrap() / MIB).unwrap();
        let (start, length) = (at("startBytes"), at("lengthBytes"));
        Some((number, start..start + length))
    });
    found.unwrap_or_else(|| panic!("no {volume} in {labels:?}"))
}

/// What happens after the backup, under two more leaders.
fn go_on(rig: &mut Rig) {
    elect(rig, Signal::TERM);
    let (second, third) = (target(rig, 1), target(rig, 2));
    rig.client(&["drive", "remove", &second, "--wait"]);
    rig.client(&["drive", "add", &second, "--wait"]);
    rig.client(&["drive", "add", &third, "--wait"]);
    rig.client(&["volume", "create", "later", "--size", "32MiB"]);
    let at = mount(rig, "later");
    fs::write(at.join("letter"), LETTER).unwrap();
    unmount(rig, "later");
    elect(rig, Signal::KILL);
    unmount(rig, "ended");
    rig.client(&["volume", "delete", "gone", "--yes"]);
    // Of the two new drives the one without a volume is removed again.
    let empty = if place(rig, "later").0 == 1 { 2 } else { 1 };
    rig.client(&["drive", "remove", &target(rig, empty), "--wait"]);
    let id = |object: &Value| object["status"]["id"].as_str().unwrap().to_owned();
    let (nodes, volumes) = (rig.objects("storagenodes"), rig.objects("volumes"));
    let later = volumes.iter().find(|volume| volume["metadata"]["name"] == "later").unwrap();
    let (node, later) = (id(&nodes[0]), id(later));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let csi = rig.controllers[rig.leader(None)].csi();
    runtime.block_on(async { publish(dial(csi), &later, &node).await });
}

/// The registry says what it is, and does nothing; what an administrator would look at shows it.
fn assert_nothing_is_ordered(rig: &Rig) {
    let rewound = |rig: &Rig| {
        let nodes = rig.try_client(&["get", "nodes", "-o", "json"])?;
        nodes.contains("RegistryRewound").then_some(()).ok_or(nodes)
    };
    until("the node says that it knows more", || rewound(rig));
    let (record, labels) = (rig.agent().record(), rig.agent().labels());
    let text = rig.client(&["describe", "node", &rig.node]);
    assert!(text.contains("hotbay registry adopt"), "{text}");
    let text = rig.try_client(&["status"]).unwrap_err();
    assert!(text.contains("hotbay registry adopt"), "{text}");
    let text = rig.client(&["events"]);
    assert!(text.contains("RegistryRewound"), "{text}");
    let text = rig.try_client(&["drive", "remove", &target(rig, 0)]).unwrap_err();
    assert!(text.contains("RegistryRewound"), "{text}");
    rig.try_client(&["volume", "create", "new", "--size", "16MiB"]).unwrap_err();
    until("Kubernetes has the event", || {
        let events = rig.plane.kubectl().run(&["get", "events", "-A"]).unwrap();
        events.contains("RegistryRewound").then_some(()).ok_or(events)
    });
    sleep(WATCHED);
    rewound(rig).unwrap();
    assert_eq!(rig.agent().record(), record, "the agent was given an order");
    assert_eq!(rig.agent().labels(), labels, "a label was written");
}

#[test]
fn a_restored_registry_learns_what_it_forgot_and_overwrites_nothing() {
    let mut rig = Rig::with_lease(2, STEADY_LEASE);
    rig.start_idle_agent(&[192 * MIB; 3]);
    rig.client(&["drive", "add", &target(&rig, 0), "--wait"]);
    for name in ["kept", "ended", "gone"] {
        rig.client(&["volume", "create", name, "--size", "32MiB"]);
    }
    let (kept, _) = (mount(&rig, "kept"), mount(&rig, "ended"));
    let writer = Writer::start(&kept);
    rig.client(&["drive", "add", &target(&rig, 1), "--wait"]);
    let backup = rig.path("backup");
    rig.plane.save_snapshot(&backup).unwrap();
    go_on(&mut rig);
    let (before, memory) = (drives(&rig), rig.agent().memory());
    println!("before: {before:?}");

    for controller in &mut rig.controllers {
        controller.process.kill();
    }
    rig.plane.restore_snapshot(&backup).unwrap();
    (0..2).for_each(|number| rig.restart(number));
    assert_nothing_is_ordered(&rig);

    // Nothing beyond the labels changes by adopting, but for what the program on the first volume writes.
    let (drive, busy) = place(&rig, "kept");
    let untouched = |rig: &Rig| {
        let mut bytes = rig.agent().bytes();
        bytes.retain(|(at, mib), _| *at != drive || !busy.contains(mib));
        bytes
    };
    let bytes = untouched(&rig);
    assert!(!bytes.is_empty());
    let shown = rig.try_client(&["registry", "adopt"]).unwrap_err();
    println!("{shown}");
    let differ =
        ["never had that term", "has seen generation", "volume ended: was told to end use"];
    for difference in differ {
        assert!(shown.contains(difference), "{shown}");
    }
    assert_eq!(shown.matches("has seen generation").count(), 2, "the two drives: {shown}");
    rig.client(&["registry", "adopt", "--yes"]);

    until("everything is as it was", || {
        let now = drives(&rig);
        let same = before.iter().filter(|(name, (was, reached))| {
            let now = now.get(*name);
            now.is_some_and(|(state, generation)| state == was && generation >= reached)
        });
        let all = same.count() == before.len() && now.len() == before.len();
        if all { Ok(()) } else { Err(format!("{now:?}")) }
    });
    let terms = rig.objects("registries")[0]["status"]["record"]["terms"].clone();
    let terms = terms.as_array().unwrap();
    assert!(terms.contains(&memory["term"]), "{memory} is not in {terms:?}");
    assert_eq!(Some(&rig.agent().memory()["term"]), terms.last());
    until_true("the lost volume is told", || {
        volume(&rig, "gone").is_some_and(|gone| gone["status"]["state"] == "Lost")
    });
    assert_eq!(untouched(&rig), bytes, "something was written beyond the labels");
    assert!(volume(&rig, "later").is_some(), "{}", rig.client(&["get", "volumes"]));
    let at = mount(&rig, "later");
    assert_eq!(fs::read_to_string(at.join("letter")).unwrap(), LETTER);
    assert!(rig.objects("volumes").iter().any(|each| each["metadata"]["name"] == "later"));
    writer.end();
    rig.client(&["volume", "delete", "gone", "--yes"]);
    for name in ["later", "kept"] {
        unmount(&rig, name);
    }
    rig.client(&["status"]);
}

//! What Hotbay writes to the API server, counted in the server's own audit log: for the life of a volume, at rest, and
//! when an agent or the leader starts anew. `docs/design/0010-kubernetes-store.md` says what each write is for.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use hotbay_api::csi::controller_client::ControllerClient;
use rustix::process::Signal;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::rig::csi::{self, dial};
use crate::rig::{Rig, STEADY_LEASE, until};

/// Writes of one volume from its creation to its end: to its own objects, and to its drive.
const OWN: usize = 11;
const OF_ITS_DRIVE: usize = 2;
/// A volume or an attachment that is still being made after this time is shown, by a write more: `SHOWN_AFTER` in the
/// crate hotbay-kubernetes.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// One that waits for so long says what for, and may do so again in other words after as long: `Times::hold` there.
const SAYS_SO_EVERY: Duration = Duration::from_secs(5);
/// How many volumes may have to wait so long, on a machine that has much else to do, before one has not.
const LIVES: usize = 10;
const MANY: usize = 50;
const DRIVES: usize = 20;
/// How long nothing is written before it counts as over.
const QUIET: Duration = Duration::from_secs(2);
const AT_REST: Duration = Duration::from_secs(8);
/// An agent that is back within this time was not missed: shorter than it is waited for.
const NOT_MISSED: Duration = Duration::from_secs(4);
/// Longer than what an agent says after its start takes to count, and then to be told.
const COUNTS: Duration = Duration::from_secs(12);
const RESTARTS: usize = 5;
/// A node is written so often because it is connected; in seconds, with some room.
const BEAT: u64 = 295;
const DAY: u64 = 24 * 3600;

/// How often each thing was written since a place in the log. What fails counts like what succeeds; what only says that
/// a node is still connected does not.
type Writes = BTreeMap<String, usize>;

fn writes(rig: &Rig, since: usize) -> Writes {
    let log = fs::read_to_string(rig.plane.audit_log()).unwrap();
    let (mut writes, mut of_nodes) = (Writes::new(), BTreeMap::new());
    for (number, line) in log.lines().enumerate() {
        // The last line may still be on its way.
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let (verb, object) = (event["verb"].as_str().unwrap_or_default(), &event["objectRef"]);
        let is_read = ["get", "list", "watch"].contains(&verb);
        if object["apiGroup"] != "hotbay.dev" || is_read {
            continue;
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let mut is_beat = false;
        if text("resource") == "storagenodes" {
            let second = second(&event);
            let before = of_nodes.insert(text("name"), second);
            is_beat = before.is_some_and(|before| (second + DAY - before) % DAY >= BEAT);
        }
        if number >= since && !is_beat {
            let below = object["subresource"].as_str().map(|below| format!("/{below}"));
            let what = format!("{verb} {}{}", text("resource"), below.unwrap_or_default());
            *writes.entry(what).or_default() += 1;
        }
    }
    writes
}

/// When a request was made, in seconds since midnight.
fn second(event: &Value) -> u64 {
    let time = event["requestReceivedTimestamp"].as_str().unwrap();
    let (_, time) = time.split_once('T').unwrap();
    let parts = time[..8].split(':').map(|part| part.parse::<u64>().unwrap());
    parts.fold(0, |sum, part| sum * 60 + part)
}

fn lines(rig: &Rig) -> usize {
    fs::read_to_string(rig.plane.audit_log()).unwrap().lines().count()
}

/// Waits until nothing more is written.
fn settled(rig: &Rig, since: usize) -> Writes {
    let mut before = writes(rig, since);
    until("nothing is written any more", || {
        std::thread::sleep(QUIET);
        let now = writes(rig, since);
        let last = std::mem::replace(&mut before, now.clone());
        if last == now { Ok(now) } else { Err(format!("{now:?}")) }
    })
}

fn sum(writes: &Writes) -> usize {
    writes.values().sum()
}

/// How many of them are to objects of these kinds.
fn to(writes: &Writes, kinds: &[&str]) -> usize {
    let meant = writes.iter().filter(|(what, _)| kinds.iter().any(|kind| what.contains(kind)));
    meant.map(|(_, count)| count).sum()
}

/// Ends the agent and starts it again; gives the place in the log before it. On a machine that has much else to do this
/// may take so long that the agent is missed, which is told, or that another controller leads: then it is tried again.
fn start_agent_anew(rig: &mut Rig) -> usize {
    let registered = |rig: &Rig| rig.agent().log().matches("\"registered\"").count();
    let leads = |rig: &Rig| {
        let led = |log: String| log.matches("this controller leads").count();
        rig.controllers.iter().map(|controller| led(controller.log())).sum::<usize>()
    };
    for _ in 0..RESTARTS {
        let led = leads(rig);
        let (since, starts, began) = (lines(rig), registered(rig), Instant::now());
        rig.start_agent_again();
        until("the agent is back", || {
            let now = registered(rig);
            if now > starts { Ok(()) } else { Err(format!("{now}")) }
        });
        let took = began.elapsed();
        println!("the agent is back after {took:?}");
        rig.drives_are_in_operation();
        std::thread::sleep(COUNTS);
        if took < NOT_MISSED && leads(rig) == led {
            return since;
        }
    }
    panic!(
        "an agent takes longer than {NOT_MISSED:?} to start, or nobody leads for longer than that"
    );
}

/// A volume as Kubernetes would have it: made, attached, detached, deleted. Gives how many writes more than [`OWN`] its
/// objects may have taken, because they had to wait: none for longer than the call that they were waited for in.
async fn live(client: ControllerClient<Channel>, node: String, name: String) -> usize {
    let mut calls = vec![Instant::now()];
    let volume = csi::create(client.clone(), name).await;
    calls.push(Instant::now());
    csi::publish(client.clone(), &volume, &node).await;
    calls.push(Instant::now());
    csi::unpublish(client.clone(), &volume, &node).await;
    calls.push(Instant::now());
    csi::delete(client, &volume).await;
    calls.push(Instant::now());
    let took: Vec<_> = calls.windows(2).map(|two| two[1] - two[0]).collect();
    let shown = took[..2].iter().filter(|took| **took >= SHOWN_AFTER).count();
    let said = took.iter().map(|took| took.as_secs() / SAYS_SO_EVERY.as_secs()).sum::<u64>();
    shown + usize::try_from(said).unwrap()
}

/// A volume that lives alone, and is never kept waiting, takes as many writes as there are reasons for. One that had to
/// wait may say so, and is followed by another one.
fn assert_writes_of_one(
    rig: &Rig,
    runtime: &Runtime,
    client: &ControllerClient<Channel>,
    node: &str,
) {
    for number in 0..LIVES {
        let since = lines(rig);
        let name = format!("alone-{number}");
        let waited = runtime.block_on(live(client.clone(), node.to_owned(), name));
        let alone = settled(rig, since);
        println!("one volume alone: {} writes, up to {waited} for waiting: {alone:?}", sum(&alone));
        assert_eq!(to(&alone, &["drives"]), OF_ITS_DRIVE, "{alone:?}");
        let own = sum(&alone) - OF_ITS_DRIVE;
        assert!((OWN..=OWN + waited).contains(&own), "{alone:?}");
        if waited == 0 {
            return;
        }
    }
    panic!("each of {LIVES} volumes was kept waiting for longer than {SHOWN_AFTER:?}");
}

#[test]
fn writes_are_few_and_none_where_nothing_changes() {
    let mut rig = Rig::with_lease(2, STEADY_LEASE);
    rig.start_agent(DRIVES, 256 << 20);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let _on_it = runtime.enter();
    let first = rig.leader(None);
    let client = dial(rig.controllers[first].csi());
    let id = ["get", "storagenodes", "-o", "jsonpath={.items[0].status.id}"];
    let node = rig.plane.kubectl().run(&id).unwrap();
    until("the node says that all its drives are in operation", || {
        let said = rig.objects("storagenodes")[0]["status"]["drivesInOperation"].clone();
        if said == DRIVES { Ok(()) } else { Err(said.to_string()) }
    });
    settled(&rig, 0);

    assert_writes_of_one(&rig, &runtime, &client, &node);
    let (since, began) = (lines(&rig), Instant::now());
    let waited: usize = runtime.block_on(async {
        let mut lives = JoinSet::new();
        for number in 0..MANY {
            lives.spawn(live(client.clone(), node.clone(), format!("many-{number}")));
        }
        lives.join_all().await.into_iter().sum()
    });
    let took = began.elapsed();
    let many = settled(&rig, since);
    #[expect(clippy::cast_precision_loss, reason = "they are few")]
    let each = sum(&many) as f64 / MANY as f64;
    println!(
        "{MANY} volumes at once, in {took:?}: {each:.2} writes each, up to {waited} for waiting: {many:?}"
    );
    // Those on one drive share its writes, if they come and go together.
    let of_drives = to(&many, &["drives"]);
    assert!(of_drives <= OF_ITS_DRIVE * MANY, "{many:?}");
    let own = sum(&many) - of_drives;
    assert!((OWN * MANY..=OWN * MANY + waited).contains(&own), "{many:?}");

    let since = lines(&rig);
    std::thread::sleep(AT_REST);
    let at_rest = writes(&rig, since);
    println!("at rest for {AT_REST:?}: {at_rest:?}");
    assert_eq!(at_rest, Writes::new());

    let since = start_agent_anew(&mut rig);
    let agent = settled(&rig, since);
    println!("the agent starts anew, with {DRIVES} drives: {agent:?}");
    assert_eq!(agent, Writes::new());

    let since = lines(&rig);
    rig.controllers[first].process.signal(Signal::KILL);
    let next = rig.leader(Some(first));
    let registered = format!("The agent of {} has registered", rig.node);
    until("the agent has found it", || {
        let events = rig.controllers[next].run(&["events"])?;
        events.contains(&registered).then_some(()).ok_or(events)
    });
    let leader = settled(&rig, since);
    println!("another leads, with {DRIVES} drives: {leader:?}");
    assert_eq!(to(&leader, &["drives", "volumes", "attachments"]), 0, "{leader:?}");
    assert_eq!(to(&leader, &["registries"]), 1, "its term: {leader:?}");
}

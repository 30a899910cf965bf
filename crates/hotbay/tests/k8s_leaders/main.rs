//! Several controllers on a real API server: one leads, and what was asked of any of them is done once, whether the
//! leader is killed, told to stop, or stalls and comes back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../controllers/mod.rs"]
mod rig;
mod stalls;
mod writes;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use rig::csi::{create, dial, is_ready};
use rig::moment::{Requests, catch};
use rig::{Rig, until, until_true};

const VOLUMES: usize = 100;
/// So many are objects when something is done to the leader: some are made then, and all others in some step of it.
const BEGUN: usize = 10;
/// Seconds. Another is to lead soon; and who leads is to be the one that something is done to, also where an API server
/// with much else to do answers late.
const LEASE: u64 = 6;
/// Seconds. So long that a lead which is waited for is told from one that was given back, however slow the machine is.
const LONG_LEASE: u64 = 60;
/// How long it takes at most until another leads, if the lead was given back. Who waits for the lease takes three
/// quarters of it at least, because it is renewed after a quarter.
const GIVEN_BACK: Duration = Duration::from_secs(LONG_LEASE / 3);
/// A leader that hears of its end only when it has given up asking takes a minute and a half.
const HEARD: Duration = Duration::from_secs(45);
/// How long no answer comes before somebody looks whether all controllers run.
const NO_ANSWER: Duration = Duration::from_millis(200);

/// Volumes that are being made.
struct Asked {
    answers: JoinSet<String>,
    answered: Arc<AtomicUsize>,
    began: Instant,
}

impl Asked {
    /// Asks for volumes through the sockets of controllers in turn; returns as soon as the first are objects.
    fn begin(rig: &Rig, runtime: &Runtime, sockets: &[PathBuf], prefix: &str) -> Self {
        let requests = Requests::from_now(rig.plane.audit_log());
        let _on_it = runtime.enter();
        let clients: Vec<_> = sockets.iter().cloned().map(dial).collect();
        let (mut answers, began) = (JoinSet::new(), Instant::now());
        let answered = Arc::new(AtomicUsize::new(0));
        for number in 0..VOLUMES {
            let (client, answered) = (clients[number % clients.len()].clone(), answered.clone());
            let name = format!("{prefix}-{number}");
            answers.spawn(async move {
                let id = create(client, name).await;
                answered.fetch_add(1, Ordering::SeqCst);
                id
            });
        }
        catch("the first volumes are objects", || requests.volumes_made() >= BEGUN);
        Self { answers, answered, began }
    }

    /// Whatever was done to a leader just now was done while volumes were being made.
    fn assert_under_way(&self) {
        let answered = self.answered.load(Ordering::SeqCst);
        assert!(answered < VOLUMES, "all of them were made before");
        println!("{answered} of {VOLUMES} volumes were made before");
    }

    /// Waits for the rest; gives what each was called. On a machine that has much else to do a leader may lose its
    /// lease by itself: it ends, and is started again, as a kubelet does. Not so those that the test
    /// has ended, or is about to.
    fn end(mut self, rig: &mut Rig, runtime: &Runtime, theirs: &[usize]) -> Vec<String> {
        let (mut ids, mut restarted) = (Vec::new(), 0);
        loop {
            let next = async { tokio::time::timeout(NO_ANSWER, self.answers.join_next()).await };
            match runtime.block_on(next) {
                Ok(Some(answer)) => ids.push(answer.unwrap()),
                Ok(None) => break,
                Err(_) => restarted += rig.restart_ended_but(theirs),
            }
        }
        let took = self.began.elapsed();
        println!("{VOLUMES} volumes: {took:?}, {restarted} other controllers started again");
        ids
    }
}

/// Every volume that was answered as made is an object, and there are no others.
fn until_all_are_there(rig: &mut Rig, made: &BTreeSet<String>, theirs: &[usize]) {
    let list = ["get", "volumes.hotbay.dev", "-o", "jsonpath={.items[*].status.id}"];
    until("every volume is an object", || {
        rig.restart_ended_but(theirs);
        let list = rig.plane.kubectl().run(&list).unwrap();
        let there: BTreeSet<_> = list.split_whitespace().map(str::to_owned).collect();
        if there == *made { Ok(()) } else { Err(format!("{}: {}", there.len(), rig.logs())) }
    });
}

#[test]
fn leader_is_killed_and_the_next_one_stalls_while_volumes_are_made() {
    let mut rig = Rig::with_lease(3, LEASE);
    rig.start_agent(2, 4 << 30);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = rig.leader(None);

    // Through the sidecars of those that live on: their own leader is the one that dies.
    let others: Vec<_> = (0..3).filter(|number| *number != first).collect();
    let sockets: Vec<_> = others.iter().map(|number| rig.controllers[*number].csi()).collect();
    let asked = Asked::begin(&rig, &runtime, &sockets, "killed");
    rig.controllers[first].process.signal(Signal::KILL);
    asked.assert_under_way();
    let mut made: BTreeSet<_> = asked.end(&mut rig, &runtime, &[first]).into_iter().collect();
    assert_eq!(made.len(), VOLUMES, "an id was given twice");
    until_all_are_there(&mut rig, &made, &[first]);

    // The next one stalls in the middle of its decisions, and comes back when another has taken over.
    let second = rig.leader(Some(first));
    let third = others.into_iter().find(|number| *number != second).unwrap();
    let asked = Asked::begin(&rig, &runtime, &[rig.controllers[third].csi()], "stalled");
    rig.controllers[second].process.signal(Signal::STOP);
    asked.assert_under_way();
    let stalled = Instant::now();
    assert_eq!(rig.leader(Some(second)), third);
    let took = stalled.elapsed();
    println!("another leads {took:?} after the leader stalled, with a lease of {LEASE} s");
    rig.controllers[second].process.signal(Signal::CONT);
    made.extend(asked.end(&mut rig, &runtime, &[first, second]));
    assert_eq!(made.len(), VOLUMES * 2, "an id was given twice");
    assert!(
        !rig.controllers[second].process.ends(),
        "one that lost its lead ended as if all was well"
    );
    until_all_are_there(&mut rig, &made, &[first, second]);
    assert_eq!(rig.leader(None), third);
}

#[test]
fn a_leader_that_is_told_to_stop_gives_its_lead_back() {
    let mut rig = Rig::with_lease(2, LONG_LEASE);
    let first = rig.leader(None);
    rig.controllers[first].process.signal(Signal::TERM);
    assert!(rig.controllers[first].process.ends(), "{}", rig.logs());
    let told = Instant::now();
    assert_eq!(rig.leader(Some(first)), 1 - first);
    let took = told.elapsed();
    println!(
        "another leads {took:?} after the lead was given back, with a lease of {LONG_LEASE} s"
    );
    assert!(took < GIVEN_BACK, "the Lease was not given back: {took:?}");
    let transitions = rig.lease()["spec"]["leaseTransitions"].clone();
    assert_eq!(transitions, 1);
}

/// The story: a cluster of 31,000 objects takes 25 seconds to read, and a controller that was told to stop meanwhile
/// heard it when all were read. Here the server does not answer at all, and would be asked for a minute and a half. And
/// sidecars that started meanwhile were told that it was ready, and ended when their first call was refused.
#[test]
fn a_leader_that_loads_is_not_ready_and_hears_that_it_is_to_stop() {
    let mut rig = Rig::without_controllers(LONG_LEASE * 5);
    fs::write(rig.stop_file(), "registry-term-durable").unwrap();
    rig.controllers.push(rig.controller(0));
    until_true("it has its term, and stops", || rig.controllers[0].process.is_stopped());
    rig.plane.pause_api_server().unwrap();
    rig.controllers[0].process.signal(Signal::CONT);
    let runtime = Runtime::new().unwrap();
    assert!(!runtime.block_on(is_ready(rig.controllers[0].csi())));
    rig.controllers[0].process.signal(Signal::TERM);
    let told = Instant::now();
    assert!(rig.controllers[0].process.ends(), "{}", rig.logs());
    let took = told.elapsed();
    println!("ended {took:?} after it was told");
    assert!(took < HEARD, "it heard of it when it had given up asking: {took:?}");
    assert!(rig.controllers[0].log().contains("the lead is not given back"), "{}", rig.logs());
    rig.plane.resume_api_server().unwrap();
}

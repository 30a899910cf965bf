//! Several controllers on a real API server: one leads, and what was asked of any of them is done once, whether the
//! leader is killed, told to stop, or stalls and comes back.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../controllers/mod.rs"]
mod rig;
mod stalls;
mod writes;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::task::JoinSet;

use rig::csi::{create, dial};
use rig::{LEASE_DURATION, Rig, until};

const VOLUMES: usize = 100;

/// Creates volumes through the sockets of the controllers in turn, and hands back what each was called.
async fn create_all(
    sockets: &[PathBuf],
    prefix: &str,
    during: impl Future<Output = ()>,
) -> Vec<String> {
    let clients: Vec<_> = sockets.iter().cloned().map(dial).collect();
    let mut asked = JoinSet::new();
    for number in 0..VOLUMES {
        let client = clients[number % clients.len()].clone();
        asked.spawn(create(client, format!("{prefix}-{number}")));
    }
    let mut answers = Vec::new();
    tokio::pin!(during);
    let mut over = false;
    while answers.len() < VOLUMES {
        tokio::select! {
            () = &mut during, if !over => over = true,
            Some(answer) = asked.join_next() => answers.push(answer.unwrap()),
        }
    }
    if !over {
        during.await;
    }
    answers
}

fn volumes(rig: &Rig) -> BTreeSet<String> {
    let list = ["get", "volumes.hotbay.dev", "-o", "jsonpath={.items[*].status.id}"];
    rig.plane.kubectl().run(&list).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn leader_is_killed_and_the_next_one_stalls_while_volumes_are_made() {
    let mut rig = Rig::new(3);
    rig.start_agent(2, 4 << 30);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = rig.leader(None);

    // Through the sidecars of those that live on: their own leader is the one that dies.
    let others: Vec<_> = (0..3).filter(|number| *number != first).collect();
    let sockets: Vec<_> = others.iter().map(|number| rig.controllers[*number].csi()).collect();
    let began = Instant::now();
    let made = runtime.block_on(create_all(&sockets, "killed", async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        rig.controllers[first].process.signal(Signal::KILL);
    }));
    println!("{VOLUMES} volumes with the leader killed: {:?}", began.elapsed());
    assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), VOLUMES, "an id was given twice");
    let second = rig.leader(Some(first));
    until("every volume is an object", || {
        let there = volumes(&rig).len();
        if there == VOLUMES { Ok(()) } else { Err(format!("{there}: {}", rig.logs())) }
    });

    // It stalls in the middle of its decisions, and comes back when another has taken over.
    let third = others.into_iter().find(|number| *number != second).unwrap();
    let sockets = [rig.controllers[third].csi()];
    let began = Instant::now();
    let made = runtime.block_on(create_all(&sockets, "stalled", async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        rig.controllers[second].process.signal(Signal::STOP);
        let stalled = Instant::now();
        assert_eq!(tokio::task::block_in_place(|| rig.leader(Some(second))), third);
        let took = stalled.elapsed();
        println!(
            "another leads {took:?} after the leader stalled, with a lease of {LEASE_DURATION} s"
        );
        rig.controllers[second].process.signal(Signal::CONT);
    }));
    println!("{VOLUMES} volumes with the leader stalled: {:?}", began.elapsed());
    assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), VOLUMES, "an id was given twice");
    assert!(
        !rig.controllers[second].process.ends(),
        "one that lost its lead ended as if all was well"
    );
    let there = until("every volume is an object", || {
        let there = volumes(&rig);
        if there.len() == VOLUMES * 2 {
            Ok(there)
        } else {
            Err(format!("{}: {}", there.len(), rig.logs()))
        }
    });
    assert!(made.iter().all(|id| there.contains(id)));
    assert_eq!(rig.leader(None), third);
}

#[test]
fn a_leader_that_is_told_to_stop_gives_its_lead_back() {
    let mut rig = Rig::new(2);
    let first = rig.leader(None);
    rig.controllers[first].process.signal(Signal::TERM);
    assert!(rig.controllers[first].process.ends(), "{}", rig.logs());
    let told = Instant::now();
    assert_eq!(rig.leader(Some(first)), 1 - first);
    assert!(told.elapsed() < Duration::from_secs(LEASE_DURATION), "the Lease was not given back");
    let transitions = rig.lease()["spec"]["leaseTransitions"].clone();
    assert_eq!(transitions, 1);
}

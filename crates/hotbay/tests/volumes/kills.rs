//! kill -9 in the middle: the same call again succeeds, and nothing is left behind.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::cluster::{Cluster, eventually};
use crate::{extents, in_operation, volumes, wait_empty};

const CLIENTS: usize = 4;
const KILLS: u64 = 4;

/// Repeats a call until it is done. Whatever is in the way must be worth another try, or be gone already.
fn insist(api: &Path, arguments: &[&str], also: Option<i32>) {
    eventually(&format!("hotbay {arguments:?} is done"), || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(arguments).env("HOTBAY_API", api).stdin(Stdio::null());
        let output = command.output().unwrap();
        match output.status.code() {
            Some(0) => Some(()),
            Some(3) => None,
            code if code == also => Some(()),
            // A registry that has just started has not heard yet what is on the labels.
            Some(5) if String::from_utf8_lossy(&output.stderr).contains("its agent has not") => {
                None
            }
            code => panic!("hotbay {arguments:?} ended with {code:?}: {output:?}"),
        }
    });
}

/// Makes and deletes volumes while something is killed again and again.
fn while_killed(mut kill: impl FnMut(&mut Cluster, u64), mut cluster: Cluster) {
    let over = AtomicBool::new(false);
    let names: Vec<Vec<String>> = thread::scope(|scope| {
        let api = cluster.api();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (over, api) = (&over, api.clone());
                scope.spawn(move || {
                    let mut kept = Vec::new();
                    for number in 0.. {
                        if over.load(Ordering::Relaxed) {
                            break;
                        }
                        let name = format!("v-{client}-{number}");
                        insist(&api, &["volume", "create", &name, "--size", "1MiB"], None);
                        if number % 8 == 0 && kept.len() < 4 {
                            kept.push(name);
                        } else {
                            insist(&api, &["volume", "delete", &name, "--yes"], Some(4));
                        }
                    }
                    kept
                })
            })
            .collect();
        for round in 0..KILLS {
            kill(&mut cluster, round);
        }
        over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut kept: Vec<_> = names.concat();
    kept.sort();
    eventually("every label is told", || {
        let known = volumes(&cluster).len();
        let on_labels: usize = (0..2).map(|bay| extents(&cluster, bay).len()).sum();
        (known == kept.len() && on_labels == kept.len()).then_some(())
    });
    let listed = volumes(&cluster);
    let mut listed: Vec<_> = listed
        .iter()
        .map(|volume| volume["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, kept);
    for name in &kept {
        insist(&cluster.api(), &["volume", "delete", name, "--yes"], None);
    }
    wait_empty(&cluster, 2);
}

/// A moment that is another one in every round.
fn a_while(round: u64) {
    thread::sleep(Duration::from_millis(150 + 130 * round));
}

#[test]
fn the_registry_is_killed_and_nothing_is_left_behind() {
    let kill = |cluster: &mut Cluster, round| {
        a_while(round);
        cluster.registry.take().unwrap().kill();
        cluster.start_registry();
    };
    while_killed(kill, in_operation(2));
}

#[test]
fn the_agent_is_killed_and_nothing_is_left_behind() {
    let kill = |cluster: &mut Cluster, round| {
        a_while(round);
        cluster.agent.take().unwrap().kill();
        cluster.start_agent();
    };
    while_killed(kill, in_operation(2));
}

//! A crowd of callers: everybody gets what they ask for, and nothing is left of it.

use std::cell::Cell;
use std::rc::Rc;

use tokio::task::{JoinSet, LocalSet};

use crate::rig::{As, Caller, Rig, Volume, insist};

/// As many drives as the crowd's volumes of 4 MiB need.
const DRIVES: usize = 8;
const LIVES: usize = 100;
const CLIENTS: usize = 64;
const VOLUMES: usize = 1_000;

async fn live(mut volume: Volume, caller: Caller) {
    let name = volume.name.clone();
    insist(&name, async || volume.create(&caller).await).await;
    insist(&name, async || volume.attach(&caller).await).await;
    insist(&name, async || volume.stage(&caller).await).await;
    insist(&name, async || volume.publish(&caller).await).await;
    match volume.access {
        As::Filesystem | As::Xfs => {
            let file = format!("{}/whose", volume.target);
            std::fs::write(&file, &name).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), name);
        }
        As::Block => assert_eq!(volume.stats(&caller).await.unwrap(), volume.bytes),
    }
    let bytes = insist(&name, async || volume.stats(&caller).await).await;
    assert!(bytes > 0 && bytes <= volume.bytes, "{name} has {bytes} bytes");
    insist(&name, async || volume.unpublish(&caller).await).await;
    insist(&name, async || volume.unstage(&caller).await).await;
    insist(&name, async || volume.detach(&caller).await).await;
    insist(&name, async || volume.delete(&caller).await).await;
}

#[test]
fn a_hundred_callers_live_whole_lives_at_once() {
    let rig = Rig::new(DRIVES);
    // All in one thread: a caller waits most of the time.
    LocalSet::new().block_on(&rig.runtime, async {
        let mut lives = JoinSet::new();
        for number in 0..LIVES {
            let access = if number % 4 == 0 { As::Block } else { As::Filesystem };
            let volume = Volume::new(&rig, &format!("life-{number}"), access);
            lives.spawn_local(live(volume, rig.caller()));
        }
        lives.join_all().await;
    });
    rig.assert_nothing_left();
}

#[test]
fn a_thousand_volumes_are_made_and_deleted_by_64_clients() {
    let rig = Rig::new(DRIVES);
    LocalSet::new().block_on(&rig.runtime, async {
        let next = Rc::new(Cell::new(0));
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (next, caller) = (next.clone(), rig.caller());
            let like = Volume { bytes: 1 << 20, ..Volume::new(&rig, "like", As::Block) };
            clients.spawn_local(async move {
                loop {
                    let number = next.replace(next.get() + 1);
                    if number >= VOLUMES {
                        return;
                    }
                    let mut volume = Volume { name: format!("v-{number}"), ..like.clone() };
                    let name = volume.name.clone();
                    insist(&name, async || volume.create(&caller).await).await;
                    insist(&name, async || volume.delete(&caller).await).await;
                }
            });
        }
        clients.join_all().await;
    });
    rig.assert_nothing_left();
}

//! Many at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::{extents, in_operation, volumes, wait_empty};

#[test]
fn two_that_make_one_name_at_once_get_one_volume() {
    let cluster = in_operation(2);
    for round in 0..5 {
        let name = format!("one-{round}");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| cluster.expect(&["volume", "create", &name, "--size", "2MiB"], 0));
            }
        });
        // Of two that want different ones, one is refused.
        let name = format!("other-{round}");
        let codes: Vec<_> = thread::scope(|scope| {
            let make = |size: &'static str| {
                let (cluster, name) = (&cluster, &name);
                scope.spawn(move || {
                    let made = cluster.client(&["volume", "create", name, "--size", size]);
                    made.status.code().unwrap()
                })
            };
            let both = [make("2MiB"), make("3MiB")];
            both.map(|one| one.join().unwrap()).into_iter().collect()
        });
        // The larger one is what the smaller one asks for.
        assert!(codes == [0, 0] || codes == [0, 5], "{codes:?}");
    }
    assert_eq!(volumes(&cluster).len(), 10);
    let on_labels: usize = (0..2).map(|bay| extents(&cluster, bay).len()).sum();
    assert_eq!(on_labels, 10);
}

#[test]
fn two_hundred_volumes_come_and_go_by_sixteen_clients() {
    const VOLUMES: usize = 200;
    let cluster = in_operation(2);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= VOLUMES {
                        return;
                    }
                    let name = format!("v-{number}");
                    cluster.expect(&["volume", "create", &name, "--size", "1MiB"], 0);
                    cluster.expect(&["volume", "delete", &name, "--yes"], 0);
                }
            });
        }
    });
    assert!(volumes(&cluster).is_empty());
    wait_empty(&cluster, 2);
}

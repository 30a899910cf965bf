//! Watches that end, and what happened meanwhile; many objects, counted.

use http::Method;
use serde_json::json;

use crate::cases;
use crate::people::PLURALS;
use crate::world::{VOLUME, World};

#[test]
fn a_thousand_drives_cost_their_own_writes_and_no_more() {
    cases::nothing_is_written_for_our_own_writes(1_000);
}

/// The server ends watches from time to time, and forgets.
#[test]
fn a_watch_that_ends_is_followed_by_another() {
    let world = World::new();
    for forget in [false, true, false] {
        world.server.fake.cut_watches(forget);
        let uid = world.people.named("volumes", VOLUME)["metadata"]["uid"].clone();
        world.people.call(Method::DELETE, &format!("volumes/{VOLUME}"), &json!({}));
        world.until("back", || {
            let now = world.find("volumes", VOLUME).unwrap_or_default();
            now["metadata"]["uid"] != uid && now["status"]["state"] == "Created"
        });
    }
}

/// What went away between two lists, with no event about it.
#[test]
fn what_a_list_does_not_have_any_more_comes_back() {
    let world = World::new();
    for plural in PLURALS {
        world.server.fake.lose(plural);
    }
    assert_eq!(world.people.count(), 0);
    world.server.fake.cut_watches(true);
    world.until("everything is back", || world.people.count() == 6);
    let before = world.settled();
    // One list more changes nothing.
    world.server.fake.cut_watches(true);
    assert_eq!(world.settled(), before);
    world.until_told("was deleted and is written again", 6);
}

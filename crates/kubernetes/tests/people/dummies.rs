//! An Attachment says that pods have a dummy in the place of the volume, and nothing of the volume itself: a pod that
//! starts costs no write. Asked of the server in memory, and of a real one.

use std::time::Duration;

use hotbay_core::ids::VolumeId;
use hotbay_core::volume::orders::{StagedAs, VolumeReport};
use hotbay_kubernetes::living::Times;
use serde_json::{Value, json};

use crate::world::{ATTACHMENT, TIMES, VOLUME, World};

const ID: VolumeId = VolumeId::from_bits(9 << 96);

/// What the agent says of the staging.
fn report(world: &World, access: StagedAs, inaccessible: Option<&str>) {
    let epoch = world.registry.read(|cluster| cluster.volume(ID).unwrap().record.epoch);
    let epoch = world.wait(epoch).unwrap();
    let inaccessible = inaccessible.map(str::to_owned);
    let report = VolumeReport { volume: ID, epoch, access, inaccessible };
    world.wait(world.registry.volume_report(world.session(), report)).unwrap();
}

fn staged(world: &World) -> Value {
    world.people.named("attachments", ATTACHMENT)["status"]["staged"].clone()
}

fn condition(world: &World, kind: &str) -> String {
    world.condition("attachments", ATTACHMENT, kind)
}

#[test]
fn an_attachment_says_that_its_pods_have_a_dummy_until_they_have_the_volume() {
    let world = World::new();
    let writes = world.settled();
    report(&world, StagedAs::Real, None);
    std::thread::sleep(TIMES.hold * 2);
    assert_eq!((world.settled(), staged(&world)), (writes, Value::Null), "the usual is not said");
    let fake = || StagedAs::Fake { device: None, reason: "it cannot be read".to_owned() };
    report(&world, fake(), Some("it cannot be read"));
    world.until("said", || staged(&world) == "Fake");
    let (reason, words) = world.reason("attachments", ATTACHMENT, "FakeAttach");
    assert!(reason == "DummyStaged" && words.contains("it cannot be read"), "{reason}: {words}");
    assert_eq!(condition(&world, "Inaccessible"), "True");
    // The volume answers again, and the pod still has the dummy.
    report(&world, fake(), None);
    world.until("it can be reached", || condition(&world, "Inaccessible").is_empty());
    assert_eq!((staged(&world), condition(&world, "FakeAttach")), (json!("Fake"), "True".into()));
    report(&world, StagedAs::Real, None);
    world.until("itself again", || staged(&world).is_null());
    assert_eq!(condition(&world, "FakeAttach"), "");
    let at_rest = world.settled();
    assert_eq!(world.settled(), at_rest);
    assert!(world.follows());
}

/// The story: an agent was away, and another controller took the lead. It had never heard of the dummy: after a minute
/// the Attachment looked as if its pods had the volume.
#[test]
fn what_only_the_agent_knows_stands_until_the_next_leader_has_heard_it() {
    let world = World::new();
    let reason = "it cannot be read".to_owned();
    report(&world, StagedAs::Fake { device: None, reason }, Some("it cannot be read"));
    world.until("said", || staged(&world) == "Fake");
    world.until("why", || condition(&world, "Inaccessible") == "True");
    world.agent_goes();
    let soon = Duration::from_millis(300);
    let world = World::start_with(world.stop(), 11, Times { heard: soon, away: soon, ..TIMES });
    // By then it has looked at what the agent knows, and found nothing.
    world.until("away", || world.reason("storagenodes", "node-a", "Ready").0 == "AgentUnreachable");
    world.until("told", || world.condition("volumes", VOLUME, "Inaccessible") == "True");
    world.settled();
    assert_eq!((staged(&world), condition(&world, "FakeAttach")), (json!("Fake"), "True".into()));
    assert_eq!(condition(&world, "Inaccessible"), "True");
    world.wait(crate::agent::join(&world.registry, 2));
    report(&world, StagedAs::Real, None);
    world.until("itself again", || staged(&world).is_null());
    assert_eq!(condition(&world, "FakeAttach"), "");
}

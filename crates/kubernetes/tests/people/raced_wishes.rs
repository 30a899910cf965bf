//! A wish that is overtaken: between the look whether there is such an attachment and the call that makes one, somebody
//! else makes it. An id is drawn in between, and that is where this test steps in.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::{AttachmentId, ClusterId, NodeId, TermId, VolumeId};
use hotbay_kubernetes::{CustomResourceStore, people};
use hotbay_registry::{Registry, Surroundings};
use serde_json::{Value, json};
use tokio::runtime::{Handle, Runtime};

use crate::Server;
use crate::people::People;
use crate::world::{World, condition, fresh, wish};

const VOLUME: VolumeId = VolumeId::from_bits(9 << 96);
const LIMIT: Duration = Duration::from_secs(180);

/// Who attaches the volume when the next id is drawn, and where.
static OTHER: Mutex<Option<(Registry, NodeId)>> = Mutex::new(None);

fn fresh_but_late() -> u128 {
    let other = OTHER.lock().unwrap().take();
    if let Some((registry, node)) = other {
        let id = AttachmentId::from_bits(fresh());
        let request = VolumeRequest::Attach { id, volume: VOLUME, node, read_only: false };
        let attached = registry.request(request, "other".into());
        tokio::task::block_in_place(|| Handle::current().block_on(attached)).unwrap();
    }
    fresh()
}

/// A server with a volume that nobody uses.
fn with_volume() -> Server {
    let world = World::with_drives(1);
    world.add("S0");
    world.request(VolumeRequest::Create { id: VOLUME, wish: Box::new(wish("db")) });
    world.until("created", || world.condition("volumes", "db", "Created") == "True");
    world.settled();
    world.stop()
}

#[test]
fn an_attachment_that_somebody_else_made_meanwhile_is_told_of() {
    let server = with_volume();
    let runtime = Runtime::new().unwrap();
    let wall_ms = || 1_763_300_000_000;
    let registry = runtime.block_on(async {
        let connect = || Ok::<_, std::convert::Infallible>(server.client());
        let records = CustomResourceStore::new(connect).unwrap();
        let (objects, term) = (records.objects(), TermId::from_bits(11));
        let cluster = ClusterId::from_bits(1);
        let (checkpoint, auto_add) = (|_: &'static str| {}, Default::default());
        let surroundings = Surroundings { cluster, term, wall_ms, checkpoint, auto_add };
        let (registry, _) = Registry::start(records, surroundings).unwrap();
        let outside = people::Surroundings { fresh: fresh_but_late, wall_ms };
        tokio::spawn(people::follow(server.client(), registry.clone(), objects, outside));
        registry
    });
    let node = registry.read(|cluster| cluster.nodes().next().unwrap().record.id);
    let node = runtime.block_on(node).unwrap();
    *OTHER.lock().unwrap() = Some((registry.clone(), node));
    let people = People::on(&server);
    people.create("attachments", "Attachment", "mine", json!({ "volume": "db", "node": "node-a" }));
    let since = Instant::now();
    let told = |object: &Value| condition(object, "Attached")["reason"] == "AlreadyExists";
    while !told(&people.named("attachments", "mine")) {
        assert!(since.elapsed() < LIMIT, "{}", people.named("attachments", "mine"));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(OTHER.lock().unwrap().is_none());
    assert_eq!(people.list("attachments").len(), 2);
}

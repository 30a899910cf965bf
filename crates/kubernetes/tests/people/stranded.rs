//! Uses that were over when a leader began: a record of one may be left, of a controller that ended, or was late.
//!
//! The story: the leader took no notice of such a record, and its object stayed, held by our finalizer. Whoever
//! followed the objects waited for it to go, and nobody removed it.

use std::convert::Infallible;

use hotbay_core::cluster::AttachmentRecord;
use hotbay_core::ids::{AttachmentId, VolumeId};
use hotbay_core::volume::Epoch;
use hotbay_kubernetes::CustomResourceStore;
use hotbay_registry::{Key, Kind, Store, Write};

use crate::Server;
use crate::people::People;
use crate::world::{ATTACHMENT, VOLUME, World};

/// A server with a volume that is in use, and nobody who leads. Then one writes these uses, made from that one.
fn with_uses(
    uses: impl Fn(&AttachmentRecord) -> Vec<AttachmentRecord>,
) -> (Server, AttachmentRecord) {
    let server = World::new().stop();
    let mut store = CustomResourceStore::new(|| Ok::<_, Infallible>(server.client())).unwrap();
    let loaded = store.load().unwrap();
    let (_, value) = loaded.iter().find(|(key, _)| key.kind == Kind::Attachment).unwrap();
    let real: AttachmentRecord = serde_json::from_slice(value).unwrap();
    for record in uses(&real) {
        let key = Key { kind: Kind::Attachment, id: record.id.to_bits() };
        let value = serde_json::to_vec(&record).unwrap();
        store.commit(&[Write::Put { key, value }]).unwrap();
    }
    (server, real)
}

/// The ids of all attachments that there are objects of.
fn ids(world: &World) -> Vec<String> {
    let all = world.people.list("attachments").into_iter();
    all.map(|object| object["status"]["id"].as_str().unwrap().to_owned()).collect()
}

fn only(world: &World, left: AttachmentId) {
    let left = [format!("{:032x}", left.to_bits())];
    world.until("one use is left", || ids(world) == left);
    world.settled();
    assert_eq!(ids(world), left);
    assert!(world.follows());
}

#[test]
fn of_two_uses_of_one_volume_and_node_the_later_is_left() {
    for later in [AttachmentId::from_bits(1 << 96), AttachmentId::from_bits(99 << 96)] {
        let (server, real) = with_uses(|real| {
            let epoch = real.epoch.next();
            vec![AttachmentRecord { id: later, epoch, ..real.clone() }]
        });
        assert_eq!(real.epoch, Epoch::from_number(1));
        only(&World::start(server, 11), later);
    }
}

#[test]
fn a_use_of_a_volume_that_is_gone_goes() {
    let (server, real) = with_uses(|real| {
        let (id, volume) = (AttachmentId::from_bits(1 << 96), VolumeId::from_bits(77 << 96));
        vec![AttachmentRecord { id, volume, ..real.clone() }]
    });
    let world = World::start(server, 11);
    only(&world, real.id);
    assert_eq!(world.condition("volumes", VOLUME, "Created"), "True");
    assert_eq!(world.condition("attachments", ATTACHMENT, "Attached"), "True");
}

/// Its drive says that it is there: only its record is missing, and may be put back.
#[test]
fn a_use_of_a_volume_whose_record_was_spoilt_stays() {
    let world = World::new();
    let saved = world.people.named("volumes", VOLUME);
    let server = world.stop();
    server.fake.deepen("volumes", VOLUME, 1);
    let world = World::start(server, 11);
    world.settled();
    let server = world.stop();
    let people = People::on(&server);
    assert_eq!(people.list("attachments").len(), 1);
    people.edit_status("volumes", |volume| volume["status"] = saved["status"].clone());
    let world = World::start(server, 12);
    let uses = world.registry.read(|cluster| {
        cluster.volumes_after(None).map(|volume| volume.attachments.len()).collect::<Vec<_>>()
    });
    assert_eq!(world.wait(uses).unwrap(), [1]);
}

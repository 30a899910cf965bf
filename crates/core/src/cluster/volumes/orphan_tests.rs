//! What only a label knows, and is to be used.

use super::tests::{MIB, World, forgotten};
use super::{VolumeRefused, VolumeRequest, VolumeState};
use crate::cluster::testing::lead;
use crate::ids::{AttachmentId, DriveId, NodeId, VolumeId};

/// A registry that was restored has forgotten a volume; the pod that uses it starts again.
#[test]
fn an_orphan_that_is_to_be_used_has_a_record_again() {
    let mut world = World::new(&[100]);
    let (drive, orphan) = (DriveId::from_bits(1), VolumeId::from_bits(77));
    world.labels.get_mut(&drive).unwrap().extents.push(forgotten(orphan));
    world.attach_all();
    world.settle();
    let before = world.labels[&drive].clone();
    let attach = |volume, node| VolumeRequest::Attach {
        id: AttachmentId::from_bits(5),
        volume,
        node: NodeId::from_bits(node),
        read_only: false,
    };
    let node = world.cluster.drive(drive).unwrap().record.node.to_bits();
    for (request, refused) in [
        (attach(VolumeId::from_bits(78), node), VolumeRefused::NoSuchVolume),
        (attach(orphan, node + 1), VolumeRefused::NoSuchNode),
    ] {
        let was = world.cluster.clone();
        assert_eq!(world.ask(request).unwrap_err(), refused);
        assert_eq!(world.cluster, was, "what is refused changes nothing");
    }
    world.ask(attach(orphan, node)).unwrap();
    world.settle();
    assert_eq!(world.state(orphan), Some(VolumeState::Created));
    let known = world.cluster.volume(orphan).unwrap();
    assert_eq!((known.record.size_bytes, known.drive), (20 * MIB, Some(drive)));
    assert_eq!(world.labels[&drive].extents, before.extents, "nothing on the drive has changed");
    world.restart();
    world.settle();
    assert_eq!(world.state(orphan), Some(VolumeState::Created), "the record is kept");
}

/// Whoever asked again after the records were lost got another volume of that name.
#[test]
fn an_orphan_does_not_take_the_name_of_another_volume() {
    let mut world = World::new(&[100]);
    let (drive, orphan) = (DriveId::from_bits(1), VolumeId::from_bits(77));
    let new = world.create("db", 10, &[]).unwrap();
    world.settle();
    let mut extent = world.labels[&drive].extents[0].clone();
    extent.volume = orphan;
    extent.start_bytes += 40 * MIB;
    world.labels.get_mut(&drive).unwrap().extents.push(extent);
    world.attach_all();
    world.settle();
    let node = world.cluster.drive(drive).unwrap().record.node;
    let id = AttachmentId::from_bits(5);
    let attach = VolumeRequest::Attach { id, volume: orphan, node, read_only: false };
    let refused = world.ask(attach).unwrap_err();
    assert!(matches!(refused, VolumeRefused::NameTaken { .. }), "{refused}");
    world.ask(VolumeRequest::Delete { volume: orphan }).unwrap();
    world.settle();
    let by_name = world.cluster.volume_by_name(&"db".parse().unwrap());
    assert_eq!(by_name.map(|volume| volume.record.id), Some(new));
}

/// The record of a volume in use was spoilt while no registry ran. The volume was used again, by its label; the record
/// of the earlier use stayed for as long as that registry ran, and was told as a use of the volume.
#[test]
fn a_use_from_before_is_over_when_its_volume_is_known_again() {
    let mut world = World::new(&[100]);
    let volume = world.create("db", 10, &[]).unwrap();
    world.settle();
    let node = world.cluster.drive(DriveId::from_bits(1)).unwrap().record.node;
    let attach = |id| {
        let id = AttachmentId::from_bits(id);
        VolumeRequest::Attach { id, volume, node, read_only: false }
    };
    world.ask(attach(5)).unwrap();
    world.settle();
    let spoilt = world.records.volumes.pop().unwrap();
    world.restart();
    world.settle();
    let uses = |world: &World| {
        world.records.attachments.iter().map(|record| record.id.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(uses(&world), [5], "it may be put back");
    let mut put_back = world.records.clone();
    put_back.volumes.push(spoilt);
    assert_eq!(lead(put_back, 3).0.volume(volume).unwrap().attachments.len(), 1);
    world.ask(attach(6)).unwrap();
    world.settle();
    assert_eq!(uses(&world), [6]);
    world.restart();
    assert_eq!(uses(&world), [6]);
}

//! How volumes grow, in one piece and in several.

use super::super::tests::{MIB, World};
use super::super::{VolumeRequest, VolumeState};
use crate::device::{DeviceKind, Observed};
use crate::ids::VolumeId;
use crate::label::extents::{Extent, FIRST_EXTENT_BYTES, Use};
use crate::volume::Size;

const FIRST_MIB: u64 = FIRST_EXTENT_BYTES / MIB;

fn grow(id: VolumeId, mib: u64) -> VolumeRequest {
    VolumeRequest::Expand { volume: id, size: Size::of(mib * MIB).unwrap() }
}

fn size_mib(world: &World, id: VolumeId) -> u64 {
    world.cluster.volume(id).unwrap().record.size_bytes / MIB
}

/// Where the parts of a volume are by its label: MiB behind the first one for volumes, and how many.
fn on_label(world: &World, id: VolumeId) -> Vec<(u64, u64)> {
    let told = world.labels.values().next().unwrap();
    let mut extents: Vec<_> = told
        .extents
        .iter()
        .filter(|extent| extent.volume == id && extent.usage == Use::Used)
        .collect();
    extents.sort_by_key(|extent| extent.part);
    let place = |at: u64, length: u64| (at / MIB - FIRST_MIB, length / MIB);
    extents.iter().map(|extent| place(extent.start_bytes, extent.length_bytes)).collect()
}

/// A node with device-mapper, and a drive with room for 100 MiB: `a` at 0, `b` at 10, `c` at 50, of 10 MiB each.
fn in_pieces() -> (World, VolumeId) {
    let mut world = World::new(&[100]);
    world.device_mapper = true;
    world.restart();
    let a = world.create("a", 10, &[]).unwrap();
    world.create("b", 10, &[]).unwrap();
    let between = world.create("between", 30, &[]).unwrap();
    world.settle();
    world.create("c", 10, &[]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume: between }).unwrap();
    world.settle();
    (world, a)
}

#[test]
fn a_volume_grows_where_it_is() {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, &[]).unwrap();
    world.settle();
    world.ask(grow(id, 30)).unwrap();
    assert_eq!(size_mib(&world, id), 10, "not on the label yet");
    world.settle();
    assert_eq!(size_mib(&world, id), 30);
    assert_eq!(world.ask(grow(id, 20)), Ok(id), "has it already");
    world.create("behind", 10, &[]).unwrap();
    let refused = world.ask(grow(id, 31)).unwrap_err();
    assert!(refused.to_string().contains("room for 0 B behind it"), "{refused}");
    assert!(refused.to_string().contains("device-mapper"), "{refused}");
    assert_eq!(on_label(&world, id), [(0, 30)]);
}

#[test]
fn a_volume_grows_by_other_pieces_of_its_drive() {
    let (mut world, id) = in_pieces();
    world.ask(grow(id, 45)).unwrap();
    // A call that is repeated decides nothing anew, whatever happened in between.
    world.restart();
    world.ask(grow(id, 45)).unwrap();
    assert_eq!(size_mib(&world, id), 10, "not on the label yet");
    world.settle();
    assert_eq!(size_mib(&world, id), 45);
    assert_eq!(on_label(&world, id), [(0, 10), (60, 35)], "the largest gap takes it whole");
    // The last piece grows where it is, and what does not fit there goes on elsewhere.
    world.ask(grow(id, 55)).unwrap();
    world.settle();
    assert_eq!(on_label(&world, id), [(0, 10), (60, 40), (20, 5)]);
    let refused = world.ask(grow(id, 81)).unwrap_err();
    assert!(refused.to_string().contains("room for 25 MiB on its drive"), "{refused}");
    world.restart();
    world.settle();
    assert_eq!((world.state(id), size_mib(&world, id)), (Some(VolumeState::Created), 55));
    world.ask(grow(id, 80)).unwrap();
    world.settle();
    assert_eq!(on_label(&world, id), [(0, 10), (60, 40), (20, 30)]);
    // All of them are given back, and can be had again in one.
    world.ask(VolumeRequest::Delete { volume: id }).unwrap();
    world.settle();
    assert_eq!(world.state(id), None);
    let again = world.create("again", 40, &[]).unwrap();
    world.settle();
    assert_eq!(on_label(&world, again), [(60, 40)]);
}

#[test]
fn a_drive_that_is_a_loop_device_joins_nothing() {
    let (world, id) = in_pieces();
    let drive = world.cluster.volume(id).unwrap().drive.unwrap();
    let mut drive = world.cluster.drive(drive).unwrap().clone();
    assert!(world.cluster.joins_pieces(&drive));
    let observed = (*drive.record.observed).clone();
    drive.record.observed = Observed { kind: DeviceKind::Loop, ..observed }.into();
    assert!(!world.cluster.joins_pieces(&drive));
}

/// An agent that comes back without device-mapper: what is joined stays so, and nothing more is.
#[test]
fn nothing_is_joined_for_a_node_without_device_mapper() {
    let (mut world, id) = in_pieces();
    world.ask(grow(id, 45)).unwrap();
    world.settle();
    world.device_mapper = false;
    world.restart();
    world.settle();
    assert_eq!(on_label(&world, id), [(0, 10), (60, 35)]);
    let refused = world.ask(grow(id, 60)).unwrap_err();
    assert!(refused.to_string().contains("room for 5 MiB behind it"), "{refused}");
    world.ask(grow(id, 50)).unwrap();
    world.settle();
    assert_eq!(on_label(&world, id), [(0, 10), (60, 40)]);
}

/// A registry was restored from a backup that knew one piece of a volume of which the label had two: the next growth
/// was decided on the one, and refused by the label for ever.
#[test]
fn pieces_that_a_restored_registry_does_not_know_are_taken_from_the_label() {
    let (mut world, a) = in_pieces();
    let backup = world.records.clone();
    world.ask(grow(a, 20)).unwrap();
    world.settle();
    world.create("d", 30, &[]).unwrap();
    let behind = world.create("e", 5, &[]).unwrap();
    world.settle();
    assert_eq!(on_label(&world, a), [(0, 10), (60, 10)]);
    assert_eq!(on_label(&world, behind), [(70, 5)]);
    world.records = backup;
    world.restart();
    assert_eq!(size_mib(&world, a), 20);
    world.ask(grow(a, 40)).unwrap();
    world.settle();
    assert_eq!(size_mib(&world, a), 40);
    assert_eq!(on_label(&world, a), [(0, 10), (60, 10), (75, 20)]);
}

/// The same for a growth that was decided before the backup was made, and that is another volume's place by now.
#[test]
fn a_growth_over_another_volume_is_given_up() {
    let (mut world, a) = in_pieces();
    let b = world.cluster.volume_by_name(&"b".parse().unwrap()).unwrap().record.id;
    world.ask(grow(b, 25)).unwrap();
    let backup = world.records.clone();
    world.restart();
    world.orders.clear();
    let told = world.labels.values_mut().next().unwrap();
    let other = &told.extents[0];
    let at = (FIRST_MIB + 20) * MIB;
    let taken = Extent { volume: VolumeId::from_bits(99), start_bytes: at, ..other.clone() };
    told.extents.push(taken);
    world.records = backup;
    world.restart();
    world.settle();
    assert_eq!((size_mib(&world, b), on_label(&world, b)), (10, vec![(10, 10)]));
    world.ask(grow(a, 15)).unwrap();
    world.settle();
    assert_eq!(size_mib(&world, a), 15, "the label takes other changes");
}

//! Drives that grow and shrink with volumes on them: what there is room for, and what is said.

use super::super::testing::device;
use super::super::{Event, Shrunk};
use super::tests::{MIB, SESSION, World};
use super::{VolumeRefused, VolumeState};
use crate::device::Observed;
use crate::ids::DriveId;

const DRIVE: DriveId = DriveId::from_bits(1);

/// The machine reports a size; gives what is told, with a mark for warnings.
fn report(world: &mut World, size_bytes: u64) -> Vec<String> {
    let devices = vec![Observed { size_bytes, ..device("S1") }];
    let event = Event::Devices {
        session: SESSION,
        devices,
        conditions: vec![],
        fresh: vec![DriveId::from_bits(99)],
    };
    let told = world.apply(event).unwrap().notices.into_iter();
    told.map(|notice| format!("{}{}", if notice.warning { "! " } else { "" }, notice.text))
        .collect()
}

/// The agent has given volumes all of the drive, and tells its label.
fn tell(world: &mut World, limit_bytes: u64) {
    let told = world.labels.get_mut(&DRIVE).unwrap();
    told.limit_bytes = limit_bytes;
    let told = told.clone();
    world.apply(Event::LabelTold { session: SESSION, drive: DRIVE, told }).unwrap();
}

fn free_mib(world: &World) -> u64 {
    world.cluster.drive(DRIVE).unwrap().free_bytes() / MIB
}

#[test]
fn growth_is_room_when_the_label_has_it() {
    let mut world = World::new(&[1_000]);
    report(&mut world, 2 << 30);
    let refused = world.create("large", 1_500, &[]).unwrap_err();
    assert!(matches!(refused, VolumeRefused::NoPlace { .. }), "{refused:?}");
    tell(&mut world, 2_000 * MIB);
    let volume = world.create("large", 1_500, &[]).unwrap();
    world.settle();
    assert_eq!(world.state(volume), Some(VolumeState::Created));
    assert_eq!(free_mib(&world), 2_000 - 2 - 1_500);
    assert_eq!(world.cluster.shrunk(DRIVE), None);
}

/// The story: a drive that had grown had been given to volumes, and shrank to the size that it was added with.
#[test]
fn a_drive_that_ends_before_its_volumes_says_so_and_takes_no_more() {
    let mut world = World::new(&[1_000]);
    report(&mut world, 2 << 30);
    tell(&mut world, 2_000 * MIB);
    let volume = world.create("large", 1_500, &[]).unwrap();
    world.settle();
    let told = report(&mut world, 1 << 30);
    let expected = "! Drive d-00000000 in node-a /dev/sdx has shrunk from 2 GiB to 1 GiB while in operation: volume \
                    large reaches beyond its end; it takes no new volumes.";
    assert_eq!(told, [expected]);
    let volumes = vec!["large".to_owned()];
    assert_eq!(world.cluster.shrunk(DRIVE), Some(Shrunk::BelowVolumes { volumes }));
    let refused = world.create("small", 1, &[]).unwrap_err().to_string();
    assert!(refused.contains("smaller than it was"), "{refused}");
    tell(&mut world, 1 << 30);
    assert_eq!(world.state(volume), Some(VolumeState::Created), "it is there, and read on");
    let told = report(&mut world, 2 << 30);
    assert!(told[0].contains("has grown from 1 GiB to 2 GiB"), "{told:?}");
    tell(&mut world, 2_000 * MIB);
    assert_eq!(world.cluster.shrunk(DRIVE), None);
    world.create("small", 1, &[]).unwrap();
    let told = report(&mut world, 0);
    assert!(told[0].contains("volumes large, small reach beyond its end"), "{told:?}");
}

/// The agent has not told the label yet, and nothing is placed where the drive is not.
#[test]
fn no_volume_is_placed_behind_the_end_of_the_drive() {
    let mut world = World::new(&[1_000]);
    report(&mut world, 2 << 30);
    tell(&mut world, 2_000 * MIB);
    report(&mut world, 1_100 * MIB);
    assert_eq!(world.cluster.shrunk(DRIVE), None, "nothing is behind its end");
    assert_eq!(free_mib(&world), 1_100 - 2);
    let refused = world.create("large", 1_500, &[]).unwrap_err();
    assert!(matches!(refused, VolumeRefused::NoPlace { .. }), "{refused:?}");
}

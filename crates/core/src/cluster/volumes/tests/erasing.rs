//! Erasing beside everything else that is asked of a drive.

use super::*;

/// A drive on which volumes came and went without a pause filled up with what was deleted: it was erased only when
/// nothing else was to do, which was never.
#[test]
fn erasing_takes_its_turn_under_a_load_that_never_ends() {
    let mut world = World::new(&[20]);
    let mut last = None;
    for number in 0..200 {
        let id = world.create(&format!("v-{number}"), 1, &[]);
        let id = id.unwrap_or_else(|refused| panic!("volume {number}: {refused}"));
        if let Some(last) = last {
            world.ask(VolumeRequest::Delete { volume: last }).unwrap();
        }
        while world.state(id) == Some(VolumeState::Pending) {
            world.step();
        }
        last = Some(id);
    }
}

#[test]
fn a_volume_is_made_before_all_is_erased() {
    let mut world = World::new(&[1000]);
    let big = world.create("big", 900, &[]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume: big }).unwrap();
    world.step();
    let small = world.create("small", 1, &[]).unwrap();
    let mut steps = 0;
    while world.state(small) == Some(VolumeState::Pending) {
        world.step();
        steps += 1;
    }
    assert!(steps <= 3, "it waited for {steps} orders");
    assert!(world.cluster.drive(DriveId::from_bits(1)).unwrap().free_bytes() < 900 * MIB);
}

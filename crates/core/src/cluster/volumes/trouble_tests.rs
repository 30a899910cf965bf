//! What went wrong once: each test tells the story of a defect that the simulation found.

use super::super::AttachmentState;
use super::super::{Event, Refused};
use super::tests::{INCARNATION, NODE, SESSION, World, answer_to};
use super::{VolumeRefused, VolumeRequest, VolumeState};
use crate::cms::{Action, Target};
use crate::ids::{AttachmentId, DriveId, VolumeId};
use crate::label::change::Change;
use crate::volume::Epoch;
use crate::volume::orders::{LabelResult, UseAnswer, UseResult, VolumeOrder};

fn attach(world: &mut World, volume: VolumeId) {
    let id = AttachmentId::from_bits(77);
    let request = VolumeRequest::Attach { id, volume, node: NODE, read_only: false };
    world.ask(request).unwrap();
}

/// A drive that is to leave was not erased any more; a volume that had to be erased first kept it for ever.
#[test]
fn a_volume_that_must_be_erased_does_not_keep_its_drive_from_leaving() {
    let mut world = World::new(&[100]);
    let volume = world.create("a", 10, &[("erase", "required")]).unwrap();
    world.settle();
    let target = Target { host: None, device: "S1".into() };
    let remove = Action::RemoveDevice(target);
    let remove = Event::Act { actions: vec![remove], asked_by: "me".into(), dry_run: false };
    world.apply(remove).unwrap();
    assert!(world.cluster.drive(DriveId::from_bits(1)).unwrap().record.removal_wanted);
    world.ask(VolumeRequest::Delete { volume }).unwrap();
    world.settle();
    assert_eq!(world.state(volume), None);
}

/// A registry was restored from a backup that knew nothing of a use, and freed the volume under it.
#[test]
fn what_the_agent_says_is_used_is_taken_back_before_it_is_freed() {
    let mut world = World::new(&[100]);
    let volume = world.create("a", 10, &[]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume }).unwrap();
    let VolumeOrder::Label(order) = world.orders.pop().unwrap() else { panic!("no label order") };
    assert_eq!(order.changes, [Change::Free { volume }]);
    let epoch = Epoch::from_number(4);
    let result = LabelResult::InUse { uses: vec![(volume, epoch)] };
    let answer = answer_to(&order, result);
    world.apply(Event::LabelAnswer { session: SESSION, answer }).unwrap();
    let [VolumeOrder::Use(taken_back)] = &world.orders[..] else { panic!("{:?}", world.orders) };
    assert_eq!((taken_back.grant.epoch, taken_back.grant.granted), (epoch, false));
    let still_there =
        |result| UseAnswer { volume, incarnation: INCARNATION, epoch, granted: false, result };
    let answer = still_there(UseResult::Waiting { why: "mounted".into() });
    world.apply(Event::UseAnswer { session: SESSION, answer }).unwrap();
    let drive = world.cluster.drive(order.drive).unwrap();
    let trouble = drive.space.as_ref().unwrap().trouble.clone();
    assert_eq!(trouble.as_deref(), Some("volume a is still in use: mounted"));
    world.settle();
    assert_eq!(world.state(volume), None);
}

/// Whoever deleted a volume on a drive that was there and could not be written waited in vain, and had to ask again.
#[test]
fn a_volume_on_a_drive_that_cannot_be_written_is_deleted_by_the_first_call() {
    let mut world = World::new(&[100]);
    let (volume, required) = (
        world.create("a", 10, &[]).unwrap(),
        world.create("b", 10, &[("erase", "required")]).unwrap(),
    );
    world.settle();
    world.ask(VolumeRequest::Delete { volume }).unwrap();
    world.ask(VolumeRequest::Delete { volume: required }).unwrap();
    assert_eq!(world.state(volume), Some(VolumeState::Deleting));
    let VolumeOrder::Label(order) = world.orders.remove(0) else { panic!("no label order") };
    let result = LabelResult::Failed { error: "input/output error".into() };
    let answer = answer_to(&order, result);
    world.apply(Event::LabelAnswer { session: SESSION, answer }).unwrap();
    assert_eq!(world.state(volume), Some(VolumeState::Deleted));
    assert_eq!(world.state(required), Some(VolumeState::Deleting), "it waits for the drive");
    // The order is still owed, and finished when the drive answers.
    let again = world.cluster.owed_volume_orders(order.drive).remove(0).1;
    world.orders.push(again);
    world.settle();
    assert_eq!((world.state(volume), world.state(required)), (None, None));
}

/// A registry that had forgotten uses granted one under an old epoch, which was refused for ever, and so was its end.
#[test]
fn a_use_under_an_epoch_that_was_seen_is_granted_under_a_later_one() {
    let mut world = World::new(&[100]);
    let volume = world.create("a", 10, &[]).unwrap();
    world.settle();
    attach(&mut world, volume);
    let (seen, epoch) = (Epoch::from_number(6), Epoch::from_number(1));
    let result = UseResult::Refused { why: "a later use was seen".into(), seen };
    let answer = UseAnswer { volume, incarnation: INCARNATION, epoch, granted: true, result };
    world.orders.clear();
    world.apply(Event::UseAnswer { session: SESSION, answer }).unwrap();
    let [VolumeOrder::Use(order)] = &world.orders[..] else { panic!("{:?}", world.orders) };
    assert_eq!((order.grant.epoch, order.grant.granted), (Epoch::from_number(7), true));
    world.settle();
    let attachment = &world.cluster.volume(volume).unwrap().attachments[&NODE];
    assert_eq!(attachment.record.state, AttachmentState::Attached);
    assert_eq!(
        world.ask(VolumeRequest::Delete { volume }),
        Err(VolumeRefused::InUse { node: "node-a".parse().unwrap() })
    );
}

/// A use on a node that its drive had left was not ordered again after the node had registered anew.
#[test]
fn a_node_hears_of_its_uses_with_every_registration() {
    let mut world = World::new(&[100]);
    let volume = world.create("a", 10, &[]).unwrap();
    world.settle();
    attach(&mut world, volume);
    world.settle();
    world.ask(VolumeRequest::Detach { volume, node: None }).unwrap();
    world.orders.clear();
    world.register();
    let orders = world.orders.iter().filter(|order| matches!(order, VolumeOrder::Use(_)));
    assert_eq!(orders.count(), 1);
    world.attach_all();
    world.settle();
    assert!(world.cluster.volume(volume).unwrap().attachments.is_empty());
    assert_eq!(world.state(volume), Some(VolumeState::Created));
}

/// A registry was restored from a backup that was about to make a volume where there is another by now: the label
/// refused every order that had it in it, and nothing could be made or deleted on the drive any more.
#[test]
fn a_volume_whose_place_is_taken_does_not_stand_in_the_way_of_others() {
    let mut world = World::new(&[100]);
    let old = world.create("old", 10, &[]).unwrap();
    let backup = world.records.clone();
    world.ask(VolumeRequest::Delete { volume: old }).unwrap();
    world.settle();
    let new = world.create("new", 20, &[]).unwrap();
    world.settle();
    world.records = backup;
    world.restart();
    assert_eq!(world.state(old), Some(VolumeState::Deleting));
    let again = world.create("other", 10, &[]).unwrap();
    world.settle();
    assert_eq!((world.state(old), world.state(again)), (None, Some(VolumeState::Created)));
    let orphans: Vec<_> = world.cluster.orphans().map(|(_, extent)| extent.volume).collect();
    assert_eq!(orphans, [new], "kept");
    let asked_again = world.create("old", 10, &[]).unwrap();
    world.settle();
    assert_eq!(world.state(asked_again), Some(VolumeState::Created));
}

/// An order was still under way when the label was told anew, and another was decided on it; that the first one was
/// done was taken for the second, and a volume was said to be made that was on no label.
#[test]
fn what_was_done_is_what_the_order_said_that_was_carried_out() {
    let mut world = World::new(&[100]);
    let old = world.create("old", 10, &[]).unwrap();
    world.settle();
    world.ask(VolumeRequest::Delete { volume: old }).unwrap();
    let Some(VolumeOrder::Label(free)) = world.orders.pop() else { panic!("no label order") };
    let new = world.create("new", 10, &[]).unwrap();
    world.attach_all();
    let Some(VolumeOrder::Label(both)) = world.orders.pop() else { panic!("no label order") };
    assert_eq!((free.basis, both.changes.len()), (both.basis, 2));
    // What else is said of the first one is over.
    let failed = answer_to(&free, LabelResult::Failed { error: "gone".into() });
    let stale = world.apply(Event::LabelAnswer { session: SESSION, answer: failed });
    assert_eq!(stale.unwrap_err(), Refused::StaleAnswer);
    let done = world.carry_out(&free);
    world.apply(Event::LabelAnswer { session: SESSION, answer: done }).unwrap();
    assert_eq!(world.state(new), Some(VolumeState::Pending));
    world.settle();
    assert_eq!(world.state(new), Some(VolumeState::Created));
    let label = &world.labels[&DriveId::from_bits(1)];
    assert!(label.extents.iter().any(|extent| extent.volume == new), "{label:?}");
}

/// A node gave a volume back and used it again at once. The store kept each record by itself, and had the new use
/// before the end of the old one; the next registry took whichever it read last, and ended the use under a running pod.
#[test]
fn of_two_uses_of_a_node_the_later_one_counts() {
    let mut world = World::new(&[100]);
    let volume = world.create("a", 10, &[]).unwrap();
    world.settle();
    attach(&mut world, volume);
    world.settle();
    let old = world.cluster.volume(volume).unwrap().attachments[&NODE].record.clone();
    world.ask(VolumeRequest::Detach { volume, node: None }).unwrap();
    world.settle();
    attach(&mut world, volume);
    world.settle();
    let new = world.cluster.volume(volume).unwrap().attachments[&NODE].record.clone();
    assert!(new.epoch > old.epoch);
    for attachments in [[old.clone(), new.clone()], [new.clone(), old]] {
        world.records.attachments = attachments.to_vec();
        world.restart();
        let known = world.cluster.volume(volume).unwrap();
        assert_eq!(known.attachments[&NODE].record, new);
    }
}

//! What the registry makes of agents that staged a dummy: annotations, status and notices, each once.

use super::tests::{NODE, SESSION, World};
use super::{VolumeRefused, VolumeRequest};
use crate::cluster::records::{VolumeRecord, VolumeState};
use crate::cluster::{AttachmentState, Effects, Event, Refused};
use crate::ids::{AttachmentId, DriveId, VolumeId};
use crate::volume::orders::{StagedAs, VolumeOrder, VolumeReport};
use crate::volume::{Epoch, FAKE_ATTACH, FAKE_DEVICE, IGNORE_IF_INACCESSIBLE, Operational};

const OPTED_IN: [(&str, &str); 1] = [("ignoreIfInaccessible", "yes")];

/// A volume that is attached.
fn attached(parameters: &[(&str, &str)]) -> (World, VolumeId) {
    let mut world = World::new(&[100]);
    let id = world.create("db", 10, parameters).unwrap();
    world.settle();
    attach(&mut world, id).unwrap();
    world.settle();
    (world, id)
}

fn attach(world: &mut World, volume: VolumeId) -> Result<VolumeId, VolumeRefused> {
    let id = AttachmentId::from_bits(volume.to_bits());
    world.ask(VolumeRequest::Attach { id, volume, node: NODE, read_only: false })
}

fn report(
    world: &mut World,
    volume: VolumeId,
    access: StagedAs,
    inaccessible: Option<&str>,
) -> Result<Effects, Refused> {
    let known = world.cluster.volume(volume);
    let epoch = known.map_or(Epoch::from_number(1), |known| known.record.epoch);
    let report = VolumeReport { volume, epoch, access, inaccessible: inaccessible.map(Into::into) };
    world.apply(Event::VolumeReport { session: SESSION, report })
}

fn fake(device: Option<&str>) -> StagedAs {
    StagedAs::Fake { device: device.map(Into::into), reason: "its drive is gone".into() }
}

fn texts(effects: Result<Effects, Refused>) -> Vec<String> {
    effects.unwrap().notices.into_iter().map(|notice| notice.text).collect()
}

/// What people see: the two annotations and the status.
fn seen(world: &World, id: VolumeId) -> (Option<String>, Option<String>, Operational) {
    let of_record = |record: &VolumeRecord| {
        let annotation = |key| record.annotations.get(key).cloned();
        (annotation(FAKE_ATTACH), annotation(FAKE_DEVICE), record.operational)
    };
    let seen = of_record(&world.cluster.volume(id).unwrap().record);
    let stored = world.records.volumes.iter().find(|record| record.id == id).unwrap();
    assert_eq!(of_record(stored), seen, "what is shown is durable");
    seen
}

fn yes() -> Option<String> {
    Some("yes".to_owned())
}

#[test]
fn a_dummy_is_told_once_and_cleared_at_the_next_clean_stage() {
    let (mut world, id) = attached(&OPTED_IN);
    let told = texts(report(&mut world, id, fake(None), Some("gone")));
    assert_eq!(told.iter().filter(|text| text.starts_with("FakeAttachInvolved")).count(), 1);
    assert!(told.iter().any(|text| text.contains("MISSING")), "{told:?}");
    assert_eq!(seen(&world, id), (yes(), None, Operational::Missing));
    assert_eq!(texts(report(&mut world, id, fake(None), Some("gone"))), [""; 0], "said again");
    let told = texts(report(&mut world, id, fake(None), None));
    assert!(told.len() == 1 && told[0].contains("restart the pod"), "{told:?}");
    assert_eq!(seen(&world, id), (yes(), None, Operational::Operative));
    texts(report(&mut world, id, StagedAs::Unstaged, None));
    assert_eq!(seen(&world, id), (yes(), None, Operational::Operative), "until the next stage");
    let told = texts(report(&mut world, id, StagedAs::Real, None));
    assert!(told.len() == 1 && told[0].starts_with("FakeAttachCleared"), "{told:?}");
    assert_eq!(seen(&world, id), (None, None, Operational::Operative));
    assert_eq!(texts(report(&mut world, id, StagedAs::Real, None)), [""; 0]);
}

#[test]
fn a_fake_device_is_shown_for_as_long_as_it_is_staged() {
    let (mut world, id) = attached(&OPTED_IN);
    texts(report(&mut world, id, fake(Some("/dev/loop7")), Some("gone")));
    assert_eq!(seen(&world, id).1.as_deref(), Some("/dev/loop7"));
    texts(report(&mut world, id, fake(Some("/dev/loop9")), Some("gone")));
    assert_eq!(seen(&world, id).1.as_deref(), Some("/dev/loop9"), "made anew");
    texts(report(&mut world, id, StagedAs::Unstaged, Some("gone")));
    assert_eq!(seen(&world, id), (yes(), None, Operational::Missing));
}

#[test]
fn what_is_shown_outlives_both_and_stays_until_the_agent_says_otherwise() {
    let (mut world, id) = attached(&OPTED_IN);
    texts(report(&mut world, id, fake(None), Some("gone")));
    world.restart();
    world.settle();
    assert_eq!(seen(&world, id), (yes(), None, Operational::Missing));
    let known = world.cluster.volume(id).unwrap();
    assert_eq!(known.attachments[&NODE].staged, None, "the agent has not said it yet");
    assert_eq!(texts(report(&mut world, id, fake(None), Some("gone"))), [""; 0], "no event twice");
}

#[test]
fn a_missing_volume_that_nobody_uses_is_operative_when_its_label_is_there() {
    let (mut world, id) = attached(&OPTED_IN);
    texts(report(&mut world, id, fake(Some("/dev/loop7")), Some("gone")));
    world.ask(VolumeRequest::Detach { volume: id, node: None }).unwrap();
    let drive = DriveId::from_bits(1);
    let kept = std::mem::take(&mut world.labels.get_mut(&drive).unwrap().extents);
    world.attach_all();
    world.settle();
    assert_eq!(world.state(id), Some(VolumeState::Lost));
    assert_eq!(seen(&world, id), (yes(), None, Operational::Missing));
    world.labels.get_mut(&drive).unwrap().extents = kept;
    world.attach_all();
    world.attach_all();
    assert_eq!(seen(&world, id), (yes(), None, Operational::Operative));
}

#[test]
fn a_lost_volume_is_attached_only_for_who_said_that_its_pod_is_to_start() {
    for (parameters, covered) in [(&OPTED_IN[..], true), (&[], false)] {
        let mut world = World::new(&[100]);
        let id = world.create("db", 10, parameters).unwrap();
        world.settle();
        world.labels.get_mut(&DriveId::from_bits(1)).unwrap().extents.clear();
        world.attach_all();
        world.settle();
        assert_eq!(world.state(id), Some(VolumeState::Lost));
        let lost = VolumeRefused::WrongState { state: VolumeState::Lost };
        let expected = if covered { Ok(id) } else { Err(lost) };
        assert_eq!(attach(&mut world, id), expected);
        world.settle();
        let known = world.cluster.volume(id).unwrap();
        if covered {
            assert_eq!(known.attachments[&NODE].record.state, AttachmentState::Attached);
            let why = world.cluster.inaccessible(known, NODE).unwrap();
            assert!(why.contains("label"), "{why}");
        }
    }
}

#[test]
fn an_annotation_that_comes_late_reaches_the_agent_and_outdoes_the_class() {
    for (parameters, value, expected) in [(&[][..], "yes", true), (&OPTED_IN[..], "no", false)] {
        let (mut world, id) = attached(parameters);
        world.orders.clear();
        let changes = [(IGNORE_IF_INACCESSIBLE.to_owned(), Some(value.to_owned()))].into();
        world.ask(VolumeRequest::Annotate { volume: id, changes }).unwrap();
        let Some(VolumeOrder::Use(order)) = world.orders.pop() else { panic!("no use order") };
        assert_eq!(order.grant.ignore_if_inaccessible, expected);
    }
}

#[test]
fn nobody_but_agents_says_that_a_volume_is_fake() {
    let (mut world, id) = attached(&OPTED_IN);
    for key in [FAKE_ATTACH, FAKE_DEVICE] {
        let changes = [(key.to_owned(), Some("yes".to_owned()))].into();
        let refused = world.ask(VolumeRequest::Annotate { volume: id, changes });
        assert_eq!(refused, Err(VolumeRefused::KeptAnnotation { key: key.to_owned() }));
    }
}

#[test]
fn a_report_of_a_use_that_is_over_changes_nothing() {
    let (mut world, id) = attached(&OPTED_IN);
    let report = VolumeReport {
        volume: id,
        epoch: Epoch::default(),
        access: fake(None),
        inaccessible: Some("gone".into()),
    };
    let refused = world.apply(Event::VolumeReport { session: SESSION, report });
    assert_eq!(refused, Err(Refused::StaleAnswer));
    assert_eq!(seen(&world, id), (None, None, Operational::Operative));
    let gone = super::fake_tests::report(&mut world, VolumeId::from_bits(9), fake(None), None);
    assert_eq!(gone, Err(Refused::StaleAnswer));
}

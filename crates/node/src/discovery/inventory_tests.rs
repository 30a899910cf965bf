//! Which devices are read and when, and what a look at one means for others.

use std::collections::BTreeSet;
use std::time::Duration;

use hotbay_core::device::{DeviceKind, DeviceNumber, LabelSeen, Media, Transport};
use hotbay_core::discovery::Needs;
use hotbay_core::discovery::queue::{DeviceKey, Run};
use hotbay_core::discovery::triage::Change;
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, NodeId};
use hotbay_host::KernelId;
use hotbay_host::scan::{Candidate, Inside};
use hotbay_host::worker::{LabelLook, LookError, Looked};

use super::{Context, Inventory, MOST_READ_AT_ONCE, Outcome, ReadEnd};
use crate::discovery::Probes;

pub(in crate::discovery) fn device(name: &str, minor: u32) -> Candidate {
    Candidate {
        id: KernelId::Block(DeviceNumber { major: 8, minor }),
        sequence: Some(1),
        kind: DeviceKind::Block,
        path: format!("/dev/{name}"),
        size_bytes: 1 << 30,
        block_bytes: 512,
        media: Media::Hdd,
        evidence: Evidence { serial: Some(name.to_owned()), ..Evidence::default() },
        bay: None,
        enclosure: None,
        vendor: None,
        firmware: None,
        transport: Transport::Sas,
        physical_block_bytes: 512,
        read_only: false,
        removable: false,
        zoned: false,
        links: vec![],
        holders: vec![],
        partitions: vec![],
        stack: vec![],
        mounts: vec![],
        swaps: vec![],
        loops: vec![],
    }
}

fn read_of(candidate: Candidate) -> ReadEnd {
    let inside = Inside::Seen(Err(LookError::Unreadable { error: "made up".into() }));
    ReadEnd { candidate, inside, unfinished: None, took: Duration::ZERO }
}

#[test]
fn of_many_devices_a_few_are_read_at_once_and_all_in_the_end() {
    let mut inventory = Inventory::default();
    let devices = (0..20).map(|n| device(&format!("sd{n}"), n));
    inventory.listed(devices.map(|device| (device.path.clone(), (None, device))).collect());
    let mut due = inventory.due_to_be_read();
    assert_eq!(due.len(), MOST_READ_AT_ONCE);
    assert!(inventory.due_to_be_read().is_empty(), "these are being read");
    let mut read = BTreeSet::new();
    while let Some(candidate) = due.pop() {
        assert!(read.insert(candidate.path.clone()), "{} is read twice", candidate.path);
        inventory.read(read_of(candidate));
        due.extend(inventory.due_to_be_read());
        assert!(due.len() <= MOST_READ_AT_ONCE);
    }
    assert_eq!(read.len(), 20);
}

#[test]
fn a_mapping_that_joins_paths_concerns_other_drives_whenever_it_is_another() {
    let mut inventory = Inventory::default();
    let mut mapping = device("dm-0", 1);
    let number = DeviceNumber { major: 8, minor: 1 };
    let run = Run {
        device: DeviceKey { number, sequence: None },
        change: Change::Changed,
        needs: Needs::ALL,
    };
    let mut probed = |candidate: Option<&Candidate>| {
        inventory.probed(run, candidate.map(|candidate| (None, candidate.clone())))
    };
    assert_eq!(probed(Some(&mapping)), Outcome::OtherPaths, "it came, without a table yet");
    assert_eq!(probed(Some(&mapping)), Outcome::Same);
    mapping.evidence.serial = Some("of its paths".into());
    assert_eq!(probed(Some(&mapping)), Outcome::OtherPaths, "it has its paths");
    assert_eq!(probed(None), Outcome::OtherPaths, "it went");
    assert_eq!(probed(Some(&device("sda", 1))), Outcome::Other, "a drive of its own");
}

/// An attached drive is open: nobody closes it after the wipe, so that no event tells of it.
#[test]
fn what_the_agent_has_made_of_a_device_is_read_again_once_each_time() {
    let mut inventory = Inventory::default();
    let drive = device("sda", 0);
    inventory.listed([(drive.path.clone(), (None, drive.clone()))].into());
    let mut context = Context::default();
    for times in 0..3 {
        assert_eq!(inventory.due_to_be_read().len(), 1, "{times}");
        inventory.read(read_of(drive.clone()));
        inventory.take_context(context.clone());
        assert!(inventory.due_to_be_read().is_empty(), "{times}: nothing is new");
        *context.remade.entry(drive.path.clone()).or_default() += 1;
        inventory.take_context(context.clone());
    }
}

/// A controller comes before its drive: the machine is listed without it, its event is heard and it is looked at, and
/// then the listing ends. No event would tell of the drive again.
#[test]
fn a_listing_does_not_count_for_what_was_looked_at_since_it_began() {
    let mut inventory = Inventory::default();
    let (early, late, grown) = (device("sda", 0), device("sdb", 1), device("sdc", 2));
    let listed = |devices: [&Candidate; 2]| {
        devices.map(|device| (device.path.clone(), (None, device.clone()))).into()
    };
    inventory.listing();
    assert_eq!(inventory.listed(listed([&early, &grown])), []);

    inventory.listing();
    let run = |minor| {
        let number = DeviceNumber { major: 8, minor };
        let device = DeviceKey { number, sequence: None };
        Run { device, change: Change::Changed, needs: Needs::ALL }
    };
    assert_eq!(inventory.probed(run(1), Some((None, late.clone()))), Outcome::Other);
    let size_bytes = 2 * grown.size_bytes;
    inventory.probed(run(2), Some((None, Candidate { size_bytes, ..grown.clone() })));
    assert_eq!(inventory.probed(run(3), None), Outcome::NoDrive);
    let again = inventory.listed(listed([&grown, &device("sdd", 3)]));
    let numbers: Vec<_> = again.iter().map(|run| run.device.number.minor).collect();
    assert_eq!(numbers, [1, 2, 3], "which of the two is newer is not known for certain");
    let known: Vec<_> = inventory.candidates().map(|it| (&*it.path, it.size_bytes)).collect();
    let expected = [("/dev/sdb", late.size_bytes), ("/dev/sdc", size_bytes)];
    assert_eq!(known, expected, "the first one has gone; nothing else is as the listing has it");

    inventory.listing();
    assert_eq!(inventory.listed([].into()), [], "a later listing counts for all");
    assert_eq!(inventory.candidates().count(), 0);
}

/// A volume that a pod uses is a loop device over its drive, where there is no device-mapper.
#[test]
fn a_loop_device_of_a_volume_is_never_told_as_a_reason_against_its_drive() {
    let mut inventory = Inventory::default();
    let ours = ClusterId::from_bits(1);
    inventory.take_context(Context { ours: Some(ours), ..Context::default() });
    let drive = device("sda", 0);
    let label = LabelSeen {
        cluster: ours,
        drive: DriveId::from_bits(2),
        node: NodeId::from_bits(3),
        generation: Default::default(),
        in_operation: true,
        sequence: 1,
    };
    let read = |candidate: Candidate, mappings: &[&str]| {
        let looked = Looked {
            id: candidate.id,
            evidence: candidate.evidence.clone(),
            label: LabelLook::Valid(label),
            mappings: mappings.iter().map(|path| (*path).to_owned()).collect(),
            stray: vec![],
        };
        let inside = Inside::Seen(Ok(looked));
        ReadEnd { candidate, inside, unfinished: None, took: Duration::ZERO }
    };
    inventory.listed([(drive.path.clone(), (None, drive.clone()))].into());
    inventory.due_to_be_read();
    inventory.read(read(drive.clone(), &[]));
    assert_eq!(inventory.changed().unwrap().devices[0].observed.denied, []);

    let loops = vec!["/dev/loop7".to_owned()];
    let (mapped, number) =
        (Candidate { loops, ..drive.clone() }, DeviceNumber { major: 8, minor: 0 });
    let run = Run {
        device: DeviceKey { number, sequence: None },
        change: Change::Changed,
        needs: Needs::only(Probes::HIERARCHY | Probes::MOUNTS),
    };
    for (candidate, mappings) in [(mapped.clone(), &["/dev/loop7"][..]), (drive, &[])] {
        assert_eq!(inventory.probed(run, Some((None, candidate.clone()))), Outcome::ToBeRead);
        assert!(inventory.changed().is_none(), "whose the loop device is, is not known");
        assert_eq!(inventory.due_to_be_read().len(), 1);
        inventory.read(read(candidate, mappings));
        assert!(inventory.changed().is_none(), "it is the volume's");
    }
    inventory.probed(run, Some((None, mapped.clone())));
    inventory.due_to_be_read();
    inventory.read(read(mapped, &[]));
    let denied = inventory.changed().unwrap().devices[0].observed.denied.clone();
    assert_eq!(denied.len(), 1, "somebody else's is told: {denied:?}");
}

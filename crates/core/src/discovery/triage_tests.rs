//! Each kind of event, and exactly the probes that it is worth.

use super::{Change, Look, Target, Verdict, triage};
use crate::device::DeviceNumber;
use crate::discovery::event::{Action, Event, Origin, kernel_event};
use crate::discovery::probes::{Needs, Probes};
use crate::discovery::queue::DeviceKey;

const DISK: &str =
    "/devices/pci/block/sda|SUBSYSTEM=block|DEVTYPE=disk|DEVNAME=sda|MAJOR=8|MINOR=0|DISKSEQ=7";
const PARTITION: &str = "/devices/pci/block/sda/sda1|SUBSYSTEM=block|DEVTYPE=partition|\
    DEVNAME=sda1|MAJOR=8|MINOR=1|DISKSEQ=7|PARTN=1";
const MAPPING: &str = "/devices/virtual/block/dm-0|SUBSYSTEM=block|DEVTYPE=disk|DEVNAME=dm-0|\
    MAJOR=253|MINOR=0|DISKSEQ=9";
const SCSI: &str = "/devices/pci/0:0:0:0|SUBSYSTEM=scsi|DEVTYPE=scsi_device";
const NVME: &str = "/devices/pci/nvme/nvme0|SUBSYSTEM=nvme|DEVNAME=nvme0";

const SDA: Target<'static> =
    Target::Device(DeviceKey { number: DeviceNumber { major: 8, minor: 0 }, sequence: Some(7) });

/// Runs `check` on the verdict about an event of `device`, told by `origin`.
fn verdict(origin: Origin, action: &str, device: &str, keys: &str, check: impl Fn(Verdict<'_>)) {
    let (devpath, _) = device.split_once('|').unwrap();
    let text = format!("{action}@{devpath}|ACTION={action}|DEVPATH={device}|{keys}");
    let datagram = text.replace('|', "\0").into_bytes();
    check(triage(&Event { origin, ..kernel_event(&datagram).unwrap() }));
}

fn looks(action: &str, device: &str, keys: &str, change: Change, needs: Needs) {
    verdict(Origin::Kernel, action, device, keys, |verdict| match verdict {
        Verdict::Look(look) => {
            assert_eq!((look.change, look.needs), (change, needs), "{action} {device} {keys}");
        }
        Verdict::Ignore => panic!("{action} {device} {keys} is ignored"),
    });
}

fn ignored(action: &str, device: &str, keys: &str) {
    verdict(Origin::Kernel, action, device, keys, |verdict| {
        assert_eq!(verdict, Verdict::Ignore, "{action} {device} {keys}");
    });
}

const fn only(probes: Probes) -> Needs {
    Needs::only(probes)
}

/// From outside, and everything else if that differs.
fn outside_first(more: Probes) -> Needs {
    let now = Probes::OUTSIDE | Probes::UDEV_DB | more;
    Needs { now, if_changed: Probes::ALL.without(now) }
}

#[test]
fn a_resize_reads_one_file() {
    looks("change", DISK, "RESIZE=1|", Change::Changed, only(Probes::SIZE));
    assert_eq!(Probes::SIZE.names().collect::<Vec<_>>(), ["size"]);
}

#[test]
fn each_sign_asks_for_what_it_means() {
    looks("change", DISK, "DISK_RO=1|", Change::Changed, only(Probes::READ_ONLY));
    looks("change", DISK, "DISK_MEDIA_CHANGE=1|", Change::Changed, Needs::ALL);
    let both = only(Probes::SIZE | Probes::READ_ONLY);
    looks("change", DISK, "RESIZE=1|DISK_RO=0|", Change::Changed, both);
    ignored("change", DISK, "DISK_EJECT_REQUEST=1|");
    looks("change", DISK, "DISK_EJECT_REQUEST=1|RESIZE=1|", Change::Changed, only(Probes::SIZE));
}

#[test]
fn a_change_without_a_sign_opens_the_device_only_if_it_differs_outside() {
    looks("change", DISK, "", Change::Changed, outside_first(Probes::NONE));
    let written = outside_first(Probes::INSIDE | Probes::HIERARCHY);
    looks("change", DISK, "SYNTH_UUID=0|", Change::Changed, written);
}

#[test]
fn what_comes_is_looked_at_whole_and_what_went_not_at_all() {
    looks("add", DISK, "", Change::Came, Needs::ALL);
    looks("remove", DISK, "", Change::Went, Needs::NONE);
    verdict(Origin::Kernel, "add", DISK, "", |verdict| {
        let expected = Look { target: SDA, change: Change::Came, needs: Needs::ALL };
        assert_eq!(verdict, Verdict::Look(expected));
    });
}

#[test]
fn an_event_that_somebody_made_up_removes_nothing() {
    looks("remove", DISK, "SYNTH_UUID=0|", Change::Changed, outside_first(Probes::NONE));
    looks("add", DISK, "SYNTH_UUID=0|", Change::Changed, Needs::ALL);
}

#[test]
fn a_partition_concerns_its_disk() {
    let table = Probes::HIERARCHY | Probes::INSIDE | Probes::MOUNTS;
    for action in ["add", "remove"] {
        looks(action, PARTITION, "", Change::Changed, only(table));
    }
    looks("change", PARTITION, "", Change::Changed, only(Probes::HIERARCHY));
    verdict(Origin::Kernel, "remove", PARTITION, "", |verdict| {
        let Verdict::Look(look) = verdict else { panic!("{verdict:?}") };
        assert_eq!(look.target, Target::Disk { name: "sda", sequence: Some(7) });
    });
}

#[test]
fn a_mapping_is_looked_at_when_it_is_complete() {
    let around = only(Probes::HIERARCHY);
    let primary = format!("DM_COOKIE={}|", 0x0040_0001);
    looks("add", MAPPING, "", Change::Came, around);
    looks("change", MAPPING, "", Change::Changed, around);
    looks("change", MAPPING, "DM_COOKIE=1|", Change::Changed, around);
    looks("change", MAPPING, &format!("{primary}DM_SUSPENDED=1|"), Change::Changed, around);
    looks("change", MAPPING, &primary, Change::Changed, Needs::ALL);
    let grown = only(Probes::HIERARCHY | Probes::SIZE);
    looks("change", MAPPING, "RESIZE=1|", Change::Changed, grown);
    looks("remove", MAPPING, "", Change::Went, Needs::NONE);
}

#[test]
fn a_scsi_device_speaks_for_the_disk_on_it() {
    let capacity = "SDEV_UA=CAPACITY_DATA_HAS_CHANGED|";
    looks("change", SCSI, capacity, Change::Changed, only(Probes::SIZE));
    let inquiry = "SDEV_UA=INQUIRY_DATA_HAS_CHANGED|";
    looks("change", SCSI, inquiry, Change::Changed, only(Probes::OUTSIDE));
    let mode = "SDEV_UA=MODE_PARAMETERS_CHANGED|";
    looks("change", SCSI, mode, Change::Changed, only(Probes::READ_ONLY));
    ignored("change", SCSI, "SDEV_UA=THIN_PROVISIONING_SOFT_THRESHOLD_REACHED|");
    for action in ["add", "remove", "bind", "unbind", "change"] {
        ignored(action, SCSI, "");
    }
    verdict(Origin::Kernel, "change", SCSI, capacity, |verdict| {
        let Verdict::Look(look) = verdict else { panic!("{verdict:?}") };
        assert_eq!(look.target, Target::Below { devpath: "/devices/pci/0:0:0:0" });
    });
}

#[test]
fn a_controller_speaks_for_its_namespaces() {
    looks("change", NVME, "NVME_EVENT=connected|", Change::Changed, only(Probes::OUTSIDE));
    ignored("add", NVME, "");
}

#[test]
fn udev_only_says_that_its_database_is_ready() {
    for (action, asks) in [("add", true), ("change", true), ("remove", false)] {
        verdict(Origin::Udev, action, DISK, "RESIZE=1|", |verdict| {
            let needs = only(Probes::UDEV_DB);
            let look = Look { target: SDA, change: Change::Changed, needs };
            let expected = if asks { Verdict::Look(look) } else { Verdict::Ignore };
            assert_eq!(verdict, expected, "{action}");
        });
    }
    verdict(Origin::Udev, "add", PARTITION, "", |verdict| assert_eq!(verdict, Verdict::Ignore));
}

#[test]
fn other_subsystems_are_nothing_to_us() {
    ignored("add", "/devices/virtual/net/veth1|SUBSYSTEM=net", "");
    ignored("change", "/devices/virtual/bdi/7:0|SUBSYSTEM=bdi", "RESIZE=1|");
}

#[test]
fn an_unknown_action_on_a_disk_is_looked_into() {
    assert_eq!(Action::parse("explode"), Action::Other);
    looks("explode", DISK, "", Change::Changed, outside_first(Probes::NONE));
    ignored("bind", DISK, "");
    let renamed = only(Probes::IDENTITY | Probes::MOUNTS | Probes::UDEV_DB);
    looks("move", DISK, "", Change::Changed, renamed);
}

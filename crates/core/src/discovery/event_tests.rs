//! Datagrams as kernels and udev send them, and bytes that nobody sends.

use proptest::prelude::*;

use super::{
    Action, DevType, Event, MAX_DATAGRAM_BYTES, Mapper, Origin, Refused, Signs, Subsystem,
    UnitAttention, kernel_event, udev_event,
};
use crate::device::DeviceNumber;

const LOOP: &str = "change@/devices/virtual/block/loop0|ACTION=change|\
    DEVPATH=/devices/virtual/block/loop0|SUBSYSTEM=block|RESIZE=1|MAJOR=7|MINOR=0|DEVNAME=loop0|\
    DEVTYPE=disk|DISKSEQ=1991|SEQNUM=10040|";

fn bytes(text: &str) -> Vec<u8> {
    text.replace('|', "\0").into_bytes()
}

fn with(extra: &str) -> Vec<u8> {
    bytes(&format!("{LOOP}{extra}"))
}

/// As udev sends it: the header with its offsets, then the properties.
fn udev(properties: &[u8]) -> Vec<u8> {
    let mut datagram = b"libudev\0".to_vec();
    datagram.extend(0xfeed_cafe_u32.to_be_bytes());
    let length = u32::try_from(properties.len()).unwrap();
    datagram.extend([40, 40, length, 1, 2, 3, 4].into_iter().flat_map(u32::to_ne_bytes));
    datagram.extend(properties);
    datagram
}

#[test]
fn a_kernel_event_is_read() {
    let datagram = bytes(LOOP);
    let expected = Event {
        origin: Origin::Kernel,
        action: Action::Change,
        devpath: "/devices/virtual/block/loop0",
        subsystem: Subsystem::Block,
        devtype: DevType::Disk,
        devname: Some("loop0"),
        number: Some(DeviceNumber { major: 7, minor: 0 }),
        seqnum: Some(10_040),
        diskseq: Some(1_991),
        partn: None,
        signs: Signs { resized: true, ..Signs::default() },
    };
    assert_eq!(kernel_event(&datagram), Ok(expected));
}

#[test]
fn udev_says_the_same_in_its_own_form() {
    let (_, properties) = LOOP.split_once('|').unwrap();
    let datagram = udev(&bytes(&properties.replace("DEVNAME=", "DEVNAME=/dev/")));
    let kernel = bytes(LOOP);
    let expected = Event { origin: Origin::Udev, ..kernel_event(&kernel).unwrap() };
    assert_eq!(udev_event(&datagram), Ok(expected));
}

#[test]
fn a_partition_names_its_disk() {
    let datagram = bytes(
        "add@/devices/virtual/block/loop0/loop0p1|ACTION=add|SUBSYSTEM=block|DEVTYPE=partition|\
        DEVPATH=/devices/virtual/block/loop0/loop0p1|MAJOR=259|MINOR=3|PARTN=1|DISKSEQ=5|",
    );
    let event = kernel_event(&datagram).unwrap();
    assert_eq!((event.partn, event.devtype), (Some(1), DevType::Partition));
    assert_eq!(event.disk_of_partition(), Some("loop0"));
}

#[test]
fn every_sign_is_read() {
    let signs = |extra: &str| kernel_event(&with(extra)).unwrap().signs;
    assert!(signs("DISK_MEDIA_CHANGE=1|").media_changed);
    assert!(signs("DISK_EJECT_REQUEST=1|").eject_requested);
    assert!(signs("DISK_RO=0|").read_only_set);
    assert!(signs("SYNTH_UUID=0|").synthetic);
    assert!(signs("NVME_EVENT=rediscover|").nvme_event);
    assert!(!signs("RESIZE=0|").resized, "of a key that comes twice the last one counts");
    for (word, attention) in [
        ("CAPACITY_DATA_HAS_CHANGED", UnitAttention::Capacity),
        ("INQUIRY_DATA_HAS_CHANGED", UnitAttention::Inquiry),
        ("MODE_PARAMETERS_CHANGED", UnitAttention::ModeParameters),
        ("REPORTED_LUNS_DATA_HAS_CHANGED", UnitAttention::Other),
    ] {
        assert_eq!(signs(&format!("SDEV_UA={word}|")).unit_attention, Some(attention));
    }
}

#[test]
fn device_mapper_tells_whether_it_meant_it() {
    let mapper = |extra: &str| kernel_event(&with(extra)).unwrap().signs.mapper.unwrap();
    assert!(!mapper("DM_NAME=vg-lv|").is_primary());
    assert!(mapper("DM_COOKIE=4253487|").is_primary(), "0x0040e72f: the flag is in the upper half");
    assert!(!mapper("DM_COOKIE=59183|").is_primary());
    assert!(mapper("DM_UDEV_PRIMARY_SOURCE_FLAG=1|DM_SUSPENDED=1|").is_primary());
    let expected = Mapper { cookie: None, primary_flag: Some(false), suspended: true };
    assert_eq!(mapper("DM_UDEV_PRIMARY_SOURCE_FLAG=0|DM_SUSPENDED=1|"), expected);
}

#[test]
fn what_nobody_asks_for_may_be_anything() {
    let mut datagram = bytes(LOOP);
    datagram.extend(b"NAME=\xff\xfe\0without sign\0=\0\0");
    assert!(kernel_event(&datagram).is_ok());
}

#[test]
fn what_is_no_event_is_refused_with_its_reason() {
    let missing = |key| Err(Refused::Missing { key });
    let cases: Vec<(Vec<u8>, Result<Event<'_>, Refused>)> = vec![
        (vec![], Err(Refused::Empty)),
        (vec![0; MAX_DATAGRAM_BYTES + 1], Err(Refused::TooLong)),
        (b"add@/x".to_vec(), Err(Refused::CutOff)),
        (bytes("add|"), Err(Refused::NoHeader)),
        (bytes("@/x|"), Err(Refused::NoHeader)),
        (bytes("add@x|"), Err(Refused::NoHeader)),
        (bytes("add@/x|ACTION=add"), Err(Refused::CutOff)),
        (bytes("add@/x|"), missing("ACTION")),
        (bytes("add@/x|ACTION=add|"), missing("SUBSYSTEM")),
        (bytes("add@/x|ACTION=add|SUBSYSTEM=net|"), missing("DEVPATH")),
        (bytes("add@/x|ACTION=add|SUBSYSTEM=block|DEVPATH=/x|"), missing("MAJOR")),
        (bytes("add@/x|ACTION=add|SUBSYSTEM=block|DEVPATH=/x|MAJOR=1|"), missing("MINOR")),
        (bytes("add@/x|ACTION=add|SUBSYSTEM=net|DEVPATH=/y|"), Err(Refused::HeaderDisagrees)),
        (bytes("add@/x|ACTION=remove|SUBSYSTEM=net|DEVPATH=/x|"), Err(Refused::HeaderDisagrees)),
        (with("MAJOR=-1|"), Err(Refused::NotANumber { key: "MAJOR" })),
        (with("SEQNUM=99999999999999999999|"), Err(Refused::NotANumber { key: "SEQNUM" })),
        (
            [bytes(LOOP), b"DEVNAME=\xff\0".to_vec()].concat(),
            Err(Refused::NotUtf8 { key: "DEVNAME" }),
        ),
    ];
    for (datagram, expected) in cases {
        assert_eq!(kernel_event(&datagram), expected, "{:?}", String::from_utf8_lossy(&datagram));
    }
}

#[test]
fn a_header_of_udev_that_lies_is_refused() {
    let good = udev(&bytes("ACTION=add|DEVPATH=/x|SUBSYSTEM=net|"));
    assert!(udev_event(&good).is_ok());
    assert_eq!(udev_event(&good[..39]), Err(Refused::NotUdev));
    assert_eq!(udev_event(&good[..good.len() - 1]), Err(Refused::BadOffsets));
    let changed = |at: usize, byte: u8| {
        let mut datagram = good.clone();
        datagram[at] = byte;
        udev_event(&datagram).err()
    };
    assert_eq!(changed(0, b'L'), Some(Refused::NotUdev));
    assert_eq!(changed(8, 0), Some(Refused::NotUdev));
    for at in [12, 16] {
        assert_eq!(changed(at, 39), Some(Refused::BadOffsets), "byte {at}");
    }
    for at in 16..24 {
        assert!(changed(at, 0xff).is_some(), "byte {at}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(datagram in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = kernel_event(&datagram);
        let _ = udev_event(&datagram);
        let _ = udev_event(&udev(&datagram));
    }

    #[test]
    fn a_damaged_event_is_read_or_refused(at in 0..200_usize, byte: u8, cut in 0..300_usize) {
        let mut datagram = with("DM_COOKIE=1|SDEV_UA=x|");
        let at = at % datagram.len();
        datagram[at] = byte;
        datagram.truncate(cut);
        if let Ok(event) = kernel_event(&datagram) {
            prop_assert!(event.devpath.starts_with('/'));
        }
        let _ = udev_event(&udev(&datagram));
    }
}

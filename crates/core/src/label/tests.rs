//! The codec of the label: its bytes are pinned, and nothing but a label is taken for one.

use proptest::prelude::*;

use super::*;
use crate::ids::VolumeId;

pub(super) fn header(sequence: u64) -> Header {
    Header {
        cluster: ClusterId::from_bits(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        drive: DriveId::from_bits(0x7f3a_91c0_0000_0000_0000_0000_0000_0001),
        node: NodeId::from_bits(2),
        generation: Generation::from_number(0x0506),
        in_operation: true,
        sequence,
        extents: extents::Digest { extents: 3, checksum: 0x0a0b_0c0d },
    }
}

pub(super) fn extent(volume: u128, start_mib: u64, length_mib: u64) -> extents::Extent {
    extents::Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: start_mib << 20,
        length_bytes: length_mib << 20,
        usage: extents::Use::Used,
        formatted: false,
        name: format!("pvc-{volume}").parse().unwrap(),
        claim: Some(extents::Claim::new("default", "data-0").unwrap()),
    }
}

/// Recomputes the checksum, as a writer of another format would.
fn sealed(mut unit: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let checksum = crc32c::crc32c(&unit[..CHECKSUM_AT]);
    put(&mut unit, CHECKSUM_AT, checksum.to_le_bytes());
    unit
}

#[test]
fn every_byte_is_where_the_format_says() {
    let mut expected = [0; HEADER_BYTES];
    expected[..16].copy_from_slice(b"hotbay label\r\n\x1a\n");
    expected[16] = 1;
    expected[20..24].copy_from_slice(b"REPO");
    expected[24..40].copy_from_slice(&[
        0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23,
        0x01,
    ]);
    expected[40] = 1;
    expected[52..56].copy_from_slice(&[0xc0, 0x91, 0x3a, 0x7f]);
    expected[56] = 2;
    expected[72..74].copy_from_slice(&[0x06, 0x05]);
    expected[80] = 9;
    expected[88] = 3;
    expected[92..96].copy_from_slice(&[0x0d, 0x0c, 0x0b, 0x0a]);
    let checksum = crc32c::crc32c(&expected[..508]);
    expected[508..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(encode(&header(9)), expected);

    let released = encode(&Header { in_operation: false, ..header(9) });
    assert_eq!(&released[20..24], b"SLER");
}

#[test]
fn no_changed_byte_is_accepted() {
    let unit = encode(&header(1));
    for at in 0..HEADER_BYTES {
        for change in 1..=u8::MAX {
            let mut changed = unit;
            changed[at] ^= change;
            let expected = if at < MAGIC.len() { Slot::NoLabel } else { Slot::Damaged };
            assert_eq!(decode(&changed), expected, "byte {at} changed by {change:#x}");
        }
    }
}

#[test]
fn a_later_format_is_not_taken_for_damage() {
    let mut later = encode(&header(1));
    put(&mut later, VERSION_AT, 2u32.to_le_bytes());
    later[RESERVED_AT] = 1;
    assert_eq!(decode(&later), Slot::Damaged);
    assert_eq!(decode(&sealed(later)), Slot::UnknownVersion(2));
}

#[test]
fn what_this_version_never_writes_is_damage_even_with_a_right_checksum() {
    let mut reserved = encode(&header(1));
    reserved[CHECKSUM_AT - 1] = 1;
    assert_eq!(decode(&sealed(reserved)), Slot::Damaged);
    let mut state = encode(&header(1));
    put(&mut state, STATE_AT, [0; 4]);
    assert_eq!(decode(&sealed(state)), Slot::Damaged);
}

#[test]
fn the_highest_valid_sequence_wins() {
    let (old, new) = (header(7), header(8));
    let at = |header, slot| Found::Valid { header, slot };
    assert_eq!(newest(Slot::Valid(old), Slot::Valid(new)), at(new, SlotNumber::One));
    assert_eq!(newest(Slot::Valid(new), Slot::Valid(old)), at(new, SlotNumber::Zero));
    assert_eq!(newest(Slot::Valid(old), Slot::Valid(old)), at(old, SlotNumber::Zero));
    for lost in [Slot::Empty, Slot::NoLabel, Slot::Damaged] {
        assert_eq!(newest(Slot::Valid(old), lost), at(old, SlotNumber::Zero));
        assert_eq!(newest(lost, Slot::Valid(old)), at(old, SlotNumber::One));
    }
}

#[test]
fn doubt_is_never_a_header() {
    let mine = header(7);
    let doubtful = [
        (Slot::Damaged, Slot::Empty, Found::Damaged),
        (Slot::NoLabel, Slot::Damaged, Found::Damaged),
        (Slot::Damaged, Slot::Damaged, Found::Damaged),
        (Slot::Empty, Slot::NoLabel, Found::Absent),
        (Slot::Empty, Slot::Empty, Found::Absent),
        (Slot::UnknownVersion(3), Slot::Valid(mine), Found::UnknownVersion(3)),
        (Slot::UnknownVersion(3), Slot::Damaged, Found::UnknownVersion(3)),
    ];
    for (one, other, expected) in doubtful {
        assert_eq!(newest(one, other), expected);
        assert_eq!(newest(other, one), expected);
    }
    let contradicting = [
        Header { cluster: ClusterId::from_bits(1), ..header(8) },
        Header { drive: DriveId::from_bits(1), ..header(8) },
        Header { node: NodeId::from_bits(1), ..mine },
    ];
    for other in contradicting {
        assert_eq!(newest(Slot::Valid(mine), Slot::Valid(other)), Found::Damaged);
    }
}

#[test]
fn the_slots_lie_apart_inside_the_partition() {
    assert_eq!(SlotNumber::Zero.offset_bytes(), 1_048_576);
    assert_eq!(SlotNumber::One.offset_bytes(), 1_572_864);
    assert_eq!(SlotNumber::Zero.other(), SlotNumber::One);
    assert_eq!(SlotNumber::One.other(), SlotNumber::Zero);
}

prop_compose! {
    fn any_header()(
        cluster: u128, drive: u128, node: u128, generation: u64, in_operation: bool, sequence: u64,
    ) -> Header {
        Header {
            cluster: ClusterId::from_bits(cluster),
            drive: DriveId::from_bits(drive),
            node: NodeId::from_bits(node),
            generation: Generation::from_number(generation),
            in_operation,
            sequence,
            extents: extents::Digest { extents: u32::from(in_operation), checksum: 7 },
        }
    }
}

proptest! {
    #[test]
    fn a_header_reads_back(header in any_header()) {
        prop_assert_eq!(decode(&encode(&header)), Slot::Valid(header));
    }

    #[test]
    fn garbage_is_never_a_header(mut unit: [u8; HEADER_BYTES], with_magic: bool) {
        if with_magic {
            put(&mut unit, 0, MAGIC);
            put(&mut unit, VERSION_AT, FORMAT_VERSION.to_le_bytes());
        }
        prop_assert!(!matches!(decode(&unit), Slot::Valid(_) | Slot::UnknownVersion(_)));
    }

    #[test]
    fn a_torn_header_is_never_a_header(
        old in any_header(), new in any_header(), cut in 1..HEADER_BYTES,
    ) {
        let mut torn = encode(&new);
        torn[cut..].copy_from_slice(&encode(&old)[cut..]);
        let whole = [encode(&old), encode(&new)].contains(&torn);
        prop_assert!(whole || !matches!(decode(&torn), Slot::Valid(_)));
    }
}

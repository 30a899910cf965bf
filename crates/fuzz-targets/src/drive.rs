//! What is read from a drive: the two slots of the label, the extents in them, and the partition table around them.

use hotbay_core::ids::{ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::label::change::{self, Basis, Change, Changed, MOST_CHANGES};
use hotbay_core::label::extents::{
    self, Claim, Digest, EXTENT_BYTES, Extent, FIRST_EXTENT_BYTES, Use,
};
use hotbay_core::label::table::{Table, TableState};
use hotbay_core::label::update::{Plan, Want, plan};
use hotbay_core::label::{self, Found, HEADER_BYTES, Header, Slot};
use hotbay_core::order::Generation;

use crate::assert_plain;
use crate::bytes::Bytes;

/// The checksum stands at the end of a header.
const SUMMED: usize = HEADER_BYTES - 4;

/// Two slots, and what somebody wants of the drive.
pub(crate) fn label(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let choices = bytes.byte();
    let slots = [choices & 1 == 1, choices & 2 == 2].map(|mend| slot(&mut bytes, mend));
    let [zero, one] = slots;
    let found = label::newest(zero, one);
    if let Found::Valid { header, .. } = found {
        let valid = [zero, one].into_iter().any(|slot| slot == Slot::Valid(header));
        assert!(valid, "a header from nowhere: {header:?}");
    }
    let want = Want {
        cluster: ClusterId::from_bits(u128::from(choices >> 2 & 1) + 1),
        drive: DriveId::from_bits(2),
        node: NodeId::from_bits(u128::from(choices >> 3 & 1) + 3),
        generation: Generation::from_number(bytes.number()),
        in_operation: choices & 16 == 16,
        take_over: choices & 32 == 32,
    };
    let table = match choices >> 6 {
        0 => TableState::Whole,
        1 => TableState::Unfinished,
        2 => TableState::OtherSize { size_bytes: bytes.number() },
        _ => TableState::Foreign { at_byte: bytes.number() },
    };
    let first_nonzero = bytes.flag().then(|| bytes.number());
    match plan(found, table, first_nonzero, &want) {
        Err(refusal) => assert_plain(refusal),
        Ok(Plan::Nothing | Plan::Keep(_)) => {}
        Ok(Plan::Initialise(header)) => {
            assert!(found == Found::Absent && first_nonzero.is_none(), "written over something");
            reads_back(&header);
        }
        Ok(Plan::Update { slot, header, .. }) => {
            let Found::Valid { header: old, slot: counts } = found else {
                panic!("an update of {found:?}");
            };
            assert_ne!(slot, counts, "the slot that counts would be written");
            assert_eq!((old.cluster, old.drive), (want.cluster, want.drive), "not ours");
            assert!(header.sequence > old.sequence && header.generation >= old.generation);
            reads_back(&header);
        }
    }
}

/// One slot; with its checksum mended, so that what lies behind it is reached.
fn slot(bytes: &mut Bytes<'_>, mend: bool) -> Slot {
    let mut unit = [0; HEADER_BYTES];
    let given = bytes.take(HEADER_BYTES);
    unit[..given.len()].copy_from_slice(given);
    if mend {
        let sum = crc32c::crc32c(&unit[..SUMMED]);
        unit[SUMMED..].copy_from_slice(&sum.to_le_bytes());
    }
    let slot = label::decode(&unit);
    if let Slot::Valid(header) = slot {
        assert_eq!(label::encode(&header), unit, "a valid header that is written otherwise");
    }
    slot
}

fn reads_back(header: &Header) {
    assert_eq!(label::decode(&label::encode(header)), Slot::Valid(*header));
}

fn header(sequence: u64, in_operation: bool) -> Header {
    Header {
        cluster: ClusterId::from_bits(1),
        drive: DriveId::from_bits(2),
        node: NodeId::from_bits(3),
        generation: Generation::from_number(4),
        in_operation,
        sequence,
        extents: Digest { extents: 1, checksum: 5 },
    }
}

pub(crate) fn label_seeds() -> Vec<Vec<u8>> {
    let seed = |choices: u8, zero: &[u8], one: &[u8]| {
        [&[choices][..], zero, one, &9_u64.to_le_bytes()].concat()
    };
    let (zero, one) = (label::encode(&header(6, true)), label::encode(&header(7, false)));
    let empty = [0; HEADER_BYTES];
    vec![
        seed(0b1_0000, &empty, &empty),
        seed(0b1_0011, &zero, &one),
        seed(0b1_0000, &zero, &empty),
        seed(0b0111_1011, &one, &zero),
    ]
}

/// An extent table, whose checksum fits it, and behind it an order to change it.
pub(crate) fn extents(data: &[u8]) {
    let (table, rest) = data.split_at(data.len() / EXTENT_BYTES * EXTENT_BYTES);
    let Some(read) = extents::decode(table, Digest::of(table)) else { return };
    assert_eq!(extents::encode(&read), table, "extents that are written otherwise");
    let conflicts = extents::in_conflict(&read).count();
    assert!(conflicts <= read.len());
    let mut bytes = Bytes::new(rest);
    let header = Header { extents: Digest::of(table), ..header(6, true) };
    let basis = Basis { sequence: 6 - u64::from(bytes.pick(8) == 1), ..Basis::of(&header) };
    let mut changes = Vec::new();
    while !bytes.is_empty() && changes.len() <= MOST_CHANGES {
        changes.push(any_change(&mut bytes, &read));
    }
    let text = serde_json::to_string(&changes).expect("an order is text");
    assert!(serde_json::from_str::<Vec<Change>>(&text).is_ok_and(|back| back == changes));
    match change::changed(&header, &read, basis, &changes, LIMIT_BYTES) {
        Err(refused) => assert_plain(refused),
        Ok(Changed { extents, erase }) => {
            assert!(basis == Basis::of(&header) && !changes.is_empty(), "a late order");
            assert!(extents::in_conflict(&extents).count() <= conflicts, "one byte for two");
            if let Some(range) = erase {
                assert!(range.start >= FIRST_EXTENT_BYTES && range.end <= LIMIT_BYTES);
                let within = |extent: &&Extent| {
                    extent.start_bytes < range.end && range.start < extent.end_bytes()
                };
                let of: Vec<_> = read.iter().filter(within).collect();
                assert!(matches!(of[..], [extent] if extent.usage == Use::Dirty), "{of:?}");
                assert!(!extents.iter().any(|extent| within(&extent)), "erased, and still dirty");
            }
        }
    }
}

/// Where extents end on the drive that orders are for.
const LIMIT_BYTES: u64 = 64 << 20;

/// A change of a volume in the table, or of another.
fn any_change(bytes: &mut Bytes<'_>, table: &[Extent]) -> Change {
    let (kind, which) = (bytes.pick(6), usize::from(bytes.byte()));
    let known = table.get(which);
    let volume = known.map_or(VolumeId::from_bits(which as u128), |extent| extent.volume);
    let part = known.map_or(0, |extent| extent.part);
    let whole = |bytes: &mut Bytes<'_>| u64::from(bytes.byte()) << bytes.pick(64);
    match kind {
        0 => {
            let (start_bytes, length_bytes) = (whole(bytes), whole(bytes));
            Change::Place(Extent {
                volume,
                part,
                start_bytes,
                length_bytes,
                ..extent(1, Use::Used, None)
            })
        }
        1 => Change::Grow { volume, part, length_bytes: whole(bytes) },
        2 => Change::Free { volume },
        3 => Change::Erase { volume, part, length_bytes: whole(bytes) },
        4 => Change::Formatted { volume },
        _ => Change::Withdraw { volume },
    }
}

fn extent(volume: u128, usage: Use, claim: Option<Claim>) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: (1 + u64::try_from(volume).unwrap_or_default()) << 20,
        length_bytes: 1 << 20,
        usage,
        formatted: false,
        name: "pvc-1".parse().expect("a short name"),
        claim,
    }
}

pub(crate) fn extents_seeds() -> Vec<Vec<u8>> {
    let claim = Claim::new("default", "data-0").expect("short names");
    let (used, dirty) = (extent(1, Use::Used, Some(claim)), extent(2, Use::Dirty, None));
    let used = Extent { formatted: true, ..used };
    let table = |extents: &[Extent]| extents::encode(extents);
    let both = table(&[used.clone(), dirty]);
    let with = |order: &[u8]| [&both[..], order].concat();
    vec![
        vec![],
        table(&[used]),
        both.clone(),
        // An erase of a MiB; a late one; a placement at 8 MiB and a volume that is freed.
        with(&[0, 3, 1, 1, 20]),
        with(&[1, 3, 1, 1, 20]),
        with(&[0, 0, 9, 8, 20, 1, 20, 2, 0]),
        // A volume that was formatted.
        with(&[0, 4, 0]),
    ]
}

/// A drive's size, and changes to what its table should be.
pub(crate) fn table(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let block_bytes = match bytes.pick(4) {
        0 => 512,
        1 => 4096,
        _ => u32::from(bytes.byte()) << bytes.pick(24),
    };
    let size_bytes = if bytes.flag() { bytes.number() } else { u64::from(bytes.byte()) << 20 };
    let drive = DriveId::from_bits(u128::from(bytes.number()));
    let table = match Table::new(drive, size_bytes, block_bytes) {
        Ok(table) => table,
        Err(unfit) => return assert_plain(unfit),
    };
    let mut end = 0;
    for region in table.regions() {
        assert!(region.bytes.len().is_multiple_of(block_bytes as usize), "half a block");
        end = end.max(region.offset_bytes + region.bytes.len() as u64);
    }
    assert_eq!(end, size_bytes, "the backup is not at the end");
    let mut seen: Vec<_> = table.regions().iter().map(|region| region.bytes.clone()).collect();
    assert_eq!(table.state(&seen), TableState::Whole);
    let right = seen.clone();
    while !bytes.is_empty() {
        let region = usize::from(bytes.pick(5));
        let from = usize::try_from(bytes.number()).unwrap_or_default() % seen[region].len();
        if bytes.flag() {
            // A write that was cut off: zeroes from some sector on.
            seen[region][from / 512 * 512..].fill(0);
        } else {
            let change = bytes.take(16);
            let room = change.len().min(seen[region].len() - from);
            seen[region][from..from + room].copy_from_slice(&change[..room]);
        }
    }
    let state = table.state(&seen);
    assert_eq!(state == TableState::Whole, seen == right, "{state:?}");
}

pub(crate) fn table_seeds() -> Vec<Vec<u8>> {
    let sixteen_mib = [0, 0, 16];
    let drive = 7_u64.to_le_bytes();
    let cut = [&[4][..], &0_u64.to_le_bytes(), &[1]].concat();
    let changed = [&[3][..], &40_u64.to_le_bytes(), &[0], b"sixteen bytes, ."].concat();
    vec![
        [&sixteen_mib[..], &drive].concat(),
        [&[1, 0, 64][..], &drive, &cut].concat(),
        [&sixteen_mib[..], &drive, &changed, &cut].concat(),
        [&[0, 1][..], &(1_u64 << 40).to_le_bytes(), &drive].concat(),
    ]
}

//! The extent table of a label: which part of the drive belongs to which volume.
//!
//! It stands behind the header in each slot, one unit of [`EXTENT_BYTES`] for each extent, and the header has its
//! [`Digest`]. The label is the truth about which extents are used, so each names its volume as people know it: a
//! registry that was lost is rebuilt from the drives. [`super::change`] decides what may be changed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{put, take};
use crate::ids::VolumeId;
use crate::volume::Segment;

/// The length of an encoded extent: one unit that every drive writes wholly or not at all.
pub const EXTENT_BYTES: usize = 512;

/// Where the table begins in a slot: behind the header's block, however large that is.
pub const TABLE_AT_BYTES: u64 = 4096;

/// How many extents a slot has room for.
pub const MOST_EXTENTS: usize = 1016;

const _: () = assert!(
    TABLE_AT_BYTES + (MOST_EXTENTS * EXTENT_BYTES) as u64 == super::SLOT_BYTES,
    "a full table ends with its slot"
);

/// Extents begin and end at multiples of this.
pub const ALIGNMENT_BYTES: u64 = 1 << 20;

/// Where the first extent may begin: behind the slots.
pub const FIRST_EXTENT_BYTES: u64 = 2 << 20;

const MOST_NAME_BYTES: usize = 128;
const MOST_NAMESPACE_BYTES: usize = 63;
const MOST_CLAIM_BYTES: usize = 253;

// Offsets within an extent.
const VOLUME_AT: usize = 0;
const START_AT: usize = 16;
const LENGTH_AT: usize = 24;
const USE_AT: usize = 32;
const PART_AT: usize = 36;
const NAME_LENGTH_AT: usize = 40;
const NAMESPACE_LENGTH_AT: usize = 41;
const CLAIM_LENGTH_AT: usize = 42;
const FORMATTED_AT: usize = 43;
const NAME_AT: usize = 48;
const NAMESPACE_AT: usize = NAME_AT + MOST_NAME_BYTES;
const CLAIM_AT: usize = NAMESPACE_AT + MOST_NAMESPACE_BYTES;
const RESERVED_AT: usize = CLAIM_AT + MOST_CLAIM_BYTES;

// Neither is zero nor one bit away from the other.
const USED: u32 = 0x5553_4544;
const DIRTY: u32 = 0x4449_5254;

/// What an extent is to its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Use {
    /// The volume has it.
    Used,
    /// The volume had it; its bytes are still there, so nobody else may have it before they are erased.
    Dirty,
}

/// A piece of a drive, and the volume that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    pub volume: VolumeId,
    /// Which piece of the volume it is, from zero on.
    pub part: u32,
    pub start_bytes: u64,
    pub length_bytes: u64,
    pub usage: Use,
    /// A filesystem was made on the volume, or found on it: none is made there any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub formatted: bool,
    /// What the volume is called.
    pub name: VolumeName,
    /// For whom it was made, where that is known.
    pub claim: Option<Claim>,
}

impl Extent {
    /// The first byte behind it.
    pub fn end_bytes(&self) -> u64 {
        self.start_bytes.saturating_add(self.length_bytes)
    }

    /// Where it is.
    pub fn segment(&self) -> Segment {
        Segment { start_bytes: self.start_bytes, length_bytes: self.length_bytes }
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        self.start_bytes < other.end_bytes() && other.start_bytes < self.end_bytes()
    }
}

/// Why a text is no name of a volume, or of a claim.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} has {bytes} bytes: 1 to {most} are allowed, without control characters")]
pub struct NotAName {
    what: &'static str,
    bytes: usize,
    most: usize,
}

fn check(what: &'static str, text: &str, most: usize) -> Result<(), NotAName> {
    let bytes = text.len();
    let fits = (1..=most).contains(&bytes) && !text.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(NotAName { what, bytes, most }) }
}

/// The name of a volume: 1 to 128 bytes, as CSI allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(Box<str>);

impl VolumeName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        check("the name of the volume", text, MOST_NAME_BYTES)?;
        Ok(Self(text.into()))
    }
}

impl TryFrom<String> for VolumeName {
    type Error = NotAName;

    fn try_from(text: String) -> Result<Self, NotAName> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> Self {
        name.0.into()
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The claim of a Kubernetes user.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedClaim")]
pub struct Claim {
    namespace: Box<str>,
    name: Box<str>,
}

/// A claim as it comes in a message.
#[derive(Deserialize)]
struct UncheckedClaim {
    namespace: String,
    name: String,
}

impl TryFrom<UncheckedClaim> for Claim {
    type Error = NotAName;

    fn try_from(claim: UncheckedClaim) -> Result<Self, NotAName> {
        Self::new(&claim.namespace, &claim.name)
    }
}

impl Claim {
    pub fn new(namespace: &str, name: &str) -> Result<Self, NotAName> {
        check("the namespace of the claim", namespace, MOST_NAMESPACE_BYTES)?;
        check("the name of the claim", name, MOST_CLAIM_BYTES)?;
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a header says of its table: by it a table that was written in part is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest {
    pub extents: u32,
    /// CRC-32C of the table; zero for an empty one.
    pub checksum: u32,
}

impl Digest {
    /// Of an encoded table.
    pub fn of(table: &[u8]) -> Self {
        let extents = u32::try_from(table.len() / EXTENT_BYTES).unwrap_or(u32::MAX);
        Self { extents, checksum: crc32c::crc32c(table) }
    }

    /// The length of the table; `None` if no slot has room for it.
    pub fn table_bytes(self) -> Option<usize> {
        let extents = usize::try_from(self.extents).ok()?;
        (extents <= MOST_EXTENTS).then_some(extents * EXTENT_BYTES)
    }
}

/// The bytes of a table.
pub fn encode(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len() * EXTENT_BYTES);
    extents.iter().for_each(|extent| bytes.extend_from_slice(&encode_one(extent)));
    bytes
}

fn encode_one(extent: &Extent) -> [u8; EXTENT_BYTES] {
    let usage = match extent.usage {
        Use::Used => USED,
        Use::Dirty => DIRTY,
    };
    let mut unit = [0; EXTENT_BYTES];
    put(&mut unit, VOLUME_AT, extent.volume.to_bits().to_le_bytes());
    put(&mut unit, START_AT, extent.start_bytes.to_le_bytes());
    put(&mut unit, LENGTH_AT, extent.length_bytes.to_le_bytes());
    put(&mut unit, USE_AT, usage.to_le_bytes());
    put(&mut unit, PART_AT, extent.part.to_le_bytes());
    unit[FORMATTED_AT] = u8::from(extent.formatted);
    put_text(&mut unit, NAME_LENGTH_AT, NAME_AT, extent.name.as_str());
    if let Some(claim) = &extent.claim {
        put_text(&mut unit, NAMESPACE_LENGTH_AT, NAMESPACE_AT, claim.namespace());
        put_text(&mut unit, CLAIM_LENGTH_AT, CLAIM_AT, claim.name());
    }
    unit
}

/// The extents of a table, if it is the one that the digest is of, and each is one that this format writes.
pub fn decode(table: &[u8], digest: Digest) -> Option<Vec<Extent>> {
    let (units, rest) = table.as_chunks::<EXTENT_BYTES>();
    if !rest.is_empty() || digest.table_bytes() != Some(table.len()) || Digest::of(table) != digest
    {
        return None;
    }
    units.iter().map(decode_one).collect()
}

fn decode_one(unit: &[u8; EXTENT_BYTES]) -> Option<Extent> {
    let usage = match u32::from_le_bytes(take(unit, USE_AT)) {
        USED => Use::Used,
        DIRTY => Use::Dirty,
        _ => return None,
    };
    let name = take_text(unit, NAME_LENGTH_AT, NAME_AT)?;
    let namespace = take_text(unit, NAMESPACE_LENGTH_AT, NAMESPACE_AT)?;
    let claim = take_text(unit, CLAIM_LENGTH_AT, CLAIM_AT)?;
    let claim = match (namespace, claim) {
        ("", "") => None,
        (namespace, claim) => Some(Claim::new(namespace, claim).ok()?),
    };
    let extent = Extent {
        volume: VolumeId::from_bits(u128::from_le_bytes(take(unit, VOLUME_AT))),
        part: u32::from_le_bytes(take(unit, PART_AT)),
        start_bytes: u64::from_le_bytes(take(unit, START_AT)),
        length_bytes: u64::from_le_bytes(take(unit, LENGTH_AT)),
        usage,
        formatted: unit[FORMATTED_AT] == 1,
        name: name.parse().ok()?,
        claim,
    };
    // What is not a field is zero, behind the texts too.
    (encode_one(&extent) == *unit).then_some(extent)
}

fn put_text(unit: &mut [u8; EXTENT_BYTES], length_at: usize, at: usize, text: &str) {
    unit[length_at] = u8::try_from(text.len()).expect("names are checked when they are made");
    unit[at..at + text.len()].copy_from_slice(text.as_bytes());
}

fn take_text(unit: &[u8; EXTENT_BYTES], length_at: usize, at: usize) -> Option<&str> {
    let bytes = unit.get(at..at + usize::from(unit[length_at]))?;
    std::str::from_utf8(bytes).ok()
}

const _: () = assert!(RESERVED_AT <= EXTENT_BYTES, "all fields fit");

/// The volumes of which an extent lies over another one: none of these may be used.
pub fn in_conflict(extents: &[Extent]) -> impl Iterator<Item = VolumeId> {
    let clashes = |one: &Extent| extents.iter().filter(|other| other.overlaps(one)).count() > 1;
    // A table in order, as every good one is, is looked through once.
    let apart = extents.windows(2).all(|two| two[0].end_bytes() <= two[1].start_bytes);
    let suspects = if apart { &[] } else { extents };
    suspects.iter().filter(move |extent| clashes(extent)).map(|extent| extent.volume)
}

#[cfg(test)]
mod tests {
    use super::super::tests::extent;
    use super::*;

    #[test]
    fn every_byte_is_where_the_format_says() {
        let mut expected = [0; EXTENT_BYTES];
        expected[0] = 7;
        expected[16..24].copy_from_slice(&(2_u64 << 20).to_le_bytes());
        expected[24..32].copy_from_slice(&(5_u64 << 20).to_le_bytes());
        expected[32..36].copy_from_slice(b"DESU");
        expected[36] = 3;
        expected[40..43].copy_from_slice(&[5, 7, 6]);
        expected[48..53].copy_from_slice(b"pvc-7");
        expected[176..183].copy_from_slice(b"default");
        expected[239..245].copy_from_slice(b"data-0");
        let part = Extent { part: 3, ..extent(7, 2, 5) };
        assert_eq!(encode(std::slice::from_ref(&part)), expected);
        let freed = Extent { usage: Use::Dirty, claim: None, formatted: true, ..part };
        assert_eq!(&encode(&[freed])[32..44], b"TRID\x03\0\0\0\x05\0\0\x01");
    }

    #[test]
    fn what_was_written_is_read() {
        let whole = Extent {
            name: "n".repeat(128).parse().unwrap(),
            claim: Some(Claim::new(&"s".repeat(63), &"c".repeat(253)).unwrap()),
            start_bytes: u64::MAX,
            ..extent(1, 0, 1)
        };
        let formatted = Extent { claim: None, formatted: true, ..extent(2, 9, 1) };
        let extents = [extent(1, 2, 1), whole, formatted];
        let table = encode(&extents);
        assert_eq!(decode(&table, Digest::of(&table)).unwrap(), extents);
        assert_eq!(decode(&[], Digest::default()).unwrap(), []);
    }

    #[test]
    fn no_changed_byte_is_accepted() {
        let table = encode(&[extent(1, 2, 1), extent(2, 3, 1)]);
        let digest = Digest::of(&table);
        for at in 0..table.len() {
            let mut changed = table.clone();
            changed[at] ^= 0x10;
            assert_eq!(decode(&changed, digest), None, "byte {at}");
            // Also with a checksum that fits, whatever is read would be written just so.
            if let Some(read) = decode(&changed, Digest::of(&changed)) {
                assert_eq!(encode(&read), changed, "byte {at}");
            }
        }
        assert_eq!(decode(&table[..512], digest), None, "cut short");
        assert_eq!(decode(&table, Digest { extents: u32::MAX, ..digest }), None);
    }

    #[test]
    fn names_are_short_and_plain() {
        for wrong in ["", "a\nb", &"n".repeat(129)] {
            assert!(wrong.parse::<VolumeName>().is_err(), "{wrong:?}");
        }
        assert!(Claim::new("", "a").is_err());
        assert!(Claim::new("a", &"c".repeat(254)).is_err());
        let error = "n".repeat(10_000).parse::<VolumeName>().unwrap_err().to_string();
        assert!(error.starts_with("the name of the volume has 10000 bytes"), "{error}");
    }

    #[test]
    fn a_message_has_the_same_names_or_is_refused() {
        for whole in [extent(1, 2, 1), Extent { claim: None, ..extent(2, 9, 1) }] {
            let text = serde_json::to_string(&whole).unwrap();
            assert_eq!(serde_json::from_str::<Extent>(&text).unwrap(), whole, "{text}");
        }
        let text = serde_json::to_string(&extent(1, 2, 1)).unwrap();
        for (name, wrong) in [("pvc-1", ""), ("pvc-1", "a\\nb"), ("default", ""), ("data-0", "")] {
            let changed = text.replace(&format!("{name:?}"), &format!("\"{wrong}\""));
            assert_ne!(changed, text);
            let error = serde_json::from_str::<Extent>(&changed).unwrap_err().to_string();
            assert!(error.contains("without control characters"), "{error}");
        }
    }

    #[test]
    fn what_overlaps_is_told() {
        let extents = [extent(1, 2, 2), extent(2, 4, 2), extent(3, 5, 2), extent(4, 7, 1)];
        let told: Vec<_> = in_conflict(&extents).map(VolumeId::to_bits).collect();
        assert_eq!(told, [2, 3]);
    }
}

//! `hotbay drive inspect`: what the label on a drive says, read from the drive itself, on any machine.

use std::path::Path;

use hotbay_core::label::extents::{Extent, MOST_EXTENTS, Use, in_conflict};
use hotbay_core::label::table::TableState;
use hotbay_core::label::{Found, Header, Slot};
use hotbay_host::label::{self, Inspected, ThirdCopy};
use serde::Serialize;

use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::table::{Cell, Squeeze, Table, Tone, Widths};
use super::words;
use crate::cli::ExplainFormat;

/// What was found. Its JSON is an interface: fields are added, never renamed.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    path: String,
    size_bytes: u64,
    block_bytes: u32,
    /// Valid, Absent, Damaged or UnknownVersion.
    label: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    format_version: Option<u32>,
    slots: Vec<SlotShown>,
    /// The copy at the end of the partition, if there is one. It counts for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    third_copy: Option<ThirdShown>,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    header: Option<HeaderShown>,
    /// Whole, Unfinished, OtherSize or Foreign.
    #[serde(skip_serializing_if = "Option::is_none")]
    partition_table: Option<&'static str>,
    extents: Vec<ExtentShown>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct SlotShown {
    /// Valid, Empty, NoLabel, Damaged or UnknownVersion.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sequence: Option<u64>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ThirdShown {
    /// Valid, Damaged or UnknownVersion.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    header: Option<HeaderShown>,
    extents: Vec<ExtentShown>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct HeaderShown {
    cluster: String,
    drive: String,
    node: String,
    generation: u64,
    in_operation: bool,
    sequence: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExtentShown {
    volume: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    part: u32,
    start_bytes: u64,
    length_bytes: u64,
    /// Used or Dirty.
    #[serde(rename = "use")]
    usage: &'static str,
    /// It lies over another one.
    conflict: bool,
}

pub(crate) fn run(
    screen: &mut Screen,
    path: &Path,
    output: Option<ExplainFormat>,
) -> Result<Exit, ClientError> {
    let failed = |source| ClientError::Inspect { path: path.to_owned(), source };
    let inspected = label::inspect(path).map_err(failed)?;
    let shown = shown(path, &inspected);
    match output {
        Some(ExplainFormat::Json) => {
            let text = serde_json::to_string_pretty(&shown).map_err(ClientError::Answer)?;
            screen.line(&text)?;
        }
        Some(ExplainFormat::Yaml) => {
            screen.print(&serde_saphyr::to_string(&shown).map_err(ClientError::Yaml)?)?;
        }
        None => print(screen, &shown)?,
    }
    Ok(match inspected.found {
        Found::Valid { .. } => Exit::Done,
        Found::Absent => Exit::NotFound,
        Found::Damaged | Found::UnknownVersion(_) => Exit::Failed,
    })
}

fn shown(path: &Path, inspected: &Inspected) -> Shown {
    let Inspected { size_bytes, block_bytes, slots, found, extents, table, third_copy } = inspected;
    let (label, header, format_version) = match found {
        Found::Valid { header, .. } => ("Valid", Some(header_shown(header)), None),
        Found::Absent => ("Absent", None, None),
        Found::Damaged => ("Damaged", None, None),
        Found::UnknownVersion(version) => ("UnknownVersion", None, Some(*version)),
    };
    Shown {
        path: path.display().to_string(),
        size_bytes: *size_bytes,
        block_bytes: *block_bytes,
        label,
        format_version,
        slots: slots.iter().map(slot_shown).collect(),
        header,
        partition_table: table.map(|table| match table {
            TableState::Whole => "Whole",
            TableState::Unfinished => "Unfinished",
            TableState::OtherSize { .. } => "OtherSize",
            TableState::Foreign { .. } => "Foreign",
        }),
        extents: extents_shown(extents),
        third_copy: third_copy.as_ref().and_then(third_shown),
    }
}

/// Nothing for a drive that has none, as most drives of others.
fn third_shown(copy: &ThirdCopy) -> Option<ThirdShown> {
    let header = match copy.slot {
        Slot::Empty | Slot::NoLabel => return None,
        Slot::Valid(header) => Some(header_shown(&header)),
        Slot::Damaged | Slot::UnknownVersion(_) => None,
    };
    let SlotShown { state, sequence: _ } = slot_shown(&copy.slot);
    Some(ThirdShown { state, header, extents: extents_shown(&copy.extents) })
}

fn extents_shown(extents: &[Extent]) -> Vec<ExtentShown> {
    let conflicts: Vec<_> = in_conflict(extents).collect();
    let extent = |extent: &Extent| ExtentShown {
        volume: extent.volume.to_string(),
        name: extent.name.to_string(),
        claim: extent.claim.as_ref().map(ToString::to_string),
        part: extent.part,
        start_bytes: extent.start_bytes,
        length_bytes: extent.length_bytes,
        usage: match extent.usage {
            Use::Used => "Used",
            Use::Dirty => "Dirty",
        },
        conflict: conflicts.contains(&extent.volume),
    };
    extents.iter().map(extent).collect()
}

fn header_shown(header: &Header) -> HeaderShown {
    let Header { cluster, drive, node, generation, in_operation, sequence, extents: _ } = *header;
    HeaderShown {
        cluster: cluster.to_string(),
        drive: drive.to_string(),
        node: node.to_string(),
        generation: generation.get(),
        in_operation,
        sequence,
    }
}

fn slot_shown(slot: &Slot) -> SlotShown {
    let (state, sequence) = match slot {
        Slot::Empty => ("Empty", None),
        Slot::NoLabel => ("NoLabel", None),
        Slot::Valid(header) => ("Valid", Some(header.sequence)),
        Slot::Damaged => ("Damaged", None),
        Slot::UnknownVersion(_) => ("UnknownVersion", None),
    };
    SlotShown { state, sequence }
}

fn print(screen: &mut Screen, shown: &Shown) -> Result<(), ClientError> {
    let (path, size) = (plain(&shown.path), words::size(shown.size_bytes));
    let verdict = match (shown.label, shown.format_version) {
        ("Valid", _) => "has a label of Hotbay.".to_owned(),
        ("Absent", _) => "has no label of Hotbay. That does not mean that it is empty.".to_owned(),
        (_, Some(version)) => format!("has a label of format {version}: use a later hotbay."),
        (_, None) => "has a label that cannot be trusted: both copies are damaged.".to_owned(),
    };
    screen.line(&format!("{path} ({size}, blocks of {} bytes) {verdict}", shown.block_bytes))?;
    if let Some(header) = &shown.header {
        print_header(screen, header)?;
    }
    if shown.label != "Absent" || shown.third_copy.is_some() {
        let copies = shown.slots.iter().map(|slot| copy_in_words(slot.state, slot.sequence));
        line(screen, "copies", &copies.collect::<Vec<_>>().join(", "))?;
        let third = shown.third_copy.as_ref().map_or_else(
            || "none".to_owned(),
            |third| {
                let sequence = third.header.as_ref().map(|header| header.sequence);
                copy_in_words(third.state, sequence)
            },
        );
        line(screen, "third copy", &third)?;
    }
    if let Some(table) = shown.partition_table {
        line(screen, "partitions", in_words(table))?;
    }
    if shown.header.is_some() {
        print_extents(screen, &shown.extents)?;
    }
    // What is left when both copies are gone; beside a label that counts it says nothing of its own.
    if let (None, Some(ThirdShown { header: Some(header), extents, .. })) =
        (&shown.header, &shown.third_copy)
    {
        screen.line(
            "The third copy, at the end of the partition, can be read. It may be older than the label was, \
             and is not used:",
        )?;
        print_header(screen, header)?;
        print_extents(screen, extents)?;
    }
    Ok(())
}

fn line(screen: &mut Screen, about: &str, text: &str) -> Result<(), ClientError> {
    Ok(screen.line(&format!("  {about:<12} {text}"))?)
}

fn print_header(screen: &mut Screen, header: &HeaderShown) -> Result<(), ClientError> {
    let state = if header.in_operation { "in operation" } else { "released" };
    line(screen, "drive", &header.drive)?;
    line(screen, "cluster", &header.cluster)?;
    line(screen, "node", &header.node)?;
    line(screen, "state", &format!("{state}, generation {}", header.generation))
}

fn copy_in_words(state: &str, sequence: Option<u64>) -> String {
    match sequence {
        Some(sequence) => format!("sequence {sequence}"),
        None => state.to_lowercase(),
    }
}

fn in_words(table: &str) -> &'static str {
    match table {
        "Whole" => "as they belong to the label",
        "Unfinished" => "written in part; the next attach finishes them",
        "OtherSize" => {
            "for the size that the drive had once; the next attach gives volumes what it has grown by"
        }
        _ => "not those that belong to the label",
    }
}

fn summary(extents: &[ExtentShown]) -> String {
    let bytes = |usage: &str| {
        let of_use = extents.iter().filter(|extent| extent.usage == usage);
        words::size(of_use.map(|extent| extent.length_bytes).sum())
    };
    match extents.len() {
        0 => "none".to_owned(),
        count => format!(
            "{count} of at most {MOST_EXTENTS}: {} used, {} dirty",
            bytes("Used"),
            bytes("Dirty")
        ),
    }
}

fn print_extents(screen: &mut Screen, extents: &[ExtentShown]) -> Result<(), ClientError> {
    const SQUEEZES: &[Squeeze] = &[
        Squeeze::Cut { title: "CLAIM", least: 12 },
        Squeeze::Cut { title: "NAME", least: 12 },
        Squeeze::Drop { title: "CLAIM" },
    ];
    line(screen, "extents", &summary(extents))?;
    if extents.is_empty() {
        return Ok(());
    }
    let row = |extent: &ExtentShown| {
        let (usage, tone) = match (extent.conflict, extent.usage) {
            (true, _) => ("overlaps", Tone::Bad),
            (false, "Dirty") => ("dirty", Tone::Busy),
            (false, _) => ("used", Tone::Good),
        };
        vec![
            Cell::new(&extent.name),
            Cell::maybe(extent.claim.as_deref()),
            Cell::new(extent.part.to_string()),
            Cell::new(words::size(extent.start_bytes)),
            Cell::new(words::size(extent.length_bytes)),
            Cell::toned(usage, tone),
        ]
    };
    let table = Table {
        titles: vec!["NAME", "CLAIM", "PART", "START", "SIZE", "USE"],
        rows: extents.iter().map(row).collect(),
        squeezes: SQUEEZES,
        keeps_its_end: "NAME",
    };
    let widths = match screen.size() {
        Some((columns, _)) => table.fitted(columns),
        None => table.natural(&Widths::new()),
    };
    screen.line(&table.title_line(&widths))?;
    for line in table.row_lines(&widths, screen.has_colour()) {
        screen.line(&line)?;
    }
    Ok(())
}

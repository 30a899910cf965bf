//! What would be rebuilt, for the person who decides.

use std::io;
use std::path::Path;

use hotbay_core::recover::{Plan, Reading};

use crate::client::table::{Cell, Squeeze, Table, Tone, Widths};
use crate::client::{Screen, words};

pub(super) fn plan(screen: &mut Screen, plan: &Plan, place: &Path) -> io::Result<()> {
    let records = plan.records(0);
    let bytes = records.volumes.iter().fold(0_u64, |sum, one| sum.saturating_add(one.size_bytes));
    screen.line(&format!(
        "Cluster {}: {}, {}, {} ({})",
        plan.cluster,
        words::count(records.nodes.len(), "node"),
        words::count(records.drives.len(), "drive"),
        words::count(records.volumes.len(), "volume"),
        words::size(bytes),
    ))?;
    print(screen, &drives(plan))?;
    if !records.volumes.is_empty() {
        screen.line("")?;
        print(screen, &volumes(plan))?;
    }
    screen.line("")?;
    for read in plan.drives.iter().filter(|read| read.from_third_copy) {
        screen.line(&format!(
            "{}: its label is damaged in both places. This is its third copy, which may be older; the drive is not \
             attached as long as its label is damaged.",
            read.place()
        ))?;
    }
    if plan.left_out > 0 {
        let drives = words::count(plan.left_out, "drive");
        screen.line(&format!("{drives} with other labels left out."))?;
    }
    screen.line(&format!(
        "A new registry is made of this, in {}. Drives are not written to.",
        place.display()
    ))
}

pub(super) fn what_is_next(screen: &mut Screen, place: &Path) -> io::Result<()> {
    screen.line(&format!("Recovered, in {}. What is left to do:", place.display()))?;
    screen.line(
        "  hotbay up               start the registry, and the agents of the other machines",
    )?;
    screen.line("  hotbay registry adopt   when the nodes are back: lets what they know beyond the labels count;")?;
    screen.line("                          again for each node that comes later")?;
    screen.line("  hotbay status           until every drive is in operation that was")
}

pub(super) fn written(file: &Path, drives: usize) -> String {
    match drives {
        0 => format!("No drive with a label of Hotbay was found; {} says so.", file.display()),
        drives => format!(
            "The labels of {} are in {}. On the machine of the registry:  hotbay recover --input FILE",
            words::count(drives, "drive"),
            file.display()
        ),
    }
}

fn drives(plan: &Plan) -> Table {
    const SQUEEZES: &[Squeeze] = &[
        Squeeze::Drop { title: "GENERATION" },
        Squeeze::Cut { title: "PLACE", least: 12 },
        Squeeze::Cut { title: "NODE", least: 8 },
        Squeeze::Cut { title: "DRIVE", least: 8 },
    ];
    let row = |read: &Reading| {
        let (state, tone) = match (read.label.in_operation, read.from_third_copy) {
            (_, true) => ("damaged", Tone::Bad),
            (true, false) => ("in operation", Tone::Good),
            (false, false) => ("released", Tone::Plain),
        };
        vec![
            Cell::new(read.label.drive.to_string()),
            Cell::new(read.label.node.to_string()),
            Cell::new(read.place()),
            Cell::new(words::size(read.device.size_bytes)),
            Cell::toned(state, tone),
            Cell::new(read.label.generation.to_string()),
            Cell::new(read.volumes().len().to_string()),
        ]
    };
    Table {
        titles: vec!["DRIVE", "NODE", "PLACE", "SIZE", "STATE", "GENERATION", "VOLUMES"],
        rows: plan.drives.iter().map(row).collect(),
        squeezes: SQUEEZES,
        keeps_its_end: "PLACE",
    }
}

fn volumes(plan: &Plan) -> Table {
    const SQUEEZES: &[Squeeze] = &[
        Squeeze::Cut { title: "CLAIM", least: 12 },
        Squeeze::Cut { title: "NAME", least: 12 },
        Squeeze::Cut { title: "DRIVE", least: 8 },
        Squeeze::Cut { title: "VOLUME", least: 8 },
    ];
    let rows = plan.drives.iter().flat_map(|read| {
        read.volumes().into_iter().map(|(volume, parts)| {
            let bytes = parts.iter().fold(0_u64, |sum, one| sum.saturating_add(one.length_bytes));
            vec![
                Cell::new(volume.to_string()),
                Cell::new(parts[0].name.as_str()),
                Cell::new(words::size(bytes)),
                Cell::maybe(parts[0].claim.as_ref().map(ToString::to_string).as_deref()),
                Cell::new(read.label.drive.to_string()),
            ]
        })
    });
    Table {
        titles: vec!["VOLUME", "NAME", "SIZE", "CLAIM", "DRIVE"],
        rows: rows.collect(),
        squeezes: SQUEEZES,
        keeps_its_end: "NAME",
    }
}

fn print(screen: &mut Screen, table: &Table) -> io::Result<()> {
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

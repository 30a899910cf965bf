//! Labels, read from the drives of this machine, or from files that were written where the drives are.

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use hotbay_core::device::{Denied, LabelSeen, Observed};
use hotbay_core::label::table::LEAST_DRIVE_BYTES;
use hotbay_core::label::{Found, Slot};
use hotbay_core::recover::Reading;
use hotbay_host::RuntimeDir;
use hotbay_host::label::{self, Inspected, ThirdCopy};
use hotbay_host::worker::{Limits, Workers};
use hotbay_node::{Place, survey};
use serde::{Deserialize, Serialize};

use super::error::RecoverError;
use crate::client::Screen;
use crate::config::Settings;

/// Of the files.
const FORMAT: u32 = 1;

/// The longest file that is read: more than a thousand drives with full labels take.
const MOST_INPUT_BYTES: u64 = 1 << 30;

/// What is written on one machine and read on another. Its JSON is an interface: fields are added, never renamed.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Readings {
    format: u32,
    drives: Vec<Reading>,
}

/// Only what tells whether the rest can be read.
#[derive(Debug, Deserialize)]
struct Version {
    format: u32,
}

/// The paths as they are looked for: from the root on, without links. A pattern may fit nothing.
pub(super) fn absolute(named: &[String]) -> Result<Vec<String>, RecoverError> {
    let found = named.iter().map(|path| {
        let found = if path.contains(['*', '?', '[']) {
            std::path::absolute(path)
        } else {
            std::fs::canonicalize(path)
        };
        let found = found.map_err(|_| RecoverError::NoSuchPath { path: path.clone() })?;
        Ok(found.to_string_lossy().into_owned())
    });
    found.collect()
}

/// Reads the label of every drive that is named, or of all that the machine has.
pub(super) fn drives(
    screen: &mut Screen,
    settings: &Settings,
    are_named: bool,
) -> Result<Vec<Reading>, RecoverError> {
    // Only for people to know the machine by: any name will do.
    let host = settings.name().map_or_else(|_| "localhost".to_owned(), |name| name.to_string());
    let devices = look(settings).map_err(RecoverError::Survey)?;
    let mut readings = Vec::new();
    for device in devices {
        let readable = !device.denied.iter().any(|why| matches!(why, Denied::Unreadable { .. }));
        // Nothing of ours fits on it.
        if device.size_bytes < LEAST_DRIVE_BYTES && readable {
            continue;
        }
        match reading(screen, &host, device) {
            Ok(read) => readings.extend(read),
            // A dead drive is why many a registry is rebuilt. Where nobody asked for it, it is not in the way.
            Err(error @ (RecoverError::Unreadable { .. } | RecoverError::Damaged { .. }))
                if !are_named =>
            {
                screen.aside(&left_out(&error))
            }
            Err(error) => return Err(error),
        }
    }
    Ok(readings)
}

fn left_out(error: &RecoverError) -> String {
    let why = error.source().map(|source| format!(" ({source})")).unwrap_or_default();
    format!("warning: {error}{why}; what is on it is not recovered\n")
}

fn look(settings: &Settings) -> anyhow::Result<Vec<Observed>> {
    let places = settings.drives.value.iter().map(|text| {
        let Ok(place) = text.parse::<Place>();
        place
    });
    let places: Vec<_> = places.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let workers = Workers::of_this_program(RuntimeDir::of_this_user()?, Limits::default());
    let seen = runtime.block_on(survey(&workers, &places, None));
    // A child that hangs must not keep the process.
    runtime.shutdown_background();
    Ok(seen?)
}

/// What the label of a drive says; nothing for one that has none.
fn reading(
    screen: &mut Screen,
    host: &str,
    device: Observed,
) -> Result<Option<Reading>, RecoverError> {
    let path = device.path.clone();
    let inspected = match label::inspect(Path::new(&path)) {
        Ok(inspected) => inspected,
        Err(source) => return Err(RecoverError::Unreadable { path, source }),
    };
    let Inspected { found, slots, extents, third_copy, .. } = inspected;
    let whole = |label: LabelSeen, extents, from_third_copy| {
        let host = host.to_owned();
        Ok(Some(Reading { host, device, label, extents, from_third_copy }))
    };
    let third = match third_copy {
        Some(ThirdCopy { slot: Slot::Valid(header), extents }) => Some((header, extents)),
        Some(ThirdCopy { .. }) | None => None,
    };
    // One that is not a label's place any more belongs to somebody else by now.
    let reused = slots.contains(&Slot::NoLabel);
    match (found, third) {
        (Found::Valid { header, .. }, _) => whole(header.into(), extents, false),
        (Found::UnknownVersion(version), _) => Err(RecoverError::LaterFormat { path, version }),
        (Found::Damaged, Some((header, extents))) => whole(header.into(), extents, true),
        (Found::Damaged, None) => Err(RecoverError::Damaged { path }),
        (Found::Absent, Some((header, extents))) if !reused => whole(header.into(), extents, true),
        (Found::Absent, Some(_)) => {
            screen.aside(&format!(
                "{path} has no label, and something else where it was: the old copy at its end is not used\n"
            ));
            Ok(None)
        }
        (Found::Absent, None) => Ok(None),
    }
}

/// Reads a file that was written by [`write()`].
pub(super) fn file(path: &Path) -> Result<Vec<Reading>, RecoverError> {
    let failed = |source| RecoverError::Input { path: path.to_owned(), source };
    let not_ours = |source| RecoverError::NotOurs { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let mut text = String::new();
    let read = BufReader::new(file).take(MOST_INPUT_BYTES).read_to_string(&mut text);
    read.map_err(failed)?;
    let Version { format } = serde_json::from_str(&text).map_err(not_ours)?;
    if format != FORMAT {
        let path = path.to_owned();
        return Err(RecoverError::OtherFormat { path, format, reads: FORMAT });
    }
    let readings: Readings = serde_json::from_str(&text).map_err(not_ours)?;
    Ok(readings.drives)
}

/// Writes what was read here into a file that is not there yet.
pub(super) fn write(path: &Path, readings: &[Reading]) -> Result<(), RecoverError> {
    let failed = |source| RecoverError::Write { path: path.to_owned(), source };
    let all = Readings { format: FORMAT, drives: readings.to_vec() };
    let mut text = serde_json::to_string_pretty(&all).map_err(|error| failed(error.into()))?;
    text.push('\n');
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)
}

//! `hotbay drive add --wipe`: shows what is on a drive, has its serial number typed, and asks for it to be added wiped.
//!
//! What is asked for is bound to what was shown: the registry takes it only while the drive is still in that state.

use std::io::{BufRead, IsTerminal};
use std::time::Instant;

use hotbay_api::kinds::{Drive, DriveStatus};
use hotbay_core::cluster::StateHash;
use hotbay_core::wipe::curable;

use super::act::{self, Asked};
use super::answer::{self, States};
use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, cut_end, plain};
use super::{suggest, words};
use crate::cli::{DriveAddArgs, HowArgs};

/// Most partitions that are named.
const PARTITIONS_NAMED: usize = 8;

/// A wipe, as it goes with an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wiping {
    /// The drive's serial number, or its name if it has none.
    pub(crate) serial: String,
    /// There is something on the drive.
    pub(crate) loses: bool,
}

/// Refuses what needs no registry to be refused.
pub(crate) fn check(args: &DriveAddArgs) -> Result<(), ClientError> {
    let given = args.targets.len();
    if args.wipe && given != 1 { Err(ClientError::WipeOne { given }) } else { Ok(()) }
}

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    args: DriveAddArgs,
    began: Instant,
) -> Result<Exit, ClientError> {
    let DriveAddArgs { targets, file: _, wipe: _, serial, how } = args;
    let target = targets.first().map(String::as_str).unwrap_or_default();
    let drive = match api.objects::<Drive>(Kind::Drive, target).await {
        Ok(found) => found.into_iter().next(),
        Err(error) if error.exit() == Exit::NotFound => {
            screen
                .error(&error.to_string(), &suggest::next_steps(api, Kind::Drive, target).await)?;
            None
        }
        Err(error) => return Err(error),
    };
    let Some(drive) = drive else { return Ok(Exit::NotFound) };
    let Some(state) = drive.status.state_hash.as_ref().and_then(|state| state.parse().ok()) else {
        return no_drive_of_its_own(screen, target, &drive.status);
    };
    let asked = asked(&drive, state, how);
    if let Some(exit) = refused(api, screen, &asked).await? {
        return Ok(exit);
    }
    if !drive.status.denied.is_empty() {
        let width = screen.size().map(|(columns, _)| columns);
        for line in shown(&drive) {
            screen.line(&width.map_or(line.clone(), |width| cut_end(&line, width)))?;
        }
        if !asked.dry_run {
            consent(screen, &drive, serial)?;
        }
    }
    act::run(api, screen, asked, began).await
}

fn asked(drive: &Drive, state: StateHash, how: HowArgs) -> Asked {
    let name = drive.metadata.name.clone();
    let (_, word) = word(drive);
    let wiping = Wiping { serial: word.to_owned(), loses: !drive.status.denied.is_empty() };
    Asked::to_wipe(name, state, wiping, how)
}

/// What a person types: what that is, and the text.
fn word(drive: &Drive) -> (&'static str, &str) {
    match &drive.status.serial {
        Some(serial) => ("serial number", serial),
        None => ("name", &drive.metadata.name),
    }
}

/// A device that looks like a drive that is known has no state that could be asked for.
fn no_drive_of_its_own(
    screen: &mut Screen,
    target: &str,
    status: &DriveStatus,
) -> Result<Exit, ClientError> {
    let reasons: Vec<_> = status.denied.iter().map(|denied| plain(&denied.message)).collect();
    let what = format!("{target} is not added: {}", reasons.join("; "));
    screen.error(&what, &["nothing was changed".to_owned()])?;
    Ok(Exit::Refused)
}

/// Asks the registry what it would say, before anybody is asked to type anything. Says why, if it would refuse.
async fn refused(
    api: &Api,
    screen: &mut Screen,
    asked: &Asked,
) -> Result<Option<Exit>, ClientError> {
    let actions = asked.targets.iter().map(|target| asked.action(target)).collect();
    let results = api.act(actions, true).await?;
    for (target, result) in asked.targets.iter().zip(&results) {
        let said = answer::said(asked, target, result, &States::new());
        if said.error {
            screen.error(&said.what, &said.more)?;
            return Ok(Some(said.exit));
        }
    }
    Ok(None)
}

/// What would be lost, a line each.
fn shown(drive: &Drive) -> Vec<String> {
    let status = &drive.status;
    let place = status.bay.as_ref().map_or(status.path.clone(), |bay| format!("bay {bay}"));
    let mut lines =
        vec![format!("{} ({} {place}) is not empty:", drive.metadata.name, status.node)];
    let mut row = |title: &str, value: &str| lines.push(format!("  {title:<12}{}", plain(value)));
    row("Path", &status.path);
    row("Model", status.model.as_deref().unwrap_or("-"));
    row("Serial", status.serial.as_deref().unwrap_or("none"));
    row("Size", &words::size(status.size_bytes));
    for (number, denied) in status.denied.iter().enumerate() {
        let content = curable(&denied.denied).map(|content| content.to_string());
        let title = if number == 0 { "On it" } else { "" };
        row(title, content.as_deref().unwrap_or(&denied.message));
    }
    let parts = &status.details.partitions;
    for (number, part) in parts.iter().take(PARTITIONS_NAMED).enumerate() {
        let title = if number == 0 { "Partitions" } else { "" };
        row(title, &format!("{}  {}", part.name, words::size(part.size_bytes)));
    }
    if let Some(more) = parts.len().checked_sub(PARTITIONS_NAMED).filter(|more| *more > 0) {
        row("", &format!("and {more} more"));
    }
    lines.push("All of it will be lost, and cannot be brought back.".to_owned());
    lines
}

/// Has a person type which drive it is, unless that was said on the command line.
fn consent(screen: &mut Screen, drive: &Drive, serial: Option<String>) -> Result<(), ClientError> {
    let (what, word) = word(drive);
    let not_wiped = |typed| ClientError::NotWiped { typed, what, word: plain(word) };
    let typed = match serial {
        Some(serial) => serial,
        None => {
            let stdin = std::io::stdin();
            if !stdin.is_terminal() {
                return Err(not_wiped(false));
            }
            if drive.status.serial.is_none() {
                screen.line("It has no serial number: its name stands for it.")?;
            }
            screen.line(&format!("Type its {what} to wipe it and add it:"))?;
            let mut typed = String::new();
            stdin.lock().read_line(&mut typed)?;
            typed
        }
    };
    if typed.trim() == word { Ok(()) } else { Err(not_wiped(true)) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn drive() -> Drive {
        let part = |number: u32| json!({ "name": format!("sdb{number}"), "sizeBytes": 1 << 30 });
        let message = "it has a partition table (gpt)";
        let drive = json!({
            "apiVersion": "hotbay.dev/v1alpha1",
            "kind": "Drive",
            "metadata": { "name": "d-7f3a91c0", "uid": "7f3a" },
            "spec": { "inOperation": false },
            "status": {
                "node": "node-a",
                "state": "UnknownDevice",
                "goal": { "wish": "detach", "generation": 0 },
                "sinceMs": 0,
                "present": true,
                "path": "/dev/sdb",
                "deviceKind": "Block",
                "media": "SSD",
                "sizeBytes": 1_u64 << 40,
                "blockBytes": 512,
                "removalWanted": false,
                "denied": [{ "reason": "Partitioned", "table": "gpt", "message": message }],
                "partitions": (1..=10).map(part).collect::<Vec<_>>(),
            },
        });
        serde_json::from_value(drive).unwrap()
    }

    #[test]
    fn all_that_is_lost_is_shown_on_a_narrow_terminal() {
        let mut drive = drive();
        let lines = shown(&drive);
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
        let has = |lines: &[String], text: &str| lines.iter().any(|line| line.contains(text));
        assert!(has(&lines, "  On it       a partition table (gpt)"), "{lines:#?}");
        assert!(has(&lines, "  Partitions  sdb1  1.0G"), "{lines:#?}");
        assert!(has(&lines, "and 2 more") && !has(&lines, "sdb9"), "{lines:#?}");
        drive.status.model = Some("\u{1b}[2J".into());
        assert!(has(&shown(&drive), "?[2J"));
    }

    #[test]
    fn without_a_serial_number_the_name_is_typed() {
        let mut drive = drive();
        drive.status.serial = Some("S1".into());
        assert_eq!(word(&drive), ("serial number", "S1"));
        drive.status.serial = None;
        assert_eq!(word(&drive), ("name", "d-7f3a91c0"));
    }
}

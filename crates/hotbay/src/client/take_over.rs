//! `hotbay drive take-over`: a drive that another node holds is given to the node that has it now. What is known of
//! both is said first, and the drive's serial number has to be typed.

use std::time::{Duration, Instant};

use hotbay_api::cms::{Action, ActionResult, ActionType};
use hotbay_api::kinds::Drive;
use hotbay_core::cms::Code;
use hotbay_core::device::Denied;
use serde::Serialize;

use super::act::Verb;
use super::answer::code;
use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::typed::typed;
use super::wait::{Job, Wait};
use super::{rows, suggest, words};
use crate::cli::{HowArgs, TakeOverArgs, TakeOverFormat};

/// A device, and the drive that it is if it is taken over.
struct Found {
    device: Drive,
    /// In the record of the node that holds it. The device itself, if only its label is held.
    known: Drive,
    /// What has to be typed.
    word: String,
}

/// What became of it. Its JSON is an interface: fields are added, never renamed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Answered<'a> {
    result: &'a str,
    reasons: &'a [String],
    drive: &'a str,
    from: &'a str,
    to: &'a str,
    volumes: &'a [String],
    dry_run: bool,
}

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    args: TakeOverArgs,
    began: Instant,
) -> Result<Exit, ClientError> {
    let TakeOverArgs { target, serial, output, how } = args;
    let json = matches!(output, Some(TakeOverFormat::Json));
    let Some(found) = find(api, screen, &target).await? else { return Ok(Exit::NotFound) };
    let given = serial.clone().unwrap_or_else(|| found.word.clone());
    // Refused, or done before: nothing is left to ask for.
    let preview = ask(api, &found, &target, &given, true).await?;
    if code(&preview) != Some(Code::Ok) {
        return tell(screen, &target, &found, &preview, json);
    }
    if !json {
        show(screen, &found, &preview)?;
    }
    if how.dry_run {
        return if json { print(screen, &found, &preview, true) } else { not_done(screen) };
    }
    if serial.is_none() {
        let what = match &found.device.status.serial {
            Some(_) => "its serial number",
            None => "its name",
        };
        let instead = "--serial SERIAL";
        if json {
            // Who reads JSON is nobody to ask.
            return Err(ClientError::NotConfirmed { typed: what.to_owned(), instead });
        }
        typed(screen, what, &found.word, instead)?;
    }
    let result = ask(api, &found, &target, &given, false).await?;
    let exit = tell(screen, &target, &found, &result, json)?;
    if exit != Exit::Done || !how.wait {
        return Ok(exit);
    }
    wait(api, screen, &found, &how, began).await
}

fn not_done(screen: &mut Screen) -> Result<Exit, ClientError> {
    screen.line("dry run: nothing was changed")?;
    Ok(Exit::Done)
}

/// Follows the drive until it is in operation on its new node.
async fn wait(
    api: &Api,
    screen: &mut Screen,
    found: &Found,
    how: &HowArgs,
    began: Instant,
) -> Result<Exit, ClientError> {
    let name = found.known.metadata.name.clone();
    let action =
        Action { r#type: ActionType::AddDevice.into(), device: name.clone(), ..Action::default() };
    let job = Job { action, subject: name.clone(), drives: vec![name] };
    Wait::new(Verb::Add, vec![job], began, how.limit()).run(api, screen, Duration::ZERO).await
}

async fn find(api: &Api, screen: &mut Screen, target: &str) -> Result<Option<Found>, ClientError> {
    let device = match api.objects::<Drive>(Kind::Drive, target).await {
        Ok(found) => found.into_iter().next(),
        Err(error) if error.exit() == Exit::NotFound => {
            let next_steps = suggest::next_steps(api, Kind::Drive, target).await;
            screen.error(&error.to_string(), &next_steps)?;
            None
        }
        Err(error) => return Err(error),
    };
    let Some(device) = device else { return Ok(None) };
    let like = device.status.denied.iter().find_map(|reason| match &reason.denied {
        Denied::IdentityConflict { drive, .. } => Some(drive.clone()),
        _ => None,
    });
    let known = match like.filter(|_| device.metadata.uid.is_empty()) {
        Some(name) => api.objects::<Drive>(Kind::Drive, &name).await?.into_iter().next(),
        None => None,
    };
    let known = known.unwrap_or_else(|| device.clone());
    let word = device.status.serial.clone().unwrap_or_else(|| known.metadata.name.clone());
    Ok(Some(Found { device, known, word }))
}

async fn ask(
    api: &Api,
    found: &Found,
    target: &str,
    serial: &str,
    dry_run: bool,
) -> Result<ActionResult, ClientError> {
    let action = Action {
        r#type: ActionType::TakeOverDevice.into(),
        device: target.to_owned(),
        serial: serial.to_owned(),
        expected_state: found.device.status.state_hash.clone().unwrap_or_default(),
        ..Action::default()
    };
    let mut results = api.act(vec![action], dry_run).await?;
    Ok(results.pop().expect("one answer per action"))
}

/// What is about to happen, for the person who decides.
fn show(screen: &mut Screen, found: &Found, preview: &ActionResult) -> Result<(), ClientError> {
    let (device, known) = (&found.device.status, &found.known);
    let of = &known.status;
    let what =
        [device.model.clone(), device.serial.as_ref().map(|serial| format!("serial {serial}"))];
    let what: Vec<_> = what.into_iter().flatten().chain([words::size(device.size_bytes)]).collect();
    screen.line(&plain(&format!("{}  {}", known.metadata.name, what.join(", "))))?;
    let asked = match of.asked_by.as_str() {
        "" => String::new(),
        who => format!(", asked by {who}"),
    };
    let removal = if of.removal_wanted { ", its removal is wanted" } else { "" };
    let mut lines = vec![
        ("is now", format!("{} {}", device.node, device.path)),
        ("belongs to", format!("{} {}", of.node, of.path)),
        ("is there", format!("{}{removal}{asked}", rows::state(of))),
    ];
    // Of what the registry says, the first is about the node that holds it.
    lines.extend(preview.reasons.iter().map(|reason| ("note", reason.clone())));
    lines.extend(of.volumes.iter().map(|volume| ("volume", volume.clone())));
    for (title, text) in lines {
        screen.line(&format!("  {title:<11}{}", plain(&text)))?;
    }
    screen.line(&plain(&format!(
        "It becomes a drive of {}, with what is on it; {} may only close it.",
        device.node, of.node
    )))?;
    Ok(())
}

/// What became of it, and what next.
fn tell(
    screen: &mut Screen,
    target: &str,
    found: &Found,
    result: &ActionResult,
    json: bool,
) -> Result<Exit, ClientError> {
    let answer = code(result);
    let exit = Exit::of_answer(answer);
    if json {
        print(screen, found, result, false)?;
        return Ok(exit);
    }
    let (name, node) = (&found.known.metadata.name, &found.device.status.node);
    match answer {
        Some(Code::Ok) => {
            screen.line(&plain(&format!(
                "{name} is taken over by {node}; in operation once its agent has opened it"
            )))?;
        }
        Some(Code::Already) => {
            screen.line(&plain(&format!(
                "{name} is a drive of {node} already; nothing was changed"
            )))?;
        }
        Some(Code::TryAgain | Code::InvalidState | Code::NotFound | Code::Argument) | None => {
            let more = ["nothing was changed".to_owned()];
            let what = format!("{target} is not taken over: {}", result.reasons.join("; "));
            screen.error(&plain(&what), &more)?;
        }
    }
    Ok(exit)
}

fn print(
    screen: &mut Screen,
    found: &Found,
    result: &ActionResult,
    dry_run: bool,
) -> Result<Exit, ClientError> {
    let answered = Answered {
        result: &result.result,
        reasons: &result.reasons,
        drive: &found.known.metadata.name,
        from: &found.known.status.node,
        to: &found.device.status.node,
        volumes: &found.known.status.volumes,
        dry_run,
    };
    let text = serde_json::to_string_pretty(&answered).map_err(ClientError::Answer)?;
    screen.line(&text)?;
    Ok(Exit::of_answer(code(result)))
}

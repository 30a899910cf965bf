//! What a person decides once things went wrong: a machine that is gone, a registry that went back in time. What is
//! lost or changed is said first, and a word has to be typed.

use hotbay_api::cms::{Action, ActionResult, ActionType};
use hotbay_core::cms::Code;

use super::answer::code;
use super::api::Api;
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::typed::typed;
use super::{suggest, volume, words};
use crate::plugin::as_called;

/// `hotbay host purge`.
pub(crate) async fn purge(
    api: &Api,
    screen: &mut Screen,
    host: &str,
    yes: bool,
) -> Result<Exit, ClientError> {
    let preview = ask(api, ActionType::PurgeHost, host, true).await?;
    match code(&preview) {
        Some(Code::Ok) => {}
        Some(Code::Already) => {
            screen.line(&format!("{host} was purged already"))?;
            return Ok(Exit::Done);
        }
        _ => return suggest::host_refused(api, screen, (host, "purged"), &preview).await,
    }
    screen.line(&format!("{host} is given up, with what is on its drives:"))?;
    for drive in preview.drives.iter().filter_map(|result| result.drive.as_ref()) {
        screen.line(&format!("  {}", words::drive_of_host(drive)))?;
    }
    let lost = preview.dependent_volumes.len();
    screen.line(&format!("  {} lost", words::count(lost, "volume")))?;
    for line in volume::words::in_the_way(&preview.volumes) {
        screen.line(&format!("    {line}"))?;
    }
    if lost > 0 {
        screen.line("  Nobody reaches them any more. On the drives they stay as they are: nothing is erased.")?;
    }
    confirm(screen, yes, host)?;
    let result = ask(api, ActionType::PurgeHost, host, false).await?;
    match code(&result) {
        Some(Code::Ok | Code::Already) => {
            screen.line(&format!(
                "{host} is purged. If its machine returns, it is told to close its drives{}.",
                if lost > 0 {
                    ", when nothing there uses the volumes on them any more"
                } else {
                    ""
                }
            ))?;
            let back = format!("  hotbay host add {host} --returned   takes it back");
            screen.line(&as_called(&back))?;
            if lost > 0 {
                screen.line("    with the volumes that were not deleted meanwhile")?;
                let forget = "  hotbay volume delete NAME   forgets a volume that is lost";
                screen.line(&as_called(forget))?;
            }
            Ok(Exit::Done)
        }
        _ => suggest::host_refused(api, screen, (host, "purged"), &result).await,
    }
}

/// `hotbay host forget`. Nothing is lost by it, so nothing is asked.
pub(crate) async fn forget(
    api: &Api,
    screen: &mut Screen,
    host: &str,
) -> Result<Exit, ClientError> {
    let result = ask(api, ActionType::ForgetHost, host, false).await?;
    match code(&result) {
        Some(Code::Ok) => {
            let drives = words::count(result.drives.len(), "drive");
            screen.line(&format!("{host} is forgotten, with {drives}."))?;
            Ok(Exit::Done)
        }
        _ => suggest::host_refused(api, screen, (host, "forgotten"), &result).await,
    }
}

async fn ask(
    api: &Api,
    kind: ActionType,
    host: &str,
    dry_run: bool,
) -> Result<ActionResult, ClientError> {
    let action = Action { r#type: kind.into(), host: host.to_owned(), ..Action::default() };
    let mut results = api.act(vec![action], dry_run).await?;
    Ok(results.pop().expect("one answer per action"))
}

/// `hotbay registry adopt`.
pub(crate) async fn adopt(api: &Api, screen: &mut Screen, yes: bool) -> Result<Exit, ClientError> {
    let preview = api.adopt(false).await?;
    if preview.nodes.is_empty() {
        screen.line(
            "There is nothing to adopt: no node that has registered knows more than the registry.",
        )?;
        return Ok(Exit::Done);
    }
    screen.line(
        "These nodes know more than the registry, which seems to be a restored backup or a copy:",
    )?;
    for node in &preview.nodes {
        screen.line(&format!("  {}", plain(&node.node)))?;
        for difference in &node.differences {
            screen.line(&format!("    {}", plain(difference)))?;
        }
    }
    screen.line("Adopting takes what is wanted of these drives from the nodes, and goes on above all of it.")?;
    screen.line("Nodes that have not registered yet are not in this list.")?;
    confirm(screen, yes, "adopt")?;
    if api.adopt(true).await?.adopted {
        screen.line("Adopted. The nodes register anew.")?;
    } else {
        screen.line("There was nothing left to adopt.")?;
    }
    Ok(Exit::Done)
}

/// Has a person type a word, unless consent was given on the command line.
fn confirm(screen: &mut Screen, yes: bool, word: &str) -> Result<(), ClientError> {
    if yes { Ok(()) } else { typed(screen, word, word, "--yes") }
}

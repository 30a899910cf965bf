//! What to do about a name that a registry does not know: say what may have been meant.

use hotbay_api::cms::ActionResult;
use hotbay_api::kinds::{Drive, StorageNode, Volume};

use super::answer::code;
use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::nearest::{did_you_mean, nearest};
use super::screen::{Screen, plain};

/// Next steps for a name of this kind that was not found. Without a list to look at, there is only the general one.
pub(crate) async fn next_steps(api: &Api, kind: Kind, typed: &str) -> Vec<String> {
    let objects = api.list(kind, "").await.unwrap_or_default();
    let known: Vec<String> = match kind {
        Kind::Drive => {
            let drives = objects.iter().filter_map(|object| serde_json::from_str(object).ok());
            drives.flat_map(|drive: Drive| names_of(drive, typed.contains(':'))).collect()
        }
        Kind::StorageNode => {
            let nodes = objects.iter().filter_map(|object| serde_json::from_str(object).ok());
            nodes.map(|node: StorageNode| plain(&node.metadata.name)).collect()
        }
        Kind::Volume => {
            let volumes = objects.iter().filter_map(|object| serde_json::from_str(object).ok());
            volumes.map(|volume: Volume| plain(&volume.metadata.name)).collect()
        }
    };
    let near = nearest(typed, known.iter().map(String::as_str));
    vec![did_you_mean(&near).unwrap_or_else(|| match kind {
        Kind::Drive => "see which there are:  hotbay get drives".to_owned(),
        Kind::StorageNode => "see which there are:  hotbay get nodes".to_owned(),
        Kind::Volume => "see which there are:  hotbay get volumes".to_owned(),
    })]
}

/// Everything that a drive is called, in the form that was typed: with its node, or without.
fn names_of(drive: Drive, with_node: bool) -> Vec<String> {
    let Drive { metadata, status, .. } = drive;
    let names = if with_node {
        let node = &status.node;
        let bay = status.bay.map(|bay| format!("{node}:bay-{bay}"));
        [Some(format!("{node}:{}", status.path)), bay]
    } else {
        [Some(metadata.name), status.serial]
    };
    names.into_iter().flatten().map(|name| plain(&name)).collect()
}

/// Says that something was not done with a host, named by its participle, and what to do next.
pub(crate) async fn host_refused(
    api: &Api,
    screen: &mut Screen,
    (host, done): (&str, &str),
    result: &ActionResult,
) -> Result<Exit, ClientError> {
    let answer = code(result);
    let exit = Exit::of_answer(answer);
    let mut more = vec!["nothing was changed".to_owned()];
    if exit == Exit::NotFound {
        more.extend(next_steps(api, Kind::StorageNode, host).await);
    }
    let reasons = match answer {
        None => "use the same release of hotbay on both sides".to_owned(),
        Some(_) => result.reasons.join("; "),
    };
    screen.error(&format!("{host} is not {done}: {reasons}"), &more)?;
    Ok(exit)
}

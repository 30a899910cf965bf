//! `hotbay host label`: what people say about a host, and what rules then do with its drives.

use hotbay_api::cms::Action;
use hotbay_api::convert::action_to_wire;
use hotbay_core::cms::{Action as Asked, Code};
use hotbay_core::node_labels::LabelChange;

use super::answer::code;
use super::api::Api;
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::{suggest, words};
use crate::cli::LabelArgs;

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    args: LabelArgs,
) -> Result<Exit, ClientError> {
    let LabelArgs { host, changes, overwrite, dry_run } = args;
    let change = LabelChange::of_texts(&changes, overwrite)?;
    let lines = words_of(&host, &change, dry_run);
    let action: Action = action_to_wire(&Asked::LabelHost { host: host.clone(), change });
    let results = api.act(vec![action], dry_run).await?;
    let result = results.into_iter().next().expect("one answer per action");
    match code(&result) {
        Some(Code::Ok) => screen.line(&lines)?,
        Some(Code::Already) => {
            screen.line(&format!("{host}: its labels are so already; nothing was changed"))?;
        }
        _ => return suggest::host_refused(api, screen, (&host, "labelled"), &result).await,
    }
    for drive in result.drives.iter().filter_map(|result| result.drive.as_ref()) {
        let adding = if dry_run { "a rule would add it" } else { "adding, by a rule" };
        screen.line(&format!("  {}: {adding}", plain(&words::drive_of_host(drive))))?;
    }
    if dry_run {
        screen.line("dry run: nothing was changed")?;
    }
    Ok(Exit::Done)
}

/// What becomes of the labels.
fn words_of(host: &str, change: &LabelChange, dry_run: bool) -> String {
    let would = if dry_run { "would be " } else { "" };
    let set = change.set().iter().map(|(key, value)| format!("{key}={value} {would}set"));
    let removed = change.remove().map(|key| format!("{key} {would}removed"));
    let words: Vec<_> = set.chain(removed).collect();
    format!("{host}: {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_the_labels_is_said() {
        let change = LabelChange::of_texts(&["rack=a", "zone-", "new="], false).unwrap();
        let said = |dry_run| words_of("node-a", &change, dry_run);
        assert_eq!(said(false), "node-a: new= set, rack=a set, zone removed");
        assert_eq!(
            said(true),
            "node-a: new= would be set, rack=a would be set, zone would be removed"
        );
    }
}

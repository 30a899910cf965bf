//! `hotbay drive plan`: a list of drives for a person to look at, and then for `hotbay drive add -f`.

use hotbay_api::kinds::{Drive, DriveStatus};
use hotbay_core::device::Media;
use hotbay_core::filter::{AnyOf, Criteria, Pattern, Traits};

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::plan_file::{Entry, Plan};
use super::screen::{Screen, plain};
use super::{rows, words};
use crate::cli::PlanArgs;

const HEADER: &str = "\
# Drives to put into operation.
#   1. Take out of the list what is to stay as it is.
#   2. See what would happen:  hotbay drive add -f FILE --dry-run
#   3. Do it:                  hotbay drive add -f FILE --wait
# Only name and state count; the rest is for you. A drive that is not in that state any more is refused: plan it again.
";

/// Which drives are asked for.
#[derive(Debug)]
struct Wanted {
    node: AnyOf<Pattern>,
    criteria: Criteria,
    /// Also what cannot be added.
    all: bool,
}

impl From<PlanArgs> for Wanted {
    fn from(args: PlanArgs) -> Self {
        let PlanArgs { node, media, min_size, max_size, model, vendor, transport, usable: _, all } =
            args;
        let criteria = Criteria {
            media: AnyOf(media),
            model: AnyOf(model),
            vendor: AnyOf(vendor),
            transport: AnyOf(transport),
            min_size,
            max_size,
            ..Criteria::default()
        };
        Self { node: AnyOf(node), criteria, all }
    }
}

impl Wanted {
    fn fits(&self, drive: &Drive) -> bool {
        let status = &drive.status;
        (self.all || rows::usable(drive))
            // What looks like another drive is taken over, not added.
            && !drive.metadata.uid.is_empty()
            && status.state_hash.is_some()
            && self.node.fits(|pattern| pattern.fits(&status.node))
            && self.criteria.fit(traits(status))
    }
}

/// A drive as it is published. What this release has no word for is unknown.
fn traits(status: &DriveStatus) -> Traits<'_> {
    Traits {
        path: &status.path,
        links: &[],
        vendor: status.details.vendor.as_deref(),
        model: status.model.as_deref(),
        transport: status.details.transport,
        media: status.media.parse().unwrap_or(Media::Unknown),
        size_bytes: status.size_bytes,
        removable: false,
    }
}

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    args: PlanArgs,
) -> Result<Exit, ClientError> {
    let wanted = Wanted::from(args);
    let drives: Vec<Drive> = api.objects(Kind::Drive, "").await?;
    let listed: Vec<_> = drives.iter().filter(|drive| wanted.fits(drive)).map(entry).collect();
    let (fitting, all) = (listed.len(), words::count(drives.len(), "drive"));
    let list = serde_saphyr::to_string(&Plan { drives: listed }).map_err(ClientError::Yaml)?;
    screen.print(&format!("{HEADER}{list}"))?;
    // Beside the list, which mostly goes into a file.
    screen.aside(&match fitting {
        0 => format!("None of {all} can be added and is what you ask for.\n"),
        fitting => format!("{fitting} of {all} in the list.\n"),
    });
    Ok(Exit::Done)
}

fn entry(drive: &Drive) -> Entry<String> {
    let Drive { metadata, status, .. } = drive;
    let some = |text: &Option<String>| text.as_deref().map(plain);
    Entry {
        name: plain(&metadata.name),
        node: Some(plain(&status.node)),
        path: Some(plain(&status.path)),
        bay: some(&status.bay),
        model: some(&status.model),
        serial: some(&status.serial),
        size: Some(words::size(status.size_bytes)),
        media: Some(plain(&status.media)),
        why: why(drive),
        state: status.state_hash.clone().unwrap_or_default(),
    }
}

/// Why a drive that is listed all the same would not be added.
fn why(drive: &Drive) -> Option<String> {
    let status = &drive.status;
    let denied = status.denied.first().map(|denied| plain(&denied.message));
    let absent = || (!status.present).then(|| "it is not on the machine".to_owned());
    let there = || drive.spec.in_operation.then(|| "it is in operation already".to_owned());
    denied.or_else(absent).or_else(there)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;
    use crate::cli::{Cli, ClientCommand, Command, DriveCommand};

    fn wanted(options: &str) -> Wanted {
        let words = ["hotbay", "drive", "plan"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Client(ClientCommand::Drive { command: DriveCommand::Plan(args) }) => {
                args.into()
            }
            other => panic!("{other:?}"),
        }
    }

    fn drive(change: serde_json::Value) -> Drive {
        let mut status = json!({
            "node": "rack1-a", "state": "UnknownDevice", "sinceMs": 1_000,
            "goal": { "wish": "detach", "generation": 0 },
            "present": true, "path": "/dev/nvme0n1", "model": "ACME NV-2000", "vendor": "ACME",
            "transport": "nvme", "deviceKind": "Block", "media": "NVMe",
            "sizeBytes": 2_000_398_934_016_u64, "blockBytes": 512, "removalWanted": false,
            "stateHash": "s-0123456789abcdef",
        });
        status.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let object = json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "Drive",
            "metadata": { "name": "d-1", "uid": "7f3a91c0".repeat(4) },
            "spec": { "inOperation": false }, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn all_selectors_must_fit() {
        let nvme = drive(json!({}));
        for (options, fits) in [
            ("", true),
            ("--usable", true),
            ("--node rack1-*", true),
            ("--node rack2-*,rack1-?", true),
            ("--node rack2-*", false),
            ("--media ssd,nvme --min-size 1TB --max-size 2TiB", true),
            ("--min-size 2TiB", false),
            ("--model acme* --vendor acme --transport nvme,sas", true),
            ("--vendor other", false),
            ("--transport usb", false),
        ] {
            assert_eq!(wanted(options).fits(&nvme), fits, "{options}");
        }
    }

    #[test]
    fn only_what_can_be_added_is_listed_unless_all_is_asked_for() {
        let denied = json!([{ "reason": "ReadOnly", "message": "it is read-only" }]);
        let denied = drive(json!({ "denied": denied }));
        assert!(!wanted("").fits(&denied) && wanted("--all").fits(&denied));
        assert_eq!(entry(&denied).why.as_deref(), Some("it is read-only"));
        // What looks like another drive cannot be added by any list.
        let mut newcomer = drive(json!({}));
        newcomer.metadata.uid.clear();
        assert!(!wanted("--all").fits(&newcomer));
    }

    #[test]
    fn what_is_printed_can_be_read_again() {
        let plan = Plan { drives: vec![entry(&drive(json!({ "bay": "0", "serial": "1e5" })))] };
        let text = format!("{HEADER}{}", serde_saphyr::to_string(&plan).unwrap());
        let read = crate::client::plan_file::parse("x", &text).unwrap();
        assert_eq!(read, [("d-1".to_owned(), "s-0123456789abcdef".parse().unwrap())]);
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }
}

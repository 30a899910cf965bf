//! Volumes as rows of a table. The last column says in words why one is not as it should be.

use hotbay_api::kinds::{Volume, VolumeStatus};

use crate::client::table::{Cell, Squeeze, Table, Tone};
use crate::client::words;

const WHY: &str = "WHY";

const SQUEEZES: &[Squeeze] = &[
    Squeeze::Cut { title: WHY, least: 24 },
    Squeeze::Cut { title: "CLAIM", least: 16 },
    Squeeze::Cut { title: "NAME", least: 16 },
    Squeeze::Cut { title: WHY, least: 12 },
    Squeeze::Drop { title: "SINCE" },
    Squeeze::Drop { title: "CLAIM" },
    Squeeze::Cut { title: "NAME", least: 8 },
    Squeeze::Cut { title: "USED ON", least: 8 },
    Squeeze::Cut { title: "NODE", least: 8 },
    Squeeze::Cut { title: WHY, least: 8 },
];

/// The table of volumes.
pub(crate) fn volumes(volumes: &[Volume], wide: bool, now_ms: u64) -> Table {
    let mut titles =
        vec!["NAME", "SIZE", "STATE", "NODE", "DRIVE", "USED ON", "CLAIM", "SINCE", WHY];
    if wide {
        titles.extend(["UID", "ASKED BY", "PARAMETERS", "ANNOTATIONS"]);
    }
    let rows = volumes.iter().map(|volume| row(volume, wide, now_ms)).collect();
    Table { titles, rows, squeezes: SQUEEZES, keeps_its_end: "" }
}

fn row(volume: &Volume, wide: bool, now_ms: u64) -> Vec<Cell> {
    let status = &volume.status;
    let used = used_on(status);
    let said = |text: &str| Cell::maybe(Some(text).filter(|text| !text.is_empty()));
    let mut row = vec![
        Cell::new(&volume.metadata.name),
        Cell::new(words::size(status.size_bytes)),
        Cell::toned(&status.state, tone(&status.state)),
        Cell::maybe(status.node.as_deref()),
        Cell::maybe(status.drive.as_deref()),
        said(&used),
        Cell::maybe(volume.spec.claim.as_deref()),
        Cell::new(words::ago(status.since_ms, now_ms)),
        Cell::toned(why(status), Tone::Bad),
    ];
    if wide {
        row.extend([
            Cell::new(&volume.metadata.uid),
            said(&status.asked_by),
            said(&words::labels(&volume.spec.parameters)),
            said(&words::labels(&volume.annotations)),
        ]);
    }
    row
}

/// The nodes that may use it; one that does not yet, or is to give it back, says so.
fn used_on(status: &VolumeStatus) -> String {
    let nodes = status.attachments.iter().map(|it| match it.state.as_str() {
        "Attached" => it.node.clone(),
        state => format!("{} ({})", it.node, state.to_lowercase()),
    });
    nodes.collect::<Vec<_>>().join(", ")
}

/// The first that is to be said.
fn why(status: &VolumeStatus) -> String {
    let waits = || {
        let mut waits = status.attachments.iter();
        waits.find_map(|it| Some(format!("{}: {}", it.node, it.waiting_for.as_ref()?)))
    };
    let condition = status.conditions.first().map(|condition| condition.message.clone());
    condition.or_else(waits).unwrap_or_default()
}

fn tone(state: &str) -> Tone {
    match state {
        "Created" => Tone::Good,
        "Pending" | "Deleting" => Tone::Busy,
        "Lost" | "Orphan" => Tone::Bad,
        _ => Tone::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::table::Widths;

    fn volume(state: &str, why: Option<&str>) -> Volume {
        let conditions: Vec<_> =
            why.iter().map(|why| serde_json::json!({ "type": "Lost", "message": why })).collect();
        serde_json::from_value(serde_json::json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "Volume",
            "metadata": { "name": "pvc-11aa", "uid": "7f3a91c0".repeat(4) },
            "annotations": { "owner": "shop" },
            "spec": { "parameters": { "media": "NVMe" }, "claim": "shop/data-0" },
            "status": {
                "state": state, "sinceMs": 1_000, "sizeBytes": 20_u64 << 30, "drive": "d-7f3a91c0",
                "node": "node-a", "epoch": 1, "askedBy": "root",
                "attachments": [
                    { "node": "node-a", "state": "Detaching", "epoch": 1, "readOnly": false },
                ],
                "conditions": conditions,
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_volume_is_one_line() {
        let table = volumes(&[volume("Created", None)], false, 61_000);
        let widths = table.natural(&Widths::new());
        assert_eq!(
            table.title_line(&widths),
            "NAME      SIZE  STATE    NODE    DRIVE       USED ON             CLAIM        SINCE  WHY"
        );
        assert_eq!(
            table.row_lines(&widths, false),
            ["pvc-11aa  20G   Created  node-a  d-7f3a91c0  node-a (detaching)  shop/data-0  60s"]
        );
        let wide = volumes(&[volume("Created", None)], true, 61_000);
        assert_eq!(wide.titles[..table.titles.len()], table.titles);
        let line = wide.row_lines(&wide.natural(&Widths::new()), false).remove(0);
        assert!(line.ends_with("root      media=NVMe  owner=shop"), "{line}");
    }

    #[test]
    fn it_fits_the_terminal_and_still_says_why() {
        let lost = volume("Lost", Some("the label of its drive does not have it: it is lost"));
        let table = volumes(&[lost, volume("Created", None)], false, 61_000);
        for columns in 70..140 {
            let lines = table.row_lines(&table.fitted(columns), false);
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
            assert!(lines[0].contains("the label"), "{lines:#?}");
        }
    }
}

//! Drives and nodes as rows of a table. The last column says in words why something is not as wished.

use hotbay_api::kinds::{Drive, DriveStatus, StorageNode};
use hotbay_core::device::Details;

use super::table::{Cell, Squeeze, Table, Tone};
use super::{volume, words};

const WHY: &str = "WHY";

/// The reason matters most, then where the drive is; what the drive is made of gives way to both. `-o wide` has it all.
const DRIVE_SQUEEZES: &[Squeeze] = &[
    Squeeze::Cut { title: WHY, least: 24 },
    Squeeze::Cut { title: "MODEL", least: 8 },
    Squeeze::Drop { title: "MODEL" },
    Squeeze::Cut { title: "PATH", least: 9 },
    Squeeze::Drop { title: "MEDIA" },
    Squeeze::Cut { title: "BAY", least: 6 },
    Squeeze::Drop { title: "FREE" },
    Squeeze::Cut { title: WHY, least: 14 },
    Squeeze::Drop { title: "PATH" },
    Squeeze::Cut { title: WHY, least: 8 },
    Squeeze::Cut { title: "SERIAL", least: 8 },
    Squeeze::Cut { title: "NODE", least: 8 },
];

const SEEN_SQUEEZES: &[Squeeze] = &[
    Squeeze::Cut { title: WHY, least: 36 },
    Squeeze::Cut { title: "MODEL", least: 8 },
    Squeeze::Drop { title: "MODEL" },
    Squeeze::Cut { title: WHY, least: 20 },
    Squeeze::Drop { title: "MEDIA" },
    Squeeze::Cut { title: "BAY", least: 4 },
    Squeeze::Cut { title: "SERIAL", least: 8 },
    Squeeze::Cut { title: "PATH", least: 9 },
    Squeeze::Cut { title: WHY, least: 8 },
];

/// The table of drives.
pub(crate) fn drives(drives: &[Drive], wide: bool, now_ms: u64) -> Table {
    let mut titles = vec![
        "NAME", "NODE", "BAY", "PATH", "MODEL", "SERIAL", "SIZE", "FREE", "MEDIA", "STATE", WHY,
    ];
    if wide {
        titles.extend(["UID", "GENERATION", "SINCE", "ASKED BY"]);
        titles.extend(["VENDOR", "FIRMWARE", "TRANSPORT"]);
    }
    let rows = drives.iter().map(|drive| drive_row(drive, wide, now_ms)).collect();
    Table { titles, rows, squeezes: DRIVE_SQUEEZES, keeps_its_end: "PATH" }
}

fn drive_row(drive: &Drive, wide: bool, now_ms: u64) -> Vec<Cell> {
    let status = &drive.status;
    let mut row = vec![
        Cell::new(&drive.metadata.name),
        Cell::new(&status.node),
        Cell::maybe(status.bay.as_deref()),
        Cell::new(&status.path),
        Cell::maybe(status.model.as_deref()),
        Cell::maybe(status.serial.as_deref()),
        Cell::new(words::size(status.size_bytes)),
        Cell::maybe(status.free_bytes.map(words::size).as_deref()),
        Cell::new(&status.media),
        Cell::toned(state(status), state_tone(status)),
        Cell::toned(why_drive(status), Tone::Bad),
    ];
    if wide {
        row.extend([
            Cell::new(&drive.metadata.uid),
            Cell::new(status.goal.generation.to_string()),
            Cell::new(words::ago(status.since_ms, now_ms)),
            Cell::maybe(Some(status.asked_by.as_str()).filter(|by| !by.is_empty())),
        ]);
        row.extend(made_of(&status.details));
    }
    row
}

/// Who made it, and how it is reached.
fn made_of(details: &Details) -> [Cell; 3] {
    [
        Cell::maybe(details.vendor.as_deref()),
        Cell::maybe(details.firmware.as_deref()),
        Cell::new(words::transport(details.transport)),
    ]
}

/// A device that was seen without asking a registry.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) drive: Drive,
    /// It carries the label of the cluster that its machine belongs to.
    pub(crate) is_ours: bool,
}

/// The table of devices as the agent of this machine sees them. A registry is not asked, so that they have no names and
/// no states.
pub(crate) fn seen(devices: &[Seen], wide: bool) -> Table {
    let mut titles = vec!["PATH", "BAY", "MODEL", "SERIAL", "SIZE", "MEDIA", "USABLE", WHY];
    if wide {
        titles.extend(["VENDOR", "FIRMWARE", "TRANSPORT", "WWN", "CONTENTS"]);
    }
    let rows = devices.iter().map(|seen| seen_row(seen, wide)).collect();
    Table { titles, rows, squeezes: SEEN_SQUEEZES, keeps_its_end: "PATH" }
}

fn seen_row(Seen { drive, is_ours }: &Seen, wide: bool) -> Vec<Cell> {
    let status = &drive.status;
    let (usable, tone) = match (status.denied.is_empty(), is_ours) {
        (true, true) => ("ours", Tone::Good),
        (true, false) => ("yes", Tone::Good),
        (false, _) => ("no", Tone::Plain),
    };
    let reasons = status.denied.iter().map(|denied| without_subject(&denied.message));
    let mut row = vec![
        Cell::new(&status.path),
        Cell::maybe(status.bay.as_deref()),
        Cell::maybe(status.model.as_deref()),
        Cell::maybe(status.serial.as_deref()),
        Cell::new(words::size(status.size_bytes)),
        Cell::new(&status.media),
        Cell::toned(usable, tone),
        Cell::toned(reasons.collect::<Vec<_>>().join("; "), Tone::Bad),
    ];
    if wide {
        row.extend(made_of(&status.details));
        row.push(Cell::maybe(status.wwn.as_deref()));
        row.push(Cell::maybe(status.details.contents.as_deref()));
    }
    row
}

/// The state as tables and sentences have it.
pub(crate) fn state(status: &DriveStatus) -> &str {
    status.state.strip_suffix("Device").unwrap_or(&status.state)
}

fn state_tone(status: &DriveStatus) -> Tone {
    match state(status) {
        "Attached" => Tone::Good,
        "Attaching" | "Closing" => Tone::Busy,
        _ => Tone::Plain,
    }
}

/// Why a drive is not as wished, or cannot be wished for; empty if there is nothing to say.
fn why_drive(status: &DriveStatus) -> String {
    let denied = || status.denied.first().map(|denied| denied.message.clone());
    let removal = || {
        let count = words::count(status.volumes.len(), "volume");
        let names = volume::words::names(&status.volumes);
        status.removal_wanted.then(|| format!("removal wanted; waits for {count}: {names}"))
    };
    let missing = || (!status.present).then(|| "not on the machine".to_owned());
    let condition = || status.conditions.first().map(|condition| condition.message.clone());
    let why = status.waiting_for.clone().or_else(missing).or_else(condition);
    let dirty = || status.dirty_bytes.filter(|dirty| *dirty > 0);
    let erasing =
        || dirty().map(|dirty| format!("erasing {} of deleted volumes", words::size(dirty)));
    let why = why.or_else(denied).or_else(removal).or_else(erasing);
    why.map(|why| without_subject(&why).to_owned()).unwrap_or_default()
}

/// In a table the row is the subject: "it is the system drive" is "system drive" there.
fn without_subject(why: &str) -> &str {
    let openings = ["it is the ", "it is a ", "it is ", "it "];
    openings.iter().find_map(|opening| why.strip_prefix(opening)).unwrap_or(why)
}

/// Whether a drive can be added now.
pub(crate) fn usable(drive: &Drive) -> bool {
    drive.status.present && drive.status.denied.is_empty() && !drive.spec.in_operation
}

/// The table of nodes.
pub(crate) fn nodes(nodes: &[StorageNode], wide: bool) -> Table {
    let mut titles = vec!["NAME", "STATE", "DRIVES", "IN OPERATION", WHY];
    if wide {
        titles.extend(["UID", "MACHINE", "LABELS", "VERSION", "ADDRESS"]);
    }
    let rows = nodes.iter().map(|node| node_row(node, wide)).collect();
    Table { titles, rows, squeezes: &[Squeeze::Cut { title: WHY, least: 8 }], keeps_its_end: "" }
}

fn node_row(node: &StorageNode, wide: bool) -> Vec<Cell> {
    let status = &node.status;
    let (state, tone) = match (status.purged, status.ready) {
        (true, _) => ("Purged", Tone::Bad),
        (false, true) => ("Ready", Tone::Good),
        (false, false) => ("Unreachable", Tone::Busy),
    };
    let mut why: Vec<_> =
        status.conditions.iter().map(|condition| condition.message.as_str()).collect();
    if !status.ready && !status.purged {
        why.push("its agent is not connected");
    }
    if status.cordoned {
        why.push("cordoned: no new volumes");
    }
    let mut row = vec![
        Cell::new(&node.metadata.name),
        Cell::toned(state, tone),
        Cell::new(status.drives.to_string()),
        Cell::new(status.drives_in_operation.to_string()),
        Cell::toned(why.join("; "), Tone::Bad),
    ];
    if wide {
        row.extend([Cell::new(&node.metadata.uid), Cell::new(&status.machine)]);
        let labels = words::labels(&node.spec.labels);
        row.push(Cell::maybe(Some(labels.as_str()).filter(|labels| !labels.is_empty())));
        row.extend([&status.version, &status.address].map(|it| Cell::maybe(it.as_deref())));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::table::Widths;

    fn drive(name: &str) -> Drive {
        let object = serde_json::json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "Drive",
            "metadata": { "name": name, "uid": "7f3a91c0".repeat(4) },
            "spec": { "inOperation": false },
            "status": {
                "node": "node-a", "state": "UnknownDevice", "sinceMs": 1_000,
                "goal": { "wish": "detach", "generation": 0 },
                "present": true, "path": "/dev/nvme0n1", "bay": "0", "model": "ACME NV-2000",
                "serial": "S3X1A9", "deviceKind": "Block", "media": "NVMe",
                "sizeBytes": 2_000_398_934_016_u64, "blockBytes": 512, "removalWanted": false,
                "vendor": "ACME", "firmware": "1.0", "transport": "nvme",
            },
        });
        serde_json::from_value(object).unwrap()
    }

    fn system_drive() -> Drive {
        let mut system = drive("d-02bd77aa");
        system.status.bay = None;
        system.status.path = "/dev/sda".into();
        let denied = serde_json::json!({
            "reason": "SystemDrive", "mounts": ["/", "/boot"],
            "message": "it is the system drive (mounted at /, /boot)",
        });
        system.status.denied = vec![serde_json::from_value(denied).unwrap()];
        system
    }

    #[test]
    fn at_120_and_80_columns_a_table_fits_and_still_says_why() {
        let table = drives(&[drive("d-7f3a91c0"), system_drive()], false, 0);
        for (columns, expected) in [
            (
                120,
                "d-02bd77aa  node-a  -    /dev/sda      ACME NV-2000  S3X1A9  1.8T  -     NVMe   Unknown  \
                 system drive (mounted at /, /b…",
            ),
            (
                80,
                "d-02bd77aa  node-a  -    /dev/sda   S3X1A9  1.8T  Unknown  system drive (mounte…",
            ),
            (60, "d-02bd77aa  node-a  -    S3X1A9  1.8T  Unknown  system driv…"),
        ] {
            let lines = table.row_lines(&table.fitted(columns), false);
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
            assert_eq!(lines[1], expected);
        }
    }

    #[test]
    fn wide_adds_columns_behind_the_others() {
        let narrow = drives(&[], false, 0).titles;
        let wide = drives(&[drive("d-1")], true, 61_000);
        assert_eq!(wide.titles[..narrow.len()], narrow);
        let line = wide.row_lines(&wide.natural(&Widths::new()), false).remove(0);
        let end =
            "7f3a91c07f3a91c07f3a91c07f3a91c0  0           60s    -         ACME    1.0       nvme";
        assert!(line.ends_with(end), "{line}");
    }

    #[test]
    fn at_100_columns_even_long_names_leave_room_for_the_reason() {
        let mut long = system_drive();
        long.status.node = "storage-17.example".into();
        long.status.bay = Some("ArrayDevice02".into());
        long.status.path = "/dev/nvme11n1".into();
        long.status.model = Some("SAMSUNG MZWLR7T6HALA-00007".into());
        long.status.serial = Some("S6CKNE0T100123".into());
        let table = drives(&[drive("d-7f3a91c0"), long], false, 0);
        let lines = table.row_lines(&table.fitted(100), false);
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
        let has = |text: &str| lines[1].contains(text);
        assert!(has("nvme11n1") && has("system drive (mou") && has("S6CKNE0T100123"), "{lines:#?}");
    }

    #[test]
    fn what_is_seen_without_a_registry_is_told_with_every_reason() {
        let mut system = system_drive();
        let swap = serde_json::json!({ "reason": "ReadOnly", "message": "it is read-only" });
        system.status.denied.push(serde_json::from_value(swap).unwrap());
        let of = |drive: Drive| Seen { drive, is_ours: false };
        let ours = Seen { drive: drive("y"), is_ours: true };
        let table = seen(&[of(drive("x")), of(system), ours], false);
        let widths = table.natural(&Widths::new());
        assert_eq!(
            table.row_lines(&widths, false),
            [
                "/dev/nvme0n1  0    ACME NV-2000  S3X1A9  1.8T  NVMe   yes",
                "/dev/sda      -    ACME NV-2000  S3X1A9  1.8T  NVMe   no      \
                 system drive (mounted at /, /boot); read-only",
                "/dev/nvme0n1  0    ACME NV-2000  S3X1A9  1.8T  NVMe   ours",
            ]
        );
        for columns in 60..120 {
            let lines = table.row_lines(&table.fitted(columns), false);
            assert!(lines.iter().all(|line| line.chars().count() <= columns), "{lines:#?}");
        }
        let wide = seen(&[of(drive("x"))], true);
        assert_eq!(wide.titles[..table.titles.len()], table.titles);
    }

    #[test]
    fn the_reason_is_the_first_that_fits() {
        let mut drive = system_drive();
        assert_eq!(why_drive(&drive.status), "system drive (mounted at /, /boot)");
        drive.status.present = false;
        assert_eq!(why_drive(&drive.status), "not on the machine");
        drive.status.waiting_for = Some("waiting for the node's agent".into());
        assert_eq!(why_drive(&drive.status), "waiting for the node's agent");
        drive.status.waiting_for = None;
        drive.status.present = true;
        drive.status.denied.clear();
        drive.status.removal_wanted = true;
        drive.status.volumes = vec!["v".into(), "w".into()];
        assert_eq!(why_drive(&drive.status), "removal wanted; waits for 2 volumes: v, w");
        drive.status.removal_wanted = false;
        drive.status.dirty_bytes = Some(0);
        assert_eq!(why_drive(&drive.status), "");
        drive.status.dirty_bytes = Some(3 << 30);
        assert_eq!(why_drive(&drive.status), "erasing 3.0G of deleted volumes");
    }

    #[test]
    fn only_what_can_be_added_is_usable() {
        assert!(usable(&drive("d-1")));
        assert!(!usable(&system_drive()));
        let mut missing = drive("d-1");
        missing.status.present = false;
        assert!(!usable(&missing));
        let mut in_operation = drive("d-1");
        in_operation.spec.in_operation = true;
        assert!(!usable(&in_operation));
    }
}

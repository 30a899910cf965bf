//! `hotbay describe`: everything about one drive, node or volume, and what happened to it.

use hotbay_api::kinds::{Condition, Drive, DriveStatus, StorageNode, Volume};
use hotbay_core::device::Details;
use hotbay_core::words::bytes;

use super::api::{Api, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::get::now_ms;
use super::screen::{Screen, plain};
use super::{events, rows, suggest, volume, words};
use crate::cli::Described;

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    what: Described,
) -> Result<Exit, ClientError> {
    let (kind, name) = match &what {
        Described::Drive { name } => (Kind::Drive, name),
        Described::Node { name } => (Kind::StorageNode, name),
        Described::Volume { name } => (Kind::Volume, name),
    };
    let described = match &what {
        Described::Drive { name } => match api.objects::<Drive>(kind, name).await {
            Ok(found) => Ok(match found.first() {
                Some(found) => Some(with_volumes(api, found).await?),
                None => None,
            }),
            Err(error) => Err(error),
        },
        Described::Node { name } => {
            api.objects::<StorageNode>(kind, name).await.map(|found| found.iter().map(node).next())
        }
        Described::Volume { name } => {
            let found = api.objects::<Volume>(kind, name).await;
            found.map(|found| found.iter().map(volume::describe::lines).next())
        }
    };
    let (uid, lines) = match described {
        Ok(Some(described)) => described,
        Ok(None) => return Ok(Exit::NotFound),
        Err(error) if error.exit() == Exit::NotFound => {
            screen.error(&error.to_string(), &suggest::next_steps(api, kind, name).await)?;
            return Ok(Exit::NotFound);
        }
        Err(error) => return Err(error),
    };
    for (title, value) in lines {
        screen.line(&format!("{title:<14}{}", plain(&value)))?;
    }
    print_events(api, screen, &uid).await
}

pub(crate) type Lines = Vec<(&'static str, String)>;

/// A drive with what is on it.
async fn with_volumes(api: &Api, found: &Drive) -> Result<(String, Lines), ClientError> {
    let (uid, mut lines) = drive(found);
    if !found.status.volumes.is_empty() {
        lines.extend(volume::describe::on_drive(api, &found.metadata.name).await?);
    }
    Ok((uid, lines))
}

fn drive(drive: &Drive) -> (String, Lines) {
    let status = &drive.status;
    let missing = || "-".to_owned();
    let since = words::ago(status.since_ms, now_ms());
    let mut lines = vec![
        ("Name", drive.metadata.name.clone()),
        (
            "Id",
            Some(drive.metadata.uid.clone()).filter(|uid| !uid.is_empty()).unwrap_or_else(missing),
        ),
        ("Node", status.node.clone()),
        ("Bay", bay(status).unwrap_or_else(missing)),
        ("Path", status.path.clone()),
        ("Vendor", status.details.vendor.clone().unwrap_or_else(missing)),
        ("Model", status.model.clone().unwrap_or_else(missing)),
        ("Serial", status.serial.clone().unwrap_or_else(missing)),
        ("Firmware", status.details.firmware.clone().unwrap_or_else(missing)),
        ("WWN", status.wwn.clone().unwrap_or_else(missing)),
        ("Size", format!("{} ({} bytes)", words::size(status.size_bytes), status.size_bytes)),
        ("Blocks", blocks(status)),
        ("Media", format!("{}, {} device", status.media, status.device_kind.to_lowercase())),
        ("Transport", words::transport(status.details.transport).to_owned()),
        ("State", format!("{} for {since}", rows::state(status))),
        ("Wanted", format!("{}, generation {}", status.goal.wish, status.goal.generation)),
        ("Order", status.goal.order.clone().unwrap_or_else(missing)),
        (
            "Asked by",
            Some(status.asked_by.clone()).filter(|who| !who.is_empty()).unwrap_or_else(missing),
        ),
    ];
    lines.extend(details(&status.details));
    lines.extend(status.free_bytes.map(|free| ("Free", bytes(free))));
    let dirty = status.dirty_bytes.filter(|dirty| *dirty > 0);
    lines.extend(dirty.map(|dirty| ("Erasing", format!("{} of deleted volumes", bytes(dirty)))));
    if !status.present {
        lines.push(("Present", "no: it is not on the machine".to_owned()));
    }
    if status.removal_wanted {
        lines.push(("Removal", "wanted; waits for the volumes on it".to_owned()));
    }
    lines.extend(status.waiting_for.iter().map(|why| ("Waiting for", why.clone())));
    let condition =
        |condition: &Condition| ("Condition", format!("{}: {}", condition.kind, condition.message));
    lines.extend(status.conditions.iter().map(condition));
    lines.extend(status.denied.iter().map(|denied| ("Not usable", denied.message.clone())));
    (drive.metadata.uid.clone(), lines)
}

fn bay(status: &DriveStatus) -> Option<String> {
    let bay = status.bay.clone()?;
    Some(match &status.details.enclosure {
        Some(enclosure) => format!("{bay} of enclosure {enclosure}"),
        None => bay,
    })
}

fn blocks(status: &DriveStatus) -> String {
    match (status.block_bytes, status.details.physical_block_bytes) {
        (bytes, physical) if physical == 0 || physical == bytes => format!("{bytes} bytes"),
        (bytes, physical) => format!("{bytes} bytes, {physical} on the medium"),
    }
}

/// What there is to say of a device only if it is so.
fn details(details: &Details) -> Lines {
    let mut lines = Lines::new();
    let kinds = [
        (details.read_only, "read-only"),
        (details.removable, "removable"),
        (details.zoned, "zoned: written in sequence"),
    ];
    let kinds: Vec<&str> = kinds.iter().filter(|(is_so, _)| *is_so).map(|(_, it)| *it).collect();
    if !kinds.is_empty() {
        lines.push(("Is", kinds.join(", ")));
    }
    lines.extend(details.contents.iter().map(|kind| ("Contents", kind.clone())));
    let partitions = details.partitions.iter();
    lines.extend(
        partitions
            .map(|part| ("Partition", format!("{}, {}", part.name, words::size(part.size_bytes)))),
    );
    lines.extend(details.holders.iter().map(|holder| ("Held by", holder.clone())));
    lines.extend(details.mounts.iter().map(|at| ("Mounted at", at.clone())));
    lines.extend(details.links.iter().map(|link| ("Link", format!("/dev/disk/by-id/{link}"))));
    lines
}

fn node(node: &StorageNode) -> (String, Lines) {
    let status = &node.status;
    let agent = match (status.purged, status.ready) {
        (true, _) => "purged",
        (false, true) => "registered",
        (false, false) => "not connected",
    };
    let silent = status.silent_since_ms.filter(|_| !status.purged);
    let silent = silent.map(|since| format!(" for {}", words::ago(since, now_ms())));
    let mut lines = vec![
        ("Name", node.metadata.name.clone()),
        ("Id", node.metadata.uid.clone()),
        ("Machine", status.machine.clone()),
        ("Agent", format!("{agent}{}", silent.unwrap_or_default())),
        ("Drives", format!("{}, {} in operation", status.drives, status.drives_in_operation)),
    ];
    if status.cordoned {
        lines.push(("Cordoned", "its drives get no new volumes".to_owned()));
    }
    lines.extend(status.version.iter().map(|version| ("Version", version.clone())));
    lines.extend(status.address.iter().map(|address| ("Address", address.clone())));
    let labels = node.spec.labels.iter();
    lines.extend(labels.map(|(key, value)| ("Label", format!("{key}={value}"))));
    lines.extend(status.incarnation.iter().map(|start| ("Incarnation", start.clone())));
    lines.extend(status.session.iter().map(|session| ("Session", session.to_string())));
    let conditions = status.conditions.iter();
    lines.extend(conditions.map(|it| ("Condition", format!("{}: {}", it.kind, it.message))));
    (node.metadata.uid.clone(), lines)
}

async fn print_events(api: &Api, screen: &mut Screen, uid: &str) -> Result<Exit, ClientError> {
    // A device that is no drive yet has no id, and so no events of its own.
    if uid.is_empty() {
        return Ok(Exit::Done);
    }
    let mut stream = api.events(false).await?;
    let mut title = Some("\nEvents");
    while let Some(event) = api.next_event(&mut stream).await? {
        if event.about == uid {
            if let Some(title) = title.take() {
                screen.line(title)?;
            }
            screen.line(&format!("  {}", events::line(&event)))?;
        }
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_says_its_labels_and_which_agent_it_has() {
        let object = serde_json::json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "StorageNode",
            "metadata": { "name": "node-a", "uid": "1" },
            "spec": { "labels": { "zone": "z", "rack": "a" } },
            "status": {
                "ready": true, "machine": "m", "drives": 1, "drivesInOperation": 0,
                "version": "1.2.3", "address": "10.0.0.7",
            },
        });
        let lines = node(&serde_json::from_value(object).unwrap()).1;
        let titled = |wanted: &str| {
            let lines = lines.iter().filter(|(title, _)| *title == wanted);
            lines.map(|(_, text)| text.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(titled("Label"), ["rack=a", "zone=z"]);
        assert_eq!((titled("Version"), titled("Address")), (vec!["1.2.3"], vec!["10.0.0.7"]));
    }

    fn lines(status: serde_json::Value) -> Vec<String> {
        let mut object = serde_json::json!({
            "apiVersion": "hotbay.dev/v1alpha1", "kind": "Drive",
            "metadata": { "name": "d-1", "uid": "7f" }, "spec": { "inOperation": false },
            "status": {
                "node": "node-a", "state": "UnknownDevice", "sinceMs": 0,
                "goal": { "wish": "detach", "generation": 0 }, "present": true,
                "path": "/dev/sda", "deviceKind": "Block", "media": "HDD",
                "sizeBytes": 4096, "blockBytes": 512, "removalWanted": false,
            },
        });
        let all = object["status"].as_object_mut().unwrap();
        all.extend(status.as_object().unwrap().clone());
        let lines = drive(&serde_json::from_value(object).unwrap()).1;
        lines.into_iter().map(|(title, value)| format!("{title}: {value}")).collect()
    }

    #[test]
    fn what_is_known_of_a_device_is_said_and_nothing_else() {
        let told = lines(serde_json::json!({
            "bay": "4", "enclosure": "5001438024c4e8bd", "vendor": "ACME", "firmware": "0003",
            "transport": "sas", "physicalBlockBytes": 4096, "readOnly": true, "zoned": true,
            "links": ["wwn-1"], "contents": "gpt", "mounts": ["/mnt"], "holders": ["dm-0"],
            "partitions": [{ "name": "sda1", "sizeBytes": 16_777_216 }],
        }));
        for line in [
            "Bay: 4 of enclosure 5001438024c4e8bd",
            "Vendor: ACME",
            "Firmware: 0003",
            "Transport: sas",
            "Blocks: 512 bytes, 4096 on the medium",
            "Is: read-only, zoned: written in sequence",
            "Contents: gpt",
            "Partition: sda1, 16M",
            "Held by: dm-0",
            "Mounted at: /mnt",
            "Link: /dev/disk/by-id/wwn-1",
        ] {
            assert!(told.iter().any(|found| found == line), "{line} in {told:#?}");
        }
        // The answer of a registry that knows less.
        let bare = lines(serde_json::json!({}));
        assert!(bare.contains(&"Blocks: 512 bytes".to_owned()), "{bare:#?}");
        assert!(bare.contains(&"Transport: -".to_owned()), "{bare:#?}");
        assert!(!bare.iter().any(|line| line.starts_with("Is:")), "{bare:#?}");
    }
}

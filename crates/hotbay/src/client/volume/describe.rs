//! `hotbay describe volume`, and the volumes of a drive below `hotbay describe drive`.

use hotbay_api::kinds::{Volume, VolumeAttachment};
use hotbay_core::words::bytes;

use super::words;
use crate::client::api::{Api, Kind};
use crate::client::describe::Lines;
use crate::client::error::ClientError;
use crate::client::get::now_ms;
use crate::client::words::ago;

/// Everything about one volume.
pub(crate) fn lines(volume: &Volume) -> (String, Lines) {
    let status = &volume.status;
    let or_none = |text: Option<&str>| text.unwrap_or("-").to_owned();
    let since = match status.since_ms {
        0 => String::new(),
        since_ms => format!(" for {}", ago(since_ms, now_ms())),
    };
    let said = |text: &str| or_none(Some(text).filter(|text| !text.is_empty()));
    let mut lines = vec![
        ("Name", volume.metadata.name.clone()),
        ("Id", volume.metadata.uid.clone()),
        ("Size", format!("{} ({} bytes)", bytes(status.size_bytes), status.size_bytes)),
        ("State", format!("{}{since}", status.state)),
        ("Status", status.operational_status.clone()),
        ("Drive", or_none(status.drive.as_deref())),
        ("Node", or_none(status.node.as_deref())),
        ("Claim", said(&volume.spec.claim.as_deref().map(words::claim).unwrap_or_default())),
        ("Epoch", status.epoch.to_string()),
        ("Asked by", said(&status.asked_by)),
    ];
    let parameters = volume.spec.parameters.iter();
    lines.extend(parameters.map(|(name, value)| ("Parameter", format!("{name}={value}"))));
    let annotations = volume.annotations.iter();
    lines.extend(annotations.map(|(key, value)| ("Annotation", format!("{key}={value}"))));
    lines.extend(status.attachments.iter().map(|attachment| ("Used on", used_on(attachment))));
    let conditions = status.conditions.iter();
    lines.extend(conditions.map(|it| ("Condition", format!("{}: {}", it.kind, it.message))));
    (volume.metadata.uid.clone(), lines)
}

fn used_on(attachment: &VolumeAttachment) -> String {
    let VolumeAttachment { node, state, epoch, read_only, waiting_for, inaccessible } = attachment;
    let read_only = if *read_only { ", read-only" } else { "" };
    let waits = waiting_for.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    let dead = inaccessible.as_ref().map(|why| format!("; inaccessible: {why}"));
    format!("{node}, {state} under epoch {epoch}{read_only}{waits}{}", dead.unwrap_or_default())
}

/// The volumes of a drive, a line each: `pvc-11aa, 20 GiB, namespace shop, claim data-0`.
pub(crate) async fn on_drive(api: &Api, drive: &str) -> Result<Lines, ClientError> {
    let all = api.objects::<Volume>(Kind::Volume, "").await?;
    let on_it = all.iter().filter(|volume| volume.status.drive.as_deref() == Some(drive));
    let line = |volume: &Volume| {
        let mut parts = vec![volume.metadata.name.clone(), bytes(volume.status.size_bytes)];
        parts.extend(volume.spec.claim.as_deref().map(words::claim));
        match volume.status.state.as_str() {
            "Created" => {}
            state => parts.push(state.to_lowercase()),
        }
        ("Volume", parts.join(", "))
    };
    Ok(on_it.map(line).collect())
}

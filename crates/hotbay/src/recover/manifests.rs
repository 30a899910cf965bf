//! `hotbay recover --manifests`: PersistentVolumes for a Kubernetes that has lost them as well, from labels alone.
//!
//! Written by hand, so that it has comments, and is the same for the same drives.

use std::fmt::Write;

use hotbay_core::label::extents::Extent;
use hotbay_core::recover::{Plan, Reading};
use hotbay_csi::{DRIVER, TOPOLOGY_KEY};

use super::error::RecoverError;

/// Every volume, sorted by drive and id.
pub(super) fn text(plan: &Plan, storage_class: Option<&str>) -> Result<String, RecoverError> {
    if let Some(storage_class) = storage_class.filter(|name| !is_object_name(name)) {
        return Err(RecoverError::StorageClass { storage_class: storage_class.to_owned() });
    }
    let mut text = String::new();
    for read in &plan.drives {
        for parts in read.volumes().values() {
            one(&mut text, read, parts, storage_class).expect("a text takes every text");
        }
    }
    if text.is_empty() {
        text.push_str("# There are no volumes on these drives.\n");
    }
    Ok(text)
}

fn one(
    text: &mut String,
    read: &Reading,
    parts: &[&Extent],
    storage_class: Option<&str>,
) -> std::fmt::Result {
    let Extent { volume, name, claim, .. } = parts[0];
    let bytes = parts.iter().fold(0_u64, |sum, part| sum.saturating_add(part.length_bytes));
    let object = match name.as_str() {
        name if is_object_name(name) => name.to_owned(),
        _ => format!("hotbay-{volume}"),
    };
    writeln!(text, "---")?;
    writeln!(text, "# On drive {}, read as {}.", read.label.drive, quoted(&read.place()))?;
    if read.from_third_copy {
        writeln!(
            text,
            "# From the third copy of its label, which may be older than the label was."
        )?;
    }
    writeln!(text, "apiVersion: v1\nkind: PersistentVolume\nmetadata:")?;
    writeln!(text, "  name: {}", quoted(&object))?;
    writeln!(text, "spec:\n  capacity:\n    storage: \"{bytes}\"")?;
    writeln!(text, "  accessModes:\n    - ReadWriteOnce")?;
    writeln!(text, "  persistentVolumeReclaimPolicy: Retain")?;
    match storage_class {
        Some(name) => writeln!(text, "  storageClassName: {}", quoted(name))?,
        None => writeln!(text, "  # No storageClassName: the claim must have the same, or none.")?,
    }
    writeln!(text, "  # Block, if the claim asks for a raw device: labels do not tell.")?;
    writeln!(text, "  volumeMode: Filesystem")?;
    if let Some(claim) = claim {
        writeln!(text, "  claimRef:\n    apiVersion: v1\n    kind: PersistentVolumeClaim")?;
        writeln!(text, "    namespace: {}", quoted(claim.namespace()))?;
        writeln!(text, "    name: {}", quoted(claim.name()))?;
    }
    writeln!(text, "  csi:\n    driver: {DRIVER}\n    volumeHandle: \"{volume}\"")?;
    writeln!(text, "  nodeAffinity:\n    required:\n      nodeSelectorTerms:")?;
    writeln!(text, "        - matchExpressions:\n            - key: {TOPOLOGY_KEY}")?;
    writeln!(text, "              operator: In\n              values:")?;
    writeln!(text, "                - \"{}\"", read.label.node)
}

/// Whether Kubernetes takes a text as the name of an object.
fn is_object_name(text: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let piece = |piece: &str| {
        let bytes = piece.as_bytes();
        bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain)
            && bytes.iter().all(|byte| plain(byte) || *byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(piece)
}

/// A text in quotes, in plain characters: whatever a label says, it stays one line and one value.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            other => quoted.push_str(&format!("\\U{:08X}", u32::from(other))),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests;

//! Volumes in sentences: where one is, what is lost with it, and which ones stand in the way.

use hotbay_api::cms::VolumeBrief;
use hotbay_api::kinds::Volume;
use hotbay_core::words::bytes;

use crate::client::screen::plain;

/// Most volumes that are named one by one.
const NAMED: usize = 20;

/// Such as `10 GiB on d-7f3a (node-a)`.
pub(crate) fn place(volume: &Volume) -> String {
    let status = &volume.status;
    let size = bytes(status.size_bytes);
    match (&status.drive, &status.node) {
        (Some(drive), Some(node)) => plain(&format!("{size} on {drive} ({node})")),
        _ => format!("{size}, on no drive"),
    }
}

/// Such as `namespace shop, claim data-0`; empty for none.
pub(crate) fn claim(claim: &str) -> String {
    match claim.split_once('/') {
        Some((namespace, name)) => plain(&format!("namespace {namespace}, claim {name}")),
        None => plain(claim),
    }
}

/// What a deletion takes away, a line each.
pub(crate) fn what_is_lost(volume: &Volume) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", plain(&volume.metadata.name), place(volume))];
    lines.extend(volume.spec.claim.iter().map(|it| format!("  {}", claim(it))));
    let notes = volume.status.conditions.iter();
    lines.extend(notes.map(|condition| format!("  {}", plain(&condition.message))));
    lines.push("  All that is on it will be lost, and cannot be brought back.".to_owned());
    lines
}

/// The volumes that stand in the way, a line each, in columns.
pub(crate) fn in_the_way(volumes: &[VolumeBrief]) -> Vec<String> {
    let told: Vec<_> = volumes.iter().take(NAMED).map(Told::of).collect();
    let width = |of: fn(&Told) -> &str| told.iter().map(|it| of(it).chars().count()).max();
    let name = width(|it| &it.name).unwrap_or(0);
    let size = width(|it| &it.size).unwrap_or(0);
    let claim = width(|it| &it.claim).unwrap_or(0);
    let line = |it: &Told| {
        let columns = format!("{:<name$}  {:>size$}  {:<claim$}", it.name, it.size, it.claim);
        format!("{columns}  {}", it.used).trim_end().to_owned()
    };
    let mut lines: Vec<_> = told.iter().map(line).collect();
    if let Some(more) = volumes.len().checked_sub(NAMED).filter(|more| *more > 0) {
        lines.push(format!("and {more} more"));
    }
    lines
}

struct Told {
    name: String,
    size: String,
    claim: String,
    used: String,
}

impl Told {
    fn of(volume: &VolumeBrief) -> Self {
        Self {
            name: plain(&volume.name),
            size: bytes(volume.size_bytes),
            claim: if volume.claim.is_empty() { "no claim".into() } else { claim(&volume.claim) },
            used: match volume.used_on.as_slice() {
                [] => "not in use".to_owned(),
                nodes => plain(&format!("in use on {}", nodes.join(", "))),
            },
        }
    }
}

/// Some names in a sentence: `db, web and 3 more`.
pub(crate) fn names(names: &[String]) -> String {
    const SHOWN: usize = 3;
    match names.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", names[..SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brief(name: &str, gib: u64, claim: &str, used_on: &[&str]) -> VolumeBrief {
        VolumeBrief {
            name: name.into(),
            size_bytes: gib << 30,
            claim: claim.into(),
            used_on: used_on.iter().map(|node| (*node).to_owned()).collect(),
        }
    }

    #[test]
    fn what_stands_in_the_way_is_told_in_columns() {
        let volumes =
            [brief("pvc-11aa", 20, "shop/data-0", &["node-a"]), brief("scratch", 5, "", &[])];
        assert_eq!(
            in_the_way(&volumes),
            [
                "pvc-11aa  20 GiB  namespace shop, claim data-0  in use on node-a",
                "scratch    5 GiB  no claim                      not in use",
            ]
        );
        let many: Vec<_> = (0..25).map(|n| brief(&format!("v-{n}"), 1, "", &[])).collect();
        let lines = in_the_way(&many);
        assert_eq!((lines.len(), lines[20].as_str()), (21, "and 5 more"));
        let hostile = in_the_way(&[brief("a\u{1b}[2J", 1, "x/\n", &["\u{7}"])]);
        assert!(!hostile[0].chars().any(char::is_control), "{hostile:?}");
    }

    #[test]
    fn a_sentence_names_a_few() {
        let all: Vec<_> = ["a", "b", "c", "d"].iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(names(&all[..1]), "a");
        assert_eq!(names(&all[..3]), "a, b, c");
        assert_eq!(names(&all), "a, b, c and 1 more");
    }
}

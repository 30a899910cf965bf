//! Who wrote what, from the API server's log of all requests. Leases are counted apart: they are renewed by the clock,
//! whether anything happens or not.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

/// The group of Hotbay's own kinds.
const OWN: &str = "hotbay.dev";
/// A request is noted after it was answered, but soon.
const SETTLE: Duration = Duration::from_secs(1);

/// A place in the log.
#[derive(Debug)]
pub(super) struct Audit {
    log: PathBuf,
    from: u64,
}

/// How many requests that write were made, by what they wrote.
#[derive(Debug, Default)]
pub(super) struct Writes {
    by_kind: BTreeMap<String, usize>,
    pub(super) leases: usize,
    /// Requests that the server refused or that met a conflict; they are among the others.
    pub(super) failed: usize,
}

impl Audit {
    /// From here on.
    pub(super) fn from_now(log: &Path) -> anyhow::Result<Self> {
        sleep(SETTLE);
        Ok(Self { log: log.to_owned(), from: log.metadata()?.len() })
    }

    /// What these users wrote until now.
    pub(super) fn writes_of(&self, is_meant: impl Fn(&str) -> bool) -> anyhow::Result<Writes> {
        sleep(SETTLE);
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut writes = Writes::default();
        for line in BufReader::new(file).lines() {
            // The last line may be half written.
            let Ok(event) = serde_json::from_str::<Value>(&line?) else { continue };
            if event["user"]["username"].as_str().is_some_and(&is_meant) {
                writes.add(&event);
            }
        }
        Ok(writes)
    }
}

impl Writes {
    fn add(&mut self, event: &Value) {
        let verb = event["verb"].as_str().unwrap_or_default();
        if !matches!(verb, "create" | "update" | "patch" | "delete" | "deletecollection") {
            return;
        }
        let object = &event["objectRef"];
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let resource = text("resource");
        // Questions that are asked by POST.
        if resource.ends_with("reviews") || text("subresource") == "token" {
            return;
        }
        if resource == "leases" {
            self.leases += 1;
            return;
        }
        if event["responseStatus"]["code"].as_u64().is_some_and(|code| code >= 400) {
            self.failed += 1;
        }
        let kind = match text("apiGroup") {
            OWN => format!("{resource}.{OWN}"),
            _ => resource.to_owned(),
        };
        *self.by_kind.entry(kind).or_default() += 1;
    }

    /// All but Leases.
    pub(super) fn all(&self) -> usize {
        self.by_kind.values().sum()
    }

    /// Those on Hotbay's own kinds.
    pub(super) fn own(&self) -> usize {
        let own = self.by_kind.iter().filter(|(kind, _)| kind.ends_with(OWN));
        own.map(|(_, count)| count).sum()
    }

    pub(super) fn of(&self, kind: &str) -> usize {
        self.by_kind.get(kind).copied().unwrap_or_default()
    }

    pub(super) fn kinds(&self) -> impl Iterator<Item = &String> {
        self.by_kind.keys()
    }
}

impl std::fmt::Display for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let each = self.by_kind.iter().map(|(kind, count)| format!("{count} {kind}"));
        let all = each.collect::<Vec<_>>().join(", ");
        write!(f, "{}", if all.is_empty() { "none" } else { &all })?;
        if self.failed > 0 {
            write!(f, " ({} of them refused or in conflict)", self.failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn event(user: &str, verb: &str, object: &str) -> String {
        let answer = r#""responseStatus": {"code": 200}"#;
        format!(
            r#"{{"user": {{"username": "{user}"}}, "verb": "{verb}", "objectRef": {object}, {answer}}}"#
        )
    }

    #[test]
    fn writes_are_counted_by_user_and_kind_from_a_place_on() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let drive = r#"{"resource": "drives", "apiGroup": "hotbay.dev", "subresource": "status"}"#;
        writeln!(log, "{}", event("ours", "update", drive)).unwrap();
        let audit = Audit::from_now(log.path()).unwrap();
        for (user, verb) in [("ours", "update"), ("ours", "get"), ("theirs", "update")] {
            writeln!(log, "{}", event(user, verb, drive)).unwrap();
        }
        let volume = r#"{"resource": "persistentvolumes"}"#;
        writeln!(log, "{}", event("ours", "create", volume)).unwrap();
        writeln!(log, "{}", event("ours", "update", r#"{"resource": "leases"}"#)).unwrap();
        writeln!(log, "{}", event("ours", "create", r#"{"resource": "tokenreviews"}"#)).unwrap();
        write!(log, "{{").unwrap();
        let writes = audit.writes_of(|user| user == "ours").unwrap();
        assert_eq!((writes.all(), writes.own(), writes.leases, writes.failed), (2, 1, 1, 0));
        assert_eq!(writes.to_string(), "1 drives.hotbay.dev, 1 persistentvolumes");
    }
}

//! What tells one physical drive from another.
//!
//! A drive's identity is a set of evidence, not a name: a path changes over a reboot, a bay gets another drive, a
//! serial number may be missing. Two sets are compared by one rule, [`Evidence::compare`].

use serde::{Deserialize, Serialize};

/// The evidence that a machine can give of a drive without writing to it. Absent evidence is `None`, never empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Evidence {
    /// NVMe NGUID or EUI-64 of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvme: Option<String>,
    /// World wide name of a SCSI or ATA drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wwn: Option<String>,
    /// Serial number; makers repeat them between models, so it counts together with the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// For a plain file, and a loop device over one: the filesystem's id, inode number and time of birth. It
    /// survives a rename and a reboot; a copy of the file is another drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What comparing two sets of evidence says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Something that both have is equal, and nothing that both have differs.
    Same,
    /// Something that both have differs.
    Different,
    /// They have nothing in common to compare: no proof either way.
    NoProof,
}

impl Evidence {
    /// Whether two sets speak of the same drive. Anything that differs wins over anything that is equal: a cloned
    /// serial number must not make two drives one.
    pub fn compare(&self, other: &Self) -> Comparison {
        let serials = self.named_serial().zip(other.named_serial()).map(|(a, b)| a == b);
        let facts = [
            self.nvme.as_ref().zip(other.nvme.as_ref()).map(|(a, b)| a == b),
            self.wwn.as_ref().zip(other.wwn.as_ref()).map(|(a, b)| a == b),
            self.file.as_ref().zip(other.file.as_ref()).map(|(a, b)| a == b),
            serials,
        ];
        if facts.contains(&Some(false)) {
            Comparison::Different
        } else if facts.contains(&Some(true)) {
            Comparison::Same
        } else {
            Comparison::NoProof
        }
    }

    /// Each fact as one text, for an index: two sets that are the same drive share at least one.
    pub fn facts(&self) -> Vec<String> {
        let fact = |kind: &str, value: &Option<String>| {
            value.as_ref().map(|value| format!("{kind}:{value}"))
        };
        let serial = self
            .named_serial()
            .map(|(serial, model)| format!("serial:{serial}/{}", model.unwrap_or_default()));
        [fact("nvme", &self.nvme), fact("wwn", &self.wwn), fact("file", &self.file), serial]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Whether there is anything to tell this drive by.
    pub fn is_empty(&self) -> bool {
        self.nvme.is_none()
            && self.wwn.is_none()
            && self.file.is_none()
            && self.named_serial().is_none()
    }

    fn named_serial(&self) -> Option<(&str, Option<&str>)> {
        self.serial.as_deref().map(|serial| (serial, self.model.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serial(serial: &str, model: &str) -> Evidence {
        Evidence { serial: Some(serial.into()), model: Some(model.into()), ..Evidence::default() }
    }

    #[test]
    fn a_difference_outweighs_what_is_equal() {
        let one = Evidence { wwn: Some("5000c500a1".into()), ..serial("S1", "M") };
        let clone = Evidence { wwn: Some("5000c500a2".into()), ..serial("S1", "M") };
        assert_eq!(one.compare(&clone), Comparison::Different);
        assert_eq!(one.compare(&one.clone()), Comparison::Same);
        assert_eq!(one.compare(&serial("S1", "M")), Comparison::Same);
    }

    #[test]
    fn a_serial_counts_only_with_its_model() {
        assert_eq!(serial("S1", "M").compare(&serial("S1", "N")), Comparison::Different);
        assert_eq!(serial("S1", "M").compare(&Evidence::default()), Comparison::NoProof);
        assert!(Evidence { model: Some("M".into()), ..Evidence::default() }.is_empty());
    }
}

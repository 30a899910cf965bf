//! The parameters of a storage class: what each means, what is allowed, and words for what is not.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::device::Media;
use crate::label::extents::{Claim, NotAName};
use crate::words::plain;

/// Longest list of options for mkfs.
const MOST_OPTION_BYTES: usize = 1024;
/// Longest key of a group that spreads.
const MOST_KEY_BYTES: usize = 253;
/// As many nodes share a volume at most.
const MOST_SHARES: u32 = 3;

/// Every parameter that is understood, for messages and for the docs.
pub const PARAMETERS: [&str; 10] = [
    "media",
    "drive",
    "spread",
    "spreadKey",
    "fsType",
    "mkfsOptions",
    "erase",
    "maxShares",
    "maxMountReplicaCount",
    "ignoreIfInaccessible",
];

// What Kubernetes' provisioner adds by itself.
const KUBERNETES_FS_TYPE: &str = "csi.storage.k8s.io/fstype";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";

/// What a class of volumes is to be like.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Class {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media: Option<Media>,
    pub sharing: Sharing,
    pub spread: Spread,
    /// Volumes with the same key count as one group. Without one, the claims of one StatefulSet do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Filesystem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    pub erase: Erase,
    pub max_shares: u32,
    /// A pod starts although the volume is dead.
    #[serde(default)]
    pub ignore_if_inaccessible: bool,
}

/// Whether other volumes may be on the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Sharing {
    #[default]
    Shared,
    Exclusive,
}

/// Whether the volumes of a group may be on one drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Spread {
    #[default]
    None,
    /// On different drives, where there are enough.
    Preferred,
    /// On different drives, or not at all.
    Required,
}

/// When a deleted volume counts as gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Erase {
    /// As soon as nobody can reach it. Its place is zeroed before anybody else gets it.
    #[default]
    Zeroes,
    /// When its place is zeroed.
    Required,
}

/// What a volume is formatted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    #[default]
    Ext4,
    Xfs,
    Btrfs,
}

impl Filesystem {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Filesystem {
    type Err = NotAllowed;

    fn from_str(text: &str) -> Result<Self, NotAllowed> {
        one_of("fsType", text, &[("ext4", Self::Ext4), ("xfs", Self::Xfs), ("btrfs", Self::Btrfs)])
    }
}

/// All that may be said of a class, as CSI has it. They are kept with the volume as they were given.
const PARAMETERS_MAX_BYTES: usize = 4_096;

/// Why the parameters are not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAllowed {
    #[error("there is no parameter {name:?}; there are {}", PARAMETERS.join(", "))]
    Unknown { name: String },
    #[error("the parameters have {bytes} bytes in all; at most {PARAMETERS_MAX_BYTES} are allowed")]
    TooLong { bytes: usize },
    #[error("parameter {name} is {given:?}; allowed: {allowed}")]
    Value { name: &'static str, given: String, allowed: String },
    #[error("fsType says {one}, and {KUBERNETES_FS_TYPE} says {other}: give one of them")]
    TwoFilesystems { one: Filesystem, other: Filesystem },
    #[error(
        "maxMountReplicaCount is {given}: replicas of attachments are not there yet; leave it out, or give 0"
    )]
    NoReplicas { given: u32 },
    #[error("the claim cannot be noted")]
    Claim(#[from] NotAName),
}

/// A class, and for whom the volume is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub class: Class,
    pub claim: Option<Claim>,
}

impl Asked {
    pub fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, NotAllowed> {
        let bytes = parameters.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > PARAMETERS_MAX_BYTES {
            return Err(NotAllowed::TooLong { bytes });
        }
        let mut class = Class { max_shares: 1, ..Class::default() };
        let (mut by_kubernetes, mut claim_name, mut namespace, mut replicas) =
            (None, None, None, None);
        for (name, value) in parameters {
            match name.as_str() {
                "media" => class.media = Some(media(value)?),
                "drive" => {
                    let values = [("shared", Sharing::Shared), ("exclusive", Sharing::Exclusive)];
                    class.sharing = one_of("drive", value, &values)?;
                }
                "spread" => {
                    let values = [
                        ("none", Spread::None),
                        ("preferred", Spread::Preferred),
                        ("required", Spread::Required),
                    ];
                    class.spread = one_of("spread", value, &values)?;
                }
                "spreadKey" => class.spread_key = Some(key(value)?),
                "fsType" => class.filesystem = Some(value.parse()?),
                KUBERNETES_FS_TYPE => by_kubernetes = Some(value.parse()?),
                "mkfsOptions" => class.mkfs_options = options(value)?,
                "erase" => {
                    let values = [("zeroes", Erase::Zeroes), ("required", Erase::Required)];
                    class.erase = one_of("erase", value, &values)?;
                }
                "maxShares" => {
                    class.max_shares = number("maxShares", value, 1, MOST_SHARES)?;
                }
                "maxMountReplicaCount" => replicas = Some(value),
                "ignoreIfInaccessible" => {
                    let values = [("yes", true), ("no", false)];
                    class.ignore_if_inaccessible = one_of("ignoreIfInaccessible", value, &values)?;
                }
                CLAIM_NAME => claim_name = Some(value),
                CLAIM_NAMESPACE => namespace = Some(value),
                VOLUME_NAME => {}
                _ => return Err(NotAllowed::Unknown { name: plain(name) }),
            }
        }
        if let Some(given) = replicas {
            let given = number("maxMountReplicaCount", given, 0, class.max_shares - 1)?;
            if given > 0 {
                return Err(NotAllowed::NoReplicas { given });
            }
        }
        class.filesystem = match (class.filesystem, by_kubernetes) {
            (Some(one), Some(other)) if one != other => {
                return Err(NotAllowed::TwoFilesystems { one, other });
            }
            (one, other) => one.or(other),
        };
        let claim = match (namespace, claim_name) {
            (Some(namespace), Some(name)) => Some(Claim::new(namespace, name)?),
            _ => None,
        };
        Ok(Self { class, claim })
    }

    /// The group that the volume spreads with, if it spreads at all.
    pub fn group(&self) -> Option<String> {
        group(&self.class, self.claim.as_ref())
    }
}

/// The group of a volume of this class, made for this claim: its key, or the claims of one StatefulSet, which differ by
/// the number at their end.
pub fn group(class: &Class, claim: Option<&Claim>) -> Option<String> {
    if class.spread == Spread::None {
        return None;
    }
    if let Some(key) = &class.spread_key {
        return Some(key.clone());
    }
    let claim = claim?;
    let (set, ordinal) = claim.name().rsplit_once('-')?;
    let numbered = !ordinal.is_empty() && ordinal.bytes().all(|byte| byte.is_ascii_digit());
    numbered.then(|| format!("{}/{set}", claim.namespace()))
}

fn one_of<T: Copy>(
    name: &'static str,
    given: &str,
    values: &[(&'static str, T)],
) -> Result<T, NotAllowed> {
    let found = values.iter().find(|(value, _)| value.eq_ignore_ascii_case(given));
    found.map(|(_, meant)| *meant).ok_or_else(|| {
        let allowed: Vec<_> = values.iter().map(|(value, _)| *value).collect();
        NotAllowed::Value { name, given: plain(given), allowed: allowed.join(", ") }
    })
}

fn media(given: &str) -> Result<Media, NotAllowed> {
    let values =
        [("NVMe", Media::Nvme), ("SSD", Media::Ssd), ("HDD", Media::Hdd), ("File", Media::File)];
    one_of("media", given, &values)
}

fn number(name: &'static str, given: &str, least: u32, most: u32) -> Result<u32, NotAllowed> {
    let parsed = given.parse().ok().filter(|number| (least..=most).contains(number));
    parsed.ok_or_else(|| NotAllowed::Value {
        name,
        given: plain(given),
        allowed: format!("{least} to {most}"),
    })
}

fn key(given: &str) -> Result<String, NotAllowed> {
    let fits = (1..=MOST_KEY_BYTES).contains(&given.len()) && !given.chars().any(char::is_control);
    if fits {
        return Ok(given.to_owned());
    }
    let allowed = format!("1 to {MOST_KEY_BYTES} bytes, without control characters");
    Err(NotAllowed::Value { name: "spreadKey", given: plain(given), allowed })
}

/// Split at blanks: no shell ever sees them.
fn options(given: &str) -> Result<Vec<String>, NotAllowed> {
    if given.len() > MOST_OPTION_BYTES || given.chars().any(char::is_control) {
        let allowed = format!("at most {MOST_OPTION_BYTES} bytes, without control characters");
        return Err(NotAllowed::Value { name: "mkfsOptions", given: plain(given), allowed });
    }
    Ok(given.split_ascii_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<Asked, NotAllowed> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Asked::parse(&parameters.iter().map(owned).collect())
    }

    #[test]
    fn nothing_said_is_the_default() {
        let Asked { class, claim } = parse(&[]).unwrap();
        assert_eq!(class, Class { max_shares: 1, ..Class::default() });
        assert_eq!((class.sharing, class.spread, claim), (Sharing::Shared, Spread::None, None));
    }

    #[test]
    fn every_parameter_is_understood() {
        let given = [
            ("media", "nvme"),
            ("drive", "exclusive"),
            ("spread", "required"),
            ("spreadKey", "db"),
            ("fsType", "xfs"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("mkfsOptions", "-m  reflink=1"),
            ("erase", "required"),
            ("maxShares", "3"),
            ("maxMountReplicaCount", "0"),
            ("ignoreIfInaccessible", "yes"),
            ("csi.storage.k8s.io/pvc/name", "data-web-0"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pvc-1"),
        ];
        let asked = parse(&given).unwrap();
        let Asked { class, claim } = &asked;
        assert_eq!((class.media, class.sharing), (Some(Media::Nvme), Sharing::Exclusive));
        assert_eq!(class.mkfs_options, ["-m", "reflink=1"]);
        assert_eq!((class.filesystem, class.max_shares), (Some(Filesystem::Xfs), 3));
        assert_eq!((class.erase, class.ignore_if_inaccessible), (Erase::Required, true));
        assert_eq!(claim.as_ref().unwrap().name(), "data-web-0");
        assert_eq!(asked.group().as_deref(), Some("db"));
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let words = |given: &[(&str, &str)]| parse(given).unwrap_err().to_string();
        assert!(words(&[("skuName", "x")]).starts_with("there is no parameter \"skuName\""));
        assert!(words(&[("csi.storage.k8s.io/new", "x")]).contains("csi.storage.k8s.io/new"));
        assert!(words(&[("media", "tape")]).contains("NVMe, SSD, HDD"));
        assert!(words(&[("maxShares", "0")]).contains("1 to 3"));
        assert!(words(&[("maxShares", "-1")]).contains("1 to 3"));
        assert!(words(&[("maxMountReplicaCount", "1")]).contains("0 to 0"));
        let replicas = [("maxShares", "2"), ("maxMountReplicaCount", "1")];
        assert!(words(&replicas).contains("not there yet"));
        assert!(words(&[("fsType", "ntfs")]).contains("ext4, xfs, btrfs"));
        let two = [("fsType", "xfs"), ("csi.storage.k8s.io/fstype", "ext4")];
        assert!(words(&two).contains("give one of them"));
        assert!(words(&[("spreadKey", "")]).contains("1 to 253"));
        assert!(words(&[("mkfsOptions", &"x".repeat(2000))]).contains("at most 1024"));
        // What nobody looks at is kept all the same, and a record that is too long ended one leader after the other.
        for unread in [VOLUME_NAME, CLAIM_NAME] {
            assert!(words(&[(unread, &"x".repeat(600 << 10))]).contains("at most 4096"));
        }
    }

    #[test]
    fn claims_of_one_set_are_one_group() {
        let group = |name: &str, spread: &str| {
            let asked = parse(&[
                ("spread", spread),
                ("csi.storage.k8s.io/pvc/name", name),
                ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ]);
            asked.unwrap().group()
        };
        assert_eq!(group("data-web-0", "required").as_deref(), Some("shop/data-web"));
        assert_eq!(group("data-web-0", "required"), group("data-web-12", "preferred"));
        assert_eq!(group("data-web-0", "none"), None);
        assert_eq!(group("data-web", "required"), None);
        assert_eq!(group("data-web-", "required"), None);
    }
}

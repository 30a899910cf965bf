//! What a rule or a selector asks of a drive, and whether a drive is so. Filters, rules that add drives by themselves,
//! and `hotbay drive plan` all ask by this one function.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use thiserror::Error;

use super::pattern::Pattern;
use super::size::Size;
use super::unmet::Field;
use crate::device::{Media, Observed, Transport};

/// Where udev keeps the links that [`Criteria::by_id`] names; it may be left out there.
const BY_ID: &str = "/dev/disk/by-id/";

/// What is known of a drive that can be asked for.
#[derive(Debug, Clone, Copy)]
pub struct Traits<'a> {
    pub path: &'a str,
    /// The names under `/dev/disk/by-id`.
    pub links: &'a [String],
    pub vendor: Option<&'a str>,
    pub model: Option<&'a str>,
    pub transport: Transport,
    pub media: Media,
    pub size_bytes: u64,
    pub removable: bool,
}

impl<'a> From<&'a Observed> for Traits<'a> {
    fn from(device: &'a Observed) -> Self {
        Self {
            path: &device.path,
            links: &device.details.links,
            vendor: device.details.vendor.as_deref(),
            model: device.evidence.model.as_deref(),
            transport: device.details.transport,
            media: device.media,
            size_bytes: device.size_bytes,
            removable: device.details.removable,
        }
    }
}

/// Everything that is asked of a drive; what is left out is not asked. All of it must be so; of several values of one
/// field one is enough. A drive that does not tell its vendor or model fits no pattern for that.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, serde::Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "what is asked of a drive, as in { media = \"NVMe\", min-size = \"1TB\" }"
)]
pub struct Criteria {
    pub path: AnyOf<Pattern>,
    pub by_id: AnyOf<Pattern>,
    pub vendor: AnyOf<Pattern>,
    pub model: AnyOf<Pattern>,
    pub transport: AnyOf<Transport>,
    pub media: AnyOf<Media>,
    #[serde(deserialize_with = "size_field")]
    pub min_size: Option<Size>,
    #[serde(deserialize_with = "size_field")]
    pub max_size: Option<Size>,
    pub removable: Option<bool>,
}

/// One value or several, of which one is enough. None: not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnyOf<T>(pub Vec<T>);

impl<T> Default for AnyOf<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> AnyOf<T> {
    /// Whether one of them fits, or none is asked for.
    pub fn fits(&self, one: impl FnMut(&T) -> bool) -> bool {
        self.0.is_empty() || self.0.iter().any(one)
    }
}

impl Criteria {
    /// Whether a drive is all that is asked for.
    pub fn fit(&self, drive: Traits<'_>) -> bool {
        self.unmet(drive).is_none()
    }

    /// The first thing that is asked for and is not so.
    pub(super) fn unmet(&self, drive: Traits<'_>) -> Option<Field> {
        let text = |asked: &AnyOf<Pattern>, told: Option<&str>| {
            asked.fits(|pattern| told.is_some_and(|told| pattern.fits_any_case(told)))
        };
        let link = |pattern: &Pattern| drive.links.iter().any(|link| fits_link(pattern, link));
        if !self.path.fits(|pattern| pattern.fits(drive.path)) {
            Some(Field::Path)
        } else if !self.by_id.fits(link) {
            Some(Field::ById)
        } else if !text(&self.vendor, drive.vendor) {
            Some(Field::Vendor)
        } else if !text(&self.model, drive.model) {
            Some(Field::Model)
        } else if !self.transport.fits(|transport| *transport == drive.transport) {
            Some(Field::Transport)
        } else if !self.media.fits(|media| *media == drive.media) {
            Some(Field::Media)
        } else if self.min_size.is_some_and(|least| drive.size_bytes < least.0) {
            Some(Field::MinSize)
        } else if self.max_size.is_some_and(|most| drive.size_bytes > most.0) {
            Some(Field::MaxSize)
        } else if self.removable.is_some_and(|removable| removable != drive.removable) {
            Some(Field::Removable)
        } else {
            None
        }
    }
}

fn fits_link(pattern: &Pattern, link: &str) -> bool {
    let name = link.strip_prefix(BY_ID).unwrap_or(link);
    pattern.fits(name) || pattern.fits(&format!("{BY_ID}{name}"))
}

/// A word that is none of those there are.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is none of {known}")]
pub struct UnknownWord {
    text: String,
    known: String,
}

fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, UnknownWord> {
    let found = words.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(name, _)| *name).collect();
        UnknownWord { text: text.to_owned(), known: known.join(", ") }
    })
}

const TRANSPORTS: [(&str, Transport); 10] = [
    ("nvme", Transport::Nvme),
    ("sata", Transport::Sata),
    ("sas", Transport::Sas),
    ("usb", Transport::Usb),
    ("virtio", Transport::Virtio),
    ("iscsi", Transport::Iscsi),
    ("fc", Transport::Fc),
    ("mmc", Transport::Mmc),
    ("file", Transport::File),
    ("unknown", Transport::Unknown),
];

const MEDIA: [(&str, Media); 5] = [
    ("NVMe", Media::Nvme),
    ("SSD", Media::Ssd),
    ("HDD", Media::Hdd),
    ("File", Media::File),
    ("Unknown", Media::Unknown),
];

fn name<T: PartialEq>(value: &T, words: &'static [(&'static str, T)]) -> &'static str {
    words.iter().find(|(_, known)| known == value).expect("every one has a word").0
}

/// The word for it in rules.
pub(super) fn transport_name(transport: Transport) -> &'static str {
    name(&transport, &TRANSPORTS)
}

/// The word for it in rules.
pub(super) fn media_name(media: Media) -> &'static str {
    name(&media, &MEDIA)
}

impl FromStr for Transport {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        word(text, &TRANSPORTS)
    }
}

impl FromStr for Media {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        word(text, &MEDIA)
    }
}

impl<'de, T> Deserialize<'de> for AnyOf<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Texts(PhantomData))
    }
}

struct Texts<T>(PhantomData<T>);

impl<'de, T> Visitor<'de> for Texts<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    type Value = AnyOf<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text in quotes, or a list of them: [\"...\", \"...\"]")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map(|one| AnyOf(vec![one])).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            values.push(text.parse().map_err(de::Error::custom)?);
        }
        if values.is_empty() {
            // "Any of none" would fit nothing, and is hardly what anybody means.
            return Err(de::Error::custom("the list is empty; leave the field out"));
        }
        Ok(AnyOf(values))
    }
}

/// Reads a field that is a size.
pub(crate) fn size_field<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Size>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn criteria(json: serde_json::Value) -> Criteria {
        serde_json::from_value(json).unwrap()
    }

    const DRIVE: Traits<'_> = Traits {
        path: "/dev/nvme0n1",
        links: &[],
        vendor: None,
        model: Some("ACME NV-2000"),
        transport: Transport::Nvme,
        media: Media::Nvme,
        size_bytes: 2_000_398_934_016,
        removable: false,
    };

    #[test]
    fn all_that_is_asked_must_be_so() {
        for (asked, fits) in [
            (serde_json::json!({}), true),
            (serde_json::json!({ "media": "nvme" }), true),
            (serde_json::json!({ "media": ["SSD", "NVMe"], "transport": "nvme" }), true),
            (serde_json::json!({ "media": "NVMe", "transport": "usb" }), false),
            (serde_json::json!({ "path": "/dev/nvme*" }), true),
            (serde_json::json!({ "path": "/dev/NVME*" }), false),
            (serde_json::json!({ "model": ["other", "acme *"] }), true),
            (serde_json::json!({ "vendor": "*" }), false),
            (serde_json::json!({ "min-size": "2TB", "max-size": "2TiB" }), true),
            (serde_json::json!({ "min-size": "2TiB" }), false),
            (serde_json::json!({ "max-size": "2TB" }), false),
            (serde_json::json!({ "removable": true }), false),
            (serde_json::json!({ "by-id": "*" }), false),
        ] {
            assert_eq!(criteria(asked.clone()).fit(DRIVE), fits, "{asked}");
        }
    }

    #[test]
    fn a_link_is_named_with_its_folder_or_without() {
        for link in ["wwn-0x5000c500a1", "/dev/disk/by-id/wwn-0x5000c500a1"] {
            let links = [link.to_owned()];
            let drive = Traits { links: &links, ..DRIVE };
            for pattern in ["wwn-*", "/dev/disk/by-id/wwn-*a1"] {
                let asked = criteria(serde_json::json!({ "by-id": pattern }));
                assert!(asked.fit(drive) && !asked.fit(DRIVE), "{pattern} {link}");
            }
        }
    }

    #[test]
    fn what_cannot_be_asked_is_refused_in_words() {
        for (asked, words) in [
            (serde_json::json!({ "media": "tape" }), "\"tape\" is none of NVMe, SSD, HDD, File"),
            (serde_json::json!({ "min-size": "big" }), "\"big\" is no size"),
            (serde_json::json!({ "model": [] }), "the list is empty"),
            (serde_json::json!({ "model": "a[" }), "[ that is not closed"),
            (
                serde_json::json!({ "colour": "red" }),
                "unknown field `colour`, expected one of `path`",
            ),
            (serde_json::json!({ "model": 5 }), "expected a text in quotes"),
        ] {
            let error = serde_json::from_value::<Criteria>(asked).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

//! Why a drive does not fit a rule, and what a rule asks for, in words: for people who wonder which rule decided.
//! `hotbay drive explain` shows both.

use std::fmt;

use super::criteria::{AnyOf, Criteria, Traits, media_name, transport_name};
use super::pattern::Pattern;
use super::size::Size;
use crate::words::bytes;

/// One thing that criteria can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Path,
    ById,
    Vendor,
    Model,
    Transport,
    Media,
    MinSize,
    MaxSize,
    Removable,
}

impl Criteria {
    /// The first thing that is asked for and is not so, in words.
    pub fn why_not(&self, drive: Traits<'_>) -> Option<String> {
        let told = |text: Option<&str>| text.map_or("not told".to_owned(), str::to_owned);
        let field = self.unmet(drive)?;
        let (what, is, least) = match field {
            Field::Path => ("path", drive.path.to_owned(), ""),
            Field::ById if drive.links.is_empty() => ("by-id", told(None), ""),
            Field::ById => ("by-id", drive.links.join(", "), ""),
            Field::Vendor => ("vendor", told(drive.vendor), ""),
            Field::Model => ("model", told(drive.model), ""),
            Field::Transport => ("transport", transport_name(drive.transport).to_owned(), ""),
            Field::Media => ("media", media_name(drive.media).to_owned(), ""),
            Field::MinSize => ("size", bytes(drive.size_bytes), "at least "),
            Field::MaxSize => ("size", bytes(drive.size_bytes), "at most "),
            Field::Removable => ("removable", drive.removable.to_string(), ""),
        };
        let asked = self.asked(field).unwrap_or_default().join(" or ");
        Some(format!("{what} is {is}, and {least}{asked} is asked for"))
    }

    /// The values that are asked for in a field; `None`: it is not asked for.
    fn asked(&self, field: Field) -> Option<Vec<String>> {
        fn texts<T>(asked: &AnyOf<T>, text: impl Fn(&T) -> String) -> Option<Vec<String>> {
            (!asked.0.is_empty()).then(|| asked.0.iter().map(text).collect())
        }
        let patterns = |asked| texts(asked, Pattern::to_string);
        let size = |asked: Option<Size>| asked.map(|size| vec![size.to_string()]);
        match field {
            Field::Path => patterns(&self.path),
            Field::ById => patterns(&self.by_id),
            Field::Vendor => patterns(&self.vendor),
            Field::Model => patterns(&self.model),
            Field::Transport => texts(&self.transport, |it| transport_name(*it).to_owned()),
            Field::Media => texts(&self.media, |it| media_name(*it).to_owned()),
            Field::MinSize => size(self.min_size),
            Field::MaxSize => size(self.max_size),
            Field::Removable => self.removable.map(|removable| vec![removable.to_string()]),
        }
    }
}

impl Field {
    const ALL: [Self; 9] = [
        Self::Path,
        Self::ById,
        Self::Vendor,
        Self::Model,
        Self::Transport,
        Self::Media,
        Self::MinSize,
        Self::MaxSize,
        Self::Removable,
    ];

    /// As it is written.
    const fn name(self) -> &'static str {
        match self {
            Self::Path => "path",
            Self::ById => "by-id",
            Self::Vendor => "vendor",
            Self::Model => "model",
            Self::Transport => "transport",
            Self::Media => "media",
            Self::MinSize => "min-size",
            Self::MaxSize => "max-size",
            Self::Removable => "removable",
        }
    }
}

impl fmt::Display for Criteria {
    /// As they are written in a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = Field::ALL.into_iter().filter_map(|field| Some((field, self.asked(field)?)));
        let written = asked.map(|(field, values)| {
            let name = field.name();
            match values.as_slice() {
                [one] if field == Field::Removable => format!("{name} = {one}"),
                [one] => format!("{name} = {one:?}"),
                several => format!("{name} = {several:?}"),
            }
        });
        let written: Vec<_> = written.collect();
        if written.is_empty() {
            f.write_str("{}")
        } else {
            write!(f, "{{ {} }}", written.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::device::{Media, Transport};

    const LINKS: [String; 0] = [];

    const DRIVE: Traits<'_> = Traits {
        path: "/dev/sda",
        links: &LINKS,
        vendor: None,
        model: Some("HD-1"),
        transport: Transport::Sata,
        media: Media::Hdd,
        size_bytes: 3 << 40,
        removable: false,
    };

    fn criteria(json: serde_json::Value) -> Criteria {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_first_thing_that_is_not_so_is_told() {
        for (asked, why) in [
            (json!({ "path": "/dev/nv*" }), "path is /dev/sda, and /dev/nv* is asked for"),
            (json!({ "by-id": "wwn-*" }), "by-id is not told, and wwn-* is asked for"),
            (json!({ "vendor": "A" }), "vendor is not told, and A is asked for"),
            (json!({ "model": "X", "media": "SSD" }), "model is HD-1, and X is asked for"),
            (json!({ "transport": "usb" }), "transport is sata, and usb is asked for"),
            (json!({ "media": ["nvme", "ssd"] }), "media is HDD, and NVMe or SSD is asked for"),
            (json!({ "min-size": "4TB" }), "size is 3 TiB, and at least 4TB is asked for"),
            (json!({ "max-size": "1TiB" }), "size is 3 TiB, and at most 1TiB is asked for"),
            (json!({ "removable": true }), "removable is false, and true is asked for"),
        ] {
            assert_eq!(criteria(asked).why_not(DRIVE).as_deref(), Some(why));
        }
        assert_eq!(criteria(json!({ "media": "HDD", "model": "hd-*" })).why_not(DRIVE), None);
        let links = ["wwn-1".to_owned(), "ata-1".to_owned()];
        let why = criteria(json!({ "by-id": "x" })).why_not(Traits { links: &links, ..DRIVE });
        assert_eq!(why.as_deref(), Some("by-id is wwn-1, ata-1, and x is asked for"));
    }

    #[test]
    fn criteria_are_told_as_they_are_written() {
        assert_eq!(criteria(json!({})).to_string(), "{}");
        let all = json!({
            "path": "/dev/sd?", "by-id": ["a*", "b*"], "vendor": "ACME", "model": "x\"y", "transport": "usb",
            "media": ["NVMe", "ssd"], "min-size": "960GB", "max-size": "2TiB", "removable": true,
        });
        let written = criteria(all).to_string();
        assert_eq!(
            written,
            "{ path = \"/dev/sd?\", by-id = [\"a*\", \"b*\"], vendor = \"ACME\", model = \"x\\\"y\", \
             transport = \"usb\", media = [\"NVMe\", \"SSD\"], min-size = \"960GB\", max-size = \"2TiB\", \
             removable = true }"
        );
    }
}

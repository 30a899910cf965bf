//! The rules of `[[auto-add]]`: tables of the file, unlike all other settings. `hotbay up` hands each to its registry
//! as it is written, because that reads no file of its own.

use std::str::FromStr;

use hotbay_core::cluster::AutoAddRule;
use serde::{Deserialize, Deserializer};

/// The table's name.
pub(crate) const TABLE: &str = "auto-add";

/// What can stand in it.
pub(super) const FIELDS: [&str; 8] =
    ["name", "node", "node-labels", "media", "vendor", "model", "min-size", "max-size"];

/// What the manual says about it.
pub(crate) const TEXT: &str = "\
    New drives that the registry of hotbay up puts into operation by itself; may be repeated, and there is none unless \
    it is written. A rule takes only drives that are provably empty and that nobody has asked anything of before: what \
    a person has removed stays out. name is shown as who asked; node, media, vendor and model are patterns or values, \
    or lists of them; node-labels are labels that the node must have, as in { rack = \"a\" }; min-size and max-size \
    are sizes such as 960GB (powers of ten) or 1TiB (powers of two). All that is given must fit. Read when the \
    registry starts.";

/// One rule, and how it was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToldRule {
    pub(crate) rule: AutoAddRule,
    pub(crate) json: String,
}

impl FromStr for ToldRule {
    type Err = serde_json::Error;

    fn from_str(json: &str) -> Result<Self, Self::Err> {
        Ok(Self { rule: serde_json::from_str(json)?, json: json.to_owned() })
    }
}

/// The rules alone, as they are written in a file that has been checked.
#[derive(Debug, Deserialize)]
struct Written {
    #[serde(default, rename = "auto-add")]
    rules: Vec<toml::Table>,
}

/// The rules of a file that has been checked.
pub(super) fn told(text: &str) -> Vec<ToldRule> {
    const CHECKED: &str = "checked when the file was read";
    let written: Written = toml::from_str(text).expect(CHECKED);
    let told = written.rules.iter().map(|rule| {
        let json =
            serde_json::to_string(rule).expect("texts, lists and tables of them become JSON");
        json.parse().expect(CHECKED)
    });
    told.collect()
}

/// Reads the rules, and refuses a name that two of them have.
pub(super) fn checked<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<AutoAddRule>, D::Error> {
    let rules = Vec::<AutoAddRule>::deserialize(deserializer)?;
    let mut names: Vec<_> = rules.iter().map(|rule| &rule.name).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(serde::de::Error::custom(format!("two rules are named {}", pair[0]))),
        None => Ok(rules),
    }
}

//! Which devices of a machine Hotbay may use at all, by rules that people write. An agent lets every device that it
//! finds pass through them; one that is left out is shown, and says so, and cannot be added.
//!
//! The rules are looked at in their order, and the first one that fits a device decides. If none fits, the device is
//! included, unless there is a rule that includes: whoever lists what they want does not want the rest.

mod criteria;
mod pattern;
mod size;
mod unmet;
mod verdict;

use std::fmt;

use serde::Deserialize;
use thiserror::Error;

pub(crate) use criteria::size_field;
pub use criteria::{AnyOf, Criteria, Traits, UnknownWord};
pub use pattern::{NotAPattern, Pattern};
pub use size::{NotASize, Size};
pub use verdict::{FilterVerdict, RuleTold};

use crate::device::{Denied, Observed};

/// Longest name of a rule, in characters.
const NAME_LIMIT: usize = 64;

/// The rules of one machine, in order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Filters {
    Rules(Vec<Rule>),
    /// There are rules, but they cannot be read: nothing is included, because nobody knows what they leave out.
    Unusable,
}

impl Default for Filters {
    fn default() -> Self {
        Self::Rules(Vec::new())
    }
}

/// One rule: what it does with the devices that fit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "Written")]
pub struct Rule {
    /// What people call it; without a name it is known by its place.
    pub name: Option<RuleName>,
    pub includes: bool,
    pub criteria: Criteria,
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a rule, with include or exclude")]
struct Written {
    name: Option<RuleName>,
    include: Option<Criteria>,
    exclude: Option<Criteria>,
}

/// Why a rule is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotARule {
    #[error("a rule either includes or excludes; make two of it")]
    Both,
    #[error("a rule has include = {{ ... }} or exclude = {{ ... }}")]
    Neither,
}

impl TryFrom<Written> for Rule {
    type Error = NotARule;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written { name, include, exclude } = written;
        match (include, exclude) {
            (Some(criteria), None) => Ok(Self { name, includes: true, criteria }),
            (None, Some(criteria)) => Ok(Self { name, includes: false, criteria }),
            (Some(_), Some(_)) => Err(NotARule::Both),
            (None, None) => Err(NotARule::Neither),
        }
    }
}

/// What a rule is called: it stands in tables, events and logs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct RuleName(String);

/// Why a text cannot be a rule's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a rule's name has 1 to {NAME_LIMIT} letters, digits, spaces and any of - _ . /")]
pub struct NotARuleName;

impl TryFrom<String> for RuleName {
    type Error = NotARuleName;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fits = |c: char| c.is_alphanumeric() || " -_./".contains(c);
        let length = text.chars().count();
        let good = (1..=NAME_LIMIT).contains(&length) && text.chars().all(fits);
        if good && text.trim() == text { Ok(Self(text)) } else { Err(NotARuleName) }
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What becomes of a device, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub included: bool,
    pub by: By,
}

/// What decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    Rule(RuleName),
    /// A rule without a name, counted from 1.
    Place(usize),
    /// No rule fits, and there are some that include.
    NoInclude,
    /// No rule fits, and none includes.
    Default,
    Unusable,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => name.fmt(f),
            Self::Place(number) => write!(f, "rule {number}"),
            Self::NoInclude => f.write_str("no include rule fits"),
            Self::Default => f.write_str("no rule fits"),
            Self::Unusable => f.write_str("the filter file cannot be used"),
        }
    }
}

/// The rule that decides about a device, by its place in the list.
fn deciding(filters: &Filters, device: &Observed) -> Option<usize> {
    match filters {
        Filters::Unusable => None,
        Filters::Rules(rules) => rules.iter().position(|rule| rule.criteria.fit(device.into())),
    }
}

/// What comes of the rule that decides, or of there being none.
fn decision(filters: &Filters, decided: Option<usize>) -> Decision {
    let rules = match filters {
        Filters::Unusable => return Decision { included: false, by: By::Unusable },
        Filters::Rules(rules) => rules,
    };
    match decided {
        Some(at) => {
            let Rule { name, includes, .. } = &rules[at];
            let by = name.clone().map_or(By::Place(at + 1), By::Rule);
            Decision { included: *includes, by }
        }
        None if rules.iter().any(|rule| rule.includes) => {
            Decision { included: false, by: By::NoInclude }
        }
        None => Decision { included: true, by: By::Default },
    }
}

/// Decides about one device.
pub fn decide(filters: &Filters, device: &Observed) -> Decision {
    decision(filters, deciding(filters, device))
}

/// Decides about a device and notes it there, with the rule: one that is left out is denied, one that is included is
/// not any more.
pub fn apply(filters: &Filters, device: &mut Observed) {
    device.denied.retain(|denied| !is_filtered(denied));
    let decided = deciding(filters, device);
    let Decision { included, by } = decision(filters, decided);
    if !included {
        device.denied.push(Denied::Filtered { rule: by.to_string() });
    }
    device.details.filter = verdict::told(filters, decided).map(Box::new);
}

/// Whether a drive is denied by a filter.
pub fn is_filtered(denied: &Denied) -> bool {
    matches!(denied, Denied::Filtered { .. })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::testing::device;
    use crate::device::{Details, Transport};

    fn filters(rules: serde_json::Value) -> Filters {
        Filters::Rules(serde_json::from_value(rules).unwrap())
    }

    fn usb() -> Observed {
        let details = Details { transport: Transport::Usb, ..Details::default() };
        Observed { details: Box::new(details), ..device("S1") }
    }

    fn decided(filters: &Filters, device: &Observed) -> (bool, String) {
        let Decision { included, by } = decide(filters, device);
        (included, by.to_string())
    }

    #[test]
    fn without_rules_everything_is_included() {
        assert_eq!(decided(&Filters::default(), &usb()), (true, "no rule fits".into()));
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let keep = json!({ "name": "keep", "include": { "path": "/dev/sd*" } });
        let drop = json!({ "name": "no-usb", "exclude": { "transport": "usb" } });
        let kept = filters(json!([keep, drop]));
        assert_eq!(decided(&kept, &usb()), (true, "keep".into()));
        let dropped = filters(json!([drop, keep]));
        assert_eq!(decided(&dropped, &usb()), (false, "no-usb".into()));
        assert_eq!(decided(&dropped, &device("S1")), (true, "keep".into()));
    }

    #[test]
    fn whoever_lists_what_they_want_does_not_want_the_rest() {
        let only_nvme = filters(json!([{ "include": { "media": "NVMe" } }]));
        assert_eq!(decided(&only_nvme, &usb()), (false, "no include rule fits".into()));
        let no_usb = filters(json!([{ "exclude": { "transport": "usb" } }]));
        assert_eq!(decided(&no_usb, &device("S1")), (true, "no rule fits".into()));
        assert_eq!(decided(&no_usb, &usb()), (false, "rule 1".into()));
    }

    #[test]
    fn rules_that_cannot_be_read_include_nothing() {
        assert!(!decide(&Filters::Unusable, &device("S1")).included);
    }

    #[test]
    fn a_decision_is_noted_once_and_taken_back() {
        let no_usb = filters(json!([{ "name": "no-usb", "exclude": { "transport": "usb" } }]));
        let mut device = Observed { denied: vec![Denied::ReadOnly], ..usb() };
        apply(&no_usb, &mut device);
        apply(&no_usb, &mut device);
        let filtered = Denied::Filtered { rule: "no-usb".into() };
        assert_eq!(device.denied, [Denied::ReadOnly, filtered]);
        apply(&Filters::default(), &mut device);
        assert_eq!(device.denied, [Denied::ReadOnly]);
    }

    #[test]
    fn the_rule_that_decided_is_told_in_every_case() {
        let told = |rules: serde_json::Value, mut device: Observed| {
            apply(&filters(rules), &mut device);
            device.details.filter
        };
        let no_usb = json!({ "name": "no-usb", "exclude": { "transport": "usb" } });
        let nvme = json!({ "include": { "media": "NVMe" } });
        let large = json!({ "name": "large", "include": { "min-size": "1TB" } });
        let words = |rules: &[RuleTold]| {
            rules.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };

        let excluded = told(json!([nvme, no_usb]), usb()).unwrap();
        let by = excluded.rule.unwrap();
        assert!(!excluded.included);
        assert_eq!(by.to_string(), "rule 2 (no-usb): exclude = { transport = \"usb\" }");

        let included = told(json!([no_usb, { "include": { "media": "SSD" } }]), device("S1"));
        let included = included.unwrap();
        assert!(included.included);
        assert_eq!(included.rule.unwrap().to_string(), "rule 2: include = { media = \"SSD\" }");

        let by_none = told(json!([nvme, no_usb, large]), device("S1")).unwrap();
        assert!(!by_none.included && by_none.rule.is_none());
        assert_eq!(
            words(&by_none.not_included_by),
            "rule 1: include = { media = \"NVMe\" }; rule 3 (large): include = { min-size = \"1TB\" }"
        );

        let by_default = told(json!([no_usb]), device("S1")).unwrap();
        assert!(by_default.included && by_default.rule.is_none());
        assert!(by_default.not_included_by.is_empty());
        assert_eq!(told(json!([]), device("S1")), None);
        let mut unusable = device("S1");
        apply(&Filters::Unusable, &mut unusable);
        assert_eq!(unusable.details.filter, None);
    }

    #[test]
    fn what_is_told_of_many_long_rules_stays_short() {
        let long = json!({ "include": { "model": vec!["x".repeat(200); 50] } });
        let mut device = device("S1");
        apply(&filters(json!(vec![long; 1_000])), &mut device);
        let told = serde_json::to_string(&device.details.filter).unwrap();
        assert!(told.len() < 8_000, "{}", told.len());
    }

    #[test]
    fn a_rule_includes_or_excludes() {
        for (rule, words) in [
            (json!({ "name": "x" }), "include = { ... } or exclude = { ... }"),
            (json!({ "include": {}, "exclude": {} }), "either includes or excludes"),
            (json!({ "name": "", "include": {} }), "a rule's name has 1 to 64"),
            (json!({ "name": "a\u{1b}", "include": {} }), "a rule's name has 1 to 64"),
            (json!({ "exclude": {}, "model": "x" }), "unknown field `model`"),
        ] {
            let error = serde_json::from_value::<Rule>(rule).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

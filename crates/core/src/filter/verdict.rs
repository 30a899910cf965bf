//! Which filter decided about a device, kept with the device so that people are told: `status.filter` of a Drive.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Filters, Rule};

/// How many rules are named that include and do not fit.
const RULES_TOLD: usize = 16;
/// How much of a rule is told, in characters.
const TEXT_LIMIT: usize = 240;

/// What the filters of a machine say about a device.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FilterVerdict {
    /// The drive is one of those that can be added.
    pub included: bool,
    /// The rule that fits, and so decides. None: no rule fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleTold>,
    /// The rules that include, if that is why it is left out: it is nothing that they ask for. Not more than 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_included_by: Vec<RuleTold>,
}

/// A rule, for people.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RuleTold {
    /// Its place in the file, from 1.
    pub number: usize,
    /// What people call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it asks for, as it is written.
    pub text: String,
}

impl RuleTold {
    fn of((at, rule): (usize, &Rule)) -> Self {
        let Rule { name, includes, criteria } = rule;
        let verb = if *includes { "include" } else { "exclude" };
        let text = format!("{verb} = {criteria}");
        let text = match text.char_indices().nth(TEXT_LIMIT) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        };
        Self { number: at + 1, name: name.as_ref().map(ToString::to_string), text }
    }
}

impl fmt::Display for RuleTold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, name, text } = self;
        match name {
            Some(name) => write!(f, "rule {number} ({name}): {text}"),
            None => write!(f, "rule {number}: {text}"),
        }
    }
}

/// What is told of a decision: the rule at `decided`, or none. Without rules there is nothing to tell.
pub(super) fn told(filters: &Filters, decided: Option<usize>) -> Option<FilterVerdict> {
    let rules = match filters {
        Filters::Rules(rules) if !rules.is_empty() => rules,
        Filters::Rules(_) | Filters::Unusable => return None,
    };
    if let Some(at) = decided {
        let rule = Some(RuleTold::of((at, &rules[at])));
        let included = rules[at].includes;
        return Some(FilterVerdict { included, rule, not_included_by: Vec::new() });
    }
    let including = rules.iter().enumerate().filter(|(_, rule)| rule.includes);
    let not_included_by: Vec<_> = including.take(RULES_TOLD).map(RuleTold::of).collect();
    Some(FilterVerdict { included: not_included_by.is_empty(), rule: None, not_included_by })
}

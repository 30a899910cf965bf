//! Labels of nodes: what people say about a machine, such as its rack, so that rules can ask for it. Written like those
//! of Kubernetes, so that the same words serve in both places. Not the label on a drive, which is [`crate::label`].
//!
//! The registry keeps them in a node's record and decides by them; clients and the wire make values of texts here.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest name in a key, and longest value, in characters.
const NAME_LIMIT: usize = 63;
/// Longest prefix of a key, in characters.
const PREFIX_LIMIT: usize = 253;
/// How many labels a node may have.
pub const LABELS_LIMIT: usize = 64;

/// The key of a label: a name, or a name behind a prefix, as in `example.com/rack`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelKey(String);

/// The value of a label. May be empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelValue(String);

/// Why a text is no label.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotALabel {
    #[error("{key:?} is no key of a label: {why}")]
    Key { key: String, why: WhyNot },
    #[error("{value:?} is no value of a label: {why}")]
    Value { value: String, why: WhyNot },
    #[error("{text:?} is no label; write it as KEY=VALUE")]
    NoValue { text: String },
    #[error("{text:?} is neither KEY=VALUE, which sets a label, nor KEY-, which removes one")]
    NoChange { text: String },
    #[error("the label {key} is given twice; give it once")]
    Twice { key: LabelKey },
    #[error("no label is given; write KEY=VALUE to set one, or KEY- to remove it")]
    Nothing,
    #[error("a node has at most {LABELS_LIMIT} labels")]
    TooMany,
}

/// What is wrong with a part of a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WhyNot {
    #[error("it has no name")]
    Empty,
    #[error("there are more than {NAME_LIMIT} characters{}", if *.in_key { " in its name" } else { "" })]
    Long { in_key: bool },
    #[error(
        "it has letters, digits and any of - _ . alone, and begins and ends with a letter or a digit"
    )]
    Characters,
    #[error(
        "what stands before the / is a domain in small letters, such as example.com, with at most {PREFIX_LIMIT} \
         characters"
    )]
    Prefix,
}

impl FromStr for LabelKey {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why| NotALabel::Key { key: text.to_owned(), why };
        let name = match text.split_once('/') {
            Some((prefix, _)) if !is_domain(prefix) => return Err(wrong(WhyNot::Prefix)),
            Some((_, name)) => name,
            None => text,
        };
        match name.chars().count() {
            0 => Err(wrong(WhyNot::Empty)),
            length if length > NAME_LIMIT => Err(wrong(WhyNot::Long { in_key: true })),
            _ if !is_name(name) => Err(wrong(WhyNot::Characters)),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl FromStr for LabelValue {
    type Err = NotALabel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |why| NotALabel::Value { value: text.to_owned(), why };
        match text.chars().count() {
            0 => Ok(Self(String::new())),
            length if length > NAME_LIMIT => Err(wrong(WhyNot::Long { in_key: false })),
            _ if !is_name(text) => Err(wrong(WhyNot::Characters)),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

fn is_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let at_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    at_end(bytes.first()) && at_end(bytes.last()) && bytes.iter().copied().all(inside)
}

fn is_domain(text: &str) -> bool {
    let small = |byte: u8| !byte.is_ascii_uppercase() && byte != b'_';
    text.len() <= PREFIX_LIMIT && text.bytes().all(small) && text.split('.').all(is_name)
}

macro_rules! text_type {
    ($name:ident) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotALabel;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

text_type!(LabelKey);
text_type!(LabelValue);

impl Borrow<str> for LabelKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// The labels of a node, or those that a rule asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeLabels(BTreeMap<LabelKey, LabelValue>);

impl NodeLabels {
    /// Takes pairs, none of them twice.
    pub fn of_pairs<K: AsRef<str>, V: AsRef<str>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, NotALabel> {
        let mut labels = BTreeMap::new();
        for (key, value) in pairs {
            let key: LabelKey = key.as_ref().parse()?;
            if labels.insert(key.clone(), value.as_ref().parse()?).is_some() {
                return Err(NotALabel::Twice { key });
            }
        }
        if labels.len() > LABELS_LIMIT { Err(NotALabel::TooMany) } else { Ok(Self(labels)) }
    }

    /// Takes texts like `rack=a`.
    pub fn of_texts<T: AsRef<str>>(texts: &[T]) -> Result<Self, NotALabel> {
        let pair = |text: &'_ T| -> Result<(String, String), NotALabel> {
            let text = text.as_ref();
            let no_value = || NotALabel::NoValue { text: text.to_owned() };
            let (key, value) = text.split_once('=').ok_or_else(no_value)?;
            Ok((key.to_owned(), value.to_owned()))
        };
        let pairs: Vec<_> = texts.iter().map(pair).collect::<Result<_, _>>()?;
        Self::of_pairs(pairs)
    }

    /// As keys and values, for messages.
    pub fn to_texts(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn get(&self, key: &str) -> Option<&LabelValue> {
        self.0.get(key)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&LabelKey, &LabelValue)> {
        self.0.iter()
    }
}

impl fmt::Display for NodeLabels {
    /// As they are given on a command line, with commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (key, value)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{key}={value}")?;
        }
        Ok(())
    }
}

/// What is to become of a node's labels: some are set, some removed, the rest stays.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LabelChange {
    set: NodeLabels,
    remove: BTreeSet<LabelKey>,
    /// A label that has another value may be changed.
    overwrite: bool,
}

impl LabelChange {
    /// Takes what is set and what is removed; none is both, and there is something.
    pub fn new(
        set: NodeLabels,
        remove: BTreeSet<LabelKey>,
        overwrite: bool,
    ) -> Result<Self, NotALabel> {
        if set.is_empty() && remove.is_empty() {
            return Err(NotALabel::Nothing);
        }
        match remove.iter().find(|key| set.0.contains_key(*key)) {
            Some(key) => Err(NotALabel::Twice { key: key.clone() }),
            None => Ok(Self { set, remove, overwrite }),
        }
    }

    /// Takes texts like `rack=a` and `rack-`.
    pub fn of_texts<T: AsRef<str>>(texts: &[T], overwrite: bool) -> Result<Self, NotALabel> {
        let (mut set, mut remove) = (Vec::new(), BTreeSet::new());
        for text in texts.iter().map(AsRef::as_ref) {
            match (text.contains('='), text.strip_suffix('-')) {
                (true, _) => set.push(text),
                (false, Some(key)) => {
                    let key: LabelKey = key.parse()?;
                    if !remove.insert(key.clone()) {
                        return Err(NotALabel::Twice { key });
                    }
                }
                (false, None) => return Err(NotALabel::NoChange { text: text.to_owned() }),
            }
        }
        Self::new(NodeLabels::of_texts(&set)?, remove, overwrite)
    }

    pub fn set(&self) -> &NodeLabels {
        &self.set
    }

    pub fn remove(&self) -> impl Iterator<Item = &LabelKey> {
        self.remove.iter()
    }

    pub fn overwrites(&self) -> bool {
        self.overwrite
    }

    /// The labels that come of it. Refused: those that have another value, unless they may be changed.
    pub(crate) fn applied_to(&self, labels: &NodeLabels) -> Result<NodeLabels, NodeLabels> {
        let taken = |key: &LabelKey, value: &LabelValue| {
            labels.0.get(key).filter(|now| *now != value && !self.overwrite)
        };
        let others = self
            .set
            .0
            .iter()
            .filter_map(|(key, value)| taken(key, value).map(|now| (key.clone(), now.clone())));
        let others: BTreeMap<_, _> = others.collect();
        if !others.is_empty() {
            return Err(NodeLabels(others));
        }
        let mut labels = labels.clone();
        labels.0.retain(|key, _| !self.remove.contains(key));
        labels.0.extend(self.set.0.clone());
        Ok(labels)
    }
}

/// What has changed from one set of labels to another, in words: `rack=b (was a), zone removed`.
pub(crate) fn difference(before: &NodeLabels, after: &NodeLabels) -> String {
    let set = after.0.iter().filter_map(|(key, value)| match before.0.get(key) {
        Some(now) if now == value => None,
        Some(now) => Some(format!("{key}={value} (was {now})")),
        None => Some(format!("{key}={value}")),
    });
    let gone = before.0.keys().filter(|key| !after.0.contains_key(*key));
    let words: Vec<_> = set.chain(gone.map(|key| format!("{key} removed"))).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(texts: &[&str]) -> NodeLabels {
        NodeLabels::of_texts(texts).unwrap()
    }

    fn applied(change: &[&str], overwrite: bool, to: &[&str]) -> Result<String, String> {
        let change = LabelChange::of_texts(change, overwrite).unwrap();
        let text = |labels: NodeLabels| labels.to_string();
        change.applied_to(&labels(to)).map(text).map_err(text)
    }

    #[test]
    fn keys_and_values_are_those_of_kubernetes() {
        let long = "a".repeat(63);
        let prefix = format!("{}.{}", vec!["a"; 120].join("."), "b".repeat(13));
        for good in
            ["rack", "R.a-c_k9", "example.com/rack", "a/b", &long, &format!("{prefix}/{long}")]
        {
            assert_eq!(good.parse::<LabelKey>().map(|key| key.to_string()), Ok(good.to_owned()));
        }
        for (bad, words) in [
            ("", "it has no name"),
            ("example.com/", "it has no name"),
            ("-rack", "begins and ends with a letter or a digit"),
            ("rack.", "begins and ends with a letter or a digit"),
            ("ra ck", "letters, digits and any of - _ . alone"),
            ("räck", "letters, digits and any of - _ . alone"),
            ("a/b/c", "letters, digits and any of - _ . alone"),
            ("/rack", "a domain in small letters"),
            ("Example.com/rack", "a domain in small letters"),
            ("a_b/rack", "a domain in small letters"),
            ("a..b/rack", "a domain in small letters"),
            (&format!("{prefix}xxx/rack"), "at most 253 characters"),
            (&format!("{long}a"), "more than 63 characters in its name"),
        ] {
            let error = bad.parse::<LabelKey>().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("key"), "{bad:?}: {error}");
        }
        for good in ["", "a", "9.x_Y-z", &long] {
            assert!(good.parse::<LabelValue>().is_ok(), "{good:?}");
        }
        for bad in ["a/b", "a b", "-", "a=b", "\u{1b}", &format!("{long}a")] {
            let error = bad.parse::<LabelValue>().unwrap_err().to_string();
            assert!(error.contains("no value of a label"), "{bad:?}: {error}");
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
    }

    #[test]
    fn a_change_sets_and_removes_and_leaves_the_rest() {
        assert_eq!(applied(&["rack=a"], false, &[]), Ok("rack=a".into()));
        let of_both = applied(&["rack=a", "zone-", "new="], false, &["rack=a", "zone=z", "x=y"]);
        assert_eq!(of_both, Ok("new=,rack=a,x=y".into()));
        assert_eq!(applied(&["none-"], false, &["x=y"]), Ok("x=y".into()));
    }

    #[test]
    fn another_value_needs_to_be_said_so() {
        let now = ["rack=a", "zone=z"];
        assert_eq!(applied(&["rack=b", "zone=z"], false, &now), Err("rack=a".into()));
        assert_eq!(applied(&["rack=b"], true, &now), Ok("rack=b,zone=z".into()));
    }

    #[test]
    fn what_is_no_change_is_refused_in_words() {
        for (texts, words) in [
            (&[][..], "no label is given"),
            (&["rack"], "neither KEY=VALUE"),
            (&["rack=a", "rack=b"], "rack is given twice"),
            (&["rack=a", "rack-"], "rack is given twice"),
            (&["rack-", "rack-"], "rack is given twice"),
            (&["-"], "it has no name"),
            (&["=a"], "it has no name"),
            (&["rack=a=b"], "\"a=b\" is no value"),
        ] {
            let error = LabelChange::of_texts(texts, true).unwrap_err().to_string();
            assert!(error.contains(words), "{texts:?}: {error}");
        }
        let many: Vec<_> = (0..=LABELS_LIMIT).map(|n| format!("k{n}=v")).collect();
        assert_eq!(NodeLabels::of_texts(&many), Err(NotALabel::TooMany));
        assert!(NodeLabels::of_texts(&many[1..]).is_ok());
    }

    #[test]
    fn a_difference_is_told_in_words() {
        let words = difference(&labels(&["a=1", "b=2", "c=3"]), &labels(&["b=2", "c=4", "d="]));
        assert_eq!(words, "c=4 (was 3), d=, a removed");
    }
}

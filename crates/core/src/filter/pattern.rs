//! Patterns for texts in rules and selectors, and for the parts of paths: `*`, `?` and `[...]`, over the whole text.
//! Unlike in a shell a `*` also goes over `/` and over a leading dot: what is matched is a name, not a folder.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Longest pattern, in characters.
const LIMIT: usize = 256;

/// A pattern, checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Token {
    One(char),
    AnyOne,
    AnyRun,
    Set { not: bool, ranges: Vec<(char, char)> },
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAPattern {
    #[error("an empty pattern fits nothing; write * for everything")]
    Empty,
    #[error("a pattern has at most {LIMIT} characters")]
    TooLong,
    #[error("{pattern:?} has a [ that is not closed")]
    OpenBracket { pattern: String },
}

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let chars: Vec<char> = text.chars().take(LIMIT + 1).collect();
        match chars.len() {
            0 => return Err(NotAPattern::Empty),
            length if length > LIMIT => return Err(NotAPattern::TooLong),
            _ => {}
        }
        let open = || NotAPattern::OpenBracket { pattern: text.to_owned() };
        Ok(Self { tokens: tokens(&chars).ok_or_else(open)?, text: text.to_owned() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Pattern {
    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The one text that fits, if there is nothing to choose from.
    pub fn literal(&self) -> Option<&str> {
        self.tokens.iter().all(|token| matches!(token, Token::One(_))).then_some(&self.text)
    }

    /// Whether the pattern fits the whole text.
    pub fn fits(&self, text: &str) -> bool {
        self.fits_by(text, |c| c)
    }

    /// The same, with small and capital letters taken for equal: makers write their names in both.
    pub fn fits_any_case(&self, text: &str) -> bool {
        self.fits_by(text, |c| c.to_lowercase().next().unwrap_or(c))
    }

    /// Matches with one point to come back to, so that the time is at most pattern times text.
    fn fits_by(&self, text: &str, case: impl Fn(char) -> char) -> bool {
        let text: Vec<char> = text.chars().collect();
        let (mut p, mut t) = (0, 0);
        let mut retry = None;
        while let Some(&c) = text.get(t) {
            let token = self.tokens.get(p);
            if token.is_some_and(|token| token.fits(c, &case)) {
                (p, t) = (p + 1, t + 1);
            } else if token == Some(&Token::AnyRun) {
                retry = Some((p, t));
                p += 1;
            } else if let Some((run, from)) = retry {
                retry = Some((run, from + 1));
                (p, t) = (run + 1, from + 1);
            } else {
                return false;
            }
        }
        self.tokens[p..].iter().all(|token| *token == Token::AnyRun)
    }
}

impl Token {
    fn fits(&self, c: char, case: &impl Fn(char) -> char) -> bool {
        match self {
            Self::One(one) => case(*one) == case(c),
            Self::AnyOne => true,
            Self::AnyRun => false,
            Self::Set { not, ranges } => {
                let within = |c: char| ranges.iter().any(|(low, high)| (*low..=*high).contains(&c));
                let folded = case(c);
                // A set written in capitals fits small letters as well, where case does not count.
                let other = c.to_uppercase().next().filter(|up| case(*up) == folded).unwrap_or(c);
                (within(c) || within(folded) || within(other)) != *not
            }
        }
    }
}

fn tokens(chars: &[char]) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        at += 1;
        match c {
            '*' if tokens.last() == Some(&Token::AnyRun) => {}
            '*' => tokens.push(Token::AnyRun),
            '?' => tokens.push(Token::AnyOne),
            '[' => {
                let (set, used) = set(&chars[at..])?;
                tokens.push(set);
                at += used;
            }
            other => tokens.push(Token::One(other)),
        }
    }
    Some(tokens)
}

/// Reads what follows a `[`; a `]` that comes first is meant itself.
fn set(chars: &[char]) -> Option<(Token, usize)> {
    let not = matches!(chars.first(), Some('!' | '^'));
    let start = usize::from(not);
    let mut ranges = Vec::new();
    let mut at = start;
    loop {
        match chars.get(at..)? {
            [']', ..] if at > start => return Some((Token::Set { not, ranges }, at + 1)),
            [low, '-', high, ..] if *high != ']' => {
                ranges.push((*low, *high));
                at += 3;
            }
            [one, ..] => {
                ranges.push((*one, *one));
                at += 1;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().fits(text)
    }

    fn fits_any_case(pattern: &str, text: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().fits_any_case(text)
    }

    #[test]
    fn a_pattern_fits_the_whole_text() {
        for (pattern, text, expected) in [
            ("/dev/sd*", "/dev/sda", true),
            ("/dev/sd?", "/dev/sdaa", false),
            ("/dev/*", "/dev/mapper/a", true),
            ("sda", "sdab", false),
            ("*NV*00", "ACME NV-2000", true),
            ("a*b*c", "aXbXbc", true),
            ("a*b*c", "aXbX", false),
            ("[a-c]1", "b1", true),
            ("[!a-c]1", "b1", false),
            ("[]]", "]", true),
            ("*", "", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn letters_are_alike_only_where_asked() {
        assert!(!fits("acme*", "ACME NV"));
        assert!(fits_any_case("acme*", "ACME NV"));
        assert!(fits_any_case("[A-C]cme", "acme") && fits_any_case("[a-c]cme", "ACME"));
        assert!(!fits_any_case("[!a-c]cme", "ACME"));
        assert!(!fits("[a-c]cme", "Acme"));
    }

    #[test]
    fn a_pattern_that_goes_astray_ends_soon() {
        let pattern = "*a".repeat(100);
        assert!(!fits(&pattern, &("a".repeat(50_000) + "b")));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let refused = |text: &str| text.parse::<Pattern>().unwrap_err();
        assert_eq!(refused(""), NotAPattern::Empty);
        assert_eq!(refused(&"x".repeat(257)), NotAPattern::TooLong);
        assert_eq!(refused("a[b"), NotAPattern::OpenBracket { pattern: "a[b".into() });
    }
}

//! The text of a client's token, which the registry makes, a person hands on, and a client on another machine sends
//! with every request, as a whole: `Authorization: Bearer TOKEN`.
//!
//! ```text
//! hotbay-client-1.AUTHORITY.SECRET.CHECK
//! ```
//!
//! The parts are those of a join token. By AUTHORITY the client knows whom it may say the token to: nothing else has to
//! be copied. The dots are what a bearer token may contain; commas are not.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::token::{from_hex, hex};

const MARK: &str = "hotbay-client-1";
/// Longer than any token; what is longer is not looked at.
const LENGTH_LIMIT: usize = 300;

/// What a client's token says.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientToken {
    /// SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    pub secret: [u8; 32],
}

/// Why a text is no client's token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NotAClientToken {
    #[error("a client's token begins with {MARK:?}, and has four parts with dots between them")]
    Shape,
    #[error("the token is cut short or mistyped; copy it once more, as a whole")]
    Check,
}

impl ClientToken {
    /// Whether a text is meant to be such a token, good or not.
    pub fn is_meant(text: &str) -> bool {
        text.trim().split('.').next() == Some(MARK)
    }
}

impl fmt::Display for ClientToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = format!("{MARK}.{}.{}", hex(&self.authority), hex(&self.secret));
        write!(f, "{said}.{:08x}", crc32c::crc32c(said.as_bytes()))
    }
}

/// The secret is for the two sides alone, not for logs.
impl fmt::Debug for ClientToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ClientToken");
        shown.field("authority", &hex(&self.authority)).finish_non_exhaustive()
    }
}

impl FromStr for ClientToken {
    type Err = NotAClientToken;

    fn from_str(text: &str) -> Result<Self, NotAClientToken> {
        let text = text.trim();
        if text.len() > LENGTH_LIMIT || text.split('.').next() != Some(MARK) {
            return Err(NotAClientToken::Shape);
        }
        let (said, check) = text.rsplit_once('.').ok_or(NotAClientToken::Check)?;
        if check != format!("{:08x}", crc32c::crc32c(said.as_bytes())) {
            return Err(NotAClientToken::Check);
        }
        let parts: Vec<_> = said.split('.').collect();
        let [_, authority, secret] = parts[..] else { return Err(NotAClientToken::Shape) };
        let authority = from_hex(authority).ok_or(NotAClientToken::Shape)?;
        let secret = from_hex(secret).ok_or(NotAClientToken::Shape)?;
        Ok(Self { authority, secret })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> ClientToken {
        ClientToken { authority: [0xab; 32], secret: [7; 32] }
    }

    #[test]
    fn a_token_reads_back_what_it_prints_and_may_be_a_bearer_token() {
        let text = token().to_string();
        assert!(text.starts_with("hotbay-client-1.abab"), "{text}");
        assert_eq!(text.parse(), Ok(token()));
        assert_eq!(format!("{text}\n").parse(), Ok(token()));
        // RFC 6750, section 2.1.
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~+/=".contains(c);
        assert!(text.chars().all(allowed), "{text}");
    }

    #[test]
    fn every_cut_and_every_other_character_is_noticed() {
        let text = token().to_string();
        for at in 0..text.len() {
            assert!(text[..at].parse::<ClientToken>().is_err(), "cut at {at}");
            let mut other = text.clone().into_bytes();
            other[at] ^= 1;
            let other = String::from_utf8(other).unwrap();
            assert!(other.parse::<ClientToken>().is_err(), "{other}");
        }
        assert_eq!(text[..60].parse::<ClientToken>(), Err(NotAClientToken::Check));
        let join = "hotbay-join-1,192.0.2.7:7443,ab,07,00000000";
        assert_eq!(join.parse::<ClientToken>(), Err(NotAClientToken::Shape));
        assert_eq!("x".repeat(1_000_000).parse::<ClientToken>(), Err(NotAClientToken::Shape));
    }

    #[test]
    fn the_secret_is_not_in_the_debug_text() {
        assert!(!format!("{:?}", token()).contains("0707"));
    }
}

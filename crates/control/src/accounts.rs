//! Accounts of the platform that the registry runs on: who checks their tokens. Where a platform has accounts, a node
//! joins with its own ([`crate::door`]), and people and programs show theirs ([`crate::clients`]).
//!
//! What is known of accounts here is this trait alone; the program brings an implementation along.

use std::fmt;
use std::pin::Pin;

use hotbay_core::ids::NodeName;
use thiserror::Error;

pub use crate::clients::rights::May;

/// Longer than any token; what is longer is not asked about.
const TOKEN_LIMIT_BYTES: usize = 8 << 10;

/// The token of an account.
#[derive(Clone, PartialEq, Eq)]
pub struct AccountToken(String);

impl AccountToken {
    /// None if it cannot be one: empty, too long, or with characters that no token has.
    pub fn new(text: &str) -> Option<Self> {
        let plain = |b: u8| b.is_ascii_graphic();
        let fits = (1..=TOKEN_LIMIT_BYTES).contains(&text.len()) && text.bytes().all(plain);
        fits.then(|| Self(text.to_owned()))
    }

    /// For whoever checks it.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

/// The token is for whoever checks it, not for logs.
impl fmt::Debug for AccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccountToken").finish_non_exhaustive()
    }
}

/// An account that may come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// For the record.
    pub who: String,
    pub may: May,
}

/// Why a token says nothing. The words repeat nothing of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotKnown {
    #[error("the token of the account is refused: {why}")]
    Refused { why: String },
    /// Nobody can tell now; asking again may help.
    #[error("the token of the account cannot be checked now: {why}")]
    Unavailable { why: String },
}

impl From<NotKnown> for tonic::Status {
    fn from(why: NotKnown) -> Self {
        let words = why.to_string();
        match why {
            NotKnown::Refused { .. } => Self::unauthenticated(words),
            NotKnown::Unavailable { .. } => Self::unavailable(words),
        }
    }
}

/// What is being found out about a token.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, NotKnown>> + Send + 'a>>;

/// Who checks tokens of accounts.
pub trait Accounts: fmt::Debug + Send + Sync + 'static {
    /// The node on whose machine the token was given out, if it is that of an agent.
    fn node_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, NodeName>;

    /// Whose token it is, and what they may.
    fn rights_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, Account>;

    /// In words for people, how to get a token that may do so.
    fn advice(&self, may: May) -> String;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_a_token_is_asked_about() {
        let good = AccountToken::new("a.b-c_d").unwrap();
        assert!(!format!("{good:?}").contains("a.b"), "{good:?}");
        for bad in ["", "a b", "a\n", "ä", &"x".repeat(TOKEN_LIMIT_BYTES + 1)] {
            assert_eq!(AccountToken::new(bad), None, "{bad:?}");
        }
    }
}

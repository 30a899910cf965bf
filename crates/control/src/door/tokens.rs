//! Join tokens that were made and may still be used. In memory alone: a registry that was started again knows none of
//! them, and new ones are made. Of a secret only its hash is kept.
//!
//! A token is good for one key: an agent that did not hear the answer may ask again with the same key, and no other
//! agent can use it any more.

use std::time::{Duration, Instant};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use hotbay_core::ids::{CertificateNumber, NodeName};
use thiserror::Error;

/// How many tokens may wait to be used, or be remembered as used.
const TOKENS: usize = 1_000;
/// The longest that a token may be good for.
pub(crate) const LONGEST: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Why no token is made.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum NotMade {
    #[error("a token is good for 1 s to 30 days")]
    Time,
    #[error("{TOKENS} tokens are waiting to be used; wait until some have expired")]
    TooMany,
}

/// Why a secret opens nothing.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    #[error(
        "this token is not known: this registry did not make it, or was started again since; make another"
    )]
    Unknown,
    #[error("this token has expired; make another")]
    Expired,
    #[error("this token was used already; make another")]
    Used,
    #[error("this token is for node {node}, not for {given}")]
    OtherName { node: NodeName, given: NodeName },
}

struct Token {
    secret_hash: [u8; 32],
    node: NodeName,
    /// The lowest that a certificate could have when the token was made; purging the node revokes both.
    number: CertificateNumber,
    until: Instant,
    used_by: Option<[u8; 32]>,
}

/// The tokens.
#[derive(Default)]
pub(crate) struct Tokens {
    made: Vec<Token>,
}

impl Tokens {
    /// Remembers a token for a node, by the hash of its secret.
    pub(crate) fn make(
        &mut self,
        node: NodeName,
        number: CertificateNumber,
        secret: &[u8; 32],
        ttl: Duration,
        now: Instant,
    ) -> Result<(), NotMade> {
        if ttl < Duration::from_secs(1) || ttl > LONGEST {
            return Err(NotMade::Time);
        }
        if self.made.len() >= TOKENS {
            self.made.retain(|token| token.until > now);
        }
        if self.made.len() >= TOKENS {
            return Err(NotMade::TooMany);
        }
        let (secret_hash, until) = (hash(secret), now + ttl);
        self.made.push(Token { secret_hash, node, number, until, used_by: None });
        Ok(())
    }

    /// Uses the token with this secret up, for one key; says which node it is for, and its number.
    pub(crate) fn admit(
        &mut self,
        secret: &[u8],
        name: Option<&NodeName>,
        key: [u8; 32],
        now: Instant,
    ) -> Result<(NodeName, CertificateNumber), NotAdmitted> {
        let given = hash(secret);
        let fits = |token: &&mut Token| same(&token.secret_hash, &given);
        let token = self.made.iter_mut().find(fits).ok_or(NotAdmitted::Unknown)?;
        if now >= token.until {
            return Err(NotAdmitted::Expired);
        }
        if let Some(given) = name.filter(|given| **given != token.node) {
            return Err(NotAdmitted::OtherName { node: token.node.clone(), given: given.clone() });
        }
        if token.used_by.is_some_and(|used_by| used_by != key) {
            return Err(NotAdmitted::Used);
        }
        token.used_by = Some(key);
        Ok((token.node.clone(), token.number))
    }
}

fn hash(secret: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

/// Takes as long whatever the difference is.
fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const NUMBER: CertificateNumber = CertificateNumber::from_number(5);

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn a_token_is_good_once_and_again_only_for_the_same_key() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        tokens.make(name("a"), NUMBER, &[1; 32], HOUR, now).unwrap();
        assert_eq!(tokens.admit(&[1; 32], None, [7; 32], now), Ok((name("a"), NUMBER)));
        assert_eq!(tokens.admit(&[1; 32], Some(&name("a")), [7; 32], now), Ok((name("a"), NUMBER)));
        assert_eq!(tokens.admit(&[1; 32], None, [8; 32], now), Err(NotAdmitted::Used));
    }

    #[test]
    fn a_token_expires() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        tokens.make(name("a"), NUMBER, &[1; 32], HOUR, now).unwrap();
        let late = tokens.admit(&[1; 32], None, [7; 32], now + HOUR);
        assert_eq!(late, Err(NotAdmitted::Expired));
        assert_eq!(
            tokens.make(name("a"), NUMBER, &[1; 32], Duration::ZERO, now),
            Err(NotMade::Time)
        );
        assert_eq!(
            tokens.make(name("a"), NUMBER, &[1; 32], LONGEST + HOUR, now),
            Err(NotMade::Time)
        );
    }

    #[test]
    fn a_refused_use_leaves_the_token_good() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        tokens.make(name("a"), NUMBER, &[1; 32], HOUR, now).unwrap();
        let other = tokens.admit(&[1; 32], Some(&name("b")), [7; 32], now);
        assert_eq!(other, Err(NotAdmitted::OtherName { node: name("a"), given: name("b") }));
        for wrong in [&[][..], &[1; 31], &[1; 33], &[2; 32]] {
            assert_eq!(tokens.admit(wrong, None, [7; 32], now), Err(NotAdmitted::Unknown));
        }
        assert_eq!(tokens.admit(&[1; 32], None, [7; 32], now), Ok((name("a"), NUMBER)));
    }

    #[test]
    fn tokens_are_bounded_and_expired_ones_make_room() {
        let (mut tokens, now) = (Tokens::default(), Instant::now());
        for number in 0..TOKENS {
            let mut secret = [0; 32];
            secret[..8].copy_from_slice(&number.to_le_bytes());
            tokens.make(name("a"), NUMBER, &secret, HOUR, now).unwrap();
        }
        assert_eq!(tokens.make(name("a"), NUMBER, &[1; 32], HOUR, now), Err(NotMade::TooMany));
        assert_eq!(tokens.make(name("a"), NUMBER, &[1; 32], HOUR, now + HOUR), Ok(()));
    }

    #[test]
    fn hashes_that_differ_in_one_bit_anywhere_are_not_the_same() {
        assert!(same(&[5; 32], &[5; 32]));
        for at in 0..32 {
            let mut other = [5; 32];
            other[at] ^= 0x80;
            assert!(!same(&[5; 32], &other), "byte {at}");
        }
    }
}

//! The order of orders: terms, generations, and which of two is newer.
//!
//! A registry speaks under a [`Term`]; every change of what is wanted of a drive raises the drive's
//! [`Generation`]. An attach or detach order carries both as its [`Stamp`]. "Newer" is defined here and nowhere
//! else: neither number is lower. The two are never folded into one key, because a registry that went back in time
//! would then outrank the past that it has forgotten.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{DriveId, TermId};

/// How often what is wanted of a drive has changed. Zero: nobody has asked anything of it yet.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
pub struct Generation(u64);

impl Generation {
    /// The generation of a drive that no action has named.
    pub const ZERO: Self = Self(0);

    /// The generation that the next action gets.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("fewer than 2^64 actions on one drive"))
    }

    /// The generation of the action before.
    #[must_use]
    pub fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The number, for codecs and people.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Reads a number back.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One reign of one registry: a number that grows with each reign, and a random id that tells apart two reigns of
/// the same number (a restored backup and a copied data directory count on from the same past).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Term {
    pub number: u64,
    pub id: TermId,
}

impl Term {
    /// The term after this one. `id` is freshly drawn.
    #[must_use]
    pub fn succeeded_by(self, id: TermId) -> Self {
        Self { number: self.number.checked_add(1).expect("fewer than 2^64 terms"), id }
    }

    /// The first term of a new store.
    pub const fn first(id: TermId) -> Self {
        Self { number: 1, id }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.number, self.id.to_bits() >> 96)
    }
}

/// When an order was given: under which term, for which generation of the drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stamp {
    pub term: Term,
    pub generation: Generation,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}, generation {}", self.term, self.generation)
    }
}

/// What is wanted of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    Attach,
    Detach,
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
        })
    }
}

/// A goal with the stamp under which it was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ordered {
    pub goal: Goal,
    pub stamp: Stamp,
}

/// Names one order, the same in the registry's log, in the agent's and for people: the beginning of the drive's id, the
/// number of the term, the drive's generation. `o-7f3a91c04b2e-t3-g7`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OrderId {
    drive: DriveId,
    stamp: Stamp,
}

impl OrderId {
    pub const fn new(drive: DriveId, stamp: Stamp) -> Self {
        Self { drive, stamp }
    }
}

impl fmt::Display for OrderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { drive, stamp: Stamp { term, generation } } = self;
        // 48 bits: drives have short names of 32, and a cluster may have so many that two of those begin alike.
        write!(f, "o-{:012x}-t{}-g{generation}", drive.to_bits() >> 80, term.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_named_by_drive_term_and_generation() {
        let drive = DriveId::from_bits(0x7f3a_91c0_4b2e_0000_0000_0000_0000_0001);
        let term = Term { number: 3, id: TermId::from_bits(9) };
        let stamp = Stamp { term, generation: Generation::from_number(7) };
        assert_eq!(OrderId::new(drive, stamp).to_string(), "o-7f3a91c04b2e-t3-g7");
        let drive = DriveId::from_bits(5);
        assert_eq!(OrderId::new(drive, stamp).to_string(), "o-000000000000-t3-g7");
    }
}

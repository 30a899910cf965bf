//! Names and numbers that are told apart by type.
//!
//! Ids are 128 random bits, made outside of this crate (nothing here draws random numbers) and shown as 32 hex
//! digits. They are identity; the short names that people type (`d-7f3a91c0`, `node-a`) are only names.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is not an id: 32 hex digits are expected")]
pub struct NotAnId {
    text: String,
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(u128);

        impl $name {
            /// Wraps 128 bits that the caller drew at random or read back.
            pub const fn from_bits(bits: u128) -> Self {
                Self(bits)
            }

            /// The bits, for codecs.
            pub const fn to_bits(self) -> u128 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:x})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = NotAnId;

            fn from_str(text: &str) -> Result<Self, NotAnId> {
                let wrong = || NotAnId { text: text.chars().take(64).collect() };
                if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    return Err(wrong());
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| wrong())
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotAnId;

            fn try_from(text: String) -> Result<Self, NotAnId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    )*};
}

ids! {
    /// One registry with all its nodes and drives; drawn when its store is made.
    ClusterId
    /// One node, kept in its state directory and in the registry.
    NodeId
    /// One physical drive; drawn when the registry first hears of it, and written on its label.
    DriveId
    /// One volume.
    VolumeId
    /// One volume on one node.
    AttachmentId
    /// One start of an agent: new with every start, so that an order meant for an earlier start is known by it.
    Incarnation
    /// The random half of a [`crate::order::Term`].
    TermId
    /// The machine behind a node's name: a hash of what tells machines apart.
    MachineId
}

/// Numbers sessions in the order in which the registry accepted them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct SessionNumber(u64);

impl SessionNumber {
    /// The session accepted after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("fewer than 2^64 sessions"))
    }

    /// The number, for logs and codecs.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Reads a number back.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Numbers the certificates of nodes in the order in which they were issued, so that all up to one can be revoked.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, Default,
)]
pub struct CertificateNumber(u64);

impl CertificateNumber {
    /// The lowest number that a later certificate can have.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("fewer than 2^64 certificates"))
    }

    /// The number, for codecs.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Reads a number back.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// The name of a node, as people type it.
///
/// The same alphabet as a DNS label (and so a Kubernetes object name): it appears in file names, lock names and
/// commands, and `node:bay` must be parsed without doubt.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

/// Why a text cannot be a node's name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} cannot be a node's name: use 1 to 63 of a-z, 0-9, '-' and '.', starting and ending with a letter or digit"
)]
pub struct NotANodeName {
    text: String,
}

impl NodeName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NotANodeName;

    fn from_str(text: &str) -> Result<Self, NotANodeName> {
        let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let bytes = text.as_bytes();
        let fits = (1..=63).contains(&bytes.len())
            && bytes.iter().all(|b| plain(b) || *b == b'-' || *b == b'.')
            && bytes.first().is_some_and(plain)
            && bytes.last().is_some_and(plain);
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(NotANodeName { text: text.chars().take(80).collect() })
        }
    }
}

impl TryFrom<String> for NodeName {
    type Error = NotANodeName;

    fn try_from(text: String) -> Result<Self, NotANodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        let id = DriveId::from_bits(0x7f3a);
        assert_eq!(id.to_string().parse(), Ok(id));
        for bad in
            ["", "7f3a", "+0000000000000000000000000000001", &"g".repeat(32), &"é".repeat(16)]
        {
            assert!(bad.parse::<DriveId>().is_err(), "{bad:?} was taken for an id");
        }
    }

    #[test]
    fn node_names_keep_to_their_alphabet() {
        for good in ["a", "node-a", "rack1.node-07", &"x".repeat(63)] {
            assert!(good.parse::<NodeName>().is_ok(), "{good:?} was refused");
        }
        for bad in ["", "-a", "a-", "Node", "a/b", "a:b", "a b", "..", "nö", &"x".repeat(64)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?} was taken");
        }
    }
}

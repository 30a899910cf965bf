//! Wire messages to values and back. Nothing malformed becomes a value: each refusal names the field.

mod agent;
mod cms;
mod fit;

pub use agent::{FromAgent, FromRegistry, from_agent, from_registry, to_agent, to_registry};
pub use cms::{action_from_wire, action_to_wire};

use hotbay_core::words::plain;
use thiserror::Error;

/// A message that cannot be understood.
#[derive(Debug, Error)]
pub enum Malformed {
    #[error(
        "protocol {theirs} is spoken there and {} here; use the same release on both sides",
        crate::PROTOCOL
    )]
    Protocol { theirs: u32 },
    #[error("the message is empty, or of a kind that this release does not know")]
    Kind,
    #[error("the field {field} is missing")]
    Missing { field: &'static str },
    #[error("the field {field} is not what it should be: {problem}")]
    Field { field: &'static str, problem: String },
}

impl Malformed {
    fn field(field: &'static str, problem: impl std::fmt::Display) -> Self {
        Self::Field { field, problem: plain(&problem.to_string()) }
    }
}

fn check_protocol(theirs: u32) -> Result<(), Malformed> {
    if theirs == crate::PROTOCOL { Ok(()) } else { Err(Malformed::Protocol { theirs }) }
}

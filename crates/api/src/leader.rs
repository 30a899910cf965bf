//! How a registry that does not lead answers agents: with the address of the one that does, if it knows it. The
//! controller makes the answer, the agent reads it and dials there.

use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::token::check_address;

/// The metadata that says where the leader listens for agents, as HOST:PORT. Empty if nobody leads.
pub const LEADER: &str = "hotbay-leader";

/// What an agent is told by a registry that does not lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotLeading {
    /// This one does.
    Leader(String),
    /// Nobody does that it knows of.
    Nobody,
}

impl NotLeading {
    /// What a status says of it; `None` if it is about something else. An address that cannot be dialled counts as
    /// none.
    pub fn told(status: &Status) -> Option<Self> {
        if status.code() != Code::FailedPrecondition {
            return None;
        }
        let address = status.metadata().get(LEADER)?.to_str().ok();
        let address = address.filter(|address| check_address(address).is_ok());
        Some(address.map_or(Self::Nobody, |address| Self::Leader(address.to_owned())))
    }
}

impl From<NotLeading> for Status {
    fn from(told: NotLeading) -> Self {
        let (words, address) = match &told {
            NotLeading::Leader(address) => {
                (format!("this controller does not lead; {address} does"), address.as_str())
            }
            NotLeading::Nobody => ("no controller leads now; ask again later".to_owned(), ""),
        };
        let mut status = Self::failed_precondition(words);
        // An address that is no plain text cannot be dialled either.
        let value = MetadataValue::try_from(address).unwrap_or(MetadataValue::from_static(""));
        status.metadata_mut().insert(LEADER, value);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_understood() {
        for told in [NotLeading::Leader("10.0.0.7:7443".to_owned()), NotLeading::Nobody] {
            assert_eq!(NotLeading::told(&told.clone().into()), Some(told));
        }
        let broken = NotLeading::Leader("no address\n".to_owned());
        assert_eq!(NotLeading::told(&broken.into()), Some(NotLeading::Nobody));
        assert_eq!(NotLeading::told(&Status::failed_precondition("purged")), None);
        let mut other = Status::unavailable("busy");
        other.metadata_mut().insert(LEADER, MetadataValue::from_static("10.0.0.7:7443"));
        assert_eq!(NotLeading::told(&other), None);
    }
}

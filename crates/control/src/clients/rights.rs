//! What a token may, and what each call needs. A call that is not in the table is not served to other machines: a new
//! one is added here first.

use serde::{Deserialize, Serialize};

/// What a token may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum May {
    Read,
    /// And read.
    Write,
}

/// What a call needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing: not even a token.
    Open,
    Read,
    Write,
    /// Read; and write if it would change something, which whoever answers it finds out.
    WriteToChange,
}

impl Right {
    /// Whether a token may make the call at all.
    pub(crate) fn is_held_by(self, may: May) -> bool {
        match self {
            Self::Open | Self::Read | Self::WriteToChange => true,
            Self::Write => may == May::Write,
        }
    }
}

/// What each gRPC call needs. HTTP has its rights beside its routes.
const CALLS: [(&str, Right); 17] = [
    ("/hotbay.access.v1.Access/CreateToken", Right::Write),
    ("/hotbay.access.v1.Access/GetAuthority", Right::Read),
    ("/hotbay.access.v1.Access/ListTokens", Right::Read),
    ("/hotbay.access.v1.Access/RevokeToken", Right::Write),
    ("/hotbay.cms.v1.Cms/Act", Right::WriteToChange),
    ("/hotbay.cms.v1.Repair/Adopt", Right::WriteToChange),
    ("/hotbay.cms.v1.View/Events", Right::Read),
    ("/hotbay.cms.v1.View/List", Right::Read),
    ("/hotbay.cms.v1.View/Watch", Right::Read),
    ("/hotbay.join.v1.Tokens/Create", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Annotate", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Attach", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Create", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Delete", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Detach", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Expand", Right::Write),
    ("/hotbay.volumes.v1.Volumes/Explain", Right::Read),
];

/// What a gRPC call needs, by its path; none for one that is not served to other machines.
pub(crate) fn of_call(path: &str) -> Option<Right> {
    CALLS.iter().find(|(known, _)| *known == path).map(|(_, right)| *right)
}

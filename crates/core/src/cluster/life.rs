//! The life of a drive: its states, every legal edge, and what Add and Remove are answered.
//!
//! ```text
//!             Add                               agent: attached
//!   Unknown ─────────▶ Attaching ─────────────────────────────▶ Attached
//!                       ▲    │                                     │
//!                       │    │ Remove                              │ Remove, no volumes on it
//!                  Add  │    ▼                                     │
//!                       ├─ Closing ◀───────────────────────────────┘
//!                       │    │ agent: closed, proved
//!                       └─ Detached
//! ```

use serde::{Deserialize, Serialize};

use crate::order::Goal;

/// Where a drive is in its life. On the wire `AttachingDevice` and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// Seen, and nobody has asked anything of it.
    Unknown,
    /// Wanted in operation; the agent has not confirmed yet. No volumes.
    Attaching,
    /// In operation.
    Attached,
    /// Wanted out of operation; the agent has not proved the close yet.
    Closing,
    /// Out of operation, and proved so.
    Detached,
}

/// What can move a drive from one state to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    Add,
    /// A removal with no volumes on the drive.
    Remove,
    /// The agent confirmed the current order.
    Confirmed(Goal),
    /// The drive may be open: a registration says so, or cannot rule it out, or its label says so where it came back.
    ReportedOpen,
}

impl State {
    /// What the agent should have the drive as.
    pub const fn goal(self) -> Goal {
        match self {
            Self::Attaching | Self::Attached => Goal::Attach,
            Self::Unknown | Self::Closing | Self::Detached => Goal::Detach,
        }
    }

    /// Every edge there is. `None`: nothing changes.
    pub(crate) const fn after(self, happening: Happening) -> Option<Self> {
        match (self, happening) {
            (Self::Unknown | Self::Closing | Self::Detached, Happening::Add) => {
                Some(Self::Attaching)
            }
            (Self::Attaching | Self::Attached, Happening::Remove) => Some(Self::Closing),
            (Self::Attaching, Happening::Confirmed(Goal::Attach)) => Some(Self::Attached),
            (Self::Closing, Happening::Confirmed(Goal::Detach)) => Some(Self::Detached),
            (Self::Detached, Happening::ReportedOpen) => Some(Self::Closing),
            (Self::Attaching | Self::Attached, Happening::Add)
            | (Self::Unknown | Self::Closing | Self::Detached, Happening::Remove)
            | (
                Self::Unknown | Self::Attached | Self::Closing | Self::Detached,
                Happening::Confirmed(Goal::Attach),
            )
            | (
                Self::Unknown | Self::Attaching | Self::Attached | Self::Detached,
                Happening::Confirmed(Goal::Detach),
            )
            | (
                Self::Unknown | Self::Attaching | Self::Attached | Self::Closing,
                Happening::ReportedOpen,
            ) => None,
        }
    }

    /// The name on the wire and in JSON.
    pub const fn wire_name(self) -> &'static str {
        match self {
            Self::Unknown => "UnknownDevice",
            Self::Attaching => "AttachingDevice",
            Self::Attached => "AttachedDevice",
            Self::Closing => "ClosingDevice",
            Self::Detached => "DetachedDevice",
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unknown => "Unknown",
            Self::Attaching => "Attaching",
            Self::Attached => "Attached",
            Self::Closing => "Closing",
            Self::Detached => "Detached",
        })
    }
}

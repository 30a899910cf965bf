//! What infrastructure automation and people ask for, and what they are answered. The names of the codes are those
//! of the protocol that they poll: `S_OK`, `E_TRY_AGAIN` and so on.

use std::fmt;

use crate::cluster::{Holder, Kept, NotTakenOver, State, StateHash};
use crate::device::Denied;
use crate::ids::{DriveId, VolumeId};
use crate::message::Obstacle;
use crate::node_labels::{LABELS_LIMIT, LabelChange};

/// One thing asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Puts every drive of a host into operation. Leaves out drives that were removed on their own, unless
    /// `with_removed`. A host that was purged and came back is refused, unless `returned`.
    AddHost {
        host: String,
        with_removed: bool,
        returned: bool,
    },
    RemoveHost {
        host: String,
    },
    AddDevice(Target),
    /// The same, only while the drive is as it was when that was planned.
    AddPlanned {
        target: Target,
        state: StateHash,
    },
    /// The same, and what is on the drive may be wiped. `serial` is its serial number, or its name if it has none: who
    /// asks has looked at the drive that it is.
    AddWiped {
        target: Target,
        state: StateHash,
        serial: String,
    },
    RemoveDevice(Target),
    /// Gives a drive that another node holds to the node that has it now.
    TakeOver(TakeOver),
    /// Gives up a host whose machine is gone, with all that is on it.
    PurgeHost {
        host: String,
    },
    /// Forgets a host whose machine is gone and of which nothing is needed any more: none of its drives is in
    /// operation, and no volume is there.
    ForgetHost {
        host: String,
    },
    /// Changes what people say about a host, and so what rules do with its drives.
    LabelHost {
        host: String,
        change: LabelChange,
    },
    /// Whether new volumes are kept off a host's drives. Those that are there stay in use.
    CordonHost {
        host: String,
        cordoned: bool,
    },
    /// Which volumes stand in the way of a removal. Changes nothing.
    GetDependentVolumes(Target),
}

/// A drive that is to be taken over, as a person saw it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakeOver {
    /// Where the drive is now.
    pub target: Target,
    /// Its serial number; its name if it has none.
    pub serial: String,
    /// Only while it is in this state.
    pub state: Option<StateHash>,
}

/// Names a drive: by name, id or serial number; with a host also by path or bay. `host:device` in one text works too.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub host: Option<String>,
    pub device: String,
}

/// The answer's code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Code {
    /// Done. For a removal: closed, and that is proved.
    Ok,
    /// It was so already.
    Already,
    /// Under way: ask again.
    TryAgain,
    /// It cannot be done in this state.
    InvalidState,
    /// There is no such host or drive.
    NotFound,
    /// The request is malformed.
    Argument,
}

impl Code {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "S_OK",
            Self::Already => "S_ALREADY",
            Self::TryAgain => "E_TRY_AGAIN",
            Self::InvalidState => "E_INVALID_STATE",
            Self::NotFound => "E_NOT_FOUND",
            Self::Argument => "E_ARGUMENT",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The answer to one action.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Outcome {
    pub code: Code,
    pub reasons: Vec<Reason>,
    /// The drive that a device action meant.
    pub drive: Option<DriveId>,
    /// Volumes that stand in the way.
    pub dependent: Vec<VolumeId>,
    /// When to ask again.
    pub retry_after_ms: Option<u64>,
    /// For a host action: the answer per drive.
    pub drives: Vec<Outcome>,
}

impl Outcome {
    pub(crate) fn new(code: Code) -> Self {
        Self {
            code,
            reasons: Vec::new(),
            drive: None,
            dependent: Vec::new(),
            retry_after_ms: None,
            drives: Vec::new(),
        }
    }

    pub(crate) fn because(code: Code, reason: Reason) -> Self {
        Self { reasons: vec![reason], ..Self::new(code) }
    }
}

/// Why an answer is what it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reason {
    Denied(Denied),
    /// A device that a host action leaves out, and that has no name of its own.
    Newcomer {
        path: String,
        denied: Box<Denied>,
    },
    NoSuchHost {
        host: String,
    },
    NoSuchDrive {
        device: String,
    },
    /// More than one drive fits.
    Ambiguous {
        device: String,
        fitting: Vec<String>,
    },
    Malformed {
        what: &'static str,
        problem: &'static str,
    },
    VolumesOnIt,
    /// The agent has been told, and has not answered yet.
    WaitingForAgent,
    AgentUnreachable,
    Obstacle(Obstacle),
    /// The agent refuses the order.
    Refused(String),
    /// The registry has gone back in time, as far as this node is concerned.
    RegistryRewound,
    /// Left out of a host action: it was removed on its own.
    RemovedOnItsOwn,
    /// The host was given up, and nobody has said yet that it is back.
    Purged,
    /// The host was purged, and its agent still shows a certificate from before.
    CertificateRevoked,
    /// The host's agent is there, so the host is not gone.
    AgentRegistered,
    /// Why a host is not forgotten.
    Kept(Kept),
    /// The host has no drive that could be added.
    NoUsableDrive,
    /// The host has other values for labels that should be set.
    LabelledOtherwise {
        labels: String,
    },
    TooManyLabels,
    /// The drive is not any more what it was when adding it was planned.
    ChangedSince {
        now: StateHash,
    },
    NotTakenOver(Box<NotTakenOver>),
    /// It is taken over from that node.
    TakenFrom {
        node: String,
        holder: Holder,
    },
    /// What is on a drive goes where the drive goes.
    VolumesComeAlong {
        volumes: usize,
    },
    /// A drive in operation is never wiped.
    InOperation {
        state: State,
    },
    /// It is a drive of ours, and not wiped to be added.
    OwnLabel,
    /// Whoever asked for a wipe has another drive in mind.
    OtherSerial {
        has_serial: bool,
    },
    /// Nobody can tell what a wipe would take away.
    ContentsUnknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(denied) => denied.fmt(f),
            Self::Newcomer { path, denied } => write!(f, "{path}: {denied}"),
            Self::NoSuchHost { host } => write!(f, "no host {host:?}"),
            Self::NoSuchDrive { device } => write!(f, "no drive {device:?}"),
            Self::Ambiguous { device, fitting } => {
                write!(f, "{device:?} fits more than one drive: {}", fitting.join(", "))
            }
            Self::Malformed { what, problem } => write!(f, "the {what} {problem}"),
            Self::VolumesOnIt => f.write_str("volumes are on it"),
            Self::WaitingForAgent => f.write_str("waiting for the node's agent"),
            Self::AgentUnreachable => f.write_str("the node's agent cannot be reached"),
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::Refused(why) => write!(f, "the node's agent refuses: {why}"),
            Self::RegistryRewound => f.write_str(
                "RegistryRewound: the node knows newer orders than this registry, which seems to be a restored \
                 backup or a copy; the node gets no orders",
            ),
            Self::RemovedOnItsOwn => f.write_str("it was removed on its own; add it by itself"),
            Self::Purged => f.write_str(
                "the host was purged; if its machine is back, say so:  hotbay host add HOST --returned",
            ),
            Self::CertificateRevoked => f.write_str(
                "its certificate was revoked when it was purged; run `hotbay node --join` with a new token on it first",
            ),
            Self::AgentRegistered => f.write_str(
                "its agent is registered, so the machine is not gone; remove the host instead",
            ),
            Self::Kept(why) => why.fmt(f),
            Self::NoUsableDrive => f.write_str("it has no drive that could be added"),
            Self::LabelledOtherwise { labels } => write!(
                f,
                "it is labelled {labels} already; to change that, say so:  hotbay host label --overwrite"
            ),
            Self::TooManyLabels => write!(f, "a host has at most {LABELS_LIMIT} labels"),
            Self::ChangedSince { now } => write!(
                f,
                "ChangedSince: it is not as it was when it was planned (its state is {now} now); look at it, and plan \
                 again:  hotbay drive plan"
            ),
            Self::NotTakenOver(why) => why.fmt(f),
            Self::TakenFrom { node, holder } => write!(f, "{node} {holder}"),
            Self::VolumesComeAlong { volumes: 1 } => {
                f.write_str("1 volume is on it and comes with it")
            }
            Self::VolumesComeAlong { volumes } => {
                write!(f, "{volumes} volumes are on it and come with it")
            }
            Self::InOperation { state } => {
                write!(f, "it is in operation ({state}), and a drive in operation is never wiped")
            }
            Self::OwnLabel => f.write_str(
                "it carries the label of this cluster: it is one of its drives, and is not wiped",
            ),
            Self::OtherSerial { has_serial: true } => {
                f.write_str("the serial number that was given is not the drive's")
            }
            Self::OtherSerial { has_serial: false } => f.write_str(
                "the drive has no serial number, and what was given in its place is not its name",
            ),
            Self::ContentsUnknown => f.write_str(
                "what is on it now is not known: it is not on its machine, or the agent there cannot be reached",
            ),
        }
    }
}

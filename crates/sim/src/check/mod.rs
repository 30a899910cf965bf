//! What must hold, numbered as the design numbers it, one function each.
//!
//! Most invariants speak of a moment: `registry.rs` and `machine.rs` call the function when that moment comes
//! (`moments.rs`, `pace.rs`). The rest is checked when all trouble has been over for a while (`settled.rs`). The
//! ledger holds what the checks must remember: only what really happened, never what either side believes.

mod moments;
mod pace;
mod settled;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::order::{Generation, Goal, Term};
use hotbay_core::volume::Epoch;

use crate::log::note;
use crate::world::World;

/// One rule that a run can break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// 1.
    StaleOrder,
    /// 1.
    ForeignOrder,
    /// 1 and 7.
    ForeignRegistry,
    /// 1.
    StaleConfirmation,
    /// 1.
    RewoundWithoutCause,
    /// 2 and 10.
    Unsettled,
    /// 3.
    RemovedWhileOpen,
    /// 3.
    ReopenedAfterRemoval,
    /// 4.
    PlacedOnClosedDrive,
    /// 5.
    ClosedUnderVolumes,
    /// 6.
    TwoWriters,
    /// 6 and 8.
    FreedInUse,
    /// 7.
    Forgotten,
    /// 7.
    ActedBeforeSaved,
    /// 7.
    AnsweredBeforeSaved,
    /// 7.
    NotOnLabel,
    /// 8.
    TwoOwners,
    /// 8.
    OldData,
    /// 8.
    ErasedOther,
    /// 8.
    VolumeDestroyed,
    DryRunChanges,
    /// 11.
    Delayed,
    /// Retries pause, and are bounded.
    HotLoop,
    /// Core met a state that it holds for impossible.
    Panicked,
}

impl Invariant {
    /// The rule in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::StaleOrder => "1: a stale order is never carried out",
            Self::ForeignOrder => {
                "1: only the registry that the agent registered with gives orders"
            }
            Self::ForeignRegistry => {
                "1, 7: an agent obeys no registry that lacks a part of the past that the agent has seen"
            }
            Self::StaleConfirmation => "1: a stale confirmation never counts",
            Self::RewoundWithoutCause => {
                "1: only a registry that went back in time is refused as such"
            }
            Self::Unsettled => {
                "2, 10: after the faults stop, every drive reaches its goal or a true reason is told"
            }
            Self::RemovedWhileOpen => "3: S_OK to Remove means that the drive is closed",
            Self::ReopenedAfterRemoval => "3: a removed drive stays closed until a newer Add",
            Self::PlacedOnClosedDrive => {
                "4: no volume is placed on a drive that is not in operation"
            }
            Self::ClosedUnderVolumes => "5: a drive with volumes is never closed by an order",
            Self::Forgotten => "7: what a client was told is durable",
            Self::ActedBeforeSaved => "7: an order is on the agent's disk before it is carried out",
            Self::AnsweredBeforeSaved => "7: an order is on the agent's disk before it is answered",
            Self::TwoWriters => "6: at most one use of a volume is in force, the newest",
            Self::FreedInUse => "6, 8: a volume that somebody uses is not freed",
            Self::NotOnLabel => "7: a volume that a client was told of is on its drive's label",
            Self::TwoOwners => "8: no byte belongs to two volumes",
            Self::OldData => "8: no extent is given out with old data",
            Self::ErasedOther => {
                "8: zeroed is only what the label calls dirty, and of the volume named"
            }
            Self::VolumeDestroyed => "8: nothing but its own deletion takes a volume's bytes",
            Self::DryRunChanges => "a dry run changes nothing",
            Self::Delayed => "11: trouble elsewhere does not delay a node that is well",
            Self::HotLoop => "retries pause, and are bounded in flight",
            Self::Panicked => "core never meets a state that it holds for impossible",
        }
    }
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}): {}", self.invariant.words(), self.invariant, self.what)
    }
}

/// Something that a client is told of a drive, as it was when it was decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    pub(crate) drive: DriveId,
    pub(crate) generation: Generation,
    goal: Goal,
    what: ToldWhat,
    /// What is wanted of the drive has changed by this.
    pub(crate) changed: bool,
}

#[derive(Debug, Clone, Copy)]
enum ToldWhat {
    /// The wish is noted.
    Wish,
    /// The drive is closed. `excused`: the registry cannot know better.
    Removed { excused: bool },
}

/// What happened lately, by site or machine and drive.
type PerDrive<K> = BTreeMap<(usize, DriveId), pace::Recent<K>>;

/// A site, and a drive or one of its volumes.
type AboutVolumes = (usize, (DriveId, Option<VolumeId>));

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The terms that each reign knew when it began.
    terms: BTreeMap<u64, Vec<Term>>,
    /// By machine and drive: the newest generation that was acted upon, and how.
    acted: BTreeMap<(usize, DriveId), (Generation, Goal)>,
    /// By site and drive: what clients were told.
    told: BTreeMap<(usize, DriveId), (Generation, Goal)>,
    /// By machine and drive: the generation at which a removal was last answered `S_OK`. By machine as well, because
    /// two registries may hold a drive that was moved for two machines.
    removed: BTreeMap<(usize, DriveId), Generation>,
    /// Drives opened by their label, because the record was lost, of which the registry has not heard yet.
    by_label: BTreeSet<(usize, DriveId)>,
    /// Volumes that a client knows to be placed, with the drive's generation when it was told.
    volumes: BTreeMap<DriveId, BTreeMap<VolumeId, Generation>>,
    /// Volumes that clients were told are made, with their size, until they are asked to be deleted.
    kept: BTreeMap<VolumeId, u64>,
    /// By site: volumes that clients were told are used by nobody, until a use is asked for.
    unused: BTreeSet<(usize, VolumeId)>,
    /// Volumes that were asked to be deleted.
    given_back: BTreeSet<VolumeId>,
    /// The newest epoch under which each volume was used.
    epochs: BTreeMap<VolumeId, Epoch>,
    /// By site, drive and volume: orders about volumes sent, since label or epoch, reign or session changed.
    volume_orders: BTreeMap<AboutVolumes, pace::Recent<(u64, u64, u64)>>,
    /// The names of hosts that were ever purged.
    purged: BTreeSet<String>,
    /// By site: orders sent, since generation, reign or session changed.
    orders: PerDrive<(Generation, u64, u64)>,
    /// By machine: steps begun, since the agent's start or the generation changed.
    steps: PerDrive<(u64, Option<Generation>)>,
    /// Why each machine was turned away last, until it is registered.
    refusals: BTreeMap<usize, String>,
}

impl World {
    /// The first broken invariant counts; what follows from it does not.
    pub(crate) fn breaks(&mut self, invariant: Invariant, what: String) {
        let violation = Violation { invariant, what };
        note!(self, "BROKEN: {violation}");
        self.broken.get_or_insert(violation);
    }
}

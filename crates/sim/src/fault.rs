//! The vocabulary of faults, and how often each befell a run.
//!
//! A fault is counted where it takes effect, not where it is planned: what the table shows has really happened.

use std::collections::BTreeMap;
use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident)*) => {
        /// What can go wrong, and what is done to make trouble.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

faults! {
    /// The registry dies with nothing under way.
    RegistryCrash
    /// The registry dies while it writes; the write is lost.
    RegistryCrashWriteLost
    /// The registry dies after a write that it never heard the end of.
    RegistryCrashWriteLanded
    /// The registry dies with several records under way, of which some are written and others not.
    RegistryCrashSomeLanded
    /// The registry dies with some of what a write let out said, and the rest not.
    RegistryCrashBetweenReleases
    /// The registry dies while it takes the lead.
    RegistryCrashTakingLead
    /// The store cannot be written for a while.
    StoreErrors
    /// A write is reported as failed, and is on disk.
    StoreErrorAfterLanding
    /// A request is refused because the store cannot be written.
    RequestRefusedByStore
    /// The write of a single record fails.
    RecordError
    /// The write of a single record is reported as failed, and is on disk.
    RecordErrorAfterLanding
    /// A single record cannot be written for a while; others can.
    RecordRefused
    /// An order is free to leave before the answer to the registration that it must come after.
    OrderParked
    /// The registry's store is replaced by an earlier copy of it.
    BackupRestored
    /// A second registry runs on a copy of the store.
    RivalStarted
    /// A node dials the rival, or comes back from it.
    NodeDialsRival
    /// A registry is refused a node that knows newer orders.
    RewoundNoticed
    /// A person lets a restored registry learn from the nodes.
    Adopted
    /// The agent dies with nothing under way.
    AgentCrash
    /// The agent dies while its record is written; the write is lost.
    AgentCrashSaveLost
    /// The agent dies after a write of its record that it never heard the end of.
    AgentCrashSaveLanded
    /// The agent dies around the moment that it has its record written.
    AgentCrashAtSave
    /// The agent dies around the moment that it answers.
    AgentCrashAtSend
    /// The agent dies with a step on a drive under way.
    AgentCrashInStep
    /// The machine loses power: nobody says goodbye.
    PowerLoss
    /// A child outlives its agent and holds the drive.
    ChildOutlivesAgent
    /// The record is gone after a crash.
    RecordLost
    /// The record cannot be believed after a crash.
    RecordDamaged
    /// The whole state directory is gone after a crash.
    DirectoryLost
    /// The record cannot be written for a while.
    RecordErrors
    /// A step on a drive hangs, and ends late.
    StepHangs
    /// A drive cannot be opened for a while.
    AttachFails
    /// An attach fails after it has written the label.
    AttachFailsAfterLabel
    /// A label cannot be written when a drive is let go.
    ReleaseNotWritten
    /// Another process has the drive open for a while.
    ForeignHolder
    /// The machine does not let the agent look for a while.
    CannotProve
    DrivePulled
    DrivePutBack
    /// Another drive is put into the bay.
    DriveSwapped
    /// A drive is put into another machine.
    DriveMoved
    /// The machine shows other evidence for a drive than before, for a while.
    EvidenceMismatch
    PartitionOne
    PartitionMany
    /// What the node says is not heard; what it is told is.
    PartitionUp
    /// What the node is told is not heard; what it says is.
    PartitionDown
    /// A connection ends by itself.
    ConnectionCut
    RegistryNoticesLate
    AgentNoticesLate
    /// An order over an old connection arrives after the agent has dialled again.
    LateOrder
    /// An order that arrived before arrives once more after the agent has dialled again.
    DoubledOrder
    /// An answer over an old connection arrives after the agent has registered again.
    LateAnswer
    /// A machine's timers run at another speed.
    ClockSpeed
    /// The registry's wall clock jumps.
    WallClockJump
    ClientGivesUp
    /// A client hears no answer, and asks again.
    ClientUnanswered
    DryRun
    VolumeCreated
    VolumeExpanded
    /// A volume grows by another piece of its drive.
    VolumeInPieces
    VolumeAttached
    VolumeWritten
    VolumeDetached
    VolumeDeleted
    /// A piece of what a deleted volume had is zeroed.
    ExtentErased
    /// A label order was decided on another label, or does not fit the label that it was decided on.
    LabelOrderRefused
    /// A change of a label fails, and nothing was done.
    LabelChangeFails
    /// A change of a label fails after it was written.
    LabelChangeFailsAfter
    /// The child that changes a label dies.
    LabelChangeCutOff
    /// An order about volumes over an old connection arrives late.
    LateVolumeOrder
    /// A drive is not closed because volumes are on its label.
    DetachRefusedInUse
    /// The use of a volume is to end, and somebody still has it.
    UseStillThere
    /// A host that is away is given up.
    HostPurged
    /// A host that was given up is taken back.
    HostReturned
    /// A person says that a drive belongs to the node that has it now.
    TakeOverAsked
    /// A drive that the label gives to another host is opened, by what a person said.
    TakenOver
}

/// How often each fault happened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    counts: BTreeMap<Fault, u64>,
}

impl Coverage {
    pub(crate) fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (fault, count) in &other.counts {
            *self.counts.entry(*fault).or_default() += count;
        }
    }

    /// The faults that never happened.
    pub fn missing(&self) -> Vec<Fault> {
        Fault::ALL.iter().copied().filter(|fault| !self.counts.contains_key(fault)).collect()
    }
}

/// A table, one line per fault.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in Fault::ALL {
            let count = self.counts.get(fault).copied().unwrap_or_default();
            writeln!(f, "  {:<28} {count:>10}", format!("{fault:?}"))?;
        }
        Ok(())
    }
}

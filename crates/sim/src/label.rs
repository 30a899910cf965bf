//! The label of a drive with its extents, and the bytes behind it: who wrote each MiB last, and what was zeroed since.
//!
//! What may become of the table is decided by core. Here it takes effect, fails before or after that, or is cut off.

use std::collections::BTreeMap;
use std::ops::Range;

use hotbay_core::agent::Identity;
use hotbay_core::device::LabelSeen;
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_core::label::change::{Basis, Change, Changed, LabelTold, changed};
use hotbay_core::label::extents::{
    ALIGNMENT_BYTES, Digest, Extent, FIRST_EXTENT_BYTES, Use, encode,
};
use hotbay_core::label::table::TableState;
use hotbay_core::label::update::{Plan, Refusal, Want, plan};
use hotbay_core::label::{Found, Header, SlotNumber};
use hotbay_core::message::Obstacle;
use hotbay_core::order::Generation;
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::{LabelOrder, LabelResult};

use crate::fault::Fault;
use crate::log::note;
use crate::machine::short;
use crate::world::World;

/// Where extents end: little, so that what was freed is soon given out again.
const LIMIT_BYTES: u64 = FIRST_EXTENT_BYTES + (256 << 20);

/// What is on a drive.
#[derive(Debug, Default)]
pub(crate) struct Label {
    header: Option<Header>,
    pub(crate) extents: Vec<Extent>,
    /// Which volume's bytes are in each MiB; what is not here is zero.
    bytes: BTreeMap<u64, VolumeId>,
}

impl Label {
    pub(crate) fn seen(&self) -> Option<LabelSeen> {
        self.header.map(LabelSeen::from)
    }

    /// What an agent tells of it.
    pub(crate) fn told(&self) -> Option<LabelTold> {
        let basis = Basis::of(self.header.as_ref()?);
        Some(LabelTold { basis, extents: self.extents.clone(), limit_bytes: LIMIT_BYTES })
    }

    pub(crate) fn used(&self) -> impl Iterator<Item = &Extent> {
        self.extents.iter().filter(|extent| extent.usage == Use::Used)
    }

    /// How much a volume has on this drive.
    pub(crate) fn bytes_of(&self, volume: VolumeId) -> u64 {
        self.used().filter(|extent| extent.volume == volume).map(|extent| extent.length_bytes).sum()
    }

    /// Brings the header up to date, by core's rules; the extents stay.
    pub(crate) fn write(&mut self, want: &Want) -> Result<Option<LabelSeen>, Refusal> {
        let found = match self.header {
            Some(header) => Found::Valid { header, slot: SlotNumber::Zero },
            None => Found::Absent,
        };
        let header = match plan(found, TableState::Whole, None, want)? {
            Plan::Nothing => return Ok(None),
            Plan::Keep(header) | Plan::Initialise(header) | Plan::Update { header, .. } => header,
        };
        self.header = Some(header);
        Ok(self.seen())
    }

    /// Whether the label says that this node holds the drive, and at which generation.
    fn is_held(&self, order: &LabelOrder, identity: Identity, generation: Generation) -> bool {
        self.header.is_some_and(|header| {
            header.in_operation
                && (header.cluster, header.node) == (identity.cluster, identity.node)
                && (header.drive, header.generation) == (order.drive, generation)
        })
    }

    fn write_table(&mut self, extents: Vec<Extent>) {
        let header = self.header.as_mut().expect("only what has a label changes");
        header.sequence += 1;
        header.extents = Digest::of(&encode(&extents));
        self.extents = extents;
    }

    /// Whose bytes are in a piece of the drive.
    pub(crate) fn owners(&self, piece: Range<u64>) -> impl Iterator<Item = VolumeId> {
        let (first, end) = (piece.start / ALIGNMENT_BYTES, piece.end / ALIGNMENT_BYTES);
        self.bytes.range(first..end).map(|(_, volume)| *volume)
    }

    fn zero(&mut self, piece: Range<u64>) {
        let (first, end) = (piece.start / ALIGNMENT_BYTES, piece.end / ALIGNMENT_BYTES);
        self.bytes.retain(|mib, _| !(first..end).contains(mib));
    }

    /// A user of a volume writes one MiB.
    pub(crate) fn user_writes(&mut self, mib: u64, volume: VolumeId) -> Option<VolumeId> {
        self.bytes.insert(mib, volume)
    }
}

impl World {
    /// A change of a label comes to its end.
    pub(crate) fn change_ends(
        &mut self,
        machine: usize,
        disk: usize,
        order: &LabelOrder,
        (identity, generation): (Identity, Generation),
    ) -> LabelResult {
        let failed = |error: &str| LabelResult::Failed { error: error.to_owned() };
        let there = self.machines[machine].bays.contains(&Some(disk));
        if !there {
            return failed("no such device");
        }
        if self.outlived(machine, disk) {
            return failed("another child has it locked");
        }
        let fails = self.disks[disk].label_fails;
        if fails && self.rng.chance(500) {
            self.fault(Fault::LabelChangeFails);
            return failed("input/output error");
        }
        let uses = self.reached(machine, disk, order);
        if !uses.is_empty() {
            return LabelResult::InUse { uses };
        }
        let label = &self.disks[disk].label;
        if !label.is_held(order, identity, generation) {
            return failed("the label does not say that this node holds the drive");
        }
        let header = label.header.expect("it is held");
        let made = match changed(&header, &label.extents, order.basis, &order.changes, LIMIT_BYTES)
        {
            Ok(made) => made,
            Err(why) => {
                let told = label.told().expect("it is held");
                self.fault(Fault::LabelOrderRefused);
                return LabelResult::Refused { why: why.to_string(), told };
            }
        };
        self.label_may_change(disk, order, &made);
        self.change(disk, made);
        note!(
            self,
            "{}: the label of {} has sequence {}: {:?}",
            self.machines[machine].name,
            short(order.drive),
            header.sequence + 1,
            order.changes
        );
        if fails {
            self.fault(Fault::LabelChangeFailsAfter);
            return failed("input/output error");
        }
        let now = self.disks[disk].label.told().expect("just written").basis;
        LabelResult::Done { now }
    }

    /// What an order takes off a drive and is still mapped there.
    fn reached(&self, machine: usize, disk: usize, order: &LabelOrder) -> Vec<(VolumeId, Epoch)> {
        let mapped = &self.machines[machine].mapped;
        let taken_off = order.changes.iter().filter_map(Change::takes_off);
        let reached = taken_off.filter_map(|volume| Some((volume, mapped.get(&volume)?)));
        let reached = reached.filter(|(_, mapping)| mapping.disk == disk);
        reached.map(|(volume, mapping)| (volume, mapping.epoch)).collect()
    }

    fn change(&mut self, disk: usize, made: Changed) {
        let label = &mut self.disks[disk].label;
        if let Some(range) = made.erase {
            label.zero(range);
            self.coverage.count(Fault::ExtentErased);
        }
        label.write_table(made.extents);
    }

    /// The child that changes a label dies: nothing is done, or all of it, or an erase has come some way.
    pub(crate) fn change_cut_off(
        &mut self,
        machine: usize,
        disk: usize,
        order: &LabelOrder,
        by: (Identity, Generation),
    ) {
        self.fault(Fault::LabelChangeCutOff);
        if self.rng.chance(500) {
            // It died all the same: only what is on the drive counts.
            drop(self.change_ends(machine, disk, order, by));
            return;
        }
        let label = &self.disks[disk].label;
        let there = self.machines[machine].bays.contains(&Some(disk));
        let reached = !self.reached(machine, disk, order).is_empty();
        if !there || reached || !label.is_held(order, by.0, by.1) {
            return;
        }
        let header = label.header.expect("it is held");
        let made = changed(&header, &label.extents, order.basis, &order.changes, LIMIT_BYTES);
        let Some(range) = made.ok().and_then(|made| {
            self.label_may_change(disk, order, &made);
            made.erase
        }) else {
            return;
        };
        let mib = (range.end - range.start) / ALIGNMENT_BYTES;
        let some = self.rng.between(0, mib) * ALIGNMENT_BYTES;
        self.disks[disk].label.zero(range.start..range.start + some);
    }

    /// What keeps a machine from closing a drive that it holds: the volumes on it, or, if they were given up, those
    /// that are mapped there.
    pub(crate) fn in_use(
        &self,
        machine: usize,
        drive: DriveId,
        disk: usize,
        identity: Identity,
    ) -> Option<Obstacle> {
        let label = &self.disks[disk].label;
        let held = label.header.is_some_and(|header| {
            header.in_operation
                && (header.cluster, header.node) == (identity.cluster, identity.node)
        });
        let there = &self.machines[machine];
        if there.process.as_ref().is_some_and(|process| process.agent.is_given_up(drive)) {
            let mapped = there.mapped.iter().filter(|(_, mapping)| mapping.disk == disk);
            let by: Vec<_> = mapped.map(|(volume, _)| format!("volume {volume}")).collect();
            return (!by.is_empty()).then_some(Obstacle::Blocked { by });
        }
        let volumes: Vec<_> = label.used().map(|extent| extent.name.to_string()).collect();
        (held && !volumes.is_empty()).then_some(Obstacle::InUse { volumes })
    }
}

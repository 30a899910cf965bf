//! Turns a [`Candidate`] and what a child saw on it into what the agent reports: the drive, and why it is denied.
//!
//! Any doubt is theirs: what could not be looked at, or not in time, is denied with that reason.

use std::time::Duration;

use hotbay_core::device::{Denied, Details, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId};
use hotbay_core::label::table::{LEAST_DRIVE_BYTES, Table, Unfit};

use super::{Candidate, Signatures, member};
use crate::worker::{
    Done, LabelLook, LookError, Looked, Request, Response, Running, WorkerError, Workers, chain,
};

/// What came of looking at a device.
#[derive(Debug)]
pub struct Observation {
    pub observed: Observed,
    /// The child that has not answered in time. While it is there, the device is not to be looked at again: each
    /// look would leave another one behind.
    pub unfinished: Option<Running>,
}

/// A device that is not to be opened: what can be told from outside.
pub fn unlooked(candidate: &Candidate, evidence: Evidence) -> Observed {
    Observed {
        evidence,
        path: candidate.path.clone(),
        bay: candidate.bay.clone(),
        kind: candidate.kind,
        media: candidate.media,
        size_bytes: candidate.size_bytes,
        block_bytes: candidate.block_bytes,
        details: Box::new(candidate.details()),
        label: None,
        denied: denied_from_outside(candidate),
    }
}

/// What is on a device, kept so that what is seen from outside can be told anew without another look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Inside {
    /// What a child saw, or why it saw nothing.
    Seen(Result<Looked, LookError>),
    /// Which drive it is, which is asked without opening it, and why a child saw no more.
    Unread { evidence: Evidence, error: LookError },
    /// It must not be opened. What it is known by was found otherwise.
    NotOpened(Evidence),
}

impl Inside {
    /// Whether what is on it is unknown, for a reason that may pass.
    pub fn is_doubtful(&self) -> bool {
        match self {
            Self::Seen(Ok(Looked { label, .. })) => match label {
                LabelLook::Absent { signatures: Signatures::Unclear(_), .. } => true,
                LabelLook::Absent { .. }
                | LabelLook::Valid(_)
                | LabelLook::Damaged
                | LabelLook::UnknownVersion(_) => false,
            },
            Self::Seen(Err(_)) | Self::Unread { .. } => true,
            Self::NotOpened(_) => false,
        }
    }
}

/// Has a child look at a device and tells what that comes to: [`look`] and [`compose`] in one.
pub async fn observe(
    workers: &Workers,
    candidate: &Candidate,
    ours: Option<ClusterId>,
    limit: Duration,
) -> Observation {
    let (looked, unfinished) = look(workers, candidate, limit).await;
    Observation { observed: compose(candidate, &Inside::Seen(looked), ours), unfinished }
}

/// Has a child look at a device, for at most `limit`. A child that has not answered by then is given back.
pub async fn look(
    workers: &Workers,
    candidate: &Candidate,
    limit: Duration,
) -> (Result<Looked, LookError>, Option<Running>) {
    let unreadable = |error: String| Err(LookError::Unreadable { error });
    let mut running = match workers.start(Request::Look { path: candidate.path.clone() }, vec![]) {
        Ok(running) => running,
        Err(not_started) => return (unreadable(chain(&not_started)), None),
    };
    match tokio::time::timeout(limit, &mut running).await {
        Ok(answer) => (looked_in(answer), None),
        Err(_) => {
            let error = format!(
                "no answer within {} s; process {} still waits for it",
                limit.as_secs(),
                running.pid()
            );
            (unreadable(error), Some(running))
        }
    }
}

/// What a child that was asked to look has answered.
pub fn looked_in(answer: Result<Done, WorkerError>) -> Result<Looked, LookError> {
    let unreadable = |error: String| Err(LookError::Unreadable { error });
    match answer.map(|done| done.response) {
        Ok(Response::Looked(looked)) => looked,
        Ok(other) => unreadable(format!("an answer to another question: {other:?}")),
        Err(error) => unreadable(chain(&error)),
    }
}

/// What a device is, from what is seen from outside and what is on it. A valid label of the cluster `ours` makes the
/// drive one of ours, and what its label implies (a partition table, bytes that are not zero) no reason against it.
pub fn compose(candidate: &Candidate, inside: &Inside, ours: Option<ClusterId>) -> Observed {
    match inside {
        Inside::Seen(looked) => judge(candidate, looked, ours),
        Inside::Unread { evidence, error } => {
            let candidate = Candidate { evidence: evidence.clone(), ..candidate.clone() };
            judge(&candidate, &Err(error.clone()), ours)
        }
        Inside::NotOpened(evidence) => unlooked(candidate, evidence.clone()),
    }
}

fn judge(
    candidate: &Candidate,
    looked: &Result<Looked, LookError>,
    ours: Option<ClusterId>,
) -> Observed {
    let mut denied = denied_from_outside(candidate);
    let mut evidence = candidate.evidence.clone();
    let mut label = None;
    match looked {
        Ok(looked) if looked.id != candidate.id => {
            denied.push(Denied::Unreadable { error: "another device has taken its place".into() });
        }
        Ok(looked) => {
            evidence = looked.evidence.clone();
            if let LabelLook::Valid(seen) = looked.label {
                label = Some(seen);
            }
            forget_mappings(&mut denied, &looked.mappings);
            if !looked.stray.is_empty() {
                denied.push(Denied::Held { by: looked.stray.clone() });
            }
            denied.extend(denied_by_label(candidate, looked, ours));
        }
        Err(error) => denied.push(Denied::Unreadable { error: error.to_string() }),
    }
    if evidence.is_empty() {
        denied.push(Denied::NoIdentity);
    }
    let contents = looked.as_ref().ok().and_then(contents);
    let details = Box::new(Details { contents, ..candidate.details() });
    Observed { label, denied, details, ..unlooked(candidate, evidence) }
}

/// A loop device that is the mapping of a volume is no reason against the drive that has the volume.
fn forget_mappings(denied: &mut Vec<Denied>, mappings: &[String]) {
    for reason in denied.iter_mut() {
        if let Denied::Looped { by } = reason {
            by.retain(|path| !mappings.contains(path));
        }
    }
    denied.retain(|reason| !matches!(reason, Denied::Looped { by } if by.is_empty()));
}

/// What is on the device as a whole, if that is not ours.
fn contents(looked: &Looked) -> Option<String> {
    match &looked.label {
        LabelLook::Absent { signatures: Signatures::Found { table, content }, .. } => {
            content.clone().or_else(|| table.clone())
        }
        LabelLook::Absent { signatures: Signatures::Nothing | Signatures::Unclear(_), .. }
        | LabelLook::Valid(_)
        | LabelLook::Damaged
        | LabelLook::UnknownVersion(_) => None,
    }
}

/// Reasons that need no look at the device.
pub(crate) fn denied_from_outside(candidate: &Candidate) -> Vec<Denied> {
    let mut denied = Vec::new();
    let system = candidate.system_mounts();
    let mounts = &candidate.mounts;
    if !system.is_empty() {
        denied.push(Denied::SystemDrive { mounts: system });
    } else if !mounts.is_empty() {
        denied.push(Denied::Mounted { at: mounts.clone() });
    }
    if !candidate.swaps.is_empty() {
        denied.push(Denied::Swap { at: candidate.swaps.clone() });
    }
    denied.extend(member::denied_by_holders(candidate));
    if !candidate.loops.is_empty() {
        denied.push(Denied::Looped { by: candidate.loops.clone() });
    }
    if candidate.read_only {
        denied.push(Denied::ReadOnly);
    }
    if candidate.removable {
        denied.push(Denied::Removable);
    }
    if candidate.size_bytes == 0 || candidate.block_bytes == 0 {
        denied.push(Denied::Unreadable { error: "its size is not known".into() });
    } else {
        denied.extend(unfit(candidate.size_bytes, candidate.block_bytes));
    }
    denied
}

/// Whether a label fits on a drive of this shape at all.
fn unfit(size_bytes: u64, block_bytes: u32) -> Option<Denied> {
    // The shape of the table does not depend on the id in it.
    match Table::new(DriveId::from_bits(0), size_bytes, block_bytes).err()? {
        Unfit::TooSmall { size_bytes } => {
            Some(Denied::TooSmall { size_bytes, least_bytes: LEAST_DRIVE_BYTES })
        }
        unfit @ (Unfit::BlockSize { .. } | Unfit::PartialBlock { .. }) => {
            Some(Denied::Unreadable { error: unfit.to_string() })
        }
    }
}

fn denied_by_label(candidate: &Candidate, looked: &Looked, ours: Option<ClusterId>) -> Vec<Denied> {
    match &looked.label {
        LabelLook::Valid(seen) if Some(seen.cluster) == ours => vec![],
        LabelLook::Valid(seen) => vec![Denied::ForeignCluster { cluster: seen.cluster }],
        LabelLook::Damaged => vec![Denied::DamagedLabel],
        LabelLook::UnknownVersion(version) => vec![Denied::Unreadable {
            error: format!("its label is of format {version}, which a later version wrote"),
        }],
        LabelLook::Absent { signatures, first_nonzero } => {
            denied_by_contents(candidate, signatures, *first_nonzero)
        }
    }
}

/// Reasons on a drive without a label: anything on it at all.
pub(crate) fn denied_by_contents(
    candidate: &Candidate,
    signatures: &Signatures,
    first_nonzero: Option<u64>,
) -> Vec<Denied> {
    let mut denied = Vec::new();
    match signatures {
        Signatures::Nothing => {}
        Signatures::Found { table, content } => {
            denied.extend(table.clone().map(|table| Denied::Partitioned { table }));
            let known = content.as_ref().map(|kind| member::denied_by_kind(candidate, kind));
            denied.extend(known.flatten());
        }
        Signatures::Unclear(why) => denied.push(Denied::Unreadable { error: why.clone() }),
    }
    let partitioned = denied.iter().any(|denied| matches!(denied, Denied::Partitioned { .. }));
    if !candidate.partitions.is_empty() && !partitioned {
        let names: Vec<&str> = candidate.partitions.iter().map(|p| p.name.as_str()).collect();
        denied.push(Denied::Partitioned { table: names.join(", ") });
    }
    // Bytes that belong to something with a name are no reason of their own.
    let has_name = matches!(signatures, Signatures::Found { .. }) || !denied.is_empty();
    if let (Some(at_byte), false) = (first_nonzero, has_name) {
        denied.push(Denied::NotEmpty { at_byte });
    }
    denied
}

#[cfg(test)]
mod tests {
    use hotbay_core::device::{DeviceKind, LabelSeen, Media, Partition, Transport};
    use hotbay_core::evidence::Evidence;
    use hotbay_core::ids::NodeId;
    use hotbay_core::order::Generation;

    use super::*;
    use crate::kernel_id::{DeviceNumber, KernelId};
    use crate::scan::Holder;

    const OURS: ClusterId = ClusterId::from_bits(1);

    fn candidate() -> Candidate {
        Candidate {
            id: KernelId::Block(DeviceNumber { major: 8, minor: 16 }),
            sequence: Some(1),
            kind: DeviceKind::Block,
            path: "/dev/sdb".into(),
            size_bytes: LEAST_DRIVE_BYTES,
            block_bytes: 512,
            media: Media::Ssd,
            evidence: Evidence::default(),
            bay: None,
            enclosure: None,
            vendor: None,
            firmware: None,
            transport: Transport::Sas,
            physical_block_bytes: 4096,
            read_only: false,
            removable: false,
            zoned: false,
            links: vec![],
            holders: vec![],
            partitions: vec![],
            stack: vec![],
            mounts: vec![],
            swaps: vec![],
            loops: vec![],
        }
    }

    fn partition() -> Partition {
        Partition { name: "sdb1".into(), size_bytes: 1 << 20 }
    }

    fn looked() -> Looked {
        Looked {
            id: candidate().id,
            evidence: Evidence { wwn: Some("5000".into()), ..Evidence::default() },
            label: absent(Signatures::Nothing, None),
            mappings: vec![],
            stray: vec![],
        }
    }

    fn absent(signatures: Signatures, first_nonzero: Option<u64>) -> LabelLook {
        LabelLook::Absent { signatures, first_nonzero }
    }

    fn label(cluster: ClusterId) -> LabelLook {
        LabelLook::Valid(LabelSeen {
            cluster,
            drive: DriveId::from_bits(2),
            node: NodeId::from_bits(3),
            generation: Generation::from_number(4),
            in_operation: true,
            sequence: 5,
        })
    }

    fn gpt() -> Signatures {
        Signatures::Found { table: Some("gpt".into()), content: None }
    }

    #[test]
    fn an_empty_drive_and_one_of_ours_are_not_denied() {
        assert_eq!(judge(&candidate(), &Ok(looked()), Some(OURS)).denied, []);
        let ours = Looked { label: label(OURS), ..looked() };
        let with_partition = Candidate { partitions: vec![partition()], ..candidate() };
        let observed = judge(&with_partition, &Ok(ours.clone()), Some(OURS));
        assert_eq!(observed.denied, []);
        assert!(observed.label.is_some());
        // The same label means nothing to another cluster, or to a node that has none.
        for cluster in [None, Some(ClusterId::from_bits(9))] {
            let denied = judge(&with_partition, &Ok(ours.clone()), cluster).denied;
            assert_eq!(denied, [Denied::ForeignCluster { cluster: OURS }]);
        }
    }

    #[test]
    fn anything_on_a_drive_without_a_label_is_a_reason() {
        let denied = |looked: Looked| judge(&candidate(), &Ok(looked), Some(OURS)).denied;
        let partitioned = Denied::Partitioned { table: "gpt".into() };
        assert_eq!(denied(Looked { label: absent(gpt(), Some(510)), ..looked() }), [partitioned]);
        let nonzero = Looked { label: absent(Signatures::Nothing, Some(7)), ..looked() };
        assert_eq!(denied(nonzero), [Denied::NotEmpty { at_byte: 7 }]);
        let why = Signatures::Unclear("why".into());
        let unclear = Looked { label: absent(why, None), ..looked() };
        assert_eq!(denied(unclear), [Denied::Unreadable { error: "why".into() }]);
        assert_eq!(
            denied(Looked { label: LabelLook::Damaged, ..looked() }),
            [Denied::DamagedLabel]
        );
        // Of ours, and nothing on the drive says whose it would be.
        let stray = Looked { stray: vec!["dm-3".into()], ..looked() };
        assert_eq!(denied(stray), [Denied::Held { by: vec!["dm-3".into()] }]);
        let nameless = Looked { evidence: Evidence::default(), ..looked() };
        assert_eq!(denied(nameless), [Denied::NoIdentity]);
        let moved = KernelId::Block(DeviceNumber { major: 8, minor: 32 });
        assert!(matches!(denied(Looked { id: moved, ..looked() })[0], Denied::Unreadable { .. }));
    }

    #[test]
    fn what_the_kernel_shows_is_a_reason_even_on_a_drive_of_ours() {
        let ours = || Looked { label: label(OURS), ..looked() };
        let denied = |candidate: Candidate| judge(&candidate, &Ok(ours()), Some(OURS)).denied;
        let root = Candidate { mounts: vec!["/".into(), "/srv".into()], ..candidate() };
        assert_eq!(denied(root), [Denied::SystemDrive { mounts: vec!["/".into()] }]);
        let mounted = Candidate { mounts: vec!["/mnt".into()], ..candidate() };
        assert_eq!(denied(mounted), [Denied::Mounted { at: vec!["/mnt".into()] }]);
        assert_eq!(denied(Candidate { read_only: true, ..candidate() }), [Denied::ReadOnly]);
        let no_size = Candidate { size_bytes: 0, ..candidate() };
        assert!(matches!(denied(no_size)[..], [Denied::Unreadable { .. }]));
        let small = Candidate { size_bytes: 4096, ..candidate() };
        assert!(matches!(denied(small)[..], [Denied::TooSmall { .. }]));
        let odd = Candidate { block_bytes: 520, ..candidate() };
        assert!(matches!(denied(odd)[..], [Denied::Unreadable { .. }]));
    }

    #[test]
    fn a_member_is_named_once_and_by_what_it_belongs_to() {
        let raid = |content: &str| Looked {
            label: absent(
                Signatures::Found { table: None, content: Some(content.into()) },
                Some(4096),
            ),
            ..looked()
        };
        let member = |of: &str, by: &[&str]| Denied::Member {
            of: of.into(),
            by: by.iter().map(|by| (*by).to_owned()).collect(),
        };
        let holder =
            |name: &str, member_of| Holder { name: name.into(), called: name.into(), member_of };
        let idle = judge(&candidate(), &Ok(raid("linux_raid_member")), Some(OURS));
        assert_eq!(idle.denied, [member("software RAID", &[])]);
        assert_eq!(idle.details.contents.as_deref(), Some("linux_raid_member"));
        let holders = vec![holder("md0", Some("software RAID")), holder("dm-1", None)];
        let held = Candidate { holders, ..candidate() };
        let active = judge(&held, &Ok(raid("linux_raid_member")), Some(OURS));
        let by_others = Denied::Held { by: vec!["dm-1".into()] };
        assert_eq!(active.denied, [member("software RAID", &["md0"]), by_others.clone()]);
        let both = judge(&held, &Ok(raid("LVM2_member")), Some(OURS));
        let expected = [member("software RAID", &["md0"]), by_others, member("LVM", &[])];
        assert_eq!(both.denied, expected);
        let filesystem = judge(&candidate(), &Ok(raid("ext4")), Some(OURS));
        assert_eq!(filesystem.denied, [Denied::Filesystem { kind: "ext4".into() }]);
    }

    #[test]
    fn a_table_is_told_as_contents_unless_it_is_ours() {
        let contents = |label| {
            let looked = Looked { label, ..looked() };
            judge(&candidate(), &Ok(looked), Some(OURS)).details.contents
        };
        assert_eq!(contents(absent(gpt(), None)).as_deref(), Some("gpt"));
        let both = Signatures::Found { table: Some("dos".into()), content: Some("vfat".into()) };
        assert_eq!(contents(absent(both, None)).as_deref(), Some("vfat"));
        assert_eq!(contents(absent(Signatures::Nothing, None)), None);
        assert_eq!(contents(label(OURS)), None);
        assert_eq!(contents(LabelLook::Damaged), None);
    }

    #[test]
    fn the_slot_is_the_bay() {
        let in_slot = Candidate { bay: Some("7".into()), ..candidate() };
        assert_eq!(judge(&in_slot, &Ok(looked()), Some(OURS)).bay.as_deref(), Some("7"));
        assert_eq!(unlooked(&in_slot, Evidence::default()).bay.as_deref(), Some("7"));
    }

    #[test]
    fn a_device_that_cannot_be_looked_at_is_denied() {
        let error = LookError::Unreadable { error: "gone".into() };
        let denied = judge(&candidate(), &Err(error), Some(OURS)).denied;
        assert!(denied.iter().any(|denied| matches!(denied, Denied::Unreadable { .. })));
    }
}

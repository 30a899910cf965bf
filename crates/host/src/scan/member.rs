//! What a drive is a member of, by what is on it and by what holds it: LVM, LUKS, a software RAID and so on.

use hotbay_core::device::Denied;

use super::Candidate;

/// What `blkid` calls members, and what people call that which they are members of.
const CONTENTS: [(&str, &str); 11] = [
    ("LVM2_member", "LVM"),
    ("LVM1_member", "LVM"),
    ("crypto_LUKS", "LUKS"),
    ("linux_raid_member", "software RAID"),
    ("mpath_member", "multipath"),
    ("zfs_member", "ZFS"),
    ("bcache", "bcache"),
    ("ceph_bluestore", "Ceph"),
    ("drbd", "DRBD"),
    ("stratis", "Stratis"),
    ("vdo", "VDO"),
];

/// What a device with such contents is a member of, if of anything.
pub(super) fn by_contents(kind: &str) -> Option<&'static str> {
    let known = CONTENTS.iter().find(|(contents, _)| *contents == kind).map(|(_, of)| *of);
    // Every maker of RAID controllers has a name of its own before this.
    known.or_else(|| kind.ends_with("_raid_member").then_some("firmware RAID"))
}

/// The reasons against a drive that something holds. Holders that nobody here knows just hold it.
pub(super) fn denied_by_holders(candidate: &Candidate) -> Vec<Denied> {
    let mut denied: Vec<Denied> = Vec::new();
    let mut others = Vec::new();
    for holder in &candidate.holders {
        let Some(known) = holder.member_of else {
            others.push(holder.name.clone());
            continue;
        };
        let same = denied.iter_mut().find_map(|reason| match reason {
            Denied::Member { of, by } if of == known => Some(by),
            _ => None,
        });
        match same {
            Some(by) => by.push(holder.called.clone()),
            None => {
                let by = vec![holder.called.clone()];
                denied.push(Denied::Member { of: known.to_owned(), by });
            }
        }
    }
    if !others.is_empty() {
        denied.push(Denied::Held { by: others });
    }
    denied
}

/// The reason against a drive with such contents; none if what holds the drive has said the same, with names.
pub(super) fn denied_by_kind(candidate: &Candidate, kind: &str) -> Option<Denied> {
    let Some(of) = by_contents(kind) else {
        return Some(Denied::Filesystem { kind: kind.to_owned() });
    };
    let is_said = candidate.holders.iter().any(|holder| holder.member_of == Some(of));
    (!is_said).then(|| Denied::Member { of: of.to_owned(), by: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_told_by_the_names_of_blkid() {
        let known = [
            ("LVM2_member", "LVM"),
            ("crypto_LUKS", "LUKS"),
            ("linux_raid_member", "software RAID"),
            ("isw_raid_member", "firmware RAID"),
            ("zfs_member", "ZFS"),
            ("ceph_bluestore", "Ceph"),
        ];
        for (kind, of) in known {
            assert_eq!(by_contents(kind), Some(of));
        }
        for kind in ["ext4", "swap", "btrfs", ""] {
            assert_eq!(by_contents(kind), None);
        }
    }
}

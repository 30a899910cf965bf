//! The fixed words of the kinds, for their schemas. A value outside of them is refused by Kubernetes.

pub(super) const DRIVE_STATES: [&str; 5] =
    ["UnknownDevice", "AttachingDevice", "AttachedDevice", "ClosingDevice", "DetachedDevice"];
pub(super) const DEVICE_KINDS: [&str; 3] = ["Block", "Loop", "File"];
pub(super) const MEDIA: [&str; 5] = ["NVMe", "SSD", "HDD", "File", "Unknown"];
pub(super) const WISHES: [&str; 2] = ["attach", "detach"];
pub(super) const VOLUME_STATES: [&str; 6] =
    ["Pending", "Created", "Deleting", "Deleted", "Lost", "Orphan"];
pub(super) const OPERATIONAL: [&str; 2] = ["OPERATIVE", "MISSING"];
pub(super) const STAGED: [&str; 1] = ["Fake"];
pub(super) const ATTACHMENT_STATES: [&str; 3] = ["Attaching", "Attached", "Detaching"];

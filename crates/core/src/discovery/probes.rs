//! What there is to look at on a device, as a small set. [`mod@super::triage`] names the probes that an event needs,
//! [`super::queue`] unites those of many events, the agent runs them.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of probes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Probes(u8);

impl Probes {
    pub const NONE: Self = Self(0);
    /// One file of sysfs.
    pub const SIZE: Self = Self(1);
    /// One file of sysfs.
    pub const READ_ONLY: Self = Self(1 << 1);
    /// What is written on it, which opens the device.
    pub const CONTENTS: Self = Self(1 << 2);
    pub const MOUNTS: Self = Self(1 << 3);
    /// Partitions, and what stands on them.
    pub const HIERARCHY: Self = Self(1 << 4);
    /// Serial number, world wide name, model, place.
    pub const IDENTITY: Self = Self(1 << 5);
    /// What udev has in its database.
    pub const UDEV_DB: Self = Self(1 << 6);
    /// Our label, which opens the device.
    pub const LABEL: Self = Self(1 << 7);

    pub const ALL: Self = Self(u8::MAX);
    /// Whatever sysfs tells of the device itself.
    pub const OUTSIDE: Self = Self::SIZE.and(Self::READ_ONLY).and(Self::IDENTITY);
    /// Whatever opens the device.
    pub const INSIDE: Self = Self::CONTENTS.and(Self::LABEL);

    const NAMES: [(Self, &'static str); 8] = [
        (Self::SIZE, "size"),
        (Self::READ_ONLY, "read_only"),
        (Self::CONTENTS, "contents"),
        (Self::MOUNTS, "mounts"),
        (Self::HIERARCHY, "hierarchy"),
        (Self::IDENTITY, "identity"),
        (Self::UDEV_DB, "udev_db"),
        (Self::LABEL, "label"),
    ];

    /// The programs and files that are asked, by the names they have in metrics.
    const ASKED: [(Self, &'static str); 5] = [
        (Self::OUTSIDE, "sysfs-probe"),
        (Self::UDEV_DB, "udev-probe"),
        (Self::MOUNTS, "mount-probe"),
        // One child opens the device for both.
        (Self::INSIDE, "blkid-probe"),
        (Self::HIERARCHY, "holders-probe"),
    ];

    /// Both sets together; `|` where a constant is not needed.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The names of the probes in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().filter(move |(probe, _)| self.contains(*probe)).map(|(_, n)| n)
    }

    /// What the set makes the agent ask, each once, by the names used in metrics.
    pub fn metric_names(self) -> impl Iterator<Item = &'static str> {
        Self::ASKED.into_iter().filter(move |(probes, _)| self.intersects(*probes)).map(|(_, n)| n)
    }
}

impl BitOr for Probes {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl BitOrAssign for Probes {
    fn bitor_assign(&mut self, other: Self) {
        *self = self.and(other);
    }
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// What to look at, in two steps: the second only if the first found a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Needs {
    pub now: Probes,
    /// If a probe of `now` finds anything else than was known.
    pub if_changed: Probes,
}

impl Needs {
    pub const NONE: Self = Self::only(Probes::NONE);
    pub const ALL: Self = Self::only(Probes::ALL);

    pub const fn only(now: Probes) -> Self {
        Self { now, if_changed: Probes::NONE }
    }

    /// What both need together. What is needed anyway is not asked a second time.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let now = self.now | other.now;
        Self { now, if_changed: (self.if_changed | other.if_changed).without(now) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_one_name_and_asks_something() {
        assert_eq!(Probes::ALL.names().count(), 8);
        assert_eq!(Probes::ALL.metric_names().count(), 5);
        for (probe, name) in Probes::NAMES {
            assert_eq!(probe.names().collect::<Vec<_>>(), [name]);
            assert_eq!(probe.metric_names().count(), 1, "{name}");
        }
        assert_eq!(Probes::NONE.metric_names().count(), 0);
        assert_eq!(format!("{:?}", Probes::SIZE | Probes::LABEL), r#"{"size", "label"}"#);
    }

    #[test]
    fn what_is_needed_anyway_is_not_asked_twice() {
        let plain = Needs { now: Probes::SIZE, if_changed: Probes::INSIDE };
        let both = plain.with(Needs::only(Probes::CONTENTS));
        assert_eq!(both.now, Probes::SIZE | Probes::CONTENTS);
        assert_eq!(both.if_changed, Probes::LABEL);
    }
}

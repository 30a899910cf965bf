//! How large a volume is to be: at least so much, at most so much, in whole MiB.

use thiserror::Error;

use crate::label::extents::ALIGNMENT_BYTES;

/// How large a volume is if nobody says.
const DEFAULT_BYTES: u64 = 1 << 30;

/// What CSI's numbers have room for.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Why no size fits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotASize {
    #[error("{bytes} bytes are no size of a volume: give 1 MiB to 8 EiB")]
    OutOfRange { bytes: i64 },
    #[error("at least {required} and at most {limit} bytes contradict each other")]
    Contradiction { required: i64, limit: i64 },
    #[error(
        "volumes have whole MiB: there is none of at least {required} and at most {limit} bytes; raise the limit"
    )]
    Between { required: u64, limit: u64 },
}

/// How large a volume may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Size {
    /// What it is made with: whole MiB.
    pub bytes: u64,
    /// The most that is accepted if there is more already.
    pub limit_bytes: Option<u64>,
}

impl Size {
    /// From CSI's two numbers, where zero is "not said".
    pub fn between(required: i64, limit: i64) -> Result<Self, NotASize> {
        let unsigned =
            |bytes: i64| u64::try_from(bytes).map_err(|_| NotASize::OutOfRange { bytes });
        let (least, most) = (unsigned(required)?, unsigned(limit)?);
        let limit_bytes = (most > 0).then_some(most);
        if limit_bytes.is_some_and(|most| least > most) {
            return Err(NotASize::Contradiction { required, limit });
        }
        let wanted = match (least, limit_bytes) {
            (0, None) => DEFAULT_BYTES,
            (0, Some(most)) => DEFAULT_BYTES.min(most - most % ALIGNMENT_BYTES).max(1),
            (least, _) => least,
        };
        let bytes = wanted
            .checked_next_multiple_of(ALIGNMENT_BYTES)
            .filter(|bytes| *bytes <= MOST_BYTES)
            .ok_or(NotASize::OutOfRange { bytes: required })?;
        match limit_bytes {
            Some(most) if bytes > most => Err(NotASize::Between { required: least, limit: most }),
            _ => Ok(Self { bytes, limit_bytes }),
        }
    }

    /// Exactly so many bytes, rounded up to whole MiB.
    pub fn of(bytes: u64) -> Result<Self, NotASize> {
        Self::between(i64::try_from(bytes).unwrap_or(i64::MAX), 0)
    }

    /// Whether a volume that is there already is what was asked for.
    pub fn fits(self, bytes: u64) -> bool {
        bytes >= self.bytes && self.limit_bytes.is_none_or(|most| bytes <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    #[test]
    fn sizes_are_whole_mib_within_the_limit() {
        let size = |required, limit| Size::between(required, limit).map(|size| size.bytes);
        assert_eq!(size(1, 0), Ok(1 << 20));
        assert_eq!(size(MIB, MIB), Ok(1 << 20));
        assert_eq!(size(MIB + 1, 0), Ok(2 << 20));
        assert_eq!(size(0, 0), Ok(1 << 30));
        assert_eq!(size(0, 5 * MIB + 7), Ok(5 << 20));
        assert_eq!(size(0, MIB - 1), Err(NotASize::Between { required: 0, limit: (1 << 20) - 1 }));
        let between = NotASize::Between { required: (1 << 20) + 1, limit: (2 << 20) - 1 };
        assert_eq!(size(MIB + 1, 2 * MIB - 1), Err(between));
        assert_eq!(size(-1, 0), Err(NotASize::OutOfRange { bytes: -1 }));
        assert_eq!(size(0, -5), Err(NotASize::OutOfRange { bytes: -5 }));
        assert_eq!(size(3, 2), Err(NotASize::Contradiction { required: 3, limit: 2 }));
        assert_eq!(size(i64::MAX, 0), Err(NotASize::OutOfRange { bytes: i64::MAX }));
    }

    #[test]
    fn a_volume_that_is_there_fits_or_not() {
        let size = Size::between(2 * MIB, 4 * MIB).unwrap();
        assert!(size.fits(2 << 20) && size.fits(4 << 20));
        assert!(!size.fits(1 << 20) && !size.fits(5 << 20));
        assert!(Size::of(1).unwrap().fits(1 << 40));
    }
}

//! What a fault of the machine means to whoever called, and whether it may be the sign of a volume that is dead.
//! Whatever may have left something behind is not final.

use hotbay_csi::platform::{Failure, FailureKind};
use hotbay_host::filesystem::FilesystemError;
use hotbay_host::mapping::MappingError;

/// What may be wrong with the volume itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspect {
    /// Nothing: the machine is overloaded, something is not installed, or the call is wrong.
    Nothing,
    /// Its drive, or the drive's label.
    Device,
    /// The filesystem on it.
    Filesystem,
}

/// A step that failed.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) failure: Failure,
    pub(super) suspect: Suspect,
    /// Nothing else can be the cause: seen a second time, it is the proof.
    pub(super) clear: bool,
}

impl Fault {
    pub(super) fn of_device(words: impl std::fmt::Display) -> Self {
        let failure = Failure::new(FailureKind::Unavailable, words);
        Self { failure, suspect: Suspect::Device, clear: false }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self { failure, suspect: Suspect::Nothing, clear: false }
    }
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        fault.failure
    }
}

/// Orphan rules keep this from being `From` in another crate.
pub(super) fn of_mapping(error: &MappingError) -> Fault {
    let kind = match error {
        MappingError::OnePartOnly { .. } => FailureKind::FailedPrecondition,
        MappingError::NotMapped { .. } => FailureKind::FailedPrecondition,
        MappingError::OtherMapping { .. } => FailureKind::Aborted,
        _ => FailureKind::Unavailable,
    };
    let suspect = match error {
        MappingError::DriveGone
        | MappingError::OutOfPlace { .. }
        | MappingError::NotOnLabel { .. }
        | MappingError::LabelConflict { .. }
        | MappingError::Unreadable { .. }
        | MappingError::NotAsAsked { .. }
        | MappingError::Failed { .. } => Suspect::Device,
        MappingError::OtherMapping { found, .. } if found.fenced => Suspect::Device,
        _ => Suspect::Nothing,
    };
    let clear = suspect == Suspect::Device
        && !matches!(error, MappingError::NotAsAsked { .. } | MappingError::Failed { .. });
    Fault { failure: Failure::new(kind, error), suspect, clear }
}

pub(super) fn of_filesystem(error: &FilesystemError) -> Fault {
    let kind = match error {
        FilesystemError::Option { .. } | FilesystemError::Path { .. } => {
            FailureKind::InvalidArgument
        }
        FilesystemError::OtherMount { .. } => FailureKind::AlreadyExists,
        FilesystemError::NotMounted { .. }
        | FilesystemError::ToolMissing { .. }
        | FilesystemError::NotInKernel { .. }
        | FilesystemError::Link { .. }
        | FilesystemError::WrongTarget { .. } => FailureKind::FailedPrecondition,
        // A mapping is left behind by whoever comes here in a stage, so that a pod may not simply go elsewhere.
        FilesystemError::HasContents { .. }
        | FilesystemError::Unclear { .. }
        | FilesystemError::Damaged { .. }
        | FilesystemError::OtherDevice { .. }
        | FilesystemError::NoSize { .. }
        | FilesystemError::Unreadable { .. }
        | FilesystemError::TimedOut { .. }
        | FilesystemError::ToolFailed { .. }
        | FilesystemError::NoParent { .. }
        | FilesystemError::InUse { .. }
        | FilesystemError::NotEmpty { .. }
        | FilesystemError::Mount { .. }
        | FilesystemError::Failed { .. } => FailureKind::Unavailable,
    };
    let suspect = match error {
        FilesystemError::Damaged { .. } | FilesystemError::Mount { suspect: true, .. } => {
            Suspect::Filesystem
        }
        FilesystemError::OtherDevice { .. }
        | FilesystemError::NoSize { .. }
        | FilesystemError::Unreadable { .. }
        | FilesystemError::Unclear { .. }
        | FilesystemError::ToolFailed { .. }
        | FilesystemError::Failed { .. } => Suspect::Device,
        _ => Suspect::Nothing,
    };
    let clear = suspect == Suspect::Filesystem
        || matches!(error, FilesystemError::NoSize { .. } | FilesystemError::Unreadable { .. });
    Fault { failure: Failure::new(kind, error), suspect, clear }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overloaded_machine_or_a_wrong_call_is_no_sign_of_a_dead_volume() {
        let text = || "x".to_owned();
        for error in [
            FilesystemError::TimedOut { program: text(), limit_s: 1 },
            FilesystemError::ToolMissing { program: text(), package: text() },
            FilesystemError::Option { option: text(), why: text() },
            FilesystemError::HasContents { path: text(), what: text() },
            FilesystemError::NoParent { path: text() },
            FilesystemError::InUse { path: text() },
        ] {
            assert_eq!(of_filesystem(&error).suspect, Suspect::Nothing, "{error}");
        }
        for error in [MappingError::NoFreeLoop { tries: 1 }, MappingError::Silent { path: text() }]
        {
            assert_eq!(of_mapping(&error).suspect, Suspect::Nothing, "{error}");
        }
        let gone = of_mapping(&MappingError::DriveGone);
        assert_eq!((gone.suspect, gone.clear), (Suspect::Device, true));
        let unknown = MappingError::Failed { step: text(), error: text() };
        assert!(!of_mapping(&unknown).clear, "suspect, and no proof");
    }
}

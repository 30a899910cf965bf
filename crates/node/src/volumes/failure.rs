//! What a fault of the machine means to whoever called. Whatever may have left something behind is not final.

use hotbay_csi::platform::{Failure, FailureKind};
use hotbay_host::filesystem::FilesystemError;
use hotbay_host::mapping::MappingError;

/// Orphan rules keep this from being `From` in another crate.
pub(super) fn of_mapping(error: &MappingError) -> Failure {
    let kind = match error {
        MappingError::OnePartOnly { .. } => FailureKind::FailedPrecondition,
        MappingError::NotMapped { .. } => FailureKind::FailedPrecondition,
        MappingError::OtherMapping { .. } => FailureKind::Aborted,
        _ => FailureKind::Unavailable,
    };
    Failure::new(kind, error)
}

pub(super) fn of_filesystem(error: &FilesystemError) -> Failure {
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
        | FilesystemError::TimedOut { .. }
        | FilesystemError::ToolFailed { .. }
        | FilesystemError::NoParent { .. }
        | FilesystemError::InUse { .. }
        | FilesystemError::NotEmpty { .. }
        | FilesystemError::Mount { .. }
        | FilesystemError::Failed { .. } => FailureKind::Unavailable,
    };
    Failure::new(kind, error)
}

//! Exit codes: what a script can tell from how `hotbay` ended.

use std::process::ExitCode;

use hotbay_core::cms::Code;

/// How a command ended, from best to worst. With several targets the worst counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exit {
    Done,
    TryAgain,
    Refused,
    NotFound,
    Usage,
    Failed,
}

impl Exit {
    /// What each code means, by their numbers.
    pub(crate) const MEANINGS: [(Self, &str); 6] = [
        (Self::Done, "Done."),
        (Self::Failed, "Failed, for a reason that has no code of its own."),
        (Self::Usage, "Wrong usage: an option, a name or a setting that cannot be understood."),
        (
            Self::TryAgain,
            "Not yet: under way, timed out, or the registry cannot be reached. Try again.",
        ),
        (Self::NotFound, "There is no such drive, host or volume."),
        (Self::Refused, "Refused: not in this state."),
    ];

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::TryAgain => 3,
            Self::NotFound => 4,
            Self::Refused => 5,
        }
    }

    /// The exit code for an action's answer; `None` stands for an answer that this release does not know.
    pub(crate) fn of_answer(code: Option<Code>) -> Self {
        match code {
            Some(Code::Ok | Code::Already) => Self::Done,
            Some(Code::TryAgain) => Self::TryAgain,
            Some(Code::InvalidState) => Self::Refused,
            Some(Code::NotFound) => Self::NotFound,
            Some(Code::Argument) => Self::Usage,
            None => Self::Failed,
        }
    }

    /// The exit code for a call that the registry turned down.
    pub(crate) fn of_status(code: tonic::Code) -> Self {
        match code {
            tonic::Code::Unavailable | tonic::Code::DeadlineExceeded | tonic::Code::Aborted => {
                Self::TryAgain
            }
            tonic::Code::NotFound => Self::NotFound,
            tonic::Code::InvalidArgument => Self::Usage,
            tonic::Code::Unauthenticated
            | tonic::Code::PermissionDenied
            | tonic::Code::AlreadyExists
            | tonic::Code::FailedPrecondition
            | tonic::Code::ResourceExhausted
            | tonic::Code::OutOfRange => Self::Refused,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_its_exit_code() {
        let code = |answer| Exit::of_answer(answer).code();
        assert_eq!(code(Some(Code::Ok)), 0);
        assert_eq!(code(Some(Code::Already)), 0);
        assert_eq!(code(Some(Code::TryAgain)), 3);
        assert_eq!(code(Some(Code::InvalidState)), 5);
        assert_eq!(code(Some(Code::NotFound)), 4);
        assert_eq!(code(Some(Code::Argument)), 2);
        assert_eq!(code(None), 1);
    }

    #[test]
    fn a_registry_that_is_away_is_worth_another_try() {
        assert_eq!(Exit::of_status(tonic::Code::Unavailable).code(), 3);
        assert_eq!(Exit::of_status(tonic::Code::DeadlineExceeded).code(), 3);
        assert_eq!(Exit::of_status(tonic::Code::Aborted).code(), 3);
        assert_eq!(Exit::of_status(tonic::Code::NotFound).code(), 4);
        assert_eq!(Exit::of_status(tonic::Code::InvalidArgument).code(), 2);
        assert_eq!(Exit::of_status(tonic::Code::Internal).code(), 1);
    }

    #[test]
    fn what_cannot_be_in_this_state_is_refused() {
        assert_eq!(Exit::of_status(tonic::Code::FailedPrecondition).code(), 5);
        assert_eq!(Exit::of_status(tonic::Code::ResourceExhausted).code(), 5);
        assert_eq!(Exit::of_status(tonic::Code::OutOfRange).code(), 5);
    }

    #[test]
    fn whoever_may_not_is_refused() {
        assert_eq!(Exit::of_status(tonic::Code::Unauthenticated).code(), 5);
        assert_eq!(Exit::of_status(tonic::Code::PermissionDenied).code(), 5);
    }

    #[test]
    fn the_worst_counts() {
        let exits = [Exit::Done, Exit::NotFound, Exit::TryAgain, Exit::Refused];
        assert_eq!(exits.into_iter().max(), Some(Exit::NotFound));
    }
}

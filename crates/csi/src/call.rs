//! One call, from its start to its answer: how long its caller waits, what is logged, which code it gets.
//!
//! A call that changes something runs as a task of its own, with its turn on the volume. If its caller goes away or
//! its deadline passes, the caller is told so, and **the work goes on to its end**: half a change would be worse than a
//! late one. Until then others are told that it is under way. A call that only reads is dropped with its caller.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::{Code, Request, Response, Status};

use crate::busy::{Busy, Key};
use crate::platform::{Failure, FailureKind};

/// So much earlier than its deadline a call is answered, at most: the answer shall be there before the caller, or the
/// transport, gives up without a word.
const AHEAD_MAX: Duration = Duration::from_millis(20);

/// Longest text in an answer: it travels in a header.
const MESSAGE_CHARS_MAX: usize = 2000;

/// A call that is being answered.
#[derive(Debug)]
pub(crate) struct Call {
    name: &'static str,
    deadline: Option<Instant>,
}

impl Call {
    pub(crate) fn begin<T>(name: &'static str, request: &Request<T>) -> Self {
        let text = request.metadata().get("grpc-timeout").and_then(|text| text.to_str().ok());
        let timeout = text.and_then(timeout).map(|time| time - (time / 10).min(AHEAD_MAX));
        Self { name, deadline: timeout.and_then(|time| Instant::now().checked_add(time)) }
    }

    /// Carries out what changes something, alone on its volume, to its end.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        busy: &Busy,
        key: Key,
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        let name = self.name;
        let turn = busy.enter(key, name)?;
        let (answer, answered) = oneshot::channel();
        tokio::spawn(async move {
            let ended = work.await;
            // Before the answer: who has it may call again at once.
            drop(turn);
            match answer.send(ended) {
                Ok(()) => {}
                Err(Ok(_)) => tracing::info!(call = name, "done after its caller had gone"),
                Err(Err(failure)) => {
                    tracing::warn!(call = name, "failed after its caller had gone: {failure}");
                }
            }
        });
        let broken = |_| {
            let message = "the call broke off, and the log tells where: call again";
            Failure::new(FailureKind::Unavailable, message)
        };
        self.within(answered).await?.map_err(broken)?
    }

    /// Asks for something, as long as somebody waits for it.
    pub(crate) async fn read<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.within(work).await?
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Failure> {
        let Some(deadline) = self.deadline else { return Ok(work.await) };
        tokio::time::timeout_at(deadline, work).await.map_err(|_| {
            let message = format!(
                "{} took longer than its caller waits; it may be under way: call again",
                self.name
            );
            Failure::new(FailureKind::DeadlineExceeded, message)
        })
    }

    /// The answer for the wire. A failure is logged here, once, with an id that the answer names too.
    pub(crate) fn end<T>(self, ended: Result<T, Failure>) -> Result<Response<T>, Status> {
        let failure = match ended {
            Ok(answer) => return Ok(Response::new(answer)),
            Err(failure) => failure,
        };
        let (call, id, code) = (self.name, short_id(), code(failure.kind));
        match failure.kind {
            FailureKind::Internal | FailureKind::Unavailable | FailureKind::DeadlineExceeded => {
                tracing::warn!(call, id, ?code, "{failure}");
            }
            FailureKind::NotFound
            | FailureKind::AlreadyExists
            | FailureKind::InvalidArgument
            | FailureKind::OutOfRange
            | FailureKind::ResourceExhausted
            | FailureKind::FailedPrecondition
            | FailureKind::Aborted => tracing::info!(call, id, ?code, "{failure}"),
        }
        let message: String = failure.message.chars().take(MESSAGE_CHARS_MAX).collect();
        Err(Status::new(code, format!("{message} (call {id})")))
    }
}

/// A call that is in the standard and not served.
pub(crate) fn not_served<T>(name: &'static str) -> Result<Response<T>, Status> {
    tracing::info!(call = name, "is not served");
    Err(Status::unimplemented(format!(
        "{name} is not served: the capabilities of this driver do not name it"
    )))
}

/// The code of a failure, on every wire.
pub fn code(kind: FailureKind) -> Code {
    match kind {
        FailureKind::NotFound => Code::NotFound,
        FailureKind::AlreadyExists => Code::AlreadyExists,
        FailureKind::InvalidArgument => Code::InvalidArgument,
        FailureKind::OutOfRange => Code::OutOfRange,
        FailureKind::ResourceExhausted => Code::ResourceExhausted,
        FailureKind::FailedPrecondition => Code::FailedPrecondition,
        FailureKind::Aborted => Code::Aborted,
        FailureKind::Unavailable => Code::Unavailable,
        FailureKind::DeadlineExceeded => Code::DeadlineExceeded,
        FailureKind::Internal => Code::Internal,
    }
}

/// To find a failure in the log: eight hex digits that are not used twice within reach.
fn short_id() -> String {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let number = CALLS.fetch_add(1, Ordering::Relaxed);
    // Keyed at random for every call, so that two starts of the program do not count alike.
    format!("{:08x}", RandomState::new().hash_one(number) >> 32)
}

/// The text of the header `grpc-timeout`: up to eight digits and a unit. Whatever else it is, is no timeout.
fn timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timeouts_are_read_and_nonsense_is_none() {
        assert_eq!(timeout("15S"), Some(Duration::from_secs(15)));
        assert_eq!(timeout("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout("250m"), Some(Duration::from_millis(250)));
        assert_eq!(timeout("1u"), Some(Duration::from_micros(1)));
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "999999999S", "1ä", "ä"] {
            assert_eq!(timeout(bad), None, "{bad:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_comes_a_little_before_its_deadline() {
        let after = |timeout: &str| {
            let mut request = Request::new(());
            request.metadata_mut().insert("grpc-timeout", timeout.parse().unwrap());
            Call::begin("Probe", &request).deadline.map(|deadline| deadline - Instant::now())
        };
        assert_eq!(after("10S"), Some(Duration::from_millis(9_980)));
        assert_eq!(after("100m"), Some(Duration::from_millis(90)));
        assert_eq!(after("0n"), Some(Duration::ZERO));
        assert_eq!(after("soon"), None);
    }

    proptest! {
        #[test]
        fn no_header_breaks_the_reader(text: String) {
            timeout(&text);
        }
    }

    /// A code that callers take as final must not come from a failure that may have left something behind.
    #[test]
    fn codes_keep_final_and_not_final_apart() {
        let not_final = [Code::Aborted, Code::Unavailable, Code::DeadlineExceeded];
        for kind in FailureKind::ALL {
            assert_eq!(kind.is_final(), !not_final.contains(&code(kind)), "{kind:?}");
        }
    }

    #[test]
    fn an_answer_names_its_line_in_the_log_and_is_not_endless() {
        let call = Call { name: "Probe", deadline: None };
        let failure = Failure::new(FailureKind::NotFound, "x".repeat(100_000));
        let status = call.end::<()>(Err(failure)).unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        assert!(status.message().len() < 2100, "{}", status.message().len());
        assert!(status.message().contains("(call "), "{}", &status.message()[1990..]);
    }

    /// Work that panics may have left something behind, so the answer is not final, and the volume is free again.
    #[tokio::test]
    async fn work_that_breaks_off_is_not_final_and_lets_go_of_the_volume() {
        let call = Call { name: "DeleteVolume", deadline: None };
        let (busy, key) = (Busy::default(), Key::Name("a".to_owned()));
        let failure = call
            .change(&busy, key.clone(), async { panic!("a bug below") as Result<(), Failure> })
            .await
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::Unavailable);
        call.change(&busy, key, async { Ok(()) }).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_deadline_the_work_goes_on_and_the_volume_stays_taken() {
        let call = Call {
            name: "CreateVolume",
            deadline: Some(Instant::now() + Duration::from_millis(100)),
        };
        let (busy, key) = (Busy::default(), Key::Name("a".to_owned()));
        let (done, is_done) = oneshot::channel();
        let work = async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            done.send(()).map_err(|()| Failure::new(FailureKind::Internal, "nobody listens"))
        };
        let failure = call.change(&busy, key.clone(), work).await.unwrap_err();
        assert_eq!(failure.kind, FailureKind::DeadlineExceeded);
        assert_eq!(busy.enter(key.clone(), "x").unwrap_err().kind, FailureKind::Aborted);
        is_done.await.unwrap();
        tokio::task::yield_now().await;
        busy.enter(key, "x").unwrap();
    }
}

//! Reads one device through children: which drive it is, and, unless it is to be left alone, what is on it.

use std::time::{Duration, Instant};

use hotbay_core::device::DeviceKind;
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_host::scan::{self, Candidate, Inside};
use hotbay_host::worker::{Done, LookError, Looked, Request, Response, Running, Workers};

/// How long a device may take to be looked at before the rest of the machine goes on without it.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// What a read came to.
#[derive(Debug)]
pub(super) struct ReadEnd {
    /// The device as it was when it was read.
    pub(super) candidate: Candidate,
    pub(super) inside: Inside,
    /// A child that hangs on the device. Until it ends the device is not read again.
    pub(super) unfinished: Option<Running>,
    pub(super) took: Duration,
}

/// Looks at a device that failed are repeated, so many in all: one that gets another size meanwhile cannot be read to
/// what was its end.
const MOST_LOOKS: usize = 2;

/// Reads a device, unless its evidence is that of one to be left alone.
pub(super) async fn read(
    workers: Workers,
    candidate: Candidate,
    left_alone: Vec<Evidence>,
) -> ReadEnd {
    let started = Instant::now();
    let (inside, unfinished) = match identify(&workers, &candidate).await {
        Identified::As(evidence) if is_alone(&left_alone, &evidence) => {
            (Inside::NotOpened(evidence), None)
        }
        // It may be one that must not be opened.
        Identified::Hangs(running) => {
            let error = format!("process {} waits for it", running.pid());
            (Inside::Seen(Err(LookError::Unreadable { error })), Some(running))
        }
        Identified::As(evidence) => {
            let (seen, unfinished) = look(&workers, &candidate).await;
            // A drive that cannot be read is the drive that it was.
            let unread = |error| Inside::Unread { evidence, error };
            (seen.map_or_else(unread, |looked| Inside::Seen(Ok(looked))), unfinished)
        }
        Identified::Unknown => {
            let (seen, unfinished) = look(&workers, &candidate).await;
            (Inside::Seen(seen), unfinished)
        }
    };
    ReadEnd { candidate, inside, unfinished, took: started.elapsed() }
}

async fn look(
    workers: &Workers,
    candidate: &Candidate,
) -> (Result<Looked, LookError>, Option<Running>) {
    let mut looks = 1;
    loop {
        let (seen, unfinished) = scan::look(workers, candidate, LOOK_LIMIT).await;
        if seen.is_ok() || unfinished.is_some() || looks == MOST_LOOKS {
            return (seen, unfinished);
        }
        looks += 1;
    }
}

pub(super) fn is_alone(left_alone: &[Evidence], evidence: &Evidence) -> bool {
    left_alone.iter().any(|known| known.compare(evidence) == Comparison::Same)
}

/// Which drive a device is, asked without opening it.
enum Identified {
    As(Evidence),
    /// Nothing tells it from another.
    Unknown,
    /// There was no answer in time.
    Hangs(Running),
}

async fn identify(workers: &Workers, candidate: &Candidate) -> Identified {
    // sysfs has told all there is; only a file's filesystem has to be asked.
    if candidate.kind == DeviceKind::Block && !candidate.evidence.is_empty() {
        return Identified::As(candidate.evidence.clone());
    }
    let request = Request::Identify { path: candidate.path.clone() };
    let Ok(mut running) = workers.start(request, Vec::new()) else { return Identified::Unknown };
    match tokio::time::timeout(LOOK_LIMIT, &mut running).await {
        Err(_) => Identified::Hangs(running),
        Ok(Ok(Done { response: Response::Identified(Ok(evidence)), .. })) => {
            Identified::As(evidence)
        }
        Ok(Ok(_) | Err(_)) => Identified::Unknown,
    }
}

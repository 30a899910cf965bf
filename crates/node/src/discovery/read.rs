//! Reads one device through children: which drive it is, and, unless it is to be left alone, what is on it.

use std::time::{Duration, Instant};

use hotbay_core::device::DeviceKind;
use hotbay_core::evidence::{Comparison, Evidence};
use hotbay_host::scan::{self, Candidate, Inside};
use hotbay_host::worker::{
    Done, LookError, Looked, Request, Response, Running, WorkerError, Workers,
};
use tokio::sync::watch;

use super::Context;

/// How long a device may take to be looked at before the rest of the machine goes on without it.
const LOOK_LIMIT: Duration = Duration::from_secs(3);

/// What a read came to.
#[derive(Debug)]
pub(super) struct ReadEnd {
    /// The device as it was when it was read.
    pub(super) candidate: Candidate,
    pub(super) inside: Inside,
    /// The child that has not answered in time. Until it does the device is not read again.
    pub(super) unfinished: Option<Unfinished>,
    pub(super) took: Duration,
}

/// What a child that has not answered in time was asked.
#[derive(Debug)]
pub(super) enum Unfinished {
    Identify(Running),
    Look(Option<Evidence>, Running),
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
        Ok(identified) => read_identified(&workers, &candidate, identified, &left_alone).await,
        // It may be one that must not be opened.
        Err(running) => {
            let error = format!("process {} waits for it", running.pid());
            let inside = Inside::Seen(Err(LookError::Unreadable { error }));
            (inside, Some(Unfinished::Identify(running)))
        }
    };
    ReadEnd { candidate, inside, unfinished, took: started.elapsed() }
}

/// Waits for a child that was late, as long as it takes. A machine that is slow for a while, or always, is read in the
/// end, and nothing else would tell that it can be.
pub(super) async fn read_late(
    workers: Workers,
    candidate: Candidate,
    mut unfinished: Unfinished,
    context: watch::Receiver<Context>,
) -> ReadEnd {
    let started = Instant::now();
    let inside = loop {
        let (inside, late) = match unfinished {
            Unfinished::Identify(running) => {
                let identified = evidence_in(running.await);
                let left_alone = context.borrow().left_alone.clone();
                read_identified(&workers, &candidate, identified, &left_alone).await
            }
            Unfinished::Look(evidence, running) => {
                (inside_of(evidence, scan::looked_in(running.await)), None)
            }
        };
        match late {
            Some(late) => unfinished = late,
            None => break inside,
        }
    };
    ReadEnd { candidate, inside, unfinished: None, took: started.elapsed() }
}

/// Reads a device of which is known what tells it from others, if anything does.
async fn read_identified(
    workers: &Workers,
    candidate: &Candidate,
    identified: Option<Evidence>,
    left_alone: &[Evidence],
) -> (Inside, Option<Unfinished>) {
    if let Some(evidence) = identified.as_ref().filter(|evidence| is_alone(left_alone, evidence)) {
        return (Inside::NotOpened(evidence.clone()), None);
    }
    let (seen, running) = look(workers, candidate).await;
    let unfinished = running.map(|running| Unfinished::Look(identified.clone(), running));
    (inside_of(identified, seen), unfinished)
}

fn inside_of(identified: Option<Evidence>, seen: Result<Looked, LookError>) -> Inside {
    match (identified, seen) {
        // A drive that cannot be read is the drive that it was.
        (Some(evidence), Err(error)) => Inside::Unread { evidence, error },
        (_, seen) => Inside::Seen(seen),
    }
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

/// What tells a device from others, asked without opening it, if there is such a thing; or the child that has not
/// answered in time.
async fn identify(workers: &Workers, candidate: &Candidate) -> Result<Option<Evidence>, Running> {
    // sysfs has told all there is; only a file's filesystem has to be asked.
    if candidate.kind == DeviceKind::Block && !candidate.evidence.is_empty() {
        return Ok(Some(candidate.evidence.clone()));
    }
    let request = Request::Identify { path: candidate.path.clone() };
    let Ok(mut running) = workers.start(request, Vec::new()) else { return Ok(None) };
    match tokio::time::timeout(LOOK_LIMIT, &mut running).await {
        Err(_) => Err(running),
        Ok(answer) => Ok(evidence_in(answer)),
    }
}

fn evidence_in(answer: Result<Done, WorkerError>) -> Option<Evidence> {
    match answer {
        Ok(Done { response: Response::Identified(Ok(evidence)), .. }) => Some(evidence),
        Ok(_) | Err(_) => None,
    }
}

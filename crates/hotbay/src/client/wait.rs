//! Waiting for an action to come to its end: `--wait`.
//!
//! An add is done when the registry shows the drive attached. A removal is done when the registry answers it with
//! `S_OK`, and with nothing else: the same action is sent again when the registry said to ask again, and at once when
//! the drive is seen to change. Before it is sent again, the drive must still be wanted out: somebody who took it back
//! meanwhile is not overruled by a command that merely waits.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use hotbay_api::cms::{Action, ActionResult};
use hotbay_api::kinds::{Drive, DriveStatus};
use hotbay_core::cms::Code;
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::act::Verb;
use super::answer;
use super::api::{Api, FOLLOWED_BY_NAME, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::rows;
use super::screen::{Screen, plain};
use super::volume::words::names;
use super::words;
use crate::plugin::as_called;

/// How often the live line counts on.
const TICK: Duration = Duration::from_secs(1);
/// When to ask again if the registry does not say.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A drive that changes all the time is not asked for more often than this.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(100);
/// A wait that ends sooner needs no way out.
const SOON: Duration = Duration::from_secs(1);

/// Drives that are named one by one when a wait is stopped.
const LISTED: usize = 20;

/// One target: the action to repeat, and the drives that it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) action: Action,
    /// What the target is called in sentences and commands.
    pub(crate) subject: String,
    pub(crate) drives: Vec<String>,
}

/// One drive of one job.
#[derive(Debug)]
struct Awaited {
    job: usize,
    name: String,
    /// What stands in the way, in words.
    waits_for: String,
    /// The drive as it was last seen; empty while it is out of view.
    seen: String,
    done: bool,
}

/// A wait, as far as it has come.
#[derive(Debug)]
pub(crate) struct Wait {
    verb: Verb,
    jobs: Vec<Job>,
    drives: Vec<Awaited>,
    began: Instant,
    limit: Option<Duration>,
    /// The worst that has become of a job that is over.
    exit: Exit,
    way_out_told: bool,
}

/// Why a wait ends before what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stopped {
    ByHand,
    AtLimit,
}

/// What is to be said.
#[derive(Debug, PartialEq, Eq)]
enum Sentence {
    /// Something is over.
    Line(String),
    /// Something goes on, for another reason than before. The live line has it where there is one.
    Note(String),
    Error(String, Vec<String>),
}

impl Wait {
    pub(crate) fn new(verb: Verb, jobs: Vec<Job>, began: Instant, limit: Option<Duration>) -> Self {
        let drives = jobs.iter().enumerate().flat_map(|(job, of)| {
            let waits_for = "waiting for the node's agent".to_owned();
            of.drives.iter().map(move |name| Awaited {
                job,
                name: name.clone(),
                waits_for: waits_for.clone(),
                seen: String::new(),
                done: false,
            })
        });
        let drives = drives.collect();
        Self { verb, jobs, drives, began, limit, exit: Exit::Done, way_out_told: false }
    }

    /// Waits until every job is over, the limit is reached, or somebody presses Ctrl-C.
    pub(crate) async fn run(
        mut self,
        api: &Api,
        screen: &mut Screen,
        retry_after: Duration,
    ) -> Result<Exit, ClientError> {
        let ends_at = self.limit.map(|limit| self.began + limit);
        let limit = async {
            match ends_at {
                Some(at) => sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let stopped = tokio::select! {
            over = self.follow_through(api, screen, retry_after) => {
                over?;
                screen.end_live()?;
                return Ok(self.exit);
            }
            _ = tokio::signal::ctrl_c() => Stopped::ByHand,
            () = limit => Stopped::AtLimit,
        };
        self.tell_stopped(screen, stopped)?;
        Ok(self.exit.max(Exit::TryAgain))
    }

    async fn follow_through(
        &mut self,
        api: &Api,
        screen: &mut Screen,
        retry_after: Duration,
    ) -> Result<(), ClientError> {
        let mut news = api.follow(Kind::Drive, self.names_to_follow());
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut asked_at = self.began;
        let mut ask_at = asked_at + at_least(retry_after);
        while self.drives.iter().any(|drive| !drive.done) {
            tokio::select! {
                // What is known comes before what is asked.
                biased;
                got = news.recv() => match got {
                    None => return Err(api.lost()),
                    Some(Ok(objects)) => {
                        let (changed, sentences) = self.look_at(&objects)?;
                        self.say(screen, sentences)?;
                        if changed {
                            ask_at = ask_at.min(asked_at + ASK_AT_MOST_EVERY);
                        }
                    }
                    Some(Err(error)) => {
                        self.note_absence(screen, error)?;
                        self.drives.iter_mut().for_each(|drive| drive.seen.clear());
                    }
                },
                () = sleep_until(ask_at.into()), if self.verb == Verb::Remove && self.in_view() => {
                    asked_at = Instant::now();
                    ask_at = asked_at + self.ask_again(api, screen).await?;
                }
                _ = tick.tick() => {}
            }
            self.show(screen)?;
        }
        Ok(())
    }

    /// Whether it is known of every drive that it is still wanted as it was asked for.
    fn in_view(&self) -> bool {
        self.drives.iter().all(|drive| drive.done || !drive.seen.is_empty())
    }

    /// A few drives are followed one by one; for many, following everything is less.
    fn names_to_follow(&self) -> Vec<String> {
        let names: BTreeSet<_> = self.drives.iter().map(|drive| drive.name.clone()).collect();
        if names.len() > FOLLOWED_BY_NAME { Vec::new() } else { names.into_iter().collect() }
    }

    /// Takes in the drives as they are now. Says whether one that is waited for has changed.
    fn look_at(&mut self, objects: &[String]) -> Result<(bool, Vec<Sentence>), ClientError> {
        let mut changed = false;
        let mut sentences = Vec::new();
        for object in objects {
            let drive: Drive = serde_json::from_str(object).map_err(ClientError::Answer)?;
            for index in 0..self.drives.len() {
                let awaited = &mut self.drives[index];
                if awaited.name == drive.metadata.name && !awaited.done && awaited.seen != *object {
                    changed = true;
                    object.clone_into(&mut awaited.seen);
                    sentences.extend(match self.verb {
                        Verb::Add => self.look_at_added(index, &drive.status),
                        Verb::Remove => self.look_at_removed(index, &drive.status),
                    });
                }
            }
        }
        Ok((changed, sentences))
    }

    fn look_at_added(&mut self, index: usize, status: &DriveStatus) -> Option<Sentence> {
        let name = self.drives[index].name.clone();
        if status.goal.wish != "attach" {
            let what = format!("{name} is not being added any more: {}", taken_back_by(status));
            return Some(self.give_up(index, what));
        }
        match &status.waiting_for {
            None if rows::state(status) == "Attached" => {
                self.drives[index].done = true;
                let took = words::took(self.began.elapsed());
                Some(Sentence::Line(format!("{name} is in operation after {took}.")))
            }
            None => None,
            Some(why) => self.note(index, plain(why)),
        }
    }

    fn look_at_removed(&mut self, index: usize, status: &DriveStatus) -> Option<Sentence> {
        if status.goal.wish == "attach" && !status.removal_wanted {
            let name = &self.drives[index].name;
            let what = format!("{name} is not being removed any more: {}", taken_back_by(status));
            return Some(self.give_up(index, what));
        }
        status.waiting_for.as_ref().and_then(|why| self.note(index, plain(why)))
    }

    /// Ends a job that somebody else has turned around.
    fn give_up(&mut self, index: usize, what: String) -> Sentence {
        self.end_job(self.drives[index].job, Exit::Refused);
        Sentence::Error(what, vec!["the wait ends; nothing more is asked for".to_owned()])
    }

    fn end_job(&mut self, job: usize, exit: Exit) {
        self.drives.iter_mut().filter(|drive| drive.job == job).for_each(|drive| drive.done = true);
        self.exit = self.exit.max(exit);
    }

    /// Notes what a drive waits for; on a pipe each change is said.
    fn note(&mut self, index: usize, why: String) -> Option<Sentence> {
        let drive = &mut self.drives[index];
        if drive.waits_for == why {
            return None;
        }
        drive.waits_for = why;
        Some(Sentence::Note(format!("{}: {}", drive.name, drive.waits_for)))
    }

    /// Sends the removals again that are not over. Returns when to do so next.
    async fn ask_again(&mut self, api: &Api, screen: &mut Screen) -> Result<Duration, ClientError> {
        let open: BTreeSet<_> =
            self.drives.iter().filter(|drive| !drive.done).map(|drive| drive.job).collect();
        let actions = open.iter().map(|job| self.jobs[*job].action.clone()).collect();
        let results = match api.act(actions, false).await {
            Ok(results) => results,
            Err(error) => {
                self.note_absence(screen, error)?;
                return Ok(ASK_AGAIN_AFTER);
            }
        };
        let mut retry_after = Duration::ZERO;
        for (job, result) in open.into_iter().zip(&results) {
            retry_after = retry_after.max(Duration::from_millis(result.retry_after_ms));
            let sentences = self.take_answer(job, result);
            self.say(screen, sentences)?;
        }
        Ok(at_least(retry_after))
    }

    /// Takes in the answer to a removal that was sent again.
    fn take_answer(&mut self, job: usize, result: &ActionResult) -> Vec<Sentence> {
        match answer::code(result) {
            Some(Code::Ok | Code::TryAgain) => {}
            code => {
                self.end_job(job, Exit::of_answer(code));
                let subject = &self.jobs[job].subject;
                let what = format!("{subject} is not removed: {}", result.reasons.join("; "));
                return vec![Sentence::Error(what, Vec::new())];
            }
        }
        let mut sentences = Vec::new();
        for answer in std::iter::once(result).chain(&result.drives) {
            let Some(brief) = &answer.drive else { continue };
            let fits =
                |drive: &Awaited| drive.job == job && drive.name == brief.name && !drive.done;
            let Some(index) = self.drives.iter().position(fits) else { continue };
            if answer::code(answer) == Some(Code::Ok) {
                self.drives[index].done = true;
                let took = words::took(self.began.elapsed());
                sentences.push(Sentence::Line(format!(
                    "{} is out of operation: closed, and that is proved, after {took}.",
                    brief.name
                )));
            } else {
                let volumes = &answer.dependent_volumes;
                let why = match volumes.len() {
                    0 => answer.reasons.join("; "),
                    n => format!("waits for {}: {}", words::count(n, "volume"), names(volumes)),
                };
                sentences.extend(self.note(index, why));
            }
        }
        // The answer to a host counts as a whole: a drive that has left it meanwhile is not waited for.
        if answer::code(result) == Some(Code::Ok) {
            self.end_job(job, Exit::Done);
        }
        sentences
    }

    /// A registry that is away is waited for, too; anything else that fails ends the wait.
    fn note_absence(&mut self, screen: &mut Screen, error: ClientError) -> Result<(), ClientError> {
        if !error.retryable() {
            return Err(error);
        }
        let mut sentences = Vec::new();
        for index in 0..self.drives.len() {
            if !self.drives[index].done {
                sentences.extend(self.note(index, error.to_string()));
            }
        }
        Ok(self.say(screen, sentences)?)
    }

    fn say(&self, screen: &mut Screen, sentences: Vec<Sentence>) -> io::Result<()> {
        for sentence in sentences {
            match sentence {
                Sentence::Error(what, next_steps) => screen.error(&what, &next_steps)?,
                Sentence::Line(text) => screen.line(&text)?,
                Sentence::Note(text) if !screen.is_terminal() => screen.line(&text)?,
                Sentence::Note(_) => {}
            }
        }
        Ok(())
    }

    /// Shows what is waited for, since when, and the way out.
    fn show(&mut self, screen: &mut Screen) -> io::Result<()> {
        let waited = self.began.elapsed();
        let Some(text) = self.live_line(waited) else { return screen.end_live() };
        if waited >= SOON && !self.way_out_told {
            self.way_out_told = true;
            screen.line(&self.way_out())?;
        }
        screen.live(&text)
    }

    fn live_line(&self, waited: Duration) -> Option<String> {
        let open: Vec<_> = self.drives.iter().filter(|drive| !drive.done).collect();
        let first = open.first()?;
        let of_many = match self.drives.len() {
            1 => String::new(),
            all => format!("{} of {all} left; ", open.len()),
        };
        let (name, why) = (&first.name, &first.waits_for);
        let so_far = match waited.as_secs() {
            seconds @ 0..60 => format!("{seconds} s"),
            _ => words::took(waited),
        };
        Some(format!("waiting, {so_far} so far: {of_many}{name}: {why}"))
    }

    fn way_out(&self) -> String {
        let (action, back) = match self.verb {
            Verb::Add => ("the adding", "remove"),
            Verb::Remove => ("the removal", "add"),
        };
        let command = self.command(back);
        format!("Ctrl-C stops waiting, not {action}. To take it back:\n  {command}")
    }

    /// A command on what is waited for still.
    fn command(&self, verb: &str) -> String {
        let open = |(job, _): &(usize, &Job)| {
            self.drives.iter().any(|drive| drive.job == *job && !drive.done)
        };
        let open = self.jobs.iter().enumerate().filter(open);
        let subjects: Vec<_> = open.map(|(_, job)| job.subject.as_str()).collect();
        let noun = match self.jobs.first() {
            Some(job) if !job.action.host.is_empty() => "host",
            _ => "drive",
        };
        as_called(&format!("hotbay {noun} {verb} {}", subjects.join(" ")))
    }

    fn tell_stopped(&self, screen: &mut Screen, stopped: Stopped) -> io::Result<()> {
        let (action, missed, goes_on, again) = match self.verb {
            Verb::Add => ("the adding", "not in operation", "the adding goes on", "add"),
            Verb::Remove => {
                ("the removal", "not out of operation", "the removal stays asked for", "remove")
            }
        };
        let open: Vec<_> = self.drives.iter().filter(|drive| !drive.done).collect();
        let reasons = open.iter().map(|drive| format!("{}: {}", drive.name, drive.waits_for));
        let mut more: Vec<_> = reasons.take(LISTED).collect();
        if open.len() > LISTED {
            more.push(format!("and {} more", open.len() - LISTED));
        }
        more.push(format!("wait again:  {} --wait", self.command(again)));
        match stopped {
            Stopped::ByHand => {
                screen.end_live()?;
                let text = format!("Stopped waiting, not {action}.\n  {}\n", more.join("\n  "));
                screen.aside(&text);
                Ok(())
            }
            Stopped::AtLimit => {
                let took = words::took(self.began.elapsed());
                screen.error(&format!("{missed} after {took}; {goes_on}"), &more)
            }
        }
    }
}

fn taken_back_by(status: &DriveStatus) -> String {
    let turned = if status.goal.wish == "attach" { "added" } else { "removed" };
    match status.asked_by.as_str() {
        "" => format!("it was {turned} meanwhile"),
        who => format!("it was {turned} meanwhile, by {}", plain(who)),
    }
}

fn at_least(retry_after: Duration) -> Duration {
    if retry_after.is_zero() { ASK_AGAIN_AFTER } else { retry_after.max(ASK_AT_MOST_EVERY) }
}

#[cfg(test)]
mod tests {
    use hotbay_api::cms::DriveBrief;

    use super::*;

    fn wait(verb: Verb, drives: &[&str]) -> Wait {
        let job = Job {
            action: Action { host: "node-a".into(), ..Action::default() },
            subject: "node-a".into(),
            drives: drives.iter().map(|name| (*name).to_owned()).collect(),
        };
        Wait::new(verb, vec![job], Instant::now(), None)
    }

    fn answer(code: &str, drive: Option<&str>, drives: Vec<ActionResult>) -> ActionResult {
        ActionResult {
            result: code.into(),
            reasons: vec!["still in use".into()],
            drive: drive.map(|name| DriveBrief { name: name.into(), ..DriveBrief::default() }),
            drives,
            ..ActionResult::default()
        }
    }

    fn open(wait: &Wait) -> Vec<&str> {
        wait.drives.iter().filter(|drive| !drive.done).map(|drive| drive.name.as_str()).collect()
    }

    #[test]
    fn only_s_ok_ends_a_removal_well() {
        let mut wait = wait(Verb::Remove, &["d-1", "d-2"]);
        let d_1 = answer("S_OK", Some("d-1"), Vec::new());
        let d_2 = answer("E_TRY_AGAIN", Some("d-2"), Vec::new());
        let said = wait.take_answer(0, &answer("E_TRY_AGAIN", None, vec![d_1.clone(), d_2]));
        assert_eq!(open(&wait), ["d-2"]);
        assert!(matches!(&said[0], Sentence::Line(text) if text.contains("that is proved")));
        assert_eq!(said[1], Sentence::Note("d-2: still in use".into()));
        // The second drive has left the host: the host's own answer still ends the wait.
        assert!(wait.take_answer(0, &answer("S_OK", None, vec![d_1])).is_empty());
        assert!(open(&wait).is_empty());
        assert_eq!(wait.exit, Exit::Done);
    }

    #[test]
    fn a_refusal_ends_a_removal_badly() {
        let mut wait = wait(Verb::Remove, &["d-1"]);
        let said = wait.take_answer(0, &answer("E_INVALID_STATE", None, Vec::new()));
        assert!(matches!(said[..], [Sentence::Error(..)]));
        assert!(open(&wait).is_empty());
        assert_eq!(wait.exit, Exit::Refused);
    }

    #[test]
    fn the_live_line_says_what_is_left() {
        let mut wait = wait(Verb::Add, &["d-1", "d-2", "d-3"]);
        wait.drives[0].done = true;
        wait.note(1, "the drive is not on the machine".into());
        assert_eq!(
            wait.live_line(Duration::from_millis(12_700)).unwrap(),
            "waiting, 12 s so far: 2 of 3 left; d-2: the drive is not on the machine"
        );
        assert_eq!(
            wait.way_out(),
            "Ctrl-C stops waiting, not the adding. To take it back:\n  hotbay host remove node-a"
        );
    }
}

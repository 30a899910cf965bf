//! `hotbay drive` and `hotbay host`: a few calls for all targets, a result for each, and on request a wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hotbay_api::cms::{Action, ActionResult, ActionType};
use hotbay_api::kinds::Drive;
use hotbay_core::cluster::StateHash;
use hotbay_core::cms::Code;

use super::answer::{self, States};
use super::api::{Api, FOLLOWED_BY_NAME, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::plan_file::Listed;
use super::screen::Screen;
use super::wait::{Job, Wait};
use super::wipe::Wiping;
use super::{rows, suggest};
use crate::cli::{DriveAddArgs, DriveArgs, HowArgs};
use crate::plugin::as_called;

/// How many actions go into one call: a registry answers so many at once, and others get their turn in between.
const ACTIONS_IN_A_CALL: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Remove,
}

/// What was asked for on the command line.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) verb: Verb,
    /// The targets are hosts, not drives.
    pub(crate) hosts: bool,
    pub(crate) targets: Vec<String>,
    /// In which state a target must be, if that was planned.
    pub(crate) planned: BTreeMap<String, StateHash>,
    /// The one target may be wiped.
    pub(crate) wipe: Option<Wiping>,
    pub(crate) with_removed: bool,
    pub(crate) returned: bool,
    pub(crate) wait: bool,
    pub(crate) limit: Option<Duration>,
    pub(crate) dry_run: bool,
}

impl Asked {
    /// Adds the drives that were named, or those of a list.
    pub(crate) fn to_add(args: DriveAddArgs, listed: Option<Listed>) -> Self {
        let DriveAddArgs { targets, file: _, wipe: _, serial: _, how } = args;
        let Some(listed) = listed else { return Self::new(Verb::Add, false, targets, how) };
        let targets = listed.iter().map(|(name, _)| name.clone()).collect();
        Self { planned: listed.into_iter().collect(), ..Self::new(Verb::Add, false, targets, how) }
    }

    /// Adds one drive that is in this state, wiped.
    pub(crate) fn to_wipe(drive: String, state: StateHash, wipe: Wiping, how: HowArgs) -> Self {
        let planned = BTreeMap::from([(drive.clone(), state)]);
        Self { planned, wipe: Some(wipe), ..Self::new(Verb::Add, false, vec![drive], how) }
    }

    pub(crate) fn to_remove(args: DriveArgs) -> Self {
        let DriveArgs { targets, how } = args;
        Self::new(Verb::Remove, false, targets, how)
    }

    pub(crate) fn of_hosts(verb: Verb, hosts: Vec<String>, how: HowArgs) -> Self {
        Self::new(verb, true, hosts, how)
    }

    fn new(verb: Verb, hosts: bool, targets: Vec<String>, how: HowArgs) -> Self {
        let limit = how.limit();
        let HowArgs { wait, dry_run, timeout: _ } = how;
        let (with_removed, returned) = (false, false);
        let planned = BTreeMap::new();
        Self {
            verb,
            hosts,
            targets,
            planned,
            wipe: None,
            with_removed,
            returned,
            wait,
            limit,
            dry_run,
        }
    }

    pub(crate) fn action(&self, target: &str) -> Action {
        let kind = match (self.verb, self.hosts) {
            (Verb::Add, false) => ActionType::AddDevice,
            (Verb::Add, true) => ActionType::AddHost,
            (Verb::Remove, false) => ActionType::RemoveDevice,
            (Verb::Remove, true) => ActionType::RemoveHost,
        };
        let (host, device) = if self.hosts { (target, "") } else { ("", target) };
        Action {
            r#type: kind.into(),
            host: host.to_owned(),
            device: device.to_owned(),
            with_removed: self.with_removed,
            returned: self.returned,
            expected_state: self.planned.get(target).map(ToString::to_string).unwrap_or_default(),
            wipe: self.wipe.is_some(),
            serial: self.wipe.as_ref().map(|wipe| wipe.serial.clone()).unwrap_or_default(),
            ..Action::default()
        }
    }

    /// What is left to wait for after an answer.
    fn job(&self, target: &str, result: &ActionResult) -> Option<Job> {
        let waits = |result: &ActionResult| match (self.verb, answer::code(result)) {
            (Verb::Add, Some(Code::Ok | Code::Already)) => !answer::left_out(result),
            (Verb::Remove, code) => code == Some(Code::TryAgain),
            (Verb::Add, _) => false,
        };
        let of_host = result.drives.iter().filter(|result| waits(result));
        let own = Some(result).filter(|result| waits(result));
        let drives: Vec<_> =
            own.into_iter().chain(of_host).filter_map(|r| r.drive.clone()).collect();
        // A drive that was named by its place may make way for another one there: from now on its name counts.
        let subject = match &result.drive {
            Some(drive) => drive.name.clone(),
            None => target.to_owned(),
        };
        (!drives.is_empty()).then(|| Job {
            action: self.action(&subject),
            subject,
            drives: drives.into_iter().map(|drive| drive.name).collect(),
        })
    }
}

/// Asks, and waits if that is wanted, with the time of the wait counted from `began`.
pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    asked: Asked,
    began: Instant,
) -> Result<Exit, ClientError> {
    let mut exit = Exit::Done;
    let mut jobs = Vec::new();
    let mut retry_after = Duration::ZERO;
    for targets in asked.targets.chunks(ACTIONS_IN_A_CALL) {
        let (worst, waits) = ask(api, screen, &asked, targets).await?;
        exit = exit.max(worst);
        for (job, after) in waits {
            jobs.push(job);
            retry_after = retry_after.max(after);
        }
    }
    if asked.targets.is_empty() {
        screen.line("the list names no drive; nothing was changed")?;
    }
    if asked.dry_run {
        screen.line("dry run: nothing was changed")?;
    }
    if jobs.is_empty() {
        return Ok(exit);
    }
    let wait = Wait::new(asked.verb, jobs, began, asked.limit);
    Ok(wait.run(api, screen, retry_after).await?.max(exit))
}

/// Asks for some targets in one call, and tells what is answered. Gives the worst that came of those that are over, and
/// what is left to wait for.
async fn ask(
    api: &Api,
    screen: &mut Screen,
    asked: &Asked,
    targets: &[String],
) -> Result<(Exit, Vec<(Job, Duration)>), ClientError> {
    let actions = targets.iter().map(|target| asked.action(target)).collect();
    let results = api.act(actions, asked.dry_run).await?;
    let states = states(api, &results).await;
    let mut exit = Exit::Done;
    let mut jobs = Vec::new();
    for (target, result) in targets.iter().zip(&results) {
        let said = answer::said(asked, target, result, &states);
        let job = asked.job(target, result).filter(|_| asked.wait);
        if said.error {
            let mut more = said.more;
            if said.exit == Exit::NotFound {
                let kind = if asked.hosts { Kind::StorageNode } else { Kind::Drive };
                more.extend(suggest::next_steps(api, kind, target).await);
            }
            screen.error(&said.what, &more)?;
        } else {
            screen.line(&said.what)?;
            for line in &said.more {
                screen.line(&format!("  {}", as_called(line)))?;
            }
        }
        if let Some(job) = job {
            jobs.push((job, Duration::from_millis(result.retry_after_ms)));
        } else {
            exit = exit.max(said.exit);
        }
    }
    Ok((exit, jobs))
}

/// The states of drives that were added before. Only for words: what cannot be told is left out.
async fn states(api: &Api, results: &[ActionResult]) -> States {
    let already = |result: &&ActionResult| answer::code(result) == Some(Code::Already);
    let all = results.iter().chain(results.iter().flat_map(|result| &result.drives));
    let names = all.filter(already).filter_map(|result| Some(result.drive.as_ref()?.name.clone()));
    let mut states = States::new();
    for name in names.take(FOLLOWED_BY_NAME) {
        let objects = api.list(Kind::Drive, &name).await.unwrap_or_default();
        if let Some(drive) = objects.first().and_then(|o| serde_json::from_str::<Drive>(o).ok()) {
            states.insert(name, rows::state(&drive.status).to_owned());
        }
    }
    states
}

//! A registry's answers in words: what, why, what changed, what next. Pure; [`super::act`] prints it.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_api::cms::{ActionResult, DriveBrief};
use hotbay_core::cms::Code;

use super::act::{Asked, Verb};
use super::exit::Exit;
use super::{volume, words};

/// What to say about one target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) exit: Exit,
    /// To be said as an error.
    pub(crate) error: bool,
    pub(crate) what: String,
    /// Lines below it.
    pub(crate) more: Vec<String>,
}

/// The states of drives that an answer calls "already", by name.
pub(crate) type States = BTreeMap<String, String>;

/// The answer's code; `None` for one that this release does not know.
pub(crate) fn code(result: &ActionResult) -> Option<Code> {
    let codes = [
        Code::Ok,
        Code::Already,
        Code::TryAgain,
        Code::InvalidState,
        Code::NotFound,
        Code::Argument,
    ];
    codes.into_iter().find(|code| code.as_str() == result.result)
}

/// What to say about a target and the answer to it.
pub(crate) fn said(asked: &Asked, target: &str, result: &ActionResult, states: &States) -> Said {
    let code = code(result);
    let mut exit = Exit::of_answer(code);
    // A dry run has done all that it was asked for when it has said what would happen.
    if asked.dry_run && exit == Exit::TryAgain {
        exit = Exit::Done;
    }
    match code {
        Some(Code::Ok | Code::Already | Code::TryAgain) => {
            let (what, more) = match &result.drive {
                Some(drive) => of_drive(asked, drive, result, states),
                None => of_host(asked, target, result, states),
            };
            Said { exit, error: false, what, more }
        }
        Some(Code::InvalidState | Code::NotFound | Code::Argument) | None => {
            let (what, more) = refused(asked, target, code, result);
            Said { exit, error: true, what, more }
        }
    }
}

fn refused(
    asked: &Asked,
    target: &str,
    code: Option<Code>,
    result: &ActionResult,
) -> (String, Vec<String>) {
    let nothing = || "nothing was changed".to_owned();
    let reasons = if result.reasons.is_empty() {
        // A host is refused for its drives: each reason once.
        let of_drives = result.drives.iter().flat_map(|drive| &drive.reasons);
        of_drives.cloned().collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("; ")
    } else {
        result.reasons.join("; ")
    };
    let subject = result.drive.as_ref().map_or_else(|| target.to_owned(), words::drive);
    match (code, asked.verb) {
        (Some(Code::NotFound | Code::Argument), _) => (reasons, vec![nothing()]),
        (None, _) => {
            let what = format!("{subject}: the registry answers {:?}", result.result);
            (what, vec!["use the same release of hotbay on both sides".to_owned()])
        }
        (Some(_), Verb::Add) => {
            let usable = "see which drives can be added:  hotbay get drives --usable".to_owned();
            (format!("{subject} is not added: {reasons}"), vec![nothing(), usable])
        }
        (Some(_), Verb::Remove) => {
            (format!("{subject} is not removed: {reasons}"), vec![nothing()])
        }
    }
}

fn of_drive(
    asked: &Asked,
    drive: &DriveBrief,
    result: &ActionResult,
    states: &States,
) -> (String, Vec<String>) {
    let outcome = outcome(asked, drive, result, states);
    let mut more = volumes(asked, result);
    let follow = !asked.wait && !asked.dry_run;
    match (asked.verb, code(result)) {
        (Verb::Add, Some(Code::Ok)) if follow => more.push(
            "in operation once the node's agent has opened it; hotbay get drives shows it".into(),
        ),
        (Verb::Remove, Some(Code::TryAgain)) if follow => {
            let again = words::took(std::time::Duration::from_millis(result.retry_after_ms));
            more.push(format!("not out of operation yet: ask again in {again}, or let it wait:"));
            more.push(format!("hotbay drive remove {} --wait", drive.name));
        }
        _ => {}
    }
    (format!("{}: {outcome}", words::drive(drive)), more)
}

fn of_host(
    asked: &Asked,
    host: &str,
    result: &ActionResult,
    states: &States,
) -> (String, Vec<String>) {
    let mut drives: Vec<_> =
        result.drives.iter().filter_map(|result| Some((result.drive.as_ref()?, result))).collect();
    // As they stand in the machine and in `hotbay get drives`, not by their random ids.
    drives.sort_by_key(|(drive, _)| (&drive.bay, &drive.path));
    let lines = |(drive, result): (&DriveBrief, &ActionResult)| {
        let outcome = outcome(asked, drive, result, states);
        let in_the_way = volume::words::in_the_way(&result.volumes);
        let first = format!("{}: {outcome}", words::drive_of_host(drive));
        std::iter::once(first).chain(in_the_way.into_iter().map(|line| format!("  {line}")))
    };
    let mut more: Vec<String> = drives.into_iter().flat_map(lines).collect();
    // What has no name of its own says where it is in its reason.
    let nameless = result.drives.iter().filter(|result| result.drive.is_none());
    more.extend(nameless.map(|result| format!("left out: {}", result.reasons.join("; "))));
    let count = |fits: &dyn Fn(&ActionResult) -> bool| {
        result.drives.iter().filter(|result| fits(result)).count()
    };
    let changed = match asked.verb {
        Verb::Add => count(&|drive| code(drive) == Some(Code::Ok)),
        Verb::Remove => count(&|drive| code(drive) == Some(Code::TryAgain)),
    };
    let left_out = count(&left_out);
    let drives = words::count(changed, "drive");
    let mut what = match (asked.verb, asked.dry_run) {
        _ if !result.reasons.is_empty() => format!("{host}: {}", result.reasons.join("; ")),
        (Verb::Add, _) if changed == 0 => format!("{host}: nothing to add"),
        (Verb::Add, true) => format!("{host}: would add {drives}"),
        (Verb::Add, false) => format!("{host}: adding {drives}"),
        (Verb::Remove, _) if changed == 0 => format!("{host}: all drives are out of operation"),
        (Verb::Remove, true) => format!("{host}: would close {drives}"),
        (Verb::Remove, false) => format!("{host}: closing {drives}"),
    };
    if left_out > 0 && asked.verb == Verb::Add {
        what.push_str(&format!(", {left_out} left out"));
    }
    if asked.verb == Verb::Add && result.drives.iter().any(left_out_alone) {
        more.push("--with-removed also adds those that were removed on their own".to_owned());
    }
    if asked.verb == Verb::Remove && changed > 0 && !asked.wait && !asked.dry_run {
        more.push(format!(
            "not out of operation yet; let it wait: hotbay host remove {host} --wait"
        ));
    }
    (what, more)
}

/// A drive that a host action passes over.
pub(crate) fn left_out(result: &ActionResult) -> bool {
    code(result) == Some(Code::InvalidState) || left_out_alone(result)
}

/// Only a drive that was removed on its own is "already" with a reason.
fn left_out_alone(result: &ActionResult) -> bool {
    code(result) == Some(Code::Already) && !result.reasons.is_empty()
}

/// What becomes of one drive.
fn outcome(asked: &Asked, drive: &DriveBrief, result: &ActionResult, states: &States) -> String {
    let reasons = result.reasons.join("; ");
    match (asked.verb, code(result)) {
        _ if left_out(result) => format!("left out: {reasons}"),
        (Verb::Add, Some(Code::Ok)) => {
            let wiped = asked.wipe.as_ref().is_some_and(|wipe| wipe.loses);
            match (asked.dry_run, wiped) {
                (true, true) => "would be wiped and added".to_owned(),
                (true, false) => "would be added".to_owned(),
                (false, true) => "wiping and adding".to_owned(),
                (false, false) => "adding".to_owned(),
            }
        }
        (Verb::Add, _) => match states.get(&drive.name).map(String::as_str) {
            Some("Attached") => "is in operation already; nothing was changed".to_owned(),
            Some("Attaching") => "is being added already; nothing was changed".to_owned(),
            _ => "was added already; nothing was changed".to_owned(),
        },
        (Verb::Remove, Some(Code::Ok | Code::Already)) => {
            "out of operation: closed, and that is proved".to_owned()
        }
        (Verb::Remove, _) if !result.dependent_volumes.is_empty() => {
            let volumes = words::count(result.dependent_volumes.len(), "volume");
            let verb = if result.dependent_volumes.len() == 1 { "is" } else { "are" };
            let would = if asked.dry_run { "would wait: " } else { "" };
            format!("{would}{volumes} {verb} on it")
        }
        (Verb::Remove, _) if asked.dry_run => "would be closed".to_owned(),
        (Verb::Remove, _) => format!("closing; {reasons}"),
    }
}

/// The volumes in the way, and what to do about them.
fn volumes(asked: &Asked, result: &ActionResult) -> Vec<String> {
    if asked.verb == Verb::Add || result.volumes.is_empty() {
        return Vec::new();
    }
    let mut lines = volume::words::in_the_way(&result.volumes);
    lines.push("it stays in operation until they are gone:  hotbay volume delete NAME".to_owned());
    lines
}

#[cfg(test)]
mod tests {
    use hotbay_api::cms::VolumeBrief;

    use super::*;

    fn asked(verb: Verb) -> Asked {
        Asked {
            verb,
            hosts: false,
            targets: Vec::new(),
            planned: BTreeMap::new(),
            wipe: None,
            with_removed: false,
            returned: false,
            wait: false,
            limit: None,
            dry_run: false,
        }
    }

    fn brief() -> DriveBrief {
        DriveBrief {
            order: String::new(),
            name: "d-7f3a".into(),
            node: "node-a".into(),
            path: "/dev/sda".into(),
            bay: "0".into(),
            serial: "S3X1A9".into(),
        }
    }

    fn result(code: Code, reasons: &[&str]) -> ActionResult {
        ActionResult {
            result: code.to_string(),
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            drive: Some(brief()),
            retry_after_ms: 1_000,
            ..ActionResult::default()
        }
    }

    fn text(said: &Said) -> String {
        [vec![said.what.clone()], said.more.clone()].concat().join("\n")
    }

    #[test]
    fn an_add_says_when_it_will_be_in_operation() {
        let said = said(&asked(Verb::Add), "d-7f3a", &result(Code::Ok, &[]), &States::new());
        assert_eq!(said.exit, Exit::Done);
        assert_eq!(
            text(&said),
            "d-7f3a (node-a bay 0, serial S3X1A9): adding\n\
             in operation once the node's agent has opened it; hotbay get drives shows it"
        );
    }

    #[test]
    fn already_names_the_state() {
        let states = States::from([("d-7f3a".to_owned(), "Attaching".to_owned())]);
        let said = said(&asked(Verb::Add), "d-7f3a", &result(Code::Already, &[]), &states);
        assert!(said.what.ends_with(": is being added already; nothing was changed"), "{said:?}");
    }

    #[test]
    fn a_removal_under_way_says_why_and_how_to_wait() {
        let why = ["waiting for the node's agent"];
        let said =
            said(&asked(Verb::Remove), "S3X1A9", &result(Code::TryAgain, &why), &States::new());
        assert_eq!((said.exit, said.error), (Exit::TryAgain, false));
        assert_eq!(
            text(&said),
            "d-7f3a (node-a bay 0, serial S3X1A9): closing; waiting for the node's agent\n\
             not out of operation yet: ask again in 1.0 s, or let it wait:\n\
             hotbay drive remove d-7f3a --wait"
        );
    }

    #[test]
    fn volumes_in_the_way_are_named() {
        let mut result = result(Code::TryAgain, &["volumes are on it"]);
        result.dependent_volumes = vec!["aa".into(), "bb".into()];
        let brief = |name: &str, claim: &str| VolumeBrief {
            name: name.into(),
            size_bytes: 20 << 30,
            claim: claim.into(),
            used_on: Vec::new(),
        };
        result.volumes = vec![brief("aa", "shop/data-0"), brief("bb", "")];
        let said = said(&asked(Verb::Remove), "d-7f3a", &result, &States::new());
        assert!(said.what.ends_with(": 2 volumes are on it"), "{said:?}");
        assert_eq!(
            said.more[..3],
            [
                "aa  20 GiB  namespace shop, claim data-0  not in use",
                "bb  20 GiB  no claim                      not in use",
                "it stays in operation until they are gone:  hotbay volume delete NAME",
            ]
        );
    }

    #[test]
    fn a_refusal_says_what_why_what_changed_and_what_next() {
        let denied = result(Code::InvalidState, &["it is the system drive (mounted at /)"]);
        let said = said(&asked(Verb::Add), "node-a:/dev/sda", &denied, &States::new());
        assert_eq!((said.exit, said.error), (Exit::Refused, true));
        assert_eq!(
            text(&said),
            "d-7f3a (node-a bay 0, serial S3X1A9) is not added: it is the system drive (mounted at /)\n\
             nothing was changed\n\
             see which drives can be added:  hotbay get drives --usable"
        );
    }

    #[test]
    fn a_dry_run_is_done_when_it_has_said_what_would_happen() {
        let asked = Asked { dry_run: true, ..asked(Verb::Remove) };
        let said = said(&asked, "d-7f3a", &result(Code::TryAgain, &["x"]), &States::new());
        assert_eq!(said.exit, Exit::Done);
        assert_eq!(text(&said), "d-7f3a (node-a bay 0, serial S3X1A9): would be closed");
    }

    #[test]
    fn a_host_says_what_becomes_of_each_drive() {
        let denied = result(Code::InvalidState, &["it is read-only"]);
        let removed = result(Code::Already, &["it was removed on its own; add it by itself"]);
        let host = ActionResult {
            result: Code::Ok.to_string(),
            drives: vec![result(Code::Ok, &[]), denied, removed],
            ..ActionResult::default()
        };
        let said = said(&asked(Verb::Add), "node-a", &host, &States::new());
        assert_eq!(
            text(&said),
            "node-a: adding 1 drive, 2 left out\n\
             d-7f3a (bay 0, serial S3X1A9): adding\n\
             d-7f3a (bay 0, serial S3X1A9): left out: it is read-only\n\
             d-7f3a (bay 0, serial S3X1A9): left out: it was removed on its own; add it by itself\n\
             --with-removed also adds those that were removed on their own"
        );
    }

    #[test]
    fn an_answer_of_a_later_release_is_no_success() {
        let mut unknown = result(Code::Ok, &[]);
        unknown.result = "S_SOMETHING".into();
        let said = said(&asked(Verb::Remove), "d-7f3a", &unknown, &States::new());
        assert_eq!((said.exit, said.error), (Exit::Failed, true));
    }
}

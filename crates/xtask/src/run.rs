//! Runs tiers in order under their time caps, and tells at the end how each step went. Called by `main` with the
//! tiers that a command stands for.
//!
//! Every step ends as one of three, and a tier that could not run is never among the passed:
//!
//! ```text
//! passed    it ran and was content
//! failed    it ran and was not; or its tier's time was up; or something is missing and the tier must run
//! skipped   it did not run: a tool that is optional, a tier without cases, an earlier tier that failed
//! ```
//!
//! Within a tier all steps run, so that one run shows all that is wrong; after a tier with a failure no other starts.

use std::fmt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::beside;
use crate::step::{self, End, Interrupts};
use crate::tier::{Plan, Step, Tier, Work};
use crate::workspace::Workspace;

const NOT_BEGUN: &str = "not run: the tier's time was up";

/// What a shell reports for a program ended by Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

#[derive(Debug)]
pub(crate) struct Run {
    interrupts: Interrupts,
    /// Whether a tier that lacks something on this machine is a failure.
    must_run: bool,
    interrupted: bool,
    rows: Vec<Row>,
    /// Time used by each tier that ran.
    tiers: Vec<TierTime>,
}

/// One line of the closing summary.
#[derive(Debug)]
struct Row {
    tier: &'static str,
    step: String,
    verdict: Verdict,
    took: Duration,
}

#[derive(Debug)]
struct TierTime {
    tier: &'static str,
    took: Duration,
    cap: Duration,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

impl Run {
    pub(crate) fn new(interrupts: Interrupts, must_run: bool) -> Self {
        Self { interrupts, must_run, interrupted: false, rows: Vec::new(), tiers: Vec::new() }
    }

    /// Runs the tiers in order until one fails; the rest are noted as not run.
    pub(crate) fn tiers(&mut self, tiers: &[Tier], workspace: &Workspace) -> anyhow::Result<()> {
        let mut failed = None;
        for tier in tiers {
            if let Some(failed) = failed {
                self.note_not_run(tier.name(), &format!("{failed} failed"));
                continue;
            }
            println!("== {}: at most {}", tier.name(), Human(tier.cap()));
            let plan = tier.plan(workspace)?;
            if !self.tier(tier.name(), tier.cap(), plan) {
                failed = Some(tier.name());
            }
        }
        Ok(())
    }

    /// Prints the summary and says how the process shall exit.
    pub(crate) fn close(&self) -> ExitCode {
        println!("== summary");
        for row in &self.rows {
            println!("{row}");
        }
        for TierTime { tier, took, cap } in &self.tiers {
            println!("{tier}: used {} of {}", Human(*took), Human(*cap));
        }
        let (passed, failed, skipped) = self.counts();
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        match (self.interrupted, failed) {
            (true, _) => ExitCode::from(EXIT_INTERRUPTED),
            (false, 0) => ExitCode::SUCCESS,
            (false, _) => ExitCode::FAILURE,
        }
    }

    /// Returns whether nothing failed.
    fn tier(&mut self, tier: &'static str, cap: Duration, plan: Plan) -> bool {
        let started = Instant::now();
        let first_row = self.rows.len();
        match plan {
            Plan::Steps(steps) => {
                let mut steps = steps.into_iter().peekable();
                loop {
                    let beside = std::iter::from_fn(|| steps.next_if(Step::is_beside)).collect();
                    self.beside(tier, beside, started + cap);
                    // Without what a setup sees to, the steps after it would only fail.
                    let goes_on =
                        steps.next().is_some_and(|step| self.step(tier, step, started + cap));
                    if !goes_on {
                        break;
                    }
                }
                for step in steps {
                    if matches!(step.work, Work::Check(_)) {
                        self.step(tier, step, started + cap);
                        continue;
                    }
                    let why = "not run: its setup failed".to_owned();
                    self.add(tier, &step.name, Verdict::Skipped(why), Duration::ZERO);
                }
                self.tiers.push(TierTime { tier, took: started.elapsed(), cap });
            }
            Plan::NoCases(why) => self.note_not_run(tier, why),
            Plan::Missing(missing) => {
                self.note_cannot_run(tier, &format!("missing here: {}", missing.join("; ")));
            }
        }
        !self.rows[first_row..].iter().any(|row| matches!(row.verdict, Verdict::Failed(_)))
    }

    /// Returns whether the steps after it can run.
    fn step(&mut self, tier: &'static str, step: Step, deadline: Instant) -> bool {
        let Step { name, work } = step;
        let started = Instant::now();
        let is_setup = matches!(work, Work::Setup(_));
        let verdict = match work {
            Work::LeftOut(why) => {
                println!("-- {tier} {name}: {why}, left out");
                Verdict::Skipped(format!("{why}, left out"))
            }
            Work::Setup(_) | Work::Child(_) | Work::Beside(_) if self.interrupted => {
                Verdict::Skipped("not run: interrupted".to_owned())
            }
            Work::Setup(mut command) | Work::Child(mut command) | Work::Beside(mut command)
                if started < deadline =>
            {
                println!("-- {tier} {name}: {}", CommandLine(&command));
                let end = step::run(&mut command, deadline, &self.interrupts);
                verdict(end, &mut self.interrupted)
            }
            Work::Setup(_) | Work::Child(_) | Work::Beside(_) => {
                Verdict::Skipped(NOT_BEGUN.to_owned())
            }
            // In process and quick, so it runs whatever happened before: it may remove what a killed step left behind.
            Work::Check(check) => {
                println!("-- {tier} {name}");
                match check() {
                    Ok(()) => Verdict::Passed,
                    Err(error) => Verdict::Failed(format!("{error:#}")),
                }
            }
        };
        let took = started.elapsed();
        if is_setup && let Verdict::Failed(why) = &verdict {
            self.note_cannot_run(tier, &format!("its setup failed ({why}), and says why above"));
            return false;
        }
        self.rows.push(Row::told(tier, &name, verdict, took));
        true
    }

    /// Runs steps at the same time; what each prints follows when it has ended.
    fn beside(&mut self, tier: &'static str, steps: Vec<Step>, deadline: Instant) {
        let (mut names, mut commands) = (Vec::new(), Vec::new());
        for Step { name, work } in steps {
            let Work::Beside(command) = work else { unreachable!("chosen by that") };
            println!("-- {tier} {name}: {}, beside others", CommandLine(&command));
            names.push(name);
            commands.push(command);
        }
        let Self { interrupts, interrupted, rows, .. } = self;
        beside::run(&mut commands, deadline, interrupts, |ended| {
            let verdict = match ended.end {
                Some(end) => verdict(end, interrupted),
                None => Verdict::Skipped(NOT_BEGUN.to_owned()),
            };
            let step = &names[ended.step];
            println!("-- {tier} {step} printed:\n{}", String::from_utf8_lossy(&ended.output));
            rows.push(Row::told(tier, step, verdict, ended.took));
        });
    }

    /// A tier that this machine has not what it needs for: a failure only where the tier must run.
    fn note_cannot_run(&mut self, tier: &'static str, why: &str) {
        if !self.must_run {
            return self.note_not_run(tier, why);
        }
        let why = format!("NOT RUN: {why}");
        println!("!! {tier}: {why}");
        self.add(tier, tier, Verdict::Failed(why), Duration::ZERO);
    }

    fn note_not_run(&mut self, tier: &'static str, why: &str) {
        let why = format!("NOT RUN: {why}; this does not count as passed");
        println!("!! {tier}: {why}");
        self.add(tier, tier, Verdict::Skipped(why), Duration::ZERO);
    }

    fn add(&mut self, tier: &'static str, step: &str, verdict: Verdict, took: Duration) {
        self.rows.push(Row { tier, step: step.to_owned(), verdict, took });
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&Verdict) -> bool| self.rows.iter().filter(|r| is(&r.verdict)).count();
        (
            count(|verdict| matches!(verdict, Verdict::Passed)),
            count(|verdict| matches!(verdict, Verdict::Failed(_))),
            count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        )
    }
}

fn verdict(end: anyhow::Result<End>, interrupted: &mut bool) -> Verdict {
    match end {
        Ok(End::Exited(status)) if status.success() => Verdict::Passed,
        Ok(End::Exited(status)) => Verdict::Failed(status.to_string()),
        Ok(End::OutOfTime) => {
            Verdict::Failed("the tier's time was up; killed with all it had started".to_owned())
        }
        Ok(End::Interrupted) => {
            *interrupted = true;
            Verdict::Failed("interrupted; killed with all it had started".to_owned())
        }
        Err(error) => Verdict::Failed(format!("{error:#}")),
    }
}

impl Row {
    /// Says at once how it went.
    fn told(tier: &'static str, step: &str, verdict: Verdict, took: Duration) -> Self {
        match &verdict {
            Verdict::Passed => println!("   {tier} {step}: passed in {}", Human(took)),
            Verdict::Failed(why) => println!("   {tier} {step}: FAILED: {why}"),
            Verdict::Skipped(_) => {}
        }
        Self { tier, step: step.to_owned(), verdict, took }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, step, verdict, took } = self;
        write!(f, "{tier:<6} {step:<24} ")?;
        match verdict {
            Verdict::Passed => write!(f, "passed   {}", Human(*took)),
            // The reason may have many lines, and was printed in full where the step failed.
            Verdict::Failed(why) => {
                write!(f, "FAILED   {}", why.lines().next().unwrap_or_default())
            }
            Verdict::Skipped(why) => write!(f, "skipped  {why}"),
        }
    }
}

/// A duration as people say it.
struct Human(Duration);

impl fmt::Display for Human {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match (seconds / 60, seconds % 60) {
            (0, _) => write!(f, "{:.1} s", self.0.as_secs_f64()),
            (minutes, 0) => write!(f, "{minutes} min"),
            (minutes, seconds) => write!(f, "{minutes} min {seconds} s"),
        }
    }
}

/// A command as one would type it.
struct CommandLine<'a>(&'a Command);

impl fmt::Display for CommandLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The run's own temporary folder is gone by the time that somebody types it.
        for (name, value) in self.0.get_envs().filter(|(name, _)| *name != "TMPDIR") {
            let value = value.unwrap_or_default().to_string_lossy();
            let quote = if value.contains(' ') { "'" } else { "" };
            write!(f, "{}={quote}{value}{quote} ", name.to_string_lossy())?;
        }
        let program = self.0.get_program().to_string_lossy();
        write!(f, "{}", program.rsplit('/').next().unwrap_or(&program))?;
        for arg in self.0.get_args() {
            write!(f, " {}", arg.to_string_lossy())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(50);

    fn run_of(must_run: bool) -> Run {
        Run::new(Interrupts::listen().unwrap(), must_run)
    }

    fn child(name: &str, script: &str) -> Step {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Step { name: name.to_owned(), work: Work::Child(command) }
    }

    #[test]
    fn steps_after_a_failure_still_run() {
        let mut run = run_of(false);
        let steps = vec![child("good", "exit 0"), child("bad", "exit 1"), check_of("check")];
        assert!(!run.tier("check", LONG, Plan::Steps(steps)));
        assert_eq!(run.counts(), (2, 1, 0));
        assert_eq!(run.close(), ExitCode::FAILURE);
    }

    fn check_of(name: &str) -> Step {
        Step { name: name.to_owned(), work: Work::Check(Box::new(|| Ok(()))) }
    }

    #[test]
    fn overrun_fails_the_step_and_skips_the_rest() {
        let mut run = run_of(false);
        let steps = vec![child("slow", "sleep 60"), child("next", "exit 0")];
        assert!(!run.tier("check", Duration::from_secs(1), Plan::Steps(steps)));
        assert_eq!(run.counts(), (0, 1, 1));
        assert_eq!(run.rows[0].step, "slow");
        assert!(run.rows[0].to_string().contains("time was up"), "{}", run.rows[0]);
    }

    #[test]
    fn tier_without_cases_is_no_failure_and_no_pass() {
        let mut run = run_of(true);
        assert!(run.tier("guest", LONG, Plan::NoCases("no cases exist yet")));
        assert_eq!(run.counts(), (0, 0, 1));
        assert!(run.rows[0].to_string().contains("does not count as passed"), "{}", run.rows[0]);
        assert_eq!(run.close(), ExitCode::SUCCESS);
    }

    #[test]
    fn missing_thing_fails_only_where_the_tier_must_run() {
        for (must_run, counts) in [(true, (0, 1, 0)), (false, (0, 0, 1))] {
            let mut run = run_of(must_run);
            let passed = run.tier("root", LONG, Plan::Missing(vec!["user id 0".to_owned()]));
            assert_eq!(passed, !must_run);
            assert_eq!(run.counts(), counts);
        }
    }

    #[test]
    fn steps_after_a_setup_that_failed_do_not_run() {
        for (must_run, counts) in [(true, (0, 1, 1)), (false, (0, 0, 2))] {
            let mut run = run_of(must_run);
            let Step { name, work: Work::Child(command) } = child("setup", "exit 1") else {
                panic!()
            };
            let steps = vec![Step { name, work: Work::Setup(command) }, child("next", "exit 0")];
            assert_eq!(run.tier("guest", LONG, Plan::Steps(steps)), !must_run);
            assert_eq!(run.counts(), counts);
            assert!(
                run.rows[0].to_string().contains("NOT RUN: its setup failed"),
                "{}",
                run.rows[0]
            );
        }
    }

    #[test]
    fn what_cleans_up_runs_after_an_overrun_an_interrupt_and_a_setup_that_failed() {
        let setup = Command::new("false");
        let setup = Step { name: "setup".to_owned(), work: Work::Setup(setup) };
        let cases = [
            (child("slow", "sleep 60"), Duration::from_secs(1), false),
            (child("never", "exit 0"), LONG, true),
            (setup, LONG, false),
        ];
        for (first, cap, interrupted) in cases {
            let mut run = run_of(true);
            run.interrupted = interrupted;
            let steps = vec![first, child("next", "exit 0"), check_of("leftovers")];
            run.tier("root", cap, Plan::Steps(steps));
            let last = run.rows.last().unwrap();
            assert_eq!((last.step.as_str(), &last.verdict), ("leftovers", &Verdict::Passed));
            assert_eq!(run.counts().0, 1, "{:?}", run.rows);
        }
    }

    #[test]
    fn tool_left_out_is_skipped() {
        let mut run = run_of(true);
        let left_out = Work::LeftOut("not installed".to_owned());
        let steps = vec![Step { name: "typos".to_owned(), work: left_out }];
        assert!(run.tier("check", LONG, Plan::Steps(steps)));
        assert_eq!(run.counts(), (0, 0, 1));
    }

    #[test]
    fn times_and_commands_read_as_people_write_them() {
        assert_eq!(Human(Duration::from_millis(1_240)).to_string(), "1.2 s");
        assert_eq!(Human(Duration::from_secs(720)).to_string(), "12 min");
        assert_eq!(Human(Duration::from_secs(61)).to_string(), "1 min 1 s");
        let mut command = Command::new("/opt/rust/bin/cargo");
        command.arg("doc").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(CommandLine(&command).to_string(), "RUSTDOCFLAGS='-D warnings' cargo doc");
    }
}

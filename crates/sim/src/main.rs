//! Runs seeds and replays one. By hand, for soaks and for looking into a seed that broke something.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use hotbay_core::rules::Rules;
use hotbay_sim::{Coverage, Outcome, replay, report, run};

const USAGE: &str = "usage: hotbay-sim run --seeds N [--from S]
       hotbay-sim replay SEED [--log FILE]";

/// A long run says so often that it goes on, so that one that is stopped has told how far it came.
const TOLD_EVERY: u64 = 5_000;

/// What to do.
enum Command {
    Run { seeds: u64, from: u64 },
    Replay { seed: u64, log: Option<String> },
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match parse(&arguments) {
        Some(Command::Run { seeds, from }) => run_many(from, seeds),
        Some(Command::Replay { seed, log }) => replay_one(seed, log.as_deref()),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(arguments: &[&str]) -> Option<Command> {
    match arguments {
        ["run", "--seeds", seeds] => Some(Command::Run { seeds: seeds.parse().ok()?, from: 0 }),
        ["run", "--seeds", seeds, "--from", from] => {
            Some(Command::Run { seeds: seeds.parse().ok()?, from: from.parse().ok()? })
        }
        ["replay", seed] => Some(Command::Replay { seed: seed.parse().ok()?, log: None }),
        ["replay", seed, "--log", file] => {
            Some(Command::Replay { seed: seed.parse().ok()?, log: Some((*file).to_owned()) })
        }
        _ => None,
    }
}

fn run_many(from: u64, seeds: u64) -> ExitCode {
    let began = Instant::now();
    let (mut coverage, mut events, mut machines) = (Coverage::default(), 0, 0);
    for seed in from..from.saturating_add(seeds) {
        let outcome = run(seed, Rules::default());
        coverage.add(&outcome.coverage);
        events += outcome.events;
        machines += outcome.machines;
        if outcome.violation.is_some() {
            println!("{}", report(seed, Rules::default()));
            return ExitCode::FAILURE;
        }
        if (seed + 1 - from).is_multiple_of(TOLD_EVERY) {
            eprintln!("{} seeds, up to {seed}: nothing broken", seed + 1 - from);
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate, for people")]
    let (seed_rate, event_rate) = (seeds as f64 / seconds, events as f64 / seconds);
    println!("{seeds} seeds from {from}: {machines} machines, {events} events, nothing broken");
    println!("{seconds:.1} s, {seed_rate:.1} seeds/s, {event_rate:.0} events/s");
    print!("{coverage}");
    ExitCode::SUCCESS
}

fn replay_one(seed: u64, log: Option<&str>) -> ExitCode {
    let Outcome { violation, log: story, events, .. } = replay(seed, Rules::default());
    let written = match log {
        None => write_lines(&mut std::io::stdout().lock(), &story),
        Some(path) => std::fs::File::create(path).and_then(|mut file| {
            let mut out = std::io::BufWriter::new(&mut file);
            write_lines(&mut out, &story)?;
            out.flush()
        }),
    };
    if let Err(error) = written {
        eprintln!("the log cannot be written: {error}");
        return ExitCode::FAILURE;
    }
    match violation {
        Some(violation) => {
            println!("seed {seed}, {events} events: {violation}");
            ExitCode::FAILURE
        }
        None => {
            println!("seed {seed}, {events} events: nothing broken");
            ExitCode::SUCCESS
        }
    }
}

fn write_lines(out: &mut impl Write, lines: &[String]) -> std::io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

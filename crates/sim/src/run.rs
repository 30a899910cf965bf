//! One seed: draws the scenario, builds the world, runs it, and says what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hotbay_core::ids::MachineId;
use hotbay_core::rules::Rules;

use crate::check::{Invariant, Violation};
use crate::client::Client;
use crate::drive::Disk;
use crate::fault::{Coverage, Fault};
use crate::log::Log;
use crate::machine::Machine;
use crate::registry::Site;
use crate::rng::Rng;
use crate::scenario::{Kind, SECOND, Scenario};
use crate::world::{Event, World};

/// How many lines of the log go with a violation.
const TAIL_LINES: usize = 40;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub events: u64,
    pub machines: usize,
    pub coverage: Coverage,
    pub violation: Option<Violation>,
    /// The story, if it was kept.
    pub log: Vec<String>,
}

/// Runs a seed without its story.
pub fn run(seed: u64, rules: Rules) -> Outcome {
    run_with(seed, rules, Log::Off)
}

/// Runs a seed and keeps its story.
pub fn replay(seed: u64, rules: Rules) -> Outcome {
    run_with(seed, rules, Log::Kept(Vec::new()))
}

/// What a person needs to know of a broken invariant: the rule, the end of the story, and how to read all of it.
pub fn report(seed: u64, rules: Rules) -> String {
    let Outcome { violation, log, .. } = replay(seed, rules);
    let Some(violation) = violation else {
        return format!(
            "seed {seed}: nothing was broken the second time: the run depends on more than its seed"
        );
    };
    let tail = &log[log.len().saturating_sub(TAIL_LINES)..];
    format!(
        "seed {seed}: {violation}\n\nthe last {} of {} lines:\n{}\n\nthe whole story:\n  \
         cargo run -p hotbay-sim -- replay {seed}\n",
        tail.len(),
        log.len(),
        tail.join("\n")
    )
}

fn run_with(seed: u64, rules: Rules, log: Log) -> Outcome {
    let mut world = world(seed, rules, log);
    // A panic in core is a finding like any other: the seed and the story are what is needed.
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).err();
    if let Some(panic) = panicked {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        world.breaks(Invariant::Panicked, text.unwrap_or_default());
    }
    let World { events, machines, coverage, broken, log, .. } = world;
    let log = log.into_lines();
    Outcome { seed, events, machines: machines.len(), coverage, violation: broken, log }
}

fn world(seed: u64, rules: Rules, log: Log) -> World {
    let mut rng = Rng::new(seed);
    let scenario = Scenario::draw(&mut rng);
    let mut world = World::new(rng, rules, scenario, log);
    crate::log::note!(world, "{:?}", world.scenario);
    for number in 0..world.scenario.machines {
        let bays_max = world.scenario.bays_max;
        let bays = (0..world.rng.between(1, bays_max)).map(|_| {
            let disk = Disk::new(&mut world.rng, world.disks.len());
            world.disks.push(disk);
            Some(world.disks.len() - 1)
        });
        let bays = bays.collect();
        let name = format!("node-{number}").parse().expect("a plain name");
        let mut machine = Machine::new(name, MachineId::from_bits(world.rng.id()), bays);
        machine.calm = world.scenario.kind == Kind::Isolation && number % 2 == 0;
        if world.scenario.clock_speeds && world.rng.chance(500) {
            machine.timers_percent = world.rng.between(50, 200);
            world.coverage.count(Fault::ClockSpeed);
        }
        world.machines.push(machine);
        let pause = world.rng.between(1, 3 * SECOND);
        world.after(pause, Event::AgentStarts { machine: number });
    }
    world.sites.push(Site::default());
    world.after(1, Event::Lead { site: 0 });
    for client in 0..world.scenario.clients {
        let places = world.scenario.volumes && client % 3 == 2;
        world.clients.push(Client::new(places));
        let pause = world.rng.between(SECOND, 10 * SECOND);
        world.after(pause, Event::ClientActs { client });
    }
    world.after(2 * SECOND, Event::Chaos);
    let trouble = world.scenario.trouble;
    world.after(trouble, Event::TroubleEnds);
    world
}

//! The exhaustive model of the order of orders: one drive, one agent, one registry and its rivals, over core's own
//! functions. `docs/design/0002-order-model.md` says what is modelled and what is not.
//!
//! `HOTBAY_MODEL_BOUNDS=full` plays the large configurations instead: half an hour, in a release build.
//! `HOTBAY_MODEL_ONLY` plays those alone whose names begin so.

mod bounds;
mod check;
mod configurations;
mod fair;
mod invariants;
mod machine;
mod registry;
mod start;
mod step;
mod world;

use std::env;
use std::time::Instant;

use configurations::{Bounds, FULL, QUICK, RULES, missing};
use hotbay_core::rules::Rules;

#[test]
fn every_history_keeps_the_invariants() {
    let full = env::var("HOTBAY_MODEL_BOUNDS").is_ok_and(|bounds| bounds == "full");
    let (configurations, run): (&[Bounds], fn(Bounds) -> check::Found) = if full {
        (&FULL, check::run_deep)
    } else {
        (&QUICK, |bounds| check::run(bounds, Rules::default()))
    };
    // One of them alone, for whoever has no hours: by the beginning of its name.
    let only = env::var("HOTBAY_MODEL_ONLY").unwrap_or_default();
    for bounds in configurations.iter().filter(|bounds| bounds.name.starts_with(&only)) {
        let begun = Instant::now();
        let found = run(*bounds);
        let seconds = begun.elapsed().as_secs_f32();
        println!("model: {bounds}: {} states in {seconds:.1} s", found.states);
        if let Some(broken) = found.broken {
            panic!("{}", broken.history);
        }
    }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    for rule in RULES {
        let bounds = missing(rule);
        let found = check::run(bounds, Rules::without(rule));
        let Some(broken) = found.broken else {
            panic!("without {rule:?} nothing breaks in {} states of {bounds}", found.states);
        };
        let check::Break { property, steps, .. } = broken;
        println!("without {rule:?}: \"{property}\" breaks in {steps} steps ({})", bounds.name);
    }
}

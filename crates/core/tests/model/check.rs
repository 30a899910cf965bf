//! Runs the model checker over one configuration and tells what it found.

use std::fmt::Write as _;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use hotbay_core::rules::Rules;
use stateright::{Checker, HasDiscoveries, Model, Path, Property};

use crate::bounds::{Limits, possible};
use crate::configurations::Bounds;
use crate::step::{Outcome, Step};
use crate::world::World;
use crate::{fair, invariants, start};

/// States after which a run gives up: a configuration that large is a mistake.
const STATES_LIMIT: usize = 10_000_000;

/// The same for the full bounds: hours.
const DEEP_STATES_LIMIT: usize = 60_000_000;

/// A configuration of the model, with the rules it is played by.
pub(crate) struct Order {
    pub(crate) bounds: Bounds,
    pub(crate) rules: Rules,
}

/// A world, and what may still happen to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Position {
    pub(crate) world: World,
    pub(crate) left: Limits,
}

impl Model for Order {
    type State = Position;
    type Action = Step;

    fn init_states(&self) -> Vec<Position> {
        let world = start::begin(self.rules, self.bounds.start);
        vec![Position { world, left: self.bounds.limits }]
    }

    fn actions(&self, position: &Position, actions: &mut Vec<Step>) {
        if position.world.broken.is_none() {
            possible(&position.world, &position.left, self.bounds.under_way, actions);
        }
    }

    fn next_state(&self, position: &Position, step: Step) -> Option<Position> {
        let Position { mut world, mut left } = position.clone();
        let outcome = world.take(step.clone(), self.bounds.late);
        let full = world.network.len() > self.bounds.under_way;
        // One answer that waits for the store tells as much as many.
        let held = world.sites.iter().map(|site| site.gate.held()).sum::<usize>();
        let crowded = outcome == Outcome::Unchanged && held > 1;
        let fits = !full && !crowded && left.spend(&step, outcome);
        fits.then_some(Position { world, left })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("1 no stale order or confirmation", |_, at: &Position| {
                invariants::no_stale_order(&at.world)
            }),
            Property::always("2 attached is open or explained", |_, at: &Position| {
                invariants::attached_is_open(&at.world)
            }),
            Property::always("3 removed is closed", |_, at: &Position| {
                invariants::removed_is_closed(&at.world)
            }),
            Property::always("4 volumes only on attached drives", |_, at: &Position| {
                invariants::volumes_on_attached_drives(&at.world)
            }),
            Property::always("5 drives with volumes stay", |_, at: &Position| {
                invariants::drives_with_volumes_stay(&at.world)
            }),
            Property::always("7 told is durable", |_, at: &Position| {
                invariants::told_is_durable(&at.world)
            }),
            Property::always("10 settles when faults stop", |model: &Self, at: &Position| {
                !model.tried(&at.world) || fair::unsettled(&at.world).is_none()
            }),
        ]
    }
}

impl Order {
    /// Whether a world is among those tried for invariant 10.
    fn tried(&self, world: &World) -> bool {
        let one_of = self.bounds.settle_one_of;
        one_of == 1
            || BuildHasherDefault::<DefaultHasher>::default().hash_one(world).is_multiple_of(one_of)
    }
}

/// What a run found.
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) broken: Option<Break>,
}

/// A broken property.
pub(crate) struct Break {
    pub(crate) property: &'static str,
    pub(crate) steps: usize,
    /// The history that leads there, in words.
    pub(crate) history: String,
}

/// Plays every history within the bounds, the short ones first, and stops at the first broken property.
pub(crate) fn run(bounds: Bounds, rules: Rules) -> Found {
    let checker = Order { bounds, rules }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::Any)
        .target_state_count(STATES_LIMIT)
        .spawn_bfs()
        .join();
    assert!(
        checker.state_count() < STATES_LIMIT,
        "{}: too large to be played through",
        bounds.name
    );
    let found = checker.discoveries().into_iter().next();
    let broken = found.map(|(property, path)| in_words(property, path));
    Found { states: checker.unique_state_count(), broken }
}

/// The same, deep first, which takes less memory; says how many states there are.
pub(crate) fn run_deep(bounds: Bounds) -> Found {
    let checker = Order { bounds, rules: Rules::default() }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::Any)
        .target_state_count(DEEP_STATES_LIMIT)
        .spawn_dfs()
        .join();
    if checker.state_count() >= DEEP_STATES_LIMIT {
        println!("model {}: stopped before all histories were played", bounds.name);
    }
    let found = checker.discoveries().into_iter().next();
    let broken = found.map(|(property, path)| in_words(property, path));
    Found { states: checker.unique_state_count(), broken }
}

fn in_words(property: &'static str, path: Path<Position, Step>) -> Break {
    let positions = path.into_vec();
    let mut history = format!("broken: {property}\n");
    for (number, (Position { world, .. }, step)) in positions.iter().enumerate() {
        let broken = world.broken.map_or(String::new(), |broken| format!(" ({broken:?})"));
        let _ = writeln!(history, "      {}{broken}", world.in_words());
        if let Some(step) = step {
            let _ = writeln!(history, "{:>4}. {step}", number + 1);
        }
    }
    Break { property, steps: positions.len() - 1, history }
}

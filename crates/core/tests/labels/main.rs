//! The exhaustive model of what registry and agent say about labels and uses: one drive with room for one volume, two
//! volumes one after the other, and every order of events within the bounds, over core's own functions.
//!
//! Beside `model`, which plays how a drive comes into operation: here it is, and a registration runs to its end at
//! once.

mod world;

use hotbay_core::cluster::AttachmentState;
use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::order::Generation;
use hotbay_core::rules::{Rule, Rules};
use hotbay_core::volume::Epoch;
use stateright::{Checker, HasDiscoveries, Model, Property};

use world::{A, Ask, B, Bounds, DRIVE, Limits, Message, NODE, Step, World};

const STATES_LIMIT: usize = 3_000_000;
/// How many steps a history has at the most: what is missed is missed within nine.
const DEPTH: usize = 11;

const NONE: Limits = Limits {
    asks: 0,
    doubled: 0,
    connections: 0,
    agent_restarts: 0,
    registry_restarts: 0,
    restores: 0,
    failures: 0,
};
const LATE: Bounds = Bounds {
    name: "late label orders",
    limits: Limits { asks: 2, connections: 1, ..NONE },
    made: false,
};
const REUSED: Bounds = Bounds {
    name: "a place given out again",
    limits: Limits { asks: 3, failures: 1, ..NONE },
    made: false,
};
const RESTARTS: Bounds = Bounds {
    name: "restarts",
    limits: Limits { asks: 1, agent_restarts: 1, registry_restarts: 1, connections: 1, ..NONE },
    made: false,
};
const USES: Bounds =
    Bounds { name: "uses", limits: Limits { asks: 2, connections: 1, ..NONE }, made: true };
const FORGOTTEN: Bounds = Bounds {
    name: "forgotten uses",
    limits: Limits { asks: 2, restores: 1, connections: 1, ..NONE },
    made: true,
};

/// The drive as a scan of the machine shows it.
pub(crate) fn device(label: Option<LabelSeen>) -> Observed {
    Observed {
        evidence: Evidence { wwn: Some("1".to_owned()), ..Evidence::default() },
        path: "/dev/x".to_owned(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label,
        denied: Vec::new(),
    }
}

struct Labels {
    bounds: Bounds,
    rules: Rules,
}

impl Model for Labels {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.rules, self.bounds)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.broken.is_some() {
            return;
        }
        let left = &world.left;
        if left.asks > 0 {
            let asks = [Ask::Create(A), Ask::Delete(A), Ask::Create(B), Ask::Attach, Ask::Detach];
            steps.extend(asks.into_iter().map(Step::Ask));
        }
        for at in 0..world.network.len() {
            steps.push(Step::Deliver { at, keep: false });
            if left.doubled > 0 && matches!(world.network[at], Message::Order(_)) {
                steps.push(Step::Deliver { at, keep: true });
            }
        }
        if !world.cluster.owed_volume_orders(DRIVE).is_empty() {
            steps.push(Step::Resend);
        }
        if world.saving.is_some() {
            steps.push(Step::Saved);
        }
        if world.work.is_some() {
            steps.push(Step::ChangeEnds { done: true, told: true });
            if left.failures > 0 {
                steps.push(Step::ChangeEnds { done: true, told: false });
                steps.push(Step::ChangeEnds { done: false, told: false });
            }
        }
        if world.ending.is_some() {
            steps.push(Step::UseEnds);
        }
        if world.granted().is_some() && world.mapped.is_none() {
            steps.push(Step::UserWrites);
        }
        let counted = [
            (left.connections, Step::Connect),
            (left.agent_restarts, Step::RestartAgent),
            (left.registry_restarts, Step::RestartRegistry),
            (left.restores.min(u8::from(world.backup.is_some())), Step::Restore),
        ];
        steps.extend(counted.into_iter().filter(|(left, _)| *left > 0).map(|(_, step)| step));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        let left = &mut next.left;
        let counted = match &step {
            Step::Ask(_) => Some(&mut left.asks),
            Step::Deliver { keep: true, .. } => Some(&mut left.doubled),
            Step::ChangeEnds { told: false, .. } => Some(&mut left.failures),
            Step::Connect => Some(&mut left.connections),
            Step::RestartAgent => Some(&mut left.agent_restarts),
            Step::RestartRegistry => Some(&mut left.registry_restarts),
            Step::Restore => Some(&mut left.restores),
            _ => None,
        };
        if let Some(left) = counted {
            *left -= 1;
        }
        next.take(step);
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("6, 7, 8 labels and uses", |_, world: &World| world.broken.is_none())]
    }
}

/// How many worlds there are, and what broke in how many steps.
fn run(bounds: Bounds, rules: Rules) -> (usize, Option<(String, usize)>) {
    let checker = Labels { bounds, rules }
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::Any)
        .target_state_count(STATES_LIMIT)
        .target_max_depth(DEPTH)
        .spawn_bfs()
        .join();
    assert!(checker.state_count() < STATES_LIMIT, "{}: too large", bounds.name);
    let found = checker.discoveries().into_iter().next().map(|(_, path)| {
        let path = path.into_vec();
        let mut history = String::new();
        for (world, step) in &path {
            let step = step.as_ref().map(|step| format!("{step:?}")).unwrap_or_default();
            history += &format!("{step} {}\n", world.broken.unwrap_or_default());
        }
        (history, path.len() - 1)
    });
    (checker.unique_state_count(), found)
}

#[test]
fn every_history_keeps_the_invariants() {
    for bounds in [LATE, REUSED, RESTARTS, USES, FORGOTTEN] {
        let (states, broken) = run(bounds, Rules::default());
        println!("labels: {}: {states} states", bounds.name);
        if let Some((history, _)) = broken {
            panic!("{}:\n{history}", bounds.name);
        }
    }
}

#[test]
fn every_rule_is_missed_when_it_is_left_out() {
    let rules = [
        (Rule::LabelBasis, LATE),
        (Rule::UseEpoch, USES),
        (Rule::UseBeforeAnswer, USES),
        (Rule::FreeUnused, FORGOTTEN),
    ];
    for (rule, bounds) in rules {
        let (states, broken) = run(bounds, Rules::without(rule));
        let Some((history, steps)) = broken else {
            panic!("without {rule:?} nothing breaks in {states} states of {}", bounds.name);
        };
        println!("without {rule:?}: breaks in {steps} steps ({}):\n{history}", bounds.name);
    }
}

/// A use that was granted ends, and the volume with it.
#[test]
fn a_life_from_its_beginning_to_its_end() {
    let mut world = World::new(Rules::default(), USES);
    world.ask(&Ask::Attach);
    world.run_to_the_end();
    let state = world.cluster.volume(A).unwrap().attachments[&NODE].record.state;
    assert_eq!(state, AttachmentState::Attached);
    world.user_writes();
    assert_eq!(world.mapped, Some(Epoch::from_number(1)));
    world.ask(&Ask::Detach);
    world.run_to_the_end();
    world.take(Step::UseEnds);
    world.run_to_the_end();
    world.ask(&Ask::Delete(A));
    world.run_to_the_end();
    assert!(world.gone.contains(&A) && world.extents.is_empty() && world.bytes.is_none());
    assert_eq!(world.header.unwrap().generation, Generation::from_number(1));
}

//! The configurations that are played, each around one kind of trouble, and which of them misses which rule.

use std::fmt;

use hotbay_core::rules::Rule;

use crate::bounds::{Late, Limits};
use crate::start::Start;

/// One configuration of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) name: &'static str,
    pub(crate) limits: Limits,
    /// Messages under way at a time.
    pub(crate) under_way: usize,
    pub(crate) late: Late,
    pub(crate) start: Start,
    /// One of how many worlds is tried for invariant 10.
    pub(crate) settle_one_of: u64,
}

const NONE: Limits = Limits {
    actions: 0,
    volumes: 0,
    registry_restarts: 0,
    restores: 0,
    copies: 0,
    agent_restarts: 0,
    records_lost: 0,
    obstacles: 0,
    mistakes: 0,
    connections: 0,
    doubled: 0,
};

const fn quick(name: &'static str, start: Start, under_way: usize, limits: Limits) -> Bounds {
    Bounds { name, limits, under_way, late: Late::ByConnection, start, settle_one_of: 32 }
}

/// Orders and answers late, doubled and out of order.
const LATE: Bounds = quick("late", Start::Known, 2, Limits { actions: 3, doubled: 1, ..NONE });
/// The agent is killed in the middle of anything, and steps fail.
const AGENT: Bounds = quick(
    "agent killed",
    Start::Attached,
    2,
    Limits { actions: 1, agent_restarts: 1, obstacles: 1, connections: 1, ..NONE },
);
/// An older start of the agent is heard late.
const SESSIONS: Bounds = quick(
    "late sessions",
    Start::DoneLate,
    3,
    Limits { agent_restarts: 1, connections: 2, ..NONE },
);
/// An answer is taken for one that came over a newer session.
const MIXED_UP: Bounds = Bounds {
    late: Late::Answers,
    ..quick(
        "answers of older sessions",
        Start::Known,
        2,
        Limits { actions: 1, agent_restarts: 1, connections: 1, ..NONE },
    )
};
/// The agent's record is lost, and an old order is still under way.
const RECORD: Bounds = quick(
    "record lost",
    Start::AttachedOrderLate,
    2,
    Limits { actions: 1, records_lost: 1, connections: 1, ..NONE },
);
/// The agent's record is lost, and the label says something else.
const LABEL: Bounds = quick(
    "label left",
    Start::Attached,
    1,
    Limits { actions: 1, records_lost: 1, obstacles: 2, connections: 1, ..NONE },
);
/// The registry is killed.
const REGISTRY: Bounds = quick(
    "registry killed",
    Start::Known,
    2,
    Limits { actions: 2, registry_restarts: 1, connections: 1, ..NONE },
);
/// Volumes come and go.
const VOLUMES: Bounds =
    quick("volumes", Start::Attached, 1, Limits { actions: 2, volumes: 1, connections: 1, ..NONE });
/// The machine takes the drive for another one: orders are refused for their content.
const MISTAKEN: Bounds = quick(
    "mistaken drive",
    Start::Attached,
    2,
    Limits { actions: 2, mistakes: 1, obstacles: 1, ..NONE },
);
/// A backup is restored.
const BACKUP: Bounds =
    quick("backup", Start::Attached, 2, Limits { actions: 1, restores: 1, connections: 1, ..NONE });
/// A backup is restored, and orders that were given since are still under way.
const ORDERS_SINCE: Bounds = quick(
    "orders since the backup",
    Start::OrdersSinceBackup,
    3,
    Limits { restores: 1, connections: 1, ..NONE },
);
/// A backup is restored from before two elections.
const ELECTIONS: Bounds = quick(
    "elections",
    Start::DoneLate,
    2,
    Limits { registry_restarts: 2, restores: 1, connections: 2, ..NONE },
);
/// An agent that has not written its record yet is killed, and a backup is restored.
const UNWRITTEN: Bounds = quick(
    "unwritten term",
    Start::Mistaken,
    1,
    Limits { registry_restarts: 1, restores: 1, agent_restarts: 1, connections: 2, ..NONE },
);
/// A backup is restored, and the agent has seen more than that since.
const NEWER: Bounds = quick(
    "newer agent",
    Start::RemovedSinceBackup,
    1,
    Limits { actions: 1, restores: 1, connections: 1, ..NONE },
);
/// The same generation gets two goals, before and after a backup is restored.
const TWO_GOALS: Bounds = quick(
    "two goals",
    Start::AskedAgainSinceBackup,
    1,
    Limits { actions: 1, restores: 1, connections: 1, ..NONE },
);
/// A copy of the store is started beside it.
const COPY: Bounds = Bounds {
    late: Late::Registered,
    ..quick(
        "copy",
        Start::Known,
        2,
        Limits { copies: 1, registry_restarts: 1, connections: 2, ..NONE },
    )
};
/// A copy and the registry give the same generation two goals.
const CONTESTED: Bounds = Bounds {
    late: Late::Registered,
    ..quick("contested drive", Start::Contested, 2, Limits { actions: 2, ..NONE })
};

/// What every run of the tests plays.
pub(crate) const QUICK: [Bounds; 17] = [
    LATE,
    AGENT,
    SESSIONS,
    MIXED_UP,
    RECORD,
    LABEL,
    REGISTRY,
    VOLUMES,
    MISTAKEN,
    BACKUP,
    ORDERS_SINCE,
    ELECTIONS,
    UNWRITTEN,
    NEWER,
    TWO_GOALS,
    COPY,
    CONTESTED,
];

/// What a soak plays: the same kinds of trouble, more of each at a time. Each limit that is one higher makes a
/// configuration some ten times larger, so that each of these reaches further in some of them: three actions, two
/// restarts of the agent, three terms, three messages under way.
pub(crate) const FULL: [Bounds; 13] = [
    quick("late", Start::Known, 3, Limits { actions: 3, doubled: 1, connections: 1, ..NONE }),
    quick(
        "agent killed",
        Start::Known,
        3,
        Limits { actions: 3, agent_restarts: 2, connections: 1, ..NONE },
    ),
    quick(
        "agent killed, two sessions",
        Start::Known,
        3,
        Limits { actions: 2, agent_restarts: 2, connections: 2, ..NONE },
    ),
    quick(
        "agent killed, steps fail",
        Start::Known,
        3,
        Limits { actions: 2, agent_restarts: 1, obstacles: 1, connections: 1, ..NONE },
    ),
    quick(
        "record lost",
        Start::AttachedOrderLate,
        2,
        Limits { actions: 2, agent_restarts: 1, records_lost: 1, connections: 2, ..NONE },
    ),
    quick(
        "record lost, steps fail",
        Start::AttachedOrderLate,
        3,
        Limits {
            actions: 2,
            agent_restarts: 1,
            records_lost: 1,
            obstacles: 1,
            connections: 1,
            ..NONE
        },
    ),
    quick(
        "registry killed",
        Start::Known,
        3,
        Limits { actions: 2, registry_restarts: 2, connections: 2, ..NONE },
    ),
    quick(
        "volumes",
        Start::Attached,
        2,
        Limits { actions: 3, volumes: 1, agent_restarts: 1, connections: 1, ..NONE },
    ),
    quick(
        "mistaken drive",
        Start::Attached,
        2,
        Limits { actions: 2, mistakes: 2, obstacles: 1, agent_restarts: 1, connections: 1, ..NONE },
    ),
    quick(
        "backup from before two elections",
        Start::Known,
        2,
        Limits { actions: 2, registry_restarts: 2, restores: 1, connections: 1, ..NONE },
    ),
    quick(
        "backup from before two elections, two sessions",
        Start::Known,
        2,
        Limits { actions: 1, registry_restarts: 2, restores: 1, connections: 2, ..NONE },
    ),
    quick(
        "copy",
        Start::Attached,
        2,
        Limits { actions: 2, copies: 1, registry_restarts: 1, connections: 1, ..NONE },
    ),
    quick(
        "copy, with a volume",
        Start::Attached,
        2,
        Limits { actions: 1, volumes: 1, copies: 1, registry_restarts: 1, connections: 1, ..NONE },
    ),
];

/// Every rule. A new one does not compile here until it has a configuration below.
/// Those of labels and uses have a model of their own, `labels`.
pub(crate) const RULES: [Rule; 20] = [
    Rule::OrderTerm,
    Rule::OrderIncarnation,
    Rule::OrderGeneration,
    Rule::GoalConflict,
    Rule::RecordBeforeAct,
    Rule::TermBeforeAnswer,
    Rule::RefusedKeepsGoal,
    Rule::TermNeverBack,
    Rule::CompareAgain,
    Rule::ConfirmationGeneration,
    Rule::ConfirmationIncarnation,
    Rule::ConfirmationTerm,
    Rule::NewestSession,
    Rule::GenerationRises,
    Rule::TermRises,
    Rule::ReleaseDurable,
    Rule::ReopenedIsClosing,
    Rule::RewoundTerm,
    Rule::RewoundGeneration,
    Rule::RewoundGoal,
];

/// The configuration in which a rule is missed.
pub(crate) fn missing(rule: Rule) -> Bounds {
    let bounds = match rule {
        Rule::LabelBasis | Rule::UseEpoch | Rule::UseBeforeAnswer | Rule::FreeUnused => {
            unreachable!("{rule:?} is missed in the model of labels")
        }
        Rule::OrderTerm => REGISTRY,
        Rule::OrderIncarnation => RECORD,
        Rule::OrderGeneration
        | Rule::ConfirmationGeneration
        | Rule::GenerationRises
        | Rule::ReleaseDurable => LATE,
        Rule::GoalConflict => CONTESTED,
        Rule::RecordBeforeAct | Rule::CompareAgain => AGENT,
        Rule::TermBeforeAnswer => UNWRITTEN,
        Rule::RefusedKeepsGoal => MISTAKEN,
        Rule::TermNeverBack => COPY,
        Rule::ConfirmationIncarnation => MIXED_UP,
        Rule::ConfirmationTerm | Rule::RewoundTerm => ELECTIONS,
        Rule::NewestSession => SESSIONS,
        Rule::TermRises => BACKUP,
        Rule::ReopenedIsClosing => LABEL,
        Rule::RewoundGeneration => NEWER,
        Rule::RewoundGoal => TWO_GOALS,
    };
    Bounds { settle_one_of: 4, ..bounds }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = &self.limits;
        let named = [
            (limits.actions, "actions"),
            (limits.volumes, "volumes"),
            (limits.registry_restarts, "registry restarts"),
            (limits.restores, "restores"),
            (limits.copies, "copies"),
            (limits.agent_restarts, "agent restarts"),
            (limits.records_lost, "records lost"),
            (limits.obstacles, "obstacles"),
            (limits.mistakes, "mistakes"),
            (limits.connections, "connections"),
            (limits.doubled, "doubled"),
        ];
        write!(f, "{} (", self.name)?;
        for (count, name) in named.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{count} {name}, ")?;
        }
        write!(f, "{} under way)", self.under_way)
    }
}

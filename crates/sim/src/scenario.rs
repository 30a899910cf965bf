//! What a seed stands for, drawn before the run: how large the cluster is, how long the trouble lasts, and which
//! trouble there is.

use crate::rng::Rng;

/// Virtual milliseconds.
pub(crate) type Millis = u64;

pub(crate) const SECOND: Millis = 1_000;
pub(crate) const MINUTE: Millis = 60 * SECOND;

/// What happens to the registry as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Crashes and store errors, one past.
    Ordinary,
    /// The registry is well, and so are some nodes: nothing may delay those.
    Isolation,
    /// The registry is restored from a backup.
    Restored,
    /// A second registry runs on a copy of the store.
    Rival,
}

/// One run, as drawn from its seed. Chances are in a thousand.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) kind: Kind,
    pub(crate) machines: usize,
    pub(crate) bays_max: u64,
    pub(crate) clients: usize,
    /// How long the trouble lasts.
    pub(crate) trouble: Millis,
    /// The longest pause between two faults.
    pub(crate) fault_pause_max: Millis,
    /// An agent dies at a save or a send.
    pub(crate) agent_crash: u64,
    /// The registry dies between two releases.
    pub(crate) release_crash: u64,
    /// The registry dies with the writes of single records under way.
    pub(crate) write_crash: u64,
    /// A record is lost or damaged when its agent dies.
    pub(crate) record_loss: u64,
    /// Orders of old connections reach the agent.
    pub(crate) late_orders: bool,
    /// A person lets a restored registry adopt what the nodes know.
    pub(crate) adopts: bool,
    pub(crate) volumes: bool,
    /// People give up hosts that are away, and take them back.
    pub(crate) purges: bool,
    /// People have drives taken over that were moved while another node holds them.
    pub(crate) takes_over: bool,
    pub(crate) clock_speeds: bool,
    pub(crate) latency_max: Millis,
    pub(crate) commit_max: Millis,
    pub(crate) step_max: Millis,
    /// The store keeps each record by itself, and so many are written at once at the most. None: it takes batches.
    pub(crate) records: Option<usize>,
    /// A record that is to be written is refused for a while.
    pub(crate) record_refusals: u64,
    /// The write of a single record fails.
    pub(crate) write_failures: u64,
}

impl Scenario {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let kind = match rng.between(0, 99) {
            0..=54 => Kind::Ordinary,
            55..=69 => Kind::Isolation,
            70..=84 => Kind::Restored,
            _ => Kind::Rival,
        };
        let forked = matches!(kind, Kind::Restored | Kind::Rival);
        let machines = match rng.between(0, 199) {
            0..=129 => rng.between(1, 4),
            130..=184 => rng.between(5, 12),
            185..=197 => rng.between(13, 40),
            _ if forked => rng.between(13, 40),
            _ => rng.between(100, 300),
        };
        let large = machines > 40;
        let crashes = rng.chance(700);
        let records = rng.chance(500).then(|| rng.between(4, 32));
        // A store of records that is slow cannot take in all nodes at once in the time that those that are well have.
        let slow = rng.chance(200) && !(records.is_some() && kind == Kind::Isolation);
        Self {
            kind,
            machines: usize::try_from(machines).expect("a few hundred"),
            bays_max: if large { 2 } else { 4 },
            clients: usize::try_from(rng.between(1, 5) + machines / 10).expect("a few dozen"),
            trouble: if large { rng.between(1, 2) } else { rng.between(2, 10) } * MINUTE,
            fault_pause_max: if large { SECOND } else { rng.between(2, 20) * SECOND },
            agent_crash: match rng.between(0, 9) {
                0 if crashes => 150,
                _ if crashes => rng.between(0, 20),
                _ => 0,
            },
            release_crash: if crashes { rng.between(0, 10) } else { 0 },
            write_crash: if crashes { rng.between(0, 20) } else { 0 },
            // An agent that lost its record cannot tell a registry that went back in time: never both in one run.
            record_loss: if forked || rng.chance(500) { 0 } else { 300 },
            late_orders: rng.chance(500),
            adopts: kind == Kind::Restored && rng.chance(500),
            volumes: rng.chance(500),
            // A rival that gives up a living host is answered by nobody: its removals prove nothing.
            purges: kind != Kind::Rival && rng.chance(200),
            takes_over: kind != Kind::Rival && rng.chance(400),
            clock_speeds: rng.chance(300),
            latency_max: if rng.chance(200) { rng.between(200, 3_000) } else { rng.between(1, 50) },
            commit_max: if slow { rng.between(100, 2_000) } else { rng.between(2, 60) },
            step_max: rng.between(5, 800),
            records: records.map(|most| usize::try_from(most).expect("a few dozen")),
            record_refusals: if rng.chance(600) { rng.between(1, 30) } else { 0 },
            write_failures: if rng.chance(500) { rng.between(1, 50) } else { 0 },
        }
    }

    /// The registry may forget a part of its past, or have a rival.
    pub(crate) fn forked(&self) -> bool {
        matches!(self.kind, Kind::Restored | Kind::Rival)
    }
}

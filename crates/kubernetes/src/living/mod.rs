//! What only the memory of the leading controller knows, in the objects: whether an agent is connected, what a drive
//! waits for, why a volume cannot be reached; and what becomes of machines that Kubernetes has given up. The leading
//! controller runs [`follow`] beside its registry.
//!
//! - [`look`]: what memory says now; [`sayings`]: what of it is worth a write.
//! - [`nodes`]: whether nodes are ready, and when they are forgotten; [`machines`]: which Kubernetes Nodes there are.
//!
//! ```text
//!  registry ── changes ──▶ look ──▶ compare with what is said ──▶ Objects::say, Registry::rewrite ──▶ store
//!  API server ── Nodes ────┘                                 └──▶ ForgetHost
//! ```
//!
//! Nothing is written because an agent or the leader starts anew: what is said was loaded with the objects, and is left
//! as it is until the agent has spoken, or has been away for longer than a start takes. For a node that is a shorter
//! time than for what is on it: people wait for the news that an agent is gone. At rest a node is written every five
//! minutes, and nothing else is.

mod look;
mod machines;
mod nodes;
mod sayings;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use hotbay_core::cms::{Action, Code};
use hotbay_core::ids::NodeId;
use hotbay_registry::{Key, Kind, Registry};
use tokio::sync::watch;
use tokio::time::Instant;

use self::look::{Known, NodeSeen, Question, ThingSeen};
use self::machines::Machines;
use self::nodes::{Nodes, Verdict};
use self::sayings::{
    Holds, Next, REWORDED_EVERY, Wanted, fields_of_attachment, fields_of_drive, next,
};
use crate::client::Client;
use crate::people::{Stopped, Surroundings, decided, write_again};
use crate::store::Objects;
use crate::store::beside::Said;

/// How often it is looked whether a heartbeat is due, or something has to be said again that was said too late.
const BEATS_EVERY: u32 = 60;

/// To look, and to wait for the store, may take at most this part of the time; but a pause is never longer than so many
/// of the shortest.
const PART_OF_THE_TIME: u32 = 10;
const LONGEST_PAUSE: u32 = 5;

/// Who asks, as far as the registry is told.
const WHO: &str = "kubernetes";

/// How patient to be. All of it runs on this leader's own clock.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// One object is written no more often than this for what is said of it.
    pub pace: Duration,
    /// A node that is connected is written every so often.
    pub beat: Duration,
    /// After this long without a word since this leader leads, a node's agent is not there.
    pub heard: Duration,
    /// What an agent knows of drives and volumes stands for so long after it went: it may just start anew.
    pub away: Duration,
    /// An agent that has just registered has so long to tell what it knows.
    pub settle: Duration,
    /// What goes by itself within this time is not told; so neither is an agent that starts anew.
    pub hold: Duration,
    /// How long the Kubernetes Node of a machine must be gone before the machine is forgotten.
    pub gone: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            pace: Duration::from_secs(1),
            beat: Duration::from_secs(300),
            heard: Duration::from_secs(30),
            away: Duration::from_secs(60),
            settle: Duration::from_secs(5),
            hold: Duration::from_secs(5),
            gone: Duration::from_secs(300),
        }
    }
}

/// Has the objects say what is known, until the registry ends. `objects` is what its store knows.
pub async fn follow(
    client: Client,
    registry: Registry,
    objects: Objects,
    surroundings: Surroundings,
    times: Times,
) {
    let (told, machines) = watch::channel(None);
    let living = Living {
        said: objects.all_said(),
        registry,
        objects,
        wall_ms: surroundings.wall_ms,
        times,
        began: Instant::now(),
        nodes: Nodes::default(),
        holds: Holds::default(),
        is_reworded: false,
    };
    tokio::select! {
        Stopped = living.run(machines) => {}
        () = machines::follow(client, told) => {}
    }
}

struct Living {
    registry: Registry,
    objects: Objects,
    wall_ms: fn() -> u64,
    times: Times,
    began: Instant,
    nodes: Nodes,
    holds: Holds,
    /// Something is said in other words than it should be, for now.
    is_reworded: bool,
    /// What the objects say, or will with the next write.
    said: HashMap<Key, Said>,
}

impl Living {
    async fn run(mut self, mut machines: watch::Receiver<Machines>) -> Stopped {
        let mut changes = self.registry.changes();
        let mut with_things = true;
        // When all was last looked at.
        let mut looked = Instant::now();
        loop {
            changes.mark_unchanged();
            let now = machines.borrow_and_update().clone();
            let began = Instant::now();
            if with_things {
                looked = began;
            }
            if let Err(stopped) = self.round(&now, with_things).await {
                return stopped;
            }
            // What happens meanwhile is looked at in one go; so nothing is written more often.
            let pause = began.elapsed() * PART_OF_THE_TIME;
            let longest = self.times.pace * LONGEST_PAUSE;
            tokio::time::sleep(pause.clamp(self.times.pace, longest)).await;
            let look = self.next_look(looked);
            with_things = loop {
                let beat = Instant::now() + self.times.beat / BEATS_EVERY;
                break tokio::select! {
                    changed = changes.changed() => match changed {
                        Ok(()) => true,
                        Err(_) => return Stopped,
                    },
                    Ok(()) = machines.changed() => false,
                    () = tokio::time::sleep_until(look.unwrap_or(beat)), if look.is_some() => true,
                    () = tokio::time::sleep_until(beat) => {
                        match self.nodes.is_beat_due() || self.objects.has_late() {
                            true => false,
                            false => continue,
                        }
                    }
                };
            };
            // What has changed at the same moment is looked at with the rest.
            with_things |= changes.has_changed().unwrap_or(true);
        }
    }

    /// When to look again, though nothing happens. A time that came after it was last `looked` has not been acted upon,
    /// also if it is past by now.
    fn next_look(&self, looked: Instant) -> Option<Instant> {
        let held = self.holds.next_look(self.times.hold, looked);
        let started = [self.began + self.times.away, self.began + self.times.heard];
        let started = started.into_iter().filter(|at| *at > looked).min();
        let reworded = self.is_reworded.then(|| Instant::now() + REWORDED_EVERY);
        let held = held.into_iter().chain(reworded);
        held.chain(self.nodes.next_look(&self.times, looked)).chain(started).min()
    }

    async fn round(&mut self, machines: &Machines, things: bool) -> Result<(), Stopped> {
        let said = self.said.keys().copied().chain(self.objects.asked());
        let said: HashSet<_> = said.collect();
        let gone = Arc::new(nodes::gone(machines, &self.said));
        let question = Question { things, said: Arc::new(said), gone };
        let seen = look::look(&self.registry, &question).await?;
        self.nodes.meet(&seen.nodes, &self.said, &self.times);
        self.nodes.meet_machines(&seen.nodes, &question.gone);
        self.is_reworded = false;
        let mut changed = Vec::new();
        let mut forgotten = Vec::new();
        for node in &seen.nodes {
            match self.judge(node, machines, &mut changed) {
                Verdict::Forget => forgotten.push((node.id, node.name.clone())),
                Verdict::Wait | Verdict::Say(_) => {}
            }
        }
        if things {
            for thing in &seen.things {
                changed.extend(self.tell(thing));
            }
            self.drop_what_is_gone(&seen.nodes, &seen.things);
        }
        changed.extend(self.tell_registry(&seen.rewound));
        changed.extend(self.objects.late());
        write_again(&self.registry, &self.objects, changed, Vec::new()).await?;
        for (id, name) in forgotten {
            self.forget(id, name).await?;
        }
        Ok(())
    }

    fn judge(&mut self, node: &NodeSeen, machines: &Machines, changed: &mut Vec<Key>) -> Verdict {
        let key = nodes::key(node.id);
        let before = self.said.get(&key);
        let (now_ms, may_reword) = ((self.wall_ms)(), self.holds.may_reword(key));
        let verdict = self.nodes.judge(node, machines, before, &self.times, now_ms, may_reword);
        if let Verdict::Say(next) = &verdict {
            changed.extend(self.worth(key, next));
        }
        verdict
    }

    /// What is to be said of a drive, a volume or an attachment; gives its key if that is worth a write.
    fn tell(&mut self, thing: &ThingSeen) -> Option<Key> {
        let ThingSeen { key, node, told } = thing;
        let is_settled = match node {
            Some(node) => self.nodes.is_settled(*node, &self.times),
            None => self.began.elapsed() >= self.times.away,
        };
        if !is_settled {
            return None;
        }
        let before = self.said.get(key);
        self.holds.retain(*key, told);
        let mut wanted = Vec::new();
        for told in told {
            let is_shown = before.is_some_and(|said| said.get(told.kind).is_some());
            if is_shown || self.holds.has_held(*key, told.kind, self.times.hold) {
                wanted.push(Wanted::from(told.clone()));
            }
        }
        for Known { kind, reason } in self.told_by_others(thing) {
            if let Some(shown) = before.and_then(|said| said.get(kind))
                && !wanted.iter().any(|wanted| wanted.kind == kind)
            {
                let message = shown.message.clone();
                wanted.push(Wanted { kind, holds: true, reason, message });
            }
        }
        let may_reword = self.holds.may_reword(*key);
        let along = match key.kind {
            Kind::Drive => fields_of_drive(&wanted),
            Kind::Attachment => fields_of_attachment(&wanted),
            Kind::Registry | Kind::Node | Kind::Volume => BTreeMap::new(),
        };
        let next = next(before, wanted, BTreeMap::new(), along, may_reword, (self.wall_ms)());
        self.worth(*key, &next)
    }

    /// What only agents know of a thing whom this leader has not heard yet: where it is shown, it stands.
    fn told_by_others(&self, thing: &ThingSeen) -> impl Iterator<Item = Known> + use<> {
        let of_another_machine =
            (self.began.elapsed() < self.times.away).then_some(look::IDENTITY_CONFLICT);
        let is_unheard = thing.node.is_some_and(|node| !self.nodes.is_heard(node));
        let of_a_use = (thing.key.kind == Kind::Attachment && is_unheard).then_some(look::OF_A_USE);
        of_another_machine.into_iter().chain(of_a_use.into_iter().flatten())
    }

    /// Nodes that know more than the registry may not be known to it at all: it says so itself.
    fn tell_registry(&mut self, rewound: &[String]) -> Option<Key> {
        let before = self.said.get(&Key::REGISTRY);
        if rewound.is_empty() && (before.is_none() || self.began.elapsed() < self.times.heard) {
            return None;
        }
        let wanted = (!rewound.is_empty()).then(|| Wanted {
            kind: "RegistryRewound",
            holds: true,
            reason: "NodesKnowMore",
            message: format!(
                "nodes know newer orders than this registry, which seems to be a restored backup or a copy, and get \
                 none: {}; hotbay registry adopt shows the differences",
                rewound.join(", ")
            ),
        });
        let may_reword = self.holds.may_reword(Key::REGISTRY);
        let (wanted, none) = (wanted.into_iter().collect(), BTreeMap::new());
        let next = next(before, wanted, none, BTreeMap::new(), may_reword, (self.wall_ms)());
        self.worth(Key::REGISTRY, &next)
    }

    /// Has it stand in the object; gives the key if that is to be written.
    fn worth(&mut self, key: Key, next: &Next) -> Option<Key> {
        self.is_reworded |= next.is_reworded;
        if !next.is_new {
            return None;
        }
        let said = next.said.clone();
        self.objects.say(key, said.clone());
        self.holds.note_write(key);
        match said.is_empty() {
            true => drop(self.said.remove(&key)),
            false => drop(self.said.insert(key, said)),
        }
        Some(key)
    }

    /// What something was said of and is not there any more.
    fn drop_what_is_gone(&mut self, nodes: &[NodeSeen], things: &[ThingSeen]) {
        let nodes = nodes.iter().map(|node| nodes::key(node.id));
        let there: HashSet<_> =
            nodes.chain(things.iter().map(|thing| thing.key)).chain([Key::REGISTRY]).collect();
        let gone: Vec<_> = self.said.keys().filter(|key| !there.contains(*key)).copied().collect();
        for key in gone {
            self.said.remove(&key);
            self.objects.say(key, Said::default());
        }
        self.holds.forget(|key| !there.contains(&key));
        self.objects.retain_asked(|key| there.contains(&key));
    }

    /// Its Kubernetes Node is gone, and so is it, unless something has changed since it was looked at.
    async fn forget(&mut self, id: NodeId, name: String) -> Result<(), Stopped> {
        let action = Action::ForgetHost { host: name.clone() };
        let act = || self.registry.act(vec![action.clone()], WHO.to_owned(), false);
        let outcomes = match decided(act).await? {
            Ok(outcomes) => outcomes,
            Err(error) => {
                tracing::warn!(name, "is forgotten when that can be written: {error}");
                return Ok(());
            }
        };
        match outcomes.first().map(|outcome| outcome.code) {
            Some(Code::Ok) => {
                self.said.remove(&nodes::key(id));
                self.objects.say(nodes::key(id), Said::default());
            }
            code => tracing::debug!(name, ?code, "not forgotten, looking at it again"),
        }
        Ok(())
    }
}

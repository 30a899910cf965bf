//! Add and Remove, for one drive and for a whole host: the table of answers.
//!
//! | request | state | answer |
//! |---|---|---|
//! | Add | planned, and not as it was then | `E_INVALID_STATE`, `ChangedSince` |
//! | Add | to be wiped | see [`super::wipe`] |
//! | Add | denied | `E_INVALID_STATE` with the reasons |
//! | Add | Unknown, Closing, Detached | generation+1, Attaching, `S_OK` |
//! | Add | Attaching, Attached, removal wanted | generation+1, the wish withdrawn, `S_OK` |
//! | Add | Attaching, Attached | `S_ALREADY` |
//! | Remove | volumes on it | removal wanted, `E_TRY_AGAIN` |
//! | Remove | Attaching, Attached | generation+1, Closing, `E_TRY_AGAIN` |
//! | Remove | Closing | `E_TRY_AGAIN` with what it waits for |
//! | Remove | Detached, or Unknown and reported closed | `S_OK` |
//!
//! What a take-over is answered is in `take_over`.

use super::find::Unmet;
use super::life::Happening;
use super::take_over::Sought;
use super::wipe::Consent;
use super::{About, Cluster, Contact, Effects, Notice, Reply, State, StateHash};
use crate::cms::{Action, Code, Outcome, Reason, TakeOver};
use crate::ids::{DriveId, NodeId};
use crate::message::Obstacle;
use crate::node_labels::LabelChange;
use crate::order::Goal;
use crate::wipe::{Content, Wipe, listed};

/// When somebody who polls should ask again.
const RETRY_AFTER_MS: u64 = 1_000;

/// On whose behalf, and how, an action is taken.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) by: &'a str,
    /// With its host, not on its own.
    pub(super) with_host: bool,
    pub(super) now_ms: u64,
}

/// An action whose names have been found.
#[derive(Clone)]
enum Resolved<'a> {
    AddHost { node: NodeId, with_removed: bool, returned: bool },
    RemoveHost(NodeId),
    PurgeHost(NodeId),
    ForgetHost(NodeId),
    LabelHost { node: NodeId, change: &'a LabelChange },
    CordonHost { node: NodeId, cordoned: bool },
    AddDevice { drive: DriveId, planned: Option<StateHash> },
    AddWiped { drive: DriveId, consent: Consent<'a> },
    RemoveDevice(DriveId),
    TakeOver(Sought, &'a TakeOver),
    GetDependent(DriveId),
}

impl Cluster {
    pub(super) fn act(
        &mut self,
        actions: &[Action],
        asked_by: &str,
        dry_run: bool,
        now_ms: u64,
    ) -> Effects {
        let mut effects = Effects::default();
        let asked = Asked { by: asked_by, with_host: false, now_ms };
        let resolved: Vec<_> = actions.iter().map(|action| self.resolve(action)).collect();
        let carry_out = |cluster: &mut Self| {
            let one = |resolved: Result<Resolved<'_>, Unmet>| match resolved {
                Ok(resolved) => {
                    let outcome = cluster.carry_out(resolved, asked, &mut effects);
                    effects.end_part();
                    outcome
                }
                Err(Unmet { code, reason }) => Outcome::because(code, reason),
            };
            resolved.into_iter().map(one).collect()
        };
        if !dry_run {
            let outcomes = carry_out(self);
            return Effects { reply: Reply::Acted(outcomes), ..effects };
        }
        // The same code on a copy that is thrown away: a dry run cannot differ from the real thing.
        let named = actions.iter().filter_map(|action| self.resolve(action).ok());
        let mut copy = self.excerpt(named.flat_map(|resolved| self.nodes_of(&resolved)).collect());
        Effects { reply: Reply::Acted(carry_out(&mut copy)), ..Effects::default() }
    }

    /// Finds what an action names.
    fn resolve<'a>(&self, action: &'a Action) -> Result<Resolved<'a>, Unmet> {
        Ok(match action {
            Action::AddHost { host, with_removed, returned } => Resolved::AddHost {
                node: self.host(host)?,
                with_removed: *with_removed,
                returned: *returned,
            },
            Action::PurgeHost { host } => Resolved::PurgeHost(self.host(host)?),
            Action::ForgetHost { host } => Resolved::ForgetHost(self.host(host)?),
            Action::LabelHost { host, change } => {
                Resolved::LabelHost { node: self.host(host)?, change }
            }
            Action::CordonHost { host, cordoned } => {
                Resolved::CordonHost { node: self.host(host)?, cordoned: *cordoned }
            }
            Action::RemoveHost { host } => Resolved::RemoveHost(self.host(host)?),
            Action::AddDevice(target) => {
                Resolved::AddDevice { drive: self.find(target)?, planned: None }
            }
            Action::AddPlanned { target, state } => {
                Resolved::AddDevice { drive: self.find(target)?, planned: Some(*state) }
            }
            Action::AddWiped { target, state, serial } => Resolved::AddWiped {
                drive: self.find(target)?,
                consent: Consent { state: *state, serial },
            },
            Action::RemoveDevice(target) => Resolved::RemoveDevice(self.find(target)?),
            Action::TakeOver(wanted) => Resolved::TakeOver(self.sought(&wanted.target)?, wanted),
            Action::GetDependentVolumes(target) => Resolved::GetDependent(self.find(target)?),
        })
    }

    /// The nodes that an action may change, or looks at.
    fn nodes_of(&self, resolved: &Resolved<'_>) -> Vec<NodeId> {
        match resolved {
            Resolved::AddHost { node, .. }
            | Resolved::RemoveHost(node)
            | Resolved::LabelHost { node, .. }
            | Resolved::CordonHost { node, .. }
            | Resolved::PurgeHost(node)
            | Resolved::ForgetHost(node) => vec![*node],
            Resolved::AddDevice { drive: id, .. }
            | Resolved::AddWiped { drive: id, .. }
            | Resolved::RemoveDevice(id)
            | Resolved::GetDependent(id) => vec![self.drives[id].record.node],
            Resolved::TakeOver(Sought { to, from, .. }, _) => {
                let known = |node: &NodeId| self.nodes.contains_key(node);
                [*to, *from].into_iter().filter(known).collect()
            }
        }
    }

    fn carry_out(
        &mut self,
        resolved: Resolved<'_>,
        asked: Asked<'_>,
        effects: &mut Effects,
    ) -> Outcome {
        let (id, outcome) = match resolved {
            Resolved::AddHost { node, with_removed, returned } => {
                if returned && let Err(reason) = self.welcome_back(node, effects) {
                    return Outcome::because(Code::InvalidState, reason);
                }
                let newcomers = self.left_out_newcomers(node).collect();
                let add = |cluster: &mut Self, id, asked: Asked<'_>, effects: &mut Effects| {
                    if cluster.drives[&id].record.removed_alone && !with_removed {
                        return Outcome::because(Code::Already, Reason::RemovedOnItsOwn);
                    }
                    cluster.add(id, asked, None, effects)
                };
                return self.each_drive(node, asked, effects, newcomers, add);
            }
            Resolved::RemoveHost(node) => {
                return self.each_drive(node, asked, effects, Vec::new(), Self::remove);
            }
            Resolved::PurgeHost(node) => return self.purge(node, asked.by, asked.now_ms, effects),
            Resolved::ForgetHost(node) => return self.forget_host(node, asked.by, effects),
            Resolved::LabelHost { node, change } => {
                return self.label(node, change, asked, effects);
            }
            Resolved::CordonHost { node, cordoned } => {
                return self.cordon(node, cordoned, asked.by, effects);
            }
            Resolved::AddDevice { drive, planned } => {
                (drive, self.add(drive, asked, planned, effects))
            }
            Resolved::AddWiped { drive, consent } => {
                (drive, self.add_wiped(drive, asked, consent, effects))
            }
            Resolved::RemoveDevice(id) => (id, self.remove(id, asked, effects)),
            Resolved::TakeOver(sought, wanted) => {
                (sought.drive, self.take_over(&sought, wanted, asked, effects))
            }
            Resolved::GetDependent(id) => {
                let dependent = self.volumes_on(id).into_iter().collect();
                (id, Outcome { dependent, ..Outcome::new(Code::Ok) })
            }
        };
        Outcome { drive: Some(id), ..outcome }
    }

    /// A host action is a loop over the host's drives; its answer is the worst of theirs. Drives that cannot be added
    /// are named and do not count.
    fn each_drive(
        &mut self,
        node: NodeId,
        asked: Asked<'_>,
        effects: &mut Effects,
        newcomers: Vec<Outcome>,
        one: impl Fn(&mut Self, DriveId, Asked<'_>, &mut Effects) -> Outcome,
    ) -> Outcome {
        if !self.nodes[&node].rewound.is_empty() {
            return Outcome::because(Code::InvalidState, Reason::RegistryRewound);
        }
        let ids: Vec<_> = self.nodes[&node].drives.iter().copied().collect();
        let asked = Asked { with_host: true, ..asked };
        let mut drives = Vec::with_capacity(ids.len());
        // That the host itself is welcome again comes before its drives.
        let begun = effects.part_ends.last().copied().unwrap_or(0) < effects.writes.len();
        for id in ids {
            let outcome = one(self, id, asked, effects);
            if !begun {
                effects.end_part();
            }
            drives.push(Outcome { drive: Some(id), ..outcome });
        }
        drives.extend(newcomers);
        let counts = |outcome: &&Outcome| {
            let denied =
                |reason: &Reason| matches!(reason, Reason::Denied(_) | Reason::Newcomer { .. });
            !outcome.reasons.iter().any(denied)
        };
        let counted = drives.iter().filter(counts);
        let worst = counted.clone().map(|outcome| outcome.code).max();
        let all_already = counted.clone().all(|outcome| outcome.code == Code::Already);
        let code = match worst {
            None => return Outcome { drives, ..Outcome::because(Code::Ok, Reason::NoUsableDrive) },
            Some(Code::Already) if !all_already => Code::Ok,
            Some(code) => code,
        };
        let retry_after_ms = drives.iter().filter_map(|outcome| outcome.retry_after_ms).max();
        let dependent = drives.iter().flat_map(|outcome| outcome.dependent.clone()).collect();
        Outcome { drives, retry_after_ms, dependent, ..Outcome::new(code) }
    }

    /// Puts a drive into operation; if that was planned, only while the drive is as it was then.
    pub(super) fn add(
        &mut self,
        id: DriveId,
        asked: Asked<'_>,
        planned: Option<StateHash>,
        effects: &mut Effects,
    ) -> Outcome {
        if let Some(reason) = self.takes_no_add(id) {
            return Outcome::because(Code::InvalidState, reason);
        }
        let record = &self.drives[&id].record;
        let denied: Vec<_> = self.denied(id).map(Reason::Denied).collect();
        let next = record.state.after(Happening::Add);
        if next.is_none() && !record.removal_wanted {
            return Outcome::new(Code::Already);
        }
        if let Some((planned, now)) = planned.zip(self.state_hash(id))
            && planned != now
        {
            return Outcome::because(Code::InvalidState, Reason::ChangedSince { now });
        }
        if next.is_some() && !denied.is_empty() {
            return Outcome { reasons: denied, ..Outcome::new(Code::InvalidState) };
        }
        self.put_in(id, asked, Vec::new(), effects)
    }

    /// Why nothing can be added where a drive is, whatever the drive is.
    pub(super) fn takes_no_add(&self, id: DriveId) -> Option<Reason> {
        let node = self.drives[&id].record.node;
        if self.rewound(node) {
            return Some(Reason::RegistryRewound);
        }
        self.is_purged(node).then_some(Reason::Purged)
    }

    /// Nothing speaks against a drive but contents that may be wiped: it goes into operation.
    pub(super) fn put_in(
        &mut self,
        id: DriveId,
        asked: Asked<'_>,
        wiped: Vec<Content>,
        effects: &mut Effects,
    ) -> Outcome {
        let record = &self.drives[&id].record;
        let next = record.state.after(Happening::Add);
        let generation = self.raised(record.generation);
        let loses = (!wiped.is_empty()).then(|| listed(&wiped));
        self.change_drive(id, effects, |record| {
            record.generation = generation;
            let wipe = || Box::new(Wipe { generation, contents: wiped });
            record.wipe = loses.is_some().then(wipe);
            if let Some(next) = next {
                record.state = next;
                record.added_bytes = record.observed.size_bytes;
            }
            record.removal_wanted = false;
            record.removed_alone = false;
            record.since_ms = asked.now_ms;
            asked.by.clone_into(&mut record.asked_by);
        });
        let (drive, by) = (self.describe(id), asked.by);
        let notice = match loses {
            None => {
                let text = format!("{drive} goes into operation, asked by {by}.");
                Notice::plain("DriveAdded", About::Drive(id), text)
            }
            Some(lost) => {
                let text = format!(
                    "{drive} is to be wiped and goes into operation, asked by {by}; on it is {lost}."
                );
                Notice::warning("DriveWipeRequested", About::Drive(id), text)
            }
        };
        effects.notices.push(notice.of(self.order_id(id)));
        self.order_anew(id, effects);
        Outcome::new(Code::Ok)
    }

    fn remove(&mut self, id: DriveId, asked: Asked<'_>, effects: &mut Effects) -> Outcome {
        let drive = &self.drives[&id];
        if self.rewound(drive.record.node) {
            return Outcome::because(Code::InvalidState, Reason::RegistryRewound);
        }
        let record = &drive.record;
        let alone = !asked.with_host;
        let try_again = |reason| Outcome {
            retry_after_ms: Some(RETRY_AFTER_MS),
            ..Outcome::because(Code::TryAgain, reason)
        };
        let on_it = self.volumes_on(id);
        if !on_it.is_empty() {
            let dependent = on_it.into_iter().collect();
            if !record.removal_wanted {
                self.change_drive(id, effects, |record| {
                    record.removal_wanted = true;
                    asked.by.clone_into(&mut record.asked_by);
                });
            }
            return Outcome { dependent, ..try_again(Reason::VolumesOnIt) };
        }
        if let Some(next) = record.state.after(Happening::Remove) {
            let generation = self.raised(record.generation);
            self.change_drive(id, effects, |record| {
                record.generation = generation;
                record.state = next;
                record.removal_wanted = false;
                record.wipe = None;
                record.removed_alone = alone;
                record.since_ms = asked.now_ms;
                asked.by.clone_into(&mut record.asked_by);
            });
            let text =
                format!("{} goes out of operation, asked by {}.", self.describe(id), asked.by);
            let notice = Notice::plain("DriveRemovalRequested", About::Drive(id), text)
                .of(self.order_id(id));
            effects.notices.push(notice);
            self.order_anew(id, effects);
            return try_again(self.waits_for(id));
        }
        let proved = match record.state {
            State::Detached => true,
            State::Unknown => drive.contact == Contact::Reported { open: false },
            State::Closing | State::Attaching | State::Attached => false,
        };
        // Removed by itself after its host was: the later, narrower wish counts. And whoever wants a drive out that was
        // never in has said something as well: no rule adds it then.
        let says_first = record.state == State::Unknown && record.asked_by.is_empty();
        if (alone && !record.removed_alone) || says_first {
            self.change_drive(id, effects, |record| {
                record.removed_alone |= alone;
                if says_first {
                    asked.by.clone_into(&mut record.asked_by);
                }
            });
        }
        if proved { Outcome::new(Code::Ok) } else { try_again(self.waits_for(id)) }
    }

    /// Why the agent has not confirmed yet.
    fn waits_for(&self, id: DriveId) -> Reason {
        let drive = &self.drives[&id];
        let reachable =
            self.nodes.get(&drive.record.node).is_some_and(|node| node.session.is_some());
        match &drive.contact {
            _ if !reachable => Reason::AgentUnreachable,
            Contact::Waiting(obstacle) => Reason::Obstacle(obstacle.clone()),
            Contact::Refused(why) => Reason::Refused(why.clone()),
            Contact::Silent | Contact::Reported { .. } | Contact::Confirmed => {
                Reason::WaitingForAgent
            }
        }
    }

    /// What stands between a drive and its goal, for people; `None` when it is as wished.
    pub fn waiting_for(&self, id: DriveId) -> Option<Reason> {
        let drive = self.drives.get(&id)?;
        if self.rewound(drive.record.node) {
            return Some(Reason::RegistryRewound);
        }
        if self.is_purged(drive.record.node) {
            // Whoever wants its drives closed has to know what uses them.
            return Some(match (drive.record.state, &drive.contact) {
                (State::Closing, Contact::Waiting(Obstacle::Blocked { .. })) => self.waits_for(id),
                _ => Reason::Purged,
            });
        }
        match drive.record.state {
            State::Attaching | State::Closing => Some(self.waits_for(id)),
            State::Attached => match &drive.contact {
                Contact::Confirmed => None,
                Contact::Silent
                | Contact::Reported { .. }
                | Contact::Waiting(_)
                | Contact::Refused(_) => Some(self.waits_for(id)),
            },
            State::Unknown | State::Detached => None,
        }
    }

    /// What is wanted has changed: whatever the agent said of the order before does not count any more.
    pub(super) fn order_anew(&mut self, id: DriveId, effects: &mut Effects) {
        self.drives.get_mut(&id).expect("only known drives").contact = Contact::Silent;
        effects.orders.extend(self.owed(id));
    }

    pub(super) fn rewound(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| !node.rewound.is_empty())
    }

    /// Whether a drive is wanted in operation. A removal that waits for volumes has not changed that yet.
    pub fn in_operation(&self, id: DriveId) -> bool {
        self.drives.get(&id).is_some_and(|drive| drive.record.state.goal() == Goal::Attach)
    }
}

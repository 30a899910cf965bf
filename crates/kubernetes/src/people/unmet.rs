//! Objects that people made and that have no record: a Volume is asked for as CreateVolume would, an Attachment as
//! ControllerPublishVolume would. The object then becomes that of the record. Until it does, a condition says why not.

use std::collections::HashMap;

use hotbay_core::cluster::{Cluster, Refused, VolumeRefused, VolumeRequest};
use hotbay_core::ids::{AttachmentId, NodeId, VolumeId};
use hotbay_registry::{CallError, Key, Kind, Registry};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant};

use super::asks;
use super::calls::Change;
use super::pending::Listed;
use super::seen::Seen;
use super::wishes::{Told, due_now, next_time};
use super::{Stopped, Surroundings, WHO, patiently};
use crate::resource::Resource;
use crate::store::Objects;
use crate::store::entry::Entry;

/// The longest time until a wish that cannot be met is tried again.
const LATEST: Duration = Duration::from_secs(30);

/// Wishes that are tried again; more than this wait until their objects change.
const WAITING_MOST: usize = 10_000;

/// Why there is no record for a wish.
struct Fault {
    reason: &'static str,
    message: String,
    /// It may go away without a change of the spec.
    may_pass: bool,
}

impl Fault {
    fn lasting((reason, message): (&'static str, String)) -> Self {
        Self { reason, message, may_pass: false }
    }

    fn passing(reason: &'static str, message: String) -> Self {
        Self { reason, message, may_pass: true }
    }
}

struct Waiting {
    seen: Seen,
    since: Instant,
    due: Instant,
}

/// Wishes without a record.
pub(super) struct Unmet {
    registry: Registry,
    objects: Objects,
    surroundings: Surroundings,
    /// By uid.
    waiting: HashMap<String, Waiting>,
}

impl Unmet {
    pub(super) fn new(registry: Registry, objects: Objects, surroundings: Surroundings) -> Self {
        Self { registry, objects, surroundings, waiting: HashMap::new() }
    }

    pub(super) fn forget(&mut self, uid: &str) {
        self.waiting.remove(uid);
    }

    /// Drops the wishes whose objects a list does not have any more.
    pub(super) fn forget_lacking(&mut self, listed: &Listed) {
        self.waiting.retain(|_, waiting| !listed.lacks(&waiting.seen));
    }

    /// Tries to meet a wish. Gives the status to write if it cannot be met, and that is news.
    pub(super) async fn meet(&mut self, seen: Seen) -> Result<Option<(Seen, Change)>, Stopped> {
        // It has been decided, and is written to the object as soon as that can be: there is nothing more to ask for.
        if self.objects.key_of(&seen.entry.uid).is_some() {
            self.forget(&seen.entry.uid);
            return Ok(None);
        }
        let met = match seen.resource {
            Resource::Volume => self.make_volume(&seen).await?,
            Resource::Attachment => self.attach(&seen).await?,
            Resource::StorageNode => Err(Fault::lasting((
                "NotJoined",
                "no agent of this name has joined; nodes appear by themselves when their agent does".to_owned(),
            ))),
            Resource::Drive => Err(Fault::lasting((
                "NotReported",
                "no agent has reported a drive of this name; drives appear by themselves, and are then put into \
                 operation by spec.inOperation"
                    .to_owned(),
            ))),
            Resource::Registry => return Ok(None),
        };
        let uid = seen.entry.uid.clone();
        let earlier = self.waiting.remove(&uid);
        let Err(fault) = met else { return Ok(None) };
        if fault.may_pass && self.waiting.len() < WAITING_MOST {
            let since = earlier.map_or_else(Instant::now, |earlier| earlier.since);
            let due = next_time(since, LATEST);
            self.waiting.insert(uid, Waiting { seen: seen.clone(), since, due });
        }
        Ok(self.status(&seen, fault).map(|status| (seen, Change::Status(status))))
    }

    /// Tries again what may have become possible.
    pub(super) async fn meet_again(&mut self) -> Result<Vec<(Seen, Change)>, Stopped> {
        let due = due_now(self.waiting.values().map(|waiting| (waiting.due, &waiting.seen)));
        let due: Vec<_> = due.into_iter().cloned().collect();
        let mut changes = Vec::new();
        for seen in due {
            changes.extend(self.meet(seen).await?);
        }
        Ok(changes)
    }

    /// The status that says what is wrong; none if it says so already. It names the term that it is written under,
    /// like every other; with neither record nor checksum it is still that of a wish.
    fn status(&self, seen: &Seen, fault: Fault) -> Option<Value> {
        let kind = match seen.resource {
            Resource::Volume => "Created",
            Resource::Attachment => "Attached",
            Resource::Registry | Resource::StorageNode | Resource::Drive => "Known",
        };
        let mut conditions = seen.conditions.as_array().into_iter().flatten();
        let earlier = conditions.find(|condition| condition["type"] == kind);
        let told = Told { is_done: false, reason: fault.reason.to_owned(), message: fault.message };
        let now_ms = (self.surroundings.wall_ms)();
        let condition = told.condition(kind, seen.generation, earlier, now_ms);
        if earlier == Some(&condition) {
            return None;
        }
        let mut status =
            json!({ "observedGeneration": seen.generation, "conditions": [condition] });
        if let Some(term) = self.objects.term() {
            status["term"] = json!(term);
        }
        Some(status)
    }

    async fn make_volume(&self, seen: &Seen) -> Result<Result<(), Fault>, Stopped> {
        let wish = match asks::volume(&seen.entry.name, &seen.spec) {
            Ok(wish) => Box::new(wish),
            Err(why) => return Ok(Err(Fault::lasting(why))),
        };
        let id = VolumeId::from_bits((self.surroundings.fresh)());
        let key = Key { kind: Kind::Volume, id: id.to_bits() };
        let made = self.request(key, seen, VolumeRequest::Create { id, wish }).await?;
        Ok(match made {
            Ok(there) if there != id => {
                self.objects.disown(key, &seen.entry.uid);
                self.is_object_of(Key { kind: Kind::Volume, id: there.to_bits() }, seen)
            }
            Ok(_) => Ok(()),
            Err(fault) => Err(fault),
        })
    }

    async fn attach(&self, seen: &Seen) -> Result<Result<(), Fault>, Stopped> {
        let text = |field: &str| seen.spec[field].as_str().unwrap_or_default().to_owned();
        let (volume, node) = (text("volume"), text("node"));
        let read_only = seen.spec["readOnly"].as_bool().unwrap_or(false);
        let look = || {
            let (volume, node) = (volume.clone(), node.clone());
            self.registry.read_around(move |cluster| find(cluster, &volume, &node))
        };
        let (volume, node, there) = match patiently(look).await? {
            Ok(found) => found,
            Err(fault) => return Ok(Err(fault)),
        };
        if let Some(there) = there {
            return Ok(self.is_object_of(Key { kind: Kind::Attachment, id: there.to_bits() }, seen));
        }
        let id = AttachmentId::from_bits((self.surroundings.fresh)());
        let key = Key { kind: Kind::Attachment, id: id.to_bits() };
        let request = VolumeRequest::Attach { id, volume, node, read_only };
        if let Err(fault) = self.request(key, seen, request).await? {
            return Ok(Err(fault));
        }
        // The answer does not say which attachment it is: somebody else may have made one since the look.
        let look = || {
            self.registry.read_around(move |cluster| {
                Some(cluster.volume(volume)?.attachments.get(&node)?.record.id)
            })
        };
        let there = patiently(look).await?;
        if there == Some(id) {
            return Ok(Ok(()));
        }
        self.objects.disown(key, &seen.entry.uid);
        Ok(match there {
            Some(there) => {
                self.is_object_of(Key { kind: Kind::Attachment, id: there.to_bits() }, seen)
            }
            // It was made, and detached in the meantime.
            None if self.objects.key_of(&seen.entry.uid).is_some() => Ok(()),
            None if self.objects.is_gone(&seen.entry.uid) => Ok(()),
            None => Err(Fault::passing("InUse", "another use of it has just ended".to_owned())),
        })
    }

    /// Asks for what makes a record, and lets the object become that of the record.
    async fn request(
        &self,
        key: Key,
        seen: &Seen,
        request: VolumeRequest,
    ) -> Result<Result<VolumeId, Fault>, Stopped> {
        // Before it is asked: the record is written before the answer comes.
        self.objects.adopt(key, Entry { observed: Some(seen.generation), ..seen.entry.clone() });
        let error = match self.registry.request(request, WHO.to_owned()).await {
            Ok(volume) => return Ok(Ok(volume)),
            Err(CallError::Stopped) => return Err(Stopped),
            Err(error) => error,
        };
        let reason = match &error {
            CallError::Refused(Refused::Volume(refused)) => reason(refused),
            CallError::Refused(_)
            | CallError::StoreFailing { .. }
            | CallError::NotDurable { .. }
            | CallError::Stopped => "Unavailable",
        };
        // What is decided is written to the object as soon as that can be. What cannot be said now may also have been a
        // refusal, or be about another record.
        let may_be_decided = matches!(error, CallError::NotDurable { .. });
        let present = || self.registry.present(vec![key]);
        if !may_be_decided || patiently(present).await?.is_empty() {
            self.objects.disown(key, &seen.entry.uid);
        }
        Ok(Err(Fault::passing(reason, error.to_string())))
    }

    /// What is wished for is there. If it has another object, this one is of no use.
    fn is_object_of(&self, key: Key, seen: &Seen) -> Result<(), Fault> {
        match self.objects.get(key) {
            Some(entry) if entry.uid != seen.entry.uid => {
                let message = format!(
                    "it is there already, as {}/{}; this object can be deleted",
                    seen.resource.plural(),
                    entry.name
                );
                Err(Fault::passing("AlreadyExists", message))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Volume and node, and the attachment that there is already.
type Found = (VolumeId, NodeId, Option<AttachmentId>);

fn find(cluster: &Cluster, volume: &str, node: &str) -> Result<Found, Fault> {
    let known = volume.parse().ok().and_then(|name| cluster.volume_by_name(&name));
    let Some(known) = known else {
        return Err(Fault::passing("NoSuchVolume", format!("there is no volume {volume:?}")));
    };
    let mut nodes = cluster.nodes().filter(|node| !node.record.purged);
    let Some(on) = nodes.find(|known| known.record.name.as_str() == node) else {
        return Err(Fault::passing("NoSuchNode", format!("there is no node {node:?}")));
    };
    let there = known.attachments.get(&on.record.id).map(|known| known.record.id);
    Ok((known.record.id, on.record.id, there))
}

fn reason(refused: &VolumeRefused) -> &'static str {
    match refused {
        VolumeRefused::NoSuchVolume => "NoSuchVolume",
        VolumeRefused::NoSuchNode => "NoSuchNode",
        VolumeRefused::NameTaken { .. } => "NameTaken",
        VolumeRefused::NoPlace { .. } => "NoPlace",
        VolumeRefused::InUse { .. } => "InUse",
        VolumeRefused::OnOtherNode { .. } => "OnOtherNode",
        VolumeRefused::WrongState { .. } => "WrongState",
        VolumeRefused::CannotGrow { .. } | VolumeRefused::TooLarge { .. } => "WrongSize",
        VolumeRefused::Annotations { .. } | VolumeRefused::KeptAnnotation { .. } => "Annotations",
        VolumeRefused::Rewound { .. } => "RegistryRewound",
    }
}

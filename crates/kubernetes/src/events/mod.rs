//! What happened, as Kubernetes' own events (`events.k8s.io/v1`), for those who look with kubectl. The leading
//! controller runs [`publish`] beside its registry.
//!
//! - [`object`]: a notice as an Event object.
//! - [`series`]: what happens again and again becomes one object that counts.
//! - [`silence`]: an agent that only starts anew is no news.
//!
//! Only what people should see: warnings, and the news they wait for. The life of a healthy volume makes none, because
//! each is a write to the API server. What cannot be published is left to the log, which has everything.

mod object;
mod series;
mod silence;

use hotbay_core::cluster::{About, Cluster};
use hotbay_core::label::extents::Claim;
use hotbay_registry::{Key, Kind, Recorded, Registry};
use tokio::time::Instant;

use self::object::{Regarding, Told};
use self::series::{Series, Step};
use self::silence::Silences;
use crate::client::{Answer, CallError, Client};
use crate::names::is_object_name;
use crate::store::Objects;

/// Besides warnings.
const NEWS: [&str; 8] = [
    "DriveConfirmed",
    "DriveGrown",
    "DriveSeen",
    "FakeAttachCleared",
    "IdentityConflictOver",
    "NodeConditionOver",
    "VolumeFound",
    "VolumeReachable",
];

/// Events about objects without a namespace are kept here, as Kubernetes does with its own.
const NO_NAMESPACE: &str = "default";

/// Publishes what happens until the registry ends. `objects` is what its store knows, `instance` the name of this
/// controller.
pub async fn publish(client: Client, registry: Registry, objects: Objects, instance: String) {
    let mut newest = registry.events().newest();
    let mut desk = Desk { client, objects, instance, series: Series::default() };
    let mut silences = Silences::default();
    let mut told = 0;
    loop {
        for event in registry.events().after(told) {
            told = event.number;
            let Some(event) = silences.pass(event, Instant::now()) else { continue };
            if event.notice.warning || NEWS.contains(&event.notice.reason) {
                desk.tell(&registry, event).await;
            }
        }
        for event in silences.due(Instant::now()) {
            desk.tell(&registry, event).await;
        }
        let due = silences.next();
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
        }
    }
}

struct Desk {
    client: Client,
    objects: Objects,
    instance: String,
    series: Series,
}

impl Desk {
    async fn tell(&mut self, registry: &Registry, event: Recorded) {
        let about = event.notice.about;
        let key = match about {
            About::Drive(id) => Key { kind: Kind::Drive, id: id.to_bits() },
            About::Node(id) => Key { kind: Kind::Node, id: id.to_bits() },
            About::Volume(id) => Key { kind: Kind::Volume, id: id.to_bits() },
            About::Registry => Key::REGISTRY,
        };
        if let Some(entry) = self.objects.get(key) {
            let regarding = Regarding::record(key.kind, &entry.name, &entry.uid);
            self.record(regarding, &event).await;
        }
        // Whoever uses a volume knows its claim alone.
        let About::Volume(volume) = about else { return };
        let of_volume = move |cluster: &Cluster| {
            let record = &cluster.volume(volume)?.record;
            Some((record.claim.clone()?, record.name.to_string()))
        };
        let Ok(Some((claim, name))) = registry.read_around(of_volume).await else { return };
        let regarding = match self.claim(&claim).await {
            Ok(None) => self.claim_by_now(&name).await,
            found => found,
        };
        match regarding {
            Ok(Some(regarding)) => self.record(regarding, &event).await,
            Ok(None) => {}
            Err(error) => tracing::debug!("the claim of a volume is not told: {error}"),
        }
    }

    async fn claim(&self, claim: &Claim) -> Result<Option<Regarding>, CallError> {
        let (namespace, name) = (claim.namespace(), claim.name());
        let Some(path) = path(claim) else { return Ok(None) };
        let claim = match self.client.get(&path).await? {
            Answer { code: 404, .. } => return Ok(None),
            answer => answer.done()?,
        };
        let uid = claim["metadata"]["uid"].as_str().unwrap_or_default();
        Ok(Some(Regarding::claim(namespace, name, uid)))
    }

    /// The claim that a volume was given to after the one that it was made for was deleted.
    async fn claim_by_now(&self, volume: &str) -> Result<Option<Regarding>, CallError> {
        if !is_object_name(volume) {
            return Ok(None);
        }
        let path = format!("/api/v1/persistentvolumes/{volume}");
        let volume = match self.client.get(&path).await? {
            Answer { code: 404, .. } => return Ok(None),
            answer => answer.done()?,
        };
        let given_to = |field: &str| volume["spec"]["claimRef"][field].as_str().unwrap_or_default();
        match Claim::new(given_to("namespace"), given_to("name")) {
            Ok(claim) => self.claim(&claim).await,
            Err(_) => Ok(None),
        }
    }

    async fn record(&mut self, regarding: Regarding, event: &Recorded) {
        let told = Told { regarding, notice: &event.notice, wall_ms: event.wall_ms };
        let namespace = told.regarding.namespace().unwrap_or(NO_NAMESPACE).to_owned();
        let all = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        let now = Instant::now();
        let reason = event.notice.reason;
        match self.series.next(&told, now) {
            Step::Nothing => return,
            Step::Count(object) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let put = self.client.put(&format!("{all}/{name}"), &object).await;
                match put.and_then(Answer::done) {
                    Ok(object) => return self.series.noted(&told, object, now),
                    // It has expired, or somebody has changed or deleted it: this is the first of another one. A
                    // server answers one that is gone with a conflict.
                    Err(CallError::Failed { code: 404 | 409, .. }) => self.series.forget(&told),
                    // Another one for each time that it fails would be what counting is to prevent.
                    Err(error) => {
                        tracing::warn!(reason, "an event is not counted: {error}");
                        return self.series.not_written(&told, now);
                    }
                }
            }
            Step::Make => {}
        }
        let object = told.object(&self.instance, &namespace, event.number);
        match self.client.post(&all, &object).await.and_then(Answer::done) {
            Ok(object) => self.series.noted(&told, object, now),
            Err(error) => {
                self.series.forget(&told);
                tracing::warn!(reason, "an event is not published: {error}");
            }
        }
    }
}

/// Where a claim is. A volume may name one that cannot be: people write it, and labels of drives have it. Its events
/// are on the Volume alone.
fn path(claim: &Claim) -> Option<String> {
    let (namespace, name) = (claim.namespace(), claim.name());
    (is_object_name(namespace) && is_object_name(name))
        .then(|| format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_stand_in_a_path() {
        let at = |namespace, name| path(&Claim::new(namespace, name).unwrap());
        let whole = "/api/v1/namespaces/shop/persistentvolumeclaims/data-0";
        assert_eq!(at("shop", "data-0").as_deref(), Some(whole));
        for bad in ["a b", "x/status", "x?watch=true", "..", "%2e", "Shop"] {
            assert_eq!((at(bad, "data-0"), at("shop", bad)), (None, None), "{bad:?}");
        }
    }
}

//! Has volumes say what their claims say: many claims with one look at the registry.

use std::collections::BTreeMap;

use hotbay_core::cluster::{Cluster, Volume, VolumeRequest};
use hotbay_core::ids::VolumeId;
use hotbay_core::label::extents::{Claim, VolumeName};
use hotbay_registry::CallError as RegistryError;
use serde_json::Value;

use super::word::{Word, changes};
use super::{Claims, DRIVER, FROM_CLAIM, Trouble};
use crate::client::{Answer, CallError};

/// What the registry knows of a volume.
struct Known {
    volume: VolumeId,
    claim: Option<Claim>,
    annotations: BTreeMap<String, String>,
}

impl Known {
    fn of(volume: &Volume) -> Self {
        let record = &volume.record;
        Self {
            volume: record.id,
            claim: record.claim.clone(),
            annotations: record.annotations.clone(),
        }
    }
}

impl Claims {
    /// One word of each claim. What could not be asked or written now is trouble: then the claims are listed again.
    pub(super) async fn settle(&mut self, words: Vec<Word>) -> Result<(), Trouble> {
        if words.is_empty() {
            return Ok(());
        }
        let names: Vec<Option<VolumeName>> =
            words.iter().map(|word| word.bound_to.parse().ok()).collect();
        let by_name = move |cluster: &Cluster| {
            let find = |name: &Option<VolumeName>| {
                name.as_ref().and_then(|name| cluster.volume_by_name(name)).map(Known::of)
            };
            names.iter().map(find).collect::<Vec<_>>()
        };
        let mut known = self.registry.read_around(by_name).await?;
        self.look_up(&words, &mut known).await?;
        for (word, known) in words.into_iter().zip(known) {
            if let Some(known) = known {
                self.say(word, known).await?;
            }
        }
        Ok(())
    }

    /// Finds the volumes whose PersistentVolumes have names of a person's making. These are looked up only where the
    /// claim says something, or did.
    async fn look_up(
        &mut self,
        words: &[Word],
        known: &mut [Option<Known>],
    ) -> Result<(), Trouble> {
        let mut handles = Vec::new();
        for (at, word) in words.iter().enumerate().filter(|(at, _)| known[*at].is_none()) {
            if word.said.is_empty() && !self.noted.has(&word.bound_to) {
                continue;
            }
            if let Some(handle) = self.handle(word).await? {
                handles.push((at, handle));
            }
        }
        if handles.is_empty() {
            return Ok(());
        }
        let by_handle = move |cluster: &Cluster| {
            let find = |(at, id): (usize, VolumeId)| (at, cluster.volume(id).map(Known::of));
            handles.into_iter().map(find).collect::<Vec<_>>()
        };
        for (at, found) in self.registry.read_around(by_handle).await? {
            known[at] = found;
        }
        Ok(())
    }

    /// Which volume is behind a PersistentVolume, if it is one of ours.
    async fn handle(&mut self, word: &Word) -> Result<Option<VolumeId>, CallError> {
        Ok(self.bound_to(word).await?.as_ref().and_then(handle_of))
    }

    /// Whether a claim has a volume that was made for another one: a PersistentVolume that was retained can be given
    /// to any claim.
    async fn has_by_now(&mut self, word: &Word, volume: VolumeId) -> Result<bool, CallError> {
        let bound_to = self.bound_to(word).await?;
        Ok(bound_to.is_some_and(|bound_to| {
            let claim = &bound_to["spec"]["claimRef"];
            handle_of(&bound_to) == Some(volume)
                && claim["namespace"] == word.claim.namespace()
                && claim["name"] == word.claim.name()
        }))
    }

    /// The PersistentVolume of a claim.
    async fn bound_to(&mut self, word: &Word) -> Result<Option<Value>, CallError> {
        let path = format!("/api/v1/persistentvolumes/{}", word.bound_to);
        Ok(Some(match self.client.get(&path).await? {
            Answer { code: 404, .. } => return Ok(None),
            // The server is busy, or does not know us at the moment: that is not about this claim.
            answer @ Answer { code: 401 | 408 | 429, .. } => answer.done()?,
            answer @ Answer { code: 400..500, .. } => {
                let (claim, code, words) = (&word.claim, answer.code, answer.words());
                tracing::warn!(
                    "the claim {claim} is left out for now: its PersistentVolume cannot be read: {code}: {words}"
                );
                self.again();
                return Ok(None);
            }
            answer => answer.done()?,
        }))
    }

    async fn say(&mut self, word: Word, known: Known) -> Result<(), Trouble> {
        let Known { volume, claim, annotations } = known;
        let for_another = claim.is_some_and(|claim| claim != word.claim);
        if for_another && !self.has_by_now(&word, volume).await? {
            tracing::debug!(%volume, "it was made for another claim than {}", word.claim);
            return Ok(());
        }
        let changes = changes(&word.said, &annotations);
        if changes.is_empty() {
            self.noted.note(&word.bound_to, annotations.contains_key(FROM_CLAIM));
            return Ok(());
        }
        // Until it is done: if it fails, that it has something must be known when it is tried again.
        self.noted.note(&word.bound_to, true);
        let by = format!("the claim {}", word.claim);
        let request = VolumeRequest::Annotate { volume, changes };
        match self.registry.request(request, by.clone()).await {
            Ok(_) | Err(RegistryError::NotDurable { .. }) => {
                tracing::info!(%volume, "annotated as {by} says");
                self.noted.note(&word.bound_to, !word.said.is_empty());
            }
            Err(RegistryError::Refused(why)) => {
                tracing::warn!(%volume, "cannot be annotated as {by} says: {why}");
                self.again();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

fn handle_of(volume: &Value) -> Option<VolumeId> {
    let source = &volume["spec"]["csi"];
    let id = source["volumeHandle"].as_str().and_then(|id| id.parse().ok());
    id.filter(|_| source["driver"] == DRIVER)
}

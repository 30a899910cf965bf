//! What people say on a PersistentVolumeClaim counts for its volume: the annotations of a claim that Hotbay acts upon
//! are kept equal on the Volume, from where the node that uses it hears of them. The leading controller runs
//! [`follow`].
//!
//! A claim is found by the name of its PersistentVolume, which is the volume's own when it was provisioned; for one
//! that a person made (`hotbay recover --manifests`) the PersistentVolume is looked up. Which annotations of a volume
//! came from its claim is noted beside them, so that what is taken off the claim goes, and what somebody wrote onto the
//! volume itself stays.

use std::collections::BTreeMap;
use std::time::Duration;

use hotbay_core::cluster::{Cluster, VolumeRequest};
use hotbay_core::ids::VolumeId;
use hotbay_core::label::extents::VolumeName;
use hotbay_core::volume::IGNORE_IF_INACCESSIBLE;
use hotbay_registry::Registry;
use serde_json::Value;

use crate::client::{Answer, CallError, Client, WatchEvent};

/// The annotations of a claim that count.
const COUNTED: [&str; 1] = [IGNORE_IF_INACCESSIBLE];
/// On the volume: which of its annotations came from the claim, with commas between them.
pub(crate) const FROM_CLAIM: &str = "hotbay.dev/from-claim";

const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const DRIVER: &str = "csi.hotbay.dev";
const PAGE: usize = 500;
/// The longest value that is taken over; what counts is a word.
const VALUE_MAX_BYTES: usize = 256;
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(2);

/// Follows the claims until the registry ends.
pub async fn follow(client: Client, registry: Registry) {
    let mut changes = registry.changes();
    let claims = Claims { client, registry };
    let work = async {
        let mut trouble = String::new();
        loop {
            // A watch that ended, or has fallen behind, begins with a list again.
            if let Err(error) = claims.round(&mut trouble).await {
                let words = error.to_string();
                if words != trouble {
                    tracing::warn!("claims cannot be followed, trying again: {words}");
                    trouble = words;
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = async { while changes.changed().await.is_ok() {} } => {}
    }
}

struct Claims {
    client: Client,
    registry: Registry,
}

impl Claims {
    /// `trouble` is what went wrong last.
    async fn round(&self, trouble: &mut String) -> Result<(), CallError> {
        let mut version = self.list().await?;
        if !trouble.is_empty() {
            tracing::info!("claims are followed again");
            trouble.clear();
        }
        loop {
            let mut watch = match self.client.watch(CLAIMS, &version).await {
                Err(CallError::Failed { code: 410, .. }) => return Ok(()),
                watch => watch?,
            };
            while let Some(event) = watch.next().await? {
                let object = match event {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => object,
                    WatchEvent::Deleted(_) => continue,
                    WatchEvent::Bookmark(object) => {
                        version = resource_version(&object);
                        continue;
                    }
                    WatchEvent::Expired(_) => return Ok(()),
                };
                self.take(&object).await?;
                version = resource_version(&object);
            }
        }
    }

    async fn list(&self) -> Result<String, CallError> {
        let mut token = String::new();
        loop {
            let path = format!("{CLAIMS}?limit={PAGE}&continue={token}");
            let list = self.client.get(&path).await?.done()?;
            for claim in list["items"].as_array().into_iter().flatten() {
                self.take(claim).await?;
            }
            match list["metadata"]["continue"].as_str() {
                Some(next) if !next.is_empty() => next.clone_into(&mut token),
                Some(_) | None => return Ok(resource_version(&list)),
            }
        }
    }

    /// Has the volume say what its claim says.
    async fn take(&self, claim: &Value) -> Result<(), CallError> {
        let Some(bound_to) = claim["spec"]["volumeName"].as_str() else { return Ok(()) };
        let said = said(claim);
        let Some((volume, known)) = self.volume(bound_to, !said.is_empty()).await? else {
            return Ok(());
        };
        let changes = changes(&said, &known);
        if changes.is_empty() {
            return Ok(());
        }
        let by = format!(
            "the claim {}/{}",
            claim["metadata"]["namespace"].as_str().unwrap_or_default(),
            claim["metadata"]["name"].as_str().unwrap_or_default()
        );
        let request = VolumeRequest::Annotate { volume, changes };
        match self.registry.request(request, by.clone()).await {
            Ok(_) => tracing::info!(%volume, "annotated as {by} says"),
            // It comes again with the next list, and with the next leader.
            Err(error) => tracing::warn!(%volume, "cannot be annotated as {by} says: {error}"),
        }
        Ok(())
    }

    /// The volume behind a PersistentVolume, with its annotations. One of a person's making is looked up only if the
    /// claim says something.
    async fn volume(
        &self,
        bound_to: &str,
        look_up: bool,
    ) -> Result<Option<(VolumeId, BTreeMap<String, String>)>, CallError> {
        let name: Option<VolumeName> = bound_to.parse().ok();
        let by_name = move |cluster: &Cluster| {
            let volume = cluster.volume_by_name(&name?)?;
            Some((volume.record.id, volume.record.annotations.clone()))
        };
        if let Some(found) = self.look(by_name).await {
            return Ok(Some(found));
        }
        if !look_up {
            return Ok(None);
        }
        let volume = match self.client.get(&format!("/api/v1/persistentvolumes/{bound_to}")).await?
        {
            Answer { code: 404, .. } => return Ok(None),
            answer => answer.done()?,
        };
        let source = &volume["spec"]["csi"];
        let id = source["volumeHandle"].as_str().and_then(|id| id.parse::<VolumeId>().ok());
        let Some(id) = id.filter(|_| source["driver"] == DRIVER) else { return Ok(None) };
        let by_id =
            move |cluster: &Cluster| Some((id, cluster.volume(id)?.record.annotations.clone()));
        Ok(self.look(by_id).await)
    }

    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Cluster) -> Option<T> + Send + 'static,
    ) -> Option<T> {
        // A registry that has stopped, or cannot write, is asked again with the next list.
        self.registry.read(look).await.unwrap_or_default()
    }
}

fn resource_version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// What a claim says, as far as it counts.
fn said(claim: &Value) -> BTreeMap<String, String> {
    let value = |key: &&str| {
        let value = claim["metadata"]["annotations"][*key].as_str()?;
        if value.len() > VALUE_MAX_BYTES {
            let name = |field: &str| claim["metadata"][field].as_str().unwrap_or_default();
            tracing::warn!(
                "the annotation {key} of the claim {}/{} has {} bytes and does not count: what is read are words of at \
                 most {VALUE_MAX_BYTES} bytes",
                name("namespace"),
                name("name"),
                value.len()
            );
            return None;
        }
        Some(((*key).to_owned(), value.to_owned()))
    };
    COUNTED.iter().filter_map(value).collect()
}

/// How the annotations of a volume become what its claim says.
fn changes(
    said: &BTreeMap<String, String>,
    known: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let noted = known.get(FROM_CLAIM).map(String::as_str).unwrap_or_default();
    let came: Vec<_> = noted.split(',').filter(|key| COUNTED.contains(key)).collect();
    let mut changes = BTreeMap::new();
    for (key, value) in said.iter().filter(|(key, value)| known.get(*key) != Some(*value)) {
        changes.insert(key.clone(), Some(value.clone()));
    }
    for key in came.into_iter().filter(|key| !said.contains_key(*key) && known.contains_key(*key)) {
        changes.insert(key.to_owned(), None);
    }
    let note = said.keys().cloned().collect::<Vec<_>>().join(",");
    if note != noted {
        changes.insert(FROM_CLAIM.to_owned(), Some(note).filter(|note| !note.is_empty()));
    }
    changes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn apply(known: &mut BTreeMap<String, String>, claim: &BTreeMap<String, String>) -> usize {
        let changes = changes(claim, known);
        for (key, value) in &changes {
            match value {
                Some(value) => known.insert(key.clone(), value.clone()),
                None => known.remove(key),
            };
        }
        changes.len()
    }

    #[test]
    fn what_the_claim_says_counts_and_goes_with_it() {
        let mut known = map(&[("kept", "as it is")]);
        let yes = map(&[(IGNORE_IF_INACCESSIBLE, "yes")]);
        assert_eq!(apply(&mut known, &yes), 2);
        assert_eq!(known[IGNORE_IF_INACCESSIBLE], "yes");
        assert_eq!(apply(&mut known, &yes), 0, "the same again is no change");
        apply(&mut known, &map(&[(IGNORE_IF_INACCESSIBLE, "no")]));
        assert_eq!(known[IGNORE_IF_INACCESSIBLE], "no");
        apply(&mut known, &BTreeMap::new());
        assert_eq!(known, map(&[("kept", "as it is")]));
    }

    #[test]
    fn what_was_written_onto_the_volume_itself_stays() {
        let mut known = map(&[(IGNORE_IF_INACCESSIBLE, "yes")]);
        assert_eq!(apply(&mut known, &BTreeMap::new()), 0);
    }

    #[test]
    fn only_what_counts_is_taken_and_nothing_that_is_too_long() {
        let long = "x".repeat(200 << 10);
        let claim = json!({ "metadata": { "annotations": {
            IGNORE_IF_INACCESSIBLE: long, "other": "thing" } } });
        assert_eq!(said(&claim), BTreeMap::new());
    }
}

//! Which cluster a registry is of that has no record of its own here: that of the Kubernetes cluster. The store asks.
//!
//! Every label and every agent names its cluster, and belongs to no other. An id that was drawn would be lost with the
//! one object that keeps it, and with it the way back to everything on the drives. The namespace kube-system lives as
//! long as the Kubernetes cluster, and cannot be deleted: the id is made of its uid.

use aws_lc_rs::digest;
use hotbay_core::ids::ClusterId;
use hotbay_registry::StoreError;

use crate::client::Client;

const NAMESPACE: &str = "/api/v1/namespaces/kube-system";

/// The same for as long as this Kubernetes cluster lives.
pub(super) async fn cluster(api: &Client) -> Result<ClusterId, StoreError> {
    let (action, object) = ("read", || "the namespace kube-system".to_owned());
    let unreachable =
        |source| StoreError::Unreachable { action, object: object(), source: Box::new(source) };
    let answer = api.get(NAMESPACE).await.map_err(unreachable)?;
    if answer.code == 403 {
        let what = format!("{}; the ClusterRole of the controller has to allow it", answer.words());
        return Err(StoreError::Refused { action, object: object(), what });
    }
    // A server that has just started makes it in a moment.
    let namespace = answer.done().map_err(unreachable)?;
    let uid = namespace["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty());
    let nameless = || {
        let what = "it has no uid".to_owned();
        StoreError::Refused { action, object: object(), what }
    };
    uid.map(of_uid).ok_or_else(nameless)
}

/// It is on every drive: another one for the same uid would be another cluster.
fn of_uid(uid: &str) -> ClusterId {
    let hash = digest::digest(&digest::SHA256, format!("hotbay.dev cluster {uid}").as_bytes());
    let half = hash.as_ref().first_chunk().expect("a hash of SHA-256 has 32 bytes");
    ClusterId::from_bits(u128::from_be_bytes(*half))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_uid_is_one_cluster_in_every_release() {
        let one = of_uid("0f3c5f0e-8a51-4f0c-9a35-3c1f2f6f2f10");
        assert_eq!(one.to_string(), "023946348ec517def4da0a37177259c8");
        assert_ne!(of_uid("0f3c5f0e-8a51-4f0c-9a35-3c1f2f6f2f11"), one);
    }
}

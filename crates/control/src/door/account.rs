//! A node that joins with the account that its platform gave it: the account says which node it is, and nothing else
//! has to be made, kept or used up.
//!
//! The account proves the name each time, so a node that has lost its key joins again with another one. Its certificate
//! counts from now on: purging the node revokes what was issued before, and not what it gets afterwards. That a purged
//! node gets no order but to close its drives, until a person says that it is back, does not hang on certificates.

use hotbay_core::cluster::{Cluster, Ground};
use hotbay_core::ids::{CertificateNumber, NodeName};
use hotbay_registry::Registry;
use tonic::Status;

use crate::accounts::{AccountToken, Accounts};
use crate::patience::patiently;

/// Says which node may join with this token, and the number that its certificate counts from.
pub(super) async fn admit(
    accounts: Option<&dyn Accounts>,
    registry: &Registry,
    token: &str,
    name: Option<&NodeName>,
) -> Result<(NodeName, CertificateNumber), Status> {
    let accounts = accounts.ok_or_else(|| {
        Status::permission_denied(
            "this registry knows no accounts; join with a token: hotbay token create NODE",
        )
    })?;
    let token = AccountToken::new(token)
        .ok_or_else(|| Status::invalid_argument("this is no token of an account"))?;
    // Before the account is asked for: a purge that comes meanwhile revokes what it said.
    let next = |cluster: &Cluster| (cluster.next_certificate(), Ground::of([]));
    let number = patiently(registry, registry.read_on(next)).await?;
    let node = accounts.node_of(&token).await?;
    match name.filter(|name| **name != node) {
        Some(name) => Err(Status::permission_denied(format!(
            "this account is that of node {node}, not of {name}"
        ))),
        None => Ok((node, number)),
    }
}

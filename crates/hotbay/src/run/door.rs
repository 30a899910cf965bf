//! The registry's doors for other machines, if they were asked for; the controller calls it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hotbay_api::token::check_address;
use hotbay_control::{Accounts, AuthorityAt, DoorOptions, Doors};

use super::controller::wall_ms;

/// How long a node's certificate is good for. The node asks for the next one after two thirds of it.
const NODE_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);
/// The same for the registry's own.
const REGISTRY_LIFE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Listens on the addresses, with an authority and tokens in the data directory; without any there are no doors.
pub(super) async fn open(
    data_dir: &Path,
    agents: Vec<String>,
    clients: Vec<String>,
) -> anyhow::Result<Doors> {
    let authority = AuthorityAt::Folder(data_dir.join("tls"));
    open_with(data_dir, agents, clients, authority, None).await
}

/// The same for one among several, with an authority that they share and accounts that somebody else knows.
pub(super) async fn open_with(
    data_dir: &Path,
    agents: Vec<String>,
    clients: Vec<String>,
    authority: AuthorityAt,
    accounts: Option<Arc<dyn Accounts>>,
) -> anyhow::Result<Doors> {
    for address in agents.iter().chain(&clients) {
        check_address(address)?;
    }
    let life = short_life();
    let doors = Doors::open(DoorOptions {
        agents,
        clients,
        authority,
        tls_dir: data_dir.join("tls"),
        accounts,
        node_life: life.unwrap_or(NODE_LIFE),
        registry_life: life.unwrap_or(REGISTRY_LIFE),
        wall_ms,
    })
    .await?;
    for address in doors.agent_addresses() {
        tracing::info!(%address, "listening for agents on other machines");
    }
    for address in doors.client_addresses() {
        tracing::info!(%address, "listening for clients on other machines");
    }
    Ok(doors)
}

/// A life in seconds that tests choose, so that they see a renewal. Only in builds with debug assertions.
fn short_life() -> Option<Duration> {
    let told =
        std::env::var("HOTBAY_TEST_CERTIFICATE_LIFE").ok().filter(|_| cfg!(debug_assertions));
    told?.parse().ok().map(Duration::from_secs)
}

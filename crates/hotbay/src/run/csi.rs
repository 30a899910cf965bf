//! CSI's sockets: the controller's here, the agent's is served by the agent.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hotbay_control::Platform;
use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, Socket};
use hotbay_registry::{Registry, StoreHealth};

/// The kernel's room for the path of a socket.
const LONGEST_PATH: usize = 107;

/// Serves CSI's Controller service for as long as this process runs: whatever was answered is durable.
pub(super) fn serve_controller(
    path: &Path,
    registry: Registry,
    fresh: fn() -> u128,
) -> anyhow::Result<()> {
    let socket = Socket::bind(path)?;
    let health = registry.store_health();
    let ready = move || !matches!(*health.borrow(), StoreHealth::Failing(_));
    let identity = Identity::new(env!("CARGO_PKG_VERSION"), ready);
    let routes = serve::controller(identity, Arc::new(Platform::new(registry, fresh)));
    tokio::spawn(async move {
        if let Err(error) = serve::serve(socket, routes, std::future::pending()).await {
            tracing::error!("CSI is not served any more: {error}");
        }
    });
    Ok(())
}

/// Where an agent serves CSI: where it was told to, or in its own folder if such a path is short enough for a socket.
pub(super) fn node_socket(told: Option<PathBuf>, data_dir: &Path) -> Option<PathBuf> {
    if told.is_some() {
        return told;
    }
    let usual = data_dir.join("csi.sock");
    if usual.as_os_str().len() <= LONGEST_PATH {
        return Some(usual);
    }
    tracing::warn!(
        "CSI is not served: {} is too long for a socket; give --csi-node",
        usual.display()
    );
    None
}

//! CSI's Node service beside the loop.

use std::sync::Arc;

use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, ServeError, Socket};

use crate::volumes::Platform;

/// Serves for as long as it is asked to; where there is no socket, never ends.
pub(super) async fn serve(socket: Option<Socket>, platform: Platform) -> Result<(), ServeError> {
    let Some(socket) = socket else { return std::future::pending().await };
    platform.clean_up().await;
    tracing::info!(csi = %socket.path().display(), "CSI's Node service is there");
    // What is staged is answered from the kernel, registry or not.
    let identity = Identity::new(env!("CARGO_PKG_VERSION"), || true);
    let routes = serve::node(identity, Arc::new(platform));
    serve::serve(socket, routes, std::future::pending()).await
}

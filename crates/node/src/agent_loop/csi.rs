//! CSI's Node service beside the loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, BindError, ServeError, Socket};

use crate::volumes::Platform;

/// How often a disk that could not be written is tried again.
const BETWEEN_TRIES: Duration = Duration::from_secs(1);

/// Where the service is reached.
pub(super) enum Place {
    Nowhere,
    Bound(Socket),
    /// The disk cannot be written now. Drives in operation and what is mounted must not wait for it.
    Later(PathBuf),
}

/// Binds the socket. A path that can never be one is an error of whoever chose it.
pub(super) fn bind(path: Option<&Path>) -> Result<Place, BindError> {
    let Some(path) = path else { return Ok(Place::Nowhere) };
    match Socket::bind(path) {
        Ok(socket) => Ok(Place::Bound(socket)),
        Err(error) if error.is_of_the_disk() => {
            tracing::error!("CSI is not served until its disk can be written: {error}");
            Ok(Place::Later(path.to_owned()))
        }
        Err(error) => Err(error),
    }
}

/// Serves for as long as it is asked to; where there is no socket, never ends.
pub(super) async fn serve(place: Place, platform: Platform) -> Result<(), ServeError> {
    let socket = match place {
        Place::Nowhere => return std::future::pending().await,
        Place::Bound(socket) => socket,
        Place::Later(path) => bound_later(&path).await,
    };
    platform.clean_up().await;
    tracing::info!(csi = %socket.path().display(), "CSI's Node service is there");
    // What is staged is answered from the kernel, registry or not.
    let identity = Identity::new(env!("CARGO_PKG_VERSION"), || true);
    let routes = serve::node(identity, Arc::new(platform));
    serve::serve(socket, routes, std::future::pending()).await
}

/// Tries for as long as the agent runs: nothing tells when a disk can be written again.
async fn bound_later(path: &Path) -> Socket {
    loop {
        tokio::time::sleep(BETWEEN_TRIES).await;
        if let Ok(socket) = Socket::bind(path) {
            return socket;
        }
    }
}

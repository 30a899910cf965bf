//! The controller: sessions with agents, actions of people and programs, and what they see. Knows no Kubernetes.
//!
//! - [`sessions`]: the agents' side, one two-way stream each.
//! - [`actions`]: what infrastructure automation asks for.
//! - [`repair`]: what a person decides when a registry went back in time.
//! - [`view`]: the state as the kinds of `hotbay-api`.
//! - [`http`]: the same for curl and any automation, and what monitoring asks.
//! - [`peer`] and [`incoming`]: who is at the other end of the socket, and how they get in.
//! - [`patience`]: how long a caller waits for a store that cannot be written.
//!
//! Everything listens on Unix sockets, one for gRPC and one for HTTP; only root and the user that the controller runs
//! as may speak to them.

mod actions;
mod http;
mod incoming;
mod patience;
mod peer;
mod repair;
mod sessions;
mod view;

use hotbay_api::MESSAGE_LIMIT_BYTES;
use hotbay_api::agent::agents_server::AgentsServer;
use hotbay_api::cms::cms_server::CmsServer;
use hotbay_api::cms::repair_server::RepairServer;
use hotbay_api::cms::view_server::ViewServer;
use hotbay_registry::Registry;
use tokio::net::UnixListener;
use tonic::transport::Server;

/// Serves a registry on a Unix socket until `stop` ends. Draws ids with `fresh`, as nothing below does.
pub async fn serve(
    registry: Registry,
    listener: UnixListener,
    fresh: fn() -> u128,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let agents = AgentsServer::new(sessions::Sessions::new(registry.clone(), fresh))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let cms = CmsServer::new(actions::Actions::new(registry.clone()))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let repair = RepairServer::new(repair::Repairs::new(registry.clone(), fresh));
    let view =
        ViewServer::new(view::Views::new(registry)).max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    Server::builder()
        .add_service(agents)
        .add_service(cms)
        .add_service(repair)
        .add_service(view)
        .serve_with_incoming_shutdown(incoming::Incoming::new(listener), stop)
        .await
}

/// Serves a registry as HTTP and JSON on a Unix socket of its own. Never ends; to stop it, drop it.
pub async fn serve_http(registry: Registry, listener: UnixListener) {
    http::serve(registry, listener).await;
}

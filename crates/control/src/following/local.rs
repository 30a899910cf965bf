//! The Unix sockets of a controller that does not lead: whoever calls there is told where to call.

use axum::Router;
use axum::http::Request;
use axum::routing::any;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::Server;

use super::LeaderAt;
use crate::incoming;

/// Answers every call for as long as it is polled.
pub(super) async fn tell(listeners: Vec<UnixListener>, leader: watch::Receiver<Option<LeaderAt>>) {
    let elsewhere = any(move |_: Request<axum::body::Body>| {
        let leader = leader.borrow().as_ref().map(|leader| leader.agents.clone());
        let words = match leader {
            Some(address) => format!(
                "this controller does not lead, the one at {address} does: ask it, or any of them with kubectl hotbay"
            ),
            None => "no controller leads now: ask again".to_owned(),
        };
        async move { Status::unavailable(words).into_http::<Body>() }
    });
    let routes: Routes = Router::new().fallback_service(elsewhere).into();
    let served =
        Server::builder().add_routes(routes).serve_with_incoming(incoming::all(listeners)).await;
    if let Err(error) = served {
        tracing::error!("callers are not told any more who leads: {error}");
    }
}

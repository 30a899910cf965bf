//! CSI's calls, answered by whoever leads. The sidecars beside this controller keep one connection for its whole life,
//! whether it leads or not; where a call goes is decided for each.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::Router;
use axum::http::{Request, Response, Uri};
use hotbay_api::token::REGISTRY_NAME;
use hyper::client::conn::http2::SendRequest;
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::{Service, ServiceExt};

use super::LeaderAt;
use super::dial::{Failure, dial};
use crate::door::authority::Authority;
use crate::doors::Doors;

/// Says who this is, and is answered here, led or not.
const IDENTITY: &str = "/csi.v1.Identity/";

/// Who answers CSI's calls now.
#[derive(Debug, Clone, Default)]
pub enum CsiBy {
    #[default]
    Nobody,
    Other(LeaderAt),
    Ourselves(Routes),
}

/// Routes that go to whoever leads; `identity` is answered here. The doors must be open for agents.
pub fn csi_of_whoever_leads(
    identity: Routes,
    doors: &Doors,
    by: watch::Receiver<CsiBy>,
    wall_ms: fn() -> u64,
) -> Routes {
    let authority = doors.agents.as_ref().map(|door| Arc::clone(&door.office.authority));
    let (connection, dialling) = Default::default();
    let leader = Arc::new(Leader { authority, wall_ms, connection, dialling });
    Router::new().fallback_service(Switch { identity, by, leader }).into()
}

#[derive(Clone)]
struct Switch {
    identity: Routes,
    by: watch::Receiver<CsiBy>,
    leader: Arc<Leader>,
}

type Calling = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl Service<Request<axum::body::Body>> for Switch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Calling;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<axum::body::Body>) -> Calling {
        let request = request.map(Body::new);
        let by = match request.uri().path().starts_with(IDENTITY) {
            true => CsiBy::Ourselves(self.identity.clone()),
            false => self.by.borrow().clone(),
        };
        let (leader, mut now_by) = (Arc::clone(&self.leader), self.by.clone());
        Box::pin(async move {
            Ok(match by {
                CsiBy::Nobody => {
                    Status::unavailable("no controller leads now; try again").into_http()
                }
                CsiBy::Ourselves(routes) => routes.oneshot(request).await?,
                CsiBy::Other(at) => {
                    // One that has stalled answers late or never: when another leads, the caller asks again.
                    let passed = tokio::select! {
                        passed = leader.pass(&at.agents, request) => passed,
                        () = succeeded(&mut now_by, &at) => Err("it does not lead any more".into()),
                    };
                    passed.unwrap_or_else(|error| {
                        let words =
                            format!("the leading controller at {} does not answer", at.agents);
                        tracing::debug!("{words}: {error}");
                        Status::unavailable(words).into_http()
                    })
                }
            })
        })
    }
}

/// Waits until another leads.
async fn succeeded(by: &mut watch::Receiver<CsiBy>, leader: &LeaderAt) {
    let is_another = |by: &CsiBy| match by {
        CsiBy::Other(at) => at != leader,
        CsiBy::Ourselves(_) => true,
        CsiBy::Nobody => false,
    };
    if by.wait_for(is_another).await.is_err() {
        std::future::pending().await
    }
}

/// The connection to the leader, dialled when there is something to pass on.
struct Leader {
    authority: Option<Arc<Authority>>,
    wall_ms: fn() -> u64,
    connection: Mutex<Option<(String, SendRequest<Body>)>>,
    dialling: tokio::sync::Mutex<()>,
}

impl Leader {
    async fn pass(
        &self,
        address: &str,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, Failure> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() =
            Uri::builder().scheme("https").authority(REGISTRY_NAME).path_and_query(path).build()?;
        let mut sender = self.connected(address).await?;
        let answered = sender.send_request(request).await;
        if answered.is_err() {
            self.kept().take();
        }
        Ok(answered?.map(Body::new))
    }

    async fn connected(&self, address: &str) -> Result<SendRequest<Body>, Failure> {
        if let Some(sender) = self.usable(address) {
            return Ok(sender);
        }
        let authority = self.authority.as_ref().ok_or("no door is open for agents")?;
        // One dials, the others wait for it.
        let _turn = self.dialling.lock().await;
        if let Some(sender) = self.usable(address) {
            return Ok(sender);
        }
        let sender = dial(address, authority, (self.wall_ms)()).await?;
        *self.kept() = Some((address.to_owned(), sender.clone()));
        Ok(sender)
    }

    fn usable(&self, address: &str) -> Option<SendRequest<Body>> {
        let kept = self.kept();
        let (_, sender) =
            kept.as_ref().filter(|(at, sender)| at == address && !sender.is_closed())?;
        Some(sender.clone())
    }

    fn kept(&self) -> MutexGuard<'_, Option<(String, SendRequest<Body>)>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The agents' door of a controller that does not lead: whoever comes is told where the leader is.

use std::pin::Pin;

use hotbay_api::agent as wire;
use hotbay_api::agent::agents_server::AgentsServer;
use hotbay_api::join;
use hotbay_api::join::joining_server::JoiningServer;
use hotbay_api::leader::NotLeading;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::LeaderAt;
use crate::door::Door;
use crate::door::join::REQUEST_LIMIT_BYTES;
use crate::{CALLS_OF_AN_AGENT, KEEP_ALIVE};

pub(super) async fn serve(door: Door, leader: watch::Receiver<Option<LeaderAt>>) {
    let signpost = Signpost { leader };
    let (streams, _tasks) = door.receive();
    let joining =
        JoiningServer::new(signpost.clone()).max_decoding_message_size(REQUEST_LIMIT_BYTES);
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(CALLS_OF_AN_AGENT)
        .add_service(AgentsServer::new(signpost))
        .add_service(joining)
        .serve_with_incoming(streams)
        .await;
    if let Err(error) = served {
        tracing::error!("agents are not told any more who leads: {error}");
    }
}

/// Says where the leader is, and nothing else.
#[derive(Clone)]
struct Signpost {
    leader: watch::Receiver<Option<LeaderAt>>,
}

impl Signpost {
    fn elsewhere(&self) -> Status {
        let leader = self.leader.borrow().as_ref().map(|leader| leader.agents.clone());
        leader.map_or(NotLeading::Nobody, NotLeading::Leader).into()
    }
}

#[tonic::async_trait]
impl wire::agents_server::Agents for Signpost {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<wire::RegistryMessage, Status>> + Send>>;

    async fn session(
        &self,
        _: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(self.elsewhere())
    }
}

#[tonic::async_trait]
impl join::joining_server::Joining for Signpost {
    async fn join(
        &self,
        _: Request<join::JoinRequest>,
    ) -> Result<Response<join::Certified>, Status> {
        Err(self.elsewhere())
    }

    async fn renew(
        &self,
        _: Request<join::RenewRequest>,
    ) -> Result<Response<join::Certified>, Status> {
        Err(self.elsewhere())
    }
}

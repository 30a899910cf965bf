//! Who is at the other end. Of the Unix socket: the kernel says, the peer cannot choose. Of a connection from another
//! machine: its certificate says.

use hotbay_core::ids::NodeName;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::door::accept::AgentPeer;

/// An agent that may have a session.
#[derive(Debug)]
pub(crate) struct AdmittedAgent {
    /// For the record.
    pub(crate) who: String,
    /// The only node that it may speak for; None on the Unix socket, where every caller may be any.
    pub(crate) speaks_for: Option<NodeName>,
}

/// Lets an agent through: on the Unix socket as [`admit`] does, from another machine with a certificate.
pub(crate) fn admit_agent<T>(request: &Request<T>) -> Result<AdmittedAgent, Status> {
    let Some(peer) = request.extensions().get::<AgentPeer>() else {
        return Ok(AdmittedAgent { who: admit(request)?, speaks_for: None });
    };
    let AgentPeer { address, certified } = peer;
    let Some(certified) = certified else {
        let words = "an agent needs a certificate; it gets its first one by joining with a token";
        tracing::warn!(%address, "refused: no certificate");
        return Err(Status::unauthenticated(words));
    };
    let node = certified.node.clone();
    Ok(AdmittedAgent { who: format!("{node} ({address})"), speaks_for: Some(node) })
}

/// Lets root and the controller's own user through; says who it is, for the record.
pub(crate) fn admit<T>(request: &Request<T>) -> Result<String, Status> {
    let peer = request
        .extensions()
        .get::<UdsConnectInfo>()
        .and_then(|info| info.peer_cred)
        .ok_or_else(|| Status::unauthenticated("the peer of this socket is not known"))?;
    let own = rustix::process::geteuid().as_raw();
    if peer.uid() != 0 && peer.uid() != own {
        let words =
            format!("user {} may not use this socket; only root and user {own} may", peer.uid());
        return Err(Status::permission_denied(words));
    }
    Ok(match peer.pid() {
        Some(pid) => format!("uid {} (pid {pid})", peer.uid()),
        None => format!("uid {}", peer.uid()),
    })
}

//! Who is at the other end. Of the Unix socket: the kernel says, the peer cannot choose. Of a connection from another
//! machine: an agent's certificate says, and of a client the guard has found out ([`crate::clients`]).

use std::net::IpAddr;

use hotbay_core::ids::{CertificateNumber, NodeName};
use tokio::net::unix::UCred;
use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

use crate::caller::Caller;
use crate::door::accept::AgentPeer;

/// An agent that may have a session.
#[derive(Debug)]
pub(crate) struct AdmittedAgent {
    /// For the record.
    pub(crate) who: String,
    /// The only node that it may speak for; None on the Unix socket, where every caller may be any.
    pub(crate) speaks_for: Option<NodeName>,
    /// Of the certificate that it showed; None on the Unix socket.
    pub(crate) certificate: Option<CertificateNumber>,
    /// Where it comes from; None on the Unix socket.
    pub(crate) address: Option<IpAddr>,
}

/// Lets an agent through: on the Unix socket as [`admit`] does, from another machine with a certificate.
pub(crate) fn admit_agent<T>(request: &Request<T>) -> Result<AdmittedAgent, Status> {
    let Some(peer) = request.extensions().get::<AgentPeer>() else {
        let who = admit(request)?.who;
        return Ok(AdmittedAgent { who, speaks_for: None, certificate: None, address: None });
    };
    let AgentPeer { address, certified } = peer;
    let Some(certified) = certified else {
        let words = "an agent needs a certificate; it gets its first one by joining with a token";
        tracing::warn!(%address, "refused: no certificate");
        return Err(Status::unauthenticated(words));
    };
    let node = certified.node.clone();
    Ok(AdmittedAgent {
        who: format!("{node} ({address})"),
        speaks_for: Some(node),
        certificate: Some(certified.number),
        address: Some(address.ip().to_canonical()),
    })
}

/// Lets through whom the guard of the clients' door has let in, and on the Unix socket root and the controller's own
/// user; says who it is.
pub(crate) fn admit<T>(request: &Request<T>) -> Result<Caller, Status> {
    if let Some(caller) = request.extensions().get::<Caller>() {
        return Ok(caller.clone());
    }
    let info = request.extensions().get::<UdsConnectInfo>();
    admit_peer(info.and_then(|info| info.peer_cred))
}

/// The same for a connection, by what the kernel says of its other end.
pub(crate) fn admit_peer(peer: Option<UCred>) -> Result<Caller, Status> {
    let peer =
        peer.ok_or_else(|| Status::unauthenticated("the peer of this socket is not known"))?;
    admit_user(peer.uid(), peer.pid(), rustix::process::geteuid().as_raw()).map(Caller::local)
}

fn admit_user(user: u32, pid: Option<i32>, own: u32) -> Result<String, Status> {
    if user != 0 && user != own {
        let words = format!("user {user} may not use this socket; only root and user {own} may");
        return Err(Status::permission_denied(words));
    }
    Ok(match pid {
        Some(pid) => format!("uid {user} (pid {pid})"),
        None => format!("uid {user}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_and_the_own_user_may_and_nobody_else() {
        assert_eq!(admit_user(0, Some(7), 1_000).unwrap(), "uid 0 (pid 7)");
        assert_eq!(admit_user(1_000, None, 1_000).unwrap(), "uid 1000");
        let refused = admit_user(1_001, Some(7), 1_000).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert!(refused.message().contains("1001"), "{}", refused.message());
        assert!(admit_peer(None).is_err());
    }
}

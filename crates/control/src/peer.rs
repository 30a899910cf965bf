//! Who is at the other end of the Unix socket: the kernel says, the peer cannot choose.

use tonic::transport::server::UdsConnectInfo;
use tonic::{Request, Status};

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

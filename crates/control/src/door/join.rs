//! Tokens and certificates, as calls: a person makes a token; an agent on another machine gives it for its first
//! certificate, and later asks for the next ones with the one it has. An agent with an account needs no such token.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use hotbay_api::PROTOCOL;
use hotbay_api::convert::Malformed;
use hotbay_api::join as wire;
use hotbay_api::token::{JoinToken, check_address};
use hotbay_core::cluster::{Cluster, Ground};
use hotbay_core::ids::{CertificateNumber, NodeName};
use hotbay_registry::Registry;
use tonic::{Request, Response, Status};

use super::accept::{AgentPeer, CertifiedPeer};
use super::tokens::{NotAdmitted, NotMade};
use super::{Office, account};
use crate::patience::patiently;
use crate::peer::admit;

/// A request to join is small; whoever sends more is none of ours.
pub(crate) const REQUEST_LIMIT_BYTES: usize = 16 << 10;

/// For people, on the Unix socket.
pub(crate) struct TokenMaker {
    pub(crate) office: Option<Arc<Office>>,
    pub(crate) registry: Registry,
}

#[tonic::async_trait]
impl wire::tokens_server::Tokens for TokenMaker {
    async fn create(
        &self,
        request: Request<wire::CreateTokenRequest>,
    ) -> Result<Response<wire::CreateTokenResponse>, Status> {
        let who = admit(&request)?.who;
        let wire::CreateTokenRequest { protocol, node_name, ttl_ms, address } =
            request.into_inner();
        same_protocol(protocol)?;
        let office = self.office.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this registry does not listen for agents on other machines; start it with --listen-agents HOST:PORT",
            )
        })?;
        let node: NodeName = node_name.parse().map_err(invalid)?;
        let address = if address.is_empty() { office.own_address()? } else { address };
        check_address(&address).map_err(invalid)?;
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret)
            .map_err(|_| Status::internal("the machine gives no random numbers"))?;
        let ttl = Duration::from_millis(ttl_ms);
        let next = |cluster: &Cluster| (cluster.next_certificate(), Ground::of([]));
        let number = self.registry.read_on(next);
        let number = patiently(&self.registry, number).await?;
        let mut tokens = office.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.make(node.clone(), number, &secret, ttl, Instant::now()).map_err(
            |why| match why {
                NotMade::Time => Status::invalid_argument(why.to_string()),
                NotMade::TooMany => Status::resource_exhausted(why.to_string()),
            },
        )?;
        tracing::info!(who, %node, "a join token was made, good for {} s", ttl.as_secs());
        let token = JoinToken { address, authority: office.authority.hash(), secret }.to_string();
        Ok(Response::new(wire::CreateTokenResponse { protocol: PROTOCOL, token }))
    }
}

/// For agents, through the door.
pub(crate) struct Registrar {
    pub(crate) office: Arc<Office>,
    pub(crate) registry: Registry,
}

#[tonic::async_trait]
impl wire::joining_server::Joining for Registrar {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::Certified>, Status> {
        let peer = request.extensions().get::<AgentPeer>().cloned();
        let wire::JoinRequest { protocol, secret, node_name, public_key, account_token } =
            request.into_inner();
        same_protocol(protocol)?;
        let name = match node_name.as_str() {
            "" => None,
            name => Some(name.parse::<NodeName>().map_err(invalid)?),
        };
        let public_key: [u8; 32] = public_key
            .try_into()
            .map_err(|_| Status::invalid_argument("a public key has 32 bytes"))?;
        let (admitted, with) = match (secret.is_empty(), account_token.is_empty()) {
            (_, true) => (self.admit_token(&secret, name.as_ref(), public_key), "token"),
            (true, false) => {
                let accounts = self.office.accounts.as_deref();
                let admitted =
                    account::admit(accounts, &self.registry, &account_token, name.as_ref());
                (admitted.await, "account")
            }
            (false, false) => {
                let words = "a node joins with a token or with an account, not with both";
                (Err(Status::invalid_argument(words)), "token and account")
            }
        };
        let address = peer.map(|peer| peer.address.to_string()).unwrap_or_default();
        let (node, number) = admitted.inspect_err(|why| {
            tracing::warn!(address, "an agent may not join: {}", why.message());
        })?;
        let certified = self.certify(&node, public_key, number).await?;
        tracing::info!(address, %node, "an agent joined with its {with}");
        Ok(certified)
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::Certified>, Status> {
        let peer = request.extensions().get::<AgentPeer>();
        let certified = peer.and_then(|peer| peer.certified.clone()).ok_or_else(|| {
            Status::unauthenticated("without a certificate there is nothing to renew; join first")
        })?;
        same_protocol(request.into_inner().protocol)?;
        let CertifiedPeer { node, public_key, number } = certified;
        let renewed = self.certify(&node, public_key, number).await?;
        tracing::info!(%node, "a node's certificate is renewed");
        Ok(renewed)
    }
}

impl Registrar {
    /// Uses a join token up.
    fn admit_token(
        &self,
        secret: &[u8],
        name: Option<&NodeName>,
        public_key: [u8; 32],
    ) -> Result<(NodeName, CertificateNumber), Status> {
        let mut tokens = self.office.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let admitted = tokens.admit(secret, name, public_key, Instant::now());
        admitted.map_err(|why| match why {
            NotAdmitted::OtherName { .. } => Status::permission_denied(why.to_string()),
            NotAdmitted::Unknown | NotAdmitted::Expired | NotAdmitted::Used => {
                Status::unauthenticated(why.to_string())
            }
        })
    }

    /// Certifies a key by the number of the certificate, or of the token, that was shown for it.
    async fn certify(
        &self,
        node: &NodeName,
        public_key: [u8; 32],
        by: CertificateNumber,
    ) -> Result<Response<wire::Certified>, Status> {
        let numbered = patiently(&self.registry, self.registry.certify(node.clone(), by)).await;
        let number = numbered.inspect_err(|status| {
            tracing::warn!(%node, "no certificate: {}", status.message());
        })?;
        let Office { authority, node_life, wall_ms, .. } = &*self.office;
        let certified = authority
            .certify_node(node, public_key, number, wall_ms(), *node_life)
            .map_err(|error| {
                tracing::error!(%node, "{error}");
                Status::internal(error.to_string())
            })?;
        Ok(Response::new(wire::Certified {
            protocol: PROTOCOL,
            node_name: node.to_string(),
            certificate_pem: certified.pem,
            authority_pem: authority.pem().to_owned(),
            not_after_ms: certified.not_after_ms,
            renew_after_ms: certified.renew_after_ms,
        }))
    }
}

impl Office {
    /// The first address that another machine can dial.
    fn own_address(&self) -> Result<String, Status> {
        let mut known = self.addresses.iter().filter(|address| !address.ip().is_unspecified());
        known.next().map(ToString::to_string).ok_or_else(|| {
            Status::invalid_argument(
                "the registry listens on all addresses of its machine; say which one the agent dials: \
                 --address HOST:PORT",
            )
        })
    }
}

fn same_protocol(theirs: u32) -> Result<(), Status> {
    if theirs == PROTOCOL {
        return Ok(());
    }
    Err(Status::failed_precondition(Malformed::Protocol { theirs }.to_string()))
}

fn invalid(error: impl std::error::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

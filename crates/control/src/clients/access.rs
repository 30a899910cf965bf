//! Tokens of clients, as calls: made, listed, revoked by whoever may write; and the authority's certificate, for
//! clients that are not `hotbay`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::access as wire;
use hotbay_api::client_token::ClientToken;
use hotbay_api::convert::Malformed;
use tonic::{Request, Response, Status};

use super::rights::May;
use super::tokens::{ClientTokens, Listed};
use crate::accounts::Accounts;
use crate::door::authority::Authority;
use crate::peer::admit;

/// What the calls need.
pub(crate) struct Desk {
    pub(super) tokens: Arc<ClientTokens>,
    accounts: Option<Arc<dyn Accounts>>,
    authority: Arc<Authority>,
    /// Where a client dials, as far as that is known; see `access.proto`.
    address: String,
}

impl Desk {
    pub(super) fn new(
        tokens: Arc<ClientTokens>,
        accounts: Option<Arc<dyn Accounts>>,
        authority: Arc<Authority>,
        given: &[String],
        bound: &[SocketAddr],
    ) -> Self {
        let both = || given.iter().zip(bound);
        let specific = both().find(|(_, bound)| !bound.ip().is_unspecified());
        let address = match (specific, both().next()) {
            (Some((given, _)), _) => given.clone(),
            (None, Some((_, bound))) => format!(":{}", bound.port()),
            (None, None) => String::new(),
        };
        Self { tokens, accounts, authority, address }
    }
}

/// For people and programs.
pub(crate) struct AccessCalls {
    /// None if nobody is listened for on other machines.
    pub(crate) desk: Option<Arc<Desk>>,
}

impl AccessCalls {
    fn desk(&self, protocol: u32) -> Result<&Desk, Status> {
        if protocol != PROTOCOL {
            let malformed = Malformed::Protocol { theirs: protocol };
            return Err(Status::failed_precondition(malformed.to_string()));
        }
        self.desk.as_deref().ok_or_else(|| {
            Status::failed_precondition(
                "this registry does not listen for clients on other machines; start it with --listen HOST:PORT",
            )
        })
    }
}

#[tonic::async_trait]
impl wire::access_server::Access for AccessCalls {
    async fn create_token(
        &self,
        request: Request<wire::CreateTokenRequest>,
    ) -> Result<Response<wire::CreateTokenResponse>, Status> {
        let who = admit(&request)?.who;
        let wire::CreateTokenRequest { protocol, name, may, valid_ms } = request.into_inner();
        let desk = self.desk(protocol)?;
        let may = match wire::May::try_from(may) {
            Ok(wire::May::Read) => May::Read,
            Ok(wire::May::Write) => May::Write,
            Ok(wire::May::Unknown) | Err(_) => {
                return Err(Status::invalid_argument("a token may read, or write"));
            }
        };
        // One of several registries made it, and the others would not know it.
        if let Some(accounts) = &desk.accounts {
            return Err(Status::failed_precondition(format!(
                "this registry takes the tokens of accounts, and makes none of its own; {}",
                accounts.advice(may)
            )));
        }
        let valid = Duration::from_millis(valid_ms);
        let (secret, expires_ms) = desk.tokens.create(name.clone(), may, valid).await?;
        tracing::info!(who, token = name, ?may, "a client's token was made, good for {valid:?}");
        let token = ClientToken { authority: desk.authority.hash(), secret }.to_string();
        let address = desk.address.clone();
        Ok(Response::new(wire::CreateTokenResponse {
            protocol: PROTOCOL,
            token,
            expires_ms,
            address,
        }))
    }

    async fn list_tokens(
        &self,
        request: Request<wire::ListTokensRequest>,
    ) -> Result<Response<wire::ListTokensResponse>, Status> {
        admit(&request)?;
        let desk = self.desk(request.into_inner().protocol)?;
        let tokens = desk.tokens.list().into_iter().map(on_wire).collect();
        Ok(Response::new(wire::ListTokensResponse { protocol: PROTOCOL, tokens }))
    }

    async fn revoke_token(
        &self,
        request: Request<wire::RevokeTokenRequest>,
    ) -> Result<Response<wire::RevokeTokenResponse>, Status> {
        let who = admit(&request)?.who;
        let wire::RevokeTokenRequest { protocol, name } = request.into_inner();
        self.desk(protocol)?.tokens.revoke(name.clone()).await?;
        tracing::info!(who, token = name, "a client's token was revoked");
        Ok(Response::new(wire::RevokeTokenResponse { protocol: PROTOCOL }))
    }

    async fn get_authority(
        &self,
        request: Request<wire::GetAuthorityRequest>,
    ) -> Result<Response<wire::GetAuthorityResponse>, Status> {
        admit(&request)?;
        let authority_pem = self.desk(request.into_inner().protocol)?.authority.pem().to_owned();
        Ok(Response::new(wire::GetAuthorityResponse { protocol: PROTOCOL, authority_pem }))
    }
}

fn on_wire(listed: Listed) -> wire::ClientToken {
    let Listed { name, may, created_ms, expires_ms, last_used_ms, expired } = listed;
    let may = match may {
        May::Read => wire::May::Read,
        May::Write => wire::May::Write,
    };
    wire::ClientToken {
        name,
        may: may.into(),
        created_ms,
        expires_ms,
        last_used_ms: last_used_ms.unwrap_or(0),
        expired,
    }
}

//! Stands before everything that clients on other machines call: no request is looked at any further before its token
//! is known, and no call is made that the token does not allow.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, Request, Response};
use hotbay_api::client_token::ClientToken;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::lease::Lease;
use super::rights::{self, May};
use super::stream::ClientPeer;
use super::tokens::{Admitted, ClientTokens, NotAdmitted, bearer};
use crate::accounts::{Account, AccountToken, Accounts};
use crate::caller::{Caller, Token};

/// Who may come in.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    tokens: Arc<ClientTokens>,
    accounts: Option<Arc<dyn Accounts>>,
}

impl Guard {
    pub(super) fn new(tokens: Arc<ClientTokens>, accounts: Option<Arc<dyn Accounts>>) -> Self {
        Self { tokens, accounts }
    }

    /// Lets a request in by its head.
    pub(crate) async fn admit(
        &self,
        head: &HeaderMap,
        peer: &ClientPeer,
    ) -> Result<Caller, Status> {
        let address = peer.address.ip();
        let token = self.token(head).await.inspect_err(|why| {
            tracing::debug!(%address, "refused: {}", why.message());
        })?;
        peer.is_known()?;
        Ok(Caller::with_token(token, address))
    }

    /// One of our own, or that of an account.
    async fn token(&self, head: &HeaderMap) -> Result<Token, Status> {
        let Some(accounts) = &self.accounts else { return Ok(self.own(bearer(head)?)?) };
        let shown = bearer(head).map_err(|why| {
            Status::unauthenticated(match why {
                NotAdmitted::Missing => format!(
                    "a token is needed: send it in the header \"Authorization: Bearer TOKEN\"; {}",
                    accounts.advice(May::Read)
                ),
                other => other.to_string(),
            })
        })?;
        if ClientToken::is_meant(shown) {
            return Ok(self.own(shown)?);
        }
        let token = AccountToken::new(shown).ok_or_else(|| {
            let advice = accounts.advice(May::Read);
            Status::unauthenticated(format!("this is no token of an account; {advice}"))
        })?;
        let Account { who, may } = accounts.rights_of(&token).await?;
        let remedy = accounts.advice(May::Write);
        let lease = Lease::Account { accounts: Arc::clone(accounts), token };
        Ok(Token { name: format!("account {who}"), may, lease, remedy })
    }

    fn own(&self, shown: &str) -> Result<Token, NotAdmitted> {
        let Admitted { name, may, lease } = self.tokens.admit(shown)?;
        let name = format!("token {name}");
        let remedy =
            "hotbay token create --client NAME --may write makes a token that may".to_owned();
        Ok(Token { name, may, lease: Lease::Own(lease), remedy })
    }

    async fn admit_call(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let unknown = || Status::unauthenticated("the peer of this connection is not known");
        let peer = request.extensions().get::<ClientPeer>().cloned().ok_or_else(unknown)?;
        let caller = self.admit(&request.headers().clone(), &peer).await?;
        let right = rights::of_call(request.uri().path())
            .ok_or_else(|| Status::unimplemented("there is no such call here"))?;
        caller.must_have(right)?;
        request.extensions_mut().insert(caller);
        Ok(())
    }
}

/// gRPC calls behind the guard.
#[derive(Debug, Clone)]
pub(super) struct GuardedCalls<S> {
    pub(super) guard: Guard,
    pub(super) calls: S,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl<S> Service<Request<Body>> for GuardedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.calls.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Answer {
        // The one that was found ready is used; the next call asks its clone.
        let next = self.calls.clone();
        let mut calls = std::mem::replace(&mut self.calls, next);
        let guard = self.guard.clone();
        Box::pin(async move {
            match guard.admit_call(&mut request).await {
                Ok(()) => calls.call(request).await,
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

//! Stands before everything that clients on other machines call: no request is looked at any further before its token
//! is known, and no call is made that the token does not allow.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::rights;
use super::stream::ClientPeer;
use super::tokens::ClientTokens;
use crate::caller::Caller;

/// Who may come in.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    tokens: Arc<ClientTokens>,
}

impl Guard {
    pub(super) fn new(tokens: Arc<ClientTokens>) -> Self {
        Self { tokens }
    }

    /// Lets a request in by its head.
    pub(crate) fn admit(&self, head: &HeaderMap, peer: &ClientPeer) -> Result<Caller, Status> {
        let address = peer.address.ip();
        let admitted = self.tokens.admit(head).inspect_err(|why| {
            tracing::debug!(%address, "refused: {why}");
        })?;
        peer.is_known()?;
        Ok(Caller::with_token(admitted, address))
    }

    fn admit_call(&self, request: &mut Request<Body>) -> Result<(), Status> {
        let unknown = || Status::unauthenticated("the peer of this connection is not known");
        let peer = request.extensions().get::<ClientPeer>().ok_or_else(unknown)?;
        let caller = self.admit(request.headers(), peer)?;
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
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.calls.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Answer {
        match self.guard.admit_call(&mut request) {
            Ok(()) => Box::pin(self.calls.call(request)),
            Err(status) => Box::pin(std::future::ready(Ok(status.into_http()))),
        }
    }
}

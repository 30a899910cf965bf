//! Who asks, what they may, and until when. Made where a request comes in ([`crate::peer`] for the Unix socket,
//! [`crate::clients`] for other machines), looked at where it is answered.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::Status;

use crate::clients::lease::Lease;
use crate::clients::rights::{May, Right};

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// For the record.
    pub(crate) who: String,
    /// None on the Unix socket, where whoever is let in may do everything.
    token: Option<Token>,
}

/// What was shown.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    /// For people: whose it is.
    pub(crate) name: String,
    pub(crate) may: May,
    pub(crate) lease: Lease,
    /// How to get one that may write.
    pub(crate) remedy: String,
}

impl Caller {
    /// Somebody on this machine.
    pub(crate) fn local(who: String) -> Self {
        Self { who, token: None }
    }

    /// Somebody with a token, from an address.
    pub(crate) fn with_token(token: Token, address: std::net::IpAddr) -> Self {
        Self { who: format!("{} ({address})", token.name), token: Some(token) }
    }

    /// Refuses a call that needs a right which this caller lacks.
    pub(crate) fn must_have(&self, right: Right) -> Result<(), Status> {
        match &self.token {
            Some(token) if !right.is_held_by(token.may) => {
                let Token { name, remedy, .. } = token;
                Err(Status::permission_denied(format!(
                    "the {name} may only read, and this needs the right to write; nothing was changed; {remedy}"
                )))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends a stream with the reason when the caller's token is good no more.
    pub(crate) fn while_good<S>(&self, stream: S) -> WhileGood<S> {
        let lease = self.token.as_ref().map(|token| token.lease.clone());
        let ended: Pin<Box<dyn Future<Output = Status> + Send>> = match lease {
            Some(lease) => Box::pin(lease.ended()),
            None => Box::pin(std::future::pending()),
        };
        WhileGood { stream: Some(stream), ended }
    }
}

/// A stream for as long as its caller may see it.
pub(crate) struct WhileGood<S> {
    stream: Option<S>,
    ended: Pin<Box<dyn Future<Output = Status> + Send>>,
}

impl<T, S: Stream<Item = Result<T, Status>> + Unpin> Stream for WhileGood<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let Some(stream) = &mut this.stream else { return Poll::Ready(None) };
        // Looked at first: a stream that has always something to say would never end.
        if let Poll::Ready(status) = this.ended.as_mut().poll(context) {
            this.stream = None;
            return Poll::Ready(Some(Err(status)));
        }
        Pin::new(stream).poll_next(context)
    }
}

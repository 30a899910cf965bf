//! The token that every call carries. One that is good for minutes is made again while a command goes on: calls show
//! the newest, and what was begun with an earlier one is begun again before that one ends.

use std::sync::Arc;

use hotbay_control::AccountToken;
use tokio::sync::watch;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::plugin::kubectl::KubectlError;

/// A token that somebody makes again before it ends. Only another token counts as a change.
pub(crate) type Renewed = watch::Receiver<Newest>;

/// The newest token.
#[derive(Debug)]
pub(crate) struct Newest {
    pub(crate) token: AccountToken,
    /// Why there is none that follows it, though it is time for that.
    pub(crate) failed: Option<Arc<KubectlError>>,
}

/// What a call shows.
#[derive(Debug, Clone)]
pub(crate) enum Bearer {
    Nothing,
    Fixed(MetadataValue<Ascii>),
    Renewed(Renewed),
}

impl Bearer {
    pub(crate) fn of(token: &str) -> Self {
        Self::Fixed(shown(token))
    }

    /// Notes which token it is now; `next` of what this gives comes with another one.
    pub(crate) fn noted(&self) -> Noted {
        Noted(match self {
            Self::Renewed(newest) => {
                let mut newest = newest.clone();
                newest.mark_unchanged();
                Some(newest)
            }
            Self::Nothing | Self::Fixed(_) => None,
        })
    }

    /// Why the token may be good no more, if that is known.
    pub(crate) fn why_not_renewed(&self) -> Option<Arc<KubectlError>> {
        match self {
            Self::Renewed(newest) => newest.borrow().failed.clone(),
            Self::Nothing | Self::Fixed(_) => None,
        }
    }
}

/// Waits for another token than the one that was noted.
#[derive(Debug)]
pub(crate) struct Noted(Option<Renewed>);

impl Noted {
    /// May be cancelled. Does not end where no other token can come.
    pub(crate) async fn next(&mut self) {
        let came = match &mut self.0 {
            Some(newest) => newest.changed().await.is_ok(),
            None => false,
        };
        if !came {
            std::future::pending().await
        }
    }
}

fn shown(token: &str) -> MetadataValue<Ascii> {
    let mut bearer: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().expect("a token is plain text");
    bearer.set_sensitive(true);
    bearer
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let token = match self {
            Self::Nothing => return Ok(request),
            Self::Fixed(token) => token.clone(),
            Self::Renewed(newest) => shown(newest.borrow().token.secret()),
        };
        request.metadata_mut().insert("authorization", token);
        Ok(request)
    }
}

//! For how long a token that was shown is good: looked at while a stream goes on that was opened with it.

use std::sync::Arc;
use std::time::Duration;

use tonic::Status;

use super::tokens;
use crate::accounts::{AccountToken, Accounts, NotKnown};

/// How often the account behind a stream is asked for again.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How often in a row nobody may be able to tell before the stream ends.
const UNANSWERED: u32 = 60;

/// The use of a token, for as long as it is good.
#[derive(Debug, Clone)]
pub(crate) enum Lease {
    /// One of our own: its end is heard of at once.
    Own(tokens::Lease),
    /// Of an account: its end is heard of soon.
    Account { accounts: Arc<dyn Accounts>, token: AccountToken },
}

impl Lease {
    /// Waits until the token is good no more; says why.
    pub(crate) async fn ended(self) -> Status {
        let (accounts, token) = match self {
            Self::Own(lease) => return lease.ended().await,
            Self::Account { accounts, token } => (accounts, token),
        };
        let mut unanswered = 0;
        loop {
            tokio::time::sleep(ASK_EVERY).await;
            match accounts.rights_of(&token).await {
                Ok(_) => unanswered = 0,
                Err(NotKnown::Unavailable { .. }) if unanswered < UNANSWERED => unanswered += 1,
                Err(why) => return why.into(),
            }
        }
    }
}

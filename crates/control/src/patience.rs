//! How long a caller waits. Nothing is answered before it is durable, so a store that cannot be written keeps callers
//! waiting; they are told so instead, and ask again.

use std::time::Duration;

use hotbay_registry::{CallError, Registry, StoreHealth};
use thiserror::Error;
use tonic::Status;

/// For so long a store may fail before those who wait for it are told. Shorter than a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The store has failed for too long, and why.
#[derive(Debug, Error)]
#[error(
    "not answered yet: the registry cannot write its store now ({0}); what was asked may be done when it can, and \
     asking again is safe"
)]
pub(crate) struct StoreFailing(String);

/// Waits for a call of a registry, but not for a store that goes on failing.
pub(crate) async fn unless_failing<T>(
    registry: &Registry,
    call: impl Future<Output = T>,
) -> Result<T, StoreFailing> {
    tokio::select! {
        answer = call => Ok(answer),
        error = store_goes_on_failing(registry) => Err(StoreFailing(error)),
    }
}

/// The same, for who answers with a status.
pub(crate) async fn patiently<T>(
    registry: &Registry,
    call: impl Future<Output = Result<T, CallError>>,
) -> Result<T, Status> {
    match unless_failing(registry, call).await {
        Ok(answer) => answer.map_err(refusal),
        Err(failing) => Err(Status::unavailable(failing.to_string())),
    }
}

/// Ends when the store has failed for too long, with the reason.
async fn store_goes_on_failing(registry: &Registry) -> String {
    let mut health = registry.store_health();
    let good = |health: &StoreHealth| !matches!(health, StoreHealth::Failing(_));
    loop {
        // `map(drop)`: what is looked at must not be held while waiting.
        if health.wait_for(|health| !good(health)).await.map(drop).is_err() {
            // The registry has stopped, and says so to those who wait.
            return std::future::pending().await;
        }
        let recovers = async { health.wait_for(good).await.map(drop) };
        if tokio::time::timeout(PATIENCE, recovers).await.is_err()
            && let StoreHealth::Failing(error) = &*health.borrow()
        {
            return error.clone();
        }
    }
}

fn refusal(error: CallError) -> Status {
    match error {
        CallError::Refused(refused) => Status::failed_precondition(refused.to_string()),
        CallError::StoreFailing { .. } | CallError::NotDurable { .. } | CallError::Stopped => {
            Status::unavailable(error.to_string())
        }
    }
}

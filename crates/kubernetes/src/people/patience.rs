//! Asking the registry until it answers, and going on where it cannot: one object that the server lets nobody write
//! must not hold up what is said and done about all others. [`crate::living`] asks the same way.

use std::time::Duration;

use hotbay_core::cluster::Notice;
use hotbay_registry::{CallError, Key, Registry};

use crate::store::Objects;

/// How long to wait for a registry that cannot write its store.
const PAUSE: Duration = Duration::from_secs(1);

/// Records that are written again together.
const WRITTEN_TOGETHER: usize = 500;

/// The registry has stopped.
pub(crate) struct Stopped;

/// Asks the registry until it answers: while it cannot write its store, nothing is known. Not for what decides
/// something, see [`decided`].
pub(crate) async fn patiently<T, F: Future<Output = Result<T, CallError>>>(
    call: impl Fn() -> F,
) -> Result<T, Stopped> {
    loop {
        match call().await {
            Ok(answer) => return Ok(answer),
            Err(CallError::Stopped) => return Err(Stopped),
            Err(error) => {
                tracing::debug!("waiting for the registry: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The same for what decides something, or has it written. If that stands in memory and cannot be made durable now, it
/// is written when it can be, and not waited for: then it says why.
pub(crate) async fn decided<T, F: Future<Output = Result<T, CallError>>>(
    call: impl Fn() -> F,
) -> Result<Result<T, String>, Stopped> {
    let call = async || match call().await {
        Err(CallError::NotDurable { error }) => Ok(Err(error)),
        answer => answer.map(Ok),
    };
    patiently(call).await
}

/// Has records written again, with what stands beside them by then, and tells the notices after that. What could not be
/// written before, and is tried again, is not asked for once more.
pub(crate) async fn write_again(
    registry: &Registry,
    objects: &Objects,
    keys: impl IntoIterator<Item = Key>,
    mut notices: Vec<Notice>,
) -> Result<(), Stopped> {
    let keys = objects.ask(keys);
    let mut parts: Vec<_> = keys.chunks(WRITTEN_TOGETHER).collect();
    if parts.is_empty() && !notices.is_empty() {
        parts.push(&[]);
    }
    for keys in parts {
        let told = std::mem::take(&mut notices);
        let written = decided(|| registry.rewrite(keys.to_vec(), told.clone())).await?;
        objects.answered(keys, written.is_ok());
    }
    Ok(())
}

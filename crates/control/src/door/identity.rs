//! The registry's own certificate: short-lived, and exchanged for a new one while connections go on.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rcgen::SanType;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::authority::{Authority, AuthorityError};

/// What the registry shows to whoever dials it.
#[derive(Debug)]
pub(crate) struct Identity {
    current: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    pub(crate) fn new(first: CertifiedKey) -> Self {
        Self { current: RwLock::new(Arc::new(first)) }
    }

    fn current(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn exchange(&self, next: CertifiedKey) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}

/// Exchanges the certificate when two thirds of its life are over, for ever.
pub(crate) async fn keep_fresh(
    identity: Arc<Identity>,
    authority: Arc<Authority>,
    names: Vec<SanType>,
    life: Duration,
    wall_ms: fn() -> u64,
) {
    let mut pause = life * 2 / 3;
    loop {
        tokio::time::sleep(pause).await;
        let made: Result<_, AuthorityError> = authority.certify_registry(&names, wall_ms(), life);
        pause = match made {
            Ok(next) => {
                identity.exchange(next);
                tracing::info!("the registry has a new certificate");
                life * 2 / 3
            }
            Err(error) => {
                tracing::error!("the registry's certificate cannot be renewed: {error}");
                life / 30
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_certificate_is_exchanged_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Arc::new(Authority::load_or_make(dir.path()).unwrap());
        let life = Duration::from_secs(3_600);
        let first = authority.certify_registry(&[], 1_800_000_000_000, life).unwrap();
        let identity = Arc::new(Identity::new(first));
        let first = identity.current();
        let task =
            tokio::spawn(keep_fresh(Arc::clone(&identity), authority, Vec::new(), life, || 0));
        tokio::time::sleep(life * 2 / 3 - Duration::from_secs(1)).await;
        assert!(Arc::ptr_eq(&identity.current(), &first));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!Arc::ptr_eq(&identity.current(), &first));
        task.abort();
    }
}

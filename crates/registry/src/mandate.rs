//! Until when a registry may speak. One that shares its store with others speaks only while its lead is certain:
//! whoever keeps the lead extends the mandate, and the actor looks at it before anything leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Stands for no end.
const FOR_EVER: u64 = u64::MAX;

/// A permission to speak that ends by itself, counted on this process's monotonic clock. Clones share it.
#[derive(Debug, Clone)]
pub struct Mandate {
    origin: Instant,
    /// Microseconds after the origin.
    until: Arc<AtomicU64>,
}

impl Mandate {
    /// For a registry that has its store to itself.
    pub fn without_end() -> Self {
        Self { origin: Instant::now(), until: Arc::new(AtomicU64::new(FOR_EVER)) }
    }

    /// For one that must be told again and again that it still leads.
    pub fn until(end: Instant) -> Self {
        let mandate = Self::without_end();
        mandate.until.store(mandate.after_origin(end), Ordering::Release);
        mandate
    }

    /// A new end. What is over stays over: nobody knows what happened in between.
    pub fn extend(&self, end: Instant) {
        if self.holds() {
            self.until.store(self.after_origin(end), Ordering::Release);
        }
    }

    /// Nothing leaves from now on.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    pub fn holds(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == FOR_EVER || self.after_origin(Instant::now()) < until
    }

    /// How long it still holds; none if it has no end.
    pub fn left(&self) -> Option<Duration> {
        let until = self.until.load(Ordering::Acquire);
        let left = until.saturating_sub(self.after_origin(Instant::now()));
        (until != FOR_EVER).then(|| Duration::from_micros(left))
    }

    fn after_origin(&self, at: Instant) -> u64 {
        let micros = at.saturating_duration_since(self.origin).as_micros();
        u64::try_from(micros).unwrap_or(FOR_EVER).min(FOR_EVER - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mandate_ends_by_itself_and_does_not_come_back() {
        let now = Instant::now();
        let mandate = Mandate::until(now + Duration::from_secs(60));
        assert!(mandate.holds());
        let shared = mandate.clone();
        shared.extend(now);
        assert!(!mandate.holds());
        mandate.extend(now + Duration::from_secs(60));
        assert!(!mandate.holds());
        assert_eq!(mandate.left(), Some(Duration::ZERO));
    }

    #[test]
    fn an_ended_mandate_cannot_be_extended() {
        let mandate = Mandate::until(Instant::now() + Duration::from_secs(60));
        mandate.end();
        mandate.extend(Instant::now() + Duration::from_secs(60));
        assert!(!mandate.holds());
    }

    #[test]
    fn one_without_end_holds() {
        let mandate = Mandate::without_end();
        assert!(mandate.holds());
        assert_eq!(mandate.left(), None);
    }
}

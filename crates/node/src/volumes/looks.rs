//! Looks at the mappings of this machine, shared: every look asks all of its loop devices, and a crowd of calls would
//! spend its time with that. Whoever asks while a look is under way waits for the next one, which serves all who wait.
//! So each caller gets a look that began after it asked, and there is never more than one at a time.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use hotbay_host::mapping::Mapping;
use tokio::sync::OnceCell;

use super::fault::Fault;

/// What a look gave: the mappings, ordered by volume.
type Found = Result<Arc<[Mapping]>, Fault>;

#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The look that has not begun yet, if somebody waits for one.
    next: Mutex<Option<Arc<OnceCell<Found>>>>,
    under_way: tokio::sync::Mutex<()>,
}

impl Looks {
    /// The result of a look that begins after this call, by `look` of this caller or of another. A caller that goes
    /// away while it looks leaves that to one who waits.
    pub(super) async fn together<F>(&self, look: impl FnOnce() -> F) -> Found
    where
        F: Future<Output = Result<Vec<Mapping>, Fault>>,
    {
        let next = Arc::clone(self.next().get_or_insert_default());
        let found = next.get_or_init(|| async {
            let _under_way = self.under_way.lock().await;
            // Whoever comes from here on might ask for what this look does not see any more.
            self.next().take_if(|waiting| Arc::ptr_eq(waiting, &next));
            look().await.map(Arc::from)
        });
        found.await.clone()
    }

    fn next(&self) -> std::sync::MutexGuard<'_, Option<Arc<OnceCell<Found>>>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::Semaphore;

    use super::*;

    /// Counts looks, and keeps each until it is let go.
    struct Machine {
        looks: AtomicUsize,
        let_go: Semaphore,
    }

    async fn look(machine: &Machine) -> Result<Vec<Mapping>, Fault> {
        machine.looks.fetch_add(1, Ordering::SeqCst);
        machine.let_go.acquire().await.unwrap().forget();
        Ok(Vec::new())
    }

    async fn all_wait() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn who_asks_during_a_look_shares_the_next() {
        let machine = Arc::new(Machine { looks: AtomicUsize::new(0), let_go: Semaphore::new(0) });
        let looks = Arc::new(Looks::default());
        let ask = || {
            let (machine, looks) = (Arc::clone(&machine), Arc::clone(&looks));
            tokio::spawn(async move { looks.together(|| look(&machine)).await.map(|_| ()) })
        };
        let first = ask();
        all_wait().await;
        let others: Vec<_> = (0..50).map(|_| ask()).collect();
        all_wait().await;
        assert_eq!(machine.looks.load(Ordering::SeqCst), 1, "one at a time");
        machine.let_go.add_permits(1);
        assert!(first.await.unwrap().is_ok());
        all_wait().await;
        assert_eq!(
            machine.looks.load(Ordering::SeqCst),
            2,
            "a look that began before does not count"
        );
        machine.let_go.add_permits(1);
        for other in others {
            assert!(other.await.unwrap().is_ok());
        }
        assert_eq!(machine.looks.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_leaves_the_look_to_another() {
        let machine = Arc::new(Machine { looks: AtomicUsize::new(0), let_go: Semaphore::new(0) });
        let looks = Arc::new(Looks::default());
        let ask = || {
            let (machine, looks) = (Arc::clone(&machine), Arc::clone(&looks));
            tokio::spawn(async move { looks.together(|| look(&machine)).await.map(|_| ()) })
        };
        let (gone, waits) = (ask(), ask());
        all_wait().await;
        gone.abort();
        all_wait().await;
        machine.let_go.add_permits(1);
        assert!(waits.await.unwrap().is_ok());
        assert_eq!(machine.looks.load(Ordering::SeqCst), 2);
    }
}

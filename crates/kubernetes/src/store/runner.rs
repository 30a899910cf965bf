//! Runs the calls of the store, which block, on a runtime of their own: the registry starts inside of another one, and
//! that must not be blocked on.

use std::sync::mpsc as blocking;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;

/// A thread with a runtime. It ends when this is dropped.
pub(super) struct Runner {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runner {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("store-calls".into()).spawn(move || {
            // Either way the store is gone.
            runtime.block_on(stopped).unwrap_or_default();
        })?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }

    /// For what needs a runtime to be made.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// Runs while its caller does something else.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.handle.spawn(work));
    }

    /// Runs to the end, and gives back what it returns.
    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (done, wait) = blocking::channel();
        self.handle.spawn(async move {
            // The other side waits below.
            done.send(work.await).unwrap_or_default();
        });
        wait.recv().expect("the runtime lives as long as this, and the work does not panic")
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap_or_default();
        }
    }
}

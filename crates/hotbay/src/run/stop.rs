//! When to stop: on Ctrl-C, on SIGTERM, and when the process that started us is gone.

use std::sync::OnceLock;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The process that started this one and restarts it; it says so by this variable.
pub(crate) const SUPERVISOR: &str = "HOTBAY_SUPERVISOR";

/// Ends with the supervisor, if there is one: it may be killed without a word.
pub(crate) fn with_supervisor() -> anyhow::Result<()> {
    let Some(supervisor) = std::env::var(SUPERVISOR).ok().and_then(|pid| pid.parse().ok()) else {
        return Ok(());
    };
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have died before the line above.
    if getppid().map(Pid::as_raw_pid) == Some(supervisor) {
        Ok(())
    } else {
        anyhow::bail!("the process that started this one is gone")
    }
}

/// Waits for the signal to stop. One that came before anybody waited counts as well: from the first call on, no signal
/// is lost between two who wait.
pub(crate) async fn told_to_stop() {
    static TOLD: OnceLock<watch::Receiver<bool>> = OnceLock::new();
    let mut told = TOLD
        .get_or_init(|| {
            let (tell, told) = watch::channel(false);
            tokio::spawn(async move {
                signalled().await;
                tell.send_replace(true);
            });
            told
        })
        .clone();
    if told.wait_for(|told| *told).await.is_err() {
        // Its runtime ends, and everything with it.
        std::future::pending().await
    }
}

async fn signalled() {
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        // Without signals there is only SIGKILL, which needs nobody to wait for it.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

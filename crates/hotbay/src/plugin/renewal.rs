//! A token for as long as the process runs: kubectl makes another one when two thirds of its life are over.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use super::kubectl::{Account, Kubectl, KubectlError, TOKEN_LIFE};
use crate::client::bearer::{Newest, Renewed};

/// After this part of a token's life it is tried again to make another one, if that failed.
const TRIES_IN_A_LIFE: u32 = 60;

/// Makes a token, and begins to renew it.
pub(super) fn begin(kubectl: &Kubectl, account: Account) -> Result<Renewed, KubectlError> {
    let token = kubectl.token(account)?;
    let (newest, renewed) = watch::channel(Newest { token, failed: None });
    let kubectl = kubectl.clone();
    // A thread of its own, which the end of the process does not wait for: kubectl may take its time.
    thread::spawn(move || renew(&kubectl, account, &newest));
    Ok(renewed)
}

/// Does not end: the process does.
fn renew(kubectl: &Kubectl, account: Account, newest: &watch::Sender<Newest>) {
    let life = short_life().unwrap_or(TOKEN_LIFE);
    let mut pause = life * 2 / 3;
    loop {
        thread::sleep(pause);
        pause = match kubectl.token(account) {
            Ok(token) => {
                newest.send_replace(Newest { token, failed: None });
                life * 2 / 3
            }
            Err(why) => {
                // The token that there is may still be good: nothing is begun again.
                newest.send_if_modified(|newest| {
                    newest.failed = Some(Arc::new(why));
                    false
                });
                life / TRIES_IN_A_LIFE
            }
        };
    }
}

/// A life in seconds that tests choose, so that they see a renewal. Only in builds with debug assertions.
fn short_life() -> Option<Duration> {
    let told = std::env::var("HOTBAY_TEST_TOKEN_LIFE").ok().filter(|_| cfg!(debug_assertions));
    told?.parse().ok().map(Duration::from_secs)
}

//! Takes the Lease when that is allowed, and renews it until it cannot or another has it.

use std::time::{Duration, Instant};

use hotbay_control::LeaderAt;
use hotbay_registry::Mandate;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use super::Contender;
use super::object::{all, given_back, held, is_of_a_controller, path, reached, seen};
use super::rule::{Following, Move, Seen, good_until, renewal_pause};
use crate::client::{Answer, CallError, Client};
use crate::store::entry::is_older;

/// The longest pause between two looks at a Lease that another holds: so late is it noticed that it was given back.
const LOOK: Duration = Duration::from_secs(1);
/// The pause after a call that failed.
const AGAIN: Duration = Duration::from_millis(500);

/// What a leader remembers is worth nothing then: the records are older, too.
const WENT_BACK: &str = "the Lease has gone back in time, as after etcd was restored from a backup; the next start \
                         compares the records with what the agents know, and `hotbay registry adopt` shows the \
                         differences";

/// The lead. It is over when the mandate is.
#[derive(Debug)]
pub struct Lead {
    client: Client,
    contender: Contender,
    lease: Value,
    mandate: Mandate,
}

/// Waits until this process leads. Meanwhile `leader` shows where the one is reached that does.
pub async fn contend(
    client: Client,
    contender: Contender,
    leader: &watch::Sender<Option<LeaderAt>>,
) -> Lead {
    let mut following = Following::default();
    let (mut last_error, mut stranger) = (String::new(), String::new());
    loop {
        let attempted = attempt(&client, &contender, &mut following, leader, &mut stranger).await;
        let pause = match attempted {
            Ok(Attempt::Taken { lease, mandate }) => {
                leader.send_replace(Some(contender.reached_at.clone()));
                return Lead { client, contender, lease, mandate };
            }
            Ok(Attempt::Wait(pause)) => {
                last_error.clear();
                pause
            }
            Err(error) => {
                let error = in_words(&error);
                if error != last_error {
                    tracing::warn!(lease = contender.lease, "cannot contend for the lead: {error}");
                    last_error = error;
                }
                AGAIN
            }
        };
        sleep(pause).await;
    }
}

/// A Lease that somebody else holds, a person or another program, is told of once.
fn tell_of_strangers(contender: &Contender, lease: &Value, told: &mut String) {
    let Seen { holder, duration, .. } = seen(lease);
    if holder.is_empty() || is_of_a_controller(lease) || holder == *told {
        return;
    }
    tracing::warn!(
        lease = contender.lease,
        "{holder:?} holds the Lease, and is no controller of Hotbay: nobody leads until it was left alone for {} s. \
         Deleting it ends the wait",
        duration.as_secs()
    );
    *told = holder;
}

enum Attempt {
    Taken { lease: Value, mandate: Mandate },
    Wait(Duration),
}

async fn attempt(
    client: &Client,
    contender: &Contender,
    following: &mut Following,
    leader: &watch::Sender<Option<LeaderAt>>,
    stranger: &mut String,
) -> Result<Attempt, CallError> {
    let there = match client.get(&path(contender)).await? {
        Answer { code: 404, .. } => None,
        answer => Some(answer.done()?),
    };
    // What names our own door is of a process before this one: there is nobody to pass anything on to.
    let now_leads = there.as_ref().and_then(reached).filter(|at| *at != contender.reached_at);
    leader.send_if_modified(|leads| {
        let changed = *leads != now_leads;
        leads.clone_from(&now_leads);
        changed
    });
    match &there {
        Some(lease) => tell_of_strangers(contender, lease, stranger),
        // A stranger leads nobody: when its Lease is gone, nobody is waited for.
        None if following.is_held_by(stranger) => *following = Following::default(),
        None => {}
    }
    let sent = Instant::now();
    let there_seen = there.as_ref().map(seen);
    // We took it, and the answer was lost: no other process has this name.
    let ours = there_seen.as_ref().filter(|seen| seen.holder == contender.identity);
    let next = match ours {
        Some(seen) => Move::Take { version: seen.version.clone() },
        None => following.look(there_seen, sent),
    };
    let answer = match next {
        Move::Wait(left) => return Ok(Attempt::Wait(left.min(LOOK))),
        Move::Make => client.post(&all(contender), &held(contender, None)).await?,
        Move::Take { .. } => client.put(&path(contender), &held(contender, there.as_ref())).await?,
    };
    // Another was quicker.
    if answer.code == 409 {
        return Ok(Attempt::Wait(Duration::ZERO));
    }
    let lease = answer.done()?;
    Ok(Attempt::Taken { lease, mandate: Mandate::until(good_until(sent, contender.duration)) })
}

impl Lead {
    /// What the registry speaks under.
    pub fn mandate(&self) -> Mandate {
        self.mandate.clone()
    }

    /// Renews it for as long as that works, and says why it ended.
    pub async fn keep(&mut self) -> String {
        let mut why = "no renewal in time".to_owned();
        loop {
            let left = self.mandate.left().unwrap_or_default();
            if left.is_zero() {
                return why;
            }
            // A server that hangs must leave time for another try.
            let patience = renewal_pause(self.contender.duration).min(left);
            let renewed = tokio::time::timeout(patience, self.renew()).await;
            let pause = match renewed.unwrap_or(Err(CallError::TimedOut)) {
                Ok(Renewal::Done) => renewal_pause(self.contender.duration),
                Ok(Renewal::Lost { why }) => {
                    self.mandate.end();
                    return why;
                }
                Err(error) => {
                    why = in_words(&error);
                    tracing::warn!("the lead is not renewed, trying again: {why}");
                    AGAIN
                }
            };
            sleep(pause.min(left)).await;
        }
    }

    async fn renew(&mut self) -> Result<Renewal, CallError> {
        let sent = Instant::now();
        let wanted = held(&self.contender, Some(&self.lease));
        let answer = self.client.put(&path(&self.contender), &wanted).await?;
        if answer.code == 409 || answer.code == 404 {
            return match self.look_again().await? {
                Some(why) => Ok(Renewal::Lost { why }),
                // No longer than it was: the next renewal, at once, extends it.
                None => Err(CallError::Contended {
                    object: format!("the Lease {}", self.contender.lease),
                }),
            };
        }
        self.lease = answer.done()?;
        self.mandate.extend(good_until(sent, self.contender.duration));
        Ok(Renewal::Done)
    }

    /// Somebody wrote the Lease: we, with an answer that was lost; or a person, who changed something else in it; or
    /// another holder. Says why the lead is lost, if it is.
    async fn look_again(&mut self) -> Result<Option<String>, CallError> {
        let answer = self.client.get(&path(&self.contender)).await?;
        if answer.code == 404 {
            return Ok(Some("somebody deleted the Lease".to_owned()));
        }
        let there = answer.done()?;
        let (now, before) = (seen(&there), seen(&self.lease));
        if is_older(&now.version, &before.version) {
            return Ok(Some(WENT_BACK.to_owned()));
        }
        if now.holder != self.contender.identity {
            return Ok(Some(match now.holder.as_str() {
                "" => "somebody gave the Lease back".to_owned(),
                holder => format!("{holder} holds the Lease"),
            }));
        }
        self.lease = there;
        Ok(None)
    }

    /// Gives the lead back, so that the next one need not wait. Nothing is said any more.
    pub async fn give_back(mut self) {
        self.mandate.end();
        let mut given = self.free().await;
        // A renewal came between, whose answer was not waited for.
        if matches!(given, Err(CallError::Failed { code: 409, .. }))
            && matches!(self.look_again().await, Ok(None))
        {
            given = self.free().await;
        }
        match given {
            Ok(_) => tracing::info!("the lead is given back"),
            Err(error) => tracing::warn!("the lead is not given back: {}", in_words(&error)),
        }
    }

    async fn free(&self) -> Result<Value, CallError> {
        let free = given_back(&self.contender, &self.lease);
        self.client.put(&path(&self.contender), &free).await.and_then(Answer::done)
    }
}

enum Renewal {
    Done,
    Lost { why: String },
}

/// The error with what is under it.
fn in_words(error: &CallError) -> String {
    let mut words = error.to_string();
    let mut under = std::error::Error::source(error);
    while let Some(error) = under {
        words = format!("{words}: {error}");
        under = error.source();
    }
    words
}

#[cfg(test)]
#[path = "hold_tests.rs"]
mod tests;

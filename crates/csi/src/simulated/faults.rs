//! What goes wrong in a simulated platform, and how long it takes: set per call, from outside, at any time.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::platform::{Failure, FailureKind};

/// The calls of both halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    Create,
    Delete,
    Expand,
    Attach,
    Detach,
    Volume,
    Volumes,
    Capacity,
    NodeExists,
    Stage,
    Unstage,
    Publish,
    Unpublish,
    Stats,
    ExpandOnNode,
    Info,
}

/// Whether a call that fails has done its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It fails and has changed nothing.
    Before,
    /// It has done all it was asked for, and its answer is lost.
    After,
}

/// A failure to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub kind: FailureKind,
    pub when: When,
    /// For so many calls.
    pub times: u32,
}

/// The plan for each call; a call without one works at once.
#[derive(Debug, Default)]
pub struct Faults {
    plans: Mutex<HashMap<Call, Plan>>,
}

#[derive(Debug, Default)]
struct Plan {
    latency: Duration,
    fault: Option<Fault>,
    hold: Option<Arc<Gate>>,
}

/// Where calls wait.
struct Gate {
    arrived: Semaphore,
    /// Closed: opened.
    open: Semaphore,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("open", &self.open.is_closed()).finish_non_exhaustive()
    }
}

/// Holds calls back until it is dropped.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
}

impl Hold {
    /// Waits until one more call is held.
    pub async fn arrived(&self) {
        if let Ok(arrival) = self.gate.arrived.acquire().await {
            arrival.forget();
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.gate.open.close();
    }
}

impl Faults {
    /// Every such call takes so long, from now on.
    pub fn set_latency(&self, call: Call, latency: Duration) {
        self.lock().entry(call).or_default().latency = latency;
    }

    /// The next such calls fail.
    pub fn fail(&self, call: Call, fault: Fault) {
        self.lock().entry(call).or_default().fault = Some(fault);
    }

    /// Such calls wait, before they have done anything, until what is returned is dropped.
    pub fn hold(&self, call: Call) -> Hold {
        let gate = Arc::new(Gate { arrived: Semaphore::new(0), open: Semaphore::new(0) });
        self.lock().entry(call).or_default().hold = Some(Arc::clone(&gate));
        Hold { gate }
    }

    /// Carries a call out by its plan.
    pub(super) async fn perform<T>(
        &self,
        call: Call,
        effect: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (latency, fault, hold) = self.take(call);
        if let Some(gate) = hold {
            gate.arrived.add_permits(1);
            // Fails when the gate is opened, which is what is waited for.
            drop(gate.open.acquire().await);
        }
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        let Some(fault) = fault else { return effect() };
        if fault.when == When::After {
            effect()?;
        }
        let message = format!("{call:?} was told to fail {:?} its effect", fault.when);
        Err(Failure::new(fault.kind, message))
    }

    fn take(&self, call: Call) -> (Duration, Option<Fault>, Option<Arc<Gate>>) {
        let mut plans = self.lock();
        let Some(plan) = plans.get_mut(&call) else { return Default::default() };
        let fault = plan.fault.filter(|fault| fault.times > 0);
        plan.fault = fault.map(|fault| Fault { times: fault.times - 1, ..fault });
        plan.hold = plan.hold.take().filter(|gate| !gate.open.is_closed());
        (plan.latency, fault, plan.hold.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Call, Plan>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn faults_come_before_or_after_the_effect_and_so_often() {
        let faults = Faults::default();
        let mut effects = 0;
        for (when, expected) in [(When::Before, 0), (When::After, 2)] {
            faults.fail(Call::Create, Fault { kind: FailureKind::Unavailable, when, times: 2 });
            effects = 0;
            for _ in 0..2 {
                let failed = faults.perform(Call::Create, || {
                    effects += 1;
                    Ok(())
                });
                assert_eq!(failed.await.unwrap_err().kind, FailureKind::Unavailable);
            }
            assert_eq!(effects, expected);
            faults.perform(Call::Create, || Ok(())).await.unwrap();
        }
        assert_eq!(effects, 2);
    }

    #[tokio::test]
    async fn held_calls_wait_and_others_do_not() {
        let faults = Arc::new(Faults::default());
        let hold = faults.hold(Call::Stage);
        let held = tokio::spawn({
            let faults = Arc::clone(&faults);
            async move { faults.perform(Call::Stage, || Ok(())).await }
        });
        hold.arrived().await;
        faults.perform(Call::Publish, || Ok(())).await.unwrap();
        assert!(!held.is_finished());
        drop(hold);
        held.await.unwrap().unwrap();
        faults.perform(Call::Stage, || Ok(())).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn latency_is_taken() {
        let faults = Faults::default();
        faults.set_latency(Call::Info, Duration::from_secs(5));
        let start = tokio::time::Instant::now();
        faults.perform(Call::Info, || Ok(())).await.unwrap();
        assert_eq!(start.elapsed(), Duration::from_secs(5));
    }
}

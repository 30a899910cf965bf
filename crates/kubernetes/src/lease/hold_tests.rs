//! Who takes a Lease, and gives it back, where answers are lost: on a server that has nothing else.

use std::sync::{Arc, Mutex};

use http::{Method, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use serde_json::json;

use super::{
    Attempt, Client, Contender, Duration, Following, LOOK, Lead, LeaderAt, Value, attempt, contend,
    held, seen, watch,
};
use crate::client::{Call, Sending, Transport};

/// The one Lease, and which of the writes to come are done without an answer.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Value>,
    version: u64,
    unanswered: bool,
}

impl Shelf {
    fn holds(&self, lease: Value) {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let version = state.version.to_string();
        let lease = state.lease.insert(lease);
        lease["metadata"]["resourceVersion"] = json!(version);
    }

    fn lease(&self) -> Value {
        self.0.lock().unwrap().lease.clone().unwrap()
    }

    /// The next write is done, and nobody hears of it.
    fn lose_an_answer(&self) {
        self.0.lock().unwrap().unanswered = true;
    }

    fn answer(&self, method: &Method, body: Value) -> Option<(u16, Value)> {
        let there = self.0.lock().unwrap().lease.clone();
        if method == Method::GET {
            return Some(there.map_or((404, Value::Null), |lease| (200, lease)));
        }
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        if there.is_some_and(|lease| version(&lease) != version(&body)) {
            return Some((409, json!({ "message": "another was quicker" })));
        }
        self.holds(body);
        let unanswered = std::mem::take(&mut self.0.lock().unwrap().unanswered);
        (!unanswered).then(|| (200, self.lease()))
    }
}

impl Transport for Shelf {
    fn send(&self, call: Call) -> Sending {
        let shelf = self.clone();
        Box::pin(async move {
            let method = call.method().clone();
            let body = call.into_body().collect().await?.to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = shelf.answer(&method, body).ok_or("the answer is lost")?;
            let body = Full::new(Bytes::from(answer.to_string()));
            let mut reply = Response::new(body.map_err(|never| match never {}).boxed_unsync());
            *reply.status_mut() = StatusCode::from_u16(code)?;
            Ok(reply)
        })
    }
}

fn contender(identity: &str) -> Contender {
    Contender {
        namespace: "hotbay".into(),
        lease: "hotbay-controller".into(),
        identity: identity.into(),
        reached_at: LeaderAt { agents: "10.0.0.1:7443".into(), clients: "10.0.0.1:7444".into() },
        duration: Duration::from_secs(15),
        wall_ms: || 1_800_000_000_123,
    }
}

async fn take(shelf: &Shelf, identity: &str) -> Lead {
    let (leader, _) = watch::channel(None);
    contend(Client::over(shelf.clone()), contender(identity), &leader).await
}

/// The story: a leader was killed, and started again in the same pod, at the same address. The Lease still named that
/// address, so the new process passed what came on to itself, again and again, until its door was full for good.
#[tokio::test]
async fn a_lease_of_an_earlier_process_at_this_address_leads_nowhere() {
    let shelf = Shelf::default();
    shelf.holds(held(&contender("pod-1_a"), None));
    let (leader, leads) = watch::channel(None);
    let mut other = contender("pod-2_a");
    other.reached_at.clients = "10.0.0.2:7444".into();
    for (contender, found) in [(contender("pod-1_b"), false), (other, true)] {
        let (client, mut following) = (Client::over(shelf.clone()), Following::default());
        let stranger = &mut String::new();
        let looked = attempt(&client, &contender, &mut following, &leader, stranger).await;
        assert!(matches!(looked, Ok(Attempt::Wait(_))));
        assert_eq!(leads.borrow().is_some(), found, "{}", contender.identity);
    }
}

/// The story: the answer to the call that took the Lease was lost, and the process waited for itself.
#[tokio::test(start_paused = true)]
async fn who_has_taken_it_without_hearing_so_leads() {
    let shelf = Shelf::default();
    shelf.lose_an_answer();
    let began = tokio::time::Instant::now();
    let lead = take(&shelf, "pod-1_a").await;
    assert!(began.elapsed() <= LOOK, "{:?}", began.elapsed());
    assert!(lead.mandate().holds());
    assert_eq!(seen(&shelf.lease()).holder, "pod-1_a");
}

/// The story: a leader was told to stop while it renewed. It gave back what it had before that, which is refused, and
/// the next one waited for the whole lease.
#[tokio::test]
async fn what_is_given_back_is_free_also_after_a_renewal_that_was_not_heard() {
    let shelf = Shelf::default();
    let mut lead = take(&shelf, "pod-1_a").await;
    shelf.lose_an_answer();
    assert!(lead.renew().await.is_err());
    lead.give_back().await;
    assert_eq!(seen(&shelf.lease()).holder, "");
    assert!(take(&shelf, "pod-2_a").await.mandate().holds());
}

/// Somebody else's Lease stays theirs.
#[tokio::test]
async fn what_another_has_taken_is_not_given_back() {
    let shelf = Shelf::default();
    let lead = take(&shelf, "pod-1_a").await;
    shelf.holds(held(&contender("pod-2_a"), Some(&shelf.lease())));
    lead.give_back().await;
    assert_eq!(seen(&shelf.lease()).holder, "pod-2_a");
}

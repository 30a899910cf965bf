//! Calls that go wrong: where, and how.

use std::sync::{Arc, Mutex};

use hotbay_kubernetes::client::{Call, Client, Reply, Sending, Transport, TransportError};
use http::{Method, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tokio::sync::watch;

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never reaches the server.
    RequestLost,
    /// It is done, and nobody hears of it.
    AnswerLost,
    /// The server answers this, and does nothing.
    Refused(u16),
    /// The server has too much to do, and asks to wait for so many seconds.
    Busy(u64),
    /// It is done, and the server says that it failed.
    DoneAndFailed,
    /// From here on every call is refused, as to one that has lost its rights: the end of a process, as far as the
    /// server can tell.
    Cut,
}

#[derive(Clone, Default)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
    /// Whether a fault was met.
    met: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct State {
    calls: usize,
    writes: usize,
    /// Those that have no answer yet.
    writing: usize,
    /// The addresses of all that was read.
    reads: Vec<String>,
    planned: Option<(usize, Fault)>,
    /// Those that wait for calls to certain addresses.
    on: Vec<Waiting>,
    /// The process ends after so many writes.
    cut_after: Option<usize>,
}

/// The next so many calls of a method, with this in their address, meet a fault.
struct Waiting {
    method: Method,
    address: &'static str,
    left: usize,
    fault: Fault,
}

impl Faults {
    /// From now on so many calls of that method, to an address that has this in it, meet a fault.
    pub(crate) fn on(&self, method: Method, address: &'static str, left: usize, fault: Fault) {
        self.state.lock().unwrap().on.push(Waiting { method, address, left, fault });
    }

    /// From now on nothing goes wrong.
    pub(crate) fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        state.on.clear();
        state.planned = None;
    }

    /// One fault, at the call of that number; the first is 0.
    pub(crate) fn at(call: usize, fault: Fault) -> Self {
        let state = State { planned: Some((call, fault)), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), ..Self::default() }
    }

    /// The process ends after so many writes.
    pub(crate) fn cut_after_writes(writes: usize) -> Self {
        let state = State { cut_after: Some(writes), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), ..Self::default() }
    }

    /// The process ends now.
    pub(crate) fn cut(&self) {
        self.state.lock().unwrap().planned = Some((0, Fault::Cut));
    }

    /// The calls that were made.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }

    /// Those of them that change something.
    pub(crate) fn writes(&self) -> usize {
        self.state.lock().unwrap().writes
    }

    /// How many of them are under way.
    pub(crate) fn writing(&self) -> usize {
        self.state.lock().unwrap().writing
    }

    /// How often an address with this in it was read.
    pub(crate) fn reads(&self, address: &str) -> usize {
        self.state.lock().unwrap().reads.iter().filter(|read| read.contains(address)).count()
    }

    pub(crate) fn was_met(&self) -> bool {
        *self.met.borrow()
    }

    /// Waits until a fault was met.
    pub(crate) async fn meet(&self) {
        let mut met = self.met.subscribe();
        met.wait_for(|met| *met).await.unwrap();
    }

    fn next(&self, call: &Call) -> Option<Fault> {
        let method = call.method();
        let mut state = self.state.lock().unwrap();
        let number = state.calls;
        state.calls += 1;
        let address = call.uri().to_string();
        match *method == Method::GET {
            true => state.reads.push(address.clone()),
            false => {
                state.writes += 1;
                state.writing += 1;
            }
        }
        if state.cut_after.is_some_and(|most| state.writes > most) {
            self.met.send_replace(true);
            return Some(Fault::Cut);
        }
        let waits = |on: &&mut Waiting| on.left > 0 && on.method == method;
        let mut waiting = state.on.iter_mut().filter(waits);
        if let Some(on) = waiting.find(|on| address.contains(on.address)) {
            on.left -= 1;
            self.met.send_replace(true);
            return Some(on.fault);
        }
        let (at, fault) = state.planned?;
        let meets = number == at || (fault == Fault::Cut && number > at);
        if meets {
            self.met.send_replace(true);
        }
        meets.then_some(fault)
    }

    /// A client that meets the faults before it reaches another.
    pub(crate) fn before(&self, client: Client) -> Client {
        Client::over(Faulty { faults: self.clone(), client })
    }
}

struct Faulty {
    faults: Faults,
    client: Client,
}

impl Transport for Faulty {
    fn send(&self, call: Call) -> Sending {
        let fault = self.faults.next(&call);
        let is_write = call.method() != Method::GET;
        let under_way = is_write.then(|| UnderWay(Arc::clone(&self.faults.state)));
        let answer = answer(self.client.clone(), call, fault);
        Box::pin(async move {
            let _until_answered = under_way;
            answer.await
        })
    }
}

/// A write that has no answer yet. Its caller may give it up.
struct UnderWay(Arc<Mutex<State>>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.lock().unwrap().writing -= 1;
    }
}

async fn answer(
    client: Client,
    request: Call,
    fault: Option<Fault>,
) -> Result<Reply, TransportError> {
    match fault {
        None => Ok(client.send(request).await?),
        Some(Fault::RequestLost) => Err("the request was lost, as was asked for".into()),
        Some(Fault::AnswerLost) => {
            client.send(request).await?;
            Err("the answer was lost, as was asked for".into())
        }
        Some(Fault::DoneAndFailed) => {
            client.send(request).await?;
            Ok(forged(504))
        }
        Some(Fault::Refused(code)) => Ok(forged(code)),
        Some(Fault::Busy(seconds)) => {
            let mut busy = forged(429);
            busy.headers_mut().insert("retry-after", seconds.into());
            Ok(busy)
        }
        Some(Fault::Cut) => Ok(forged(403)),
    }
}

fn forged(code: u16) -> Reply {
    reply(code, &json!({ "kind": "Status", "message": "as was asked for" }))
}

/// An answer as a server would send it.
pub(crate) fn reply(code: u16, body: &Value) -> Reply {
    let body = Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).header("retry-after", "0").body(body).unwrap()
}

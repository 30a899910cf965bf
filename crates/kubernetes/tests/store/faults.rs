//! Calls that go wrong: where, and how.

use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use kube_client::Client;
use kube_client::client::Body;
use serde_json::json;

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It never reaches the server.
    RequestLost,
    /// It is done, and nobody hears of it.
    AnswerLost,
    /// The server answers this, and does nothing.
    Refused(u16),
    /// It is done, and the server says that it failed.
    DoneAndFailed,
    /// From here on every call is refused, as to one that has lost its rights: the end of a process, as far as the
    /// server can tell.
    Cut,
}

#[derive(Clone, Default)]
pub(crate) struct Faults {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    calls: usize,
    writes: usize,
    planned: Option<(usize, Fault)>,
    was_met: bool,
}

impl Faults {
    /// One fault, at the call of that number; the first is 0.
    pub(crate) fn at(call: usize, fault: Fault) -> Self {
        let state = State { planned: Some((call, fault)), ..State::default() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// The calls that were made.
    pub(crate) fn calls(&self) -> usize {
        self.state.lock().unwrap().calls
    }

    /// Those of them that change something.
    pub(crate) fn writes(&self) -> usize {
        self.state.lock().unwrap().writes
    }

    pub(crate) fn was_met(&self) -> bool {
        self.state.lock().unwrap().was_met
    }

    fn next(&self, method: &Method) -> Option<Fault> {
        let mut state = self.state.lock().unwrap();
        let number = state.calls;
        state.calls += 1;
        if method != Method::GET {
            state.writes += 1;
        }
        let (at, fault) = state.planned?;
        let meets = number == at || (fault == Fault::Cut && number > at);
        state.was_met |= meets;
        meets.then_some(fault)
    }

    /// A client that meets the faults before it reaches another.
    pub(crate) fn before(&self, client: Client) -> Client {
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, fault) = (client.clone(), faults.next(request.method()));
            async move { answer(client, request, fault).await }
        });
        Client::new(service, "default")
    }
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn answer(
    client: Client,
    request: Request<Body>,
    fault: Option<Fault>,
) -> Result<Response<Body>, Failure> {
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
        Some(Fault::Cut) => Ok(forged(403)),
    }
}

fn forged(code: u16) -> Response<Body> {
    let body = json!({ "kind": "Status", "message": "as was asked for" }).to_string();
    let answer = Response::builder().status(code).header("retry-after", "0");
    answer.body(Body::from(body.into_bytes())).unwrap()
}

//! The controller in this process with both of its sockets, and a real HTTP client.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use hotbay_core::cluster::AutoAddRule;
use hotbay_core::device::{Details, Partition, Transport};
use hotbay_core::filter::{FilterVerdict, RuleTold};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_core::message::AnswerResult;
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};

use crate::fake_agent::{FakeAgent, device, in_time, registration};

pub(crate) struct Rig {
    pub(crate) store: MemoryStore,
    dir: tempfile::TempDir,
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn content_type(&self) -> &str {
        self.headers["content-type"].to_str().unwrap()
    }

    /// The code and the words of an error, which has the one shape.
    pub(crate) fn error(&self) -> (String, String) {
        let error = self.json()["error"].take();
        let text = |field: &str| error[field].as_str().unwrap().to_owned();
        assert!(!text("nextStep").is_empty(), "{self:?}");
        (text("code"), text("message"))
    }
}

fn fresh() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64
}

impl Rig {
    pub(crate) fn start() -> Self {
        let (store, dir) = (MemoryStore::new(), tempfile::tempdir().unwrap());
        // One that adds nothing here, but has something to say of every drive.
        let rule = json!({ "name": "elsewhere", "node": "elsewhere-*" });
        let rule: AutoAddRule = serde_json::from_value(rule).unwrap();
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: [rule].into_iter().collect(),
        };
        let (registry, _ended) = Registry::start(store.clone(), surroundings).unwrap();
        let this = Self { store, dir };
        let http = UnixListener::bind(this.http()).unwrap();
        tokio::spawn(hotbay_control::serve_http(registry.clone(), http, fresh));
        let api = UnixListener::bind(this.api()).unwrap();
        let serving = hotbay_control::serve(registry, api, fresh, std::future::pending());
        tokio::spawn(async move { serving.await.unwrap() });
        this
    }

    pub(crate) fn api(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    pub(crate) fn http(&self) -> PathBuf {
        self.dir.path().join("http.sock")
    }

    /// An agent with two drives, S1 and S2, of which the second has a filesystem on it.
    pub(crate) async fn join(&self) -> FakeAgent {
        let mut registration = registration("node-a", 1, &["S1"]);
        let mut foreign = device(1, "S2");
        foreign.denied.push(hotbay_core::device::Denied::Filesystem { kind: "ext4".to_owned() });
        *foreign.details = everything();
        registration.devices.push(foreign);
        FakeAgent::join(&self.api(), registration).await.0
    }

    pub(crate) async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.http()).await.unwrap()
    }

    /// Sends a request over a connection of its own.
    pub(crate) async fn open(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let connecting = handshake(TokioIo::new(self.connect().await));
        let (mut sender, connection): (SendRequest<Full<Bytes>>, _) = connecting.await.unwrap();
        tokio::spawn(connection);
        in_time("the head of an answer", sender.send_request(request)).await.unwrap()
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        let request = Request::builder().method(method).uri(path).header("host", "hotbay");
        let response = self.open(request.body(Full::new(body.into())).unwrap()).await;
        let (head, body) = response.into_parts();
        let bytes = in_time("an answer", body.collect()).await.unwrap().to_bytes();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Answer { status: head.status, headers: head.headers, text }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "").await
    }

    pub(crate) async fn post(&self, body: &Value) -> Answer {
        self.send("POST", "/v1/actions", body.to_string()).await
    }

    /// One action on a device, which has a result.
    pub(crate) async fn act(&self, kind: &str, device: &str) -> Value {
        let answer = self.post(&json!({ "actions": [{ "type": kind, "device": device }] })).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.json()["results"][0].take()
    }

    /// Adds S1 and lets the agent attach it.
    pub(crate) async fn attach(&self, agent: &mut FakeAgent) {
        assert_eq!(self.act("ADD_DEVICE", "S1").await["result"], "S_OK");
        let order = agent.order().await;
        agent.answer(&order, AnswerResult::Done).await;
        agent.settle(vec![device(0, "S1")]).await;
    }
}

/// Every property that a device can have.
fn everything() -> Details {
    let texts = |text: &str| vec![text.to_owned()];
    let told = |number| RuleTold { number, name: None, text: "include = {}".to_owned() };
    Details {
        vendor: Some("ACME".to_owned()),
        firmware: Some("1.0".to_owned()),
        transport: Transport::Sas,
        enclosure: Some("5001438024c4e8bd".to_owned()),
        physical_block_bytes: 4096,
        read_only: true,
        removable: true,
        zoned: true,
        links: texts("wwn-0x5000c500a1b2c3d4"),
        contents: Some("ext4".to_owned()),
        partitions: vec![Partition { name: "sdb1".to_owned(), size_bytes: 1 << 20 }],
        mounts: texts("/mnt"),
        holders: texts("dm-0"),
        filter: Some(Box::new(FilterVerdict {
            included: true,
            rule: Some(told(2)),
            not_included_by: vec![told(1), told(3)],
        })),
    }
}

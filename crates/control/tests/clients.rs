//! Clients on other machines, at the wire: what each call and route needs, that nothing is reached without it, that a
//! token which ends is felt at once, and that whoever misbehaves keeps nobody else waiting.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod client_door;
mod fake_agent;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client_door::{Rig, ended, real_ms, request};
use fake_agent::{FakeAgent, in_time, registration};
use hotbay_api::PROTOCOL;
use hotbay_api::access::May;
use hotbay_api::cms::{
    ActRequest, Action, ActionType, AdoptRequest, Event, EventsRequest, ListRequest,
};
use http_body_util::BodyExt;
use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DAY: Duration = Duration::from_secs(24 * 3_600);
const OK: u16 = 0;
const PERMISSION_DENIED: u16 = 7;
/// What an empty message is answered with by whoever looks at it: it speaks no protocol.
const FAILED_PRECONDITION: u16 = 9;
const UNIMPLEMENTED: u16 = 12;
const UNAUTHENTICATED: u16 = 16;

/// What a call needs, and for one that may or may not change something, the request that does.
enum Needs {
    Read,
    Write,
    WriteToChange(Vec<u8>),
    /// Not even a token that may write is enough: it is for agents.
    NotHere,
}

fn act(dry_run: bool, kind: ActionType) -> Vec<u8> {
    let action = Action { r#type: kind.into(), device: "S1".to_owned(), ..Action::default() };
    ActRequest { protocol: PROTOCOL, actions: vec![action], dry_run }.encode_to_vec()
}

fn adopt(confirmed: bool) -> Vec<u8> {
    AdoptRequest { protocol: PROTOCOL, confirmed }.encode_to_vec()
}

/// Every call of every service. A new one has to be added here.
fn needs() -> Vec<(String, Needs)> {
    // CSI is spoken on sockets of its own.
    let csi = described_calls().into_iter().filter(|path| path.starts_with("/csi."));
    let csi = csi.map(|path| (path, Needs::NotHere));
    let ours = [
        ("/hotbay.access.v1.Access/CreateToken", Needs::Write),
        ("/hotbay.access.v1.Access/GetAuthority", Needs::Read),
        ("/hotbay.access.v1.Access/ListTokens", Needs::Read),
        ("/hotbay.access.v1.Access/RevokeToken", Needs::Write),
        ("/hotbay.agent.v1.Agents/Session", Needs::NotHere),
        ("/hotbay.cms.v1.Cms/Act", Needs::WriteToChange(act(false, ActionType::AddDevice))),
        ("/hotbay.cms.v1.Repair/Adopt", Needs::WriteToChange(adopt(true))),
        ("/hotbay.cms.v1.View/Events", Needs::Read),
        ("/hotbay.cms.v1.View/List", Needs::Read),
        ("/hotbay.cms.v1.View/Watch", Needs::Read),
        ("/hotbay.join.v1.Joining/Join", Needs::NotHere),
        ("/hotbay.join.v1.Joining/Renew", Needs::NotHere),
        ("/hotbay.join.v1.Tokens/Create", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Annotate", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Attach", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Create", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Delete", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Detach", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Expand", Needs::Write),
        ("/hotbay.volumes.v1.Volumes/Explain", Needs::Read),
    ];
    csi.chain(ours.map(|(path, needs)| (path.to_owned(), needs))).collect()
}

/// The path of every call that is described anywhere.
fn described_calls() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../api/proto");
    let mut calls = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let (mut package, mut service) = ("", "");
        for line in text.lines().map(str::trim) {
            let words: Vec<_> = line.split([' ', ';', '(']).collect();
            match words[..] {
                ["package", name, ..] => package = name,
                ["service", name, ..] => service = name,
                ["rpc", name, ..] => drop(calls.insert(format!("/{package}.{service}/{name}"))),
                _ => {}
            }
        }
    }
    calls
}

#[tokio::test]
async fn every_call_needs_its_right() {
    let rig = Rig::start(real_ms).await;
    let read = rig.token("reader", May::Read, DAY).await;
    let write = rig.token("writer", May::Write, DAY).await;
    let stranger = Rig::start(real_ms).await.token("reader", May::Write, DAY).await;
    let known: BTreeSet<_> = needs().into_iter().map(|(path, _)| path).collect();
    assert_eq!(
        known,
        described_calls(),
        "a call without a stated right, or a right without a call"
    );
    let mut calls = rig.http2(rig.clients).await;
    for (path, needs) in needs() {
        let path = path.as_str();
        for token in [None, Some(stranger.as_str()), Some("root"), Some("")] {
            let (status, words) = calls.call(path, token, &[]).await;
            assert_eq!(status, UNAUTHENTICATED, "{path} with {token:?}: {words}");
        }
        let with_read = calls.call(path, Some(&read), &[]).await.0;
        let with_write = calls.call(path, Some(&write), &[]).await.0;
        let expected = match needs {
            Needs::Read => (FAILED_PRECONDITION, FAILED_PRECONDITION),
            Needs::Write => (PERMISSION_DENIED, FAILED_PRECONDITION),
            Needs::WriteToChange(change) => {
                let (status, words) = calls.call(path, Some(&read), &change).await;
                assert_eq!(status, PERMISSION_DENIED, "{path}");
                assert!(words.contains("reader may only read"), "{words}");
                assert_eq!(calls.call(path, Some(&write), &change).await.0, OK, "{path}");
                (FAILED_PRECONDITION, FAILED_PRECONDITION)
            }
            Needs::NotHere => (UNIMPLEMENTED, UNIMPLEMENTED),
        };
        assert_eq!((with_read, with_write), expected, "{path}");
    }
    // Whoever may only read may ask what would happen, and what there is.
    for message in [act(true, ActionType::AddDevice), act(false, ActionType::GetDependentVolumes)] {
        assert_eq!(calls.call("/hotbay.cms.v1.Cms/Act", Some(&read), &message).await.0, OK);
    }
    assert_eq!(calls.call("/hotbay.cms.v1.Repair/Adopt", Some(&read), &adopt(false)).await.0, OK);
}

#[tokio::test]
async fn nothing_of_the_clients_is_behind_the_agents_door() {
    let rig = Rig::start(real_ms).await;
    let write = rig.token("writer", May::Write, DAY).await;
    let mut calls = rig.http2(rig.agents).await;
    let of_clients = |(_, needs): &(String, Needs)| !matches!(needs, Needs::NotHere);
    for (path, _) in needs().into_iter().filter(of_clients) {
        let status = calls.call(&path, Some(&write), &[]).await.0;
        assert_eq!(status, UNIMPLEMENTED, "{path}");
    }
}

#[tokio::test]
async fn every_route_needs_its_right() {
    let rig = Rig::start(real_ms).await;
    let read = rig.token("reader", May::Read, DAY).await;
    let write = rig.token("writer", May::Write, DAY).await;
    let (status, document) = rig.ask("GET", "/v1/openapi.json", Some(&read), "").await;
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&document).unwrap();
    // Every route, and what it answers to nobody, to a reader and to a writer. A new one has to be added here.
    let change = json!({ "actions": [{ "type": "ADD_DEVICE", "device": "S1" }] }).to_string();
    let confirm = r#"{"confirmed":true}"#;
    let routes = [
        ("GET", "/healthz", "", [200, 200, 200]),
        ("GET", "/metrics", "", [401, 200, 200]),
        ("GET", "/readyz", "", [200, 200, 200]),
        ("POST", "/v1/actions", change.as_str(), [401, 403, 200]),
        ("GET", "/v1/adopt", "", [401, 200, 200]),
        ("POST", "/v1/adopt", confirm, [401, 403, 200]),
        ("GET", "/v1/events", "", [401, 200, 200]),
        ("GET", "/v1/drives", "", [401, 200, 200]),
        ("GET", "/v1/drives/{name}", "", [401, 404, 404]),
        ("GET", "/v1/nodes", "", [401, 200, 200]),
        ("GET", "/v1/nodes/{name}", "", [401, 404, 404]),
        ("GET", "/v1/openapi.json", "", [401, 200, 200]),
        ("GET", "/v1/volumes", "", [401, 200, 200]),
        ("POST", "/v1/volumes", "{}", [401, 403, 400]),
        ("GET", "/v1/volumes/{name}", "", [401, 404, 404]),
        ("DELETE", "/v1/volumes/{name}", "", [401, 403, 404]),
        ("POST", "/v1/volumes/{name}/expand", "{}", [401, 403, 400]),
    ];
    let known: BTreeSet<_> = routes.iter().map(|(_, path, ..)| (*path).to_owned()).collect();
    let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(known, described, "a route without a stated right");
    let others = [
        ("HEAD", "/v1/drives", "", [401, 200, 200]),
        ("GET", "/v1/drives?watch=maybe", "", [401, 400, 400]),
        ("GET", "/v2", "", [401, 404, 404]),
        ("DELETE", "/v1/drives", "", [401, 405, 405]),
        ("PUT", "/healthz", "", [401, 405, 405]),
    ];
    for (method, path, body, expected) in routes.into_iter().chain(others) {
        let path = path.replace("{name}", "S1");
        for (token, expected) in [None, Some(&read), Some(&write)].into_iter().zip(expected) {
            let token = token.map(String::as_str);
            let (status, text) = rig.ask(method, &path, token, body).await;
            assert_eq!(status, expected, "{method} {path}: {text}");
        }
    }
    let dry_run = json!({ "actions": [{ "type": "ADD_DEVICE", "device": "S1" }], "dryRun": true });
    let actions = "/v1/actions";
    assert_eq!(rig.ask("POST", actions, Some(&read), &dry_run.to_string()).await.0, 200);
    let (_, refused) = rig.ask("POST", actions, Some(&read), &change).await;
    let refused: Value = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["error"]["code"], "E_FORBIDDEN");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("reader may only read"), "{message}");
    assert!(message.contains("needs the right to write"), "{message}");
    // What is not a token at all, or nobody's, is refused in the same way and not repeated.
    for wrong in ["root", "hotbay-client-1.aa", &read.replace("hotbay-client-1", "hotbay-join-1")] {
        let (status, text) = rig.ask("GET", "/v1/drives", Some(wrong), "").await;
        assert_eq!(status, 401);
        assert!(text.contains("E_UNAUTHENTICATED") && !text.contains(wrong), "{text}");
    }
}

#[tokio::test]
async fn what_a_token_asks_for_is_recorded_with_its_name() {
    let rig = Rig::start(real_ms).await;
    let write = rig.token("night-shift", May::Write, DAY).await;
    let (mut agent, _) = FakeAgent::join(&rig.socket(), registration("node-a", 1, &["S1"])).await;
    let mut calls = rig.http2(rig.clients).await;
    let path = "/hotbay.cms.v1.Cms/Act";
    assert_eq!(calls.call(path, Some(&write), &act(false, ActionType::AddDevice)).await.0, OK);
    agent.order().await;
    let (_, drive) = rig.ask("GET", "/v1/drives/S1", Some(&write), "").await;
    let drive: Value = serde_json::from_str(&drive).unwrap();
    assert_eq!(drive["status"]["askedBy"], "token night-shift (127.0.0.1)");
    let message = EventsRequest { protocol: PROTOCOL, follow: false }.encode_to_vec();
    let events = calls.begin("/hotbay.cms.v1.View/Events", Some(&write), &message).await;
    let events = in_time("the events", events.into_body().collect()).await.unwrap().to_bytes();
    let mut frames = &events[..];
    let mut texts = Vec::new();
    while let Some((head, rest)) = frames.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        texts.push(Event::decode(&rest[..length]).unwrap().text);
        frames = &rest[length..];
    }
    let asked = |text: &String| text.contains("asked by token night-shift (127.0.0.1)");
    assert!(texts.iter().any(asked), "{texts:?}");
}

fn watching() -> Vec<u8> {
    let kind = "StorageNode".to_owned();
    ListRequest { protocol: PROTOCOL, kind, ..ListRequest::default() }.encode_to_vec()
}

/// Opens every kind of stream with a token, and has `end` end the token: each stream ends with the reason, and so does
/// the next request of the open connection.
async fn a_token_ends(rig: &Rig, token: &str, end: impl AsyncFnOnce(), reason: &str) {
    let mut calls = rig.http2(rig.clients).await;
    let watch = "/hotbay.cms.v1.View/Watch";
    let mut lists = calls.begin(watch, Some(token), &watching()).await;
    in_time("the first list", lists.body_mut().frame()).await.unwrap().unwrap();
    let follow = EventsRequest { protocol: PROTOCOL, follow: true }.encode_to_vec();
    let events = calls.begin("/hotbay.cms.v1.View/Events", Some(token), &follow).await;
    let mut lines = rig.send(request("GET", "/v1/nodes?watch=true", Some(token), "")).await;
    assert_eq!(lines.status().as_u16(), 200);
    in_time("the first line", lines.body_mut().frame()).await.unwrap().unwrap();
    end().await;
    for stream in [lists, events] {
        let (status, words) = ended(stream).await;
        assert_eq!(status, UNAUTHENTICATED);
        assert!(words.contains(reason), "{words}");
    }
    let last = in_time("the lines end", lines.into_body().collect()).await.unwrap().to_bytes();
    let last: Value = serde_json::from_slice(&last).unwrap();
    assert_eq!(last["error"]["code"], "E_UNAUTHENTICATED");
    let (status, words) = calls.call(watch, Some(token), &watching()).await;
    assert_eq!(status, UNAUTHENTICATED);
    assert!(words.contains(reason), "{words}");
}

#[tokio::test]
async fn a_revoked_token_is_felt_at_once() {
    let rig = Rig::start(real_ms).await;
    let token = rig.token("leaving", May::Read, DAY).await;
    let staying = rig.token("staying", May::Read, DAY).await;
    a_token_ends(&rig, &token, async || rig.revoke("leaving").await, "not known").await;
    assert_eq!(rig.ask("GET", "/v1/nodes", Some(&staying), "").await.0, 200);
}

#[tokio::test]
async fn an_expired_token_is_felt_at_once() {
    static AHEAD_MS: AtomicU64 = AtomicU64::new(0);
    let rig = Rig::start(|| real_ms() + AHEAD_MS.load(Ordering::Relaxed)).await;
    let token = rig.token("short", May::Read, Duration::from_secs(600)).await;
    let longer = rig.token("longer", May::Read, Duration::from_secs(6_000)).await;
    let end = async || AHEAD_MS.store(601_000, Ordering::Relaxed);
    a_token_ends(&rig, &token, end, "short has expired").await;
    assert_eq!(rig.ask("GET", "/v1/nodes", Some(&longer), "").await.0, 200);
}

/// Says something, and waits until the registry has hung up; gives what it said before.
async fn hung_up_on(rig: &Rig, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(rig.clients).await.unwrap();
    stream.write_all(said).await.unwrap();
    let mut heard = Vec::new();
    // Reset or closed: both are an end.
    in_time("the registry hangs up", stream.read_to_end(&mut heard)).await.ok();
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_speaks_no_tls_or_nothing_at_all_delays_nobody() {
    let rig = Rig::start(real_ms).await;
    let token = rig.token("reader", May::Read, DAY).await;
    // Half of a first message each, or nothing; then silence.
    let mut silent = Vec::new();
    for _ in 0..12 {
        let mut half = TcpStream::connect(rig.clients).await.unwrap();
        half.write_all(&[22, 3, 1, 0, 200, 1, 0, 0]).await.unwrap();
        silent.push(half);
        silent.push(TcpStream::connect(rig.clients).await.unwrap());
    }
    let plain = hung_up_on(&rig, b"GET /v1/drives HTTP/1.1\r\nhost: registry\r\n\r\n").await;
    assert!(!plain.starts_with(b"HTTP/1.1 200"), "{plain:?}");
    hung_up_on(&rig, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    hung_up_on(&rig, &[0xfe; 300]).await;
    // Inside of TLS: noise, half a frame, and a head that never ends.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let mut held = Vec::new();
    for (offers, said) in [
        (b"h2".as_slice(), vec![0xfe; 300]),
        (b"h2", [preface, &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 1, 4]].concat()),
        (b"http/1.1", vec![0xfe; 300]),
        (b"http/1.1", b"GET /v1/drives HTTP/1.1\r\nhost: ".to_vec()),
    ] {
        let mut stream = rig.tls(rig.clients, &[offers]).await;
        // It may be hung up on in the middle of it.
        stream.write_all(&said).await.unwrap_or_default();
        stream.flush().await.unwrap_or_default();
        held.push(stream);
    }
    let began = Instant::now();
    let mut calls = rig.http2(rig.clients).await;
    for _ in 0..10 {
        let list = "/hotbay.cms.v1.View/List";
        assert_eq!(calls.call(list, Some(&token), &watching()).await.0, OK);
    }
    assert_eq!(rig.ask("GET", "/v1/nodes", Some(&token), "").await.0, 200);
    assert!(began.elapsed() < Duration::from_secs(4), "others waited for {:?}", began.elapsed());
    for mut stream in silent {
        in_time("a silent one is hung up on", stream.read_to_end(&mut Vec::new())).await.ok();
    }
}

#[tokio::test]
async fn who_names_no_protocol_speaks_http() {
    let rig = Rig::start(real_ms).await;
    let head = b"GET /healthz HTTP/1.1\r\nhost: registry\r\nconnection: close\r\n\r\n";
    let mut stream = rig.tls(rig.clients, &[]).await;
    stream.write_all(head).await.unwrap();
    let mut heard = String::new();
    in_time("an answer", stream.read_to_string(&mut heard)).await.ok();
    assert!(heard.starts_with("HTTP/1.1 200 OK"), "{heard}");
}

/// A stranger has half a minute; whoever has shown a token stays.
#[tokio::test]
async fn a_connection_without_a_token_is_broken_off() {
    let rig = Rig::start(real_ms).await;
    let token = rig.token("reader", May::Read, DAY).await;
    let mut silent = rig.tls(rig.clients, &[b"h2"]).await;
    let mut known = rig.http2(rig.clients).await;
    let list = "/hotbay.cms.v1.View/List";
    assert_eq!(known.call(list, Some(&token), &watching()).await.0, OK);
    let mut stranger = rig.http2(rig.clients).await;
    assert_eq!(stranger.call(list, None, &[]).await.0, UNAUTHENTICATED);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(31)).await;
    tokio::time::resume();
    in_time("the silent one is hung up on", silent.read_to_end(&mut Vec::new())).await.ok();
    in_time("the stranger is hung up on", stranger.is_hung_up_on()).await;
    assert_eq!(known.call(list, Some(&token), &watching()).await.0, OK);
}

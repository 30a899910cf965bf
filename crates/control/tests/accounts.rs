//! Accounts of a platform at the wire: who joins with one, and what people and programs may with one.

mod client_door;
mod fake_agent;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client_door::{Rig, ended, real_ms};
use fake_agent::{FakeAgent, in_time, registration};
use hotbay_api::PROTOCOL;
use hotbay_api::access::CreateTokenRequest;
use hotbay_api::cms::{ActRequest, Action, ActionType, ListRequest};
use hotbay_api::join::{Certified, JoinRequest};
use hotbay_control::{Account, AccountToken, Accounts, Asked, May, NotKnown};
use hotbay_core::ids::NodeName;
use http_body_util::BodyExt;
use prost::Message;
use serde_json::Value;

const JOIN: &str = "/hotbay.join.v1.Joining/Join";
const OK: u16 = 0;
const INVALID_ARGUMENT: u16 = 3;
const PERMISSION_DENIED: u16 = 7;
const FAILED_PRECONDITION: u16 = 9;
const UNAVAILABLE: u16 = 14;
const UNAUTHENTICATED: u16 = 16;

/// Knows `node:NAME` as tokens of nodes, `reader` and `writer` as those of people, until it is closed.
#[derive(Debug, Default)]
struct Platform {
    closed: AtomicBool,
}

impl Platform {
    fn ask<T>(&self, known: Option<T>) -> Result<T, NotKnown> {
        let known = known.filter(|_| !self.closed.load(Ordering::Relaxed));
        known.ok_or_else(|| NotKnown::Refused { why: "it is not known".to_owned() })
    }
}

impl Accounts for Platform {
    fn node_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, NodeName> {
        if token.secret() == "away" {
            return Box::pin(async { Err(NotKnown::Unavailable { why: "busy".to_owned() }) });
        }
        let node = token.secret().strip_prefix("node:").and_then(|name| name.parse().ok());
        Box::pin(async move { self.ask(node) })
    }

    fn rights_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, Account> {
        let account = |may| Account { who: format!("{}@platform", token.secret()), may };
        let known = match token.secret() {
            "reader" => Some(account(May::Read)),
            "writer" => Some(account(May::Write)),
            _ => None,
        };
        Box::pin(async move { self.ask(known) })
    }

    fn advice(&self, may: May) -> String {
        format!("the platform gives out one that may {may:?}")
    }
}

fn join(account_token: &str, node_name: &str, secret: &[u8]) -> Vec<u8> {
    let request = JoinRequest {
        protocol: PROTOCOL,
        secret: secret.to_vec(),
        node_name: node_name.to_owned(),
        public_key: vec![9; 32],
        account_token: account_token.to_owned(),
    };
    assert!(!format!("{request:?}").contains("node:"), "{request:?}");
    request.encode_to_vec()
}

#[tokio::test]
async fn an_account_is_certified_for_its_own_node_alone() {
    let rig = Rig::start_with(real_ms, Some(Arc::new(Platform::default()))).await;
    let mut calls = rig.http2(rig.agents).await;
    // Again and again: an account is not used up.
    for name in ["", "node-a", "node-a"] {
        let answer = calls.begin(JOIN, None, &join("node:node-a", name, &[])).await;
        let body = in_time("an answer", answer.into_body().collect()).await.unwrap().to_bytes();
        let certified = Certified::decode(&body[5..]).unwrap();
        assert_eq!(certified.node_name, "node-a");
        assert!(certified.certificate_pem.contains("CERTIFICATE"));
    }
    for (request, status, words) in [
        (join("node:node-a", "node-b", &[]), PERMISSION_DENIED, "of node node-a, not of node-b"),
        (join("reader", "", &[]), UNAUTHENTICATED, "refused: it is not known"),
        (join("away", "", &[]), UNAVAILABLE, "cannot be checked now: busy"),
        (join("no token", "", &[]), INVALID_ARGUMENT, "no token of an account"),
        (join(&"x".repeat(9_000), "", &[]), INVALID_ARGUMENT, "no token of an account"),
        (join("node:node-a", "", &[1; 32]), INVALID_ARGUMENT, "not with both"),
        (join("", "", &[]), UNAUTHENTICATED, "this token is not known"),
    ] {
        let (answered, said) = calls.call(JOIN, None, &request).await;
        assert_eq!((answered, said.contains(words)), (status, true), "{said}");
    }
    let rig = Rig::start(real_ms).await;
    let mut calls = rig.http2(rig.agents).await;
    let (status, words) = calls.call(JOIN, None, &join("node:node-a", "", &[])).await;
    assert_eq!(status, PERMISSION_DENIED);
    assert!(words.contains("knows no accounts"), "{words}");
}

fn act(device: &str) -> Vec<u8> {
    let kind = ActionType::AddDevice.into();
    let action = Action { r#type: kind, device: device.to_owned(), ..Action::default() };
    ActRequest { protocol: PROTOCOL, actions: vec![action], dry_run: false }.encode_to_vec()
}

#[tokio::test]
async fn accounts_may_what_the_platform_says_and_are_recorded() {
    let rig = Rig::start_with(real_ms, Some(Arc::new(Platform::default()))).await;
    let (mut agent, _) = FakeAgent::join(&rig.socket(), registration("node-a", 1, &["S1"])).await;
    let mut calls = rig.http2(rig.clients).await;
    let path = "/hotbay.cms.v1.Cms/Act";
    for (token, status, words) in [
        (None, UNAUTHENTICATED, "the platform gives out one that may Read"),
        (Some("nobody"), UNAUTHENTICATED, "refused: it is not known"),
        (Some("node:node-a"), UNAUTHENTICATED, "refused: it is not known"),
        (Some("hotbay-client-1.aa"), UNAUTHENTICATED, "cut short"),
        (Some("reader"), PERMISSION_DENIED, "the account reader@platform may only read"),
        (Some("reader"), PERMISSION_DENIED, "the platform gives out one that may Write"),
    ] {
        let (answered, said) = calls.call(path, token, &act("S1")).await;
        assert_eq!((answered, said.contains(words)), (status, true), "{token:?}: {said}");
    }
    assert_eq!(calls.call(path, Some("writer"), &act("S1")).await.0, OK);
    agent.order().await;
    let (status, drive) = rig.ask("GET", "/v1/drives/S1", Some("reader"), "").await;
    assert_eq!(status, 200, "{drive}");
    let drive: Value = serde_json::from_str(&drive).unwrap();
    assert_eq!(drive["status"]["askedBy"], "account writer@platform (127.0.0.1)");
    assert_eq!(rig.ask("GET", "/v1/drives/S1", Some("nobody"), "").await.0, 401);

    // Tokens of its own would be known to one of several registries.
    let create =
        CreateTokenRequest { protocol: PROTOCOL, name: "ci".to_owned(), may: 1, valid_ms: 1_000 };
    let path = "/hotbay.access.v1.Access/CreateToken";
    let (status, words) = calls.call(path, Some("writer"), &create.encode_to_vec()).await;
    assert_eq!(status, FAILED_PRECONDITION, "{words}");
    assert!(words.contains("the platform gives out one"), "{words}");
}

#[tokio::test]
async fn a_stream_ends_soon_after_its_account() {
    let platform = Arc::new(Platform::default());
    let rig = Rig::start_with(real_ms, Some(platform.clone())).await;
    let mut calls = rig.http2(rig.clients).await;
    let kind = "StorageNode".to_owned();
    let watching =
        ListRequest { protocol: PROTOCOL, kind, ..ListRequest::default() }.encode_to_vec();
    let path = "/hotbay.cms.v1.View/Watch";
    let mut lists = calls.begin(path, Some("reader"), &watching).await;
    in_time("the first list", lists.body_mut().frame()).await.unwrap().unwrap();
    platform.closed.store(true, Ordering::Relaxed);
    let (status, words) =
        tokio::time::timeout(Duration::from_secs(30), ended(lists)).await.unwrap();
    assert_eq!(status, UNAUTHENTICATED);
    assert!(words.contains("it is not known"), "{words}");
}

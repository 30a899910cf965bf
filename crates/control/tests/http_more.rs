//! Over HTTP: lists page by page, what happened, what a person decides when a registry went back in time, and what one
//! hears who waits for a volume that cannot be written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]
#![allow(dead_code, reason = "the rig is shared, and used in part")]

mod fake_agent;
mod http_rig;

use fake_agent::{FakeAgent, device, in_time, registration};
use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::ids::TermId;
use hotbay_core::label::change::{Basis, LabelTold};
use hotbay_core::message::AnswerResult;
use hotbay_core::order::Term;
use hotbay_core::volume::orders::{LabelAnswer, LabelOrder, LabelResult};
use hotbay_registry::Fault;
use http_body_util::{BodyExt, Full};
use http_rig::Rig;
use hyper::{Request, StatusCode};
use serde_json::{Value, json};

#[tokio::test]
async fn a_list_page_by_page_is_the_whole_list() {
    let rig = Rig::start();
    let serials: Vec<_> = (0..7).map(|number| format!("P{number}")).collect();
    let serials: Vec<_> = serials.iter().map(String::as_str).collect();
    let _agent = FakeAgent::join(&rig.api(), registration("node-p", 9, &serials)).await;
    let whole = rig.get("/v1/drives").await.json();
    assert_eq!(whole["metadata"], Value::Null);
    let (mut items, mut pages, mut query) = (Vec::new(), 0, "limit=3".to_owned());
    loop {
        let page = rig.get(&format!("/v1/drives?{query}")).await.json();
        pages += 1;
        items.extend(page["items"].as_array().unwrap().clone());
        match page["metadata"]["continue"].as_str() {
            Some(next) => query = format!("limit=3&continue={next}"),
            None => break,
        }
    }
    assert_eq!(pages, 3);
    assert_eq!(json!(items), whole["items"]);
    let both = rig.get("/v1/drives?watch=true&limit=3").await;
    assert_eq!(both.status, 400, "{both:?}");
}

#[tokio::test]
async fn events_are_listed_and_followed() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    let listed = rig.get("/v1/events").await.json();
    assert_eq!(listed["kind"], "EventList");
    let before = listed["items"].as_array().unwrap().len();
    assert!(before > 0, "{listed}");

    let request = Request::builder().uri("/v1/events?follow=true").header("host", "hotbay");
    let response = rig.open(request.body(Full::default()).unwrap()).await;
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let mut body = response.into_body();
    let mut text = String::new();
    let mut heard = Vec::<Value>::new();
    rig.attach(&mut agent).await;
    while !heard.iter().any(|event| event["text"].as_str().unwrap().contains("is in operation")) {
        let frame = in_time("an event", body.frame()).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        while let Some((line, rest)) = text.clone().split_once('\n') {
            heard.push(serde_json::from_str(line).unwrap());
            rest.clone_into(&mut text);
        }
    }
    let numbers: Vec<_> = heard.iter().map(|event| event["number"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers[0] == 1 && numbers.len() > before, "{numbers:?}");
    let order = rig.get("/v1/drives/S1").await.json()["status"]["goal"]["order"].take();
    assert!(heard.iter().any(|event| event["order"] == order), "{order} is in no event: {heard:?}");
}

#[tokio::test]
async fn what_nodes_know_is_shown_and_then_adopted() {
    let rig = Rig::start();
    let nothing = rig.get("/v1/adopt").await.json();
    assert_eq!(nothing, json!({ "nodes": [], "adopted": false }));
    let mut ahead = registration("node-a", 1, &["S1"]);
    ahead.newest_term = Some(Term { number: 9, id: TermId::from_bits(99) });
    let register = hotbay_api::convert::FromAgent::Register(ahead.clone());
    let mut agent = FakeAgent::dial(&rig.api()).await;
    agent.say(register).await;
    assert_eq!(agent.hear_refusal().await.0, "RegistryRewound");

    let preview = rig.get("/v1/adopt").await.json();
    assert_eq!(preview["nodes"][0]["node"], "node-a", "{preview}");
    assert_eq!(preview["adopted"], false);
    let refused = rig.send("POST", "/v1/adopt", "{}").await;
    assert_eq!(refused.status, 400);
    assert_eq!(rig.get("/v1/adopt").await.json(), preview, "a refused request adopted something");
    let adopted = rig.send("POST", "/v1/adopt", r#"{"confirmed":true}"#).await.json();
    assert_eq!((&adopted["nodes"], &adopted["adopted"]), (&preview["nodes"], &json!(true)));
    FakeAgent::join(&rig.api(), ahead).await;
}

/// Reads lines of an answer that goes on until one is as wished.
async fn heard(body: &mut hyper::body::Incoming, wished: impl Fn(&Value) -> bool) {
    let mut text = String::new();
    loop {
        let frame = in_time("a line", body.frame()).await.unwrap().unwrap();
        text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        while let Some((line, rest)) = text.clone().split_once('\n') {
            if wished(&serde_json::from_str(line).unwrap()) {
                return;
            }
            rest.clone_into(&mut text);
        }
    }
}

/// The story: a machine was lost and purged, as the manual says. From then on it was counted as one whose agent is
/// away, and its drives as ones that do not close, so that two alerts came and never went.
#[tokio::test]
async fn what_was_purged_is_counted_by_itself() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    rig.attach(&mut agent).await;
    let _other = FakeAgent::join(&rig.api(), registration("node-b", 2, &["S3"])).await;
    let request = Request::builder().uri("/v1/nodes/node-a?watch=true").header("host", "hotbay");
    let mut node = rig.open(request.body(Full::default()).unwrap()).await.into_body();
    drop(agent);
    heard(&mut node, |line| line["status"]["ready"] == false).await;
    let away = rig.get("/metrics").await.text;
    assert!(away.contains("\nhotbay_nodes{ready=\"false\"} 1\n"), "{away}");
    assert!(away.contains("\nhotbay_purged_nodes 0\n"), "{away}");

    let purge = json!({ "actions": [{ "type": "PURGE_HOST", "host": "node-a" }] });
    assert_eq!(rig.post(&purge).await.json()["results"][0]["result"], "S_OK");
    let metrics = rig.get("/metrics").await.text;
    for told in [
        r#"hotbay_nodes{ready="true"} 1"#,
        r#"hotbay_nodes{ready="false"} 0"#,
        "hotbay_purged_nodes 1",
        r#"hotbay_drives{state="ClosingDevice"} 0"#,
        r#"hotbay_drives{state="UnknownDevice"} 1"#,
        "hotbay_purged_drives 2",
    ] {
        assert!(metrics.contains(&format!("\n{told}\n")), "no {told} in\n{metrics}");
    }
}

/// An alert on a number that nobody tells never comes.
#[tokio::test]
async fn every_number_that_an_alert_asks_for_is_told() {
    let rig = Rig::start();
    let metrics = rig.get("/metrics").await.text;
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/files/hotbay.rules.yaml");
    let rules = std::fs::read_to_string(rules).unwrap();
    let expressions = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let mut asked = 0;
    for expression in expressions {
        let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in words.filter(|word| word.starts_with("hotbay_")) {
            let is_told = |line: &str| line.split(['{', ' ']).next() == Some(name);
            assert!(metrics.lines().any(is_told), "no number is called {name}\n{metrics}");
            asked += 1;
        }
    }
    assert!(asked >= 8, "the rules could not be read: {rules}");
    // There is no other way to it where these rules are.
    assert!(!rules.contains("\"hotbay "), "a command without kubectl: {rules}");
}

/// The story: a volume was made, and that could not be written. Its caller waited to the end of all patience, and was
/// told that the drive had not answered.
#[tokio::test]
async fn who_waits_for_a_volume_is_told_that_the_store_fails_meanwhile() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    rig.act("ADD_DEVICE", "S1").await;
    let order = agent.order().await;
    agent.answer(&order, AnswerResult::Done).await;
    let basis = Basis { sequence: 1, checksum: 0 };
    let told = LabelTold { basis, extents: Vec::new(), limit_bytes: 1 << 30 };
    agent.say(FromAgent::LabelTold { drive: order.drive, told }).await;
    agent.settle(vec![device(0, "S1")]).await;
    let body = json!({ "name": "v", "sizeBytes": 1 << 20 }).to_string();
    let made = rig.send("POST", "/v1/volumes", body);
    let obeyed = async {
        let order = loop {
            match agent.hear().await {
                Some(FromRegistry::LabelOrder(order)) => break order,
                Some(_) => {}
                None => panic!("the registry hung up"),
            }
        };
        let commits = rig.store.commits();
        for nth in commits + 1..=commits + 200 {
            rig.store.fail_commit(nth, Fault::NoSpace);
        }
        let LabelOrder { drive, incarnation, basis: on, changes, .. } = order;
        let result = LabelResult::Done { now: Basis { sequence: 2, ..basis } };
        let answer = LabelAnswer { drive, incarnation, on, changes, result };
        agent.say(FromAgent::LabelAnswer(answer)).await;
    };
    let (answer, ()) = tokio::join!(made, obeyed);
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
    assert!(answer.error().1.contains("no space left"), "{answer:?}");
}

//! The API as HTTP and JSON, over a real socket with a real client: what it answers, that it is as described, and that
//! callers who misbehave get a clear answer, change nothing and keep nobody else waiting.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

mod fake_agent;
mod http_rig;
mod schema;

use std::collections::BTreeSet;

use fake_agent::in_time;
use hotbay_core::message::AnswerResult;
use hotbay_registry::Fault;
use http_body_util::BodyExt;
use http_rig::{Answer, Rig};
use hyper::{Request, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const EXPAND: &str = "/v1/volumes/{name}/expand";

/// Holds an answer to what the document says about its route.
fn fits(document: &Value, method: &str, path: &str, answer: &Answer) {
    let responses = &document["paths"][path][method.to_lowercase()]["responses"];
    let status = answer.status.as_str();
    let described = responses.get(status).unwrap_or(&responses["default"]);
    let schema = &described["content"][answer.content_type()]["schema"];
    let value = match answer.content_type() {
        "application/json" => answer.json(),
        _ => Value::String(answer.text.clone()),
    };
    schema::check(document, schema, &value, &format!("{method} {path}"))
        .unwrap_or_else(|fault| panic!("{fault}\n{answer:?}"));
}

#[tokio::test]
async fn every_route_answers_as_the_document_says() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    let document = rig.get("/v1/openapi.json").await.json();
    rig.attach(&mut agent).await;
    let all = json!({ "actions": [
        { "type": "REMOVE_DEVICE", "device": "S1" },
        { "type": "ADD_DEVICE", "host": "node-a", "device": "bay-1" },
        { "type": "ADD_HOST", "host": "node-a", "withRemoved": true, "returned": false },
        { "type": "REMOVE_HOST", "host": "node-a" },
        { "type": "PURGE_HOST", "host": "node-a" },
        { "type": "GET_DEPENDENT_VOLUMES", "device": "nothing" },
        {
            "type": "LABEL_HOST", "host": "node-a", "labels": { "rack": "a" },
            "removeLabels": ["zone"], "overwrite": true,
        },
        { "type": "SING" },
    ], "dryRun": true });
    let volume = |size_bytes: u64, node: &str| {
        let nodes: Vec<_> = [node].into_iter().filter(|node| !node.is_empty()).collect();
        json!({ "name": "db", "sizeBytes": size_bytes, "nodes": nodes }).to_string()
    };

    let calls = [
        ("POST", "/v1/actions", "/v1/actions".to_owned(), all.to_string(), 200),
        ("POST", "/v1/actions", "/v1/actions".to_owned(), "{".to_owned(), 400),
        ("GET", "/v1/drives", "/v1/drives".to_owned(), String::new(), 200),
        ("GET", "/v1/drives", "/v1/drives?sort=size".to_owned(), String::new(), 400),
        ("GET", "/v1/drives/{name}", "/v1/drives/S1".to_owned(), String::new(), 200),
        ("GET", "/v1/drives/{name}", "/v1/drives/S9".to_owned(), String::new(), 404),
        ("GET", "/v1/nodes", "/v1/nodes?watch=false".to_owned(), String::new(), 200),
        ("GET", "/v1/nodes/{name}", "/v1/nodes/node-a".to_owned(), String::new(), 200),
        ("GET", "/v1/nodes/{name}", "/v1/nodes/node-z".to_owned(), String::new(), 404),
        ("GET", "/v1/drives", "/v1/drives?limit=1".to_owned(), String::new(), 200),
        ("GET", "/v1/drives", "/v1/drives?limit=0".to_owned(), String::new(), 400),
        ("GET", "/v1/nodes", "/v1/nodes?continue=nonsense".to_owned(), String::new(), 400),
        ("GET", "/v1/volumes", "/v1/volumes?limit=5".to_owned(), String::new(), 200),
        ("POST", "/v1/volumes", "/v1/volumes".to_owned(), volume(1 << 30, ""), 507),
        ("POST", "/v1/volumes", "/v1/volumes".to_owned(), volume(0, ""), 400),
        ("POST", "/v1/volumes", "/v1/volumes".to_owned(), volume(u64::MAX, ""), 400),
        ("POST", "/v1/volumes", "/v1/volumes".to_owned(), volume(1, "node-z"), 404),
        ("POST", "/v1/volumes", "/v1/volumes".to_owned(), "[]".to_owned(), 400),
        ("GET", "/v1/volumes/{name}", "/v1/volumes/db".to_owned(), String::new(), 404),
        ("DELETE", "/v1/volumes/{name}", "/v1/volumes/db".to_owned(), String::new(), 404),
        ("POST", EXPAND, "/v1/volumes/db/expand".to_owned(), r#"{"sizeBytes":9}"#.to_owned(), 404),
        ("POST", EXPAND, "/v1/volumes/db/expand".to_owned(), "{}".to_owned(), 400),
        ("GET", "/v1/events", "/v1/events".to_owned(), String::new(), 200),
        ("GET", "/v1/events", "/v1/events?since=1".to_owned(), String::new(), 400),
        ("GET", "/v1/adopt", "/v1/adopt".to_owned(), String::new(), 200),
        ("POST", "/v1/adopt", "/v1/adopt".to_owned(), r#"{"confirmed":true}"#.to_owned(), 200),
        ("POST", "/v1/adopt", "/v1/adopt".to_owned(), r#"{"confirmed":false}"#.to_owned(), 400),
        ("POST", "/v1/adopt", "/v1/adopt".to_owned(), "yes".to_owned(), 400),
        ("GET", "/v1/openapi.json", "/v1/openapi.json".to_owned(), String::new(), 200),
        ("GET", "/healthz", "/healthz".to_owned(), String::new(), 200),
        ("GET", "/readyz", "/readyz".to_owned(), String::new(), 200),
        ("GET", "/metrics", "/metrics".to_owned(), String::new(), 200),
    ];
    let mut called = BTreeSet::new();
    for (method, path, uri, body, status) in calls {
        let answer = rig.send(method, &uri, body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {uri}: {answer:?}");
        fits(&document, method, path, &answer);
        called.insert(path.to_owned());
    }
    let described: BTreeSet<_> = document["paths"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(called, described);
    let schema = &document["components"]["schemas"]["ActRequest"];
    let mut known = all;
    known["actions"].as_array_mut().unwrap().pop();
    assert_eq!(schema::check(&document, schema, &known, "the request"), Ok(()));
}

#[tokio::test]
async fn a_node_is_labelled_and_shows_it() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let act = async |action: Value, dry_run: bool| {
        let answer = rig.post(&json!({ "actions": [action], "dryRun": dry_run })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["results"][0].take()
    };
    let labels = async || rig.get("/v1/nodes/node-a").await.json()["spec"]["labels"].take();
    let label = |labels: Value| json!({ "type": "LABEL_HOST", "host": "node-a", "labels": labels });
    assert_eq!(labels().await, json!({}));
    assert_eq!(act(label(json!({ "rack": "a" })), true).await["result"], "S_OK");
    assert_eq!(labels().await, json!({}), "a dry run changes nothing");
    assert_eq!(act(label(json!({ "rack": "a" })), false).await["result"], "S_OK");
    assert_eq!(act(label(json!({ "rack": "a" })), false).await["result"], "S_ALREADY");
    assert_eq!(labels().await, json!({ "rack": "a" }));
    let other = act(label(json!({ "rack": "b" })), false).await;
    assert_eq!(other["result"], "E_INVALID_STATE");
    assert!(other["reasons"][0].as_str().unwrap().contains("labelled rack=a"), "{other}");
    let bad = act(label(json!({ "-": "b" })), false).await;
    assert_eq!(bad["result"], "E_ARGUMENT", "{bad}");
    let mut change = label(json!({ "zone": "z" }));
    change["removeLabels"] = json!(["rack"]);
    assert_eq!(act(change, false).await["result"], "S_OK");
    assert_eq!(labels().await, json!({ "zone": "z" }));
    let events = rig.get("/v1/events").await.json();
    let told = events["items"].as_array().unwrap().iter().any(|event| {
        let text = event["text"].as_str().unwrap();
        text.starts_with("The labels of node-a have changed, asked by ")
            && text.ends_with(": zone=z, rack removed.")
    });
    assert!(told, "{events}");
}

#[tokio::test]
async fn a_drive_goes_in_and_out_and_every_name_of_it_works() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    rig.attach(&mut agent).await;
    let removing = rig.act("REMOVE_DEVICE", "node-a:bay-0").await;
    assert_eq!(removing["result"], "E_TRY_AGAIN");
    assert_eq!(removing["drive"]["serial"], "S1");
    assert!(removing["retryAfterMs"].as_u64().unwrap() > 0, "{removing}");
    assert!(!removing["reasons"][0].as_str().unwrap().is_empty());
    let order = agent.order().await;
    agent.answer(&order, AnswerResult::Done).await;
    agent.settle(vec![fake_agent::device(0, "S1")]).await;
    assert_eq!(rig.act("REMOVE_DEVICE", "S1").await["result"], "S_OK");
    let drive = rig.get("/v1/drives/S1").await.json();
    assert_eq!(drive["status"]["state"], "DetachedDevice");
    let asked_by = drive["status"]["askedBy"].as_str().unwrap();
    assert!(asked_by.contains(&format!("pid {}", std::process::id())), "{asked_by}");
    let name = drive["metadata"]["name"].as_str().unwrap();
    let uid = drive["metadata"]["uid"].as_str().unwrap();
    for name in [name, uid, "node-a:bay-0", "node-a%3Abay-0", "node-a:%2Fdev%2Fdrive0"] {
        assert_eq!(rig.get(&format!("/v1/drives/{name}")).await.json(), drive, "{name}");
    }
    let list = rig.get("/v1/drives").await.json();
    assert_eq!(list["kind"], "DriveList");
    assert_eq!(list["items"][0], drive);
    let node = rig.get("/v1/nodes/node-a").await.json();
    assert_eq!(rig.get("/v1/nodes").await.json()["items"], json!([node]));
}

#[tokio::test]
async fn a_type_that_is_not_known_is_that_actions_own_failure() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let actions = json!([{ "type": "SING" }, { "type": "ADD_DEVICE", "device": "S1" }]);
    let results = rig.post(&json!({ "actions": actions })).await.json()["results"].take();
    assert_eq!(results[0]["result"], "E_ARGUMENT");
    assert!(results[0]["reasons"][0].as_str().unwrap().contains("SING"), "{results}");
    assert_eq!(results[1]["result"], "S_OK");
}

#[tokio::test]
async fn a_dry_run_changes_nothing() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let before = rig.store.durable();
    let body = json!({ "actions": [{ "type": "ADD_DEVICE", "device": "S1" }], "dryRun": true });
    assert_eq!(rig.post(&body).await.json()["results"][0]["result"], "S_OK");
    assert_eq!(rig.store.durable(), before);
}

#[tokio::test]
async fn malformed_bodies_are_refused_with_the_field() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let before = rig.store.durable();
    let cases = [
        ("", "EOF"),
        (r#"{"actions":[{"type":"ADD_DEVICE","device":"S1"}"#, "EOF"),
        ("\u{0}\u{1}\u{2}", "expected value"),
        ("[]", "expected an object"),
        (r#"[[{"type":"ADD_DEVICE","device":"S1"}]]"#, "expected an object"),
        (r#"{"actions":[["ADD_DEVICE","","S1"]]}"#, "expected an object"),
        ("{}", "missing field `actions`"),
        (r#"{"actions":{}}"#, "expected a sequence"),
        (r#"{"actions":[{"device":"S1"}]}"#, "missing field `type`"),
        (r#"{"actions":[{"type":4,"device":"S1"}]}"#, "expected a string"),
        (r#"{"actions":[{"type":"ADD_DEVICE","device":["S1"]}]}"#, "expected a string"),
        (r#"{"actions":[{"type":"ADD_DEVICE","devise":"S1"}]}"#, "unknown field `devise`"),
        (r#"{"actions":[{"type":"ADD_DEVICE","type":"ADD_HOST"}]}"#, "duplicate field `type`"),
        (r#"{"actions":[],"dry_run":true}"#, "unknown field `dry_run`"),
        (r#"{"actions":[],"dryRun":"yes"}"#, "expected a boolean"),
        (r#"{"actions":[]} and more"#, "trailing characters"),
    ];
    for (body, words) in cases {
        let answer = rig.send("POST", "/v1/actions", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}: {answer:?}");
        let (code, message) = answer.error();
        assert_eq!(code, "E_ARGUMENT");
        assert!(message.contains(words), "{body}: {message}");
    }
    let not_text = vec![0xff; 100];
    let answer = rig.send("POST", "/v1/actions", not_text).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(rig.get("/v1/drives/%ff").await.error().0, "E_ARGUMENT");
    assert_eq!(rig.store.durable(), before);
}

#[tokio::test]
async fn far_too_much_is_refused_and_changes_nothing() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let before = rig.store.durable();
    let many =
        |count| json!({ "actions": vec![json!({ "type": "ADD_DEVICE", "device": "S9" }); count] });
    let answer = rig.post(&many(100_000)).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer.error().1.contains("100000"), "{answer:?}");
    // Announced and never sent: nobody waits for it.
    let mut stream = rig.connect().await;
    let head = "POST /v1/actions HTTP/1.1\r\nhost: hotbay\r\ncontent-length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert!(heard(&mut stream).await.starts_with("HTTP/1.1 413 "));
    // Not announced, and longer than allowed.
    let mut stream = rig.connect().await;
    let head = "POST /v1/actions HTTP/1.1\r\nhost: hotbay\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.into_split();
    let sending = tokio::spawn(async move {
        let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
        // Ends when the other side has heard enough.
        while writing.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let mut start = [0; 13];
    in_time("an answer", reading.read_exact(&mut start)).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 413 ");
    drop(reading);
    in_time("the sender ends", sending).await.unwrap();
    assert_eq!(rig.store.durable(), before);
    let answer = rig.post(&many(10_000)).await;
    assert_eq!(answer.json()["results"].as_array().unwrap().len(), 10_000);
}

/// All that is said until the other side hangs up, or until it waits for more.
async fn heard(stream: &mut tokio::net::UnixStream) -> String {
    let mut text = vec![0; 4_096];
    let length = in_time("an answer", stream.read(&mut text)).await.unwrap();
    String::from_utf8_lossy(&text[..length]).into_owned()
}

#[tokio::test]
async fn a_wrong_path_or_method_is_told_what_there_is() {
    let rig = Rig::start();
    for path in ["/", "/v2/drives", "/v1/drives/", "/v1/drives/a/b", "/v1/bays"] {
        let answer = rig.get(path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        let error = answer.json()["error"].take();
        assert_eq!(error["code"], "E_NOT_FOUND");
        let next_step = error["nextStep"].as_str().unwrap();
        assert!(next_step.contains("POST /v1/actions, GET /v1/drives,"), "{next_step}");
    }
    let calls = [
        ("GET", "/v1/actions", "POST"),
        ("DELETE", "/v1/drives/S1", "GET,HEAD"),
        ("PUT", "/healthz", "GET,HEAD"),
    ];
    for (method, path, allowed) in calls {
        let answer = rig.send(method, path, "").await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(answer.error().0, "E_METHOD");
        assert_eq!(answer.headers["allow"], allowed, "{method} {path}");
    }
}

#[tokio::test]
async fn who_is_slow_or_talks_nonsense_keeps_nobody_waiting() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    let mut slow = Vec::new();
    for _ in 0..100 {
        let mut stream = rig.connect().await;
        let half = "POST /v1/actions HTTP/1.1\r\nhost: hotbay\r\ncontent-length: 50\r\n\r\n{\"act";
        stream.write_all(half.as_bytes()).await.unwrap();
        slow.push(stream);
        slow.push(rig.connect().await);
    }
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..],
        b"PRI * HTTP/2.0\r\n\r\n",
        b"\r\n\0\0\0\0 \r\n\r\n",
    ] {
        let mut stream = rig.connect().await;
        stream.write_all(garbage).await.unwrap();
        let heard = heard(&mut stream).await;
        assert!(heard.is_empty() || heard.starts_with("HTTP/1.1 400 "), "{garbage:?}: {heard}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(1 << 20));
    let mut stream = rig.connect().await;
    // It may be hung up on before it has said everything.
    stream.write_all(long.as_bytes()).await.unwrap_or_default();
    assert_eq!(rig.act("ADD_DEVICE", "S1").await["result"], "S_OK");
    assert_eq!(rig.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn watching_has_a_line_for_every_change() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    let request =
        |path: &str| Request::builder().uri(path).body(http_body_util::Full::default()).unwrap();
    let missing = rig.open(request("/v1/drives/S9?watch=true")).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    let mut lists = rig.open(request("/v1/drives?watch=true")).await;
    assert_eq!(lists.headers()["content-type"], "application/x-ndjson");
    let mut one = rig.open(request("/v1/drives/S1?watch=true")).await;
    let states = async {
        let mut states = Vec::new();
        while states.last().is_none_or(|state| state != "AttachedDevice") {
            let frame = lists.body_mut().frame().await.unwrap().unwrap();
            let line = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
            let list: Value = serde_json::from_str(line.strip_suffix('\n').unwrap()).unwrap();
            assert_eq!(list["kind"], "DriveList");
            states.push(list["items"][0]["status"]["state"].as_str().unwrap().to_owned());
        }
        states
    };
    let (states, ()) =
        tokio::join!(in_time("the drive is attached", states), rig.attach(&mut agent));
    assert_eq!(states.first().unwrap(), "UnknownDevice");
    let frame = in_time("a line", one.body_mut().frame()).await.unwrap().unwrap();
    let line = String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["kind"], "Drive");
}

#[tokio::test]
async fn a_store_that_fails_is_said_and_measured() {
    let rig = Rig::start();
    let _agent = rig.join().await;
    assert!(rig.get("/metrics").await.text.contains("\nhotbay_store_failing 0\n"));
    let commits = rig.store.commits();
    for nth in commits + 1..=commits + 200 {
        rig.store.fail_commit(nth, Fault::NoSpace);
    }
    let body = json!({ "actions": [{ "type": "ADD_DEVICE", "device": "S1" }] });
    for _ in 0..2 {
        let answer = rig.post(&body).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
        assert_eq!(answer.error().0, "E_TRY_AGAIN");
        assert_eq!(answer.headers["retry-after"], "1");
    }
    let ready = rig.get("/readyz").await;
    assert_eq!(ready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(ready.error().1.contains("no space left"), "{ready:?}");
    assert_eq!(rig.get("/healthz").await.status, StatusCode::OK);
    assert_eq!(rig.get("/v1/drives").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let metrics = rig.get("/metrics").await.text;
    assert!(metrics.contains("\nhotbay_store_failing 1\n"), "{metrics}");
    assert!(!metrics.contains("hotbay_drives"), "what cannot be seen is not guessed: {metrics}");
}

/// The value of a series, by its name and labels as written.
fn value(metrics: &str, series: &str) -> f64 {
    let line =
        metrics.lines().find(|line| line.rsplit_once(' ').is_some_and(|(name, _)| name == series));
    let line = line.unwrap_or_else(|| panic!("no {series} in\n{metrics}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[tokio::test]
async fn the_numbers_are_true_and_well_formed() {
    let rig = Rig::start();
    let mut agent = rig.join().await;
    rig.attach(&mut agent).await;
    assert_eq!(rig.act("REMOVE_DEVICE", "S1").await["result"], "E_TRY_AGAIN");
    assert_eq!(rig.act("REMOVE_DEVICE", "S1").await["result"], "E_TRY_AGAIN");
    let mut duplicate = fake_agent::FakeAgent::dial(&rig.api()).await;
    let other = fake_agent::registration("node-a", 77, &["S7"]);
    duplicate.say(hotbay_api::convert::FromAgent::Register(other)).await;
    assert_eq!(duplicate.hear_refusal().await.0, "DuplicateNode");
    let answer = rig.get("/metrics").await;
    assert_eq!(answer.content_type(), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let metrics = answer.text;
    let expected = [
        (r#"hotbay_drives{state="ClosingDevice"}"#, 1.0),
        (r#"hotbay_drives{state="UnknownDevice"}"#, 1.0),
        (r#"hotbay_drives{state="AttachedDevice"}"#, 0.0),
        (r#"hotbay_nodes{ready="true"}"#, 1.0),
        (r#"hotbay_nodes{ready="false"}"#, 0.0),
        (r#"hotbay_actions_total{type="ADD_DEVICE",result="S_OK"}"#, 1.0),
        (r#"hotbay_actions_total{type="REMOVE_DEVICE",result="E_TRY_AGAIN"}"#, 2.0),
        (r#"hotbay_orders_sent_total{goal="attach"}"#, 1.0),
        (r#"hotbay_orders_sent_total{goal="detach"}"#, 1.0),
        (r#"hotbay_answers_total{result="done"}"#, 1.0),
        ("hotbay_sessions_total", 2.0),
        (r#"hotbay_registrations_refused_total{reason="DuplicateNode"}"#, 1.0),
        (r#"hotbay_registrations_refused_total{reason="RegistryRewound"}"#, 0.0),
        ("hotbay_store_failing", 0.0),
        ("hotbay_held_replies", 0.0),
    ];
    for (series, wanted) in expected {
        assert!((value(&metrics, series) - wanted).abs() < f64::EPSILON, "{series}\n{metrics}");
    }
    let commits = value(&metrics, "hotbay_store_commits_total");
    assert!(commits >= 3.0, "{metrics}");
    for histogram in ["hotbay_store_commit_seconds", "hotbay_store_batch_writes"] {
        for series in ["_count", r#"_bucket{le="+Inf"}"#] {
            let counted = value(&metrics, &format!("{histogram}{series}"));
            assert!((counted - commits).abs() < f64::EPSILON, "{histogram}{series}");
        }
        assert!(value(&metrics, &format!("{histogram}_sum")) > 0.0, "{metrics}");
    }
    well_formed(&metrics);
}

/// Every line is what the format allows where it stands: a family is described, then all its series follow, once each.
fn well_formed(metrics: &str) {
    let body = metrics.strip_suffix("# EOF\n").expect("it ends with # EOF");
    let mut families = BTreeSet::new();
    let mut series = BTreeSet::new();
    let (mut family, mut kind) = ("", "");
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a family has a help text");
            assert!(help.ends_with('.') && help.len() > 10, "{line}");
            assert!(families.insert(name), "described twice: {line}");
            (family, kind) = (name, "");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, said) = rest.split_once(' ').expect("a type");
            assert_eq!(name, family, "{line}");
            kind = said;
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').expect("a unit");
            assert!(name == family && name.ends_with(&format!("_{unit}")), "{line}");
        } else {
            let (labelled, number) = line.rsplit_once(' ').expect("a series has a value");
            assert!(number.parse::<f64>().is_ok_and(|number| number >= 0.0), "{line}");
            assert!(series.insert(labelled), "twice: {line}");
            let (name, labels) = labelled.split_once('{').unwrap_or((labelled, "}"));
            let suffix =
                name.strip_prefix(family).unwrap_or_else(|| panic!("not of {family}: {line}"));
            let allowed: &[&str] = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                "histogram" => &["_sum", "_count", "_bucket"],
                other => panic!("{other:?} is no type: {line}"),
            };
            assert!(allowed.contains(&suffix), "{line}");
            let labels = labels.strip_suffix('}').expect("labels are closed");
            for label in labels.split(',').filter(|label| !label.is_empty()) {
                let (key, quoted) = label.split_once('=').expect("a label has a value");
                assert!(key.bytes().all(|byte| byte.is_ascii_lowercase()), "{line}");
                assert!(
                    quoted.len() > 2 && quoted.starts_with('"') && quoted.ends_with('"'),
                    "{line}"
                );
            }
        }
    }
    assert!(families.len() >= 12, "{families:?}");
}

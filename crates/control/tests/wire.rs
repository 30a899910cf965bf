//! Callers that misbehave on the wire: other protocols, garbage, half a frame, far too much, far too many. Each gets a
//! clear answer, changes nothing that it should not, and keeps nobody else waiting.

mod controller;
mod fake_agent;

use std::time::{Duration, Instant};

use controller::{Controller, add, on_device, on_host, remove};
use fake_agent::{FakeAgent, connect, device, in_time, registration};
use hotbay_api::PROTOCOL;
use hotbay_api::agent as wire;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::view_client::ViewClient;
use hotbay_api::cms::{ActRequest, Action, ActionType, ListRequest};
use hotbay_api::convert::{FromAgent, to_registry};
use hotbay_core::device::{Denied, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_registry::Fault;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinSet;
use tonic::Code;

#[tokio::test]
async fn another_protocol_is_refused_with_words() {
    let controller = Controller::start();
    let client = controller.client().await;
    let before = controller.store.durable();
    let actions = vec![add("S1")];
    let acted = client.act_raw(ActRequest { protocol: 2, actions, dry_run: false }).await;
    let listed = client
        .list_raw(ListRequest { protocol: 0, kind: "Drive".into(), ..ListRequest::default() })
        .await;
    for refused in [acted.map(drop), listed.map(drop)] {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("protocol"), "{}", status.message());
    }
    let mut agent = FakeAgent::dial(&controller.socket()).await;
    let register = to_registry(&FromAgent::Register(registration("node-a", 1, &["S1"])));
    agent.say_raw(wire::AgentMessage { protocol: 9, ..register }).await;
    let (reason, message) = agent.hear_refusal().await;
    assert_eq!(reason, "Malformed");
    assert!(message.contains("protocol 9"), "{message}");
    assert_eq!(controller.store.durable(), before);
}

#[tokio::test]
async fn garbage_in_a_message_ends_its_session_and_names_the_field() {
    use wire::agent_message::Kind;
    let controller = Controller::start();
    let register = |change: fn(&mut wire::Register)| {
        let mut message = to_registry(&FromAgent::Register(registration("node-a", 1, &["S1"])));
        let Some(Kind::Register(register)) = &mut message.kind else { unreachable!() };
        change(register);
        message
    };
    let kind = |kind| wire::AgentMessage { protocol: PROTOCOL, kind };
    let answer = wire::AttachDeviceResponse { answer: Some(wire::DeviceAnswer::default()) };
    let cases = [
        ("kind", kind(None)),
        ("node_name", register(|register| register.node_name = "../../etc".into())),
        ("machine_id", register(|register| register.machine_id = "no".into())),
        ("incarnation", register(|register| register.incarnation = "é".repeat(16))),
        ("record_json", register(|register| register.record_json = "{".into())),
        ("observed_json", register(|register| register.observed_json = vec!["\0".into()])),
        ("observed_json", register(|register| register.observed_json = vec!["[".repeat(9_999)])),
        (
            "device_id",
            register(|register| {
                register.known_devices = vec![wire::KnownDevice::default()];
            }),
        ),
        ("version", register(|register| register.version = "\x1b[2J".into())),
        ("version", register(|register| register.version = "9".repeat(65))),
        ("term.id", register(|register| register.newest_term = Some(wire::Term::default()))),
        ("answer", kind(Some(Kind::AttachDeviceResponse(wire::AttachDeviceResponse::default())))),
        ("incarnation", kind(Some(Kind::AttachDeviceResponse(answer)))),
    ];
    let (mut other, _) =
        FakeAgent::join(&controller.socket(), registration("node-b", 2, &["S2"])).await;
    let before = controller.store.durable();
    for (field, message) in cases {
        let mut agent = FakeAgent::dial(&controller.socket()).await;
        agent.say_raw(message).await;
        let (reason, message) = agent.hear_refusal().await;
        assert_eq!(reason, "Malformed", "{message}");
        assert!(message.contains(field), "{field}: {message}");
        assert!(message.len() < 500, "{} characters about {field}", message.len());
    }
    assert_eq!(controller.store.durable(), before);
    other.settle(vec![device(0, "S2")]).await;
}

/// Bytes that are no HTTP/2, or only a part of it, then a hang-up or not: the other callers do not notice.
#[tokio::test]
async fn noise_on_the_socket_disturbs_nobody() {
    let controller = Controller::start();
    let client = controller.client().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].as_slice();
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let random: Vec<u8> = (0..4_096)
        .map(|_| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            noise.to_be_bytes()[0]
        })
        .collect();
    let cases = [
        Vec::new(),
        random.clone(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        preface[..10].to_vec(),
        preface.to_vec(),
        [preface, settings, &[0, 0, 9, 1]].concat(),
        // A frame that says 16 MiB and has 3 bytes.
        [preface, settings, &[0xff, 0xff, 0xff, 1, 4, 0, 0, 0, 1, 1, 2, 3]].concat(),
        [preface, settings, &random].concat(),
    ];
    let mut held = Vec::new();
    for bytes in cases {
        for hang_up in [true, false] {
            let mut stream = UnixStream::connect(controller.socket()).await.unwrap();
            // The server may hang up in the middle of it.
            stream.write_all(&bytes).await.unwrap_or_default();
            if hang_up {
                stream.shutdown().await.unwrap_or_default();
                let mut said = Vec::new();
                drop(in_time("the server hangs up", stream.read_to_end(&mut said)).await);
            } else {
                held.push(stream);
            }
            assert!(client.list("Drive").await.is_empty());
        }
    }
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    assert_eq!(client.code(add("S1")).await, "S_OK");
    agent.order().await;
}

#[tokio::test]
async fn names_that_mean_nothing_are_answered_and_change_nothing() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    let before = controller.store.durable();
    let long = "x".repeat(5_000);
    let devices = [
        ("S2", "E_NOT_FOUND"),
        ("node-b:bay-0", "E_NOT_FOUND"),
        ("node-a:bay-9", "E_NOT_FOUND"),
        ("node-a:", "E_NOT_FOUND"),
        (":", "E_NOT_FOUND"),
        ("../../dev/sda", "E_NOT_FOUND"),
        ("00000000000000000000000000000000", "E_NOT_FOUND"),
        ("'; DROP TABLE drives", "E_NOT_FOUND"),
        ("drîve", "E_NOT_FOUND"),
        ("", "E_ARGUMENT"),
        ("a\nb", "E_ARGUMENT"),
        ("\u{1b}[2J", "E_ARGUMENT"),
        (long.as_str(), "E_ARGUMENT"),
    ];
    for (device, code) in devices {
        let kinds =
            [ActionType::AddDevice, ActionType::RemoveDevice, ActionType::GetDependentVolumes];
        for kind in kinds {
            let (answer, reasons) = client.act(on_device(kind, device)).await;
            assert_eq!(answer, code, "{kind:?} {device:?}: {reasons}");
            assert!(!reasons.is_empty() && reasons.len() < 400, "{kind:?} {device:?}: {reasons}");
        }
    }
    for (host, code) in [
        ("node-b", "E_NOT_FOUND"),
        ("Node-A", "E_NOT_FOUND"),
        ("", "E_ARGUMENT"),
        ("a\0", "E_ARGUMENT"),
    ] {
        for kind in [ActionType::AddHost, ActionType::RemoveHost] {
            assert_eq!(client.code(on_host(kind, host)).await, code, "{kind:?} {host:?}");
        }
    }
    for kind in [0, 99, -1] {
        let action = Action { r#type: kind, host: "node-a".into(), ..Action::default() };
        assert_eq!(client.code(action).await, "E_ARGUMENT", "type {kind}");
    }
    // Good ones between bad ones are carried out, each with its own result.
    let mixed = vec![add("S2"), add("S1"), Action { r#type: 99, ..Action::default() }];
    assert_eq!(controller.store.durable(), before);
    let results = client.act_all(mixed, false).await.unwrap();
    let codes: Vec<_> = results.iter().map(|result| result.result.as_str()).collect();
    assert_eq!(codes, ["E_NOT_FOUND", "S_OK", "E_ARGUMENT"]);
    agent.order().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_is_too_long_is_refused_and_a_long_one_delays_nobody() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (_agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    let before = controller.store.durable();
    let refused = client.act_all(vec![add("S1"); 100_000], false).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("nothing was changed"), "{}", refused.message());
    assert_eq!(controller.store.durable(), before);
    let long: Vec<_> = (0..10_000).map(|number| add(&format!("nothing-{number}"))).collect();
    let other = controller.client().await;
    let polling = async {
        let mut slowest = Duration::ZERO;
        for _ in 0..50 {
            let asked = Instant::now();
            other.list("StorageNode").await;
            slowest = slowest.max(asked.elapsed());
        }
        slowest
    };
    let (results, slowest) = tokio::join!(client.act_all(long, false), polling);
    assert_eq!(results.unwrap().len(), 10_000);
    assert!(slowest < Duration::from_secs(3), "another caller waited for {slowest:?}");
}

/// A thousand connections at once, each with a call of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_callers_are_all_answered() {
    let controller = Controller::start();
    let (_agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1", "S2"])).await;
    let mut callers = JoinSet::new();
    for caller in 0..1_000 {
        let client = controller.client();
        let client = client.await;
        callers.spawn(async move {
            let code = match caller % 3 {
                0 => client.code(add("S1")).await,
                1 => client.code(add("S3")).await,
                _ => client.list("Drive").await.len().to_string(),
            };
            assert!(["S_OK", "S_ALREADY", "E_NOT_FOUND", "2"].contains(&code.as_str()), "{code}");
        });
    }
    in_time("all callers", callers.join_all()).await;
}

/// Callers that hang up in the middle of their call: what they asked for is done or not, and nobody waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_hangs_up_leaves_nothing_behind() {
    let controller = Controller::start();
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1"])).await;
    controller.store.set_commit_delay(Duration::from_millis(20));
    for round in 0..50 {
        let channel = connect(&controller.socket()).await.unwrap();
        let mut client = CmsClient::new(channel);
        let actions = vec![if round % 2 == 0 { add("S1") } else { remove("S1") }];
        let call = client.act(ActRequest { protocol: PROTOCOL, actions, dry_run: false });
        drop(tokio::time::timeout(Duration::from_millis(round % 10), call).await);
    }
    let client = controller.client().await;
    let code = client.code(add("S1")).await;
    assert!(code == "S_OK" || code == "S_ALREADY", "{code}");
    // The newest order is for the newest generation.
    let generation = client.drive("S1").await["goal"]["generation"].as_u64().unwrap();
    while agent.order().await.ordered.stamp.generation.get() < generation {}
}

/// The store of the registry cannot be written: whoever waits is told after a moment, and whoever comes at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_store_fails_callers_hear_why() {
    let controller = Controller::start();
    let client = controller.client().await;
    let (mut agent, _) =
        FakeAgent::join(&controller.socket(), registration("node-a", 1, &["S1", "S2"])).await;
    let next = controller.store.commits() + 1;
    for nth in next..next + 10_000 {
        controller.store.fail_commit(nth, Fault::NoSpace);
    }
    // Nothing is mended before it is told.
    let begun = Instant::now();
    let pending = client.act_all(vec![add("S1")], false).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(6), "told after {:?}", begun.elapsed());
    let request =
        ListRequest { protocol: PROTOCOL, kind: "Drive".into(), ..ListRequest::default() };
    let read = client.list_raw(request).await.unwrap_err();
    let refused = client.act_all(vec![add("S2")], false).await.unwrap_err();
    for status in [&pending, &read, &refused] {
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("no space left"), "{}", status.message());
    }
    assert!(refused.message().contains("nothing was changed"), "{}", refused.message());
    assert!(pending.message().contains("asking again is safe"), "{}", pending.message());
    controller.store.heal();
    let order = agent.order().await;
    assert_eq!(client.code(add("S1")).await, "S_ALREADY", "it was decided, and is durable now");
    assert_eq!(client.state("S2").await, "UnknownDevice");
    assert_eq!(order.ordered.stamp.generation.get(), 1);
}

/// A device that nothing tells from another is shown, once, however often its agent registers and reports.
#[tokio::test]
async fn a_device_without_identity_is_one_device() {
    let controller = Controller::start();
    let client = controller.client().await;
    let nameless = |size_bytes| Observed {
        evidence: Evidence::default(),
        denied: vec![Denied::NoIdentity],
        size_bytes,
        ..device(0, "")
    };
    let registration = registration("node-a", 1, &[]);
    for size in 1..4 {
        let registration = hotbay_core::message::Registration {
            devices: vec![nameless(size << 30)],
            ..registration.clone()
        };
        let (mut agent, _) = FakeAgent::join(&controller.socket(), registration).await;
        agent.settle(vec![nameless((size << 30) + 512)]).await;
    }
    let drives = client.list("Drive").await;
    assert_eq!(drives.len(), 1, "{drives:#?}");
}

/// Every page says where the next one begins, and together they are the list.
#[tokio::test]
async fn a_list_comes_page_by_page() {
    let controller = Controller::start();
    let serials = ["S1", "S2", "S3"];
    let _agent = FakeAgent::join(&controller.socket(), registration("node-a", 1, &serials)).await;
    let channel = in_time("a connection", connect(&controller.socket())).await.unwrap();
    let mut client = ViewClient::new(channel);
    let whole = ListRequest { protocol: PROTOCOL, kind: "Drive".into(), ..ListRequest::default() };
    let all = in_time("the list", client.list(whole.clone())).await.unwrap().into_inner();
    assert_eq!((all.objects.len(), all.next.as_str()), (3, ""));
    let mut request = ListRequest { limit: 2, ..whole };
    let first = in_time("a page", client.list(request.clone())).await.unwrap().into_inner();
    request.after = first.next;
    let second = in_time("a page", client.list(request.clone())).await.unwrap().into_inner();
    assert_eq!([first.objects, second.objects].concat(), all.objects);
    assert_eq!(second.next, "");
    request.after = "nonsense".into();
    let refused = in_time("a page", client.list(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

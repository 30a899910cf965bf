//! The real agent and a registry that misbehaves: orders again and again, orders of the past, words that mean nothing.

mod cluster;
mod fake_registry;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, anyone_has_open, eventually};
use fake_registry::{Session, TERM};
use hotbay_api::agent as wire;
use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_core::message::{AnswerResult, Obstacle, Order, OrderRefused};
use hotbay_core::order::{Goal, Term};
use hotbay_host::locks::WriterLock;
use hotbay_host::{RuntimeDir, scan};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use tokio::sync::mpsc::Receiver;

const LIMIT: Duration = Duration::from_secs(60);

/// An agent that has registered, and where it would dial again.
async fn registered(cluster: &mut Cluster) -> (Receiver<Session>, Session) {
    let mut sessions = fake_registry::listen(&cluster.api());
    cluster.start_agent();
    let session = tokio::time::timeout(LIMIT, sessions.recv()).await;
    let mut session = session.expect("the agent dials").expect("somebody listens");
    session.register().await;
    (sessions, session)
}

async fn ask(session: &mut Session, order: &Order) -> AnswerResult {
    session.say(FromRegistry::Order(order.clone())).await;
    loop {
        match session.hear().await {
            Some(FromAgent::Answer(answer)) if answer.ordered == order.ordered => {
                return answer.result;
            }
            Some(_) => {}
            None => panic!("the agent hung up"),
        }
    }
}

/// A drive that cannot be attached, because another process may still write to it, and an order for it that is
/// repeated without end. Each repetition used to leave a pause behind that begot the next one, so that the tries came
/// faster with every order. Then the same order on a drive that is attached: it is answered, and nothing happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_again_and_again_is_one_order() {
    let mut cluster = Cluster::new(1, false);
    let (_sessions, mut session) = registered(&mut cluster).await;
    let path = cluster.drives[0].path.to_str().unwrap().to_owned();
    let id = scan::list(&scan::Selection::Patterns(vec![path])).unwrap()[0].id;
    let lock = WriterLock::take(&RuntimeDir::of_this_user().unwrap(), id).unwrap();
    let attach = session.order(Goal::Attach, 1);
    let me = std::process::id().to_string();
    for _ in 0..40 {
        match ask(&mut session, &attach).await {
            AnswerResult::Waiting(Obstacle::Quarantined { why }) => {
                assert!(why.contains(&me), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!anyone_has_open(&cluster.drives[0].path));
    let before = cluster.logged("attaching");
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs(11)).await;
    let tries = || cluster.logged("attaching") - before;
    eventually("it is tried again by itself", || (tries() > 0).then_some(()));
    // By then a pause is ten seconds long.
    let (tries, took) = (tries(), began.elapsed());
    let (least, most) = (took.as_secs() / 20, 2 + took.as_secs() / 10);
    assert!((least..=most).contains(&(tries as u64)), "{tries} tries in {took:?}");
    drop(lock);
    assert_eq!(ask(&mut session, &attach).await, AnswerResult::Done);
    let held = cluster.agent_descriptors(0);
    assert_eq!(held.len(), 1);
    for _ in 0..10 {
        assert_eq!(ask(&mut session, &attach).await, AnswerResult::Done);
    }
    assert_eq!(cluster.agent_descriptors(0), held);
    let detach = session.order(Goal::Detach, 2);
    for _ in 0..3 {
        assert_eq!(ask(&mut session, &detach).await, AnswerResult::Done);
        assert!(!anyone_has_open(&cluster.drives[0].path));
    }
    // The order of the past, and the same generation with another goal.
    for late in [attach, session.order(Goal::Attach, 2)] {
        let answer = ask(&mut session, &late).await;
        let refused = matches!(
            answer,
            AnswerResult::Refused(OrderRefused::Stale { .. } | OrderRefused::GoalConflict { .. })
        );
        assert!(refused, "{answer:?}");
    }
    assert!(!anyone_has_open(&cluster.drives[0].path));
}

/// A leader that was stopped goes on after another has taken over: its order is newer than all that the agent has seen,
/// but for its term. So is one of a registry that counts on from a copy of the same past.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_of_another_term_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::new(1, false);
    let (_sessions, mut session) = registered(&mut cluster).await;
    let attach = session.order(Goal::Attach, 1);
    assert_eq!(ask(&mut session, &attach).await, AnswerResult::Done);
    let held = cluster.agent_descriptors(0);
    let other_id = TermId::from_bits(8);
    for (number, id) in [(TERM.number - 1, other_id), (TERM.number, other_id), (9, other_id)] {
        let mut detach = session.order(Goal::Detach, 2);
        detach.ordered.stamp.term = Term { number, id };
        let answer = ask(&mut session, &detach).await;
        let refused = matches!(answer, AnswerResult::Refused(OrderRefused::ForeignTerm { .. }));
        assert!(refused, "term {number}: {answer:?}");
        assert_eq!(cluster.agent_descriptors(0), held, "term {number}");
    }
    // None of them counts as seen.
    let detach = session.order(Goal::Detach, 2);
    assert_eq!(ask(&mut session, &detach).await, AnswerResult::Done);
    assert!(!anyone_has_open(&cluster.drives[0].path));
}

/// A registry that cannot be understood is given up and dialled again; what is open stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_another_protocol_ends_the_session() {
    let mut cluster = Cluster::new(1, false);
    let mut sessions = fake_registry::listen(&cluster.api());
    cluster.start_agent();
    for message in [
        wire::RegistryMessage { protocol: 9, kind: None },
        wire::RegistryMessage { protocol: hotbay_api::PROTOCOL, kind: None },
    ] {
        let session = tokio::time::timeout(LIMIT, sessions.recv()).await;
        let mut session = session.expect("the agent dials again").unwrap();
        session.register().await;
        let attach = session.order(Goal::Attach, 1);
        assert_eq!(ask(&mut session, &attach).await, AnswerResult::Done);
        session.say_raw(message).await;
        while session.hear().await.is_some() {}
        assert_eq!(cluster.agent_descriptors(0).len(), 1);
    }
}

/// The wall clock of the registry's machine jumps to the beginning and the end of time between two actions. Dates look
/// odd, everything else goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_shows_in_dates_alone() {
    static WALL_MS: AtomicU64 = AtomicU64::new(0);
    let mut cluster = Cluster::new(1, false);
    let surroundings = Surroundings {
        cluster: ClusterId::from_bits(1),
        term: TermId::from_bits(2),
        wall_ms: || WALL_MS.load(Ordering::Relaxed),
        checkpoint: |_| {},
        auto_add: Default::default(),
    };
    let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
    let listener = tokio::net::UnixListener::bind(cluster.api()).unwrap();
    let fresh = || u128::from(WALL_MS.load(Ordering::Relaxed)) + 7;
    tokio::spawn(hotbay_control::serve(registry, listener, fresh, std::future::pending()));
    cluster.start_agent();
    cluster.wait_ready();
    for wall_ms in [u64::MAX, 1, 4_102_444_800_000, 0] {
        WALL_MS.store(wall_ms, Ordering::Relaxed);
        cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
        cluster.expect(&["get", "drives"], 0);
        cluster.expect(&["get", "drives", "-o", "wide"], 0);
        cluster.expect(&["get", "nodes"], 0);
        cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
    }
}

/// Whatever answers at the registry's socket, noise or half a frame or nothing: the agent dials with pauses, keeps its
/// drives, and is there when the registry is back.
#[test]
fn noise_in_place_of_a_registry_is_not_pressed() {
    let mut cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    cluster.registry.take().unwrap().kill();
    std::fs::remove_file(cluster.api()).unwrap();
    let listener = UnixListener::bind(cluster.api()).unwrap();
    let dials = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&dials);
    // Ends with the test program.
    std::thread::spawn(move || {
        let said: [&[u8]; 3] =
            [&[0xff; 512], &[0, 0, 9, 4, 0], b"HTTP/1.1 400 Bad Request\r\n\r\n"];
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            stream.write_all(said[nth % said.len()]).unwrap_or_default();
            stream.read(&mut [0; 64]).unwrap_or_default();
        }
    });
    eventually("the agent dials", || (dials.load(Ordering::Relaxed) > 2).then_some(()));
    let before = dials.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_secs(5));
    let more = dials.load(Ordering::Relaxed) - before;
    assert!(more < 12, "{more} dials in five seconds");
    assert_eq!(cluster.agent_descriptors(0), held);
    // The registry does not take a socket away from whoever listens on it.
    std::fs::remove_file(cluster.api()).unwrap();
    cluster.start_registry();
    cluster.wait_ready();
    assert_eq!(cluster.agent_descriptors(0), held);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

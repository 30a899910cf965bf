//! The agent's loop and a registry that is silent, or hangs up: news made by hand, on a clock that is turned by hand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::agent::{Agent, AttachAtStart, RecordFound};
use hotbay_core::device::{DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId};
use hotbay_core::message::{Order, Registered};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::rules::Rules;
use hotbay_host::RuntimeDir;
use hotbay_host::worker::{Limits, Workers};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{LOOK_EVERY, REGISTRATION_LIMIT, Shell, WAITING};
use crate::discovery::{Context, Found, Handled, Metrics};
use crate::drives::{Drives, StepEnd};
use crate::link::News;
use crate::state_dir::StateDir;
use crate::volumes::{Children, Platform, Stagings};

/// A machine without drives, the sender of its news, and what its loop needs.
struct Rig {
    shell: Shell,
    found: watch::Sender<Found>,
    ended: mpsc::Receiver<StepEnd>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime_dir = RuntimeDir::at(dir.path().join("run")).unwrap();
        let workers = Workers::of_this_program(runtime_dir, Limits::default());
        let (ends, ended) = mpsc::channel(WAITING);
        let incarnation = Incarnation::from_bits(5);
        let found = RecordFound::Absent(None);
        let at_start = AttachAtStart::default();
        let (agent, _) = Agent::start(Rules::default(), incarnation, found, Vec::new(), at_start);
        let shell = Shell {
            agent,
            name: "node-a".parse().unwrap(),
            labels: Default::default(),
            version: "1.2.3".parse().unwrap(),
            machine: MachineId::from_bits(6),
            state_dir: StateDir::open(&dir.path().join("state"), |_| {}).unwrap(),
            drives: Drives::new(workers.clone(), ends.clone()),
            platform: Platform {
                questions: mpsc::channel(1).0,
                children: Children::new(workers),
                stagings: Stagings::open(dir.path(), |_| {}).unwrap(),
                dummies: dir.path().join("dummies"),
            },
            told_stagings: BTreeMap::new(),
            marks: Vec::new(),
            ends,
            connection: None,
            reported: Vec::new(),
            told: Vec::new(),
            hanging: Vec::new(),
            handled: Handled::new(),
            not_ours: BTreeSet::new(),
            context: watch::Sender::new(Context::default()),
            metrics: Metrics::default(),
            unpublished: VecDeque::new(),
            filters: Default::default(),
            reports: 0,
            retries: BTreeMap::new(),
        };
        Self { shell, found: watch::Sender::new(Found::default()), ended, _dir: dir }
    }

    /// Runs the loop beside a script that brings the news.
    async fn beside(self, script: impl AsyncFnOnce(mpsc::Sender<News>)) {
        let Self { mut shell, found, ended, _dir } = self;
        let (sender, news) = mpsc::channel(WAITING);
        let (_questions, asked) = mpsc::channel(1);
        let stop = std::future::pending();
        tokio::select! {
            () = shell.serve(found.subscribe(), ended, news, asked, stop) => unreachable!(),
            () = script(sender) => {}
        }
    }
}

/// A connection is there; what the agent says over it.
async fn connect(news: &mpsc::Sender<News>, connection: u64) -> mpsc::Receiver<FromAgent> {
    let (to_registry, mut says) = mpsc::channel(WAITING);
    news.send(News::Connected { connection, to_registry }).await.unwrap();
    let said = says.recv().await;
    assert!(matches!(said, Some(FromAgent::Register(_))), "{said:?}");
    says
}

fn registered(connection: u64) -> News {
    let registered = Registered {
        session: SessionNumber::from_number(connection + 1),
        cluster: ClusterId::from_bits(1),
        node: NodeId::from_bits(2),
        term: Term { number: 1, id: TermId::from_bits(7) },
        allowed: Vec::new(),
        unknown: Vec::new(),
    };
    News::Said { connection, message: Box::new(FromRegistry::Registered(registered)) }
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_never_answered_is_given_up_and_sent_again() {
    let script = async |news: mpsc::Sender<News>| {
        let begun = Instant::now();
        let mut silent = connect(&news, 0).await;
        let said = tokio::time::timeout(4 * REGISTRATION_LIMIT, silent.recv()).await;
        assert!(matches!(said, Ok(None)), "not given up: {said:?}");
        let waited = begun.elapsed();
        let expected = REGISTRATION_LIMIT..=REGISTRATION_LIMIT + 2 * LOOK_EVERY;
        assert!(expected.contains(&waited), "given up after {waited:?}");
        let mut answers = connect(&news, 1).await;
        // The answer over the old connection comes too late, and does not count.
        news.send(registered(0)).await.unwrap();
        let said = tokio::time::timeout(4 * REGISTRATION_LIMIT, answers.recv()).await;
        assert!(matches!(said, Ok(None)), "a late answer was taken: {said:?}");
    };
    Rig::new().beside(script).await;
}

#[tokio::test(start_paused = true)]
async fn a_registration_that_is_answered_keeps_its_connection() {
    let script = async |news: mpsc::Sender<News>| {
        let mut says = connect(&news, 0).await;
        news.send(registered(0)).await.unwrap();
        let said = tokio::time::timeout(4 * REGISTRATION_LIMIT, says.recv()).await;
        assert!(said.is_err(), "{said:?}");
    };
    Rig::new().beside(script).await;
}

/// A drive was resized after the registration was sent and before it was answered: the registry kept the old size until
/// something else changed.
#[tokio::test(start_paused = true)]
async fn what_changes_while_the_registration_is_answered_is_told_then() {
    let Rig { mut shell, .. } = Rig::new();
    let (to_registry, mut says) = mpsc::channel(WAITING);
    shell.heard(News::Connected { connection: 0, to_registry });
    assert!(matches!(says.try_recv(), Ok(FromAgent::Register(_))));
    let resized = Observed {
        evidence: Evidence { serial: Some("S1".into()), ..Evidence::default() },
        path: "/dev/sdx".into(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 2 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: Vec::new(),
    };
    shell.publish(vec![resized.clone()]);
    assert!(says.try_recv().is_err(), "nobody listens yet");
    shell.heard(registered(0));
    let said = says.try_recv();
    let Ok(FromAgent::Report { devices, .. }) = said else { panic!("{said:?}") };
    assert_eq!(devices, [resized]);
    assert!(says.try_recv().is_err(), "told once");
}

/// The registry ends the session: the agent is in none, and is given up again if the next one is silent.
#[tokio::test(start_paused = true)]
async fn a_session_that_the_registry_dropped_is_no_session() {
    let script = async |news: mpsc::Sender<News>| {
        let mut says = connect(&news, 0).await;
        news.send(registered(0)).await.unwrap();
        news.send(News::Lost { connection: 0 }).await.unwrap();
        let said = tokio::time::timeout(REGISTRATION_LIMIT, says.recv()).await;
        assert!(matches!(said, Ok(None)), "it goes on in a session that ended: {said:?}");
        let mut next = connect(&news, 1).await;
        // News of the old one do not touch the new one.
        news.send(News::Lost { connection: 0 }).await.unwrap();
        let said = tokio::time::timeout(4 * REGISTRATION_LIMIT, next.recv()).await;
        assert!(matches!(said, Ok(None)), "still in the old session: {said:?}");
    };
    Rig::new().beside(script).await;
}

/// A drive that could not be attached for long, and is then to be detached: its first tries come quickly.
#[tokio::test(start_paused = true)]
async fn another_wish_is_tried_again_as_soon_as_any_first_one() {
    let Rig { mut shell, .. } = Rig::new();
    let drive = DriveId::from_bits(3);
    let News::Said { message, .. } = registered(0) else { unreachable!() };
    shell.said(*message);
    let order = |goal, generation| {
        let term = Term { number: 1, id: TermId::from_bits(7) };
        let stamp = Stamp { term, generation: Generation::from_number(generation) };
        FromRegistry::Order(Order {
            drive,
            ordered: Ordered { goal, stamp },
            incarnation: Incarnation::from_bits(5),
            evidence: Evidence::default(),
            take_over: false,
            wipe: None,
            given_up: false,
        })
    };
    shell.said(order(Goal::Attach, 1));
    for failed in 1..=8 {
        shell.retry_later(drive);
        assert_eq!(shell.retries[&drive].failed, failed);
    }
    shell.said(order(Goal::Detach, 2));
    shell.retry_later(drive);
    assert_eq!(shell.retries[&drive].failed, 1);
}

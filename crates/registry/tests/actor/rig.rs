//! A registry on a store that waits, fails and dies on request, and agents that are only a session.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use hotbay_core::cluster::{FreshIds, State};
use hotbay_core::cms::{Action, Code, Outcome, Target};
use hotbay_core::device::{DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId};
use hotbay_core::message::{Answer, AnswerResult, Order, RecordHealth, Registered, Registration};
use hotbay_registry::store::WhenEnded;
use hotbay_registry::{
    CallError, Ended, Key, Registry, Store, StoreError, Surroundings, ToAgent, Write,
};
use tokio::sync::mpsc;

use crate::under::{SHARED, Under, new};

/// Longer than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// How long something that must not happen is waited for.
pub(crate) const A_WHILE: Duration = Duration::from_millis(50);

/// What the store does with the next commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    Works,
    /// Commits wait until the mood changes.
    Waits,
    Fails,
    /// The file is damaged: nothing will be durable any more.
    Lost,
}

#[derive(Debug, Clone)]
pub(crate) struct MoodyStore {
    pub(crate) memory: Under,
    /// A record that is refused while all others are written.
    refused: Arc<Mutex<Option<Key>>>,
    mood: Arc<(Mutex<Mood>, Condvar)>,
}

impl MoodyStore {
    pub(crate) fn new(memory: Under) -> Self {
        let mood = Arc::new((Mutex::new(Mood::Works), Condvar::new()));
        Self { memory, refused: Arc::default(), mood }
    }

    pub(crate) fn refuse(&self, key: Option<Key>) {
        *self.refused.lock().unwrap() = key;
    }

    pub(crate) fn set(&self, mood: Mood) {
        *self.mood.0.lock().unwrap() = mood;
        self.mood.1.notify_all();
    }
}

impl MoodyStore {
    /// What becomes of writes before the store below has seen them.
    fn meet(&self, writes: &[Write]) -> Result<(), StoreError> {
        let waits = |mood: &mut Mood| *mood == Mood::Waits;
        let mood = *self.mood.1.wait_while(self.mood.0.lock().unwrap(), waits).unwrap();
        let refused = *self.refused.lock().unwrap();
        if let Some(key) = refused.filter(|key| writes.iter().any(|write| write.key() == *key)) {
            let (action, object, what) = ("write", key.to_string(), "a policy forbids it".into());
            return Err(StoreError::Refused { action, object, what });
        }
        let path = "/nowhere/registry.redb".into();
        match mood {
            Mood::Works | Mood::Waits => Ok(()),
            Mood::Fails => {
                let source = std::io::ErrorKind::StorageFull.into();
                Err(StoreError::NoSpace { path, source })
            }
            Mood::Lost => Err(StoreError::Damaged { path, what: "as asked for".into() }),
        }
    }
}

impl Store for MoodyStore {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        self.memory.load()
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.meet(writes)?;
        self.memory.commit(writes)
    }

    fn begin(&mut self, write: Write, ended: WhenEnded) {
        match self.meet(std::slice::from_ref(&write)) {
            Ok(()) => self.memory.begin(write, ended),
            Err(error) => ended(Err(error)),
        }
    }

    fn is_shared(&self) -> bool {
        SHARED
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.memory.read(key)
    }
}

pub(crate) struct Rig {
    pub(crate) registry: Registry,
    pub(crate) ended: Ended,
    pub(crate) store: MoodyStore,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::over(new(), || 0)
    }

    pub(crate) fn over(memory: Under, wall_ms: fn() -> u64) -> Self {
        let store = MoodyStore::new(memory);
        // Each start has an id of its own: whoever comes with the same one again is the same start.
        static STARTS: AtomicU64 = AtomicU64::new(100);
        let term = TermId::from_bits(STARTS.fetch_add(1, Ordering::Relaxed).into());
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term,
            wall_ms,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, ended) = Registry::start(store.clone(), surroundings).unwrap();
        Self { registry, ended, store }
    }

    /// One action, by serial number.
    pub(crate) async fn act(&self, action: Action) -> Result<Outcome, CallError> {
        self.registry.act(vec![action], "test".into(), false).await.map(|mut all| all.remove(0))
    }

    pub(crate) async fn state(&self, serial: &str) -> State {
        let serial = serial.to_owned();
        let look = move |cluster: &hotbay_core::cluster::Cluster| {
            let id = cluster.find(&target(&serial)).unwrap();
            cluster.drive(id).unwrap().record.state
        };
        self.registry.read(look).await.unwrap()
    }
}

pub(crate) fn target(serial: &str) -> Target {
    Target { host: None, device: serial.to_owned() }
}

pub(crate) fn add(serial: &str) -> Action {
    Action::AddDevice(target(serial))
}

pub(crate) fn remove(serial: &str) -> Action {
    Action::RemoveDevice(target(serial))
}

pub(crate) fn assert_code(outcome: Result<Outcome, CallError>, code: Code) {
    assert_eq!(outcome.unwrap().code, code);
}

/// Waits, but not for ever.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// The agent's end of a session.
pub(crate) struct Agent {
    pub(crate) session: SessionNumber,
    pub(crate) told: mpsc::Receiver<ToAgent>,
    pub(crate) registered: Registered,
}

impl Agent {
    /// Joins as the node with this number, with so many drives: `n1-0`, `n1-1` and so on by serial number.
    pub(crate) async fn join(rig: &Rig, node: u32, drives: usize, outbox: usize) -> Self {
        let (sender, mut told) = mpsc::channel(outbox);
        let session = rig.registry.accept(sender).await.unwrap();
        let (registration, fresh) = registration(node, drives, session);
        rig.registry.register(session, None, registration, fresh).await.unwrap();
        match in_time("registered", told.recv()).await {
            Some(ToAgent::Registered(registered)) => {
                Self { session, told, registered: *registered }
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn order(&mut self) -> Order {
        match in_time("an order", self.told.recv()).await {
            Some(ToAgent::Order(order)) => *order,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn answer(&self, rig: &Rig, order: &Order) -> Result<(), CallError> {
        let Order { drive, ordered, incarnation, .. } = order.clone();
        let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
        rig.registry.answer(self.session, answer).await
    }
}

pub(crate) fn registration(
    node: u32,
    drives: usize,
    session: SessionNumber,
) -> (Registration, FreshIds) {
    let device = |drive: usize| Observed {
        evidence: Evidence { serial: Some(format!("n{node}-{drive}")), ..Evidence::default() },
        path: format!("/dev/drive{drive}"),
        bay: Some(drive.to_string()),
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: Vec::new(),
    };
    let bits = u128::from(node) << 64;
    let fresh = FreshIds {
        node: NodeId::from_bits(bits),
        drives: (1_u128..).take(drives).map(|drive| DriveId::from_bits(bits + drive)).collect(),
    };
    let registration = Registration {
        node: None,
        name: format!("node-{node}").parse().unwrap(),
        machine: MachineId::from_bits(bits),
        incarnation: Incarnation::from_bits(bits + u128::from(session.get())),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Absent,
        drives: Vec::new(),
        devices: (0..drives).map(device).collect(),
        conditions: vec![],
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    };
    (registration, fresh)
}

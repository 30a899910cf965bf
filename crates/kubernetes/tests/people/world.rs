//! A registry over the custom resources of a server, with one node, and whoever follows what people do to them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::cms::{Action, Code, Target};
use hotbay_core::ids::{AttachmentId, ClusterId, NodeId, SessionNumber, TermId, VolumeId};
use hotbay_core::volume::class::Class;
use hotbay_core::volume::{Size, Wish};
use hotbay_kubernetes::living::{self, Times};
use hotbay_kubernetes::store::Objects;
use hotbay_kubernetes::{CustomResourceStore, people};
use hotbay_registry::{Ended, Registry, StartError, Surroundings};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::agent::Machine;
use crate::faults::Faults;
use crate::people::People;
use crate::{Server, server};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(180);
/// How long something that must not happen is waited for: longer than it takes to be settled.
const A_WHILE: Duration = Duration::from_millis(500);

/// A volume that every world has, and its attachment.
pub(crate) const VOLUME: &str = "pvc-1";
pub(crate) const ATTACHMENT: &str = "pvc-1-node-a";

/// Short enough for a test. What takes longer in a cluster takes longer here too, in its proportion.
pub(crate) const TIMES: Times = Times {
    pace: Duration::from_millis(50),
    beat: Duration::from_secs(300),
    heard: Duration::from_secs(30),
    away: Duration::from_secs(60),
    settle: Duration::from_millis(300),
    hold: Duration::from_millis(300),
    gone: Duration::from_secs(1),
};

const OUTSIDE: people::Surroundings = people::Surroundings { fresh, wall_ms: || 1_763_300_000_000 };

/// Ids that differ in their first digits, as random ones do.
pub(crate) fn fresh() -> u128 {
    static DRAWN: AtomicU32 = AtomicU32::new(0xf000_0000);
    u128::from(DRAWN.fetch_add(1, Ordering::Relaxed)) << 96
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) people: People,
    pub(crate) registry: Registry,
    /// What the store knows.
    pub(crate) objects: Objects,
    /// The machine of the node, if there is one.
    machine: Machine,
    /// Calls of the store, and of the one who follows.
    pub(crate) store: Faults,
    pub(crate) follower: Faults,
    /// Says why the registry ended, if it did.
    ended: Ended,
    following: JoinHandle<()>,
    living: JoinHandle<()>,
    // The last to be dropped.
    runtime: Runtime,
}

impl World {
    /// `node-a` with so many drives, none of them in operation.
    pub(crate) fn with_drives(drives: usize) -> Self {
        Self::with_drives_and(drives, TIMES)
    }

    pub(crate) fn with_drives_and(drives: usize, times: Times) -> Self {
        let mut world = Self::start_with(server(), 10, times);
        world.machine = Machine::new(drives);
        world.agent_comes();
        world
    }

    /// The agent starts, and remembers what it was told before.
    pub(crate) fn agent_comes(&self) {
        self.wait(self.machine.join(&self.registry)).unwrap();
    }

    /// The agent ends.
    pub(crate) fn agent_goes(&self) {
        self.wait(self.registry.close(self.session())).unwrap();
    }

    /// The session of the agent, which is there.
    pub(crate) fn session(&self) -> SessionNumber {
        let session = self.registry.read(|cluster| cluster.nodes().next().unwrap().session);
        self.wait(session).unwrap().unwrap().number
    }

    /// From now on the agent answers nothing, and is connected, until it starts anew.
    pub(crate) fn agent_falls_silent(&self) {
        self.machine.fall_silent();
    }

    /// The first of two drives is in operation, and has a volume that the node uses.
    pub(crate) fn new() -> Self {
        Self::in_use(TIMES)
    }

    /// The same, with a leader of other patience.
    pub(crate) fn in_use(times: Times) -> Self {
        let world = Self::with_drives_and(2, times);
        world.add("S0");
        let (id, wish) = (VolumeId::from_bits(9 << 96), Box::new(wish(VOLUME)));
        world.request(VolumeRequest::Create { id, wish });
        world.until("created", || world.condition("volumes", VOLUME, "Created") == "True");
        let node = world.registry.read(|cluster| cluster.nodes().next().unwrap().record.id);
        let node: NodeId = world.wait(node).unwrap();
        let attachment = AttachmentId::from_bits(8 << 96);
        let attach = VolumeRequest::Attach { id: attachment, volume: id, node, read_only: false };
        world.request(attach);
        world
            .until("attached", || world.condition("attachments", ATTACHMENT, "Attached") == "True");
        world.settled();
        world
    }

    /// Takes the lead over what is on the server.
    pub(crate) fn start(server: Server, term: u128) -> Self {
        Self::start_with(server, term, TIMES)
    }

    pub(crate) fn start_with(server: Server, term: u128, times: Times) -> Self {
        Self::try_start(server, term, times, Faults::default()).unwrap()
    }

    /// The same, with a store whose calls meet faults.
    pub(crate) fn try_start(
        server: Server,
        term: u128,
        times: Times,
        store: Faults,
    ) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let follower = Faults::default();
        let (registry, objects, ended, following, living) = {
            let _on_it = runtime.enter();
            let connect = || Ok::<_, std::convert::Infallible>(store.before(server.client()));
            let records = CustomResourceStore::new(connect).unwrap();
            let objects = records.objects();
            let surroundings = Surroundings {
                cluster: ClusterId::from_bits(1),
                term: TermId::from_bits(term),
                wall_ms: || 1_763_300_000_000,
                checkpoint: |_| {},
                auto_add: Default::default(),
            };
            let (registry, ended) = Registry::start(records, surroundings)?;
            let client = follower.before(server.client());
            let living =
                living::follow(client.clone(), registry.clone(), objects.clone(), OUTSIDE, times);
            let follow = people::follow(client, registry.clone(), objects.clone(), OUTSIDE);
            (registry, objects, ended, runtime.spawn(follow), runtime.spawn(living))
        };
        let people = People::on(&server);
        let machine = Machine::default();
        Ok(Self {
            server,
            people,
            registry,
            objects,
            machine,
            store,
            follower,
            ended,
            following,
            living,
            runtime,
        })
    }

    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(LIMIT, work).await.unwrap() })
    }

    /// The process ends; what is on the server stays.
    pub(crate) fn stop(self) -> Server {
        self.following.abort();
        self.living.abort();
        drop(self.registry);
        drop(self.runtime);
        self.server
    }

    pub(crate) fn follows(&self) -> bool {
        !self.following.is_finished() && !self.living.is_finished() && self.ended.is_empty()
    }

    pub(crate) fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < LIMIT, "not in time: {what}\n{}", self.events().join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until so many events hold these words, and no more: an event comes after what it tells of.
    pub(crate) fn until_told(&self, words: &str, times: usize) {
        let told = || self.events().iter().filter(|text| text.contains(words)).count();
        self.until(words, || told() >= times);
        assert_eq!(told(), times, "{words}: {:?}", self.events());
    }

    /// Waits until nothing is written any more; says how many writes there were.
    pub(crate) fn settled(&self) -> usize {
        let writes = || self.store.writes() + self.follower.writes();
        let writing = || self.store.writing() + self.follower.writing();
        let since = Instant::now();
        loop {
            let before = writes();
            std::thread::sleep(A_WHILE);
            // On a slow machine one call may take longer.
            if writing() == 0 && writes() == before {
                return before;
            }
            assert!(since.elapsed() < LIMIT, "there is always something to write");
        }
    }

    /// Changes an object, or what is below it, as `kubectl patch` does: who writes it meanwhile does not stop that.
    pub(crate) fn edit(&self, plural: &str, name: &str, below: &str, change: impl Fn(&mut Value)) {
        let path = format!("{plural}/{name}{below}");
        self.until("changed", || {
            let mut object = self.people.named(plural, name);
            change(&mut object);
            let (code, answer) = self.people.call(http::Method::PUT, &path, &object);
            assert!(code == 200 || code == 409, "{code} {answer}");
            code == 200
        });
    }

    pub(crate) fn request(&self, request: VolumeRequest) {
        self.wait(self.registry.request(request, "test".into())).unwrap();
    }

    pub(crate) fn act(&self, action: Action) -> Code {
        let acting = self.registry.act(vec![action], "test".into(), false);
        self.wait(acting).unwrap()[0].code
    }

    /// Puts a drive into operation, by its serial number.
    pub(crate) fn add(&self, serial: &str) {
        let target = Target { host: None, device: serial.to_owned() };
        assert_eq!(self.act(Action::AddDevice(target)), Code::Ok);
        let name = self.drive_name(serial);
        self.until("in operation", || self.condition("drives", &name, "InOperation") == "True");
        // Its label comes after that.
        self.until("room for volumes", || {
            let free =
                self.registry.read(|cluster| cluster.drives().any(|drive| drive.space.is_some()));
            self.wait(free).unwrap()
        });
    }

    pub(crate) fn drive_name(&self, serial: &str) -> String {
        let serial = serial.to_owned();
        let name = self.registry.read(move |cluster| {
            let id = cluster.find(&Target { host: None, device: serial }).unwrap();
            cluster.drive(id).unwrap().record.name.clone()
        });
        self.wait(name).unwrap()
    }

    /// All that was told so far.
    pub(crate) fn events(&self) -> Vec<String> {
        let events = self.registry.events().after(0);
        events.into_iter().map(|event| event.notice.text).collect()
    }

    pub(crate) fn find(&self, plural: &str, name: &str) -> Option<Value> {
        let (code, object) =
            self.people.call(http::Method::GET, &format!("{plural}/{name}"), &Value::Null);
        (code == 200).then_some(object)
    }

    /// The status of a condition; empty if it is not there.
    pub(crate) fn condition(&self, plural: &str, name: &str, kind: &str) -> String {
        let object = self.find(plural, name).unwrap_or_default();
        text(&condition(&object, kind)["status"])
    }

    /// Reason and message of a condition.
    pub(crate) fn reason(&self, plural: &str, name: &str, kind: &str) -> (String, String) {
        let object = self.find(plural, name).unwrap_or_default();
        let condition = condition(&object, kind);
        (text(&condition["reason"]), text(&condition["message"]))
    }
}

pub(crate) fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn wish(name: &str) -> Wish {
    Wish {
        name: name.parse().unwrap(),
        size: Size::of(64 << 20).unwrap(),
        class: Class { max_shares: 1, ..Class::default() },
        parameters: Default::default(),
        nodes: Default::default(),
        preferred: Vec::new(),
        claim: None,
    }
}

//! A process that ends between two writes: the next one finishes what it began. Asked of the server in memory, and of
//! a real one, for every write of a drive's and a volume's life.

use std::time::Duration;

use hotbay_core::cluster::VolumeState;
use hotbay_core::cluster::{AttachmentState, Cluster, Drive, State, Volume, VolumeRequest};
use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{AttachmentId, VolumeId};
use hotbay_core::volume::Size;
use hotbay_registry::{CallError, Registry};

use crate::agent::Machine;
use crate::faults::Faults;
use crate::world::{TIMES, VOLUME, World, fresh, wish};
use crate::{Server, server};

/// As much as it grows to.
const GROWN_BYTES: u64 = 128 << 20;

/// How often it is looked whether what was asked for has come.
const LOOK: Duration = Duration::from_millis(5);

/// The registry, a node and two drives: what there is of objects when the volume is gone.
const OBJECTS_AT_THE_END: usize = 4;

enum Ask {
    Volume(VolumeRequest),
    Act(Action),
}

/// What is asked for next, for as long as it is not so.
type Step = fn(&Cluster) -> Option<Ask>;

/// A drive goes into operation, has a volume from its creation to its end, leaves and comes back.
const LIFE: [(&str, Step); 9] = [
    ("the drive is added", |cluster| is_in(cluster, State::Attached, Action::AddDevice)),
    ("the volume is made", |cluster| {
        let made = volume(cluster).is_some_and(|it| it.record.state == VolumeState::Created);
        let (id, wish) = (VolumeId::from_bits(fresh()), Box::new(wish(VOLUME)));
        (!made).then_some(Ask::Volume(VolumeRequest::Create { id, wish }))
    }),
    ("it is attached", |cluster| {
        let known = volume(cluster)?;
        let attached = known.attachments.values().next();
        let node = cluster.nodes().next()?.record.id;
        let attached = attached.is_some_and(|it| it.record.state == AttachmentState::Attached);
        let (id, volume) = (AttachmentId::from_bits(fresh()), known.record.id);
        let attach = VolumeRequest::Attach { id, volume, node, read_only: false };
        (!attached).then_some(Ask::Volume(attach))
    }),
    ("it is annotated", |cluster| {
        let known = volume(cluster)?;
        let changes = [("a".to_owned(), Some("b".to_owned()))].into();
        let annotate = VolumeRequest::Annotate { volume: known.record.id, changes };
        (!known.record.annotations.contains_key("a")).then_some(Ask::Volume(annotate))
    }),
    ("it grows", |cluster| {
        let known = volume(cluster)?;
        let size = Size::of(GROWN_BYTES).unwrap();
        let expand = VolumeRequest::Expand { volume: known.record.id, size };
        (known.record.size_bytes < GROWN_BYTES).then_some(Ask::Volume(expand))
    }),
    ("it is detached", |cluster| {
        let known = volume(cluster)?;
        let detach = VolumeRequest::Detach { volume: known.record.id, node: None };
        (!known.attachments.is_empty()).then_some(Ask::Volume(detach))
    }),
    ("it is deleted", |cluster| {
        let volume = volume(cluster)?.record.id;
        Some(Ask::Volume(VolumeRequest::Delete { volume }))
    }),
    ("the drive leaves", |cluster| is_in(cluster, State::Detached, Action::RemoveDevice)),
    ("the drive comes back", |cluster| is_in(cluster, State::Attached, Action::AddDevice)),
];

fn volume(cluster: &Cluster) -> Option<&Volume> {
    cluster.volume_by_name(&VOLUME.parse().unwrap())
}

fn drive(cluster: &Cluster) -> Option<&Drive> {
    cluster.drive(cluster.find(&target()).ok()?)
}

fn target() -> Target {
    Target { host: None, device: "S0".to_owned() }
}

/// Asks for an action until the drive is in a state.
fn is_in(cluster: &Cluster, state: State, action: fn(Target) -> Action) -> Option<Ask> {
    let there = drive(cluster).is_some_and(|drive| drive.record.state == state);
    (!there).then(|| Ask::Act(action(target())))
}

/// Waits until a step of the life is done. What is refused is asked for again, as all who ask do.
async fn play(registry: &Registry, step: Step) -> Result<(), CallError> {
    let mut asked = false;
    loop {
        let Some(ask) = registry.read(step).await? else { return Ok(()) };
        if !asked {
            let answered = match ask {
                Ask::Volume(request) => registry.request(request, "test".into()).await.map(drop),
                Ask::Act(action) => {
                    registry.act(vec![action], "test".into(), false).await.map(drop)
                }
            };
            asked = match answered {
                Ok(()) => true,
                Err(CallError::Refused(_)) => false,
                Err(error) => return Err(error),
            };
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// One process after the other over the same server, with the same machine.
struct Life {
    world: World,
    machine: Machine,
    terms: u128,
    /// What the first process meets.
    first: Faults,
}

impl Life {
    /// The first process ends after so many writes, maybe before it leads.
    fn begin(server: &Server, writes: usize) -> Self {
        let (machine, terms) = (Machine::new(2), 10);
        let first = Faults::cut_after_writes(writes);
        let world = World::try_start(server.clone(), terms, TIMES, first.clone());
        let world = world.unwrap_or_else(|_| World::start(server.clone(), terms + 1));
        let mut life = Self { world, machine, terms: terms + 1, first };
        life.join();
        life
    }

    fn join(&mut self) {
        let (machine, registry) = (self.machine.clone(), self.world.registry.clone());
        if !self.is_done(async { machine.join(&registry).await }) {
            self.live_again();
        }
    }

    /// Whether it was done before the process ended.
    fn is_done<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> bool {
        let store = &self.world.store;
        self.world.wait(async {
            tokio::select! {
                done = work => done.is_ok(),
                () = store.meet() => false,
            }
        })
    }

    fn live_again(&mut self) {
        assert!(self.world.store.was_met() || !self.world.follows(), "it did not end");
        self.world.follower.cut();
        self.terms += 1;
        let next = World::start(self.world.server.clone(), self.terms);
        std::mem::replace(&mut self.world, next).stop();
        self.join();
    }

    fn live(&mut self) {
        for (what, step) in LIFE {
            // The process may end, and the next one too, because of a late write of that.
            let is_done = (0..3).any(|_| {
                let registry = self.world.registry.clone();
                let is_done = self.is_done(play(&registry, step));
                if !is_done {
                    self.live_again();
                }
                is_done
            });
            assert!(is_done, "{what}");
        }
    }
}

/// Says whether the end came before the life was over.
fn live(writes: usize) -> bool {
    let server = server();
    let mut life = Life::begin(&server, writes);
    life.live();
    let world = &life.world;
    let place = format!("ended after {writes} writes");
    world.until(&place, || {
        life.machine.extents() == 0 && world.people.count() == OBJECTS_AT_THE_END
    });
    let drives = world.people.list("drives");
    let states: Vec<_> = drives.iter().map(|drive| drive["status"]["state"].clone()).collect();
    assert!(states.contains(&"AttachedDevice".into()), "{place}: {states:?}");
    for drive in drives {
        assert_eq!(drive["status"]["record"]["volumes"], serde_json::json!([]), "{place}");
    }
    assert!(world.follows(), "{place}");
    life.first.was_met()
}

#[test]
fn a_life_is_finished_wherever_the_process_ends() {
    // A real server runs for as long as somebody holds it.
    let _held = server();
    let ends = (0..).take_while(|writes| live(*writes)).count();
    assert!(ends >= 20, "the process ended at {ends} writes alone");
}

//! A process that ends between two writes: the next one finishes what it began. Asked of the server in memory, and of
//! a real one, for every write of the life of a drive and a volume, and of hosts that leave.

use std::time::Duration;

use hotbay_core::cluster::VolumeState;
use hotbay_core::cluster::{AttachmentState, Cluster, Drive, State, Volume, VolumeRequest};
use hotbay_core::cms::{Action, Target};
use hotbay_core::ids::{AttachmentId, SessionNumber, VolumeId};
use hotbay_core::order::Goal;
use hotbay_core::volume::Size;
use hotbay_registry::{CallError, Registry};

use crate::agent::Machine;
use crate::faults::Faults;
use crate::world::{TIMES, VOLUME, World, fresh, wish};
use crate::{Server, server};

/// As much as it grows to.
const GROWN_BYTES: u64 = 128 << 20;

const DRIVES: usize = 2;

/// How often it is looked whether what was asked for has come.
const LOOK: Duration = Duration::from_millis(5);

enum Ask {
    Volume(VolumeRequest),
    Act(Action),
}

/// What is asked for next, for as long as it is not so.
type Step = fn(&Cluster) -> Option<Ask>;

/// What happens, one step after the other.
struct Story {
    /// With the agent there.
    lived: &'static [(&'static str, Step)],
    /// When its machine is gone.
    left: &'static [(&'static str, Step)],
    /// Objects at the end, the registry's among them.
    objects: usize,
    /// Extents on labels at the end.
    extents: usize,
    /// How often the process must have ended at least, for this to be the story.
    ends: usize,
}

/// A drive goes into operation, has a volume from its creation to its end, leaves and comes back.
const DRIVE_AND_VOLUME: Story = Story { lived: &LIFE, left: &[], objects: 4, extents: 0, ends: 20 };

/// All drives of a host go into operation and out again; then it is forgotten.
const HOST_LEAVES: Story =
    Story { lived: &IN_AND_OUT, left: &[FORGOTTEN], objects: 1, extents: 0, ends: 10 };

/// A host is lost with a volume that it uses. Its records stay, and nobody erases what is on the drives.
const HOST_IS_LOST: Story =
    Story { lived: &IN_USE, left: &[PURGED, DELETED], objects: 4, extents: 1, ends: 14 };

const MADE: (&str, Step) = ("the volume is made", |cluster| {
    let made = volume(cluster).is_some_and(|it| it.record.state == VolumeState::Created);
    let (id, wish) = (VolumeId::from_bits(fresh()), Box::new(wish(VOLUME)));
    (!made).then_some(Ask::Volume(VolumeRequest::Create { id, wish }))
});
const ATTACHED: (&str, Step) = ("it is attached", |cluster| {
    let known = volume(cluster)?;
    let attached = known.attachments.values().next();
    let node = cluster.nodes().next()?.record.id;
    let attached = attached.is_some_and(|it| it.record.state == AttachmentState::Attached);
    let (id, volume) = (AttachmentId::from_bits(fresh()), known.record.id);
    let attach = VolumeRequest::Attach { id, volume, node, read_only: false };
    (!attached).then_some(Ask::Volume(attach))
});
const DELETED: (&str, Step) = ("it is deleted", |cluster| {
    let volume = volume(cluster)?.record.id;
    Some(Ask::Volume(VolumeRequest::Delete { volume }))
});

const LIFE: [(&str, Step); 9] = [
    ("the drive is added", |cluster| is_in(cluster, State::Attached, Action::AddDevice)),
    MADE,
    ATTACHED,
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
    DELETED,
    ("the drive leaves", |cluster| is_in(cluster, State::Detached, Action::RemoveDevice)),
    ("the drive comes back", |cluster| is_in(cluster, State::Attached, Action::AddDevice)),
];

const ADDED: (&str, Step) = ("the host is added", |cluster| {
    let add = Action::AddHost { host: host(), with_removed: false, returned: false };
    (!all_are_in(cluster, State::Attached)).then_some(Ask::Act(add))
});

const IN_AND_OUT: [(&str, Step); 3] = [
    ADDED,
    ("it gets no new volumes", |cluster| {
        let cordoned = cluster.nodes().next()?.record.cordoned;
        let cordon = Action::CordonHost { host: host(), cordoned: true };
        (!cordoned).then_some(Ask::Act(cordon))
    }),
    ("it is removed", |cluster| {
        let remove = Action::RemoveHost { host: host() };
        (!all_are_in(cluster, State::Detached)).then_some(Ask::Act(remove))
    }),
];
const FORGOTTEN: (&str, Step) = ("the host is forgotten", |cluster| {
    cluster.nodes().next().map(|_| Ask::Act(Action::ForgetHost { host: host() }))
});

const IN_USE: [(&str, Step); 3] = [ADDED, MADE, ATTACHED];
const PURGED: (&str, Step) = ("the host is purged", |cluster| {
    let given_up = |drive: &Drive| {
        drive.record.state.goal() == Goal::Detach && drive.record.volumes.is_empty()
    };
    let purged = cluster.nodes().next()?.record.purged && cluster.drives().all(given_up);
    (!purged).then(|| Ask::Act(Action::PurgeHost { host: host() }))
});

fn host() -> String {
    "node-a".to_owned()
}

fn all_are_in(cluster: &Cluster, state: State) -> bool {
    cluster.drives().count() == DRIVES && cluster.drives().all(|it| it.record.state == state)
}

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
    /// Of the agent, while it is there.
    session: Option<SessionNumber>,
    terms: u128,
    /// What the first process meets.
    first: Faults,
}

impl Life {
    /// The first process ends after so many writes, maybe before it leads.
    fn begin(server: &Server, writes: usize) -> Self {
        let (machine, terms) = (Machine::new(DRIVES), 10);
        let first = Faults::cut_after_writes(writes);
        let world = World::try_start(server.clone(), terms, TIMES, first.clone());
        let world = world.unwrap_or_else(|_| World::start(server.clone(), terms + 1));
        let mut life = Self { world, machine, session: None, terms: terms + 1, first };
        life.join();
        life
    }

    fn join(&mut self) {
        let (machine, registry) = (self.machine.clone(), self.world.registry.clone());
        self.session = self.before_the_end(async { machine.join(&registry).await });
        if self.session.is_none() {
            self.live_again();
            self.join();
        }
    }

    /// The machine is gone, and its agent with it.
    fn leave(&mut self) {
        let Some(session) = self.session.take() else { return };
        let registry = self.world.registry.clone();
        // A process that ends meanwhile has no sessions any more.
        self.before_the_end(async { registry.close(session).await });
    }

    /// What came of it, if that was before the process ended.
    fn before_the_end<T>(&self, work: impl Future<Output = Result<T, CallError>>) -> Option<T> {
        let store = &self.world.store;
        self.world.wait(async {
            tokio::select! {
                done = work => done.ok(),
                () = store.meet() => None,
            }
        })
    }

    fn live_again(&mut self) {
        assert!(self.world.store.was_met() || !self.world.follows(), "it did not end");
        self.world.follower.cut();
        self.terms += 1;
        let next = World::start(self.world.server.clone(), self.terms);
        std::mem::replace(&mut self.world, next).stop();
        if self.session.is_some() {
            self.join();
        }
    }

    fn live(&mut self, steps: &[(&str, Step)]) {
        for (what, step) in steps {
            // The process may end, and the next one too, because of a late write of that.
            let is_done = (0..3).any(|_| {
                let registry = self.world.registry.clone();
                let is_done = self.before_the_end(play(&registry, *step)).is_some();
                if !is_done {
                    self.live_again();
                }
                is_done
            });
            assert!(is_done, "{what}");
        }
    }
}

impl Story {
    /// Says whether the end came before the story was over.
    fn is_cut(&self, writes: usize) -> bool {
        let server = server();
        let mut life = Life::begin(&server, writes);
        life.live(self.lived);
        if !self.left.is_empty() {
            life.leave();
            life.live(self.left);
        }
        let world = &life.world;
        let place = format!("ended after {writes} writes");
        world.until(&place, || {
            life.machine.extents() == self.extents && world.people.count() == self.objects
        });
        // Asked of the server: what is said beside the records may be what the process ended at.
        let drives = world.people.list("drives");
        for drive in &drives {
            assert_eq!(drive["status"]["record"]["volumes"], serde_json::json!([]), "{place}");
        }
        let in_operation = drives.iter().any(|drive| drive["status"]["state"] == "AttachedDevice");
        assert_eq!(in_operation, self.left.is_empty(), "{place}");
        assert!(world.follows(), "{place}");
        life.first.was_met()
    }

    fn is_finished_wherever_the_process_ends(&self) {
        // A real server runs for as long as somebody holds it.
        let _held = server();
        let ends = (0..).take_while(|writes| self.is_cut(*writes)).count();
        assert!(ends >= self.ends, "the process ended at {ends} writes alone");
    }
}

#[test]
fn a_life_is_finished_wherever_the_process_ends() {
    DRIVE_AND_VOLUME.is_finished_wherever_the_process_ends();
}

#[test]
fn a_host_that_leaves_is_forgotten_wherever_the_process_ends() {
    HOST_LEAVES.is_finished_wherever_the_process_ends();
}

#[test]
fn a_host_that_is_lost_is_given_up_wherever_the_process_ends() {
    HOST_IS_LOST.is_finished_wherever_the_process_ends();
}

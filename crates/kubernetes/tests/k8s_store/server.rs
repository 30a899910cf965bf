//! Two control planes for all tests of this program, which take turns on them: the kinds belong to no namespace, and
//! most of a test is waiting. One that fails may leave its plane without definitions, or without a server: whoever
//! comes next mends it first, so that one failure is one.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hotbay_kubernetes::client::{self, Client};
use hotbay_rig::{ControlPlane, Kubectl, Settings};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::people::{PLURALS, People};

const DEFINITIONS: &str = include_str!("../../../../deploy/crds.yaml");
pub(crate) const NAMES: [&str; 5] = [
    "crd/registries.hotbay.dev",
    "crd/storagenodes.hotbay.dev",
    "crd/drives.hotbay.dev",
    "crd/volumes.hotbay.dev",
    "crd/attachments.hotbay.dev",
];

/// How long the server may take to know a new definition.
const PATIENCE: Duration = Duration::from_secs(90);
const NOT_FOUND: u16 = 404;

struct Plane {
    plane: Mutex<ControlPlane>,
    kubectl: Kubectl,
    address: client::Server,
    _folder: TempDir,
}

const PLANES: usize = 2;

/// The control planes that run, or new ones. They end with the last test that has one or waits for one: what is never
/// dropped would run on.
fn planes() -> Arc<[Plane; PLANES]> {
    static RUNNING: Mutex<Weak<[Plane; PLANES]>> = Mutex::new(Weak::new());
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(planes) = running.upgrade() {
        return planes;
    }
    let planes = Arc::new(std::array::from_fn(|_| Plane::start()));
    for turn in turns().iter_mut() {
        turn.broken = false;
    }
    *running = Arc::downgrade(&planes);
    planes
}

impl Plane {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plane = ControlPlane::start(folder.path(), &Settings::default()).unwrap();
        let kubectl = plane.kubectl().clone();
        let address = client::Server::from_kubeconfig(plane.kubeconfig()).unwrap();
        apply_definitions(&kubectl);
        Self { plane: Mutex::new(plane), kubectl, address, _folder: folder }
    }
}

fn apply_definitions(kubectl: &Kubectl) {
    kubectl.apply(DEFINITIONS).unwrap();
    // A watch: the rig's own limit for a request would cut it short.
    let wait = ["--request-timeout=0", "wait", "--for=condition=Established", "--timeout=90s"];
    kubectl.run(&[&wait[..], &NAMES].concat()).unwrap();
    // Established says that it will be served, not that it is.
    let since = Instant::now();
    while let Err(error) = kubectl.run(&["get", "hotbay"]) {
        assert!(since.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A server, with no object of ours on it, for this test alone.
pub(crate) fn server() -> Server {
    let server = Server { planes: planes(), turn: Turn::take() };
    server.make_ready();
    server
}

/// Leaves no object, whoever holds on to it. Where there is no definition there is none.
fn delete_everything(people: &People) {
    for plural in PLURALS {
        let (code, list) = people.call(Method::GET, plural, &Value::Null);
        if code == NOT_FOUND {
            continue;
        }
        assert!(code < 300, "{plural}: {code} {list}");
        for mut object in list["items"].as_array().cloned().unwrap_or_default() {
            let path = format!("{plural}/{}", object["metadata"]["name"].as_str().unwrap());
            if !object["metadata"]["finalizers"].is_null() {
                object["metadata"]["finalizers"] = json!([]);
                let (code, answer) = people.call(Method::PUT, &path, &object);
                assert!(code < 300 || code == NOT_FOUND, "{path}: {code} {answer}");
            }
            // One that was being deleted is gone by now.
            people.call(Method::DELETE, &path, &json!({}));
        }
    }
}

/// A test's hold on a server.
#[derive(Clone)]
pub(crate) struct Server {
    planes: Arc<[Plane; PLANES]>,
    turn: Turn,
}

impl Server {
    fn its(&self) -> &Plane {
        &self.planes[self.turn.plane]
    }

    /// A client of its own. It must be made on a runtime.
    pub(crate) fn client(&self) -> Client {
        Client::new(self.its().address.clone())
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.its().kubectl
    }

    pub(crate) fn plane(&self) -> MutexGuard<'_, ControlPlane> {
        self.its().plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the definitions of the kinds away, with all objects, or gives them back.
    pub(crate) fn set_definitions(&self, there: bool) {
        if there {
            apply_definitions(self.kubectl());
        } else {
            // A watch, as above.
            let delete = ["--request-timeout=0", "delete", "--timeout=90s"];
            self.kubectl().run(&[&delete[..], &NAMES].concat()).unwrap();
        }
    }

    /// Whether a test that had it has failed, and nobody has mended it since.
    pub(crate) fn is_broken(&self) -> bool {
        turns()[self.turn.plane].broken
    }

    /// Leaves nothing of whoever had it before.
    pub(crate) fn make_ready(&self) {
        if turns()[self.turn.plane].broken {
            self.mend();
            turns()[self.turn.plane].broken = false;
        }
        delete_everything(&People::on(self));
    }

    /// Has it serve all definitions again, whatever became of it: a server that is stopped, or does not answer, and
    /// definitions that are going and wait for objects that somebody holds on to.
    fn mend(&self) {
        {
            let mut plane = self.plane();
            // One that has ended cannot be resumed, and is started again all the same.
            plane.resume_api_server().unwrap_or_default();
            plane.stop_api_server().unwrap();
            plane.start_api_server().unwrap();
        }
        let (people, since) = (People::on(self), Instant::now());
        while let Err(why) = self.definitions_stay(&people) {
            assert!(since.elapsed() < PATIENCE, "the definitions are not there again: {why}");
            std::thread::sleep(Duration::from_millis(100));
        }
        apply_definitions(self.kubectl());
    }

    /// Applies the definitions. Whether all are there and none is on its way out, for which nothing stands in its way
    /// any more.
    fn definitions_stay(&self, people: &People) -> Result<(), String> {
        delete_everything(people);
        self.kubectl().apply(DEFINITIONS).map_err(|error| error.to_string())?;
        let list = [&["get", "--ignore-not-found", "-o", "json"][..], &NAMES].concat();
        let list = self.kubectl().run(&list).map_err(|error| error.to_string())?;
        let list: Value = serde_json::from_str(&list).map_err(|error| error.to_string())?;
        let going = |each: &&Value| !each["metadata"]["deletionTimestamp"].is_null();
        let there = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        match (there.len(), there.iter().filter(going).count()) {
            (len, 0) if len == NAMES.len() => Ok(()),
            (len, going) => Err(format!("{len} of them, {going} are on their way out")),
        }
    }
}

#[derive(Clone, Copy)]
struct OfPlane {
    busy: bool,
    broken: bool,
}

static TURNS: Mutex<[OfPlane; PLANES]> =
    Mutex::new([OfPlane { busy: false, broken: false }; PLANES]);
static FREE: Condvar = Condvar::new();

fn turns() -> MutexGuard<'static, [OfPlane; PLANES]> {
    TURNS.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// Which plane the test on this thread has, and how many holds on it.
    static HELD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Turn {
    plane: usize,
}

impl Turn {
    fn take() -> Self {
        let (mut plane, holds) = HELD.get();
        if holds == 0 {
            let all_are = |turns: &mut [OfPlane; PLANES]| turns.iter().all(|turn| turn.busy);
            let turns = FREE.wait_while(turns(), all_are);
            let mut turns = turns.unwrap_or_else(PoisonError::into_inner);
            plane = turns.iter().position(|turn| !turn.busy).unwrap();
            turns[plane].busy = true;
        }
        HELD.set((plane, holds + 1));
        Self { plane }
    }
}

impl Clone for Turn {
    fn clone(&self) -> Self {
        Self::take()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (plane, holds) = HELD.get();
        HELD.set((plane, holds - 1));
        let mut turns = turns();
        turns[plane].broken |= std::thread::panicking();
        if holds == 1 {
            turns[plane].busy = false;
            FREE.notify_one();
        }
    }
}

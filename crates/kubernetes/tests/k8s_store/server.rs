//! Two control planes for all tests of this program, which take turns on them: the kinds belong to no namespace, and
//! most of a test is waiting.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hotbay_kubernetes::client::{self, Client};
use hotbay_rig::{ControlPlane, Kubectl, Settings};
use http::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::people::{PLURALS, People};

const DEFINITIONS: &str = include_str!("../../../../deploy/crds.yaml");
const NAMES: [&str; 5] = [
    "crd/registries.hotbay.dev",
    "crd/storagenodes.hotbay.dev",
    "crd/drives.hotbay.dev",
    "crd/volumes.hotbay.dev",
    "crd/attachments.hotbay.dev",
];

/// How long the server may take to know a new definition.
const PATIENCE: Duration = Duration::from_secs(90);

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
    delete_everything(&People::on(&server));
    server
}

/// Leaves no object, whoever holds on to it.
fn delete_everything(people: &People) {
    for plural in PLURALS {
        for mut object in people.list(plural) {
            let path = format!("{plural}/{}", object["metadata"]["name"].as_str().unwrap());
            if !object["metadata"]["finalizers"].is_null() {
                object["metadata"]["finalizers"] = json!([]);
                people.succeed(Method::PUT, &path, &object);
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
            self.kubectl().run(&[&["delete"][..], &NAMES].concat()).unwrap();
        }
    }
}

static BUSY: Mutex<[bool; PLANES]> = Mutex::new([false; PLANES]);
static FREE: Condvar = Condvar::new();

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
            let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
            let all_are = |busy: &mut [bool; PLANES]| busy.iter().all(|busy| *busy);
            let mut busy = FREE.wait_while(busy, all_are).unwrap_or_else(PoisonError::into_inner);
            plane = busy.iter().position(|busy| !busy).unwrap();
            busy[plane] = true;
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
        if holds == 1 {
            BUSY.lock().unwrap_or_else(PoisonError::into_inner)[plane] = false;
            FREE.notify_one();
        }
    }
}

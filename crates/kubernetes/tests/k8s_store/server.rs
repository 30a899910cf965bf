//! One control plane for all tests of this program, which take turns on it: the kinds belong to no namespace.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use hotbay_rig::{ControlPlane, Kubectl, Settings};
use http::Method;
use kube_client::config::{KubeConfigOptions, Kubeconfig};
use kube_client::{Client, Config};
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
const PATIENCE: Duration = Duration::from_secs(30);

struct Plane {
    plane: Mutex<ControlPlane>,
    kubectl: Kubectl,
    config: Config,
    _folder: TempDir,
}

/// The control plane that runs, or a new one. It ends with the last test that has it or waits for it: what is never
/// dropped would run on.
fn plane() -> Arc<Plane> {
    static PLANE: Mutex<Weak<Plane>> = Mutex::new(Weak::new());
    let mut running = PLANE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(plane) = running.upgrade() {
        return plane;
    }
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), &Settings::default()).unwrap();
    let kubectl = plane.kubectl().clone();
    let config = Kubeconfig::read_from(plane.kubeconfig()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let options = KubeConfigOptions::default();
    let config = runtime.block_on(Config::from_custom_kubeconfig(config, &options)).unwrap();
    apply_definitions(&kubectl);
    let plane = Arc::new(Plane { plane: Mutex::new(plane), kubectl, config, _folder: folder });
    *running = Arc::downgrade(&plane);
    plane
}

fn apply_definitions(kubectl: &Kubectl) {
    kubectl.apply(DEFINITIONS).unwrap();
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    kubectl.run(&[&wait[..], &NAMES].concat()).unwrap();
    // Established says that it will be served, not that it is.
    let since = Instant::now();
    while let Err(error) = kubectl.run(&["get", "hotbay"]) {
        assert!(since.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The server, with no object of ours on it, for this test alone.
pub(crate) fn server() -> Server {
    let server = Server { plane: plane(), _turn: Turn::take() };
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

/// A test's hold on the server.
#[derive(Clone)]
pub(crate) struct Server {
    plane: Arc<Plane>,
    _turn: Turn,
}

impl Server {
    /// A client of its own. It must be made on a runtime.
    pub(crate) fn client(&self) -> Client {
        Client::try_from(self.plane.config.clone()).unwrap()
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.plane.kubectl
    }

    pub(crate) fn plane(&self) -> MutexGuard<'_, ControlPlane> {
        self.plane.plane.lock().unwrap_or_else(PoisonError::into_inner)
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

static BUSY: Mutex<bool> = Mutex::new(false);
static FREE: Condvar = Condvar::new();

thread_local! {
    /// How many servers the test on this thread holds.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

struct Turn;

impl Turn {
    fn take() -> Self {
        if HELD.get() == 0 {
            let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
            let mut busy =
                FREE.wait_while(busy, |busy| *busy).unwrap_or_else(PoisonError::into_inner);
            *busy = true;
        }
        HELD.set(HELD.get() + 1);
        Self
    }
}

impl Clone for Turn {
    fn clone(&self) -> Self {
        Self::take()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        if HELD.get() == 0 {
            *BUSY.lock().unwrap_or_else(PoisonError::into_inner) = false;
            FREE.notify_one();
        }
    }
}

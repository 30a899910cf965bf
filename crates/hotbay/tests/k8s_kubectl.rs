//! `kubectl hotbay` with a real kubectl, a real API server and a registry that asks it. Only the way to the Service is
//! made up: it would need nodes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hotbay_control::{AuthorityAt, DoorOptions, Doors};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_kubernetes::accounts::ServiceAccounts;
use hotbay_kubernetes::authority;
use hotbay_kubernetes::client::{Client, Server};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use hotbay_rig::{ControlPlane, Settings};
use tokio::net::UnixListener;

const OBJECTS: &str = "
{ apiVersion: v1, kind: Namespace, metadata: { name: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-admin, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-viewer, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: person, namespace: default } }
";

/// How long anything may take, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(90);
const STEP: Duration = Duration::from_millis(100);

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

struct Rig {
    plane: ControlPlane,
    client: Client,
    dir: tempfile::TempDir,
}

impl Rig {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plane = ControlPlane::start(&dir.path().join("plane"), &Settings::default()).unwrap();
        plane.kubectl().apply(OBJECTS).unwrap();
        let client = Client::new(Server::from_kubeconfig(plane.kubeconfig()).unwrap());
        let rig = Self { plane, client, dir };
        let real = rig.plane.kubectl().command().get_program().to_str().unwrap().to_owned();
        let forward =
            "echo \"Forwarding from 127.0.0.1:$(cat \"${0%/*}/port\") -> 7444\"; exec sleep 1000";
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = port-forward ] && [ -e \"${{0%/*}}/port\" ]; then {forward}; fi\n\
             exec {real} \"$@\"\n"
        );
        rig.write("kubectl", &script);
        fs::set_permissions(rig.path("kubectl"), fs::Permissions::from_mode(0o755)).unwrap();
        symlink(env!("CARGO_BIN_EXE_hotbay"), rig.path("kubectl-hotbay")).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn kubectl(&self, words: &str) -> String {
        let words: Vec<_> = words.split(' ').collect();
        self.plane.kubectl().run(&words).unwrap().trim().to_owned()
    }

    /// Waits until the server says that the person may: it takes a moment to know of a new right.
    fn until_may(&self, verb: &str, resource: &str, only: &str) {
        let (resource, below) = resource.split_once('/').unwrap_or((resource, ""));
        let what = format!("{resource}/{only}");
        let ask = ["auth", "can-i", verb, &what, "--subresource", below, "-n", "hotbay"];
        let ask = [&ask[..], &["--as", "system:serviceaccount:default:person"]].concat();
        let give_up = Instant::now() + LIMIT;
        // It says no with an error's code.
        while let Err(error) = self.plane.kubectl().run(&ask) {
            assert!(Instant::now() < give_up, "the right is not known within {LIMIT:?}: {error}");
            sleep(STEP);
        }
    }

    /// Serves as a controller would, behind the way that is made up.
    async fn serve(&self) {
        let pems = authority::load_or_make(&self.client, "hotbay").await.unwrap();
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
        let life = Duration::from_secs(3_600);
        let doors = Doors::open(DoorOptions {
            agents: Vec::new(),
            clients: vec!["127.0.0.1:0".to_owned()],
            authority: AuthorityAt::Given(pems),
            tls_dir: self.path("tls"),
            accounts: Some(Arc::new(ServiceAccounts::new(self.client.clone(), "hotbay"))),
            node_life: life,
            registry_life: life,
            wall_ms,
        });
        let doors = doors.await.unwrap();
        self.write("port", &doors.client_addresses()[0].port().to_string());
        let listeners = vec![UnixListener::bind(self.path("api.sock")).unwrap()];
        let never = std::future::pending();
        tokio::spawn(hotbay_control::serve_with_doors(registry, listeners, doors, || 1, never));
    }

    /// Runs it; it must end with this code, and say this.
    fn expect(&self, arguments: &str, code: i32, words: &str) {
        let mut command = Command::new(self.path("kubectl-hotbay"));
        command.args(arguments.split(' ')).stdin(Stdio::null());
        let path = format!("{}:/usr/bin:/bin", self.dir.path().display());
        command.env("PATH", path).env("KUBECONFIG", self.plane.kubeconfig());
        let Output { status, stdout, stderr } = command.output().unwrap();
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert_eq!(status.code(), Some(code), "{arguments}: {said}");
        assert!(said.contains(words), "{arguments}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubeconfig_and_its_rights_are_all_that_it_takes() {
    let rig = Rig::start();
    rig.expect("get nodes -n nowhere", 4, "see where Hotbay is installed");
    // No controller has started yet.
    rig.expect("get nodes", 4, "kubectl get pods -n hotbay");
    authority::load_or_make(&rig.client, "hotbay").await.unwrap();
    rig.expect("get nodes", 4, "services \"hotbay-controller\" not found");
    rig.serve().await;
    rig.expect("get nodes", 0, "There are no nodes");
    rig.expect("host add node-a", 4, "no host");
    rig.expect("host add node-a --as-viewer", 5, "hotbay-viewer may only read");
    rig.expect("host add node-a --as-viewer", 5, "kubectl create token hotbay-admin -n hotbay");

    // Somebody who has no rights yet, and gets them one by one.
    let person = rig.path("person").display().to_string();
    fs::copy(rig.plane.kubeconfig(), &person).unwrap();
    let token = rig.kubectl("create token person -n default");
    let cluster = rig.kubectl("config view -o jsonpath={.clusters[0].name}");
    let config = format!("config --kubeconfig {person}");
    rig.kubectl(&format!("{config} set-credentials person --token={token}"));
    rig.kubectl(&format!("{config} set-context person --cluster={cluster} --user=person"));
    let grant = |name: &str, verb: &str, resource: &str, only: &str| {
        let role = format!("create role {name} -n hotbay --verb={verb} --resource={resource}");
        rig.kubectl(&format!("{role} --resource-name={only}"));
        let binding = format!("create rolebinding {name} -n hotbay --role={name}");
        rig.kubectl(&format!("{binding} --serviceaccount=default:person"));
        rig.until_may(verb, resource, only);
    };
    let asks = |command: &str| format!("{command} --kubeconfig {person} --context person");
    let right = "create serviceaccounts/token, for the name hotbay-viewer";
    rig.expect(&asks("get nodes"), 5, right);
    grant("tokens", "create", "serviceaccounts/token", "hotbay-viewer");
    rig.expect(&asks("get nodes"), 5, "get configmaps, for the name hotbay-authority");
    grant("authority", "get", "configmaps", "hotbay-authority");
    rig.expect(&asks("get nodes"), 0, "There are no nodes");
    rig.expect(&asks("host add node-a"), 5, "hotbay-viewer is enough to look:  --as-viewer");
    fs::remove_file(rig.path("port")).unwrap();
    rig.expect(&asks("get nodes"), 5, "create pods/portforward");
}

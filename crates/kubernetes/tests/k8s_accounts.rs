//! Service accounts, and the Secret of the authority, on a real API server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::{Duration, Instant};

use hotbay_control::{Account, AccountToken, Accounts, May, NotKnown};
use hotbay_kubernetes::accounts::{AUDIENCE, ServiceAccounts};
use hotbay_kubernetes::authority::{self, AuthorityError};
use hotbay_kubernetes::client::{Client, Server};
use hotbay_rig::{ControlPlane, Kubectl, Settings};
use tempfile::TempDir;

/// How long the API server may take to notice that an account is gone: it keeps what it found out for a while.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rig {
    plane: ControlPlane,
    client: Client,
    _folder: TempDir,
}

impl Rig {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plane = ControlPlane::start(folder.path(), &Settings::default()).unwrap();
        let client = Client::new(Server::from_kubeconfig(plane.kubeconfig()).unwrap());
        Self { plane, client, _folder: folder }
    }

    fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    fn run(&self, words: &str) -> String {
        let words: Vec<_> = words.split(' ').collect();
        self.kubectl().run(&words).unwrap().trim().to_owned()
    }

    fn token(&self, account: &str, more: &str) -> AccountToken {
        let token = self.run(format!("create token {account} {more}").trim());
        AccountToken::new(&token).unwrap()
    }
}

const OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: { name: hotbay }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-node, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-admin, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-viewer, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: other, namespace: hotbay } }
---
{ apiVersion: v1, kind: ServiceAccount, metadata: { name: hotbay-admin, namespace: default } }
---
{ apiVersion: v1, kind: Node, metadata: { name: node-1.example } }
---
apiVersion: v1
kind: Pod
metadata: { name: agent, namespace: hotbay }
spec:
  nodeName: node-1.example
  serviceAccountName: hotbay-node
  automountServiceAccountToken: false
  containers: [{ name: hotbay, image: none }]
";

fn refused<T: std::fmt::Debug>(said: Result<T, NotKnown>, words: &str) {
    match said {
        Err(NotKnown::Refused { why }) => assert!(why.contains(words), "{why}"),
        other => panic!("not refused: {other:?}"),
    }
}

async fn until_refused<T>(mut ask: impl AsyncFnMut() -> Result<T, NotKnown>) {
    let since = Instant::now();
    while !matches!(ask().await, Err(NotKnown::Refused { .. })) {
        assert!(since.elapsed() < PATIENCE, "an account that is gone is still known");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn a_token_says_who_it_is_for_this_audience_alone() {
    let rig = Rig::start();
    rig.kubectl().apply(OBJECTS).unwrap();
    let accounts = ServiceAccounts::new(rig.client.clone(), "hotbay");
    let ours = format!("-n hotbay --audience {AUDIENCE}");

    // A pod's token names the node, and nobody else's does.
    let uid = rig.run("get pod agent -n hotbay -o jsonpath={.metadata.uid}");
    let bound = "--bound-object-kind Pod --bound-object-name agent --bound-object-uid";
    let of_pod = rig.token("hotbay-node", &format!("{ours} {bound} {uid}"));
    assert_eq!(accounts.node_of(&of_pod).await.unwrap().as_str(), "node-1.example");
    refused(accounts.rights_of(&of_pod).await, "is neither hotbay-admin nor hotbay-viewer");
    let unbound = rig.token("hotbay-node", &ours);
    refused(accounts.node_of(&unbound).await, "on which node its pod runs");

    // People and programs.
    let (admin, viewer) = (rig.token("hotbay-admin", &ours), rig.token("hotbay-viewer", &ours));
    let who = |name: &str| format!("system:serviceaccount:hotbay:{name}");
    let expected = Account { who: who("hotbay-admin"), may: May::Write };
    assert_eq!(accounts.rights_of(&admin).await.unwrap(), expected);
    let expected = Account { who: who("hotbay-viewer"), may: May::Read };
    assert_eq!(accounts.rights_of(&viewer).await.unwrap(), expected);
    refused(accounts.node_of(&admin).await, "is not hotbay-node");
    let other = rig.token("other", &ours);
    refused(accounts.rights_of(&other).await, "system:serviceaccount:hotbay:other is neither");
    let elsewhere = rig.token("hotbay-admin", &format!("-n default --audience {AUDIENCE}"));
    refused(accounts.rights_of(&elsewhere).await, "default:hotbay-admin is neither");

    // For others, or for nobody.
    for audience in ["", "--audience elsewhere.example"] {
        let token = rig.token("hotbay-admin", format!("-n hotbay {audience}").trim());
        refused(accounts.rights_of(&token).await, "");
        refused(accounts.node_of(&token).await, "");
    }
    for none in ["root", "a.b.c", "hotbay-client-1.aa.bb.cc"] {
        refused(accounts.rights_of(&AccountToken::new(none).unwrap()).await, "");
    }

    // What is deleted is soon forgotten.
    rig.run("delete serviceaccount hotbay-viewer -n hotbay");
    until_refused(async || accounts.rights_of(&viewer).await).await;
    rig.run("delete pod agent -n hotbay --force --grace-period=0");
    until_refused(async || accounts.node_of(&of_pod).await).await;
    assert!(accounts.rights_of(&admin).await.is_ok());
    let log = std::fs::read_to_string(rig.plane.audit_log()).unwrap();
    assert!(!log.contains(admin.secret()), "the audit log has a token");
}

#[tokio::test]
async fn all_controllers_have_one_authority() {
    let rig = Rig::start();
    rig.run("create namespace hotbay");
    let load = || authority::load_or_make(&rig.client, "hotbay");
    let (one, two, three, four) = tokio::join!(load(), load(), load(), load());
    let first = one.unwrap();
    for other in [two, three, four] {
        assert_eq!(other.unwrap(), first);
    }
    let map = "get configmap hotbay-authority -n hotbay -o jsonpath={.data.authority\\.pem}";
    assert_eq!(rig.run(map), first.certificate.trim());
    let labels = rig.run("get secret,configmap -n hotbay -l app.kubernetes.io/name=hotbay -o name");
    assert_eq!(labels.lines().count(), 2, "{labels}");

    // What nodes read is put right.
    let patch = |object: &str, patch: &str| {
        let words = ["patch", object, "hotbay-authority", "-n", "hotbay", "--type=merge", "-p"];
        rig.kubectl().run(&[&words[..], &[patch]].concat()).unwrap();
    };
    patch("configmap", r#"{"data":{"authority.pem":"nonsense","more":"kept"}}"#);
    assert_eq!(load().await.unwrap(), first);
    assert_eq!(rig.run(map), first.certificate.trim());
    let more = "get configmap hotbay-authority -n hotbay -o jsonpath={.data.more}";
    assert_eq!(rig.run(more), "kept");
    rig.run("delete configmap hotbay-authority -n hotbay");
    assert_eq!(load().await.unwrap(), first);
    assert_eq!(rig.run(map), first.certificate.trim());

    // A damaged Secret is told, and stays as it is.
    let secret = "get secret hotbay-authority -n hotbay -o jsonpath={.data.authority\\.key}";
    let key = rig.run(secret);
    for damage in ["null", "\"\"", "\"bm9uZQ==\""] {
        patch("secret", &format!(r#"{{"data":{{"authority.key":{damage}}}}}"#));
        let error = load().await.unwrap_err();
        assert!(error.to_string().contains("Secret hotbay/hotbay-authority is damaged"), "{error}");
        let left = rig.run(secret);
        assert_eq!(left, damage.trim_matches('"').replace("null", ""));
    }
    patch("secret", &format!(r#"{{"data":{{"authority.key":"{key}"}}}}"#));
    assert_eq!(load().await.unwrap(), first);

    // A running controller writes again what is deleted, and notices that there is another one.
    let waits = authority::replaced(&rig.client, "hotbay", &first);
    tokio::pin!(waits);
    rig.run("delete secret,configmap hotbay-authority -n hotbay");
    let back = async {
        while rig.kubectl().run(&["get", "configmap", "hotbay-authority", "-n", "hotbay"]).is_err()
        {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = &mut waits => panic!("its own authority is another one to it"),
        () = back => {}
    }
    assert_eq!(load().await.unwrap(), first);
    rig.run("delete secret hotbay-authority -n hotbay");
    let second = load().await.unwrap();
    assert_ne!(second, first);
    waits.await;
    assert_eq!(load().await.unwrap(), second, "the one before was put back");

    // A namespace that is not there cannot hold one.
    let error = authority::load_or_make(&rig.client, "nowhere").await.unwrap_err();
    assert!(matches!(error, AuthorityError::Call { verb: "create", .. }), "{error:?}");
}

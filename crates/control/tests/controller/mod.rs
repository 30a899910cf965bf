//! The controller in this process: the real gRPC server on a socket of its own, over records in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use hotbay_api::PROTOCOL;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::view_client::ViewClient;
use hotbay_api::cms::{ActRequest, Action, ActionResult, ActionType, ListRequest};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use serde_json::Value;
use tokio::net::UnixListener;
use tonic::Status;
use tonic::transport::Channel;

use crate::fake_agent::{connect, in_time};

pub(crate) struct Controller {
    pub(crate) store: MemoryStore,
    dir: tempfile::TempDir,
}

fn fresh() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64
}

impl Controller {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::new();
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(store.clone(), surroundings).unwrap();
        let this = Self { store, dir };
        let listener = UnixListener::bind(this.socket()).unwrap();
        let serving = hotbay_control::serve(registry, listener, fresh, std::future::pending());
        tokio::spawn(async move { serving.await.unwrap() });
        this
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    pub(crate) async fn client(&self) -> Client {
        let channel = in_time("a connection", connect(&self.socket())).await.unwrap();
        Client { channel }
    }
}

/// A connection of somebody who asks.
#[derive(Clone)]
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    pub(crate) async fn act_all(
        &self,
        actions: Vec<Action>,
        dry_run: bool,
    ) -> Result<Vec<ActionResult>, Status> {
        let request = ActRequest { protocol: PROTOCOL, actions, dry_run };
        self.act_raw(request).await
    }

    pub(crate) async fn act_raw(&self, request: ActRequest) -> Result<Vec<ActionResult>, Status> {
        let mut client = CmsClient::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        in_time("an answer", client.act(request)).await.map(|answer| answer.into_inner().results)
    }

    /// One action, which has a result: its code and its reasons in one text.
    pub(crate) async fn act(&self, action: Action) -> (String, String) {
        let result = self.act_all(vec![action], false).await.unwrap().remove(0);
        (result.result, result.reasons.join("; "))
    }

    /// The code of one action.
    pub(crate) async fn code(&self, action: Action) -> String {
        self.act(action).await.0
    }

    pub(crate) async fn list_raw(&self, request: ListRequest) -> Result<Vec<Value>, Status> {
        let mut client = ViewClient::new(self.channel.clone());
        let list = in_time("a list", client.list(request)).await?.into_inner();
        Ok(list.objects.iter().map(|object| serde_json::from_str(object).unwrap()).collect())
    }

    pub(crate) async fn list(&self, kind: &str) -> Vec<Value> {
        let request =
            ListRequest { protocol: PROTOCOL, kind: kind.to_owned(), ..ListRequest::default() };
        self.list_raw(request).await.unwrap()
    }

    /// The status of a drive by its serial number.
    pub(crate) async fn drive(&self, serial: &str) -> Value {
        let drives = self.list("Drive").await;
        let found = drives.into_iter().find(|drive| drive["status"]["serial"] == serial);
        found.unwrap()["status"].take()
    }

    pub(crate) async fn state(&self, serial: &str) -> String {
        self.drive(serial).await["state"].as_str().unwrap().to_owned()
    }
}

pub(crate) fn on_device(kind: ActionType, device: &str) -> Action {
    Action { r#type: kind.into(), device: device.to_owned(), ..Action::default() }
}

pub(crate) fn add(device: &str) -> Action {
    on_device(ActionType::AddDevice, device)
}

pub(crate) fn remove(device: &str) -> Action {
    on_device(ActionType::RemoveDevice, device)
}

pub(crate) fn on_host(kind: ActionType, host: &str) -> Action {
    Action { r#type: kind.into(), host: host.to_owned(), ..Action::default() }
}

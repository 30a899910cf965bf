//! What a fault is not about, on drives of its own: a program that writes into a volume, another volume whose use
//! begins and ends, and their agent. All of it goes on while the fault lasts.

use serde_json::Value;

use crate::controllers::Rig;
use crate::controllers::csi::{dial, publish, unpublish};
use crate::controllers::mounted::{Writer, mount, unmount};
use crate::object;

const VOLUME: &str = "other";

pub(crate) struct Others {
    writer: Writer,
    /// By their ids.
    volume: String,
    node: String,
}

impl Others {
    pub(crate) fn start(rig: &Rig) -> Self {
        // The least filled drive takes it: not the one of the volume that is there already.
        rig.client(&["volume", "create", VOLUME, "--size", "16MiB"]);
        let writer = Writer::start(&mount(rig, "kept"));
        let id = |object: &Value| object["status"]["id"].as_str().unwrap().to_owned();
        let volume = id(&object(rig, &["volumes.hotbay.dev", VOLUME]));
        let node = id(&rig.objects("storagenodes")[0]);
        Self { writer, volume, node }
    }

    /// Whatever is asked of them is done. The agent that does it has stayed registered: while a drive of its node
    /// cannot be written it would not be let in again.
    pub(crate) fn go_on(&self, rig: &Rig) {
        let leader = &rig.controllers[rig.leader(None)];
        leader.probe("/readyz").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = dial(leader.csi());
            publish(client.clone(), &self.volume, &self.node).await;
            unpublish(client, &self.volume, &self.node).await;
        });
        self.writer.goes_on();
    }

    /// When the fault is over.
    pub(crate) fn end(self, rig: &Rig) {
        self.writer.end();
        unmount(rig, "kept");
        rig.client(&["volume", "delete", VOLUME, "--yes"]);
    }
}

//! The state as people see it: the kinds of `hotbay-api`, made from the cluster in memory.

use std::pin::Pin;

use hotbay_api::PROTOCOL;
use hotbay_api::cms as wire;
use hotbay_api::kinds::{Drive, DriveStatus};
use hotbay_core::cluster::{About, Cluster};
use hotbay_core::cms::Target;
use hotbay_registry::{EventLog, Recorded, Registry};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::objects;
use crate::patience::patiently;
use crate::peer::admit;

pub(crate) struct Views {
    registry: Registry,
}

impl Views {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    Drives,
    Drive(String),
    Nodes,
    Node(String),
}

#[tonic::async_trait]
impl wire::view_server::View for Views {
    type EventsStream = Pin<Box<dyn Stream<Item = Result<wire::Event, Status>> + Send>>;
    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::ListResponse, Status>> + Send>>;

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListResponse>, Status> {
        admit(&request)?;
        let wanted = wanted(request.into_inner())?;
        list(&self.registry, wanted).await.map(Response::new)
    }

    async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let caller = admit(&request)?;
        let wire::EventsRequest { protocol, follow } = request.into_inner();
        check_protocol(protocol)?;
        let (events, stream) = mpsc::channel(64);
        tokio::spawn(tell(self.registry.events(), follow, events));
        Ok(Response::new(Box::pin(caller.while_good(ReceiverStream::new(stream)))))
    }

    async fn watch(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let caller = admit(&request)?;
        let wanted = wanted(request.into_inner())?;
        // One list waits at the most: a slow reader gets fewer, newer ones.
        let (lists, stream) = mpsc::channel(1);
        tokio::spawn(follow(self.registry.clone(), wanted, lists));
        Ok(Response::new(Box::pin(caller.while_good(ReceiverStream::new(stream)))))
    }
}

/// Sends the list at once, and again after every change. One that cannot be made is the last.
pub(crate) async fn follow(
    registry: Registry,
    wanted: Wanted,
    lists: mpsc::Sender<Result<wire::ListResponse, Status>>,
) {
    let mut changes = registry.changes();
    let mut last = None;
    loop {
        changes.mark_unchanged();
        let list = match list(&registry, wanted.clone()).await {
            Ok(list) => list,
            Err(status) => {
                // The reader may be gone; then nobody needs to know.
                return lists.send(Err(status)).await.unwrap_or_default();
            }
        };
        if last.as_ref() != Some(&list) {
            last = Some(list.clone());
            if lists.send(Ok(list)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = lists.closed() => return,
        }
    }
}

/// Sends what is kept, and on request what comes. A reader that is slower than the events misses the oldest.
async fn tell(log: EventLog, follow: bool, events: mpsc::Sender<Result<wire::Event, Status>>) {
    let mut newest = log.newest();
    let mut told = 0;
    loop {
        newest.mark_unchanged();
        for event in log.after(told) {
            told = event.number;
            if events.send(Ok(event_on_wire(event))).await.is_err() {
                return;
            }
        }
        if !follow {
            return;
        }
        tokio::select! {
            changed = newest.changed() => if changed.is_err() { return },
            () = events.closed() => return,
        }
    }
}

fn event_on_wire(event: Recorded) -> wire::Event {
    let Recorded { number, wall_ms, notice } = event;
    let about = match notice.about {
        About::Drive(id) => id.to_string(),
        About::Node(id) => id.to_string(),
        About::Registry => String::new(),
    };
    wire::Event {
        number,
        time_ms: wall_ms,
        warning: notice.warning,
        about,
        text: notice.text,
        order: notice.order.map(|order| order.to_string()).unwrap_or_default(),
    }
}

fn check_protocol(protocol: u32) -> Result<(), Status> {
    if protocol == PROTOCOL {
        return Ok(());
    }
    let words = format!("protocol {protocol} is spoken there and {PROTOCOL} here; use one release");
    Err(Status::failed_precondition(words))
}

fn wanted(request: wire::ListRequest) -> Result<Wanted, Status> {
    let wire::ListRequest { protocol, kind, name } = request;
    check_protocol(protocol)?;
    match (kind.as_str(), name.is_empty()) {
        ("Drive", true) => Ok(Wanted::Drives),
        ("Drive", false) => Ok(Wanted::Drive(name)),
        ("StorageNode", true) => Ok(Wanted::Nodes),
        ("StorageNode", false) => Ok(Wanted::Node(name)),
        _ => Err(Status::invalid_argument(format!(
            "no kind {kind:?}; there are Drive and StorageNode"
        ))),
    }
}

/// What is there now, and durable.
pub(crate) async fn list(
    registry: &Registry,
    wanted: Wanted,
) -> Result<wire::ListResponse, Status> {
    let reading = registry.read(move |cluster| listed(cluster, wanted));
    let objects = patiently(registry, reading).await??;
    Ok(wire::ListResponse { protocol: PROTOCOL, objects })
}

fn listed(cluster: &Cluster, wanted: Wanted) -> Result<Vec<String>, Status> {
    let json = |object: serde_json::Result<String>| object.expect("kinds have text keys");
    match wanted {
        Wanted::Drives => {
            let known = cluster.drives().map(|known| objects::drive(cluster, known));
            let newcomers = cluster.newcomers().map(|device| objects::newcomer(cluster, device));
            let mut drives: Vec<_> = known.chain(newcomers).collect();
            let place = |drive: &Drive| {
                let DriveStatus { node, bay, path, .. } = &drive.status;
                (node.clone(), bay.clone(), path.clone())
            };
            drives.sort_by_cached_key(place);
            Ok(drives.iter().map(|drive| json(serde_json::to_string(drive))).collect())
        }
        Wanted::Drive(name) => {
            let target = Target { host: None, device: name };
            if let Some(newcomer) = cluster.newcomer(&target) {
                let object = objects::newcomer(cluster, newcomer);
                return Ok(vec![json(serde_json::to_string(&object))]);
            }
            let id = cluster.find(&target).map_err(|unmet| match unmet.code {
                hotbay_core::cms::Code::NotFound => Status::not_found(unmet.reason.to_string()),
                _ => Status::invalid_argument(unmet.reason.to_string()),
            })?;
            let known = cluster.drive(id).expect("found");
            Ok(vec![json(serde_json::to_string(&objects::drive(cluster, known)))])
        }
        Wanted::Nodes => {
            let mut nodes: Vec<_> = cluster.nodes().collect();
            nodes.sort_by_key(|known| known.record.name.clone());
            Ok(nodes
                .iter()
                .map(|known| json(serde_json::to_string(&objects::node(cluster, known))))
                .collect())
        }
        Wanted::Node(name) => {
            let known = cluster.nodes().find(|known| known.record.name.as_str() == name);
            let known = known.ok_or_else(|| Status::not_found(format!("no host {name:?}")))?;
            Ok(vec![json(serde_json::to_string(&objects::node(cluster, known)))])
        }
    }
}

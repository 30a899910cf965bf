//! The state as people see it: the kinds of `hotbay-api`, made from the cluster in memory.

use std::pin::Pin;

use hotbay_api::PROTOCOL;
use hotbay_api::cms as wire;
use hotbay_api::kinds::{
    API_VERSION, Condition, DeniedReason, Drive, DriveGoal, DriveSpec, DriveStatus, Metadata,
    StorageNode, StorageNodeStatus,
};
use hotbay_core::cluster::{self, About, Cluster};
use hotbay_core::cms::{Reason, Target};
use hotbay_core::message::RecordHealth;
use hotbay_registry::{EventLog, Recorded, Registry};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

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
    let reading = registry.read(move |cluster| objects(cluster, wanted));
    let objects = patiently(registry, reading).await??;
    Ok(wire::ListResponse { protocol: PROTOCOL, objects })
}

fn objects(cluster: &Cluster, wanted: Wanted) -> Result<Vec<String>, Status> {
    let json = |object: serde_json::Result<String>| object.expect("kinds have text keys");
    match wanted {
        Wanted::Drives => {
            let mut drives: Vec<_> = cluster.drives().collect();
            drives.sort_by_key(|known| {
                let observed = &known.record.observed;
                (node_name(cluster, known), observed.bay.clone(), observed.path.clone())
            });
            Ok(drives
                .iter()
                .map(|known| json(serde_json::to_string(&drive(cluster, known))))
                .collect())
        }
        Wanted::Drive(name) => {
            let target = Target { host: None, device: name };
            let id = cluster.find(&target).map_err(|unmet| match unmet.code {
                hotbay_core::cms::Code::NotFound => Status::not_found(unmet.reason.to_string()),
                _ => Status::invalid_argument(unmet.reason.to_string()),
            })?;
            let known = cluster.drive(id).expect("found");
            Ok(vec![json(serde_json::to_string(&drive(cluster, known)))])
        }
        Wanted::Nodes => {
            let mut nodes: Vec<_> = cluster.nodes().collect();
            nodes.sort_by_key(|known| known.record.name.clone());
            Ok(nodes
                .iter()
                .map(|known| json(serde_json::to_string(&node(cluster, known))))
                .collect())
        }
        Wanted::Node(name) => {
            let known = cluster.nodes().find(|known| known.record.name.as_str() == name);
            let known = known.ok_or_else(|| Status::not_found(format!("no host {name:?}")))?;
            Ok(vec![json(serde_json::to_string(&node(cluster, known)))])
        }
    }
}

fn node_name(cluster: &Cluster, drive: &cluster::Drive) -> String {
    cluster.node(drive.record.node).map(|node| node.record.name.to_string()).unwrap_or_default()
}

fn drive(cluster: &Cluster, known: &cluster::Drive) -> Drive {
    let record = &known.record;
    let observed = &record.observed;
    let denied = observed.denied.iter().cloned();
    let text = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    Drive {
        api_version: API_VERSION.to_owned(),
        kind: "Drive".to_owned(),
        metadata: Metadata { name: record.name.clone(), uid: record.id.to_string() },
        spec: DriveSpec { in_operation: cluster.in_operation(record.id) },
        status: DriveStatus {
            node: node_name(cluster, known),
            state: record.state.wire_name().to_owned(),
            goal: DriveGoal {
                wish: record.state.goal().to_string(),
                generation: record.generation.get(),
                order: cluster.order_id(record.id).map(|order| order.to_string()),
            },
            since_ms: record.since_ms,
            present: known.present,
            path: observed.path.clone(),
            bay: observed.bay.clone(),
            model: observed.evidence.model.clone(),
            serial: observed.evidence.serial.clone(),
            wwn: observed.evidence.wwn.clone(),
            device_kind: text(serde_json::json!(observed.kind)),
            media: text(serde_json::json!(observed.media)),
            size_bytes: observed.size_bytes,
            block_bytes: observed.block_bytes,
            denied: denied
                .map(|denied| DeniedReason { message: denied.to_string(), denied })
                .collect(),
            waiting_for: cluster.waiting_for(record.id).map(|reason| reason.to_string()),
            volumes: record.volumes.iter().map(ToString::to_string).collect(),
            removal_wanted: record.removal_wanted,
            asked_by: record.asked_by.clone(),
        },
    }
}

fn node(cluster: &Cluster, known: &cluster::Node) -> StorageNode {
    let in_operation = known.drives.iter().filter(|id| cluster.in_operation(**id)).count();
    let mut conditions = Vec::new();
    if !known.rewound.is_empty() {
        conditions.push(Condition {
            kind: "RegistryRewound".to_owned(),
            message: format!(
                "the node knows newer orders than this registry ({} differences), which seems to be a restored backup \
                 or a copy; it gets no orders; hotbay registry adopt shows the differences",
                known.rewound.len()
            ),
        });
    }
    if cluster.shows_revoked_certificate(known.record.id) {
        let message = Reason::CertificateRevoked.to_string();
        conditions.push(Condition { kind: "CertificateRevoked".to_owned(), message });
    }
    if let Some(RecordHealth::Damaged { why }) = &known.agent_record {
        let message = format!("the agent found its record damaged: {why}");
        conditions.push(Condition { kind: "RecordDamaged".to_owned(), message });
    }
    StorageNode {
        api_version: API_VERSION.to_owned(),
        kind: "StorageNode".to_owned(),
        metadata: Metadata {
            name: known.record.name.to_string(),
            uid: known.record.id.to_string(),
        },
        status: StorageNodeStatus {
            ready: known.session.is_some(),
            purged: known.record.purged,
            machine: known.record.machine.to_string(),
            incarnation: known.session.map(|session| session.incarnation.to_string()),
            session: known.session.map(|session| session.number.get()),
            drives: known.drives.len(),
            drives_in_operation: in_operation,
            conditions,
        },
    }
}

//! What people see, as gRPC: lists, lists after every change, and what happened.

use std::pin::Pin;

use hotbay_api::cms as wire;
use hotbay_api::{MESSAGE_LIMIT_BYTES, PROTOCOL};
use hotbay_core::cluster::About;
use hotbay_registry::{EventLog, Recorded, Registry};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::listing::{Listed, Page, Wanted, list};
use crate::peer::admit;

/// How large the objects of one message may be; well below what a reader takes.
const PAGE_BYTES: usize = MESSAGE_LIMIT_BYTES / 4;

pub(crate) struct Views {
    registry: Registry,
}

impl Views {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry }
    }
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
        let (wanted, page) = wanted(request.into_inner())?;
        let page = Page { bytes: PAGE_BYTES, ..page };
        let Listed { objects, next } = list(&self.registry, wanted, page).await?;
        Ok(Response::new(wire::ListResponse { protocol: PROTOCOL, objects, next }))
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
        let (wanted, _) = wanted(request.into_inner())?;
        // One list waits at the most: a slow reader gets fewer, newer ones.
        let (lists, mut made) = mpsc::channel(1);
        tokio::spawn(follow(self.registry.clone(), wanted, lists));
        let (parts, stream) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(list) = made.recv().await {
                for part in in_parts(list) {
                    if parts.send(part).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(caller.while_good(ReceiverStream::new(stream)))))
    }
}

/// A list as messages of a size that a reader takes; all but the last say that there is more.
fn in_parts(list: Result<Vec<String>, Status>) -> Vec<Result<wire::ListResponse, Status>> {
    let objects = match list {
        Ok(objects) => objects,
        Err(status) => return vec![Err(status)],
    };
    let mut parts = vec![Vec::new()];
    let mut bytes = 0;
    for object in objects {
        if bytes + object.len() > PAGE_BYTES && bytes > 0 {
            parts.push(Vec::new());
            bytes = 0;
        }
        bytes += object.len();
        parts.last_mut().expect("never empty").push(object);
    }
    let last = parts.len() - 1;
    let part = |(number, objects)| {
        let next = if number < last { "more".to_owned() } else { String::new() };
        Ok(wire::ListResponse { protocol: PROTOCOL, objects, next })
    };
    parts.into_iter().enumerate().map(part).collect()
}

/// Sends the list at once, and again after every change. One that cannot be made is the last.
pub(crate) async fn follow(
    registry: Registry,
    wanted: Wanted,
    lists: mpsc::Sender<Result<Vec<String>, Status>>,
) {
    let mut changes = registry.changes();
    let mut last = None;
    loop {
        changes.mark_unchanged();
        let list = match list(&registry, wanted.clone(), Page::default()).await {
            Ok(list) => list.objects,
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
pub(crate) async fn tell(
    log: EventLog,
    follow: bool,
    events: mpsc::Sender<Result<wire::Event, Status>>,
) {
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
        About::Volume(id) => id.to_string(),
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

fn wanted(request: wire::ListRequest) -> Result<(Wanted, Page), Status> {
    let wire::ListRequest { protocol, kind, name, limit, after } = request;
    check_protocol(protocol)?;
    let page = Page { limit: limit as usize, after, ..Page::default() };
    let wanted = match (kind.as_str(), name.is_empty()) {
        ("Drive", true) => Ok(Wanted::Drives),
        ("Drive", false) => Ok(Wanted::Drive(name)),
        ("StorageNode", true) => Ok(Wanted::Nodes),
        ("StorageNode", false) => Ok(Wanted::Node(name)),
        ("Volume", true) => Ok(Wanted::Volumes),
        ("Volume", false) => Ok(Wanted::Volume(name)),
        _ => Err(Status::invalid_argument(format!(
            "no kind {kind:?}; there are Drive, StorageNode and Volume"
        ))),
    };
    wanted.map(|wanted| (wanted, page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_sent_in_parts_and_a_short_one_in_one() {
        let object = "x".repeat(PAGE_BYTES / 3 + 1);
        let parts = in_parts(Ok(vec![object.clone(); 5]));
        let shape = |part: &Result<wire::ListResponse, Status>| {
            let part = part.as_ref().unwrap();
            (part.objects.len(), part.next.is_empty())
        };
        let shapes: Vec<_> = parts.iter().map(shape).collect();
        assert_eq!(shapes, [(2, false), (2, false), (1, true)]);
        let none = in_parts(Ok(Vec::new()));
        assert_eq!(none.iter().map(shape).collect::<Vec<_>>(), [(0, true)]);
    }
}

//! `GET /v1/events`: what happened lately, and on request what happens, a line of JSON each.

use std::convert::Infallible;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::Uri;
use hotbay_api::cms as wire;
use hotbay_api::kinds::API_VERSION;
use hotbay_registry::Registry;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::query;
use super::refusal::Refusal;
use super::routes::{Answer, json, typed};
use crate::caller::Caller;
use crate::view;

/// How many events wait for a reader that is slow.
const WAITING: usize = 64;

/// One event: the fields of `Event` in `cms.proto`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventBody {
    number: u64,
    time_ms: u64,
    warning: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    about: String,
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    order: String,
}

impl From<wire::Event> for EventBody {
    fn from(event: wire::Event) -> Self {
        let wire::Event { number, time_ms, warning, about, text, order } = event;
        Self { number, time_ms, warning, about, text, order }
    }
}

fn line(event: wire::Event) -> String {
    serde_json::to_string(&EventBody::from(event)).expect("events have text keys")
}

pub(super) async fn list(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answer {
    let follow = query::of(&uri, &["follow"])?.follow;
    let (events, stream) = mpsc::channel(WAITING);
    tokio::spawn(view::tell(registry.events(), follow, events));
    let mut stream = ReceiverStream::new(stream);
    if follow {
        let lines = caller.while_good(stream).map(|event| {
            let line = match event {
                Ok(event) => line(event),
                Err(status) => Refusal::from(status).json(),
            };
            Ok::<_, Infallible>(line + "\n")
        });
        return Ok(typed("application/x-ndjson", Body::from_stream(lines)));
    }
    let mut items = Vec::new();
    while let Some(event) = stream.next().await {
        items.push(line(event?));
    }
    let items = items.join(",");
    Ok(json(format!(r#"{{"apiVersion":"{API_VERSION}","kind":"EventList","items":[{items}]}}"#)))
}

//! Every route and what answers it. `mod` calls this with the registry; the table is also what a caller with a wrong
//! path is told, and what the tests compare with the OpenAPI document.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Router};
use hotbay_api::kinds::API_VERSION;
use hotbay_registry::{Registry, StoreHealth};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::body::{ActAnswer, ActBody, Object};
use super::query::{self, Query};
use super::refusal::Refusal;
use super::{Admission, Fresh, adopt, events, metrics, openapi, volumes};
use crate::actions::{self, ACTIONS_IN_A_CALL};
use crate::caller::Caller;
use crate::clients::rights::Right;
use crate::listing::{Listed, Page, Wanted, list};
use crate::view;

/// Largest body of a request: room for the longest list of actions with long names.
const BODY_LIMIT_BYTES: usize = 8 << 20;
/// A body that is not whole after so long is not waited for.
const BODY_LIMIT: Duration = Duration::from_secs(30);
/// How long the registry may take to say that it is there.
const READY_LIMIT: Duration = Duration::from_secs(2);

pub(super) type Answer = Result<Response, Refusal>;

pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// What it needs of a client on another machine.
    pub(super) right: Right,
    handler: MethodRouter<Registry>,
}

/// All routes.
pub(super) fn table() -> Vec<Route> {
    let get = |path, right, handler| Route { method: Method::GET, path, right, handler };
    let post = |path, right, handler| Route { method: Method::POST, path, right, handler };
    let describe = async || json(openapi::DOCUMENT.clone());
    let alive = async || json(r#"{"status":"alive"}"#.to_owned());
    vec![
        post("/v1/actions", Right::WriteToChange, self::post(act)),
        get("/v1/drives", Right::Read, self::get(drives)),
        get("/v1/drives/{name}", Right::Read, self::get(drive)),
        get("/v1/nodes", Right::Read, self::get(nodes)),
        get("/v1/nodes/{name}", Right::Read, self::get(node)),
        get("/v1/volumes", Right::Read, self::get(volumes::list)),
        post("/v1/volumes", Right::Write, self::post(volumes::create)),
        get("/v1/volumes/{name}", Right::Read, self::get(volumes::one)),
        Route {
            method: Method::DELETE,
            path: "/v1/volumes/{name}",
            right: Right::Write,
            handler: delete(volumes::delete),
        },
        post("/v1/volumes/{name}/expand", Right::Write, self::post(volumes::expand)),
        get("/v1/events", Right::Read, self::get(events::list)),
        get("/v1/adopt", Right::Read, self::get(adopt::preview)),
        post("/v1/adopt", Right::Write, self::post(adopt::confirm)),
        get("/v1/openapi.json", Right::Read, self::get(describe)),
        get("/healthz", Right::Open, self::get(alive)),
        get("/readyz", Right::Open, self::get(ready)),
        get("/metrics", Right::Read, self::get(scrape)),
    ]
}

pub(crate) fn router(registry: Registry, fresh: fn() -> u128) -> Router {
    let routes = table().into_iter();
    routes
        .fold(Router::new(), |router, route| {
            let Route { path, right, handler, .. } = route;
            let guarded = from_fn(move |request, next| with_right(right, request, next));
            router.route(path, handler.layer(guarded))
        })
        .fallback(no_such_route)
        .method_not_allowed_fallback(wrong_method)
        .layer(Extension(Fresh(fresh)))
        .with_state(registry)
}

/// Hands a request on if its caller has the right; the handler then knows the caller.
async fn with_right(right: Right, mut request: Request, next: Next) -> Answer {
    if right != Right::Open {
        let admission = request.extensions().get::<Admission>().cloned();
        let unknown = || Admission(Err(Status::unauthenticated("who asks is not known")));
        let caller = admission.unwrap_or_else(unknown).caller_with(right)?;
        request.extensions_mut().insert(caller);
    }
    Ok(next.run(request).await)
}

async fn act(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer {
    let body = whole_body(request).await?;
    let ActBody { actions, dry_run } = ActBody::read(&body).map_err(Refusal::argument)?;
    if actions.len() > ACTIONS_IN_A_CALL {
        let words = format!("{} actions in one call are too many", actions.len());
        return Err(Refusal::new("E_TOO_LARGE", words, at_most()));
    }
    let decoded = actions.into_iter().map(|Object(action)| action.decode()).collect();
    let results = actions::act(&registry, decoded, &caller, dry_run).await?;
    let answer = ActAnswer { results: results.into_iter().map(Into::into).collect() };
    Ok(json(serde_json::to_string(&answer).expect("results have text keys")))
}

/// Reads the body, but neither a larger one than is allowed nor for ever.
pub(super) async fn whole_body(request: Request) -> Result<Vec<u8>, Refusal> {
    let too_large = || {
        let words = format!("the body is larger than {BODY_LIMIT_BYTES} bytes");
        Refusal::new("E_TOO_LARGE", words, at_most())
    };
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > BODY_LIMIT_BYTES as u64) {
        return Err(too_large());
    }
    let reading = async {
        let mut pieces = request.into_body().into_data_stream();
        let mut body = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece =
                piece.map_err(|error| Refusal::argument(format!("the body broke off: {error}")))?;
            if body.len() + piece.len() > BODY_LIMIT_BYTES {
                return Err(too_large());
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    };
    tokio::time::timeout(BODY_LIMIT, reading).await.unwrap_or_else(|_| {
        Err(Refusal::new(
            "E_TIMEOUT",
            format!("the body was not whole after {} s", BODY_LIMIT.as_secs()),
            "nothing was changed; send it again",
        ))
    })
}

fn at_most() -> String {
    format!(
        "nothing was changed; send at most {ACTIONS_IN_A_CALL} actions and {BODY_LIMIT_BYTES} bytes in one call"
    )
}

async fn drives(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answer {
    show(registry, Wanted::Drives, &caller, &uri).await
}

async fn drive(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answer {
    let wanted = Wanted::Drive(name_in_path(name)?);
    let shown = show(registry, wanted, &caller, &uri).await;
    shown.map_err(|refusal| listed_at(refusal, "/v1/drives"))
}

async fn nodes(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answer {
    show(registry, Wanted::Nodes, &caller, &uri).await
}

async fn node(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answer {
    let wanted = Wanted::Node(name_in_path(name)?);
    let shown = show(registry, wanted, &caller, &uri).await;
    shown.map_err(|refusal| listed_at(refusal, "/v1/nodes"))
}

pub(super) fn name_in_path(name: Result<Path<String>, PathRejection>) -> Result<String, Refusal> {
    let Path(name) = name.map_err(|rejected| Refusal::argument(rejected.body_text()))?;
    Ok(name)
}

/// Whoever asked for something that is not there is told where all of it is.
pub(super) fn listed_at(refusal: Refusal, path: &str) -> Refusal {
    if refusal.status == StatusCode::NOT_FOUND {
        refusal.then(format!("GET {path} lists all"))
    } else {
        refusal
    }
}

/// Answers once, or with a line for every change.
pub(super) async fn show(registry: Registry, wanted: Wanted, caller: &Caller, uri: &Uri) -> Answer {
    let shape = Shape::of(&wanted);
    let Query { watch, limit, after, .. } = query::of(uri, shape.fields())?;
    if !watch {
        let limit = limit.map_or(0, |limit| limit as usize);
        let page = Page { limit, after: after.unwrap_or_default(), ..Page::default() };
        return Ok(json(shape.json(&list(&registry, wanted, page).await?)));
    }
    if limit.is_some() || after.is_some() {
        return Err(Refusal::argument(
            "watch=true shows all; limit and continue do not go with it",
        ));
    }
    // One list waits at the most: a slow reader gets fewer, newer ones.
    let (lists, mut stream) = mpsc::channel(1);
    tokio::spawn(view::follow(registry, wanted, lists));
    // What is not there at the beginning is an answer of its own, not the first line of a stream.
    let first = stream.recv().await.ok_or_else(|| Refusal::try_again("the registry stopped"))??;
    let line = move |list: Result<Vec<String>, Status>| {
        let line = match list {
            Ok(objects) => shape.json(&Listed { objects, next: String::new() }),
            Err(status) => Refusal::from(status).json(),
        };
        Ok::<_, Infallible>(line + "\n")
    };
    let lists = tokio_stream::once(Ok(first)).chain(ReceiverStream::new(stream));
    let lines = caller.while_good(lists).map(line);
    Ok(typed("application/x-ndjson", Body::from_stream(lines)))
}

/// Whether a list is shown, of which kind, or one object.
#[derive(Debug, Clone, Copy)]
enum Shape {
    List(&'static str),
    One,
}

impl Shape {
    fn of(wanted: &Wanted) -> Self {
        match wanted {
            Wanted::Drives => Self::List("DriveList"),
            Wanted::Nodes => Self::List("StorageNodeList"),
            Wanted::Volumes => Self::List("VolumeList"),
            Wanted::Drive(_) | Wanted::Node(_) | Wanted::Volume(_) => Self::One,
        }
    }

    /// What a query may say.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Self::List(_) => &["watch", "limit", "continue"],
            Self::One => &["watch"],
        }
    }

    fn json(self, list: &Listed) -> String {
        // The objects are JSON already.
        let objects = list.objects.join(",");
        match self {
            Self::List(kind) => {
                let metadata = match list.next.as_str() {
                    "" => String::new(),
                    next => format!(r#""metadata":{{"continue":"{next}"}},"#),
                };
                let head = format!(r#""apiVersion":"{API_VERSION}","kind":"{kind}","#);
                format!(r#"{{{head}{metadata}"items":[{objects}]}}"#)
            }
            Self::One => objects,
        }
    }
}

/// The registry leads and its store can be written: it answers a read, which waits for all that is decided and can be
/// written. Single records that cannot be are no reason to ask another one.
async fn ready(State(registry): State<Registry>) -> Answer {
    if let StoreHealth::Failing(error) = &*registry.store_health().borrow() {
        return Err(Refusal::try_again(format!("the store cannot be written now ({error})")));
    }
    match tokio::time::timeout(READY_LIMIT, registry.read_around(|_| ())).await {
        Ok(Ok(())) => Ok(json(r#"{"status":"ready"}"#.to_owned())),
        Ok(Err(error)) => Err(Refusal::try_again(error.to_string())),
        Err(_) => Err(Refusal::try_again(format!(
            "the registry has not answered for {} s; its store may hang",
            READY_LIMIT.as_secs()
        ))),
    }
}

async fn scrape(State(registry): State<Registry>) -> Response {
    typed(metrics::CONTENT_TYPE, Body::from(metrics::text(&registry).await))
}

async fn no_such_route(Extension(admission): Extension<Admission>, uri: Uri) -> Refusal {
    if let Err(refusal) = admission.caller_with(Right::Read) {
        return refusal;
    }
    let words = format!("there is no {:?} here", uri.path());
    Refusal::new("E_NOT_FOUND", words, format!("there are: {}", routes_in_words()))
}

async fn wrong_method(
    Extension(admission): Extension<Admission>,
    method: Method,
    uri: Uri,
) -> Refusal {
    if let Err(refusal) = admission.caller_with(Right::Read) {
        return refusal;
    }
    let words = format!("{method} does not go with {:?}", uri.path());
    Refusal::new("E_METHOD", words, format!("there are: {}", routes_in_words()))
}

fn routes_in_words() -> String {
    let words: Vec<_> =
        table().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    words.join(", ")
}

pub(super) fn json(text: String) -> Response {
    typed("application/json", Body::from(text))
}

pub(super) fn typed(content_type: &'static str, body: Body) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

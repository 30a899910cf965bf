//! The connection to a registry: where its socket is, calls with a deadline, and following what changes.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbay_api::cms as wire;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::repair_client::RepairClient;
use hotbay_api::cms::view_client::ViewClient;
use hotbay_api::join::CreateTokenRequest;
use hotbay_api::join::tokens_client::TokensClient;
use hotbay_api::{MESSAGE_LIMIT_BYTES, PROTOCOL};
use hotbay_host::RuntimeDir;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, StreamMap};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Response, Status, Streaming};

use super::error::ClientError;
use super::exit::Exit;
use super::screen::plain;

/// How long a registry may take to answer one call.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long to leave a registry alone that was not there.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
/// How many names are followed one by one; a server refuses to keep many more streams open at once.
pub(crate) const FOLLOWED_BY_NAME: usize = 100;
/// Where `hotbay demo` listens, seen from the folder that it was started in.
const DEMO_SOCKET: &str = "hotbay-demo/api.sock";

/// The kinds that a registry lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Drive,
    StorageNode,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Drive => "Drive",
            Self::StorageNode => "StorageNode",
        }
    }
}

/// Where the registry listens: as told, else where a demo in this folder does, else where this user's registry does.
pub(crate) fn socket(told: Option<&str>) -> Result<PathBuf, ClientError> {
    if let Some(told) = told.filter(|told| !told.is_empty()) {
        return Ok(PathBuf::from(told.strip_prefix("unix:").unwrap_or(told)));
    }
    let demo = Path::new(".").join(DEMO_SOCKET);
    if demo.exists() {
        return Ok(demo);
    }
    Ok(RuntimeDir::of_this_user()?.path().join("api.sock"))
}

/// A connection. It is made again by itself when it was lost.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    socket: PathBuf,
    channel: Channel,
}

/// What following brings: all objects as they are now, or that the registry is away. After an error that is not
/// retryable nothing more comes.
pub(crate) type News = mpsc::Receiver<Result<Vec<String>, ClientError>>;

impl Api {
    pub(crate) async fn connect(socket: PathBuf) -> Result<Self, ClientError> {
        let path = socket.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The name is never looked up: the connector alone decides where to go.
        let endpoint = Endpoint::from_static("http://hotbay");
        let connecting = endpoint.connect_with_connector(connector);
        match tokio::time::timeout(DEADLINE, connecting).await {
            Ok(Ok(channel)) => Ok(Self { socket, channel }),
            Ok(Err(error)) => Err(match io_cause(&error) {
                Some(cause) => ClientError::Unreachable { socket, cause },
                None => ClientError::Lost { socket },
            }),
            Err(_) => Err(ClientError::NoAnswer { socket, waited_s: DEADLINE.as_secs() }),
        }
    }

    /// Takes actions in order; one answer each. All texts in them are safe for a terminal.
    pub(crate) async fn act(
        &self,
        actions: Vec<wire::Action>,
        dry_run: bool,
    ) -> Result<Vec<wire::ActionResult>, ClientError> {
        let count = actions.len();
        let request = wire::ActRequest { protocol: PROTOCOL, actions, dry_run };
        let mut client = CmsClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
            .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
        let results = self.in_time(client.act(request)).await?.results;
        if results.len() != count {
            return Err(ClientError::AnswerCount { answers: results.len(), actions: count });
        }
        Ok(results.into_iter().map(plain_result).collect())
    }

    /// Where the registry listens.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// The objects of a kind; with a name only the one that it means.
    pub(crate) async fn objects<T: DeserializeOwned>(
        &self,
        kind: Kind,
        name: &str,
    ) -> Result<Vec<T>, ClientError> {
        let objects = self.list(kind, name).await?;
        let read = |object: &String| serde_json::from_str(object).map_err(ClientError::Answer);
        objects.iter().map(read).collect()
    }

    /// What nodes know that the registry has forgotten; taken over if `confirmed`.
    pub(crate) async fn adopt(&self, confirmed: bool) -> Result<wire::AdoptResponse, ClientError> {
        let request = wire::AdoptRequest { protocol: PROTOCOL, confirmed };
        let mut client = RepairClient::new(self.channel.clone());
        self.in_time(client.adopt(request)).await
    }

    /// The objects of a kind as JSON; with a name only the one that it means.
    pub(crate) async fn list(&self, kind: Kind, name: &str) -> Result<Vec<String>, ClientError> {
        let mut viewer = self.viewer();
        let list = self.in_time(viewer.list(list_request(kind, name))).await?;
        Ok(list.objects)
    }

    /// Makes a token that lets one agent on another machine join.
    pub(crate) async fn create_token(
        &self,
        request: CreateTokenRequest,
    ) -> Result<String, ClientError> {
        let mut client = TokensClient::new(self.channel.clone());
        Ok(self.in_time(client.create(request)).await?.token)
    }

    /// Follows the objects that `names` mean, or all of the kind if there are none, until the receiver is dropped.
    pub(crate) fn follow(&self, kind: Kind, names: Vec<String>) -> News {
        let (news, receiver) = mpsc::channel(1);
        let names = if names.is_empty() { vec![String::new()] } else { names };
        tokio::spawn(follow(self.clone(), kind, names, news));
        receiver
    }

    pub(crate) fn lost(&self) -> ClientError {
        ClientError::Lost { socket: self.socket.clone() }
    }

    /// What happened lately, and with `follow` what happens.
    pub(crate) async fn events(&self, follow: bool) -> Result<Streaming<wire::Event>, ClientError> {
        let mut viewer = self.viewer();
        let request = wire::EventsRequest { protocol: PROTOCOL, follow };
        self.in_time(viewer.events(request)).await
    }

    /// The next event; `None` when there is none any more.
    pub(crate) async fn next_event(
        &self,
        events: &mut Streaming<wire::Event>,
    ) -> Result<Option<wire::Event>, ClientError> {
        let next = events.message().await.map_err(|status| self.explain(&status))?;
        Ok(next.map(|event| wire::Event { text: plain(&event.text), ..event }))
    }

    fn viewer(&self) -> ViewClient<Channel> {
        ViewClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT_BYTES)
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(DEADLINE, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.explain(&status)),
            Err(_) => {
                let waited_s = DEADLINE.as_secs();
                Err(ClientError::NoAnswer { socket: self.socket.clone(), waited_s })
            }
        }
    }

    /// Tells a registry that says no from one that is not there.
    fn explain(&self, status: &Status) -> ClientError {
        if let Some(cause) = io_cause(status)
            && cause.kind() != io::ErrorKind::BrokenPipe
        {
            return ClientError::Unreachable { socket: self.socket.clone(), cause };
        }
        // Only a status that was made on this side, not received, has a source.
        if status.source().is_some() {
            return self.lost();
        }
        ClientError::TurnedDown {
            exit: Exit::of_status(status.code()),
            message: plain(status.message()),
        }
    }
}

async fn follow(
    api: Api,
    kind: Kind,
    names: Vec<String>,
    news: mpsc::Sender<Result<Vec<String>, ClientError>>,
) {
    // Without end, as long as somebody listens: who follows has a limit of their own, or wants none.
    loop {
        let Err(error) = follow_once(&api, kind, &names, &news).await else { return };
        let for_good = !error.retryable();
        if news.send(Err(error)).await.is_err() || for_good {
            return;
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Follows until something fails; `Ok` when nobody listens any more.
async fn follow_once(
    api: &Api,
    kind: Kind,
    names: &[String],
    news: &mpsc::Sender<Result<Vec<String>, ClientError>>,
) -> Result<(), ClientError> {
    let mut streams = StreamMap::new();
    for (index, name) in names.iter().enumerate() {
        let mut viewer = api.viewer();
        let stream = api.in_time(viewer.watch(list_request(kind, name))).await?;
        streams.insert(index, stream);
    }
    let mut lists: Vec<Option<Vec<String>>> = vec![None; names.len()];
    while let Some((index, list)) = streams.next().await {
        lists[index] = Some(list.map_err(|status| api.explain(&status))?.objects);
        let all: Option<Vec<_>> = lists.iter().cloned().collect();
        if let Some(all) = all
            && news.send(Ok(all.concat())).await.is_err()
        {
            return Ok(());
        }
        // A stream that ends is taken out of the map; one of several must not be missed silently.
        if streams.len() < names.len() {
            break;
        }
    }
    Err(api.lost())
}

fn list_request(kind: Kind, name: &str) -> wire::ListRequest {
    wire::ListRequest { protocol: PROTOCOL, kind: kind.name().to_owned(), name: name.to_owned() }
}

/// The I/O error at the bottom of a failure, if there is one.
fn io_cause(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<io::Error>() {
            // The error itself cannot be taken out of the chain.
            return Some(match found.raw_os_error() {
                Some(number) => io::Error::from_raw_os_error(number),
                None => io::Error::new(found.kind(), found.to_string()),
            });
        }
        cause = error.source();
    }
    None
}

fn plain_result(result: wire::ActionResult) -> wire::ActionResult {
    let all = |texts: Vec<String>| texts.iter().map(|text| plain(text)).collect();
    wire::ActionResult {
        result: result.result,
        reasons: all(result.reasons),
        dependent_volumes: all(result.dependent_volumes),
        retry_after_ms: result.retry_after_ms,
        drive: result.drive.map(|drive| wire::DriveBrief {
            name: plain(&drive.name),
            node: plain(&drive.node),
            path: plain(&drive.path),
            bay: plain(&drive.bay),
            serial: plain(&drive.serial),
        }),
        drives: result.drives.into_iter().map(plain_result).collect(),
    }
}

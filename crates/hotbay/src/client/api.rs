//! The connection to a registry: calls with a deadline, and following what changes.

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use hotbay_api::access::access_client::AccessClient;
use hotbay_api::cms as wire;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::repair_client::RepairClient;
use hotbay_api::cms::view_client::ViewClient;
use hotbay_api::join::CreateTokenRequest;
use hotbay_api::join::tokens_client::TokensClient;
use hotbay_api::volumes::volumes_client::VolumesClient;
use hotbay_api::{MESSAGE_LIMIT_BYTES, PROTOCOL};
use hotbay_node::{PinnedDial, PinnedDialError};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, StreamMap};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Response, Status, Streaming};

use super::bearer::{Bearer, Noted};
use super::error::ClientError;
use super::exit::Exit;
use super::place::Place;
use super::screen::plain;

/// How long a registry may take to answer one call.
const DEADLINE: Duration = Duration::from_secs(10);
/// The same for calls about volumes: the registry waits for what they ask for, and answers before this.
const VOLUME_DEADLINE: Duration = Duration::from_secs(30);
/// How long to leave a registry alone that was not there.
const RECONNECT_AFTER: Duration = Duration::from_millis(500);
/// How many names are followed one by one; a server refuses to keep many more streams open at once.
pub(crate) const FOLLOWED_BY_NAME: usize = 100;
/// Another machine that says nothing for so long, asked, is not there any more.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The kinds that a registry lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Drive,
    StorageNode,
    Volume,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Drive => "Drive",
            Self::StorageNode => "StorageNode",
            Self::Volume => "Volume",
        }
    }
}

/// A connection. It is made again by itself when it was lost.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    place: Place,
    bearer: Bearer,
    channel: Calls,
}

/// A channel whose every call carries the token, if there is one.
pub(crate) type Calls = InterceptedService<Channel, Bearer>;

/// Events as they come.
#[derive(Debug)]
pub(crate) struct Events {
    follow: bool,
    stream: Streaming<wire::Event>,
    token: Noted,
    /// Number and time of the last one that was given out.
    last: Option<(u64, u64)>,
}

/// What following brings: all objects as they are now, or that the registry is away. After an error that is not
/// retryable nothing more comes.
pub(crate) type News = mpsc::Receiver<Result<Vec<String>, ClientError>>;

impl Api {
    pub(crate) async fn connect(place: Place) -> Result<Self, ClientError> {
        let remote = |address: &String, authority| {
            let dial = PinnedDial::new(authority).map_err(ClientError::Tls)?;
            let connecting: Connecting = Box::pin(to_other_machine(address.clone(), dial));
            Ok::<_, ClientError>(connecting)
        };
        let (connecting, bearer): (Connecting, _) = match &place {
            Place::Socket(path) => (Box::pin(to_socket(path.clone())), Bearer::Nothing),
            Place::Remote { address, token } => {
                (remote(address, token.authority)?, Bearer::of(&token.to_string()))
            }
            Place::Service { address, authority, token, .. } => {
                (remote(address, *authority)?, Bearer::Renewed(token.clone()))
            }
        };
        match tokio::time::timeout(DEADLINE, connecting).await {
            Ok(Ok(channel)) => {
                let channel = InterceptedService::new(channel, bearer.clone());
                Ok(Self { place, bearer, channel })
            }
            Ok(Err(error)) => Err(unreachable_because(&place, &error)
                .unwrap_or_else(|| ClientError::Lost { place: place.to_string() })),
            Err(_) => Err(no_answer(&place, DEADLINE)),
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
    pub(crate) fn place(&self) -> &Place {
        &self.place
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
        let mut objects = Vec::new();
        let mut request = list_request(kind, name);
        loop {
            let page = self.in_time(viewer.list(request.clone())).await?;
            // A page without anything would be asked for again and again.
            let ends = page.next.is_empty() || page.objects.is_empty();
            objects.extend(page.objects);
            if ends {
                return Ok(objects);
            }
            request.after = page.next;
        }
    }

    /// Makes a token that lets one agent on another machine join.
    pub(crate) async fn create_token(
        &self,
        request: CreateTokenRequest,
    ) -> Result<String, ClientError> {
        let mut client = TokensClient::new(self.channel.clone());
        Ok(self.in_time(client.create(request)).await?.token)
    }

    /// Calls about the tokens of clients.
    pub(crate) async fn access<T, Call>(
        &self,
        call: impl FnOnce(AccessClient<Calls>) -> Call,
    ) -> Result<T, ClientError>
    where
        Call: Future<Output = Result<Response<T>, Status>>,
    {
        self.in_time(call(AccessClient::new(self.channel.clone()))).await
    }

    /// Calls about volumes, which answer when what they ask for is done.
    pub(crate) async fn volumes<T, Call>(
        &self,
        call: impl FnOnce(VolumesClient<Calls>) -> Call,
    ) -> Result<T, ClientError>
    where
        Call: Future<Output = Result<Response<T>, Status>>,
    {
        self.within(VOLUME_DEADLINE, call(VolumesClient::new(self.channel.clone()))).await
    }

    /// Follows the objects that `names` mean, or all of the kind if there are none, until the receiver is dropped.
    pub(crate) fn follow(&self, kind: Kind, names: Vec<String>) -> News {
        let (news, receiver) = mpsc::channel(1);
        let names = if names.is_empty() { vec![String::new()] } else { names };
        tokio::spawn(follow(self.clone(), kind, names, news));
        receiver
    }

    pub(crate) fn lost(&self) -> ClientError {
        ClientError::Lost { place: self.place.to_string() }
    }

    /// What happened lately, and with `follow` what happens.
    pub(crate) async fn events(&self, follow: bool) -> Result<Events, ClientError> {
        let token = self.bearer.noted();
        let mut viewer = self.viewer();
        let request = wire::EventsRequest { protocol: PROTOCOL, follow };
        let stream = self.in_time(viewer.events(request)).await?;
        Ok(Events { follow, stream, token, last: None })
    }

    /// The next event; `None` when there is none any more.
    pub(crate) async fn next_event(
        &self,
        events: &mut Events,
    ) -> Result<Option<wire::Event>, ClientError> {
        loop {
            let next = tokio::select! {
                next = events.stream.message() => next.map_err(|status| self.explain(&status))?,
                () = events.token.next(), if events.follow => {
                    let last = events.last;
                    *events = Events { last, ..self.events(true).await? };
                    continue;
                }
            };
            let Some(event) = next else { return Ok(None) };
            // A registry that has started since counts from 1 again, at a later time.
            let known = |(number, time_ms)| event.number <= number && event.time_ms <= time_ms;
            if !events.last.is_some_and(known) {
                events.last = Some((event.number, event.time_ms));
                return Ok(Some(wire::Event { text: plain(&event.text), ..event }));
            }
        }
    }

    fn viewer(&self) -> ViewClient<Calls> {
        ViewClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_LIMIT_BYTES)
    }

    async fn in_time<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        self.within(DEADLINE, call).await
    }

    async fn within<T>(
        &self,
        deadline: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(deadline, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.explain(&status)),
            Err(_) => Err(no_answer(&self.place, deadline)),
        }
    }

    /// Tells a registry that says no from one that is not there.
    fn explain(&self, status: &Status) -> ClientError {
        if let Some(error) = unreachable_because(&self.place, status) {
            return error;
        }
        // Only a status that was made on this side, not received, has a source.
        if status.source().is_some() {
            return self.lost();
        }
        if status.code() == Code::Unauthenticated
            && let Some(why) = self.bearer.why_not_renewed()
        {
            return ClientError::NotRenewed { why };
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
        let mut token = api.bearer.noted();
        let followed = tokio::select! {
            followed = follow_once(&api, kind, &names, &news) => followed,
            () = token.next() => continue,
        };
        let Err(error) = followed else { return };
        let for_good = !error.retryable();
        if news.send(Err(error)).await.is_err() || for_good {
            return;
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
    }
}

/// Follows until something fails; `Ok` when nobody listens any more. May be cancelled: what it told is whole lists.
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
    let mut parts: Vec<Vec<String>> = vec![Vec::new(); names.len()];
    while let Some((index, list)) = streams.next().await {
        let wire::ListResponse { objects, next, .. } =
            list.map_err(|status| api.explain(&status))?;
        parts[index].extend(objects);
        if !next.is_empty() {
            continue;
        }
        lists[index] = Some(std::mem::take(&mut parts[index]));
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
    let (kind, name) = (kind.name().to_owned(), name.to_owned());
    wire::ListRequest { protocol: PROTOCOL, kind, name, ..wire::ListRequest::default() }
}

type Connecting = Pin<Box<dyn Future<Output = Result<Channel, tonic::transport::Error>> + Send>>;

pub(crate) async fn to_socket(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The name is never looked up: the connector alone decides where to go.
    Endpoint::from_static("http://hotbay").connect_with_connector(connector).await
}

async fn to_other_machine(
    address: String,
    dial: PinnedDial,
) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_: Uri| {
        let (address, dial) = (address.clone(), dial.clone());
        async move { dial.dial(&address).await }
    });
    Endpoint::from_static("http://hotbay")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(connector)
        .await
}

fn no_answer(place: &Place, waited: Duration) -> ClientError {
    ClientError::NoAnswer { place: place.to_string(), waited_s: waited.as_secs() }
}

/// Why there is no connection, if that is what is at the bottom of a failure.
fn unreachable_because(place: &Place, error: &(dyn Error + 'static)) -> Option<ClientError> {
    let place = place.to_string();
    match find_cause::<PinnedDialError>(error) {
        Some(PinnedDialError::OtherAuthority) => {
            return Some(ClientError::OtherAuthority { place });
        }
        Some(PinnedDialError::Expired | PinnedDialError::NotYetValid) => {
            return Some(ClientError::CertificateTime { place });
        }
        Some(PinnedDialError::Tls(cause)) if cause.get_ref().is_some() => {
            return Some(ClientError::NoTls { place, why: cause.to_string() });
        }
        Some(PinnedDialError::Tls(_) | PinnedDialError::Connect(_)) | None => {}
    }
    let cause = io_cause(error).filter(|cause| cause.kind() != io::ErrorKind::BrokenPipe)?;
    Some(ClientError::Unreachable { place, cause })
}

/// The first error of a kind, from the top of a failure down.
fn find_cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// The I/O error at the bottom of a failure, if there is one.
fn io_cause(error: &(dyn Error + 'static)) -> Option<io::Error> {
    let found = find_cause::<io::Error>(error)?;
    // The error itself cannot be taken out of the chain.
    Some(match found.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(found.kind(), found.to_string()),
    })
}

fn plain_result(result: wire::ActionResult) -> wire::ActionResult {
    let all = |texts: Vec<String>| texts.iter().map(|text| plain(text)).collect();
    wire::ActionResult {
        result: result.result,
        reasons: all(result.reasons),
        dependent_volumes: all(result.dependent_volumes),
        // Made safe where they are put into words.
        volumes: result.volumes,
        retry_after_ms: result.retry_after_ms,
        drive: result.drive.map(|drive| wire::DriveBrief {
            name: plain(&drive.name),
            node: plain(&drive.node),
            path: plain(&drive.path),
            bay: plain(&drive.bay),
            serial: plain(&drive.serial),
            order: plain(&drive.order),
        }),
        drives: result.drives.into_iter().map(plain_result).collect(),
    }
}

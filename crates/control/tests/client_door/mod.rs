//! The controller in this process with its doors open on free ports of this machine, and clients that speak TLS, HTTP/2
//! and HTTP/1.1 to them as they like.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::access::access_client::AccessClient;
use hotbay_api::access::{CreateTokenRequest, May, RevokeTokenRequest};
use hotbay_api::token::REGISTRY_NAME;
use hotbay_control::{Accounts, AuthorityAt, DoorOptions, Doors};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_registry::{MemoryStore, Registry, Surroundings};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixListener};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fake_agent::{connect, in_time};

pub(crate) struct Rig {
    pub(crate) clients: SocketAddr,
    pub(crate) agents: SocketAddr,
    dir: tempfile::TempDir,
}

fn fresh() -> u128 {
    static NEXT: AtomicU64 = AtomicU64::new(1_000);
    u128::from(NEXT.fetch_add(1, Ordering::Relaxed)) << 64
}

/// Certificates are looked at by the real clock.
pub(crate) fn real_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

impl Rig {
    pub(crate) async fn start(wall_ms: fn() -> u64) -> Self {
        Self::start_with(wall_ms, None).await
    }

    /// With accounts of a platform, if there are any.
    pub(crate) async fn start_with(
        wall_ms: fn() -> u64,
        accounts: Option<Arc<dyn Accounts>>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
        let life = Duration::from_secs(3_600);
        let doors = Doors::open(DoorOptions {
            agents: vec!["127.0.0.1:0".to_owned()],
            clients: vec!["127.0.0.1:0".to_owned()],
            authority: AuthorityAt::Folder(dir.path().join("tls")),
            tls_dir: dir.path().join("tls"),
            accounts,
            node_life: life,
            registry_life: life,
            wall_ms,
        });
        let doors = doors.await.unwrap();
        let (clients, agents) = (doors.client_addresses()[0], doors.agent_addresses()[0]);
        let this = Self { clients, agents, dir };
        let listeners = vec![UnixListener::bind(this.socket()).unwrap()];
        let never = std::future::pending();
        let serving = hotbay_control::serve_with_doors(registry, listeners, doors, fresh, never);
        tokio::spawn(async move { serving.await.unwrap() });
        this
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("api.sock")
    }

    async fn access(&self) -> AccessClient<tonic::transport::Channel> {
        AccessClient::new(in_time("a connection", connect(&self.socket())).await.unwrap())
    }

    /// A token, made on the Unix socket.
    pub(crate) async fn token(&self, name: &str, may: May, valid: Duration) -> String {
        let request = CreateTokenRequest {
            protocol: PROTOCOL,
            name: name.to_owned(),
            may: may.into(),
            valid_ms: u64::try_from(valid.as_millis()).unwrap(),
        };
        self.access().await.create_token(request).await.unwrap().into_inner().token
    }

    pub(crate) async fn revoke(&self, name: &str) {
        let request = RevokeTokenRequest { protocol: PROTOCOL, name: name.to_owned() };
        self.access().await.revoke_token(request).await.unwrap();
    }

    /// A TLS connection that offers these protocols.
    pub(crate) async fn tls(&self, to: SocketAddr, offers: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let authority = self.dir.path().join("tls/authority.pem");
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = offers.iter().map(|offer| offer.to_vec()).collect();
        let name = ServerName::try_from(REGISTRY_NAME).unwrap();
        let stream = TcpStream::connect(to).await.unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        in_time("a handshake", connecting).await.unwrap()
    }

    /// A connection that speaks HTTP/2, as gRPC does.
    pub(crate) async fn http2(&self, to: SocketAddr) -> Calls {
        let stream = TokioIo::new(self.tls(to, &[b"h2"]).await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        Calls(sender)
    }

    /// Sends a request over HTTP/1.1 on a connection of its own, which offered what curl does.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = self.tls(self.clients, &[b"h2", b"http/1.1"]).await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        in_time("the head of an answer", sender.send_request(request)).await.unwrap()
    }

    /// The same, with the whole answer: its status, and its text.
    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> (u16, String) {
        let response = self.send(request(method, path, token, body)).await;
        let status = response.status().as_u16();
        assert_eq!(response.headers().contains_key("www-authenticate"), status == 401);
        let bytes = in_time("an answer", response.into_body().collect()).await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

pub(crate) fn request(
    method: &str,
    path: &str,
    token: Option<&str>,
    body: &str,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "registry");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

/// An HTTP/2 connection for calls that no generated client makes.
#[derive(Clone)]
pub(crate) struct Calls(http2::SendRequest<Full<Bytes>>);

impl Calls {
    /// Begins a call with one message; gives the head of the answer.
    pub(crate) async fn begin(
        &mut self,
        path: &str,
        token: Option<&str>,
        message: &[u8],
    ) -> Response<Incoming> {
        let mut frame = vec![0];
        frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        frame.extend(message);
        let uri = format!("http://registry{path}");
        let mut request = Request::builder().method("POST").uri(uri);
        request = request.header("content-type", "application/grpc").header("te", "trailers");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(Bytes::from(frame))).unwrap();
        in_time("the head of an answer", self.0.send_request(request)).await.unwrap()
    }

    pub(crate) async fn is_hung_up_on(&mut self) {
        while self.0.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
    }

    /// One call; gives its gRPC status, and its words.
    pub(crate) async fn call(
        &mut self,
        path: &str,
        token: Option<&str>,
        message: &[u8],
    ) -> (u16, String) {
        ended(self.begin(path, token, message).await).await
    }
}

/// Waits until a call has ended; gives its gRPC status, and its words.
pub(crate) async fn ended(response: Response<Incoming>) -> (u16, String) {
    let (head, body) = response.into_parts();
    let body = in_time("the call ends", body.collect()).await.unwrap();
    let said = body.trailers().filter(|said| said.contains_key("grpc-status"));
    let said = said.unwrap_or(&head.headers);
    let text = |name: &str| said.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    (text("grpc-status").parse().unwrap(), text("grpc-message").replace("%20", " "))
}

//! A controller that does not lead, and says so: the agent dials the one that it names, and comes back when that one is
//! no more.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use hotbay_api::agent as wire;
use hotbay_api::agent::agents_server::{Agents, AgentsServer};
use hotbay_api::join::joining_server::{Joining, JoiningServer};
use hotbay_api::join::{Certified, JoinRequest, RenewRequest};
use hotbay_api::leader::NotLeading;
use hotbay_api::token::{ALPN, REGISTRY_NAME};
use hotbay_control::AuthorityPems;
use hotbay_registry::MemoryStore;
use rcgen::{CertificateParams, DnType, Issuer, KeyPair, PKCS_ED25519};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

use crate::cluster::eventually;
use crate::rig::{LIFE, Rig, free_port, wall_ms};

/// What it answers to everybody, and how many asked.
#[derive(Clone)]
pub(crate) struct Follower {
    says: Arc<Mutex<NotLeading>>,
    asked: Arc<Mutex<(usize, usize)>>,
}

impl Follower {
    fn say(&self, told: NotLeading) {
        *self.says.lock().unwrap() = told;
    }

    fn answer(&self) -> Status {
        self.says.lock().unwrap().clone().into()
    }

    /// How many calls to join there were, and how many for a session.
    fn asked(&self) -> (usize, usize) {
        *self.asked.lock().unwrap()
    }
}

#[tonic::async_trait]
impl Joining for Follower {
    async fn join(&self, _: Request<JoinRequest>) -> Result<Response<Certified>, Status> {
        self.asked.lock().unwrap().0 += 1;
        Err(self.answer())
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<Certified>, Status> {
        Err(self.answer())
    }
}

#[tonic::async_trait]
impl Agents for Follower {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<wire::RegistryMessage, Status>> + Send>>;

    async fn session(
        &self,
        _: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        self.asked.lock().unwrap().1 += 1;
        Err(self.answer())
    }
}

/// Listens with a certificate of the authority.
async fn follow(authority: &AuthorityPems, says: NotLeading) -> (Follower, SocketAddr) {
    let follower = Follower { says: Arc::new(Mutex::new(says)), asked: Arc::default() };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = TlsAcceptor::from(Arc::new(config(authority)));
    let (taken, streams) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // One that breaks off is the agent's affair.
            if let Ok(stream) = tls.accept(stream).await
                && taken.send(Ok::<_, io::Error>(Taken(stream))).await.is_err()
            {
                return;
            }
        }
    });
    let serving = Server::builder()
        .add_service(AgentsServer::new(follower.clone()))
        .add_service(JoiningServer::new(follower.clone()))
        .serve_with_incoming(ReceiverStream::new(streams));
    tokio::spawn(serving);
    (follower, address)
}

fn config(authority: &AuthorityPems) -> ServerConfig {
    let root = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap();
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name.push(DnType::CommonName, "Hotbay registry authority");
    let issuer = Issuer::new(issuer, KeyPair::from_pem(&authority.key).unwrap());
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let params = CertificateParams::new(vec![REGISTRY_NAME.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .unwrap();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate, root],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .unwrap();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}

/// Says nothing of its peer.
struct Taken(TlsStream<TcpStream>);

impl Connected for Taken {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Taken {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Taken {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_finds_the_leader_through_whoever_answers() {
    let mut rig = Rig::new();
    let (follower, address) = follow(&rig.authority, NotLeading::Nobody).await;
    rig.address = address.to_string();
    rig.start_agent(&[]);
    rig.wait_logged("cannot join yet: nobody leads");

    // Named is one that is not there; the agent comes back, and hears of the next.
    follower.say(NotLeading::Leader(format!("127.0.0.1:{}", free_port())));
    rig.wait_logged("Connection refused");
    let leader = rig.start_registry("127.0.0.1:0", LIFE).await;
    follower.say(NotLeading::Leader(leader.to_string()));
    rig.wait_ready(true);
    let (joins, sessions) = follower.asked();
    assert!(joins >= 3 && sessions >= 1, "{joins} joins, {sessions} sessions");
    assert_eq!(rig.membership()["address"], address.to_string(), "it dials what it was told");

    // Whoever sends it round and round is not pressed, and the agent still gets there.
    rig.kill_agent();
    follower.say(NotLeading::Leader(address.to_string()));
    rig.start_agent(&[]);
    rig.wait_logged("each says that another one leads");
    follower.say(NotLeading::Leader(leader.to_string()));
    rig.wait_ready(true);
}

/// Two controllers that lead one after the other, with one authority and one set of records, as on Kubernetes. The
/// second has never seen the agent's certificate, and renews it all the same: nobody has to join again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_renews_a_certificate_that_the_one_before_gave_out() {
    // It is renewed after two thirds of that, by when the next one leads.
    const SHORT: Duration = Duration::from_secs(30);
    let mut rig = Rig::new();
    let (follower, address) = follow(&rig.authority, NotLeading::Nobody).await;
    rig.address = address.to_string();
    let store = MemoryStore::new();
    // It ends with all that it has open, as a process does.
    let first = Runtime::new().unwrap();
    let leading = rig.lead("127.0.0.1:0", SHORT, store.clone(), 2);
    let leader = tokio::task::block_in_place(|| first.block_on(leading));
    follower.say(NotLeading::Leader(leader.to_string()));
    rig.start_agent(&[]);
    rig.wait_ready(true);
    follower.say(NotLeading::Nobody);
    first.shutdown_background();
    // From now on its account is worth nothing: it has its certificate alone.
    let name = rig.name.clone();
    rig.platform.give_out("another", &name);
    let leader = rig.lead("127.0.0.1:0", LIFE, store, 3).await;
    follower.say(NotLeading::Leader(leader.to_string()));
    rig.wait_ready(true);
    // One that lives for so long is of the second.
    eventually("the next leader has renewed it", || {
        let not_after_ms = rig.membership()["not_after_ms"].as_u64()?;
        (not_after_ms > wall_ms() + 600_000).then_some(())
    });
    rig.wait_logged("this node has a new certificate");
    assert!(!rig.logged().contains("join again"), "{}", rig.logged());
    assert!(!rig.logged().contains("joining again"), "{}", rig.logged());
    // And with it the agent is let in.
    rig.kill_agent();
    rig.start_agent(&[]);
    rig.wait_ready(true);
}

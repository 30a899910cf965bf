//! Everybody who should not get in: each is refused with words, and delays nobody.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hotbay_api::PROTOCOL;
use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::view_client::ViewClient;
use hotbay_api::cms::{ActRequest, ListRequest};
use hotbay_api::join::joining_client::JoiningClient;
use hotbay_api::join::tokens_client::TokensClient;
use hotbay_api::join::{CreateTokenRequest, RenewRequest};
use hotbay_api::token::{ALPN, REGISTRY_NAME};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::LIMIT;
use crate::net::{Namespace, address};
use crate::rig::{Agent, PORT, Rig};

/// The first message of a TLS 1.2 client that knows nothing newer: a record with a ClientHello of one cipher suite and
/// one signature algorithm.
const TLS_1_2_HELLO: &[u8] = &[
    22, 3, 1, 0, 55, 1, 0, 0, 51, 3, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 0, 0, 2, 0xc0, 0x2f, 1, 0, 0, 8, 0,
    13, 0, 4, 0, 2, 8, 7,
];

fn connected() -> TcpStream {
    let stream = TcpStream::connect((address(0), PORT)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Says something, and waits until the registry has hung up; gives what it said before.
fn hung_up_on(from: &Namespace, said: &[u8]) -> Vec<u8> {
    from.inside(|| {
        let mut stream = connected();
        stream.write_all(said).unwrap();
        let mut heard = Vec::new();
        // Reset or closed: both are an end.
        stream.read_to_end(&mut heard).ok();
        heard
    })
}

#[test]
fn whoever_speaks_no_tls_1_3_is_refused_with_words() {
    let rig = Rig::new(1, Vec::new());
    let from = rig.machine(1);
    hung_up_on(from, b"GET / HTTP/1.1\r\nHost: registry\r\n\r\n");
    rig.wait_registry_logged("refused: received corrupt message of type InvalidContentType");
    hung_up_on(from, &[0xfe; 300]);
    hung_up_on(from, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let heard = hung_up_on(from, TLS_1_2_HELLO);
    // A fatal alert: 70 is protocol_version.
    assert_eq!(heard[heard.len() - 2..], [2, 70], "{heard:?}");
    rig.wait_registry_logged("refused: peer is incompatible");
    rig.joined("a", 1);
}

#[test]
fn handshakes_that_hang_delay_nobody() {
    let rig = Rig::new(2, Vec::new());
    // More than may be under way from one machine: half of a first message each, then silence.
    let mut hanging = rig.machine(1).inside(|| {
        let half = |_| {
            let mut stream = connected();
            // Those beyond the limit may have been hung up on already.
            stream.write_all(&TLS_1_2_HELLO[..20]).ok();
            stream
        };
        (0..100).map(half).collect::<Vec<_>>()
    });
    let began = Instant::now();
    let agent = rig.joined("a", 2);
    rig.expect(&["host", "add", &agent.name, "--wait"], 0);
    rig.wait_registry_logged("too many handshakes are under way");
    for stream in &mut hanging {
        stream.read_to_end(&mut Vec::new()).ok();
    }
    assert!(began.elapsed() < Duration::from_secs(30), "they hang for {:?}", began.elapsed());
    rig.wait_registry_logged("the handshake took longer than 5 s");
    // The machine that did it may come in again.
    rig.joined("b", 1);
}

/// Dials as some client; gives the error's words if it does not get that far.
pub(crate) async fn dial(config: ClientConfig) -> Result<Channel, String> {
    let config = Arc::new(config);
    let connect = tower::service_fn(move |_| {
        let tls = tokio_rustls::TlsConnector::from(Arc::clone(&config));
        async move {
            let stream = tokio::net::TcpStream::connect((address(0), PORT)).await?;
            let name = ServerName::try_from(REGISTRY_NAME).unwrap();
            tls.connect(name, stream).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://registry");
    endpoint.connect_with_connector(connect).await.map_err(|error| format!("{error:?}"))
}

pub(crate) fn inside<T: Send>(from: &Namespace, work: impl Future<Output = T> + Send) -> T {
    from.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work)
    })
}

/// Trusts the registry, and shows this certificate, if any.
pub(crate) fn client(
    rig: &Rig,
    shown: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let authority = rig.path().join("registry/tls/authority.pem");
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        Some((certificate, key)) => config.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config
}

/// The certificate and the key of an agent, out of its data directory.
pub(crate) fn stored(agent: &Agent) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let read = |name: &str| {
        let text = std::fs::read_to_string(agent.data_dir.join("tls").join(name)).unwrap();
        serde_json::from_str::<serde_json::Value>(text.split_once('\n').unwrap().1).unwrap()
    };
    let key = PrivatePkcs8KeyDer::from_pem_slice(read("key").as_str().unwrap().as_bytes());
    let pem = read("membership")["certificate_pem"].as_str().unwrap().to_owned();
    (CertificateDer::from_pem_slice(pem.as_bytes()).unwrap(), key.unwrap().into())
}

/// Dials with the certificate of an agent; whether it gets a session.
pub(crate) fn gets_a_session(rig: &Rig, agent: &Agent) -> bool {
    let config = client(rig, Some(stored(agent)));
    inside(rig.machine(agent.machine), async {
        match dial(config).await {
            Ok(channel) => session(&channel).await == Code::Ok,
            Err(_) => false,
        }
    })
}

async fn session(channel: &Channel) -> Code {
    let nothing = tokio_stream::empty::<hotbay_api::agent::AgentMessage>();
    match AgentsClient::new(channel.clone()).session(nothing).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

#[test]
fn without_a_certificate_nothing_but_joining_is_there() {
    let rig = Rig::new(1, Vec::new());
    let config = client(&rig, None);
    inside(rig.machine(1), async {
        let channel = dial(config).await.unwrap();
        assert_eq!(session(&channel).await, Code::Unauthenticated);
        let renewed = JoiningClient::new(channel.clone())
            .renew(RenewRequest { protocol: PROTOCOL })
            .await
            .unwrap_err();
        assert_eq!(renewed.code(), Code::Unauthenticated);
        nothing_for_people(channel).await;
    });
    rig.wait_registry_logged("refused: no certificate");
}

/// What people and programs call is not served to other machines, whoever asks.
async fn nothing_for_people(channel: Channel) {
    let act = ActRequest { protocol: PROTOCOL, ..ActRequest::default() };
    let acted = CmsClient::new(channel.clone()).act(act).await.unwrap_err();
    let list =
        ListRequest { protocol: PROTOCOL, kind: "Drive".to_owned(), ..ListRequest::default() };
    let listed = ViewClient::new(channel.clone()).list(list).await.unwrap_err();
    let token = CreateTokenRequest { protocol: PROTOCOL, ..CreateTokenRequest::default() };
    let made = TokensClient::new(channel).create(token).await.unwrap_err();
    assert_eq!([acted.code(), listed.code(), made.code()], [Code::Unimplemented; 3]);
}

#[test]
fn a_certificate_opens_the_session_of_its_node_and_nothing_else() {
    let rig = Rig::new(1, Vec::new());
    let mut agent = rig.joined("a", 1);
    agent.running.take().unwrap().kill();
    let config = client(&rig, Some(stored(&agent)));
    inside(rig.machine(1), async {
        let channel = dial(config).await.unwrap();
        assert_eq!(session(&channel).await, Code::Ok);
        nothing_for_people(channel).await;
    });
}

#[test]
fn a_certificate_of_anybody_else_is_refused() {
    let rig = Rig::new(1, Vec::new());
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let mut params = rcgen::CertificateParams::default();
    // All that a certificate of ours says, and even the authority's name as the issuer's.
    params.distinguished_name.push(rcgen::DnType::CommonName, "Hotbay registry authority");
    let name = format!("hotbay:node:{}", rig.name("a"));
    params.subject_alt_names = vec![rcgen::SanType::URI(name.try_into().unwrap())];
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let shown = (certificate, PrivatePkcs8KeyDer::from(key.serialize_der()).into());
    let config = client(&rig, Some(shown));
    inside(rig.machine(1), async {
        // The client has done its part of the handshake before it hears that it is refused.
        if let Ok(channel) = dial(config).await {
            assert_ne!(session(&channel).await, Code::Ok);
        }
    });
    rig.wait_registry_logged("refused: invalid peer certificate");
    assert_eq!(rig.nodes(), Vec::<serde_json::Value>::new());
}

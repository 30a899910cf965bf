//! TLS towards a registry on another machine: as a member, who knows the authority and shows a certificate, or as one
//! who joins, who knows of the authority only a hash. The client of people and programs knows no more either, and dials
//! with [`PinnedDial`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::aws_lc_rs::digest::{SHA256, digest};
use hotbay_api::token::{ALPN, REGISTRY_NAME};
use hyper_util::rt::TokioIo;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};

use crate::membership::Member;

/// Between agent and registry something is said all the time; a connection without an answer for so long is dead.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Why TLS cannot be set up with what is stored.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("the stored {what} cannot be used: {why}; join again with a new token")]
    Stored { what: &'static str, why: String },
    #[error("cannot set TLS up")]
    Setup(#[source] rustls::Error),
}

/// For a member: the registry must be its authority's, and sees this node's certificate.
pub(crate) fn as_member(member: &Member) -> Result<ClientConfig, TlsError> {
    let stored = |what, why: String| TlsError::Stored { what, why };
    let membership = member.membership();
    let authority = CertificateDer::from_pem_slice(membership.authority_pem.as_bytes())
        .map_err(|error| stored("authority", error.to_string()))?;
    let certificate = CertificateDer::from_pem_slice(membership.certificate_pem.as_bytes())
        .map_err(|error| stored("certificate", error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add(authority).map_err(|error| stored("authority", error.to_string()))?;
    let key = PrivatePkcs8KeyDer::from(member.key().to_vec());
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Setup)?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key.into())
        .map_err(|error| stored("certificate", error.to_string()))?;
    Ok(finished(config))
}

/// For one who joins: the registry must show an authority with this hash, and a certificate of it.
pub(crate) fn as_joiner(authority: [u8; 32]) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = PinnedAuthority { hash: authority, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Setup)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(finished(config))
}

/// Dials registries whose authority has a known hash, and no others.
#[derive(Debug, Clone)]
pub struct PinnedDial {
    config: Arc<ClientConfig>,
}

/// Why a dial failed.
#[derive(Debug, Error)]
pub enum PinnedDialError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    /// Whoever answers there is not the registry that the hash is of.
    #[error("it shows another authority")]
    OtherAuthority,
    #[error("its certificate has expired")]
    Expired,
    #[error("its certificate is not valid yet")]
    NotYetValid,
    #[error("no secure connection")]
    Tls(#[source] io::Error),
}

impl PinnedDial {
    /// `authority` is the SHA-256 of its certificate.
    pub fn new(authority: [u8; 32]) -> Result<Self, TlsError> {
        Ok(Self { config: Arc::new(as_joiner(authority)?) })
    }

    /// A connection to HOST:PORT, for HTTP/2.
    pub async fn dial(
        &self,
        address: &str,
    ) -> Result<TokioIo<TlsStream<TcpStream>>, PinnedDialError> {
        let stream = TcpStream::connect(address).await.map_err(PinnedDialError::Connect)?;
        stream.set_nodelay(true).map_err(PinnedDialError::Connect)?;
        let name = ServerName::try_from(REGISTRY_NAME).expect("a name of our own");
        let tls = TlsConnector::from(Arc::clone(&self.config));
        tls.connect(name, stream).await.map(TokioIo::new).map_err(|error| {
            let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
            let Some(rustls::Error::InvalidCertificate(fault)) = cause else {
                return PinnedDialError::Tls(error);
            };
            match fault {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    PinnedDialError::Expired
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    PinnedDialError::NotYetValid
                }
                CertificateError::UnknownIssuer => PinnedDialError::OtherAuthority,
                _ => PinnedDialError::Tls(error),
            }
        })
    }
}

fn finished(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A certificate is shown anew with each connection.
    config.resumption = rustls::client::Resumption::disabled();
    config
}

/// Dials a registry.
pub(crate) async fn connect(
    address: String,
    config: ClientConfig,
) -> Result<Channel, tonic::transport::Error> {
    let config = Arc::new(config);
    let connect = tower::service_fn(move |_| {
        let (address, tls) = (address.clone(), TlsConnector::from(Arc::clone(&config)));
        async move {
            let stream = TcpStream::connect(address).await?;
            // Orders and answers are small, and each is waited for.
            stream.set_nodelay(true)?;
            let name = ServerName::try_from(REGISTRY_NAME).expect("a name of our own");
            tls.connect(name, stream).await.map(TokioIo::new).map_err(io::Error::other)
        }
    });
    // The connector alone decides where to go; this name only fills the protocol's field.
    Endpoint::from_static("http://registry.hotbay.internal")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector(connect)
        .await
}

/// SHA-256.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Believes a registry whose chain ends in the authority with this hash, and nobody else.
#[derive(Debug)]
struct PinnedAuthority {
    hash: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        registry: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let unknown = || rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let pinned = others.iter().find(|other| hash(other) == self.hash).ok_or_else(unknown)?;
        let mut roots = RootCertStore::empty();
        roots.add(pinned.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|_| unknown())?;
        verifier.verify_server_cert(registry, others, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // Never asked for: TLS 1.2 is not offered.
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

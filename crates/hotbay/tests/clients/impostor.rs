//! Something at an address that is not a registry as it should be.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use hotbay_api::client_token::ClientToken;
use hotbay_api::token::REGISTRY_NAME;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection};

/// Lives as long as the test: its thread ends with the process.
pub(crate) struct Impostor {
    address: SocketAddr,
    authority: [u8; 32],
}

impl Impostor {
    /// Shows the right authority, and a certificate of it that has ended.
    pub(crate) fn with_expired_certificate() -> Self {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let authority = params.self_signed(&key).unwrap().der().clone();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::new(vec![REGISTRY_NAME.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 8);
        let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
        let shown = vec![certificate, authority.clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(shown, key.into())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let config = Arc::new(config);
        Self::listening(hash(&authority), move |mut stream| {
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            // It fails: the client does not like what it sees.
            while tls.complete_io(&mut stream).is_ok() {}
        })
    }

    /// Speaks HTTP as it is.
    pub(crate) fn without_tls() -> Self {
        Self::listening([0; 32], |mut stream| {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap_or_default();
            stream.read_to_end(&mut Vec::new()).ok();
        })
    }

    fn listening(authority: [u8; 32], answer: impl Fn(TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
        Self { address, authority }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// A token that it might have made.
    pub(crate) fn token(&self) -> String {
        ClientToken { authority: self.authority, secret: [7; 32] }.to_string()
    }
}

fn hash(certificate: &CertificateDer<'_>) -> [u8; 32] {
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, certificate);
    hash.as_ref().try_into().unwrap()
}

//! The registry's own certificate authority: made at first need, kept in the registry's data directory, unless it is
//! given ([`super::pems`]).
//!
//! ```text
//! DIR/authority.key    its private key, for the registry's user alone
//! DIR/authority.pem    its certificate; a join token holds the hash of it
//! ```
//!
//! It certifies the registry, as a server, and nodes, as clients, and nothing else. The key is durable before the
//! certificate is written: a key alone has certified nobody, and gets its certificate at the next start. Everything
//! else that is missing or damaged is told, and never made anew, because every agent that joined trusts this one alone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use hotbay_api::token::{CONTROLLER_URI, NODE_URI, REGISTRY_NAME};
use hotbay_core::ids::{CertificateNumber, NodeName};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use thiserror::Error;

use super::pems::{AuthorityAt, certificate_of};

/// In every certificate that was ever issued; another name here would disown them all.
const AUTHORITY_NAME: &str = "Hotbay registry authority";
/// The first byte of the serial number of a node's certificate: neither zero nor negative, so that the number after it
/// has its place in the shortest encoding.
const NUMBERED: u8 = b'H';
/// How far the clocks of two machines may be apart.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3_600);

/// Why there is no authority.
#[derive(Debug, Error)]
pub enum AuthorityError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is damaged: {why}; put it back from a backup: every agent that joined trusts it alone", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{} may be read by others (mode {mode:03o}); it must be closed to them (mode 600)", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "the authority's key and certificate cannot be used: {why}; put both back from a backup: every agent that \
         joined trusts them alone"
    )]
    Unusable { why: &'static str },
    #[error("cannot make a certificate")]
    Certify(#[from] rcgen::Error),
    #[error("the machine gives no random numbers")]
    Random,
    #[error("cannot use a key")]
    Key(#[source] rustls::Error),
}

/// The authority, ready to certify.
pub(crate) struct Authority {
    certificate: CertificateDer<'static>,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate for a node.
pub(crate) struct NodeCertificate {
    pub(crate) pem: String,
    pub(crate) not_after_ms: u64,
    pub(crate) renew_after_ms: u64,
}

impl Authority {
    /// The authority from where it is.
    pub(crate) fn of(at: AuthorityAt) -> Result<Self, AuthorityError> {
        match at {
            AuthorityAt::Folder(dir) => Self::load_or_make(&dir),
            AuthorityAt::Given(pems) => {
                let (key, certificate) = pems.parse()?;
                let issuer = Issuer::new(authority_params(), key);
                Ok(Self { pem: pems.certificate, issuer, certificate })
            }
        }
    }

    /// The authority kept in `dir`; a new one if there is none yet.
    pub(crate) fn load_or_make(dir: &Path) -> Result<Self, AuthorityError> {
        make_folder(dir)?;
        let (key_path, pem_path) = (dir.join("authority.key"), dir.join("authority.pem"));
        let damaged = |path: &Path, why: &str| AuthorityError::Damaged {
            path: path.to_owned(),
            why: why.to_owned(),
        };
        let key = match (read(&key_path)?, read(&pem_path)?) {
            (Some(key), _) => {
                closed_to_others(&key_path)?;
                KeyPair::from_pem(&key).map_err(|_| damaged(&key_path, "it holds no key"))?
            }
            (None, Some(_)) => return Err(damaged(&key_path, "it is missing")),
            (None, None) => {
                let key = KeyPair::generate_for(&PKCS_ED25519)?;
                replace(&key_path, &key.serialize_pem())?;
                key
            }
        };
        let pem = match read(&pem_path)? {
            Some(pem) => pem,
            None => {
                let pem = authority_params().self_signed(&key)?.pem();
                replace(&pem_path, &pem)?;
                pem
            }
        };
        let certificate = certificate_of(&pem, &key).map_err(|why| damaged(&pem_path, why))?;
        Ok(Self { pem, issuer: Issuer::new(authority_params(), key), certificate })
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// What a join token holds of it.
    pub(crate) fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, &self.certificate).as_ref());
        hash
    }

    /// Certifies that a key is this node's. The number is in the certificate's serial number.
    pub(crate) fn certify_node(
        &self,
        node: &NodeName,
        public_key: [u8; 32],
        number: CertificateNumber,
        now_ms: u64,
        life: Duration,
    ) -> Result<NodeCertificate, AuthorityError> {
        let mut params = params(node.as_str(), now_ms, life);
        params.subject_alt_names = vec![SanType::URI(format!("{NODE_URI}{node}").try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = Some(SerialNumber::from_slice(&serial(number)?));
        let pem = params.signed_by(&Ed25519Key(public_key), &self.issuer)?.pem();
        let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
        Ok(NodeCertificate {
            pem,
            not_after_ms: now_ms.saturating_add(life_ms),
            renew_after_ms: now_ms.saturating_add(life_ms / 3 * 2),
        })
    }

    /// A new key with a certificate by which one controller knows another.
    pub(crate) fn certify_controller(
        &self,
        now_ms: u64,
        life: Duration,
    ) -> Result<CertifiedKey, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = params("controller", now_ms, life);
        params.subject_alt_names = vec![SanType::URI(CONTROLLER_URI.try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(key.serialize_der()))
            .map_err(AuthorityError::Key)?;
        Ok(CertifiedKey::new(vec![certificate], signer))
    }

    /// A new key with a certificate for the registry itself. Of its names agents and `hotbay` look at the one that
    /// every registry has; `names` are for other clients.
    pub(crate) fn certify_registry(
        &self,
        names: &[SanType],
        now_ms: u64,
        life: Duration,
    ) -> Result<CertifiedKey, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = params(REGISTRY_NAME, now_ms, life);
        params.subject_alt_names = vec![SanType::DnsName(REGISTRY_NAME.try_into()?)];
        params.subject_alt_names.extend_from_slice(names);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let signer = any_eddsa_type(&PrivatePkcs8KeyDer::from(key.serialize_der()))
            .map_err(AuthorityError::Key)?;
        // The authority's own goes with it: one who joins knows only its hash.
        Ok(CertifiedKey::new(vec![certificate, self.certificate.clone()], signer))
    }
}

/// It has no end: when it had, everything would stop that day. What it certifies ends soon.
pub(super) fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, AUTHORITY_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn params(subject: &str, now_ms: u64, life: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now_ms);
    params.not_before = now - CLOCK_DIFFERENCE;
    params.not_after = now + life;
    params
}

/// A serial number with a certificate's number in it, and 64 random bits as is good practice.
fn serial(number: CertificateNumber) -> Result<[u8; 17], AuthorityError> {
    let mut serial = [NUMBERED; 17];
    serial[1..9].copy_from_slice(&number.get().to_be_bytes());
    aws_lc_rs::rand::fill(&mut serial[9..]).map_err(|_| AuthorityError::Random)?;
    Ok(serial)
}

/// The number in a serial number. One that has none is older than all numbers.
pub(crate) fn number_in(serial: &[u8]) -> CertificateNumber {
    match serial {
        [NUMBERED, rest @ ..] if rest.len() == 16 => {
            let number = rest.first_chunk().expect("it has 16 bytes");
            CertificateNumber::from_number(u64::from_be_bytes(*number))
        }
        _ => CertificateNumber::default(),
    }
}

/// A key that is somebody else's: only its public half is here.
struct Ed25519Key([u8; 32]);

impl PublicKeyData for Ed25519Key {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// Makes a folder that is closed to others, if it is missing.
pub(crate) fn make_folder(dir: &Path) -> Result<(), AuthorityError> {
    let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(dir);
    made.map_err(|source| AuthorityError::Write { path: dir.to_owned(), source })
}

pub(crate) fn read(path: &Path) -> Result<Option<String>, AuthorityError> {
    match fs::read(path) {
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|_| AuthorityError::Damaged {
            path: path.to_owned(),
            why: "it is not text".to_owned(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(AuthorityError::Read { path: path.to_owned(), source }),
    }
}

fn closed_to_others(path: &Path) -> Result<(), AuthorityError> {
    let found = fs::metadata(path)
        .map_err(|source| AuthorityError::Read { path: path.to_owned(), source })?;
    let mode = found.mode() & 0o777;
    if mode & 0o077 == 0 {
        Ok(())
    } else {
        Err(AuthorityError::Open { path: path.to_owned(), mode })
    }
}

/// Durable when it returns; a crash leaves the old file or the new one, whole.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), AuthorityError> {
    let beside = path.with_extension("new");
    let written = (|| {
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(path.parent().expect("a file in a folder"))?.sync_all()
    })();
    written.map_err(|source| AuthorityError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn it_is_made_once_closed_to_others_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let made = Authority::load_or_make(&dir.path().join("tls")).unwrap();
        let key = dir.path().join("tls/authority.key");
        assert_eq!(fs::metadata(&key).unwrap().mode() & 0o777, 0o600);
        let found = Authority::load_or_make(&dir.path().join("tls")).unwrap();
        assert_eq!(found.hash(), made.hash());
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        let refused = Authority::load_or_make(&dir.path().join("tls"));
        assert!(matches!(refused, Err(AuthorityError::Open { mode: 0o640, .. })));
    }

    #[test]
    fn a_crash_between_key_and_certificate_is_made_good() {
        let dir = tempfile::tempdir().unwrap();
        Authority::load_or_make(dir.path()).unwrap();
        let key = fs::read(dir.path().join("authority.key")).unwrap();
        fs::remove_file(dir.path().join("authority.pem")).unwrap();
        Authority::load_or_make(dir.path()).unwrap();
        assert_eq!(fs::read(dir.path().join("authority.key")).unwrap(), key);
    }

    #[test]
    fn what_is_damaged_is_told_and_never_made_anew() {
        let other = tempfile::tempdir().unwrap();
        Authority::load_or_make(other.path()).unwrap();
        let of_another = fs::read(other.path().join("authority.pem")).unwrap();
        let cases: [(&str, Option<&[u8]>); 5] = [
            ("authority.key", None),
            ("authority.key", Some(b"-----BEGIN PRI")),
            ("authority.key", Some(b"\xff\xfe")),
            ("authority.pem", Some(b"")),
            ("authority.pem", Some(&of_another)),
        ];
        for (name, content) in cases {
            let dir = tempfile::tempdir().unwrap();
            Authority::load_or_make(dir.path()).unwrap();
            match content {
                Some(content) => fs::write(dir.path().join(name), content).unwrap(),
                None => fs::remove_file(dir.path().join(name)).unwrap(),
            }
            let before = fs::read(dir.path().join("authority.pem")).unwrap();
            let loaded = Authority::load_or_make(dir.path());
            assert!(matches!(loaded, Err(AuthorityError::Damaged { .. })), "{name} {content:?}");
            assert_eq!(fs::read(dir.path().join("authority.pem")).unwrap(), before);
            assert_eq!(fs::read(dir.path().join(name)).ok().as_deref(), content);
        }
    }
}

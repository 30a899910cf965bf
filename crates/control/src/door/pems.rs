//! The authority's key and certificate as text: for whoever keeps them elsewhere than in the registry's data directory,
//! as where several registries share one authority. The program fetches them and gives them to [`crate::Doors::open`].

use std::fmt;
use std::path::PathBuf;

use rcgen::{KeyPair, PKCS_ED25519};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::authority::{AuthorityError, authority_params};

/// Where the authority is.
#[derive(Debug, Clone)]
pub enum AuthorityAt {
    /// In this folder; it is made there if there is none yet.
    Folder(PathBuf),
    /// Here.
    Given(AuthorityPems),
}

/// A key and its certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityPems {
    /// The private key, PEM.
    pub key: String,
    /// The certificate, PEM.
    pub certificate: String,
}

impl AuthorityPems {
    /// A new authority, which has certified nobody yet. Nothing is written anywhere.
    pub fn fresh() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let certificate = authority_params().self_signed(&key)?.pem();
        Ok(Self { key: key.serialize_pem(), certificate })
    }

    /// Whether key and certificate can be used, and belong together.
    pub fn check(&self) -> Result<(), AuthorityError> {
        self.parse().map(drop)
    }

    pub(super) fn parse(&self) -> Result<(KeyPair, CertificateDer<'static>), AuthorityError> {
        let unusable = |why| AuthorityError::Unusable { why };
        let key = KeyPair::from_pem(&self.key).map_err(|_| unusable("the key is none"))?;
        let certificate = certificate_of(&self.certificate, &key).map_err(unusable)?;
        Ok((key, certificate))
    }
}

/// The certificate, if it is this key's.
pub(super) fn certificate_of(
    pem: &str,
    key: &KeyPair,
) -> Result<CertificateDer<'static>, &'static str> {
    let certificate =
        CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|_| "it holds no certificate")?;
    let parsed = webpki::EndEntityCert::try_from(&certificate)
        .map_err(|_| "its certificate cannot be read")?;
    if parsed.subject_public_key_info().as_ref()
        != rcgen::PublicKeyData::subject_public_key_info(key)
    {
        return Err("its certificate belongs to another key");
    }
    Ok(certificate)
}

/// The key is for the registry alone, not for logs.
impl fmt::Debug for AuthorityPems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("AuthorityPems");
        shown.field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::door::authority::Authority;

    #[test]
    fn a_fresh_pair_is_an_authority_for_all_who_have_it() {
        let pems = AuthorityPems::fresh().unwrap();
        let one = Authority::of(AuthorityAt::Given(pems.clone())).unwrap();
        let other = Authority::of(AuthorityAt::Given(pems.clone())).unwrap();
        assert_eq!((one.hash(), one.pem()), (other.hash(), pems.certificate.as_str()));
        let stranger = AuthorityPems::fresh().unwrap();
        assert_ne!(Authority::of(AuthorityAt::Given(stranger)).unwrap().hash(), one.hash());
        assert!(!format!("{pems:?}").contains("PRIVATE"), "{pems:?}");
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let (good, other) = (AuthorityPems::fresh().unwrap(), AuthorityPems::fresh().unwrap());
        for bad in [
            AuthorityPems { key: String::new(), ..good.clone() },
            AuthorityPems { certificate: String::new(), ..good.clone() },
            AuthorityPems { key: other.key, ..good.clone() },
        ] {
            assert!(matches!(bad.check(), Err(AuthorityError::Unusable { .. })), "{bad:?}");
        }
        good.check().unwrap();
    }
}

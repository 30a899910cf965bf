//! The keys of one cluster: its authority, a certificate for everybody who takes part, and the files that tell a client
//! where the API server is and who the client is. All in the rig's folder, and of no use elsewhere.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::error::RigError;
use crate::folder::Folder;

/// Members of it may do everything.
pub(crate) const MASTERS: &str = "system:masters";

#[derive(Debug)]
pub(crate) struct Keys {
    folder: Folder,
    issuer: Issuer<'static, KeyPair>,
    server: SocketAddr,
}

/// A key with its certificate, as two files.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Keys {
    /// A new authority for the cluster whose API server listens there, and the key that service accounts are signed by.
    pub(crate) fn make(folder: &Folder, server: SocketAddr) -> Result<Self, RigError> {
        let failed = |source| RigError::Certificate { whom: "the authority".to_owned(), source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "hotbay rig");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).map_err(failed)?;
        folder.write("keys/ca.crt", &certificate.pem())?;
        let accounts = KeyPair::generate().map_err(failed)?;
        folder.write("keys/accounts.key", &accounts.serialize_pem())?;
        folder.write("keys/accounts.pub", &accounts.public_key_pem())?;
        Ok(Self { folder: folder.clone(), issuer: Issuer::new(params, key), server })
    }

    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("keys/ca.crt")
    }

    pub(crate) fn accounts_private(&self) -> PathBuf {
        self.folder.join("keys/accounts.key")
    }

    pub(crate) fn accounts_public(&self) -> PathBuf {
        self.folder.join("keys/accounts.pub")
    }

    /// What a server at these addresses, which clients may know by these names, shows them.
    pub(crate) fn server(
        &self,
        file: &str,
        at: &[IpAddr],
        names: &[&str],
    ) -> Result<Pair, RigError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names.extend(at.iter().copied().map(SanType::IpAddress));
        for name in names {
            let name = (*name).try_into().map_err(failed(file))?;
            params.subject_alt_names.push(SanType::DnsName(name));
        }
        self.certify(file, params)
    }

    /// What a client shows: its user name, and the group that it is in.
    pub(crate) fn client(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<Pair, RigError> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.certify(file, params)
    }

    /// The same with the file that clients of Kubernetes read, at `NAME.kubeconfig` in the rig's folder.
    pub(crate) fn kubeconfig(
        &self,
        name: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf, RigError> {
        let pair = self.client(name, user, group)?;
        let text = kubeconfig(self.server, &self.authority(), &pair);
        self.folder.write(&format!("{name}.kubeconfig"), &text)
    }

    fn certify(&self, file: &str, mut params: CertificateParams) -> Result<Pair, RigError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(failed(file))?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(failed(file))?;
        Ok(Pair {
            certificate: self.folder.write(&format!("keys/{file}.crt"), &certificate.pem())?,
            key: self.folder.write(&format!("keys/{file}.key"), &key.serialize_pem())?,
        })
    }
}

fn failed(whom: &str) -> impl FnOnce(rcgen::Error) -> RigError + '_ {
    move |source| RigError::Certificate { whom: whom.to_owned(), source }
}

fn kubeconfig(server: SocketAddr, authority: &Path, pair: &Pair) -> String {
    let (authority, certificate, key) =
        (authority.display(), pair.certificate.display(), pair.key.display());
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: rig\n\
         clusters:\n- name: rig\n  cluster:\n    server: https://{server}\n    \
         certificate-authority: {authority}\n\
         users:\n- name: rig\n  user:\n    client-certificate: {certificate}\n    \
         client-key: {key}\n\
         contexts:\n- name: rig\n  context: {{cluster: rig, user: rig}}\n"
    )
}

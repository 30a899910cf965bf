//! Where the API server is, whom it is trusted by, and as whom it is asked: from the files that every pod has, or from
//! a kubeconfig. Files are read again for every new connection, and a token once a minute, because both rotate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde::Deserialize;
use thiserror::Error;

/// What Kubernetes gives a pod with a service account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// How old a token may be before its file is read again. Kubernetes replaces it long before it expires.
const TOKEN_AGE: Duration = Duration::from_secs(60);

/// Why the API server cannot be asked.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("this is no pod: {HOST} is not set; give --kubeconfig FILE")]
    NoPod,
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no kubeconfig: {what}", path.display())]
    NoKubeconfig { path: PathBuf, what: String },
    #[error("{}: {what}", path.display())]
    Unusable { path: PathBuf, what: String },
    #[error("{what} is not usable")]
    Pem {
        what: String,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate of the client and its key are not usable")]
    Identity(#[source] rustls::Error),
}

/// Bytes that stand in a file, or in the kubeconfig itself.
#[derive(Clone)]
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
}

impl Source {
    fn read(&self) -> Result<Vec<u8>, ServerError> {
        match self {
            Self::File(path) => std::fs::read(path)
                .map_err(|source| ServerError::Read { path: path.clone(), source }),
            Self::Bytes(bytes) => Ok(bytes.clone()),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Bytes(_) => "what the kubeconfig holds".to_owned(),
        }
    }
}

/// As whom the server is asked.
#[derive(Clone)]
enum Caller {
    Token(Source),
    Certificate { chain: Source, key: Source },
}

/// An API server, and as whom it is asked.
#[derive(Clone)]
pub struct Server {
    /// `HOST:PORT`.
    authority: String,
    /// What its certificate must be for.
    name: String,
    trusted: Source,
    caller: Caller,
    token: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Server {
    /// What a pod is given.
    pub fn in_cluster() -> Result<Self, ServerError> {
        let told = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        let host = told(HOST).ok_or(ServerError::NoPod)?;
        let port = told(PORT).unwrap_or_else(|| "443".to_owned());
        let folder = Path::new(ACCOUNT);
        let authority =
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        Ok(Self {
            authority,
            name: host,
            trusted: Source::File(folder.join("ca.crt")),
            caller: Caller::Token(Source::File(folder.join("token"))),
            token: Arc::default(),
        })
    }

    /// The current context of a kubeconfig. One that logs in by running a program is refused.
    pub fn from_kubeconfig(path: &Path) -> Result<Self, ServerError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ServerError::Read { path: path.to_owned(), source })?;
        Kubeconfig::parse(&text)
            .map_err(|what| ServerError::NoKubeconfig { path: path.to_owned(), what })?
            .server(path.parent().unwrap_or(Path::new("/")))
            .map_err(|what| ServerError::Unusable { path: path.to_owned(), what })
    }

    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// The token that goes with every call, if it is by a token that the caller is known.
    pub(super) fn bearer(&self) -> Result<Option<String>, ServerError> {
        let Caller::Token(source) = &self.caller else { return Ok(None) };
        let mut kept = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((read, token)) = &*kept
            && read.elapsed() < TOKEN_AGE
        {
            return Ok(Some(token.clone()));
        }
        let token = String::from_utf8_lossy(&source.read()?).trim().to_owned();
        *kept = Some((Instant::now(), token.clone()));
        Ok(Some(token))
    }

    /// How a connection to it is made safe.
    pub(super) fn tls(&self) -> Result<(ClientConfig, ServerName<'static>), ServerError> {
        let pem = |source: &Source| {
            let what = source.name();
            move |source| ServerError::Pem { what, source }
        };
        let mut roots = RootCertStore::empty();
        let bytes = self.trusted.read()?;
        for certificate in CertificateDer::pem_slice_iter(&bytes) {
            // One among several that rustls cannot read is none that signs this server.
            roots.add(certificate.map_err(pem(&self.trusted))?).unwrap_or_default();
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider knows TLS 1.3")
            .with_root_certificates(roots);
        let mut config = match &self.caller {
            Caller::Token(_) => config.with_no_client_auth(),
            Caller::Certificate { chain, key } => {
                let bytes = chain.read()?;
                let certificates = CertificateDer::pem_slice_iter(&bytes)
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(pem(chain))?;
                let key = PrivateKeyDer::from_pem_slice(&key.read()?).map_err(pem(key))?;
                config.with_client_auth_cert(certificates, key).map_err(ServerError::Identity)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name =
            ServerName::try_from(self.name.clone()).expect("it was one when the address was read");
        Ok((config, name))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither tokens nor keys.
        f.debug_struct("Server").field("authority", &self.authority).finish_non_exhaustive()
    }
}

/// As much of the file as is needed.
#[derive(Deserialize)]
struct Kubeconfig {
    #[serde(rename = "current-context")]
    current_context: String,
    #[serde(default)]
    contexts: Vec<Named<Context>>,
    #[serde(default)]
    clusters: Vec<Named<Cluster>>,
    #[serde(default)]
    users: Vec<Named<User>>,
}

#[derive(Deserialize)]
struct Named<T> {
    name: String,
    #[serde(alias = "context", alias = "cluster", alias = "user")]
    value: T,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
}

impl Kubeconfig {
    /// What is wrong is told by its place. The parser's own words quote what it found there, and that may be a token
    /// or a key.
    fn parse(text: &str) -> Result<Self, String> {
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let what = match error.without_snippet() {
                serde_saphyr::Error::SerdeMissingField { field, .. } => {
                    format!("{field} is missing")
                }
                serde_saphyr::Error::Unexpected { expected, .. } => format!("not {expected}"),
                _ => "it cannot be understood".to_owned(),
            };
            let place = error.location();
            let place = place.map(|at| format!(", at line {}, column {}", at.line(), at.column()));
            what + &place.unwrap_or_default()
        })
    }

    /// What is wrong is told in words; paths are counted from `folder`.
    fn server(&self, folder: &Path) -> Result<Server, String> {
        let context = find("context", &self.contexts, &self.current_context)?;
        let cluster = find("cluster", &self.clusters, &context.cluster)?;
        let user = find("user", &self.users, &context.user)?;
        if cluster.insecure_skip_tls_verify {
            return Err("it says not to check the server's certificate; that is never done".into());
        }
        let (authority, name) = address(&cluster.server)?;
        let trusted = source(
            folder,
            cluster.certificate_authority.as_ref(),
            cluster.certificate_authority_data.as_ref(),
        )?;
        Ok(Server {
            authority,
            name: cluster.tls_server_name.clone().unwrap_or(name),
            trusted: trusted.ok_or("the cluster has no certificate-authority")?,
            caller: user.caller(folder)?,
            token: Arc::default(),
        })
    }
}

impl User {
    fn caller(&self, folder: &Path) -> Result<Caller, String> {
        let chain = source(
            folder,
            self.client_certificate.as_ref(),
            self.client_certificate_data.as_ref(),
        )?;
        let key = source(folder, self.client_key.as_ref(), self.client_key_data.as_ref())?;
        if let (Some(chain), Some(key)) = (chain, key) {
            return Ok(Caller::Certificate { chain, key });
        }
        let token = match (&self.token_file, &self.token) {
            (Some(path), _) => Source::File(folder.join(path)),
            (None, Some(token)) => Source::Bytes(token.clone().into_bytes()),
            (None, None) => {
                return Err(
                    "the user has neither a token nor a client-certificate with its client-key; \
                            logging in by a program is not known here"
                        .into(),
                );
            }
        };
        Ok(Caller::Token(token))
    }
}

fn find<'a, T>(what: &str, all: &'a [Named<T>], name: &str) -> Result<&'a T, String> {
    let found = all.iter().find(|named| named.name == name);
    found.map(|named| &named.value).ok_or_else(|| format!("there is no {what} named {name:?}"))
}

fn source(
    folder: &Path,
    file: Option<&PathBuf>,
    data: Option<&String>,
) -> Result<Option<Source>, String> {
    Ok(match (data, file) {
        (Some(data), _) => Some(Source::Bytes(
            BASE64_STANDARD.decode(data.trim()).map_err(|error| format!("not base64: {error}"))?,
        )),
        (None, Some(path)) => Some(Source::File(folder.join(path))),
        (None, None) => None,
    })
}

/// `https://HOST[:PORT]`, as the address to dial and the name in the certificate.
fn address(url: &str) -> Result<(String, String), String> {
    let wrong = || format!("{url:?} is no address of an API server: https://HOST:PORT");
    let uri: http::Uri = url.parse().map_err(|_| wrong())?;
    let (Some("https"), Some(host), "" | "/") = (uri.scheme_str(), uri.host(), uri.path()) else {
        return Err(wrong());
    };
    let name = host.trim_matches(['[', ']']).to_owned();
    ServerName::try_from(name.clone()).map_err(|_| wrong())?;
    Ok((format!("{host}:{}", uri.port_u16().unwrap_or(443)), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: k, user: u, namespace: n}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    fn read(text: &str) -> Result<Server, String> {
        Kubeconfig::parse(text).unwrap().server(Path::new("/etc/kube"))
    }

    const CLUSTER: &str = "server: 'https://[::1]:6443', certificate-authority: ca.pem";

    #[test]
    fn files_are_found_beside_the_kubeconfig() {
        let server =
            read(&config(CLUSTER, "client-certificate: a.crt, client-key: /b.key")).unwrap();
        assert_eq!((server.authority(), server.name.as_str()), ("[::1]:6443", "::1"));
        let Caller::Certificate { chain, key } = &server.caller else { panic!("no certificate") };
        assert_eq!(chain.name(), "/etc/kube/a.crt");
        assert_eq!(key.name(), "/b.key");
        assert_eq!(server.trusted.name(), "/etc/kube/ca.pem");
    }

    #[test]
    fn what_stands_in_the_kubeconfig_needs_no_file() {
        let cluster = "server: 'https://k', certificate-authority-data: Y2E=";
        let server = read(&config(cluster, "token: secret")).unwrap();
        assert_eq!(server.authority(), "k:443");
        assert_eq!(server.trusted.read().unwrap(), b"ca");
        assert_eq!(server.bearer().unwrap().as_deref(), Some("secret"));
        assert!(!format!("{server:?}").contains("secret"));
    }

    #[test]
    fn what_cannot_be_used_is_told() {
        let told = |cluster: &str, user: &str| read(&config(cluster, user)).unwrap_err();
        assert!(told(CLUSTER, "exec: {command: login}").contains("logging in by a program"));
        assert!(told("server: 'http://k'", "token: t").contains("https://HOST:PORT"));
        assert!(told("server: 'https://k'", "token: t").contains("certificate-authority"));
        let blind = "server: 'https://k', insecure-skip-tls-verify: true";
        assert!(told(blind, "token: t").contains("never done"));
        let twisted = "server: 'https://k', certificate-authority-data: '%'";
        assert!(told(twisted, "token: t").contains("base64"));
        let lost = config(CLUSTER, "token: t").replace("current-context: c", "current-context: x");
        assert!(read(&lost).unwrap_err().contains("no context named"));
    }

    /// A kubeconfig with a slip of the pen, and the log had its token.
    #[test]
    fn what_is_wrong_with_the_file_is_told_without_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        let good = config(CLUSTER, "token: SECRET");
        for (text, words) in [
            (good.replace("token: SECRET", "token: [SECRET]"), "line 6"),
            (good.replace("{token: SECRET}", "SECRET"), "line 6"),
            (good.replace("users: [", "users: SECRET\nothers: ["), "line 6"),
            (good.replace("token: SECRET", "token: \"SECRET"), "line"),
            (good.replace("token: SECRET", "token: 'SECRET' SECRET"), "line 6"),
            (good.replace("token: SECRET", "token: !!float SECRET, tokenFile: *SECRET"), "line 6"),
            (good.replace("token: SECRET", "token: SECRET, token: SECRET"), "line 6"),
            (good.replace("insecure", "").replace("'https://[::1]:6443'", "{a: SECRET}"), "line 5"),
            (good.replace("current-context: c\n", ""), "current-context is missing"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = Server::from_kubeconfig(&path).unwrap_err();
            let (told, shown) = (error.to_string(), format!("{error:?}"));
            assert!(told.contains(words), "{text}{told}");
            assert!(!told.contains("SECRET") && !shown.contains("SECRET"), "{text}{shown}");
            assert!(std::error::Error::source(&error).is_none());
        }
    }
}

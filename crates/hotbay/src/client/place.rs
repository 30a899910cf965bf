//! Where the registry is: a Unix socket of this machine, or an address on another one together with the token that is
//! shown there.

use std::fmt;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hotbay_api::client_token::ClientToken;
use hotbay_api::token::check_address;
use hotbay_host::RuntimeDir;

use super::bearer::Renewed;
use super::error::ClientError;
use crate::cli::ApiArgs;

/// Where `hotbay demo` listens, seen from the folder that it was started in.
const DEMO_SOCKET: &str = "hotbay-demo/api.sock";
/// How the name of a Service begins, for people.
pub(crate) const SERVICE_MARK: &str = "service/";
/// The variable that holds a token.
const TOKEN_VARIABLE: &str = "HOTBAY_TOKEN";
/// A token is much shorter; what is longer is another file.
const TOKEN_FILE_LIMIT_BYTES: u64 = 4_096;

/// Where a registry is.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Socket(PathBuf),
    /// HOST:PORT, and what to show there.
    Remote {
        address: String,
        token: ClientToken,
    },
    /// A Service of Kubernetes, reached by a way that leads from an address of this machine.
    Service {
        address: String,
        /// SHA-256 of the authority's certificate.
        authority: [u8; 32],
        token: Renewed,
        /// For people.
        name: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Remote { address, .. } => write!(f, "https://{address}"),
            Self::Service { name, .. } => write!(f, "{SERVICE_MARK}{name}"),
        }
    }
}

impl Place {
    /// As told, else where a demo in this folder listens, else where this user's registry does.
    pub(crate) fn find(told: &ApiArgs) -> Result<Self, ClientError> {
        let ApiArgs { api, token_file } = told;
        let Some(api) = api.as_deref().filter(|api| !api.is_empty()) else {
            return Ok(Self::Socket(usual_socket()?));
        };
        match api.split_once("://") {
            Some(("https", rest)) => {
                let address = rest.strip_suffix('/').unwrap_or(rest);
                check_address(address).map_err(|why| ClientError::Address { why })?;
                let address = address.to_owned();
                let token = token(token_file.as_deref(), &address)?;
                Ok(Self::Remote { address, token })
            }
            Some((_, _)) => Err(ClientError::Scheme { given: api.to_owned() }),
            None => Ok(Self::Socket(PathBuf::from(api.strip_prefix("unix:").unwrap_or(api)))),
        }
    }
}

fn usual_socket() -> Result<PathBuf, ClientError> {
    let demo = Path::new(".").join(DEMO_SOCKET);
    if demo.exists() {
        return Ok(demo);
    }
    Ok(RuntimeDir::of_this_user()?.path().join("api.sock"))
}

/// The token from the file that was named, else from the environment.
fn token(file: Option<&Path>, address: &str) -> Result<ClientToken, ClientError> {
    let (text, from) = match file {
        Some(path) => (read(path)?, path.display().to_string()),
        None => {
            let text = std::env::var(TOKEN_VARIABLE).unwrap_or_default();
            if text.is_empty() {
                return Err(ClientError::NoToken { address: address.to_owned() });
            }
            (text, format!("${TOKEN_VARIABLE}"))
        }
    };
    text.parse().map_err(|why| ClientError::BadToken { from, why })
}

/// Refuses a file that others can read: whoever has the token may do what it may.
fn read(path: &Path) -> Result<String, ClientError> {
    let failed = |source| ClientError::TokenFile { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(ClientError::OpenTokenFile { path: path.to_owned(), mode });
    }
    let mut text = String::new();
    file.take(TOKEN_FILE_LIMIT_BYTES).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

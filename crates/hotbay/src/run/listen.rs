//! What `--listen` takes: the path of a Unix socket, or an address for clients on other machines.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use hotbay_api::token::{NotAnAddress, check_address};

/// One place to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    Socket(PathBuf),
    /// HOST:PORT
    Clients(String),
}

impl FromStr for Listen {
    type Err = NotAnAddress;

    /// What has a colon and no slash is an address; a socket of such a name is ./NAME.
    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Ok(Self::Socket(path.into()));
        }
        if text.contains('/') || !text.contains(':') {
            return Ok(Self::Socket(text.into()));
        }
        check_address(text)?;
        Ok(Self::Clients(text.to_owned()))
    }
}

/// As it is read, so that no path is taken for an address.
impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => {
                let text = path.to_string_lossy();
                let prefix = if text.contains(':') { "unix:" } else { "" };
                write!(f, "{prefix}{text}")
            }
            Self::Clients(address) => f.write_str(address),
        }
    }
}

/// The sockets and the addresses.
pub(crate) fn sorted(all: Vec<Listen>) -> (Vec<PathBuf>, Vec<String>) {
    let (mut sockets, mut addresses) = (Vec::new(), Vec::new());
    for one in all {
        match one {
            Listen::Socket(path) => sockets.push(path),
            Listen::Clients(address) => addresses.push(address),
        }
    }
    (sockets, addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_addresses_are_told_apart() {
        for path in ["/run/hotbay/api.sock", "api.sock", "./a:1", "unix:a:1", "unix:/run/api.sock"]
        {
            let listen: Listen = path.parse().unwrap();
            assert!(matches!(listen, Listen::Socket(_)), "{path}");
            assert_eq!(listen.to_string().parse(), Ok(listen));
        }
        for address in ["0.0.0.0:7444", "[::1]:7444", "storage.example:7444"] {
            assert_eq!(address.parse(), Ok(Listen::Clients(address.to_owned())));
        }
        for bad in ["a:b", "storage.example:", ":7444", "192.0.2.7:0", "a:1:2"] {
            assert!(bad.parse::<Listen>().is_err(), "{bad:?} was taken");
        }
    }
}

//! The text of a join token, which the registry makes, a person carries, and an agent on another machine reads; and
//! what else both sides agree on before they speak.
//!
//! ```text
//! hotbay-join-1,HOST:PORT,AUTHORITY,SECRET,CHECK
//! ```
//!
//! AUTHORITY is the SHA-256 of the authority's certificate: by it the agent knows whom it talks to. SECRET is by what
//! the registry knows whom it made the token for. CHECK is a CRC-32C of all before it, against copies cut short.

use std::fmt::{self, Write};
use std::str::FromStr;

use thiserror::Error;

/// The name in the certificate of every registry. Its authority certifies no other server, so that agents need not
/// care by which address or name they reach it.
pub const REGISTRY_NAME: &str = "registry.hotbay.internal";
/// The protocol that gRPC is spoken in, inside of TLS.
pub const ALPN: &[u8] = b"h2";
/// The protocol in which one controller passes CSI's calls on to another: gRPC as well, and nothing but CSI.
pub const ALPN_CSI: &[u8] = b"hotbay-csi";
/// What a controller's certificate says, as a URI.
pub const CONTROLLER_URI: &str = "hotbay:controller";
/// What precedes a node's name in its certificate, as a URI.
pub const NODE_URI: &str = "hotbay:node:";
/// Metadata of a session that was opened with a certificate that is revoked: an agent that can joins again.
pub const REVOKED: &str = "hotbay-certificate-revoked";

const MARK: &str = "hotbay-join-1";
/// Longer than any name of a host with its port.
const ADDRESS_LIMIT_BYTES: usize = 300;

/// What a join token says.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// HOST:PORT
    pub address: String,
    /// SHA-256 of the authority's certificate.
    pub authority: [u8; 32],
    pub secret: [u8; 32],
}

/// Why a text is no join token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotAToken {
    #[error("a join token begins with {MARK:?}, and has five parts with commas between them")]
    Shape,
    #[error("the join token is cut short or mistyped; copy it once more, as a whole")]
    Check,
    #[error(transparent)]
    Address(#[from] NotAnAddress),
}

/// Why a text is no address to dial.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{text:?} is not HOST:PORT, such as 192.0.2.7:7443, [2001:db8::7]:7443 or storage.example:7443"
)]
pub struct NotAnAddress {
    text: String,
}

impl JoinToken {
    /// Whether a text is meant to be a join token, whole or not.
    pub fn is_meant(text: &str) -> bool {
        text.split(',').next() == Some(MARK)
    }
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said =
            format!("{MARK},{},{},{}", self.address, hex(&self.authority), hex(&self.secret));
        write!(f, "{said},{:08x}", crc32c::crc32c(said.as_bytes()))
    }
}

/// The secret is for the two sides alone, not for logs.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("JoinToken");
        shown.field("address", &self.address).field("authority", &hex(&self.authority));
        shown.finish_non_exhaustive()
    }
}

impl FromStr for JoinToken {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let text = text.trim();
        let (said, check) = text.rsplit_once(',').ok_or(NotAToken::Shape)?;
        let parts: Vec<_> = said.split(',').collect();
        let [MARK, address, authority, secret] = parts[..] else {
            return Err(if Self::is_meant(text) { NotAToken::Check } else { NotAToken::Shape });
        };
        if check != format!("{:08x}", crc32c::crc32c(said.as_bytes())) {
            return Err(NotAToken::Check);
        }
        let authority = from_hex(authority).ok_or(NotAToken::Shape)?;
        let secret = from_hex(secret).ok_or(NotAToken::Shape)?;
        check_address(address)?;
        Ok(Self { address: address.to_owned(), authority, secret })
    }
}

/// Whether a text can be dialled: a host, a colon, and a port that is not 0.
pub fn check_address(text: &str) -> Result<(), NotAnAddress> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    let fits = text.rsplit_once(':').is_some_and(|(host, port)| {
        let host_fits = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && host.bytes().all(plain),
        };
        host_fits && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if fits && text.len() <= ADDRESS_LIMIT_BYTES {
        Ok(())
    } else {
        Err(NotAnAddress { text: text.chars().take(80).collect() })
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        JoinToken { address: "192.0.2.7:7443".to_owned(), authority: [0xab; 32], secret: [7; 32] }
    }

    #[test]
    fn a_token_reads_back_what_it_prints() {
        let text = token().to_string();
        assert!(text.starts_with("hotbay-join-1,192.0.2.7:7443,abab"), "{text}");
        assert_eq!(text.parse(), Ok(token()));
        assert_eq!(format!(" {text}\n").parse(), Ok(token()));
        let ipv6 = JoinToken { address: "[2001:db8::7]:7443".to_owned(), ..token() };
        assert_eq!(ipv6.to_string().parse(), Ok(ipv6));
    }

    #[test]
    fn every_cut_and_every_other_character_is_noticed() {
        let text = token().to_string();
        for at in 0..text.len() {
            assert!(text[..at].parse::<JoinToken>().is_err(), "cut at {at}");
            let mut other = text.clone().into_bytes();
            other[at] ^= 1;
            let other = String::from_utf8(other).unwrap();
            assert!(other.parse::<JoinToken>().is_err(), "{other}");
        }
        assert_eq!("/run/hotbay/api.sock".parse::<JoinToken>(), Err(NotAToken::Shape));
        assert_eq!(text[..60].parse::<JoinToken>(), Err(NotAToken::Check));
    }

    #[test]
    fn a_token_is_told_from_a_path() {
        assert!(JoinToken::is_meant("hotbay-join-1,cut"));
        for path in ["", "unix:/run/hotbay/api.sock", "hotbay-join-1/api.sock", "./hotbay-join-1"] {
            assert!(!JoinToken::is_meant(path), "{path:?}");
        }
    }

    #[test]
    fn the_secret_is_not_in_the_debug_text() {
        assert!(!format!("{:?}", token()).contains("0707"));
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for good in ["a:1", "storage.example:7443", "192.0.2.7:65535", "[::1]:1"] {
            assert_eq!(check_address(good), Ok(()));
        }
        for bad in
            ["", "a", ":1", "a:", "a:0", "a:65536", "a b:1", "::1:5", "[::1]", "a,b:1", "[a]:1"]
        {
            assert!(check_address(bad).is_err(), "{bad:?} was taken");
        }
    }
}

//! The file of clients' tokens, beside the authority: which there are, and of each secret only its hash.
//!
//! ```text
//! hotbay-client-tokens-1 SHA256-OF-THE-REST
//! {"tokens":[{"name":"ci","may":"read","createdMs":...,"expiresMs":...,"secretSha256":"..."}]}
//! ```
//!
//! A crash leaves the old file or the new one, whole. One that is not there holds no tokens; one that is damaged is
//! told, and never taken for empty: whoever was let in before would stand outside without a word.

use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::rights::May;
use crate::door::AuthorityError;
use crate::door::authority::{read, replace};

const MARK: &str = "hotbay-client-tokens-1";

/// Why the tokens cannot be read or written.
#[derive(Debug, Error)]
pub enum FileError {
    #[error(
        "{} is damaged: {why}; put it back from a backup, or move it away and make every client's token anew",
        path.display()
    )]
    Damaged { path: PathBuf, why: &'static str },
    #[error(transparent)]
    File(#[from] AuthorityError),
}

/// One token, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) name: String,
    pub(crate) may: May,
    pub(crate) created_ms: u64,
    pub(crate) expires_ms: u64,
    #[serde(rename = "secretSha256", with = "hex")]
    pub(crate) secret_hash: [u8; 32],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    tokens: Vec<Record>,
}

/// The tokens of a file.
pub(crate) fn load(path: &Path) -> Result<Vec<Record>, FileError> {
    let damaged = |why| FileError::Damaged { path: path.to_owned(), why };
    let text = match read(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(Vec::new()),
        Err(AuthorityError::Damaged { .. }) => return Err(damaged("it is not text")),
        Err(error) => return Err(error.into()),
    };
    let (head, json) = text.split_once('\n').ok_or_else(|| damaged("it is cut short"))?;
    let Some((MARK, check)) = head.split_once(' ') else {
        return Err(damaged("it does not begin as such a file does"));
    };
    if check != checked(json) {
        return Err(damaged("what it holds does not fit its checksum"));
    }
    let Content { tokens } =
        serde_json::from_str(json).map_err(|_| damaged("its tokens cannot be read"))?;
    Ok(tokens)
}

/// Durable when it returns.
pub(crate) fn store(path: &Path, tokens: Vec<Record>) -> Result<(), FileError> {
    let json = serde_json::to_string(&Content { tokens }).expect("tokens have text keys");
    Ok(replace(path, &format!("{MARK} {}\n{json}", checked(&json)))?)
}

fn checked(text: &str) -> String {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    hex::encode(&hash)
}

/// 32 bytes as 64 digits.
mod hex {
    use std::fmt::Write;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn encode(bytes: &[u8; 32]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes everything");
            text
        })
    }

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 32], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 32], D::Error> {
        let text = String::deserialize(from)?;
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(D::Error::custom("64 digits are expected"));
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(D::Error::custom)?;
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn records() -> Vec<Record> {
        let record = |name: &str, may| Record {
            name: name.to_owned(),
            may,
            created_ms: 1_800_000_000_000,
            expires_ms: 1_900_000_000_000,
            secret_hash: [0x5a; 32],
        };
        vec![record("ci", May::Read), record("operator", May::Write)]
    }

    #[test]
    fn what_was_stored_is_found_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client-tokens");
        assert_eq!(load(&path).unwrap(), []);
        store(&path, records()).unwrap();
        assert_eq!(load(&path).unwrap(), records());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn every_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client-tokens");
        store(&path, records()).unwrap();
        let good = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            assert!(matches!(load(&path), Err(FileError::Damaged { .. })), "{what}");
        };
        for at in 0..good.len() {
            refused(&good[..at], &format!("cut at {at}"));
            let mut other = good.clone();
            other[at] ^= 0x81;
            refused(&other, &format!("changed at {at}"));
        }
        let json = r#"{"tokens":[],"more":1}"#;
        refused(format!("{MARK} {}\n{json}", checked(json)).as_bytes(), "an unknown field");
    }
}

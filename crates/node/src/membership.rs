//! What makes this agent a member of a registry on another machine: its key, its certificate, and whom to dial.
//!
//! ```text
//! DIR/tls/key           the node's private key, drawn here; it never leaves the machine
//! DIR/tls/membership    the certificate, the authority's certificate, the node's name, the registry's address
//! ```
//!
//! The key is durable before it is first used, so that an agent that dies while it joins may ask again with the same
//! token. The files have the form of [`crate::state_dir`]: a crash leaves the old or the new one, and damage is told
//! from absence.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use hotbay_api::join::Certified;
use hotbay_core::ids::NodeName;
use rcgen::{KeyPair, PKCS_ED25519};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::account::Account;
use crate::state_dir::{Found, StateDir, StateDirError};

const FOLDER: &str = "tls";

/// Why there is no usable membership.
#[derive(Debug, Error)]
pub enum MembershipError {
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(
        "{} is damaged: {why}; move {} away and join again with a new token",
        path.display(),
        path.parent().unwrap_or(path).display()
    )]
    Damaged { path: PathBuf, why: String },
    #[error("cannot make a key")]
    Key(#[source] rcgen::Error),
    #[error("the registry's answer names no node: {name:?}")]
    Answer { name: String },
}

/// What is stored beside the key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Membership {
    pub(crate) node: NodeName,
    /// HOST:PORT
    pub(crate) address: String,
    pub(crate) authority_pem: String,
    pub(crate) certificate_pem: String,
    /// Unix time.
    pub(crate) not_after_ms: u64,
    pub(crate) renew_after_ms: u64,
    /// The hash of the join token's secret: it is told from a new token by it.
    #[serde(default)]
    pub(crate) joined_with: String,
}

impl Membership {
    /// What a registry at `address` certified, for the token with this hash.
    pub(crate) fn of(
        answer: Certified,
        address: &str,
        joined_with: String,
    ) -> Result<Self, MembershipError> {
        let Certified {
            node_name,
            certificate_pem,
            authority_pem,
            not_after_ms,
            renew_after_ms,
            ..
        } = answer;
        let node = node_name.parse().map_err(|_| MembershipError::Answer { name: node_name })?;
        let address = address.to_owned();
        Ok(Self {
            node,
            address,
            authority_pem,
            certificate_pem,
            not_after_ms,
            renew_after_ms,
            joined_with,
        })
    }
}

/// The folder of both files.
#[derive(Debug, Clone)]
pub(crate) struct MemberDir {
    path: PathBuf,
    files: StateDir,
}

impl MemberDir {
    pub(crate) fn open(
        data_dir: &Path,
        checkpoint: fn(&'static str),
    ) -> Result<Self, MembershipError> {
        let path = data_dir.join(FOLDER);
        Ok(Self { files: StateDir::open(&path, checkpoint)?, path })
    }

    /// The key; one is drawn if there is none.
    pub(crate) fn key(&self) -> Result<KeyPair, MembershipError> {
        if let Some(key) = self.stored_key()? {
            return Ok(key);
        }
        self.new_key()
    }

    /// Draws a key, also over one that is there.
    pub(crate) fn new_key(&self) -> Result<KeyPair, MembershipError> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(MembershipError::Key)?;
        self.files.write("key", &key.serialize_pem())?;
        Ok(key)
    }

    /// The member that was stored, if there is one.
    pub(crate) fn load(&self) -> Result<Option<(Membership, KeyPair)>, MembershipError> {
        match self.files.read::<Membership>("membership") {
            Found::Nothing => Ok(None),
            Found::Damaged(why) => Err(self.damaged("membership", why)),
            Found::Value(membership) => {
                let key = self.stored_key()?;
                let key = key.ok_or_else(|| self.damaged("key", "it is missing".to_owned()))?;
                Ok(Some((membership, key)))
            }
        }
    }

    /// Durable when it returns.
    pub(crate) fn store(&self, membership: &Membership) -> Result<(), MembershipError> {
        Ok(self.files.write("membership", membership)?)
    }

    fn stored_key(&self) -> Result<Option<KeyPair>, MembershipError> {
        match self.files.read::<String>("key") {
            Found::Nothing => Ok(None),
            Found::Damaged(why) => Err(self.damaged("key", why)),
            Found::Value(pem) => match KeyPair::from_pem(&pem) {
                Ok(key) => Ok(Some(key)),
                Err(error) => Err(self.damaged("key", error.to_string())),
            },
        }
    }

    fn damaged(&self, name: &str, why: String) -> MembershipError {
        MembershipError::Damaged { path: self.path.join(name), why }
    }
}

/// A member: may dial its registry over mutual TLS. Its certificate is exchanged while it runs; copies see it.
#[derive(Debug, Clone)]
pub struct Member {
    dir: MemberDir,
    /// PKCS #8, DER.
    key: Arc<Vec<u8>>,
    public_key: Arc<Vec<u8>>,
    /// What it joins with again by itself, if it has to.
    account: Option<Account>,
    current: Arc<Mutex<Membership>>,
    wall_ms: fn() -> u64,
}

impl Member {
    pub(crate) fn new(
        dir: MemberDir,
        membership: Membership,
        key: &KeyPair,
        wall_ms: fn() -> u64,
    ) -> Self {
        let public_key = Arc::new(key.public_key_raw().to_vec());
        let (key, current) = (Arc::new(key.serialize_der()), Arc::new(Mutex::new(membership)));
        Self { dir, key, public_key, account: None, current, wall_ms }
    }

    pub(crate) fn with_account(self, account: Account) -> Self {
        Self { account: Some(account), ..self }
    }

    pub(crate) fn account(&self) -> Option<&Account> {
        self.account.as_ref()
    }

    /// The member that a data directory holds; `None` if it never joined. `wall_ms` tells Unix time.
    pub fn stored(
        data_dir: &Path,
        checkpoint: fn(&'static str),
        wall_ms: fn() -> u64,
    ) -> Result<Option<Self>, MembershipError> {
        if !data_dir.join(FOLDER).join("membership").exists() {
            // Looking must not leave a folder behind.
            return Ok(None);
        }
        let dir = MemberDir::open(data_dir, checkpoint)?;
        Ok(dir.load()?.map(|(membership, key)| Self::new(dir, membership, &key, wall_ms)))
    }

    /// The node that the certificate names.
    pub fn node(&self) -> NodeName {
        self.membership().node
    }

    /// HOST:PORT of the registry.
    pub fn address(&self) -> String {
        self.membership().address
    }

    /// Remembers that the registry is dialled at another address from now on.
    pub fn moved(&self, address: &str) -> Result<(), MembershipError> {
        self.replace(Membership { address: address.to_owned(), ..self.membership() })
    }

    pub(crate) fn membership(&self) -> Membership {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    pub(crate) fn public_key(&self) -> &[u8] {
        &self.public_key
    }

    /// Unix time.
    pub(crate) fn now_ms(&self) -> u64 {
        (self.wall_ms)()
    }

    /// Whether the certificate is past its time, so that no registry takes it any more.
    pub(crate) fn has_expired(&self) -> bool {
        self.now_ms() >= self.membership().not_after_ms
    }

    /// Stores another membership, and uses it once it is durable. Keeps nobody waiting for the disk.
    pub(crate) async fn store(&self, next: Membership) -> Result<(), MembershipError> {
        let member = self.clone();
        // If the agent is ending, nobody uses it any more.
        tokio::task::spawn_blocking(move || member.replace(next)).await.unwrap_or(Ok(()))
    }

    fn replace(&self, next: Membership) -> Result<(), MembershipError> {
        self.dir.store(&next)?;
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn membership() -> Membership {
        Membership {
            node: "node-a".parse().unwrap(),
            address: "192.0.2.7:7443".to_owned(),
            authority_pem: "authority".to_owned(),
            certificate_pem: "certificate".to_owned(),
            not_after_ms: 9,
            renew_after_ms: 6,
            joined_with: "token".to_owned(),
        }
    }

    fn open(dir: &tempfile::TempDir) -> MemberDir {
        MemberDir::open(dir.path(), |_| {}).unwrap()
    }

    #[test]
    fn the_key_is_drawn_once_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let drawn = open(&dir).key().unwrap();
        assert_eq!(open(&dir).key().unwrap().serialize_der(), drawn.serialize_der());
        let mode = |path: &str| fs::metadata(dir.path().join(path)).unwrap().mode() & 0o777;
        assert_eq!((mode("tls"), mode("tls/key")), (0o700, 0o600));
    }

    #[test]
    fn a_member_is_found_again_with_what_was_last_stored() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Member::stored(dir.path(), |_| {}, || 0).unwrap().is_none());
        assert!(!dir.path().join("tls").exists(), "looking made a folder");
        let key = open(&dir).key().unwrap();
        assert!(
            Member::stored(dir.path(), |_| {}, || 0).unwrap().is_none(),
            "a key alone is no member"
        );
        open(&dir).store(&membership()).unwrap();
        let member = Member::stored(dir.path(), |_| {}, || 0).unwrap().unwrap();
        assert_eq!((member.membership(), member.key()), (membership(), key.serialized_der()));
        member.moved("192.0.2.8:7443").unwrap();
        let again = Member::stored(dir.path(), |_| {}, || 0).unwrap().unwrap();
        assert_eq!(again.address(), "192.0.2.8:7443");
        assert_eq!(again.address(), member.address());
    }

    #[test]
    fn damage_is_told_from_absence_and_nothing_is_drawn_over_it() {
        for (name, content) in [("key", Some("half")), ("key", None), ("membership", Some(""))] {
            let dir = tempfile::tempdir().unwrap();
            open(&dir).key().unwrap();
            open(&dir).store(&membership()).unwrap();
            let path = dir.path().join("tls").join(name);
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            let found = Member::stored(dir.path(), |_| {}, || 0);
            assert!(matches!(found, Err(MembershipError::Damaged { .. })), "{name} {content:?}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), content);
        }
        let dir = tempfile::tempdir().unwrap();
        open(&dir).key().unwrap();
        fs::write(dir.path().join("tls/key"), "half").unwrap();
        assert!(matches!(open(&dir).key(), Err(MembershipError::Damaged { .. })));
    }
}

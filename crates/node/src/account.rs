//! How an agent becomes and stays a member with the account that its platform gives it: a file holds the account's
//! token, which the platform exchanges from time to time, another the certificate of the registry's authority.
//!
//! The registry is told no more than that token, and finds out from it which node this is. So nothing here has to be
//! kept: whatever is lost, expired or revoked, or was of an authority that is no more, is replaced by joining again.
//! `hotbay node` calls it before the agent starts, [`crate::link`] and [`crate::renewal`] while it runs.

use std::io::Read;
use std::path::{Path, PathBuf};

use hotbay_api::PROTOCOL;
use hotbay_api::join::JoinRequest;
use hotbay_api::leader::NotLeading;
use hotbay_core::ids::NodeName;

use crate::joining::{Failed, JoinError, Said, ask, ask_until_answered, authority_hash};
use crate::membership::{Member, MemberDir, Membership, MembershipError};

/// Longer than any token or certificate; what is longer is another file.
const FILE_LIMIT_BYTES: u64 = 64 << 10;

/// What is needed to join with an account.
#[derive(Debug, Clone)]
pub struct AccountOptions {
    pub data_dir: PathBuf,
    /// The file with the account's token.
    pub token: PathBuf,
    /// The file with the certificate of the registry's authority.
    pub authority: PathBuf,
    /// HOST:PORT of the registry.
    pub address: String,
    /// The name that the node must get; as the account says if there is none.
    pub name: Option<NodeName>,
    /// Unix time.
    pub wall_ms: fn() -> u64,
    /// Called at every step that a crash could fall between; tests die there.
    pub checkpoint: fn(&'static str),
}

/// The files, read anew whenever they are needed.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    token: PathBuf,
    authority: PathBuf,
}

impl Account {
    /// What to say to be certified.
    fn say(&self, name: Option<&NodeName>, public_key: &[u8]) -> Result<Said, JoinError> {
        let request = JoinRequest {
            protocol: PROTOCOL,
            secret: Vec::new(),
            node_name: name.map(ToString::to_string).unwrap_or_default(),
            public_key: public_key.to_vec(),
            account_token: self.token()?,
        };
        Ok(Said { authority: self.authority()?, request })
    }

    fn token(&self) -> Result<String, JoinError> {
        let path = self.token.clone();
        let text =
            read(&path).map_err(|source| JoinError::AccountFile { path: path.clone(), source })?;
        match text.trim() {
            "" => Err(JoinError::NoAccount { path }),
            token => Ok(token.to_owned()),
        }
    }

    /// SHA-256 of the authority's certificate.
    fn authority(&self) -> Result<[u8; 32], JoinError> {
        let path = self.authority.clone();
        let text = read(&path)
            .map_err(|source| JoinError::AuthorityFile { path: path.clone(), source })?;
        authority_hash(&text).ok_or(JoinError::NoAuthority { path })
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_LIMIT_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The member that an earlier start has become, at once; it joins again when it dials, if it must. Without one, joins,
/// and keeps trying while the registry cannot be reached.
pub async fn join_with_account(options: AccountOptions) -> Result<Member, JoinError> {
    let AccountOptions { data_dir, token, authority, address, name, wall_ms, checkpoint } = options;
    let account = Account { token, authority };
    // Both are wrong in a way that a person sees at once, or right.
    account.say(name.as_ref(), &[])?;
    let dir = MemberDir::open(&data_dir, checkpoint)?;
    let stored = dir.load().unwrap_or_else(|error| {
        tracing::warn!("joining again, because what was stored cannot be used: {error}");
        None
    });
    if let Some((membership, key)) = stored {
        if let Some(wanted) = name.filter(|wanted| *wanted != membership.node) {
            return Err(JoinError::OtherNode { stored: membership.node, wanted });
        }
        let member = Member::new(dir, membership, &key, wall_ms).with_account(account);
        if member.address() != address {
            member.moved(&address)?;
        }
        return Ok(member);
    }
    let key = match dir.key() {
        Err(MembershipError::Damaged { .. }) => dir.new_key()?,
        key => key?,
    };
    let say = || account.say(name.as_ref(), key.public_key_raw());
    let answer = ask_until_answered(&address, say).await?;
    let membership = Membership::of(answer, &address, String::new())?;
    misnamed(&membership, name.as_ref())?;
    dir.store(&membership)?;
    tracing::info!(node = %membership.node, address, "joined with the account");
    Ok(Member::new(dir, membership, &key, wall_ms).with_account(account))
}

/// A registry must not make this machine another node than it is.
fn misnamed(membership: &Membership, wanted: Option<&NodeName>) -> Result<(), JoinError> {
    match wanted.filter(|wanted| **wanted != membership.node) {
        Some(wanted) => Err(JoinError::Misnamed {
            address: membership.address.clone(),
            answered: membership.node.clone(),
            wanted: wanted.clone(),
        }),
        None => Ok(()),
    }
}

/// Why a member with an account has to join again before it is let in.
pub(crate) fn must_join(member: &Member) -> Option<&'static str> {
    let account = member.account()?;
    if member.has_expired() {
        return Some("its certificate has expired");
    }
    // A file that cannot be read says nothing about the stored one.
    let told = account.authority().ok()?;
    let stored = authority_hash(&member.membership().authority_pem);
    (stored != Some(told)).then_some("the registry has another authority")
}

/// Joins again, with the account; asks once, and whoever leads if that is somebody else.
pub(crate) async fn join_again(member: &Member) -> Result<(), JoinError> {
    let Some(account) = member.account() else {
        return Err(JoinError::NotNow { why: "it has no account".to_owned() });
    };
    let node = member.node();
    let say = || account.say(Some(&node), member.public_key());
    let address = member.address();
    let answered = match ask(&address, say()?).await {
        Err(Failed::NotLeading(NotLeading::Leader(there))) => ask(&there, say()?).await,
        answered => answered,
    };
    let not_now = |why: &str| JoinError::NotNow { why: why.to_owned() };
    let answer = answered.map_err(|failed| match failed {
        Failed::ForGood(error) => error,
        Failed::ForNow(why) => JoinError::NotNow { why },
        Failed::NotLeading(_) => not_now("nobody leads"),
    })?;
    let next = Membership::of(answer, &address, String::new())?;
    misnamed(&next, Some(&node))?;
    member.store(next).await?;
    tracing::info!(%node, address, "joined again with the account");
    Ok(())
}

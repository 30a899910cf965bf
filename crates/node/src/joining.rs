//! How an agent becomes a member of a registry on another machine: with the join token that a person made for it, once.
//! `hotbay node` calls it before the agent starts. [`crate::account`] joins in another way, and asks here.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::join::joining_client::JoiningClient;
use hotbay_api::join::{Certified, JoinRequest};
use hotbay_api::leader::NotLeading;
use hotbay_api::token::JoinToken;
use hotbay_core::ids::NodeName;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;

use crate::membership::{Member, MemberDir, Membership, MembershipError};
use crate::tls::{self, TlsError};

/// How long one try may take.
const TRY_LIMIT: Duration = Duration::from_secs(10);
/// How long the drives of a member wait until it has joined again.
const AGAIN_LIMIT: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What is needed to join.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    pub data_dir: PathBuf,
    pub token: JoinToken,
    /// The name that the node must get; as the token says if there is none.
    pub name: Option<NodeName>,
    /// Unix time.
    pub wall_ms: fn() -> u64,
    /// Called at every step that a crash could fall between; tests die there.
    pub checkpoint: fn(&'static str),
}

/// Why an agent did not join. Nothing that may pass by itself is among them: that is tried again.
#[derive(Debug, Error)]
pub enum JoinError {
    #[error("the registry at {address} refuses: {message}")]
    Refused { address: String, message: String },
    #[error("the registry at {address} answered with another authority than the one that was told")]
    OtherAuthority { address: String },
    #[error(
        "this data directory holds node {stored}, of the same registry; it cannot become {wanted}"
    )]
    OtherNode { stored: NodeName, wanted: NodeName },
    #[error("the registry at {address} answered for node {answered}, not for {wanted}")]
    Misnamed { address: String, answered: NodeName, wanted: NodeName },
    #[error("cannot read the token of the account, {}", path.display())]
    AccountFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no token of an account", path.display())]
    NoAccount { path: PathBuf },
    #[error("cannot read the authority's certificate, {}", path.display())]
    AuthorityFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} holds no certificate of an authority", path.display())]
    NoAuthority { path: PathBuf },
    #[error("it cannot be joined now: {why}")]
    NotNow { why: String },
    #[error(transparent)]
    Membership(#[from] MembershipError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Joins, and keeps trying while the registry cannot be reached. Who is a member of that registry already, by this very
/// token and with a certificate that has not expired, stays it and leaves the token unused. Else a member joins again,
/// and stays what it is if that does not work within a while: its drives do not wait for a person.
pub async fn join(options: JoinOptions) -> Result<Member, JoinError> {
    let JoinOptions { data_dir, token, name, wall_ms, checkpoint } = options;
    let dir = MemberDir::open(&data_dir, checkpoint)?;
    if let Some((membership, key)) = dir.load()? {
        let same_authority = authority_hash(&membership.authority_pem) == Some(token.authority);
        if same_authority {
            if let Some(wanted) = name.filter(|wanted| *wanted != membership.node) {
                return Err(JoinError::OtherNode { stored: membership.node, wanted });
            }
            let member = Member::new(dir.clone(), membership, &key, wall_ms);
            let used = member.membership().joined_with == fingerprint(&token);
            if used && !member.has_expired() {
                tracing::info!(node = %member.node(), "joined already; the token is not used");
                return Ok(member);
            }
            let again = obtain(dir, &token, Some(member.node()), wall_ms);
            return Ok(match tokio::time::timeout(AGAIN_LIMIT, again).await {
                Ok(Ok(renewed)) => renewed,
                Ok(Err(error)) => {
                    tracing::error!("going on without the registry: {}", in_words(&error));
                    member
                }
                Err(_) => {
                    tracing::error!("going on without the registry: it cannot be reached");
                    member
                }
            });
        }
    }
    obtain(dir, &token, name, wall_ms).await
}

async fn obtain(
    dir: MemberDir,
    token: &JoinToken,
    name: Option<NodeName>,
    wall_ms: fn() -> u64,
) -> Result<Member, JoinError> {
    let key = dir.key()?;
    let request = JoinRequest {
        protocol: PROTOCOL,
        secret: token.secret.to_vec(),
        node_name: name.map(String::from).unwrap_or_default(),
        public_key: key.public_key_raw().to_vec(),
        account_token: String::new(),
    };
    let say = || Ok(Said { authority: token.authority, request: request.clone() });
    let answer = ask_until_answered(&token.address, say).await?;
    let membership = Membership::of(answer, &token.address, fingerprint(token))?;
    dir.store(&membership)?;
    tracing::info!(node = %membership.node, address = membership.address, "joined");
    Ok(Member::new(dir, membership, &key, wall_ms))
}

/// What is said to a registry, and to which one alone.
pub(crate) struct Said {
    /// SHA-256 of its authority's certificate.
    pub(crate) authority: [u8; 32],
    pub(crate) request: JoinRequest,
}

/// Asks until there is an answer, or a reason that does not pass by itself. What is said is made anew for each try.
pub(crate) async fn ask_until_answered(
    address: &str,
    say: impl Fn() -> Result<Said, JoinError>,
) -> Result<Certified, JoinError> {
    let mut pause = FIRST_PAUSE;
    let mut leader: Option<String> = None;
    // Without end: a machine may well be started before its registry.
    loop {
        let sent_on = leader.take();
        let to = sent_on.as_deref().unwrap_or(address);
        match ask(to, say()?).await {
            Ok(answer) => return Ok(answer),
            Err(Failed::ForGood(error)) => return Err(error),
            Err(Failed::NotLeading(NotLeading::Leader(there))) => {
                tracing::debug!(address = to, "{there} leads");
                leader = Some(there);
                if sent_on.is_none() {
                    continue;
                }
            }
            Err(Failed::NotLeading(NotLeading::Nobody)) => {
                tracing::warn!(address = to, "cannot join yet: nobody leads");
            }
            Err(Failed::ForNow(why)) => tracing::warn!(address = to, "cannot join yet: {why}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Why there is no certificate.
pub(crate) enum Failed {
    ForGood(JoinError),
    ForNow(String),
    /// Somebody else is to be asked.
    NotLeading(NotLeading),
}

/// Asks once.
pub(crate) async fn ask(address: &str, said: Said) -> Result<Certified, Failed> {
    let asked = tokio::time::timeout(TRY_LIMIT, dial_and_ask(address, said)).await;
    asked.unwrap_or_else(|_| Err(Failed::ForNow("no answer".to_owned())))
}

async fn dial_and_ask(address: &str, said: Said) -> Result<Certified, Failed> {
    let Said { authority, request } = said;
    let with_account = !request.account_token.is_empty();
    let config = tls::as_joiner(authority).map_err(|error| Failed::ForGood(error.into()))?;
    let channel =
        tls::connect(address.to_owned(), config).await.map_err(|error| not_connected(&error))?;
    let answer = JoiningClient::new(channel).join(request).await;
    let answer = answer.map_err(|status| match (status.code(), NotLeading::told(&status)) {
        (_, Some(elsewhere)) => Failed::NotLeading(elsewhere),
        // An account is not used up: what is missing may be there the next time.
        (tonic::Code::FailedPrecondition, None) if with_account => {
            Failed::ForNow(status.message().to_owned())
        }
        (
            tonic::Code::Unauthenticated
            | tonic::Code::PermissionDenied
            | tonic::Code::InvalidArgument
            | tonic::Code::FailedPrecondition
            | tonic::Code::Unimplemented,
            None,
        ) => {
            let (address, message) = (address.to_owned(), status.message().to_owned());
            Failed::ForGood(JoinError::Refused { address, message })
        }
        (_, None) => Failed::ForNow(in_words(&status)),
    })?;
    let answer = answer.into_inner();
    if authority_hash(&answer.authority_pem) != Some(authority) {
        let address = address.to_owned();
        return Err(Failed::ForGood(JoinError::OtherAuthority { address }));
    }
    Ok(answer)
}

fn not_connected(error: &tonic::transport::Error) -> Failed {
    let why = in_words(error);
    Failed::ForNow(if why.ends_with("UnknownIssuer") {
        format!("whoever answers there shows another authority than the one that was told ({why})")
    } else {
        why
    })
}

/// Tells tokens apart without keeping a secret.
fn fingerprint(token: &JoinToken) -> String {
    let hash = tls::hash(&token.secret);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of the certificate in a text; `None` if there is none.
pub fn authority_hash(pem: &str) -> Option<[u8; 32]> {
    Some(tls::hash(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?))
}

/// An error with everything below it, on one line.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let words = error.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = error.source();
    }
    text
}

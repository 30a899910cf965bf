//! How an agent becomes a member of a registry on another machine: with the join token that a person made for it, once.
//! `hotbay node` calls it before the agent starts.

use std::path::PathBuf;
use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::join::JoinRequest;
use hotbay_api::join::joining_client::JoiningClient;
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
    #[error("the registry at {address} answered with another authority than the token names")]
    OtherAuthority { address: String },
    #[error(
        "this data directory holds node {stored}, of the same registry; it cannot become {wanted}"
    )]
    OtherNode { stored: NodeName, wanted: NodeName },
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
        let same_authority = pem_hash(&membership.authority_pem) == Some(token.authority);
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
    };
    let mut pause = FIRST_PAUSE;
    // Without end: a machine may well be started before its registry.
    let membership = loop {
        match tokio::time::timeout(TRY_LIMIT, ask(token, request.clone())).await {
            Ok(Ok(membership)) => break membership,
            Ok(Err(Failed::ForGood(error))) => return Err(error),
            Ok(Err(Failed::ForNow(why))) => {
                tracing::warn!(address = token.address, "cannot join yet: {why}");
            }
            Err(_) => tracing::warn!(address = token.address, "cannot join yet: no answer"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    dir.store(&membership)?;
    tracing::info!(node = %membership.node, address = membership.address, "joined");
    Ok(Member::new(dir, membership, &key, wall_ms))
}

enum Failed {
    ForGood(JoinError),
    ForNow(String),
}

async fn ask(token: &JoinToken, request: JoinRequest) -> Result<Membership, Failed> {
    let address = token.address.clone();
    let config = tls::as_joiner(token.authority).map_err(|error| Failed::ForGood(error.into()))?;
    let channel = tls::connect(address.clone(), config)
        .await
        .map_err(|error| Failed::ForNow(in_words(&error)))?;
    let answer = JoiningClient::new(channel).join(request).await;
    let answer = answer.map_err(|status| match status.code() {
        tonic::Code::Unauthenticated
        | tonic::Code::PermissionDenied
        | tonic::Code::InvalidArgument
        | tonic::Code::FailedPrecondition
        | tonic::Code::Unimplemented => {
            let message = status.message().to_owned();
            Failed::ForGood(JoinError::Refused { address: address.clone(), message })
        }
        _ => Failed::ForNow(in_words(&status)),
    })?;
    let answer = answer.into_inner();
    if pem_hash(&answer.authority_pem) != Some(token.authority) {
        return Err(Failed::ForGood(JoinError::OtherAuthority { address }));
    }
    Membership::of(answer, &address, fingerprint(token))
        .map_err(|error| Failed::ForGood(error.into()))
}

/// Tells tokens apart without keeping a secret.
fn fingerprint(token: &JoinToken) -> String {
    let hash = tls::hash(&token.secret);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pem_hash(pem: &str) -> Option<[u8; 32]> {
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

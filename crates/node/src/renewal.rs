//! Keeps a member's certificate fresh: asks for the next one when two thirds of its life are over, on the connection
//! that the session uses, without a restart and without a token. A member with an account that is refused joins again.

use std::time::Duration;

use hotbay_api::PROTOCOL;
use hotbay_api::join::RenewRequest;
use hotbay_api::join::joining_client::JoiningClient;
use thiserror::Error;
use tonic::transport::Channel;

use crate::account;
use crate::joining::in_words;
use crate::membership::{Member, Membership, MembershipError};

/// How long to wait after a renewal that failed.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the registry may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The clock is looked at again after so long: it may have been set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(60);

#[derive(Debug, Error)]
enum NotRenewed {
    #[error("the registry does not answer")]
    NoAnswer,
    #[error("the registry refuses")]
    Refused(#[from] tonic::Status),
    #[error("the registry certified {0} instead")]
    OtherNode(String),
    #[error("the certificate was not stored")]
    NotStored(#[from] MembershipError),
}

/// Renews whenever it is time, for as long as the connection lives.
pub(crate) async fn keep(channel: Channel, member: Member) {
    loop {
        let left_ms = member.membership().renew_after_ms.saturating_sub(member.now_ms());
        if left_ms > 0 {
            tokio::time::sleep(Duration::from_millis(left_ms).min(LOOK_EVERY)).await;
            continue;
        }
        match renew(&channel, &member).await {
            Ok(()) => tracing::info!("this node has a new certificate"),
            Err(NotRenewed::Refused(status)) if member.account().is_some() => {
                tracing::warn!(
                    "joining again, because the certificate is not renewed: {}",
                    status.message()
                );
                if let Err(error) = account::join_again(&member).await {
                    tracing::error!("not joined again: {}", in_words(&error));
                    tokio::time::sleep(pause(&member.membership(), member.now_ms())).await;
                }
            }
            Err(error) => {
                tracing::error!("the certificate is not renewed: {}", in_words(&error));
                tokio::time::sleep(pause(&member.membership(), member.now_ms())).await;
            }
        }
    }
}

/// A tenth of the time that is left, within limits.
fn pause(membership: &Membership, now_ms: u64) -> Duration {
    let left_ms = membership.not_after_ms.saturating_sub(now_ms);
    Duration::from_millis(left_ms / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

async fn renew(channel: &Channel, member: &Member) -> Result<(), NotRenewed> {
    let mut client = JoiningClient::new(channel.clone());
    let asked = client.renew(RenewRequest { protocol: PROTOCOL });
    let answer = tokio::time::timeout(ANSWER_LIMIT, asked).await;
    let answer = answer.map_err(|_| NotRenewed::NoAnswer)??.into_inner();
    let old = member.membership();
    let next = Membership::of(answer, &old.address, old.joined_with)?;
    if next.node != old.node {
        return Err(NotRenewed::OtherNode(next.node.to_string()));
    }
    // The authority stays the one that was joined.
    let next = Membership { authority_pem: old.authority_pem, ..next };
    Ok(member.store(next).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_renewal_is_tried_again_in_time_and_not_in_haste() {
        let membership = Membership {
            node: "node-a".parse().unwrap(),
            address: String::new(),
            authority_pem: String::new(),
            certificate_pem: String::new(),
            not_after_ms: 1_000_000,
            renew_after_ms: 0,
            joined_with: String::new(),
        };
        assert_eq!(pause(&membership, 0), LONGEST_PAUSE);
        assert_eq!(pause(&membership, 980_000), Duration::from_secs(2));
        assert_eq!(pause(&membership, 2_000_000), SHORTEST_PAUSE);
    }
}

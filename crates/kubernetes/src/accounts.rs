//! Service accounts of Kubernetes, as the registry's accounts: the API server says whose a token is (`TokenReview`).
//! The program gives this to the controller's doors.
//!
//! ```text
//! hotbay-node     the agents' pods; the token says on which node the pod runs
//! hotbay-admin    people and programs that may write
//! hotbay-viewer   people and programs that may read
//! ```
//!
//! A token counts if it was made for the audience `hotbay.dev`: one that somebody gave to another service, or that is
//! for the API server itself, opens nothing here.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use hotbay_control::{Account, AccountToken, Accounts, Asked, May, NotKnown};
use hotbay_core::ids::NodeName;
use hotbay_core::words::plain;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::client::Client;

/// What tokens must have been made for.
pub const AUDIENCE: &str = "hotbay.dev";
/// The service accounts that are known.
pub const NODE: &str = "hotbay-node";
pub const ADMIN: &str = "hotbay-admin";
pub const VIEWER: &str = "hotbay-viewer";

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
/// Where the API server says on which node a pod runs.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// For so long what was said of a client's token is taken for true.
const KEPT: Duration = Duration::from_secs(5);
/// Of how many tokens that is kept.
const KEPT_TOKENS: usize = 1_024;
/// How many tokens are asked about at once, whoever shows them.
const ASKING: usize = 16;
/// How long a token waits until it is asked about.
const ASKING_WAIT: Duration = Duration::from_secs(5);

/// Asks the API server.
pub struct ServiceAccounts {
    client: Client,
    namespace: String,
    asking: Semaphore,
    /// By the hash of the token.
    kept: Mutex<HashMap<[u8; 32], Kept>>,
}

struct Kept {
    since: Instant,
    said: Result<Account, NotKnown>,
}

impl ServiceAccounts {
    /// `namespace` is where Hotbay and its service accounts are.
    pub fn new(client: Client, namespace: &str) -> Self {
        let (asking, kept) = (Semaphore::new(ASKING), Mutex::default());
        Self { client, namespace: namespace.to_owned(), asking, kept }
    }

    /// The user that the API server sees behind a token.
    async fn review(&self, token: &AccountToken) -> Result<Value, NotKnown> {
        if token.secret().split('.').count() != 3 {
            return Err(refused("it is none of a service account"));
        }
        let waited = tokio::time::timeout(ASKING_WAIT, self.asking.acquire()).await;
        let _turn = waited.map_err(|_| unavailable("too many are being checked"))?;
        let spec = json!({ "token": token.secret(), "audiences": [AUDIENCE] });
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec,
        });
        let answered = self.client.post(REVIEWS, &review).await;
        let answer = answered.map_err(|error| unavailable(&error.to_string()))?;
        if answer.code == 403 {
            let words = answer.words();
            tracing::error!(
                "no token can be checked: {words}; the controller's role has to allow to create tokenreviews"
            );
        }
        let answer = answer.done().map_err(|error| unavailable(&error.to_string()))?;
        user(&answer["status"])
    }

    fn account_of(&self, user: &str) -> Option<&'static str> {
        let name = user.strip_prefix("system:serviceaccount:")?;
        let name = name.strip_prefix(&self.namespace)?.strip_prefix(':')?;
        [NODE, ADMIN, VIEWER].into_iter().find(|known| *known == name)
    }

    async fn ask_node(&self, token: &AccountToken) -> Result<NodeName, NotKnown> {
        let user = self.review(token).await?;
        let who = name_of(&user)?;
        if self.account_of(&who) != Some(NODE) {
            let namespace = &self.namespace;
            return Err(refused(&format!("{who} is not {NODE} of the namespace {namespace}")));
        }
        let Some([node]) = user["extra"][NODE_NAME].as_array().map(Vec::as_slice) else {
            return Err(refused(
                "it does not say on which node its pod runs; it must be that of a pod, given out by Kubernetes 1.30 or \
                 later",
            ));
        };
        let node = node.as_str().unwrap_or_default();
        node.parse().map_err(|error| refused(&format!("{error}")))
    }

    async fn known_rights(&self, token: &AccountToken) -> Result<Account, NotKnown> {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest(&SHA256, token.secret().as_bytes()).as_ref());
        if let Some(said) = self.kept(&hash) {
            return said;
        }
        let since = Instant::now();
        let said = self.ask_rights(token).await;
        // That nobody could tell says nothing about the next time.
        if !matches!(said, Err(NotKnown::Unavailable { .. })) {
            self.keep(hash, since, said.clone());
        }
        said
    }

    async fn ask_rights(&self, token: &AccountToken) -> Result<Account, NotKnown> {
        let user = self.review(token).await?;
        let who = name_of(&user)?;
        let may = match self.account_of(&who) {
            Some(ADMIN) => May::Write,
            Some(VIEWER) => May::Read,
            _ => {
                let namespace = &self.namespace;
                return Err(refused(&format!(
                    "{who} is neither {ADMIN} nor {VIEWER} of the namespace {namespace}"
                )));
            }
        };
        Ok(Account { who, may })
    }

    fn kept(&self, hash: &[u8; 32]) -> Option<Result<Account, NotKnown>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get(hash).filter(|kept| kept.since.elapsed() < KEPT)?;
        Some(kept.said.clone())
    }

    fn keep(&self, hash: [u8; 32], since: Instant, said: Result<Account, NotKnown>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT_TOKENS {
            kept.retain(|_, kept| kept.since.elapsed() < KEPT);
        }
        if kept.len() < KEPT_TOKENS {
            kept.insert(hash, Kept { since, said });
        }
    }
}

impl Accounts for ServiceAccounts {
    fn node_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, NodeName> {
        Box::pin(self.ask_node(token))
    }

    fn rights_of<'a>(&'a self, token: &'a AccountToken) -> Asked<'a, Account> {
        Box::pin(self.known_rights(token))
    }

    fn advice(&self, may: May) -> String {
        let (account, may) = match may {
            May::Read => (VIEWER, "read"),
            May::Write => (ADMIN, "write"),
        };
        let namespace = &self.namespace;
        format!(
            "kubectl create token {account} -n {namespace} --audience {AUDIENCE} makes a token that may {may}"
        )
    }
}

impl fmt::Debug for ServiceAccounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccounts")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

fn refused(why: &str) -> NotKnown {
    NotKnown::Refused { why: why.to_owned() }
}

fn unavailable(why: &str) -> NotKnown {
    NotKnown::Unavailable { why: why.to_owned() }
}

/// The user of a review's status, if the token is good, and good here.
fn user(status: &Value) -> Result<Value, NotKnown> {
    if status["authenticated"] != true {
        let words = status["error"].as_str().unwrap_or("the API server does not know it");
        return Err(refused(&plain(words)));
    }
    // A server that knows of no audiences names none, and says yes to tokens for others.
    let audiences = status["audiences"].as_array();
    if !audiences.is_some_and(|all| all.iter().any(|audience| audience == AUDIENCE)) {
        return Err(refused(&format!("it was not made for the audience {AUDIENCE}")));
    }
    Ok(status["user"].clone())
}

fn name_of(user: &Value) -> Result<String, NotKnown> {
    let name = user["username"].as_str().filter(|name| !name.is_empty());
    name.map(plain).ok_or_else(|| refused("the API server names no user"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_review_counts_only_if_it_says_so_and_for_our_audience() {
        let good = json!({
            "authenticated": true, "audiences": ["other", AUDIENCE], "user": { "username": "u" },
        });
        assert_eq!(user(&good).unwrap()["username"], "u");
        for (field, value) in [
            ("authenticated", json!(false)),
            ("authenticated", json!("true")),
            ("authenticated", json!(null)),
            ("audiences", json!(["other"])),
            ("audiences", json!([])),
            ("audiences", json!(null)),
        ] {
            let mut status = good.clone();
            status[field] = value;
            assert!(matches!(user(&status), Err(NotKnown::Refused { .. })), "{status}");
        }
        assert!(name_of(&json!({})).is_err());
    }
}

//! The tokens of clients: made, listed, revoked, and looked at with every request.
//!
//! A change is durable before it counts, and counts at once: for the next request of an open connection too, and for
//! streams that are open. Whoever checks a token waits for no disk.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use axum::http::{HeaderMap, header};
use hotbay_api::client_token::{ClientToken, NotAClientToken};
use thiserror::Error;
use tokio::sync::watch;
use tonic::Status;

use super::file::{self, FileError, Record};
use super::rights::May;

/// How many tokens there may be.
const TOKENS: usize = 1_000;
/// The longest that a token may be good for.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);
/// How often streams of tokens that have expired are looked for.
const TICK: Duration = Duration::from_millis(500);

/// Why a request is not let in. Nothing of what was sent is in the words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NotAdmitted {
    #[error(
        "a token is needed: send it in the header \"Authorization: Bearer TOKEN\"; on the registry's machine \
         hotbay token create --client NAME --may read makes one"
    )]
    Missing,
    #[error("the header Authorization is not \"Bearer TOKEN\"")]
    Scheme,
    #[error(transparent)]
    Malformed(#[from] NotAClientToken),
    #[error(
        "this token is not known: it was revoked, or made by another registry; on the registry's machine \
         hotbay token create --client NAME --may read makes another"
    )]
    Unknown,
    #[error(
        "the token {name} has expired; revoke it and make another: hotbay token create --client {name}"
    )]
    Expired { name: String },
}

impl From<NotAdmitted> for Status {
    fn from(why: NotAdmitted) -> Self {
        Self::unauthenticated(why.to_string())
    }
}

/// Why the tokens stay as they are.
#[derive(Debug, Error)]
pub(crate) enum NotChanged {
    #[error(
        "{name:?} cannot be a token's name: use 1 to 63 of a-z, A-Z, 0-9, '-', '_' and '.', starting with a letter or \
         digit"
    )]
    Name { name: String },
    #[error("a token is good for 1 s to 10 years")]
    Time,
    #[error(
        "there is a token {name} already; choose another name, or revoke it: hotbay token revoke {name}"
    )]
    Exists { name: String },
    #[error("there are {TOKENS} tokens; revoke some that are not needed: hotbay token list")]
    TooMany,
    #[error("there is no token {name:?}; hotbay token list shows all")]
    NotFound { name: String },
    #[error("the machine gives no random numbers")]
    Random,
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the registry stops")]
    Stopping,
}

impl From<NotChanged> for Status {
    fn from(why: NotChanged) -> Self {
        let words = why.to_string();
        match why {
            NotChanged::Name { .. } | NotChanged::Time => Self::invalid_argument(words),
            NotChanged::Exists { .. } => Self::already_exists(words),
            NotChanged::TooMany => Self::resource_exhausted(words),
            NotChanged::NotFound { .. } => Self::not_found(words),
            NotChanged::Random => Self::internal(words),
            NotChanged::Stopping => Self::unavailable(words),
            NotChanged::File(error) => {
                // The reason names a path of the registry's machine: it is for the log there.
                tracing::error!("{}", in_words(&error));
                Self::unavailable(format!(
                    "not done: {words}; the registry's log says why; asking again is safe"
                ))
            }
        }
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", in_words(source)),
        None => error.to_string(),
    }
}

/// All tokens.
pub(crate) struct ClientTokens {
    path: PathBuf,
    wall_ms: fn() -> u64,
    known: Mutex<Vec<Known>>,
    /// Held by the one change that is under way.
    changing: Mutex<()>,
    /// Grows whenever a token has ended.
    ended: watch::Sender<u64>,
}

#[derive(Debug, Clone)]
struct Known {
    record: Record,
    /// Since the registry started: it is not worth a write.
    last_used_ms: Option<u64>,
}

/// One token, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) may: May,
    pub(crate) created_ms: u64,
    pub(crate) expires_ms: u64,
    pub(crate) last_used_ms: Option<u64>,
    pub(crate) expired: bool,
}

/// A token that was shown and is good.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) name: String,
    pub(crate) may: May,
    pub(crate) lease: Lease,
}

impl ClientTokens {
    /// The tokens kept at `path`.
    pub(crate) fn load(path: PathBuf, wall_ms: fn() -> u64) -> Result<Self, FileError> {
        let records = file::load(&path)?.into_iter();
        let known = records.map(|record| Known { record, last_used_ms: None }).collect();
        let (known, changing) = (Mutex::new(known), Mutex::default());
        Ok(Self { path, wall_ms, known, changing, ended: watch::Sender::new(0) })
    }

    /// Lets a request in by the token that it shows.
    pub(crate) fn admit(self: &Arc<Self>, token: &str) -> Result<Admitted, NotAdmitted> {
        let token: ClientToken = token.parse()?;
        let (given, now_ms) = (hash(&token.secret), (self.wall_ms)());
        let mut known = self.known();
        let known = find(&mut known, &given).ok_or(NotAdmitted::Unknown)?;
        let Record { name, may, expires_ms, .. } = &known.record;
        let (name, may) = (name.clone(), *may);
        if now_ms >= *expires_ms {
            return Err(NotAdmitted::Expired { name });
        }
        known.last_used_ms = Some(now_ms);
        let lease = Lease { tokens: Arc::clone(self), secret_hash: given };
        Ok(Admitted { name, may, lease })
    }

    /// All of them by name.
    pub(crate) fn list(&self) -> Vec<Listed> {
        let now_ms = (self.wall_ms)();
        let listed = |known: &Known| {
            let Record { name, may, created_ms, expires_ms, .. } = known.record.clone();
            let expired = now_ms >= expires_ms;
            Listed { name, may, created_ms, expires_ms, last_used_ms: known.last_used_ms, expired }
        };
        let mut all: Vec<_> = self.known().iter().map(listed).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Makes a token; gives its secret, which is kept nowhere, and when it expires. A name whose token has expired is
    /// free again.
    pub(crate) async fn create(
        self: &Arc<Self>,
        name: String,
        may: May,
        valid: Duration,
    ) -> Result<([u8; 32], u64), NotChanged> {
        check_name(&name)?;
        if valid < Duration::from_secs(1) || valid > LONGEST {
            return Err(NotChanged::Time);
        }
        let mut secret = [0; 32];
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| NotChanged::Random)?;
        let created_ms = (self.wall_ms)();
        let valid_ms = u64::try_from(valid.as_millis()).unwrap_or(u64::MAX);
        let expires_ms = created_ms.saturating_add(valid_ms);
        let record = Record { name, may, created_ms, expires_ms, secret_hash: hash(&secret) };
        self.change(move |all| {
            let name = &record.name;
            all.retain(|known| known.record.name != *name || known.record.expires_ms > created_ms);
            if all.iter().any(|known| known.record.name == *name) {
                return Err(NotChanged::Exists { name: name.clone() });
            }
            if all.len() >= TOKENS {
                return Err(NotChanged::TooMany);
            }
            all.push(Known { record, last_used_ms: None });
            Ok(())
        })
        .await?;
        Ok((secret, expires_ms))
    }

    /// Ends a token.
    pub(crate) async fn revoke(self: &Arc<Self>, name: String) -> Result<(), NotChanged> {
        self.change(move |all| {
            let before = all.len();
            all.retain(|known| known.record.name != name);
            if all.len() < before { Ok(()) } else { Err(NotChanged::NotFound { name }) }
        })
        .await
    }

    /// Ends the streams of tokens that expire, for ever.
    pub(crate) async fn keep_time(self: Arc<Self>) {
        let mut looked_ms = (self.wall_ms)();
        loop {
            tokio::time::sleep(TICK).await;
            let now_ms = (self.wall_ms)();
            let expired =
                |known: &Known| (looked_ms + 1..=now_ms).contains(&known.record.expires_ms);
            if self.known().iter().any(expired) {
                self.tell_ended();
            }
            looked_ms = now_ms;
        }
    }

    /// Runs to its end once begun, whether or not somebody waits for it: disk and memory must not part.
    async fn change(
        self: &Arc<Self>,
        edit: impl FnOnce(&mut Vec<Known>) -> Result<(), NotChanged> + Send + 'static,
    ) -> Result<(), NotChanged> {
        let this = Arc::clone(self);
        let changing = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = this.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut all = this.known().clone();
            edit(&mut all)?;
            file::store(&this.path, all.iter().map(|known| known.record.clone()).collect())?;
            *this.known() = all;
            this.tell_ended();
            Ok(())
        });
        changing.await.map_err(|_| NotChanged::Stopping)?
    }

    fn tell_ended(&self) {
        self.ended.send_modify(|number| *number += 1);
    }

    fn known(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ClientTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTokens").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The token in the head of a request.
pub(crate) fn bearer(head: &HeaderMap) -> Result<&str, NotAdmitted> {
    let mut values = head.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        let none = !head.contains_key(header::AUTHORIZATION);
        return Err(if none { NotAdmitted::Missing } else { NotAdmitted::Scheme });
    };
    let words = value.to_str().map_err(|_| NotAdmitted::Scheme)?;
    let (scheme, token) = words.split_once(' ').ok_or(NotAdmitted::Scheme)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(token) } else { Err(NotAdmitted::Scheme) }
}

/// The use of one token, for as long as it is good.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    tokens: Arc<ClientTokens>,
    secret_hash: [u8; 32],
}

impl Lease {
    /// Waits until the token is good no more; says why.
    pub(crate) async fn ended(self) -> Status {
        let Self { tokens, secret_hash } = self;
        let mut changes = tokens.ended.subscribe();
        loop {
            let now_ms = (tokens.wall_ms)();
            let why = match find(&mut tokens.known(), &secret_hash).map(|known| &known.record) {
                None => Some(NotAdmitted::Unknown),
                Some(record) if now_ms >= record.expires_ms => {
                    Some(NotAdmitted::Expired { name: record.name.clone() })
                }
                Some(_) => None,
            };
            if let Some(why) = why {
                return why.into();
            }
            // Its sender is in the tokens, which are held here.
            changes.changed().await.unwrap_or_default();
        }
    }
}

/// Takes as long whichever it is, and whether or not there is one.
fn find<'a>(known: &'a mut [Known], given: &[u8; 32]) -> Option<&'a mut Known> {
    let mut found = None;
    for known in known {
        if verify_slices_are_equal(&known.record.secret_hash, given).is_ok() {
            found = Some(known);
        }
    }
    found
}

fn hash(secret: &[u8; 32]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, secret).as_ref());
    hash
}

/// It stands in records and sentences, between other words.
fn check_name(name: &str) -> Result<(), NotChanged> {
    let plain = |b: &u8| b.is_ascii_alphanumeric();
    let bytes = name.as_bytes();
    let fits = (1..=63).contains(&bytes.len())
        && bytes.iter().all(|b| plain(b) || matches!(b, b'-' | b'_' | b'.'))
        && bytes.first().is_some_and(plain);
    if fits { Ok(()) } else { Err(NotChanged::Name { name: name.chars().take(80).collect() }) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::http::HeaderValue;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn tokens(dir: &tempfile::TempDir) -> Arc<ClientTokens> {
        let path = dir.path().join("client-tokens");
        Arc::new(ClientTokens::load(path, || 1_800_000_000_000).unwrap())
    }

    fn head(value: &str) -> HeaderMap {
        let value = HeaderValue::from_str(value).unwrap();
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    fn shown(secret: [u8; 32]) -> String {
        ClientToken { authority: [1; 32], secret }.to_string()
    }

    #[tokio::test]
    async fn a_token_is_known_also_after_a_restart_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let first = tokens(&dir);
        let (secret, _) = first.create("ci".into(), May::Read, HOUR).await.unwrap();
        assert!(first.admit(&shown(secret)).is_ok());
        let text = std::fs::read_to_string(&first.path).unwrap();
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(!text.contains(&hex), "the secret is on the disk");
        let second = tokens(&dir);
        let admitted = second.admit(&shown(secret)).unwrap();
        assert_eq!((admitted.name.as_str(), admitted.may), ("ci", May::Read));
        assert_eq!(second.list()[0].last_used_ms, Some(1_800_000_000_000));
        second.revoke("ci".into()).await.unwrap();
        assert_eq!(second.admit(&shown(secret)).unwrap_err(), NotAdmitted::Unknown);
        assert_eq!(tokens(&dir).admit(&shown(secret)).unwrap_err(), NotAdmitted::Unknown);
        let missing = second.revoke("ci".into()).await;
        assert!(matches!(missing, Err(NotChanged::NotFound { .. })));
    }

    #[tokio::test]
    async fn what_is_not_a_good_token_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = tokens(&dir);
        let (secret, _) = tokens.create("ci".into(), May::Write, HOUR).await.unwrap();
        let good = ClientToken { authority: [1; 32], secret }.to_string();
        let admit = |head: &HeaderMap| bearer(head).and_then(|token| tokens.admit(token));
        assert!(admit(&head(&format!("bearer {good}"))).is_ok());
        let refused = |head: &HeaderMap| admit(head).unwrap_err();
        assert_eq!(refused(&HeaderMap::new()), NotAdmitted::Missing);
        let cut = &good[..good.len() - 1];
        for (value, why) in [
            (good.clone(), NotAdmitted::Scheme),
            (format!("Basic {good}"), NotAdmitted::Scheme),
            (format!("Bearer {cut}"), NotAdmitted::Malformed(NotAClientToken::Check)),
            ("Bearer root".to_owned(), NotAdmitted::Malformed(NotAClientToken::Shape)),
        ] {
            assert_eq!(refused(&head(&value)), why, "{value}");
            assert!(!why.to_string().contains(&value), "the words repeat what was sent");
        }
        assert_eq!(tokens.admit(&shown([7; 32])).unwrap_err(), NotAdmitted::Unknown);
        let mut twice = head(&format!("Bearer {good}"));
        twice.append(header::AUTHORIZATION, HeaderValue::from_str(&good).unwrap());
        assert_eq!(refused(&twice), NotAdmitted::Scheme);
    }

    #[tokio::test]
    async fn names_times_and_numbers_have_limits() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = tokens(&dir);
        let make = |name: &str, valid| tokens.create(name.to_owned(), May::Read, valid);
        for bad in ["", "-a", "a b", "a(b)", "ü", &"x".repeat(64)] {
            assert!(matches!(make(bad, HOUR).await, Err(NotChanged::Name { .. })), "{bad:?}");
        }
        for bad in [Duration::ZERO, LONGEST + HOUR] {
            assert!(matches!(make("ci", bad).await, Err(NotChanged::Time)));
        }
        make("ci", HOUR).await.unwrap();
        assert!(matches!(make("ci", HOUR).await, Err(NotChanged::Exists { .. })));
        let record = tokens.known()[0].clone();
        tokens.known().resize(TOKENS, record);
        assert!(matches!(make("other", HOUR).await, Err(NotChanged::TooMany)));
        assert!(tokens.list().iter().all(|listed| listed.name == "ci"), "nothing was changed");
    }

    #[tokio::test]
    async fn what_cannot_be_written_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = tokens(&dir);
        let (secret, _) = tokens.create("ci".into(), May::Read, HOUR).await.unwrap();
        // A folder in the way of the new file: works for root as well.
        std::fs::create_dir(tokens.path.with_extension("new")).unwrap();
        let made = tokens.create("other".into(), May::Read, HOUR).await;
        assert!(matches!(made, Err(NotChanged::File(_))), "{made:?}");
        assert!(tokens.revoke("ci".into()).await.is_err());
        assert!(tokens.admit(&shown(secret)).is_ok());
        assert_eq!(tokens.list().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_expired_token_ends_its_lease_and_frees_its_name() {
        static NOW_MS: AtomicU64 = AtomicU64::new(1_800_000_000_000);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client-tokens");
        let wall_ms = || NOW_MS.load(Ordering::Relaxed);
        let tokens = Arc::new(ClientTokens::load(path, wall_ms).unwrap());
        let (secret, expires_ms) = tokens.create("ci".into(), May::Read, HOUR).await.unwrap();
        let lease = tokens.admit(&shown(secret)).unwrap().lease;
        let clock = tokio::spawn(Arc::clone(&tokens).keep_time());
        let ended = tokio::spawn(lease.ended());
        tokio::time::sleep(TICK * 10).await;
        assert!(!ended.is_finished());
        NOW_MS.store(expires_ms, Ordering::Relaxed);
        let status = ended.await.unwrap();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
        assert!(status.message().contains("ci has expired"), "{}", status.message());
        let expired = NotAdmitted::Expired { name: "ci".into() };
        assert_eq!(tokens.admit(&shown(secret)).unwrap_err(), expired);
        assert!(tokens.list()[0].expired);
        tokens.create("ci".into(), May::Write, HOUR).await.unwrap();
        assert_eq!(tokens.list().len(), 1);
        clock.abort();
    }
}

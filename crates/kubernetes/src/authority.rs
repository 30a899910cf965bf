//! The authority of all controllers of a cluster: its key and certificate are in a Secret, and the certificate alone in
//! a ConfigMap, which nodes read to know whom they may join. The program calls it before it opens its doors.
//!
//! Both objects are made by the first controller that looks, and belong to no installation: taking Hotbay off the
//! cluster leaves them, and nodes that come back are known. A Secret that is damaged is told and stays as it is. One
//! that is gone while a controller runs is written again, as that controller knows it. Only where none runs it is made
//! anew: nodes see another certificate in the ConfigMap, and join again with their accounts.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hotbay_control::AuthorityPems;
use serde_json::{Value, json};
use thiserror::Error;

use crate::client::{Answer, CallError, Client};

/// What both objects are called.
pub const NAME: &str = "hotbay-authority";
const KEY: &str = "authority.key";
const CERTIFICATE: &str = "authority.pem";

/// How often the objects are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How often somebody else may be faster before it is given up.
const TRIES: usize = 5;

/// Why there is no authority.
#[derive(Debug, Error)]
pub enum AuthorityError {
    #[error("cannot {verb} the {object}")]
    Call {
        verb: &'static str,
        object: String,
        #[source]
        source: CallError,
    },
    #[error(
        "may not {verb} the {object}: {words}; the role of the controller's service account has to allow it"
    )]
    Forbidden { verb: &'static str, object: String, words: String },
    #[error(
        "the {object} is damaged: its {key} {why}; put it back from a backup: every node trusts it alone"
    )]
    Damaged { object: String, key: &'static str, why: &'static str },
    #[error("the {object} is damaged")]
    Unusable {
        object: String,
        #[source]
        source: hotbay_control::AuthorityError,
    },
    #[error("cannot make an authority")]
    Make(#[source] hotbay_control::AuthorityError),
    #[error("the {object} is made and deleted again and again by others")]
    Contended { object: String },
}

/// The authority that the Secret of this namespace holds; a new one if there is none. Controllers that start at the
/// same time get the same one. The ConfigMap has its certificate when this returns.
pub async fn load_or_make(
    client: &Client,
    namespace: &str,
) -> Result<AuthorityPems, AuthorityError> {
    let secrets = Objects { client, namespace, plural: "secrets", kind: "Secret" };
    let maps = Objects { client, namespace, plural: "configmaps", kind: "ConfigMap" };
    let pems = secret(&secrets).await?;
    publish(&maps, &pems.certificate).await?;
    Ok(pems)
}

/// Looks after both objects, for a controller that has this authority: whatever is deleted is written again. Returns
/// when the Secret has another one. Whoever goes on with the old one then would be trusted by no node that joins.
pub async fn replaced(client: &Client, namespace: &str, ours: &AuthorityPems) {
    let secrets = Objects { client, namespace, plural: "secrets", kind: "Secret" };
    let maps = Objects { client, namespace, plural: "configmaps", kind: "ConfigMap" };
    let mut told = String::new();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let looked = match secret_or(&secrets, || Ok(ours.clone())).await {
            Ok(found) if found.certificate != ours.certificate => return,
            Ok(_) => publish(&maps, &ours.certificate).await,
            Err(error) => Err(error),
        };
        let words = looked.err().map(|error| error.to_string()).unwrap_or_default();
        if !words.is_empty() && words != told {
            tracing::warn!("the authority cannot be looked after, trying again: {words}");
        }
        told = words;
    }
}

async fn secret(secrets: &Objects<'_>) -> Result<AuthorityPems, AuthorityError> {
    secret_or(secrets, || AuthorityPems::fresh().map_err(AuthorityError::Make)).await
}

/// What the Secret holds; if there is none, it is made.
async fn secret_or(
    secrets: &Objects<'_>,
    make: impl Fn() -> Result<AuthorityPems, AuthorityError>,
) -> Result<AuthorityPems, AuthorityError> {
    for _ in 0..TRIES {
        if let Some(found) = secrets.get().await? {
            return read(&found, secrets.named());
        }
        let pems = make()?;
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let data = json!({ KEY: encoded(&pems.key), CERTIFICATE: encoded(&pems.certificate) });
        if secrets.create(json!({ "type": "Opaque", "data": data })).await? {
            let namespace = secrets.namespace;
            tracing::info!(namespace, "made the Secret {NAME}, which was not there");
            return Ok(pems);
        }
    }
    Err(AuthorityError::Contended { object: secrets.named() })
}

fn read(secret: &Value, object: String) -> Result<AuthorityPems, AuthorityError> {
    let text = |key: &'static str| {
        let damaged = |why| AuthorityError::Damaged { object: object.clone(), key, why };
        let data = secret["data"][key].as_str().ok_or_else(|| damaged("is missing"))?;
        let bytes = BASE64_STANDARD.decode(data).map_err(|_| damaged("is not base64"))?;
        String::from_utf8(bytes).map_err(|_| damaged("is not text"))
    };
    let pems = AuthorityPems { key: text(KEY)?, certificate: text(CERTIFICATE)? };
    match pems.check() {
        Ok(()) => Ok(pems),
        Err(source) => Err(AuthorityError::Unusable { object, source }),
    }
}

/// Makes the ConfigMap say what the certificate is; whatever else is in it stays.
async fn publish(maps: &Objects<'_>, certificate: &str) -> Result<(), AuthorityError> {
    for _ in 0..TRIES {
        let done = match maps.get().await? {
            None => maps.create(json!({ "data": { CERTIFICATE: certificate } })).await?,
            Some(map) if map["data"][CERTIFICATE] == certificate => true,
            Some(mut map) => {
                if !map["data"].is_object() {
                    map["data"] = json!({});
                }
                map["data"][CERTIFICATE] = json!(certificate);
                maps.replace(&map).await?
            }
        };
        if done {
            return Ok(());
        }
    }
    Err(AuthorityError::Contended { object: maps.named() })
}

/// The object of our name among those of a kind.
struct Objects<'a> {
    client: &'a Client,
    namespace: &'a str,
    plural: &'a str,
    kind: &'a str,
}

impl Objects<'_> {
    fn named(&self) -> String {
        format!("{} {}/{NAME}", self.kind, self.namespace)
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/{}", self.namespace, self.plural)
    }

    async fn get(&self) -> Result<Option<Value>, AuthorityError> {
        let answered = self.client.get(&format!("{}/{NAME}", self.path())).await;
        let answer = self.allowed("read", answered)?;
        match answer.code {
            404 => Ok(None),
            _ => answer.done().map(Some).map_err(|source| self.failed("read", source)),
        }
    }

    /// False if there is one by now.
    async fn create(&self, mut object: Value) -> Result<bool, AuthorityError> {
        object["apiVersion"] = json!("v1");
        object["kind"] = json!(self.kind);
        let labels = json!({ "app.kubernetes.io/name": "hotbay" });
        object["metadata"] = json!({ "name": NAME, "labels": labels });
        let answered = self.client.post(&self.path(), &object).await;
        self.done_unless_beaten("create", answered)
    }

    /// False if it is another one by now.
    async fn replace(&self, object: &Value) -> Result<bool, AuthorityError> {
        let answered = self.client.put(&format!("{}/{NAME}", self.path()), object).await;
        self.done_unless_beaten("update", answered)
    }

    fn done_unless_beaten(
        &self,
        verb: &'static str,
        answered: Result<Answer, CallError>,
    ) -> Result<bool, AuthorityError> {
        let answer = self.allowed(verb, answered)?;
        match answer.code {
            409 => Ok(false),
            _ => answer.done().map(|_| true).map_err(|source| self.failed(verb, source)),
        }
    }

    fn allowed(
        &self,
        verb: &'static str,
        answered: Result<Answer, CallError>,
    ) -> Result<Answer, AuthorityError> {
        let answer = answered.map_err(|source| self.failed(verb, source))?;
        if answer.code == 403 {
            let (object, words) = (self.named(), answer.words());
            return Err(AuthorityError::Forbidden { verb, object, words });
        }
        Ok(answer)
    }

    fn failed(&self, verb: &'static str, source: CallError) -> AuthorityError {
        AuthorityError::Call { verb, object: self.named(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_of(pems: &AuthorityPems) -> Value {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        json!({ "data": { KEY: encoded(&pems.key), CERTIFICATE: encoded(&pems.certificate) } })
    }

    #[test]
    fn every_damage_is_told() {
        let (good, other) = (AuthorityPems::fresh().unwrap(), AuthorityPems::fresh().unwrap());
        assert_eq!(read(&secret_of(&good), "it".to_owned()).unwrap(), good);
        let mut cases = vec![json!({}), json!({ "data": null }), json!({ "data": {} })];
        for (key, value) in [
            (KEY, json!(null)),
            (KEY, json!("%")),
            (KEY, json!("/w==")),
            (KEY, json!("")),
            (CERTIFICATE, json!(null)),
            (CERTIFICATE, secret_of(&other)["data"][CERTIFICATE].clone()),
        ] {
            let mut secret = secret_of(&good);
            secret["data"][key] = value;
            cases.push(secret);
        }
        for case in cases {
            let error = read(&case, "Secret hotbay/hotbay-authority".to_owned()).unwrap_err();
            assert!(error.to_string().contains("is damaged"), "{error}");
            assert!(!format!("{error:?}").contains("PRIVATE"), "{error:?}");
        }
    }
}

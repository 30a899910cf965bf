//! `/v1/volumes`: volumes are listed, made, made larger and deleted. Each call answers when what it asks for is done,
//! or says after a while what it waits for; asking again goes on waiting for the same.

use std::collections::BTreeMap;

use axum::Extension;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::Uri;
use hotbay_api::volumes as wire;
use hotbay_core::words::plain;
use hotbay_registry::Registry;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::Fresh;
use super::body::Object;
use super::refusal::Refusal;
use super::routes::{Answer, json, listed_at, name_in_path, show, whole_body};
use crate::caller::Caller;
use crate::listing::Wanted;
use crate::volumes::Volumes;

const PATH: &str = "/v1/volumes";

/// The body of `POST /v1/volumes`: the fields of `CreateRequest` in `volumes.proto`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CreateBody {
    name: String,
    size_bytes: u64,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    nodes: Vec<String>,
}

/// The body of `POST /v1/volumes/{name}/expand`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ExpandBody {
    size_bytes: u64,
}

pub(super) async fn list(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
) -> Answer {
    show(registry, Wanted::Volumes, &caller, &uri).await
}

pub(super) async fn one(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Answer {
    let wanted = Wanted::Volume(name_in_path(name)?);
    show(registry, wanted, &caller, &uri).await.map_err(|refusal| listed_at(refusal, PATH))
}

pub(super) async fn create(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    Extension(Fresh(fresh)): Extension<Fresh>,
    request: Request,
) -> Answer {
    let (name, wish) = created(&whole_body(request).await?).map_err(Refusal::argument)?;
    Ok(json(Volumes { registry, fresh }.make(name, wish, &caller).await?))
}

pub(super) async fn delete(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    Extension(Fresh(fresh)): Extension<Fresh>,
    name: Result<Path<String>, PathRejection>,
) -> Answer {
    let deleted = Volumes { registry, fresh }.remove(name_in_path(name)?, &caller).await;
    let remark = deleted.map_err(|status| listed_at(status.into(), PATH))?;
    Ok(json(serde_json::json!({ "deleted": true, "remark": remark }).to_string()))
}

pub(super) async fn expand(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    Extension(Fresh(fresh)): Extension<Fresh>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let name = name_in_path(name)?;
    let size_bytes = expanded(&whole_body(request).await?).map_err(Refusal::argument)?;
    let grown = Volumes { registry, fresh }.grow(name, size_bytes, &caller).await;
    Ok(json(grown.map_err(|status| listed_at(status.into(), PATH))?))
}

/// What the body of `POST /v1/volumes` asks for: a name and a wish; in words, why it is none.
pub(super) fn created(body: &[u8]) -> Result<(String, wire::Wish), String> {
    let CreateBody { name, size_bytes, parameters, nodes } = read(body)?;
    // Zero is "not said" elsewhere; who has a field for it has said it.
    if size_bytes == 0 {
        return Err("sizeBytes is 0: a volume has 1 MiB or more".to_owned());
    }
    Ok((name, wire::Wish { size_bytes, parameters, nodes }))
}

/// How large the body of `POST /v1/volumes/{name}/expand` wants a volume; in words, why it says nothing.
pub(super) fn expanded(body: &[u8]) -> Result<u64, String> {
    read(body).map(|ExpandBody { size_bytes }| size_bytes)
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let read = serde_json::from_slice(body).map(|Object(body)| body);
    read.map_err(|error| plain(&format!("the body is not what is expected, in JSON: {error}")))
}

//! `/v1/adopt`: what nodes know that the registry has forgotten, to look at (GET) and to take over (POST).

use axum::Extension;
use axum::extract::{Request, State};
use hotbay_api::cms as wire;
use hotbay_registry::Registry;
use serde::{Deserialize, Serialize};

use super::Fresh;
use super::body::Object;
use super::refusal::Refusal;
use super::routes::{Answer, json, whole_body};
use crate::caller::Caller;
use crate::repair;

/// The body of `POST /v1/adopt`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdoptBody {
    confirmed: bool,
}

#[derive(Debug, Serialize)]
struct AdoptAnswer {
    nodes: Vec<NodeBody>,
    adopted: bool,
}

#[derive(Debug, Serialize)]
struct NodeBody {
    node: String,
    differences: Vec<String>,
}

impl From<wire::AdoptResponse> for AdoptAnswer {
    fn from(response: wire::AdoptResponse) -> Self {
        let node = |wire::NodeDifferences { node, differences }| NodeBody { node, differences };
        let nodes = response.nodes.into_iter().map(node).collect();
        Self { nodes, adopted: response.adopted }
    }
}

pub(super) async fn preview(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    Extension(Fresh(fresh)): Extension<Fresh>,
) -> Answer {
    answer(repair::adopt(&registry, fresh, &caller, false).await?)
}

pub(super) async fn confirm(
    State(registry): State<Registry>,
    Extension(caller): Extension<Caller>,
    Extension(Fresh(fresh)): Extension<Fresh>,
    request: Request,
) -> Answer {
    let expected = r#"send {"confirmed":true}; GET /v1/adopt shows what it would take over"#;
    let body = whole_body(request).await?;
    let Object(AdoptBody { confirmed }) = serde_json::from_slice(&body).map_err(|error| {
        Refusal::argument(format!("the body is no confirmation in JSON: {error}")).then(expected)
    })?;
    if !confirmed {
        return Err(Refusal::argument("nothing is adopted without a confirmation").then(expected));
    }
    answer(repair::adopt(&registry, fresh, &caller, true).await?)
}

fn answer(response: wire::AdoptResponse) -> Answer {
    let answer = AdoptAnswer::from(response);
    Ok(json(serde_json::to_string(&answer).expect("answers have text keys")))
}

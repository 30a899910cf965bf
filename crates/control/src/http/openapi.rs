//! The description of the HTTP API for programs: OpenAPI 3.1. Written by hand, and held to what is really answered by
//! `tests/http.rs`: every route is in it, and every answer fits its schema.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use super::metrics;
use super::schemas::schemas;

/// The document as it is sent.
pub(super) static DOCUMENT: LazyLock<String> = LazyLock::new(|| document().to_string());

const CREATE_VOLUME: &str =
    "Makes a volume on a drive that fits, and answers when it is there. The same again finds it.";
const DELETE_VOLUME: &str =
    "Deletes a volume, with all that is on it, and answers when nobody can reach it any more.";
const EXPAND_VOLUME: &str =
    "Makes a volume larger, and answers when it is. One that is large enough stays as it is.";

fn document() -> Value {
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hotbay",
            "version": "v1",
            "description": "Drives in and out of operation, and the volumes on them. Served on a Unix socket, \
                            to root and to the user that the \
                            controller runs as, without a token; and over TLS, if asked for, to whoever has one. \
                            Fields may be added to answers; none is renamed.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [
            { "url": "http://hotbay", "description": "On the Unix socket. Any name will do: the socket decides." },
            {
                "url": "https://{address}",
                "description": "With --listen HOST:PORT.",
                "variables": { "address": { "default": "registry.hotbay.internal:7444" } },
            },
        ],
        "security": [{ "token": [] }],
        "paths": {
            "/v1/actions": { "post": act() },
            "/v1/drives": { "get": look("listDrives", "All drives, by node and bay.", "DriveList", false) },
            "/v1/drives/{name}": {
                "get": look("getDrive", "One drive, by anything that names it.", "Drive", true)
            },
            "/v1/nodes": { "get": look("listNodes", "All nodes, by name.", "StorageNodeList", false) },
            "/v1/nodes/{name}": { "get": look("getNode", "One node, by name.", "StorageNode", true) },
            "/v1/volumes": {
                "get": look("listVolumes", "All volumes, by name.", "VolumeList", false),
                "post": change("createVolume", CREATE_VOLUME, Some("CreateVolume"), "Volume"),
            },
            "/v1/volumes/{name}": {
                "get": look("getVolume", "One volume, by name or id.", "Volume", true),
                "delete": named_in_path(change("deleteVolume", DELETE_VOLUME, None, "VolumeDeleted")),
            },
            "/v1/volumes/{name}/expand": {
                "post": named_in_path(change("expandVolume", EXPAND_VOLUME, Some("ExpandVolume"), "Volume")),
            },
            "/v1/events": { "get": follow_events() },
            "/v1/adopt": { "get": preview_adopt(), "post": confirm_adopt() },
            "/v1/openapi.json": { "get": plain("describe", "This document.", json!({ "type": "object" })) },
            "/healthz": {
                "get": open(plain("isAlive", "The process lives.", status("alive"))),
            },
            "/readyz": {
                "get": open(plain("isReady", "The registry leads and its store can be written.", status("ready"))),
            },
            "/metrics": { "get": measure() },
        },
        "components": {
            "schemas": schemas(),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "hotbay token create --client NAME --may read|write. Only with the right to write \
                                    may an action change something; dry runs and everything else need the right to \
                                    read. Not on the Unix socket.",
                },
            },
        },
    })
}

/// An operation that needs no token.
fn open(mut operation: Value) -> Value {
    operation["security"] = json!([]);
    operation
}

fn act() -> Value {
    json!({
        "operationId": "act",
        "summary": "Takes a list of actions, in order; each has its own result.",
        "description": "The status is 200 when the list was taken, whatever became of each action. Ask again for a \
                        removal until it is S_OK: closed, and that is proved.",
        "requestBody": { "required": true, "content": content("application/json", &reference("ActRequest")) },
        "responses": responses("The results, in the order of the actions.",
            content("application/json", &reference("ActResponse"))),
    })
}

fn look(id: &str, summary: &str, schema: &str, named: bool) -> Value {
    let mut parameters = vec![json!({
        "name": "watch",
        "in": "query",
        "description": "true: goes on, with a line for every change; each line is a whole answer.",
        "schema": { "type": "boolean", "default": false },
    })];
    if !named {
        parameters.extend(paging());
    }
    if named {
        parameters.push(name_in_path());
    }
    let schema = reference(schema);
    let content = json!({
        "application/json": { "schema": schema },
        "application/x-ndjson": { "schema": schema },
    });
    json!({
        "operationId": id,
        "summary": summary,
        "parameters": parameters,
        "responses": responses("What is there now, and durable.", content),
    })
}

fn name_in_path() -> Value {
    json!({
        "name": "name",
        "in": "path",
        "required": true,
        "description": "Percent-encoded. A drive: its name, serial number or id, node:/dev/x or node:bay-0. A volume: \
                        its name or id.",
        "schema": { "type": "string" },
    })
}

/// An operation that changes something, and answers when that is done.
fn change(id: &str, summary: &str, takes: Option<&str>, gives: &str) -> Value {
    let good = content("application/json", &reference(gives));
    let mut operation = json!({
        "operationId": id,
        "summary": summary,
        "responses": responses("It is done.", good),
    });
    if let Some(takes) = takes {
        let content = content("application/json", &reference(takes));
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

fn named_in_path(mut operation: Value) -> Value {
    operation["parameters"] = json!([name_in_path()]);
    operation
}

/// A list may be asked for page by page.
fn paging() -> [Value; 2] {
    [
        json!({
            "name": "limit",
            "in": "query",
            "description": "How many objects at the most; without it all. Does not go with watch.",
            "schema": { "type": "integer", "minimum": 1, "maximum": u32::MAX },
        }),
        json!({
            "name": "continue",
            "in": "query",
            "description": "metadata.continue of the page before: the page after it.",
            "schema": { "type": "string" },
        }),
    ]
}

fn follow_events() -> Value {
    let content = json!({
        "application/json": { "schema": reference("EventList") },
        "application/x-ndjson": { "schema": reference("Event") },
    });
    json!({
        "operationId": "listEvents",
        "summary": "What happened lately, oldest first: the last 1,000 events since the registry started.",
        "parameters": [{
            "name": "follow",
            "in": "query",
            "description": "true: goes on with what happens; a line for each event.",
            "schema": { "type": "boolean", "default": false },
        }],
        "responses": responses("What happened.", content),
    })
}

fn preview_adopt() -> Value {
    json!({
        "operationId": "previewAdopt",
        "summary": "What nodes know that this registry has forgotten, because it was restored from a backup.",
        "responses": responses("Each node with its differences; nothing was changed.",
            content("application/json", &reference("Adoption"))),
    })
}

fn confirm_adopt() -> Value {
    let body = json!({
        "type": "object",
        "required": ["confirmed"],
        "additionalProperties": false,
        "properties": { "confirmed": { "const": true } },
    });
    json!({
        "operationId": "adopt",
        "summary": "Takes over what the nodes know. Every agent registers anew.",
        "requestBody": { "required": true, "content": content("application/json", &body) },
        "responses": responses("What was taken over.", content("application/json", &reference("Adoption"))),
    })
}

fn plain(id: &str, summary: &str, schema: Value) -> Value {
    json!({
        "operationId": id,
        "summary": summary,
        "responses": responses(summary, content("application/json", &schema)),
    })
}

fn measure() -> Value {
    json!({
        "operationId": "measure",
        "summary": "The numbers, for Prometheus.",
        "responses": responses("OpenMetrics text.", content(metrics::CONTENT_TYPE, &json!({ "type": "string" }))),
    })
}

fn responses(good: &str, content_of_good: Value) -> Value {
    json!({
        "200": { "description": good, "content": content_of_good },
        "default": {
            "description": "Why there is no result, and what to do next.",
            "content": content("application/json", &reference("Error")),
        },
    })
}

fn content(media_type: &str, schema: &Value) -> Value {
    Value::Object(Map::from_iter([(media_type.to_owned(), json!({ "schema": schema }))]))
}

pub(super) fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn status(word: &str) -> Value {
    object(&["status"], json!({ "status": { "const": word } }))
}

/// An object that has these properties, of which some are always there.
pub(super) fn object(required: &[&str], properties: Value) -> Value {
    json!({ "type": "object", "required": required, "properties": properties })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::clients::rights::Right;
    use crate::http::routes;

    #[test]
    fn the_document_has_every_route_and_no_other() {
        let document = document();
        let described: BTreeSet<_> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().unwrap().keys();
                methods.map(move |method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        let served: BTreeSet<_> = routes::table()
            .into_iter()
            .map(|route| (route.method.to_string(), route.path.to_owned()))
            .collect();
        assert_eq!(described, served);
    }

    #[test]
    fn the_document_says_which_routes_need_no_token() {
        let document = document();
        for route in routes::table() {
            let method = route.method.as_str().to_lowercase();
            let operation = &document["paths"][route.path][method];
            let open = operation.get("security") == Some(&json!([]));
            assert_eq!(open, route.right == Right::Open, "{}", route.path);
        }
        assert_eq!(document["security"], json!([{ "token": [] }]));
    }
}

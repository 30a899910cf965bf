//! The JSON of actions and of their results. Fields are added, never renamed; a field that is not known is refused,
//! because what it asks for would not be done.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use hotbay_api::cms as wire;
use hotbay_api::convert::{Malformed, action_from_wire};
use hotbay_core::cms::Action;
use hotbay_core::words::plain;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// The body of `POST /v1/actions`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ActBody {
    pub(super) actions: Vec<Object<ActionBody>>,
    #[serde(default)]
    pub(super) dry_run: bool,
}

impl ActBody {
    /// Reads a whole body; in words, why it is none.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let read = serde_json::from_slice(body).map(|Object(body)| body);
        read.map_err(|error| plain(&format!("the body is not a list of actions in JSON: {error}")))
    }
}

/// One action: the fields of `Action` in `cms.proto`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ActionBody {
    r#type: String,
    #[serde(default)]
    host: String,
    #[serde(default)]
    device: String,
    #[serde(default)]
    with_removed: bool,
    #[serde(default)]
    returned: bool,
    #[serde(default)]
    expected_state: String,
    #[serde(default)]
    wipe: bool,
    #[serde(default)]
    serial: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    remove_labels: Vec<String>,
    #[serde(default)]
    overwrite: bool,
}

impl ActionBody {
    /// What is asked for. A type that is not known is this action's own failure, as it is in gRPC.
    pub(super) fn decode(self) -> Result<Action, Malformed> {
        let Self {
            r#type: name,
            host,
            device,
            with_removed,
            returned,
            expected_state,
            wipe,
            serial,
            labels,
            remove_labels,
            overwrite,
        } = self;
        let kind = wire::ActionType::from_str_name(&name)
            .filter(|kind| *kind != wire::ActionType::Unknown)
            .ok_or_else(|| Malformed::Field {
                field: "type",
                problem: format!("{name:?} is no action that this release knows"),
            })?;
        action_from_wire(wire::Action {
            r#type: kind.into(),
            host,
            device,
            with_removed,
            returned,
            expected_state,
            wipe,
            serial,
            labels,
            remove_labels,
            overwrite,
        })
    }
}

/// The answer to `POST /v1/actions`.
#[derive(Debug, Serialize)]
pub(super) struct ActAnswer {
    pub(super) results: Vec<ResultBody>,
}

/// The answer to one action.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResultBody {
    result: String,
    reasons: Vec<String>,
    dependent_volumes: Vec<String>,
    volumes: Vec<VolumeBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drive: Option<BriefBody>,
    drives: Vec<ResultBody>,
}

impl From<wire::ActionResult> for ResultBody {
    fn from(result: wire::ActionResult) -> Self {
        let wire::ActionResult {
            result,
            reasons,
            dependent_volumes,
            volumes,
            retry_after_ms,
            drive,
            drives,
        } = result;
        Self {
            result,
            reasons,
            dependent_volumes,
            volumes: volumes.into_iter().map(Into::into).collect(),
            retry_after_ms: Some(retry_after_ms).filter(|ms| *ms > 0),
            drive: drive.map(Into::into),
            drives: drives.into_iter().map(Into::into).collect(),
        }
    }
}

/// A volume that stands in the way.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeBody {
    name: String,
    size_bytes: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    claim: String,
    used_on: Vec<String>,
}

impl From<wire::VolumeBrief> for VolumeBody {
    fn from(brief: wire::VolumeBrief) -> Self {
        let wire::VolumeBrief { name, size_bytes, claim, used_on } = brief;
        Self { name, size_bytes, claim, used_on }
    }
}

/// Which drive an action took.
#[derive(Debug, Serialize)]
struct BriefBody {
    name: String,
    node: String,
    path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    bay: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    serial: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    order: String,
}

impl From<wire::DriveBrief> for BriefBody {
    fn from(brief: wire::DriveBrief) -> Self {
        let wire::DriveBrief { name, node, path, bay, serial, order } = brief;
        Self { name, node, path, bay, serial, order }
    }
}

/// An object with the fields of `T`. By itself serde would also take a list of their values.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(OnlyObject(PhantomData))
    }
}

struct OnlyObject<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for OnlyObject<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

//! The custom resource definitions, made from the kinds of `hotbay-api`. `hotbay crd` prints them, and
//! `deploy/crds.yaml` is a copy.
//!
//! The spec is the wish and belongs to people. The status is written by the leading controller alone: the public
//! view, and under `record` what was decided. See [`crate::object`].

mod columns;
mod structural;

use hotbay_api::kinds;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::resource::{GROUP, REGISTRY_NAME, Resource, VERSION};

/// Every definition, in the order of [`Resource::ALL`].
pub fn definitions() -> Vec<Value> {
    Resource::ALL.into_iter().map(definition).collect()
}

fn definition(resource: Resource) -> Value {
    let kind = resource.kind();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{}.{GROUP}", resource.plural()),
            "labels": { "app.kubernetes.io/name": "hotbay" },
        },
        "spec": {
            "group": GROUP,
            // Drives and machines belong to no namespace.
            "scope": "Cluster",
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": resource.plural(),
                "singular": kind.to_lowercase(),
                "shortNames": [resource.short_name()],
                "categories": ["hotbay"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema(resource) },
                "subresources": { "status": {} },
                "additionalPrinterColumns": columns::of(resource),
            }],
        },
    })
}

fn schema(resource: Resource) -> Value {
    let (about, spec, status) = match resource {
        Resource::Registry => (
            "The registry of Hotbay: which cluster this is, and under which term it is led. There is one, named \
             `registry`.",
            of::<kinds::RegistrySpec>(),
            of::<kinds::RegistryStatus>(),
        ),
        Resource::StorageNode => (
            "A machine with an agent of Hotbay.",
            of::<kinds::StorageNodeSpec>(),
            of::<kinds::StorageNodeStatus>(),
        ),
        Resource::Drive => (
            "A physical drive. Deleting this object neither detaches nor erases it: the object is made again.",
            of::<kinds::DriveSpec>(),
            of::<kinds::DriveStatus>(),
        ),
        Resource::Volume => (
            "A volume on a drive. Deleting this object does not delete the volume: `hotbay volume delete`, or the end \
             of its claim, does.",
            of::<kinds::VolumeSpec>(),
            of::<kinds::VolumeStatus>(),
        ),
        Resource::Attachment => (
            "The use of a volume by a node.",
            of::<kinds::AttachmentSpec>(),
            of::<kinds::AttachmentStatus>(),
        ),
    };
    let mut schema = json!({
        "description": about,
        "type": "object",
        "properties": {
            "apiVersion": { "type": "string" },
            "kind": { "type": "string" },
            "metadata": { "type": "object" },
            "spec": wish(resource, spec),
            "status": with_record(without_unwritten(resource, status)),
        },
    });
    if resource == Resource::Registry {
        schema["x-kubernetes-validations"] = json!([{
            "rule": format!("self.metadata.name == '{REGISTRY_NAME}'"),
            "message": format!("there is one registry, named {REGISTRY_NAME}"),
        }]);
    }
    // Without these two a wish says nothing.
    if matches!(resource, Resource::Volume | Resource::Attachment) {
        schema["required"] = json!(["spec"]);
    }
    schema
}

/// The schema of a type, structural.
fn of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::openapi3();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    structural::make_structural(&mut schema);
    schema
}

/// What people must say, and what they cannot change.
fn wish(resource: Resource, mut spec: Value) -> Value {
    let required = match resource {
        Resource::Registry | Resource::StorageNode | Resource::Drive => json!([]),
        Resource::Volume => json!(["sizeBytes"]),
        Resource::Attachment => json!(["node", "volume"]),
    };
    spec["required"] = required;
    match resource {
        Resource::Registry | Resource::StorageNode | Resource::Drive => {}
        Resource::Volume => spec["properties"]["sizeBytes"]["minimum"] = json!(1),
        Resource::Attachment => {
            spec["x-kubernetes-validations"] = json!([{
                "rule": "self.volume == oldSelf.volume && self.node == oldSelf.node",
                "message": "volume and node cannot be changed: make another Attachment",
            }]);
        }
    }
    if spec["required"] == json!([])
        && let Some(spec) = spec.as_object_mut()
    {
        spec.remove("required");
    }
    spec
}

/// The fields of a status that are in the answers of the API alone: they follow from the memory of the leading
/// controller, and a write for each of their changes would be too many. See [`crate::view`] and
/// [`crate::store::beside`].
fn unwritten(resource: Resource) -> &'static [&'static str] {
    match resource {
        Resource::Drive => &[
            "/properties/freeBytes",
            "/properties/dirtyBytes",
            "/properties/stateHash",
            "/properties/autoAdd",
            "/properties/goal/properties/order",
        ],
        // Each use of a volume is an object of its own.
        Resource::Volume => &["/properties/attachments"],
        Resource::StorageNode => &["/properties/session", "/properties/silentSinceMs"],
        Resource::Registry | Resource::Attachment => &[],
    }
}

/// What is never written is not promised either.
fn without_unwritten(resource: Resource, mut status: Value) -> Value {
    for at in unwritten(resource) {
        let (fields, name) = at.rsplit_once('/').unwrap_or_default();
        if let Some(Value::Object(fields)) = status.pointer_mut(fields) {
            fields.remove(name);
        }
    }
    status
}

/// The public view with what the controller keeps beside it. Nothing is required: what is not known yet is not there.
fn with_record(mut status: Value) -> Value {
    if let Some(status) = status.as_object_mut() {
        status.remove("required");
    }
    // The word that tells the reasons apart is no field of the type, and so has no text of its own.
    if let Some(reason) = status.pointer_mut("/properties/denied/items/properties/reason") {
        reason["description"] =
            json!("Which reason it is. The fields beside it say more, as far as they apply.");
    }
    let properties = &mut status["properties"];
    properties["conditions"] = conditions();
    properties["observedGeneration"] = json!({
        "description": "The generation of the spec that the controller has last taken notice of.",
        "type": "integer",
        "format": "int64",
    });
    properties["id"] = json!({
        "description": "What identifies it, whatever this object is called.",
        "type": "string",
    });
    properties["term"] = json!({
        "description": "The term of the controller that wrote this status. One of a lower term writes no more.",
        "type": "object",
        "properties": {
            "number": { "description": "Grows with every controller that takes the lead.", "type": "integer",
                        "format": "int64", "minimum": 1 },
            "id": { "description": "Tells apart two terms of the same number.", "type": "string" },
        },
        "required": ["number", "id"],
    });
    properties["record"] = json!({
        "description": "What was decided: what a new controller goes on from. All else in this status follows from it. \
                        Changes by others are undone.",
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    });
    properties["checksum"] = json!({
        "description": "Of id, term and record, as a controller has written them. Tells its writes from edits by hand.",
        "type": "string",
    });
    status
}

fn conditions() -> Value {
    let text = |description: &str| json!({ "description": description, "type": "string" });
    json!({
        "description": "Where it stands, as conditions.",
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "properties": {
                "type": text("What the condition is about."),
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "reason": text("Why, in one word."),
                "message": text("Why, in words for people."),
                "lastTransitionTime": {
                    "description": "When the status last changed.",
                    "type": "string",
                    "format": "date-time",
                },
                "observedGeneration": {
                    "description": "The generation of the spec that this is about.",
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                },
            },
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(definition: &Value) -> &Value {
        &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    }

    #[test]
    fn every_schema_is_structural() {
        for definition in definitions() {
            let name = definition["metadata"]["name"].as_str().unwrap();
            assert_eq!(structural::faults(name, root(&definition)), Vec::<String>::new());
        }
    }

    /// What `kubectl explain` shows: no field without words, down to the last one.
    #[test]
    fn every_field_says_what_it_is() {
        fn silent(at: &str, schema: &Value) -> Vec<String> {
            let fields = schema["properties"].as_object().into_iter().flatten();
            let below = fields.flat_map(|(name, field)| {
                let at = format!("{at}.{name}");
                let own = field["description"].is_null().then(|| at.clone());
                own.into_iter()
                    .chain(silent(&at, field))
                    .chain(silent(&at, &field["items"]))
                    .collect::<Vec<_>>()
            });
            below.collect()
        }
        let ours =
            |part: &str, definition: &Value| silent(part, &root(definition)["properties"][part]);
        for definition in definitions() {
            let found = [ours("spec", &definition), ours("status", &definition)].concat();
            assert_eq!(found, Vec::<String>::new(), "{}", definition["metadata"]["name"]);
        }
    }

    /// That all that is written is in the schemas, the tests of `view` show.
    #[test]
    fn only_fields_that_are_written_are_promised() {
        for (resource, definition) in Resource::ALL.into_iter().zip(definitions()) {
            let status = &root(&definition)["properties"]["status"];
            for at in unwritten(resource) {
                assert!(status.pointer(at).is_none(), "{resource:?} {at}");
            }
        }
        // They are fields of the kinds: none of them is misspelt here.
        for (resource, kind) in [
            (Resource::StorageNode, of::<kinds::StorageNodeStatus>()),
            (Resource::Drive, of::<kinds::DriveStatus>()),
            (Resource::Volume, of::<kinds::VolumeStatus>()),
        ] {
            for at in unwritten(resource) {
                assert!(kind.pointer(at).is_some(), "{resource:?} {at}");
            }
        }
    }

    #[test]
    fn fixed_words_are_checked_by_the_server() {
        let all = definitions();
        let status = |resource: Resource| {
            let at = Resource::ALL.iter().position(|other| *other == resource).unwrap();
            root(&all[at])["properties"]["status"]["properties"].clone()
        };
        let drive = status(Resource::Drive);
        assert_eq!(drive["media"]["enum"], json!(["NVMe", "SSD", "HDD", "File", "Unknown"]));
        assert_eq!(drive["goal"]["properties"]["wish"]["enum"], json!(["attach", "detach"]));
        assert_eq!(drive["transport"]["enum"].as_array().map(Vec::len), Some(10));
        let denied = &drive["denied"]["items"];
        assert!(
            denied["properties"]["reason"]["enum"].as_array().unwrap().contains(&json!("Mounted"))
        );
        assert_eq!(status(Resource::Volume)["state"]["enum"].as_array().map(Vec::len), Some(6));
        assert_eq!(status(Resource::Attachment)["state"]["enum"].as_array().map(Vec::len), Some(3));
    }
}

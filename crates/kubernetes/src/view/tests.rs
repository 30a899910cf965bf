//! Records of every kind become objects that the schemas take, and come back as they were.

use std::collections::BTreeMap;
use std::sync::Arc;

use hotbay_core::cluster::Allocation;
use hotbay_core::device::{Denied, Details, DeviceKind, Media, Observed, Partition, Transport};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{
    AttachmentId, CertificateNumber, ClusterId, DriveId, MachineId, NodeId, TermId, VolumeId,
};
use hotbay_core::label::extents::Claim;
use hotbay_core::order::Generation;
use hotbay_core::volume::class::Class;
use hotbay_core::volume::{Epoch, Operational, Segment};
use hotbay_core::wipe::{Content as Wiped, Wipe};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::crd::definitions;
use crate::object::{self, Content};
use crate::resource::Resource;

/// The server keeps whole numbers up to this.
fn number() -> impl Strategy<Value = u64> {
    0..=u64::try_from(i64::MAX).unwrap()
}

fn text() -> impl Strategy<Value = String> {
    "[ -~äé√\"\\\\]{0,12}"
}

fn node_name() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9]{0,8})"
}

fn registry() -> impl Strategy<Value = Record> {
    let terms = proptest::collection::vec((1..1_000u64, any::<u128>()), 0..4);
    (any::<u128>(), terms, number()).prop_map(|(cluster, terms, certificate)| {
        let term = |(number, id)| Term { number, id: TermId::from_bits(id) };
        Record::Registry(RegistryRecord {
            cluster: ClusterId::from_bits(cluster),
            terms: terms.into_iter().map(term).collect(),
            newest_certificate: CertificateNumber::from_number(certificate),
        })
    })
}

fn node_record() -> impl Strategy<Value = Record> {
    let revoked = proptest::collection::btree_map(node_name(), number(), 0..3);
    (any::<(u128, u128, bool, bool, bool)>(), node_name(), revoked).prop_map(
        |(ids, name, revoked)| {
            let (id, machine, purged, cordoned, recovered) = ids;
            let revoke = |(name, number): (String, u64)| {
                (name.parse().unwrap(), CertificateNumber::from_number(number))
            };
            Record::Node(NodeRecord {
                id: NodeId::from_bits(id),
                name: name.parse().unwrap(),
                machine: MachineId::from_bits(machine),
                purged,
                revoked: revoked.into_iter().map(revoke).collect(),
                labels: Default::default(),
                cordoned,
                recovered,
            })
        },
    )
}

fn observed() -> impl Strategy<Value = Observed> {
    let denied = select(vec![
        vec![],
        vec![Denied::Mounted { at: vec!["/data".to_owned()] }, Denied::ReadOnly],
        vec![Denied::TooSmall { size_bytes: 1, least_bytes: 2 }, Denied::NotEmpty { at_byte: 7 }],
        vec![Denied::ForeignCluster { cluster: ClusterId::from_bits(5) }],
    ]);
    let kind = select(vec![DeviceKind::Block, DeviceKind::Loop, DeviceKind::File]);
    let media = select(vec![Media::Nvme, Media::Ssd, Media::Hdd, Media::File, Media::Unknown]);
    (text(), proptest::option::of(text()), kind, media, number(), any::<u32>(), denied).prop_map(
        |(path, bay, kind, media, size_bytes, block_bytes, denied)| Observed {
            evidence: Evidence { serial: bay.clone(), ..Evidence::default() },
            details: Box::new(Details {
                vendor: bay.clone(),
                transport: Transport::Virtio,
                partitions: vec![Partition { name: path.clone(), size_bytes }],
                mounts: vec![path.clone()],
                ..Details::default()
            }),
            path,
            bay,
            kind,
            media,
            size_bytes,
            block_bytes,
            label: None,
            denied,
        },
    )
}

fn drive_record() -> impl Strategy<Value = Record> {
    let states =
        [State::Unknown, State::Attaching, State::Attached, State::Closing, State::Detached];
    let volumes = proptest::collection::btree_map(any::<u128>(), number(), 0..4);
    let flags = any::<(bool, bool, bool, bool)>();
    let numbers = (number(), number(), number());
    (any::<(u128, u128)>(), text(), observed(), select(states.to_vec()), flags, numbers, volumes)
        .prop_map(|((id, node), name, observed, state, flags, numbers, volumes)| {
            let generation = Generation::from_number(numbers.0);
            let wipe = Wipe { generation, contents: vec![Wiped::Member { of: name.clone() }] };
            let placed = |(volume, start_bytes)| {
                let part = Segment { start_bytes, length_bytes: 4096 };
                let at = Allocation { parts: vec![part], exclusive: flags.3 };
                (VolumeId::from_bits(volume), at)
            };
            Record::Drive(Box::new(DriveRecord {
                id: DriveId::from_bits(id),
                name,
                node: NodeId::from_bits(node),
                observed: Arc::new(observed),
                generation,
                state,
                removal_wanted: flags.0,
                removed_alone: flags.1,
                take_over: flags.2,
                wipe: flags.3.then(|| Box::new(wipe)),
                added_bytes: numbers.1,
                volumes: volumes.into_iter().map(placed).collect(),
                since_ms: numbers.2,
                asked_by: "admin".to_owned(),
            }))
        })
}

fn volume_record() -> impl Strategy<Value = Record> {
    let states = vec![
        VolumeState::Pending,
        VolumeState::Created,
        VolumeState::Deleting,
        VolumeState::Deleted,
        VolumeState::Lost,
    ];
    let operational = select(vec![Operational::Operative, Operational::Missing]);
    let maps = proptest::collection::btree_map(text(), text(), 0..3);
    (any::<u128>(), "[A-Za-z0-9 .-]{1,20}", (number(), number()), select(states), operational, maps)
        .prop_map(|(id, name, numbers, state, operational, maps)| {
            let texts: BTreeMap<String, String> = maps;
            Record::Volume(Box::new(VolumeRecord {
                id: VolumeId::from_bits(id),
                name: name.parse().unwrap(),
                size_bytes: numbers.0,
                state,
                epoch: Epoch::from_number(numbers.1),
                class: Class { max_shares: 1, ..Class::default() },
                parameters: texts.clone(),
                claim: Claim::new("default", "data-db-0").ok(),
                annotations: texts,
                operational,
                since_ms: numbers.0,
                asked_by: String::new(),
            }))
        })
}

fn attachment_record() -> impl Strategy<Value = Record> {
    let states =
        vec![AttachmentState::Attaching, AttachmentState::Attached, AttachmentState::Detaching];
    (any::<(u128, u128, u128, bool)>(), number(), number(), select(states)).prop_map(
        |((id, volume, node, read_only), epoch, since_ms, state)| {
            Record::Attachment(AttachmentRecord {
                id: AttachmentId::from_bits(id),
                volume: VolumeId::from_bits(volume),
                node: NodeId::from_bits(node),
                epoch: Epoch::from_number(epoch),
                state,
                read_only,
                since_ms,
            })
        },
    )
}

fn any_record() -> impl Strategy<Value = Record> {
    prop_oneof![registry(), node_record(), drive_record(), volume_record(), attachment_record()]
}

/// As the registry's codec has it.
fn stored(record: &Record) -> (Key, Vec<u8>) {
    let (kind, id, value) = match record {
        Record::Registry(record) => (Kind::Registry, 0, serde_json::to_vec(record)),
        Record::Node(record) => (Kind::Node, record.id.to_bits(), serde_json::to_vec(record)),
        Record::Drive(record) => (Kind::Drive, record.id.to_bits(), serde_json::to_vec(record)),
        Record::Volume(record) => (Kind::Volume, record.id.to_bits(), serde_json::to_vec(record)),
        Record::Attachment(record) => {
            (Kind::Attachment, record.id.to_bits(), serde_json::to_vec(record))
        }
    };
    (Key { kind, id }, value.unwrap())
}

/// Where a value is not what its schema says, also where the server would drop it without a word.
fn faults(at: &str, schema: &Value, value: &Value) -> Vec<String> {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return Vec::new();
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        _ => false,
    };
    let known = schema["enum"].as_array().is_none_or(|words| words.contains(value));
    let mut found = Vec::new();
    if !fits || !known {
        found.push(format!("{at}: {value}"));
    }
    for inner in value.as_array().into_iter().flatten() {
        found.extend(faults(&format!("{at}[]"), &schema["items"], inner));
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        match schema["properties"].get(name).or(schema.get("additionalProperties")) {
            Some(schema) => found.extend(faults(&at, schema, inner)),
            None => found.push(format!("{at} is not in the schema")),
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap()).is_none() {
            found.push(format!("{at} has no {name}"));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_record_becomes_an_object_and_comes_back(record in any_record()) {
        let (key, value) = stored(&record);
        let resource = Resource::of(key.kind);
        prop_assert_eq!(Record::read(key.kind, &value), Some(record.clone()));
        let mut names = Names::default();
        names.learn(&Write::Put { key, value: value.clone() });
        let json: Value = serde_json::from_slice(&value).unwrap();
        prop_assert_eq!(object::unfit(&json), None);
        let term = Some(Term { number: 3, id: TermId::from_bits(9) });
        let (status, _) = object::status(key, term, &json, view(Some(&record), &names));
        let spec = spec(key.kind, Some(&record), &names);

        let at = Resource::ALL.iter().position(|other| *other == resource).unwrap();
        let definition = &definitions()[at];
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
        prop_assert_eq!(faults("status", &schema["status"], &status), Vec::<String>::new());
        // A size of zero cannot be asked for; here it is drawn.
        prop_assert_eq!(faults("spec", &schema["spec"], &spec), Vec::<String>::new());

        let object = serde_json::from_str(&json!({ "status": status }).to_string()).unwrap();
        let Content::Record { key: read_key, record: read, .. } = object::content(resource, &object)
        else {
            return Err(TestCaseError::fail("it does not read back"));
        };
        prop_assert_eq!(read_key, key);
        prop_assert_eq!(Record::read(key.kind, read.to_string().as_bytes()), Some(record));
    }
}

#[test]
fn what_people_see_names_what_other_records_are() {
    let learn = |names: &mut Names, record: Record| {
        let (key, value) = stored(&record);
        names.learn(&Write::Put { key, value });
        record
    };
    let runner = &mut proptest::test_runner::TestRunner::deterministic();
    let mut one = |strategy: BoxedStrategy<Record>| strategy.new_tree(runner).unwrap().current();
    let (Record::Node(node), Record::Volume(mut volume), Record::Attachment(mut attachment)) = (
        one(node_record().boxed()),
        one(volume_record().boxed()),
        one(attachment_record().boxed()),
    ) else {
        unreachable!("as they were asked for")
    };
    let Record::Drive(mut drive) = one(drive_record().boxed()) else {
        unreachable!("as asked for")
    };
    drive.node = node.id;
    drive.name = "d-1".to_owned();
    drive.state = State::Attached;
    drive.since_ms = 1_763_300_000_000;
    drive.volumes = BTreeMap::from([(volume.id, Allocation::default())]);
    volume.name = "pvc-1".parse().unwrap();
    (attachment.volume, attachment.node) = (volume.id, node.id);
    let names = &mut Names::default();
    let node_name = node.name.to_string();
    learn(names, Record::Node(node));
    let volume = learn(names, Record::Volume(volume));
    let drive = learn(names, Record::Drive(drive));
    let attachment = learn(names, Record::Attachment(attachment));

    let seen = view(Some(&drive), names);
    assert_eq!((&seen["node"], &seen["volumes"]), (&json!(node_name), &json!(["pvc-1"])));
    let condition = &seen["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("InOperation"), &json!("True")));
    assert_eq!(condition["lastTransitionTime"], "2025-11-16T13:33:20Z");
    let seen = view(Some(&volume), names);
    assert_eq!((&seen["drive"], &seen["node"]), (&json!("d-1"), &json!(node_name)));
    let seen = view(Some(&attachment), names);
    assert_eq!((&seen["volume"], &seen["node"]), (&json!("pvc-1"), &json!(node_name)));
    assert_eq!(names.wanted(Some(&attachment)), Some(format!("pvc-1-{node_name}")));
    assert_eq!(spec(Kind::Attachment, Some(&attachment), names)["node"], json!(node_name));
}

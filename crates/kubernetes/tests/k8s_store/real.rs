//! What only a real server has.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use hotbay_core::ids::{ClusterId, TermId};
use hotbay_kubernetes::CustomResourceStore;
use hotbay_registry::{Key, Kind, Registry, Store, StoreError, Surroundings};

use serde_json::json;

use crate::behaviour::{Place, Records, apply, key, load, put};
use crate::people::People;
use crate::piped::fill;
use crate::server;
use crate::server::NAMES;

/// More objects than fit one page.
#[test]
fn many_records_are_loaded_from_many_pages() {
    let server = server();
    let mut store = server.open();
    let writes: Vec<_> = (0..1_100).map(|id| put(key(Kind::Drive, id << 96), "{}")).collect();
    fill(&mut store, &writes);
    let mut records = Records::new();
    apply(&mut records, &writes);
    assert_eq!(load(&mut server.open()), records);
}

/// While the server does not answer nothing is durable; when it does again, the same commit is.
#[test]
fn a_server_that_stops_and_comes_back() {
    let server = server();
    let mut store = server.open();
    let drive = key(Kind::Drive, 1);
    store.commit(&[put(drive, r#"{"a":1}"#)]).unwrap();
    server.plane().stop_api_server().unwrap();
    let error = store.commit(&[put(drive, r#"{"a":2}"#)]).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }) && error.retryable(), "{error}");
    server.plane().start_api_server().unwrap();
    store.commit(&[put(drive, r#"{"a":2}"#)]).unwrap();
    assert_eq!(store.read(&drive).unwrap().unwrap(), br#"{"a":2}"#);
}

/// It keeps its connections and says nothing: the call runs out of time, and what was sent may still be carried out
/// when the server goes on. The same commit once more is durable, once.
#[test]
fn a_server_that_hangs_and_goes_on() {
    let server = server();
    let mut store = server.open();
    let (drive, volume) = (key(Kind::Drive, 1), key(Kind::Volume, 2));
    store.commit(&[put(drive, r#"{"a":1}"#)]).unwrap();
    let writes = [put(volume, r#"{"v":1}"#), put(drive, r#"{"a":2}"#)];
    server.plane().pause_api_server().unwrap();
    let error = store.commit(&writes).unwrap_err();
    server.plane().resume_api_server().unwrap();
    let StoreError::Unreachable { source, .. } = &error else { panic!("{error}") };
    assert!(source.to_string().contains("no answer within 10 s"), "{error}: {source}");
    assert!(error.retryable(), "{error}");
    store.commit(&writes).unwrap();
    let mut records = Records::new();
    apply(&mut records, &writes);
    assert_eq!(load(&mut server.open()), records);
}

/// The server takes no word that is not one of the fixed ones, and no second registry.
#[test]
fn the_server_refuses_what_the_schemas_do() {
    let server = server();
    let mut store = server.open();
    store.commit(&[put(key(Kind::Drive, 1), "{}")]).unwrap();
    let patch = |patch: &str| {
        server.kubectl().run(&[
            "patch",
            "hbd",
            "d-00000000",
            "--subresource=status",
            "--type=merge",
            "-p",
            patch,
        ])
    };
    assert!(patch(r#"{"status":{"media":"SSD"}}"#).is_ok());
    let error = patch(r#"{"status":{"media":"Tape"}}"#).unwrap_err().to_string();
    assert!(error.contains("Unsupported value"), "{error}");
    let other = "{apiVersion: hotbay.dev/v1alpha1, kind: Registry, metadata: {name: other}}";
    let error = server.kubectl().apply(other).unwrap_err().to_string();
    assert!(error.contains("there is one registry"), "{error}");
    let nothing = "{apiVersion: hotbay.dev/v1alpha1, kind: Volume, metadata: {name: v}, spec: {}}";
    let error = server.kubectl().apply(nothing).unwrap_err().to_string();
    assert!(error.contains("sizeBytes"), "{error}");
}

/// What people see with kubectl.
#[test]
fn kubectl_explains_and_lists() {
    let server = server();
    let explained = server.kubectl().run(&["explain", "drive.status.goal"]).unwrap();
    assert!(explained.contains("Orders to agents come from this"), "{explained}");
    server.open().commit(&[put(key(Kind::Drive, 1), "{}")]).unwrap();
    let list = server.kubectl().run(&["get", "hbd"]).unwrap();
    assert!(list.contains("MEDIA") && list.contains("d-00000000"), "{list}");
    let all = server.kubectl().run(&["get", "hotbay"]).unwrap();
    assert!(all.contains("drive.hotbay.dev/d-00000000"), "{all}");
}

/// A node with a drive, a volume on it and who uses that, as people see them.
#[test]
fn records_of_every_kind_are_taken_whole() {
    let server = server();
    let id = |number: u32| format!("{number:032x}");
    let records = [
        (
            Kind::Node,
            1,
            json!({ "id": id(1), "name": "node-a", "machine": id(9), "purged": false,
                                "revoked": {}, "labels": { "rack": "r1" } }),
        ),
        (
            Kind::Volume,
            3,
            json!({
                "id": id(3), "name": "pvc-1", "size_bytes": 4096, "state": "Created", "epoch": 2,
                "class": { "sharing": "Shared", "spread": "None", "erase": "Zeroes", "maxShares": 1 },
                "parameters": { "media": "ssd" }, "since_ms": 1_763_300_000_000_u64, "asked_by": "csi",
            }),
        ),
        (
            Kind::Drive,
            2,
            json!({
                "id": id(2), "name": "d-2", "node": id(1), "generation": 1, "state": "Attached",
                "removal_wanted": false, "removed_alone": false, "since_ms": 1_763_300_000_000_u64,
                "asked_by": "admin",
                "observed": { "evidence": { "serial": "S1", "model": "M1" }, "path": "/dev/sdb",
                              "kind": "Block", "media": "SSD", "sizeBytes": 1_u64 << 40, "blockBytes": 512,
                              "denied": [{ "reason": "Mounted", "at": ["/data"] }] },
                "volumes": [{ "volume": id(3),
                              "at": { "parts": [{ "start_bytes": 1 << 20, "length_bytes": 4096 }] } }],
            }),
        ),
        (
            Kind::Attachment,
            4,
            json!({ "id": id(4), "volume": id(3), "node": id(1), "epoch": 2,
                                      "state": "Attached", "read_only": false, "since_ms": 1 }),
        ),
    ];
    let writes: Vec<_> =
        records.iter().map(|(kind, id, value)| put(key(*kind, *id), &value.to_string())).collect();
    server.open().commit(&writes).unwrap();
    let mut expected = Records::new();
    apply(&mut expected, &writes);
    let mut store = server.open();
    assert_eq!(load(&mut store), expected);

    let columns = |kind: &str| {
        let list = server.kubectl().run(&["get", kind, "--no-headers", "-o", "wide"]).unwrap();
        list.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let drive = columns("hbd");
    assert_eq!(drive[..6], ["d-2", "node-a", "/dev/sdb", "SSD", "1099511627776", "AttachedDevice"]);
    assert_eq!(columns("hbv")[..5], ["pvc-1", "Created", "4096", "node-a", "d-2"]);
    assert_eq!(columns("hba")[..4], ["pvc-1-node-a", "pvc-1", "node-a", "Attached"]);
    let wait = ["wait", "--for=condition=InOperation", "--timeout=5s", "hbd/d-2"];
    server.kubectl().run(&wait).unwrap();
    let node = People::on(&server).only("storagenodes");
    assert_eq!(node["spec"]["labels"], json!({ "rack": "r1" }));
}

/// The registry itself, on this store: it takes the lead twice, and the second is of a higher term.
#[test]
fn a_registry_takes_the_lead_and_the_next_one_succeeds_it() {
    let server = server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _on_it = runtime.enter();
    let surroundings = |term| Surroundings {
        cluster: ClusterId::from_bits(1),
        term: TermId::from_bits(term),
        wall_ms: || 0,
        checkpoint: |_| {},
        auto_add: Default::default(),
    };
    let start = |store: CustomResourceStore, term| Registry::start(store, surroundings(term));
    let (first, mut ended) = start(server.open(), 10).unwrap();
    let (second, _) = start(server.open(), 20).unwrap();
    let number = |registry: &Registry| {
        let registry = registry.clone();
        runtime
            .block_on(async move { registry.read(|cluster| cluster.term().number).await.unwrap() })
    };
    assert_eq!((number(&first), number(&second)), (1, 2));
    let registry = People::on(&server).only("registries");
    assert_eq!(registry["status"]["terms"], 2);
    // The first one hears of it with its next write.
    let node: hotbay_core::ids::NodeName = "node-a".parse().unwrap();
    let by = hotbay_core::ids::CertificateNumber::default();
    let certify = async {
        let answer = first.certify(node, by);
        tokio::time::timeout(Duration::from_secs(20), answer).await.unwrap()
    };
    assert!(runtime.block_on(certify).is_err());
    let error = ended.try_recv().unwrap();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    let record = server.open().read(&Key { kind: Kind::Registry, id: 0 }).unwrap().unwrap();
    assert!(!String::from_utf8(record).unwrap().contains("\"newest_certificate\":1"));
}

/// The story: a test that takes the definitions away failed while they were gone, and every test after it failed as
/// well: each began by listing objects of kinds that nobody knew.
#[test]
fn what_a_failed_test_leaves_is_mended_by_the_next() {
    let server = server();
    let fails = || {
        let server = server.clone();
        let people = People::on(&server);
        people.create("volumes", "Volume", "held", json!({ "sizeBytes": 4096 }));
        people.edit("volumes", |volume| {
            volume["metadata"]["finalizers"] = json!(["example.com/held"]);
        });
        let delete = [&["delete", "--wait=false"][..], &NAMES].concat();
        server.kubectl().run(&delete).unwrap();
        server.plane().stop_api_server().unwrap();
        std::panic::resume_unwind(Box::new("a test that fails"));
    };
    assert!(catch_unwind(AssertUnwindSafe(fails)).is_err());
    assert!(server.is_broken());
    server.make_ready();
    let people = People::on(&server);
    assert_eq!(people.count(), 0);
    people.create("volumes", "Volume", "next", json!({ "sizeBytes": 4096 }));
    assert!(!server.is_broken());
}

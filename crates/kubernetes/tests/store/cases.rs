//! Faults at every call, processes that end between any two, and people who change objects meanwhile.

use hotbay_kubernetes::CustomResourceStore;
use hotbay_registry::{Key, Kind, Store, StoreError, Write};
use serde_json::{Value, json};

use crate::behaviour::{Place, Records, apply, key, load, put};
use crate::faults::{Fault, Faults};
use crate::people::People;
use crate::piped::Piped;
use crate::{FAULTS, Server, server};

const NODE: Key = Key { kind: Kind::Node, id: 1 };
const DRIVE: Key = Key { kind: Kind::Drive, id: 2 };
pub(crate) const VOLUME: Key = Key { kind: Kind::Volume, id: 3 };
const ATTACHMENT: Key = Key { kind: Kind::Attachment, id: 4 };

/// The first records of a volume and of its use, which are about to be followed by others.
pub(crate) fn pending() -> Write {
    let record = json!({
        "id": format!("{:032x}", VOLUME.id), "name": "pvc-1", "size_bytes": 4096, "state": "Pending", "epoch": 0,
        "class": { "sharing": "Shared", "spread": "None", "erase": "Zeroes", "maxShares": 1 },
        "parameters": {}, "since_ms": 1, "asked_by": "csi",
    });
    put(VOLUME, &record.to_string())
}

fn attaching() -> Write {
    let id = |key: Key| format!("{:032x}", key.id);
    let record = json!({ "id": id(ATTACHMENT), "volume": id(VOLUME), "node": id(NODE), "epoch": 1,
                         "state": "Attaching", "read_only": false, "since_ms": 1 });
    put(ATTACHMENT, &record.to_string())
}

/// The life of a volume, as the registry would write it: actions of one to three records.
fn life() -> Vec<Vec<Write>> {
    let step = |key, number: u32| put(key, &format!(r#"{{"step":{number}}}"#));
    vec![
        vec![step(NODE, 1), step(DRIVE, 1)],
        vec![pending(), step(DRIVE, 2)],
        vec![step(VOLUME, 3), attaching()],
        vec![step(ATTACHMENT, 4)],
        vec![Write::Delete { key: ATTACHMENT }],
        vec![step(VOLUME, 5), step(DRIVE, 5), Write::Delete { key: VOLUME }],
    ]
}

/// Every object is a record, and every record one object.
fn assert_no_strays(server: &Server, records: &Records, place: &str) {
    let objects = People::on(server).count();
    assert_eq!(objects, records.len(), "{place}: objects and records");
}

/// Whatever one call meets, nothing is lost and nothing is doubled, and nobody above hears of it.
#[test]
fn one_fault_is_survived_wherever_it_is() {
    let faultless = Faults::default();
    run_life(&server(), &faultless, "no fault");
    let calls = faultless.calls();
    assert!(calls > 15, "{calls} calls");
    for fault in FAULTS {
        for call in 0..calls {
            let faults = Faults::at(call, fault);
            run_life(&server(), &faults, &format!("{fault:?} at call {call}"));
            assert!(faults.was_met(), "{fault:?} at call {call}");
        }
    }
}

fn run_life(server: &Server, faults: &Faults, place: &str) {
    let mut store = server.open_with(faults);
    let mut records = load(&mut store);
    for action in life() {
        store.commit(&action).unwrap_or_else(|error| panic!("{place}: {error:?}"));
        apply(&mut records, &action);
    }
    drop(store);
    assert_eq!(load(&mut server.open()), records, "{place}");
    assert_no_strays(server, &records, place);
}

/// A process that ends at any call leaves a state with a first part of its last action; the next one finishes it.
#[test]
fn a_process_that_ends_at_any_call_leaves_a_first_part_of_its_action() {
    let faultless = Faults::default();
    run_life(&server(), &faultless, "no cut");
    for call in 0..faultless.calls() {
        let place = format!("cut at call {call}");
        let (server, faults) = (server(), Faults::at(call, Fault::Cut));
        let mut store = server.open_with(&faults);
        if store.load().is_err() {
            // It ended before it had begun.
            continue;
        }
        let mut records = Records::new();
        let mut left = life().into_iter();
        let cut = left.find(|action| match store.commit(action) {
            Ok(()) => {
                apply(&mut records, action);
                false
            }
            Err(error) => {
                assert!(matches!(error, StoreError::Refused { .. }), "{place}: {error:?}");
                assert!(error.retryable());
                true
            }
        });
        let cut = cut.unwrap_or_else(|| panic!("{place}: nothing failed"));
        drop(store);

        let mut store = server.open();
        let found = load(&mut store);
        let first_parts = (0..=cut.len()).map(|length| {
            let mut part = records.clone();
            apply(&mut part, &cut[..length]);
            part
        });
        assert!(first_parts.collect::<Vec<_>>().contains(&found), "{place}: {found:?}");
        for action in std::iter::once(cut).chain(left) {
            store.commit(&action).unwrap();
            apply(&mut records, &action);
        }
        assert_eq!(load(&mut store), records, "{place}");
        assert_no_strays(&server, &records, &place);
    }
}

/// A commit that failed is made again by the same store, as the registry does.
#[test]
fn a_commit_that_failed_can_be_made_again() {
    let (server, people) = with_drive();
    let mut store = server.open();
    load(&mut store);
    people.delete_definitions();
    let error = store.commit(&[put(DRIVE, r#"{"step":2}"#)]).unwrap_err();
    assert!(error.retryable() && error.to_string().contains("hotbay crd"), "{error}");
    people.restore_definitions();
    store.commit(&[put(DRIVE, r#"{"step":2}"#)]).unwrap();
    assert_eq!(store.read(&DRIVE).unwrap().unwrap(), br#"{"step":2}"#);
}

fn with_drive() -> (Server, People) {
    let server = server();
    server.open().commit(&[put(DRIVE, r#"{"step":1}"#)]).unwrap();
    let people = People::on(&server);
    (server, people)
}

/// What people say in labels, annotations and the spec stays, and does not keep the registry from writing.
#[test]
fn edits_of_people_stay() {
    let (server, people) = with_drive();
    let mut store = server.open();
    load(&mut store);
    people.edit("drives", |drive| {
        drive["metadata"]["annotations"] = json!({ "example.com/note": "mine" });
        drive["spec"]["inOperation"] = json!(true);
    });
    store.commit(&[put(DRIVE, r#"{"step":2}"#)]).unwrap();
    let drive = people.only("drives");
    assert_eq!(drive["metadata"]["annotations"]["example.com/note"], "mine");
    assert_eq!(drive["spec"]["inOperation"], true);
    assert_eq!(drive["status"]["record"], json!({ "step": 2 }));
    // The wish was not looked at: nobody says that it was.
    assert_eq!(drive["status"]["observedGeneration"], 1);
    assert_eq!(drive["metadata"]["generation"], 2);
}

#[test]
fn a_status_changed_by_hand_is_repaired_by_the_next_write() {
    for change in [
        (|drive| drive["status"]["record"]["step"] = json!(7)) as fn(&mut Value),
        |drive| drive["status"] = json!({}),
        |drive| drive["status"]["id"] = json!("nonsense"),
        |drive| drive["status"]["term"] = json!({ "number": 1_000_000, "id": "0".repeat(32) }),
    ] {
        let (server, people) = with_drive();
        let mut store = server.open();
        load(&mut store);
        people.edit_status("drives", change);
        store.commit(&[put(DRIVE, r#"{"step":2}"#)]).unwrap();
        assert_eq!(people.only("drives")["status"]["record"], json!({ "step": 2 }));
        assert_eq!(load(&mut server.open()).len(), 1);
    }
}

/// What was changed by hand while no controller ran is nobody's decision. Without the registry's own record nothing
/// goes.
#[test]
fn a_status_changed_by_hand_is_not_loaded() {
    let (server, people) = with_drive();
    server.open().commit(&[put(key(Kind::Registry, 0), "{}")]).unwrap();
    people.edit_status("drives", |drive| drive["status"]["record"]["step"] = json!(7));
    let mut store = server.open();
    assert_eq!(load(&mut store).len(), 1, "the registry alone");
    people.edit_status("registries", |registry| registry["status"]["record"] = json!({ "x": 1 }));
    let error = server.open().load().unwrap_err();
    assert!(matches!(error, StoreError::Edited { .. }) && !error.retryable(), "{error}");
}

/// Deleting is never consent: what was deleted by hand is written again.
#[test]
fn an_object_deleted_by_hand_is_made_again_with_the_next_write() {
    let (server, people) = with_drive();
    let mut store = server.open();
    store.commit(&[put(VOLUME, r#"{"step":1}"#)]).unwrap();
    people.delete("drives");
    people.delete("volumes");
    assert_eq!(people.count(), 1, "the finalizer holds the volume");
    store.commit(&[put(DRIVE, r#"{"step":2}"#), put(VOLUME, r#"{"step":2}"#)]).unwrap();
    assert_eq!(people.count(), 2);
    assert_eq!(load(&mut server.open()).len(), 2);
    store.commit(&[Write::Delete { key: VOLUME }]).unwrap();
    assert_eq!(people.count(), 1);
}

/// Somebody else's finalizer holds the object, and what it stood for is gone.
#[test]
fn a_deleted_record_that_others_hold_on_to_is_no_record() {
    let server = server();
    let people = People::on(&server);
    let mut store = server.open();
    store.commit(&[put(VOLUME, "{}")]).unwrap();
    people.edit("volumes", |volume| {
        let finalizers = volume["metadata"]["finalizers"].as_array_mut().unwrap();
        finalizers.push(json!("example.com/mine"));
    });
    store.commit(&[Write::Delete { key: VOLUME }]).unwrap();
    assert_eq!(people.count(), 1);
    assert_eq!(load(&mut server.open()), Records::new());
    // A new volume of that name is another object.
    store.commit(&[put(key(Kind::Volume, 9), "{}")]).unwrap();
    assert_eq!(people.count(), 2);
}

/// What a person made with kubectl, or a controller that ended before it wrote the status, is a wish; it becomes the
/// object of the record that has its name.
#[test]
fn an_object_without_a_record_is_taken_for_the_record_of_its_name() {
    let server = server();
    let people = People::on(&server);
    people.create("volumes", "Volume", "v-00000000", json!({ "sizeBytes": 5 }));
    people.create("volumes", "Volume", "mine", json!({ "sizeBytes": 5 }));
    let mut store = server.open();
    assert_eq!(load(&mut store), Records::new());
    store.commit(&[put(VOLUME, "{}")]).unwrap();
    assert_eq!(people.count(), 2);
    let volume = people.named("volumes", "v-00000000");
    assert_eq!(volume["status"]["id"], json!(format!("{:032x}", VOLUME.id)));
    assert_eq!(volume["spec"]["sizeBytes"], 5);
    assert_eq!(volume["metadata"]["finalizers"], json!(["hotbay.dev/controller"]));
    // Its short name is taken now: the next one gets a longer one.
    store.commit(&[put(key(Kind::Volume, 4), "{}")]).unwrap();
    assert_eq!(people.count(), 3);
    assert_eq!(load(&mut server.open()).len(), 2);
}

/// It is durable with the one call that makes the object, and is no record in a copy of it.
#[test]
fn a_record_that_passes_comes_with_its_object() {
    let (server, faults) = (server(), Faults::default());
    let (mut store, people) = (server.open_with(&faults), People::on(&server));
    load(&mut store);
    store.commit(&[pending()]).unwrap();
    assert_eq!(faults.writes(), 1);
    let mut made = people.only("volumes");
    assert_eq!(made["status"], Value::Null);
    let mut records = Records::new();
    apply(&mut records, &[pending()]);
    assert_eq!(load(&mut server.open()), records, "the next controller has it");

    let next = put(VOLUME, r#"{"step":2}"#);
    store.commit(std::slice::from_ref(&next)).unwrap();
    assert_eq!(faults.writes(), 2);
    apply(&mut records, &[next]);
    assert_eq!(load(&mut server.open()), records, "the status counts");
    // Wiped: the first record is past, whatever is left of it.
    people.edit_status("volumes", |object| object["status"] = json!({}));
    assert_eq!(load(&mut server.open()), Records::new());
    store.commit(&[put(VOLUME, r#"{"step":3}"#)]).unwrap();
    store.commit(&[Write::Delete { key: VOLUME }]).unwrap();
    assert_eq!(people.count(), 0);

    // As `kubectl get -o yaml` shows it, with and without who made it.
    for kept in [true, false] {
        let metadata = made["metadata"].as_object_mut().unwrap();
        metadata.remove("uid");
        metadata.remove("resourceVersion");
        metadata.retain(|field, _| kept || field != "managedFields");
        people.succeed(http::Method::POST, "volumes", &made);
        assert_eq!(load(&mut server.open()), Records::new(), "a copy");
        people.edit("volumes", |object| object["metadata"]["finalizers"] = json!([]));
        people.delete("volumes");
    }
}

/// What is written: two for a new object whose record stays, one for a change, two to delete what has a finalizer; and
/// one for a drive that many volumes are placed on at the same time.
#[test]
fn writes_are_few() {
    let faults = Faults::default();
    let server = server();
    let mut store: CustomResourceStore = server.open_with(&faults);
    load(&mut store);
    let wrote = |store: &mut CustomResourceStore, writes: &[Write], each: usize| {
        let before = faults.writes();
        let mut piped = Piped::to(store);
        piped.add(writes, each);
        piped.run().unwrap();
        faults.writes() - before
    };
    // Ids that differ where names are made of them.
    let volume = |id: u128| key(Kind::Volume, id << 96);
    assert_eq!(wrote(&mut store, &[put(DRIVE, "{}")], 1), 2);
    assert_eq!(wrote(&mut store, &[put(DRIVE, r#"{"a":1}"#)], 1), 1);
    let writes: Vec<_> = (10..30)
        .flat_map(|id| [put(volume(id), "{}"), put(DRIVE, &format!(r#"{{"a":{id}}}"#))])
        .collect();
    assert_eq!(wrote(&mut store, &writes, 2), 20 * 2 + 1);
    assert_eq!(wrote(&mut store, &[Write::Delete { key: volume(10) }], 1), 2);
    assert_eq!(store.read(&DRIVE).unwrap().unwrap(), br#"{"a":29}"#);
}

#[test]
fn what_the_server_would_not_give_back_is_refused_before_anything_is_written() {
    let server = server();
    let mut store = server.open();
    for bad in ["[]", "{\"a\":18446744073709551615}", "{\"a\":0.5}", "{", ""] {
        let error = store.commit(&[put(NODE, "{}"), put(DRIVE, bad)]).unwrap_err();
        assert!(matches!(error, StoreError::Unfit { .. }) && !error.retryable(), "{bad}: {error}");
    }
    assert_eq!(People::on(&server).count(), 0);
}

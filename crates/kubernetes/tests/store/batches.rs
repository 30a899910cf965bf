//! Batches of many actions, of which some cannot be written: the others do not wait for them, and nothing is written
//! twice.

use hotbay_core::cluster::RegistryRecord;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind, Store, StoreError, Write};
use http::Method;

use crate::behaviour::{Place, Records, apply, key, load, put};
use crate::faults::{Fault, Faults};
use crate::people::People;
use crate::server;

/// Ids that differ where names are made of them.
fn volume(id: u128) -> Key {
    key(Kind::Volume, id << 96)
}

fn drive(id: u128) -> Key {
    key(Kind::Drive, id << 96)
}

/// Where each action ends, if all have so many writes.
fn ends(writes: &[Write], each: usize) -> Vec<usize> {
    (1..=writes.len() / each).map(|action| each * action).collect()
}

/// A hundred volumes, each on a drive of its own.
fn placed() -> Vec<Write> {
    let pair = |id| [put(volume(id), r#"{"step":1}"#), put(drive(id), r#"{"step":1}"#)];
    (1..=100).flat_map(pair).collect()
}

fn records(writes: &[Write]) -> Records {
    let mut records = Records::new();
    apply(&mut records, writes);
    records
}

#[test]
fn one_object_that_is_refused_for_good_holds_up_only_what_waits_for_it() {
    for code in [422, 403, 500] {
        let (server, faults) = (server(), Faults::default());
        let mut store = server.open_with(&faults);
        load(&mut store);
        let (writes, all) = (placed(), records(&placed()));
        let ends = ends(&writes, 2);
        faults.on(Method::PUT, "volumes/v-00000001/", usize::MAX, Fault::Refused(code));
        let error = store.commit_actions(&writes, &ends).unwrap_err();
        assert!(error.retryable() && error.to_string().contains("v-00000001"), "{code}: {error}");
        let mut others = all.clone();
        others.remove(&volume(1));
        assert!(others.remove(&drive(1)).is_some(), "it comes after the volume");
        // Not compared by a macro that shows both: they are long.
        assert!(
            load(&mut server.open()) == others,
            "{code}: others wait for it, or what waits for it does not"
        );
        assert_eq!(People::on(&server).count(), 199, "{code}: and the volume without a status");

        // What is there is not written again, however often it is tried.
        if code != 500 {
            for _ in 0..3 {
                let before = faults.writes();
                store.commit_actions(&writes, &ends).unwrap_err();
                assert_eq!(faults.writes() - before, 1, "{code}");
            }
        }
        faults.heal();
        let before = faults.writes();
        store.commit_actions(&writes, &ends).unwrap();
        assert_eq!(faults.writes() - before, 3, "{code}: a status, and a new object with its own");
        assert!(load(&mut server.open()) == all, "{code}: not all is there in the end");
    }
}

/// What is written again because people have changed it is another batch, even if it says the same.
#[test]
fn only_what_failed_is_left_out_when_it_is_tried_again() {
    let (server, faults) = (server(), Faults::default());
    let (mut store, people) = (server.open_with(&faults), People::on(&server));
    load(&mut store);
    let writes = [put(drive(1), r#"{"step":1}"#), put(volume(1), r#"{"step":1}"#)];
    let edit = || people.edit_status("drives", |drive| drive["status"] = serde_json::json!({}));
    store.commit_actions(&writes, &[1, 2]).unwrap();
    edit();
    store.commit_actions(&writes, &[1, 2]).unwrap();
    assert_eq!(load(&mut server.open()).len(), 2, "all was made, so all is made again");

    let changed = [put(drive(1), r#"{"step":2}"#), put(volume(1), r#"{"step":2}"#)];
    faults.on(Method::PUT, "volumes/", usize::MAX, Fault::Refused(422));
    store.commit_actions(&changed, &[1, 2]).unwrap_err();
    edit();
    // Another batch with the same write in it.
    store.commit(&changed[..1]).unwrap();
    assert_eq!(load(&mut server.open()).len(), 2);
    edit();
    faults.heal();
    store.commit_actions(&changed, &[1, 2]).unwrap();
    assert_eq!(load(&mut server.open()), records(&changed), "the batch before was another");
}

/// More than are tried at once: those that are refused come last when it is tried again.
#[test]
fn many_that_are_refused_do_not_keep_the_others_from_being_tried() {
    let (server, faults) = (server(), Faults::default());
    let mut store = server.open_with(&faults);
    load(&mut store);
    let nodes = (1..=100).map(|id| put(key(Kind::Node, id << 96), "{}"));
    let drives = (1..=100).map(|id| put(drive(id), "{}"));
    let writes: Vec<_> = nodes.chain(drives).collect();
    let ends = ends(&writes, 1);
    faults.on(Method::POST, "storagenodes", usize::MAX, Fault::Refused(403));
    store.commit_actions(&writes, &ends).unwrap_err();
    // A server that takes nothing is not asked for everything.
    assert!(faults.writes() < 100, "{} refused", faults.writes());
    for _ in 0..4 {
        store.commit_actions(&writes, &ends).unwrap_err();
    }
    assert_eq!(load(&mut server.open()).len(), 100);
    faults.heal();
    store.commit_actions(&writes, &ends).unwrap();
    assert_eq!(load(&mut server.open()), records(&writes));
}

/// Who hears that another leads begins nothing more.
#[test]
fn who_lost_the_lead_does_not_go_on_with_its_batch() {
    let term = |number: u64| Term { number, id: TermId::from_bits(number.into()) };
    let lead = |numbers: std::ops::RangeInclusive<u64>| {
        let (cluster, terms) = (ClusterId::from_bits(1), numbers.map(term).collect());
        let record = RegistryRecord { cluster, terms, newest_certificate: Default::default() };
        put(key(Kind::Registry, 0), &serde_json::to_string(&record).unwrap())
    };
    let server = server();
    let mut old = server.open();
    old.commit(&[lead(1..=1)]).unwrap();
    old.commit(&[put(drive(1), r#"{"step":1}"#)]).unwrap();
    let mut new = server.open();
    load(&mut new);
    new.commit(&[lead(1..=2)]).unwrap();
    load(&mut new);
    new.commit(&[put(drive(1), r#"{"step":2}"#)]).unwrap();

    let writes: Vec<_> = (1..=1_000).map(|id| put(drive(id), r#"{"step":3}"#)).collect();
    let error = old.commit_actions(&writes, &ends(&writes, 1)).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    let made = People::on(&server).list("drives").len();
    assert!(made < 500, "{made} of 1000");
}

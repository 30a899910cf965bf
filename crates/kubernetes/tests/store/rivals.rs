//! Two controllers on one server: the one that leads and the one that led before, or believes that it does.

use hotbay_core::cluster::RegistryRecord;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_core::order::Term;
use hotbay_kubernetes::CustomResourceStore;
use hotbay_registry::{Key, Kind, Store, StoreError, Write};

use crate::behaviour::{Place, load, put};
use crate::cases::{VOLUME, pending};
use crate::people::People;
use crate::{Server, server};

const DRIVE: Key = Key { kind: Kind::Drive, id: 2 };

fn term(number: u64, id: u128) -> Term {
    Term { number, id: TermId::from_bits(id) }
}

/// The write by which a controller takes the lead.
fn lead(terms: &[Term]) -> Write {
    let cluster = ClusterId::from_bits(1);
    let newest_certificate = Default::default();
    let record = RegistryRecord { cluster, terms: terms.to_vec(), newest_certificate };
    Write::Put {
        key: Key { kind: Kind::Registry, id: 0 },
        value: serde_json::to_vec(&record).unwrap(),
    }
}

fn write(store: &mut CustomResourceStore, step: u32) -> Result<(), StoreError> {
    store.commit(&[put(DRIVE, &format!(r#"{{"step":{step}}}"#))])
}

#[test]
fn who_was_succeeded_writes_no_more() {
    let server = server();
    let (first, second) = (term(1, 10), term(2, 20));
    let mut old = server.open();
    old.commit(&[lead(&[first])]).unwrap();
    write(&mut old, 1).unwrap();

    let mut new = server.open();
    load(&mut new);
    new.commit(&[lead(&[first, second])]).unwrap();
    load(&mut new);
    write(&mut new, 2).unwrap();

    let error = write(&mut old, 3).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { by, ours, .. } if (by, ours) == (second, first)));
    assert!(!error.retryable());
    let error = old.commit(&[lead(&[first, term(2, 11)])]).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    assert_eq!(new.read(&DRIVE).unwrap().unwrap(), br#"{"step":2}"#);
    write(&mut new, 4).unwrap();
}

/// Both have read the same records and take the same number: one of them.
#[test]
fn one_of_two_that_take_the_lead_at_once_gets_it() {
    let server = server();
    let first = term(1, 10);
    server.open().commit(&[lead(&[first])]).unwrap();
    let (mut one, mut other) = (server.open(), server.open());
    load(&mut one);
    load(&mut other);
    one.commit(&[lead(&[first, term(2, 20)])]).unwrap();
    let error = other.commit(&[lead(&[first, term(2, 30)])]).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }) && !error.retryable(), "{error}");
    // And of two that find an empty server.
    let server = crate::server();
    let (mut one, mut other) = (server.open(), server.open());
    load(&mut one);
    load(&mut other);
    one.commit(&[lead(&[term(1, 20)])]).unwrap();
    let error = other.commit(&[lead(&[term(1, 30)])]).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
}

/// The old one writes after the new one has read: that stands as an earlier decision, and the new one, which does not
/// know of it, starts again.
#[test]
fn a_late_write_of_the_one_before_is_not_written_over_unseen() {
    let server = server();
    let (first, second) = (term(1, 10), term(2, 20));
    let mut old = server.open();
    old.commit(&[lead(&[first])]).unwrap();
    write(&mut old, 1).unwrap();

    let mut new = server.open();
    load(&mut new);
    new.commit(&[lead(&[first, second])]).unwrap();
    load(&mut new);
    write(&mut old, 2).unwrap();
    let error = write(&mut new, 3).unwrap_err();
    assert!(matches!(error, StoreError::Overtaken { .. }) && !error.retryable(), "{error}");
    assert_eq!(new.read(&DRIVE).unwrap().unwrap(), br#"{"step":2}"#);

    let mut next = server.open();
    load(&mut next);
    next.commit(&[lead(&[first, second, term(3, 30)])]).unwrap();
    load(&mut next);
    write(&mut next, 4).unwrap();
    assert!(matches!(write(&mut old, 5), Err(StoreError::Deposed { .. })));
}

/// A controller that leads, and has loaded the drive as the one before it left it.
fn succeed(server: &Server, terms: &[Term]) -> CustomResourceStore {
    let mut new = server.open();
    new.commit(&[lead(terms)]).unwrap();
    load(&mut new);
    new
}

fn decide(store: &mut CustomResourceStore, generation: u32, step: u32) -> Result<(), StoreError> {
    let record = format!(r#"{{"generation":{generation},"step":{step}}}"#);
    store.commit(&[put(DRIVE, &record)])
}

/// Somebody put a status back that was saved long ago. It was taken for a late write, the leader ended, and the next
/// one believed it. A late write replaces what was loaded, so it is never older than that.
#[test]
fn an_older_status_that_is_put_back_after_an_election_is_written_over() {
    let (first, second, third) = (term(1, 10), term(2, 20), term(3, 30));
    for (what, by_first, by_second, loaded) in [
        ("of the same term, by its generation", None, Some((1, 1)), Some((2, 2))),
        ("of a term before, by its term", Some((2, 1)), None, Some((2, 2))),
        ("of a term before, though its generation is higher", Some((9, 1)), None, Some((2, 2))),
    ] {
        let server = server();
        let people = People::on(&server);
        let mut saved = None;
        for (terms, decisions) in
            [(&[first][..], [by_first, None]), (&[first, second][..], [by_second, loaded])]
        {
            let mut store = succeed(&server, terms);
            for (generation, step) in decisions.into_iter().flatten() {
                decide(&mut store, generation, step).unwrap();
                saved.get_or_insert_with(|| people.only("drives")["status"].clone());
            }
        }
        let mut leader = succeed(&server, &[first, second, third]);
        people.edit_status("drives", |object| object["status"] = saved.unwrap());
        decide(&mut leader, 2, 2).unwrap_or_else(|error| panic!("{what}: {error}"));
        let there = leader.read(&DRIVE).unwrap().unwrap();
        assert_eq!(there, br#"{"generation":2,"step":2}"#, "{what}");
    }
}

/// The other side of it: the same term, and no lower number.
#[test]
fn a_late_write_stands_whether_its_generation_is_the_same_or_higher() {
    let (first, second) = (term(1, 10), term(2, 20));
    for generation in [2, 3] {
        let server = server();
        let mut old = succeed(&server, &[first]);
        decide(&mut old, 2, 1).unwrap();
        let mut new = succeed(&server, &[first, second]);
        decide(&mut old, generation, 2).unwrap();
        let error = decide(&mut new, 2, 3).unwrap_err();
        assert!(matches!(error, StoreError::Overtaken { .. }), "{generation}: {error}");
    }
}

/// The object still shows what it was made with. That is not a late write of the controller before.
#[test]
fn a_status_that_is_taken_away_does_not_bring_the_first_record_back() {
    let server = server();
    let (first, second) = (term(1, 10), term(2, 20));
    let mut old = server.open();
    old.commit(&[lead(&[first])]).unwrap();
    old.commit(&[pending()]).unwrap();
    old.commit(&[put(VOLUME, r#"{"step":1}"#)]).unwrap();

    let mut new = server.open();
    load(&mut new);
    new.commit(&[lead(&[first, second])]).unwrap();
    load(&mut new);
    People::on(&server).edit_status("volumes", |object| {
        object.as_object_mut().unwrap().remove("status");
    });
    new.commit(&[put(VOLUME, r#"{"step":2}"#)]).unwrap();
    assert_eq!(new.read(&VOLUME).unwrap().unwrap(), br#"{"step":2}"#);
}

/// One that was succeeded and takes the lead again must have read what was decided meanwhile.
#[test]
fn who_leads_again_without_having_read_starts_again() {
    let server = server();
    let (first, second) = (term(1, 10), term(2, 20));
    let mut one = server.open();
    one.commit(&[lead(&[first])]).unwrap();
    let mut other = server.open();
    load(&mut other);
    other.commit(&[lead(&[first, second])]).unwrap();
    let error = one.commit(&[lead(&[first, second, term(3, 30)])]).unwrap_err();
    assert!(matches!(error, StoreError::Overtaken { .. }) && !error.retryable(), "{error}");
}

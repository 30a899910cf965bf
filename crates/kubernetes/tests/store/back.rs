//! A server whose records go back in time under a controller that runs on: etcd was restored from a backup. What the
//! controller remembers is of another history then; it must notice, and end.

use hotbay_core::cluster::RegistryRecord;
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_core::order::Term;
use hotbay_registry::{Key, Kind, Store, StoreError, Write};

use crate::behaviour::{Place, put};
use crate::fake::Backup;
use crate::{Server, server};

const CHANGED: Key = Key { kind: Kind::Drive, id: 2 };
const UNCHANGED: Key = Key { kind: Kind::Drive, id: 3 };
const NEW: Key = Key { kind: Kind::Drive, id: 4 };

/// A controller that leads, and a backup from before it changed a drive.
fn led() -> (Server, impl Store, Backup) {
    let server = server();
    let mut store = server.open();
    let record = RegistryRecord {
        cluster: ClusterId::from_bits(1),
        terms: vec![Term { number: 1, id: TermId::from_bits(10) }],
        newest_certificate: Default::default(),
    };
    let key = Key { kind: Kind::Registry, id: 0 };
    let lead = Write::Put { key, value: serde_json::to_vec(&record).unwrap() };
    store.commit(&[lead]).unwrap();
    store.commit(&[put(CHANGED, r#"{"step":1}"#)]).unwrap();
    store.commit(&[put(UNCHANGED, r#"{"step":1}"#)]).unwrap();
    let backup = server.fake.save();
    store.commit(&[put(CHANGED, r#"{"step":2}"#)]).unwrap();
    (server, store, backup)
}

#[test]
fn one_that_leads_on_notices_with_its_next_write_whatever_it_is() {
    let writes = [
        ("a record that the backup has otherwise", put(CHANGED, r#"{"step":3}"#)),
        ("one that it has as it was", put(UNCHANGED, r#"{"step":2}"#)),
        ("a new one", put(NEW, r#"{"step":1}"#)),
        ("one that goes", Write::Delete { key: CHANGED }),
    ];
    for (what, write) in writes {
        let (server, mut store, backup) = led();
        server.fake.restore(backup);
        let error = store.commit(std::slice::from_ref(&write)).unwrap_err();
        assert!(matches!(error, StoreError::WentBack { .. }), "{what}: {error}");
        assert!(!error.retryable(), "{what}");
        assert!(error.to_string().contains("hotbay registry adopt"), "{error}");
        // What the backup says of it is not written over.
        let there = server.open().read(&CHANGED).unwrap();
        assert_eq!(there.as_deref(), Some(&br#"{"step":1}"#[..]), "{what}");
    }
}

/// Writing a record again as it is writes nothing, and so says nothing about the time.
#[test]
fn the_same_once_more_is_no_sign() {
    let (_server, mut store, _) = led();
    for _ in 0..2 {
        store.commit(&[put(UNCHANGED, r#"{"step":1}"#)]).unwrap();
        store.commit(&[put(CHANGED, r#"{"step":2}"#)]).unwrap();
    }
}

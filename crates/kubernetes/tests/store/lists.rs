//! A list that takes several pages, on a server that does not answer each call.

use std::time::{Duration, Instant};

use hotbay_registry::{Kind, Store, Write};
use http::Method;

use crate::behaviour::{Place, Records, apply, key, load, put};
use crate::faults::{Fault, Faults};
use crate::piped::fill;
use crate::{Server, server};

/// More than two pages of drives.
const DRIVES: u128 = 1_100;

fn with_drives() -> (Server, Records) {
    let server = server();
    let writes: Vec<Write> =
        (1..=DRIVES).map(|id| put(key(Kind::Drive, id << 96), r#"{"step":1}"#)).collect();
    fill(&mut server.open(), &writes);
    let mut records = Records::new();
    apply(&mut records, &writes);
    (server, records)
}

/// As an API server with much to do answers: each page after a few refusals.
#[test]
fn a_server_that_refuses_each_page_a_few_times_is_read_in_the_end() {
    let (server, records) = with_drives();
    let faults = Faults::default();
    // The first page, and the two that follow it.
    faults.on(Method::GET, "drives?limit=500&continue=1", 6, Fault::Refused(429));
    faults.on(Method::GET, "drives?limit=500&continue=0", 6, Fault::Refused(429));
    faults.on(Method::GET, "drives?limit=500", 6, Fault::Refused(429));
    assert_eq!(load(&mut server.open_with(&faults)), records);
    // Five kinds, two more pages, and the refusals.
    assert_eq!(faults.calls(), 5 + 2 + 18);
}

#[test]
fn a_server_that_answers_nothing_is_given_up() {
    let (server, _) = with_drives();
    let faults = Faults::default();
    faults.on(Method::GET, "continue=", usize::MAX, Fault::Refused(503));
    let error = server.open_with(&faults).load().unwrap_err();
    assert!(error.retryable(), "{error}");
}

#[test]
fn the_pause_that_the_server_asks_for_is_kept() {
    let (server, records) = with_drives();
    let faults = Faults::default();
    faults.on(Method::GET, "drives?", 1, Fault::Busy(1));
    let began = Instant::now();
    assert_eq!(load(&mut server.open_with(&faults)), records);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}

/// The moment that the pages are of is kept by the server for some minutes. After them the list begins anew.
#[test]
fn a_list_whose_moment_is_no_longer_kept_begins_anew() {
    let (server, records) = with_drives();
    let faults = Faults::default();
    // On the second page, and on the third of the next list.
    faults.on(Method::GET, "continue=0", 1, Fault::Refused(410));
    faults.on(Method::GET, "continue=2", 1, Fault::Refused(410));
    assert_eq!(load(&mut server.open_with(&faults)), records, "nothing is missing, or there twice");
    assert!(faults.was_met());
    // Not without end.
    let faults = Faults::default();
    faults.on(Method::GET, "continue=", usize::MAX, Fault::Refused(410));
    let error = server.open_with(&faults).load().unwrap_err();
    assert!(error.retryable(), "{error}");
}

//! What people and accidents do to a cluster, with the product's own controllers on a real API server: each is told in
//! words that name the way out, nothing else stops, and it ends well when the way is taken.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../controllers/mod.rs"]
mod controllers;
mod definitions;
mod edited;
mod impostors;
mod lease;
#[path = "../membership/mod.rs"]
mod membership;
mod others;
mod policy;
mod rights;

use std::time::Instant;

use serde_json::Value;

use controllers::{LEASE_DURATION, Rig, STEADY_LEASE, until};

type Case = fn(&mut Rig);

/// On one control plane, one after the other: each leaves everything well. In these the lead changes hands.
const LEADERS_CHANGE: [(&str, Case); 10] = [
    ("a Lease that is stolen", lease::stolen),
    ("a Lease that is deleted, or filled with nonsense", lease::deleted_or_nonsense),
    ("annotations of 200 KB", edited::long_annotations),
    ("statuses edited while nobody led", edited::at_rest),
    ("everything deleted while nobody led", edited::deleted_at_rest),
    ("everything deleted, and the Registry", edited::deleted_with_the_registry),
    ("a Registry edited while nobody led", edited::registry_at_rest),
    ("a Registry deleted while nobody led", edited::registry_deleted_at_rest),
    ("records of a newer release", edited::of_a_newer_release),
    ("a certificate that has expired", impostors::expired_certificate),
];

/// In these nobody loses it.
const ONE_LEADS: [(&str, Case); 4] = [
    ("machines that claim another's name", impostors::name_of_another),
    ("definitions of an older release", definitions::of_an_older_release),
    ("a policy that forbids one object", policy::forbids_one_object),
    ("rights that are too small", rights::too_small),
];

#[test]
fn what_is_wrong_is_told_and_stops_nothing_else() {
    let mut rig = Rig::without_controllers(LEASE_DURATION);
    rig.kubeconfig = rights::kubeconfig(&rig);
    rig.controllers = (0..2).map(|number| rig.controller(number)).collect();
    // One for each of two volumes, and one that cases can do with as they like.
    rig.start_agent(3, 128 << 20);
    rig.client(&["volume", "create", "kept", "--size", "32MiB"]);
    run(&mut rig, &LEADERS_CHANGE);
    rig.lead_with(STEADY_LEASE);
    run(&mut rig, &ONE_LEADS);
}

fn run(rig: &mut Rig, cases: &[(&str, Case)]) {
    // HOTBAY_K8S_CASE='word|word' runs those with one of the words in their names, for whoever looks for a fault.
    let wanted = std::env::var("HOTBAY_K8S_CASE").unwrap_or_default();
    let is_wanted = |name: &str| wanted.split('|').any(|word| name.contains(word));
    for (what, case) in cases.iter().filter(|(what, _)| is_wanted(what)) {
        let began = Instant::now();
        case(rig);
        is_well(rig);
        println!("{what}: {:?}", began.elapsed());
    }
}

/// Everything that was there is there, and what is asked for is done.
fn is_well(rig: &mut Rig) {
    until("all is well", || {
        rig.restart_ended();
        rig.try_client(&["status"])
    });
    until("the volume is there", || {
        rig.restart_ended();
        let volumes = rig.try_client(&["get", "volumes", "-o", "json"])?;
        volumes.contains("\"kept\"").then_some(()).ok_or(volumes)
    });
    rig.insist(&["volume", "create", "probe", "--size", "16MiB"]);
    rig.insist(&["volume", "delete", "probe", "--yes"]);
}

/// Waits until one of the controllers has said this, after what it had said before.
fn until_said(rig: &mut Rig, words: &str, after: &[String]) {
    until_one_is_said(rig, &[words], after);
}

/// The same with words of which one is enough.
fn until_one_is_said(rig: &mut Rig, words: &[&str], after: &[String]) {
    until(&format!("a controller says one of {words:?}"), || {
        rig.restart_ended();
        let new = rig.controllers.iter().enumerate().map(|(number, controller)| {
            let before = after.get(number).map_or(0, String::len);
            controller.log()[before..].to_owned()
        });
        let new: Vec<_> = new.collect();
        let is_said = |log: &String| words.iter().any(|words| log.contains(words));
        new.iter().any(is_said).then_some(()).ok_or_else(|| new.join("\n"))
    });
}

/// What the controllers have said so far.
fn said(rig: &Rig) -> Vec<String> {
    rig.controllers.iter().map(controllers::Controller::log).collect()
}

/// One object, as the server has it.
fn object(rig: &Rig, what: &[&str]) -> Value {
    let text = rig.plane.kubectl().run(&[&["get", "-o", "json"], what].concat()).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A drive that no volume is on.
fn empty_drive(rig: &Rig) -> String {
    let number = until("a drive is empty", || {
        let labels = rig.agent().labels();
        let is_empty = |label: &Value| label["extents"].as_array().is_some_and(Vec::is_empty);
        labels.iter().position(is_empty).ok_or_else(|| format!("{labels:?}"))
    });
    rig.drive_name(number)
}

/// Ends all controllers, as if their machines were cut off from power.
fn stop(rig: &mut Rig) {
    rig.controllers.iter_mut().for_each(|controller| controller.process.kill());
}

//! Five hundred claims that wait for no pod, at once.

use std::time::{Duration, Instant};

use crate::cluster::{Installed, within};
use crate::pods;

const COUNT: usize = 500;
/// The provisioner asks the API server five times a second, as it does by default.
const LIMIT: Duration = Duration::from_secs(20 * 60);

fn count(installed: &Installed, kind: &str, wanted: impl Fn(&serde_json::Value) -> bool) -> usize {
    let list = installed.json(&[kind]);
    list["items"].as_array().unwrap().iter().filter(|item| wanted(item)).count()
}

pub(crate) fn volumes(installed: &mut Installed) {
    let kubectl = installed.kubectl();
    let began = Instant::now();
    let create = ["--request-timeout=0", "create", "-f", "-"];
    kubectl.with_input(&create, &pods::claims_at_once("many", COUNT)).unwrap();
    let took = |began: Instant| began.elapsed().as_secs_f64();
    println!("      {COUNT} claims are there after {:.1} s", took(began));
    within(LIMIT, "every claim is bound", || {
        let bound = count(installed, "pvc", |claim| claim["status"]["phase"] == "Bound");
        if bound == COUNT { Ok(()) } else { Err(format!("{bound} are")) }
    });
    println!("      all are bound after {:.1} s", took(began));
    assert_eq!(count(installed, "volumes.hotbay.dev", |_| true), COUNT);
    let began = Instant::now();
    kubectl.run(&["--request-timeout=0", "delete", "pvc", "--all", "--wait=false"]).unwrap();
    within(LIMIT, "every volume is gone", || {
        let left =
            count(installed, "volumes.hotbay.dev", |_| true) + count(installed, "pv", |_| true);
        if left == 0 {
            Ok(())
        } else {
            Err(format!("{left} volumes and PersistentVolumes are left"))
        }
    });
    println!("      all are deleted after {:.1} s", took(began));
    pods::delete(installed, &["storageclass", "at-once"]);
    installed.until_empty();
}

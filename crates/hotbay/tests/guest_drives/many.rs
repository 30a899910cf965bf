//! Many drives that come and go at once, made by the kernel's own test driver.

use std::collections::BTreeSet;

use hotbay_guest::Guest;
use serde_json::Value;

use crate::denied::reasons;
use crate::lab::{Lab, drives, path};

/// All on one host: the driver gives the same serial numbers again to drives of the next.
const TARGETS: usize = 10;
const UNITS: usize = 2;

fn made_by_the_driver(guest: &mut Guest) -> Vec<Value> {
    let is_one = |drive: &Value| drive["status"]["model"] == "scsi_debug";
    drives(guest).into_iter().filter(is_one).collect()
}

fn are(drives: &[Value], present: bool) -> bool {
    drives.len() == TARGETS * UNITS
        && drives.iter().all(|drive| drive["status"]["present"] == present)
}

pub(crate) fn many_drives_come_and_go_at_once(lab: &mut Lab) {
    let agent = lab.agent();
    lab.ok(&format!("modprobe scsi_debug dev_size_mb=8 num_tgts={TARGETS} max_luns={UNITS}"));
    lab.wait_until("all drives are found", |guest| are(&made_by_the_driver(guest), true));
    let found = made_by_the_driver(&mut lab.guest);
    let every = |of: &dyn Fn(&Value) -> String| found.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!(every(&path), found.len(), "{found:#?}");
    assert_eq!(every(&|drive| drive["status"]["wwn"].to_string()), found.len(), "{found:#?}");
    for drive in &found {
        assert!(reasons(drive).contains(&"TooSmall".to_owned()), "{drive:#}");
    }
    lab.ok("rmmod scsi_debug");
    lab.wait_until("all of them are missing", |guest| are(&made_by_the_driver(guest), false));
    assert_eq!(lab.agent(), agent, "the agent was not started again");
    lab.until_present("COLD-NVME");
}

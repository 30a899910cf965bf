//! Drives come and go while everything runs.

use crate::lab::{Lab, descriptors, generation, id, in_operation, nvme, open_paths, path};

pub(crate) fn a_hot_added_drive_is_found_and_can_be_added(lab: &mut Lab) {
    let drive = nvme("HOT-ADD", 3);
    let agent = lab.agent();
    lab.guest.plug(&drive).unwrap();
    lab.until_present("HOT-ADD");
    lab.add(&["HOT-ADD"]);
    assert_eq!(lab.agent(), agent, "the agent was not started again");
    lab.remove(&["HOT-ADD"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("HOT-ADD");
}

pub(crate) fn a_drive_pulled_in_operation_is_missing_and_can_be_removed(lab: &mut Lab) {
    let drive = nvme("PULLED", 4);
    lab.guest.plug(&drive).unwrap();
    lab.until_present("PULLED");
    lab.add(&["PULLED"]);
    lab.guest.unplug(&drive).unwrap();
    let missing = lab.until_missing("PULLED");
    // It still is wanted in operation: only a person takes it out.
    assert_eq!(missing["spec"]["inOperation"], true, "{missing:#}");
    lab.remove(&["PULLED"]);
    let agent = lab.agent();
    let held = open_paths(&mut lab.guest, Some(agent));
    let path = path(&missing);
    assert!(!held.iter().any(|open| open.starts_with(&path)), "it holds what is gone: {held:?}");
}

pub(crate) fn a_drive_put_back_is_in_operation_again(lab: &mut Lab) {
    let drive = nvme("PUT-BACK", 5);
    lab.guest.plug(&drive).unwrap();
    lab.until_present("PUT-BACK");
    lab.add(&["PUT-BACK"]);
    let before = lab.with_serial("PUT-BACK")[0].clone();
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PUT-BACK");
    lab.guest.plug(&drive).unwrap();
    let after = lab.until("PUT-BACK", "there again", |drive| drive["status"]["present"] == true);
    assert_eq!(id(&after), id(&before));
    let after = lab.until("PUT-BACK", "in operation again", in_operation);
    let agent = lab.agent();
    let path = path(&after);
    lab.wait_until("the agent has the drive open, and not only what is gone", |guest| {
        descriptors(guest, &path, Some(agent)) == 1
    });
    lab.remove(&["PUT-BACK"]);
    lab.guest.unplug(&drive).unwrap();
    lab.until_missing("PUT-BACK");
}

pub(crate) fn another_drive_in_the_same_slot_is_another_drive(lab: &mut Lab) {
    let (first, second) = (nvme("SLOT-FIRST", 6), nvme("SLOT-SECOND", 6));
    lab.guest.plug(&first).unwrap();
    lab.until_present("SLOT-FIRST");
    lab.add(&["SLOT-FIRST"]);
    lab.remove(&["SLOT-FIRST"]);
    let known = lab.with_serial("SLOT-FIRST")[0].clone();
    lab.guest.unplug(&first).unwrap();
    lab.until_missing("SLOT-FIRST");

    lab.guest.plug(&second).unwrap();
    let other = lab.until_present("SLOT-SECOND");
    assert_ne!(id(&other), id(&known));
    assert_eq!(generation(&other), 0, "nothing was ever ordered for it");
    assert_eq!(path(&other), path(&known), "it has the place and the name of the first");
    lab.until_missing("SLOT-FIRST");
    lab.guest.unplug(&second).unwrap();
    lab.until_missing("SLOT-SECOND");

    lab.guest.plug(&first).unwrap();
    let back = lab.until_present("SLOT-FIRST");
    assert_eq!((id(&back), generation(&back)), (id(&known), generation(&known)));
    lab.add(&["SLOT-FIRST"]);
    lab.remove(&["SLOT-FIRST"]);
}

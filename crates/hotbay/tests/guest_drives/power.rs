//! The power is cut, and afterwards the drives are in other slots: the kernel gives them other names.

use hotbay_guest::{Bus, Drive};
use serde_json::Value;

use crate::denied::reasons;
use crate::lab::{Lab, descriptors, generation, id, nvme, path, virtio, with_serial};

pub(crate) fn drives_come_back_after_a_power_cut_under_other_names(lab: &mut Lab) {
    let (first, second) = (nvme("CUT-FIRST", 11), nvme("CUT-SECOND", 12));
    let serials = ["CUT-FIRST", "CUT-SECOND"];
    for drive in [&first, &second] {
        lab.guest.plug(drive).unwrap();
        lab.until_present(&drive.serial);
    }
    lab.add(&serials);
    let before = serials.map(|serial| lab.with_serial(serial)[0].clone());
    // Two drives that only a label tells apart: the blank one comes back where the kernel looks first.
    let twin = virtio("CUT-TWIN", 9);
    let blank = Drive { id: "cut-blank".to_owned(), ..twin.clone() };
    lab.guest.plug(&twin).unwrap();
    let twin_before = lab.until_present("CUT-TWIN");
    lab.add(&["CUT-TWIN"]);

    let moved = [
        Drive { bus: Bus::Nvme { slot: 12 }, ..first },
        Drive { bus: Bus::Nvme { slot: 11 }, ..second },
        blank.clone(),
        Drive { bus: Bus::Virtio { slot: 10 }, ..twin },
    ];
    lab.power_cycle(&moved);
    the_labelled_twin_is_the_drive(lab, &twin_before, &blank);
    let agent = lab.agent();
    let mut paths = Vec::new();
    for (serial, before) in serials.iter().zip(&before) {
        let after = lab.until(serial, "in operation", |drive| {
            drive["status"]["present"] == true && drive["status"]["state"] == "AttachedDevice"
        });
        assert_eq!((id(&after), generation(&after)), (id(before), generation(before)));
        let path = path(&after);
        lab.wait_until(&format!("{path} is open"), |guest| {
            descriptors(guest, &path, Some(agent)) == 1
        });
        paths.push(path);
    }
    assert_eq!(paths, ["/dev/nvme1n1", "/dev/nvme0n1"]);
    assert_ne!(paths, before.each_ref().map(path), "the test moved them");
    // What is no longer in the machine is known, and missing.
    lab.until_missing("COLD-NVME");
    lab.remove(&serials);
}

fn the_labelled_twin_is_the_drive(lab: &mut Lab, before: &Value, blank: &Drive) {
    let is_it = |drive: &&Value| id(drive) == id(before);
    lab.wait_until("the labelled one is in operation", |guest| {
        let twins = with_serial(guest, &blank.serial);
        twins.iter().find(is_it).is_some_and(|drive| {
            drive["status"]["present"] == true && drive["status"]["state"] == "AttachedDevice"
        })
    });
    let twins = lab.with_serial(&blank.serial);
    let (drive, other): (Vec<_>, Vec<_>) = twins.iter().partition(is_it);
    let ([drive], [other]) = (&drive[..], &other[..]) else { panic!("{twins:#?}") };
    assert!(path(other) < path(drive), "the blank one comes first: {twins:#?}");
    assert!(reasons(other).contains(&"IdentityConflict".to_owned()), "{other:#}");
    let agent = lab.agent();
    assert_eq!(descriptors(&mut lab.guest, &path(drive), Some(agent)), 1);
    assert!(lab.first_mib(blank).iter().all(|byte| *byte == 0), "the blank one was written to");
}

//! The power is cut, and afterwards the drives are in other slots: the kernel gives them other names.

use hotbay_guest::{Bus, Drive};

use crate::lab::{Lab, descriptors, generation, id, nvme, path};

pub(crate) fn drives_come_back_after_a_power_cut_under_other_names(lab: &mut Lab) {
    let (first, second) = (nvme("CUT-FIRST", 11), nvme("CUT-SECOND", 12));
    let serials = ["CUT-FIRST", "CUT-SECOND"];
    for drive in [&first, &second] {
        lab.guest.plug(drive).unwrap();
        lab.until_present(&drive.serial);
    }
    lab.add(&serials);
    let before = serials.map(|serial| lab.with_serial(serial)[0].clone());

    let moved = [
        Drive { bus: Bus::Nvme { slot: 12 }, ..first },
        Drive { bus: Bus::Nvme { slot: 11 }, ..second },
    ];
    lab.power_cycle(&moved);
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

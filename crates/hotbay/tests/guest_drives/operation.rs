//! Drives are found, go into operation and out again, and survive the agent's death.

use serde_json::{Value, json};

use crate::lab::{Lab, SIZE, agents, descriptors, generation, id, path};

pub(crate) fn drives_of_every_kind_are_found(lab: &mut Lab) {
    let expected = [
        ("COLD-NVME", "/dev/nvme0n1", json!("QEMU NVMe Ctrl"), json!(null), "NVMe"),
        ("COLD-SCSI", "/dev/sda", json!("QEMU HARDDISK"), json!("5000c500a1b2c3d4"), "HDD"),
        // A virtio drive has no model, and says that it turns.
        ("COLD-VIRTIO", "/dev/vda", json!(null), json!(null), "HDD"),
    ];
    for (serial, path, model, wwn, media) in expected {
        let drive = lab.until_present(serial);
        let status = &drive["status"];
        assert_eq!(status["path"], path, "{drive:#}");
        assert_eq!(status["model"], model, "{drive:#}");
        assert_eq!(status["wwn"], wwn, "{drive:#}");
        assert_eq!(status["media"], media, "{drive:#}");
        assert_eq!(status["sizeBytes"], SIZE, "{drive:#}");
        assert_eq!(status["deviceKind"], "Block", "{drive:#}");
        assert_eq!(status["state"], "UnknownDevice", "{drive:#}");
    }
}

/// What the guest's kernel calls the PCIe slot that a drive is in, alone.
fn slot(lab: &mut Lab, disk: &str) -> String {
    let found = lab.ok(&format!(
        "for slot in /sys/bus/pci/slots/*; do readlink -f /sys/block/{disk} | \
         grep -qE \"/$(cat $slot/address)\\.[0-7]/(nvme|virtio)\" && echo ${{slot##*/}}; done; true"
    ));
    found.trim().to_owned()
}

/// What a scan says of these drives, once it could read all of them: on a slow machine it gives up on one, and says so.
fn scan(lab: &mut Lab, serials: [&str; 3]) -> Vec<Value> {
    let mut last = String::new();
    let found = lab.guest.wait_until("a scan that reads every drive", |guest| {
        last =
            guest.run("hotbay node scan --data-dir /var/lib/hotbay/node -o json").unwrap().stdout;
        let list: Value = serde_json::from_str(&last).ok()?;
        let all: Vec<Value> =
            list["items"].as_array()?.iter().map(|it| it["status"].clone()).collect();
        let is_read =
            |serial| all.iter().any(|it| it["serial"] == serial && it["denied"] == json!([]));
        serials.into_iter().all(is_read).then_some(all)
    });
    found.unwrap_or_else(|error| panic!("{error}; it says {last}"))
}

/// A controller's slot is not the bay of its drives.
pub(crate) fn what_the_machine_tells_of_a_drive_is_shown(lab: &mut Lab) {
    let (nvme, virtio) = (slot(lab, "nvme0n1"), slot(lab, "vda"));
    assert!(!nvme.is_empty() && !virtio.is_empty() && nvme != virtio, "{nvme:?}, {virtio:?}");
    let expected = [
        ("COLD-NVME", json!(nvme), "nvme", json!(null)),
        ("COLD-SCSI", json!(null), "virtio", json!("QEMU")),
        ("COLD-VIRTIO", json!(virtio), "virtio", json!(null)),
    ];
    let scanned = scan(lab, expected.each_ref().map(|it| it.0));
    for (serial, bay, transport, vendor) in expected {
        let drive = lab.until_present(serial);
        let status = &drive["status"];
        assert_eq!(status["bay"], bay, "{drive:#}");
        assert_eq!(status["transport"], transport, "{drive:#}");
        assert_eq!(status["vendor"], vendor, "{drive:#}");
        assert_eq!(status["firmware"].is_string(), serial != "COLD-VIRTIO", "{drive:#}");
        assert!(status["physicalBlockBytes"].as_u64() >= Some(512), "{drive:#}");
        // Without the registry the machine looks the same.
        let alone = scanned.iter().find(|status| status["serial"] == serial).unwrap();
        for field in ["path", "bay", "transport", "firmware", "sizeBytes", "denied", "media"] {
            assert_eq!(alone[field], status[field], "{field} of {serial}");
        }
    }
}

pub(crate) fn drives_go_into_operation_and_out(lab: &mut Lab) {
    let serials = ["COLD-NVME", "COLD-SCSI", "COLD-VIRTIO"];
    for serial in serials {
        lab.until_present(serial);
    }
    lab.add(&serials);
    let agent = lab.agent();
    for serial in serials {
        let path = path(&lab.with_serial(serial)[0]);
        let open = descriptors(&mut lab.guest, &path, Some(agent));
        assert_eq!(open, 1, "the agent has {path} open");
        let table = lab.ok(&format!("blkid -p -o export {path}; sfdisk -d {path}"));
        assert!(table.contains("PTTYPE=gpt"), "{table}");
        assert!(table.contains("name=\"hotbay\""), "{table}");
    }
    lab.remove(&serials);
    for serial in serials {
        let path = path(&lab.with_serial(serial)[0]);
        assert_eq!(descriptors(&mut lab.guest, &path, None), 0, "nobody has {path} open");
    }
}

pub(crate) fn a_killed_agent_comes_back_with_its_drives(lab: &mut Lab) {
    let serials = ["COLD-NVME", "COLD-SCSI"];
    lab.add(&serials);
    let before: Vec<_> = serials.map(|serial| lab.with_serial(serial)[0].clone()).into();
    let killed = lab.agent();
    lab.ok(&format!("kill -9 {killed}"));
    let paths: Vec<_> = before.iter().map(path).collect();
    lab.wait_until("another agent runs, and has the drives open", |guest| {
        let [agent] = agents(guest)[..] else { return false };
        agent != killed && paths.iter().all(|path| descriptors(guest, path, Some(agent)) == 1)
    });
    lab.wait_ready();
    for (serial, before) in serials.iter().zip(&before) {
        let after =
            lab.until(serial, "in operation", |drive| drive["status"]["state"] == "AttachedDevice");
        assert_eq!(
            (id(&after), generation(&after), path(&after)),
            (id(before), generation(before), path(before))
        );
    }
    lab.remove(&serials);
}

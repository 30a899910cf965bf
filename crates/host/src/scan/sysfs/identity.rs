//! What a drive is known by, who made it, and how the machine reaches it.

use hotbay_core::device::Transport;
use hotbay_core::evidence::Evidence;
use hotbay_core::words::plain;

use super::Disk;
use crate::scan::udev;

impl Disk {
    /// What there is to tell this drive from others. Evidence of a file needs its filesystem to be asked, and is
    /// not here.
    pub(crate) fn evidence(&self) -> Evidence {
        let bearer = self.bearer();
        bearer.udev().fill(bearer.evidence_of_sysfs())
    }

    fn evidence_of_sysfs(&self) -> Evidence {
        let first = |files: &[&str], read: fn(String) -> Option<String>| {
            files.iter().find_map(|file| self.text(file).and_then(read))
        };
        Evidence {
            nvme: first(&["nguid", "eui"], hex_digits),
            wwn: first(&["device/wwid", "wwid"], world_wide_name),
            serial: first(&["device/serial", "serial"], meaningful).or_else(|| self.serial_page()),
            model: first(&["device/model", "device/name"], meaningful),
            file: None,
        }
    }

    fn serial_page(&self) -> Option<String> {
        serial_in_page(&std::fs::read(self.directory.join("device/vpd_pg80")).ok()?)
    }

    /// What udev knows of it; nothing without udev.
    pub(crate) fn udev(&self) -> udev::Record {
        self.number().map(|number| self.sysfs.udev.read(number)).unwrap_or_default()
    }

    /// Who made it.
    pub(crate) fn vendor(&self) -> Option<String> {
        let bearer = self.bearer();
        let said = bearer.text("device/vendor").filter(|vendor| is_vendor(vendor));
        said.or_else(|| bearer.udev().vendor.filter(|vendor| is_vendor(vendor))).map(|v| plain(&v))
    }

    pub(crate) fn firmware(&self) -> Option<String> {
        let bearer = self.bearer();
        let files = ["device/firmware_rev", "device/rev", "device/fwrev"];
        files.iter().find_map(|file| bearer.text(file)).map(|firmware| plain(&firmware))
    }

    /// How the machine reaches it, by what lies on the way to it: the last bus counts.
    pub(crate) fn transport(&self) -> Transport {
        let bearer = self.bearer();
        if bearer.name.starts_with("nvme") {
            return Transport::Nvme;
        }
        if bearer.name.starts_with("loop") {
            return Transport::File;
        }
        bearer.way().iter().rev().find_map(|part| bus(part)).unwrap_or_default()
    }

    /// The devices on the way to it, from the first bus on.
    pub(super) fn way(&self) -> Vec<String> {
        let Ok(place) = self.directory.canonicalize() else { return Vec::new() };
        place.iter().map(|part| part.to_string_lossy().into_owned()).collect()
    }
}

/// ATA drives give the name of their protocol, and virtio ones a number.
fn is_vendor(text: &str) -> bool {
    text != "ATA" && !text.starts_with("0x") && meaningful(text.to_owned()).is_some()
}

fn bus(part: &str) -> Option<Transport> {
    let numbered = |prefix: &str| {
        let digits = part.strip_prefix(prefix)?;
        (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())).then_some(())
    };
    let named = |prefix: &str| part.starts_with(prefix).then_some(());
    let known = [
        (numbered("session"), Transport::Iscsi),
        (named("rport-"), Transport::Fc),
        (named("end_device-"), Transport::Sas),
        (numbered("ata"), Transport::Sata),
        (numbered("usb"), Transport::Usb),
        (numbered("virtio"), Transport::Virtio),
        (named("mmc_host"), Transport::Mmc),
    ];
    known.into_iter().find_map(|(found, transport)| found.map(|()| transport))
}

/// The "unit serial number" page of a SCSI or ATA drive: four bytes of header, then text.
pub(crate) fn serial_in_page(page: &[u8]) -> Option<String> {
    let length = usize::from(u16::from_be_bytes([*page.get(2)?, *page.get(3)?]));
    let text = page.get(4..4 + length)?;
    meaningful(String::from_utf8_lossy(text).trim_matches(['\0', ' ']).to_owned())
}

/// Makers that have nothing to say write zeroes, as digits or as bytes, or leave what a chip has that was never
/// written to, which is no text.
pub(crate) fn meaningful(text: String) -> Option<String> {
    let is_nothing =
        |c: char| matches!(c, '0' | '-' | ' ' | '.' | ':' | '\u{fffd}') || c.is_control();
    let says_something = |c: char| !is_nothing(c);
    text.chars().any(says_something).then_some(text)
}

/// One spelling for a number that is written with dashes, spaces or neither. No digits, or only zeroes, is no number.
pub(crate) fn hex_digits(text: String) -> Option<String> {
    let digits = text.chars().filter(char::is_ascii_hexdigit).collect::<String>();
    meaningful(digits.to_ascii_lowercase())
}

/// Only `naa.` and `eui.` are given by a registry of makers; `t10.` repeats model and serial number.
pub(crate) fn world_wide_name(wwid: String) -> Option<String> {
    let name = wwid.strip_prefix("naa.").or_else(|| wwid.strip_prefix("eui."))?;
    hex_digits(name.to_owned())
}

#[cfg(test)]
mod tests {
    use hotbay_core::device::Media;

    use super::super::recorded::Tree;
    use super::*;

    #[test]
    fn an_nvme_drive_is_told_by_its_nguid() {
        let tree = Tree::new(&[
            ("nvme0n1/dev", b"259:0\n"),
            ("nvme0n1/size", b"2048\n"),
            ("nvme0n1/ro", b"0\n"),
            ("nvme0n1/queue/logical_block_size", b"4096\n"),
            ("nvme0n1/queue/rotational", b"0\n"),
            ("nvme0n1/nguid", b"36344730-5280-0130-0025-38450000000A\n"),
            ("nvme0n1/eui", b"00 00 00 00 00 00 00 00\n"),
            ("nvme0n1/wwid", b"eui.363447305280013000253845000000 0a\n"),
            ("nvme0n1/device/serial", b"S4GRNX0R800013      \n"),
            ("nvme0n1/device/model", b"FAST 980 PRO        \n"),
        ]);
        let disk = tree.sysfs().disk("nvme0n1");
        assert!(disk.is_physical());
        assert_eq!(disk.media(), Media::Nvme);
        assert_eq!((disk.size_bytes(), disk.block_bytes()), (1 << 20, 4096));
        let evidence = disk.evidence();
        assert_eq!(
            evidence.nvme.as_deref(),
            Some("36344730528001300025384500 00000a".replace(' ', "").as_str())
        );
        assert_eq!(evidence.serial.as_deref(), Some("S4GRNX0R800013"));
        assert_eq!(evidence.model.as_deref(), Some("FAST 980 PRO"));
    }

    #[test]
    fn a_scsi_drive_is_told_by_its_world_wide_name_and_serial_page() {
        let tree = Tree::new(&[
            ("sda/device/wwid", b"naa.5000C500A1B2C3D4\n"),
            ("sda/device/model", b"ST4000NM0035-1V4\n"),
            ("sda/device/vpd_pg80", b"\x00\x80\x00\x0a  ZC1ABCDE\x00\x00"),
            ("sda/queue/rotational", b"1\n"),
            ("sdb/device/wwid", b"t10.ATA     QEMU HARDDISK   QM00001 \n"),
            ("sdb/device/serial", b"00000000\n"),
            ("sdb/device/vpd_pg80", b"\x00\x80\x00\xff short"),
        ]);
        let evidence = tree.sysfs().disk("sda").evidence();
        assert_eq!(evidence.wwn.as_deref(), Some("5000c500a1b2c3d4"));
        assert_eq!(evidence.serial.as_deref(), Some("ZC1ABCDE"));
        assert_eq!(tree.sysfs().disk("sda").media(), Media::Hdd);
        assert!(tree.sysfs().disk("sdb").evidence().is_empty());
    }

    /// Drives behind a cheap bridge had `naa.` and zeroes, and all of them were taken for one: the prefix made the
    /// zeroes look like something. A name without a digit became an empty one, which is as bad.
    #[test]
    fn zeroes_behind_a_prefix_tell_nothing() {
        let tree = Tree::new(&[
            ("sda/device/wwid", b"naa.0000000000000000\n"),
            ("sdb/device/wwid", b"eui.xyz\n"),
            ("nvme0n1/nguid", b"x-y\n"),
            ("nvme0n1/eui", b"00 25 38 45 00 00 00 0a\n"),
        ]);
        let evidence = |name| tree.sysfs().disk(name).evidence();
        assert!(evidence("sda").is_empty() && evidence("sdb").is_empty());
        assert_eq!(evidence("nvme0n1").nvme.as_deref(), Some("002538450000000a"));
    }

    /// All that had an empty id were once taken for one drive: an attribute that says nothing is none.
    #[test]
    fn attributes_that_are_there_and_empty_tell_nothing() {
        for nothing in [&b""[..], b"\n", b"  \n", b"\0\0", b"\n\n", b"\xff\xff"] {
            let tree = Tree::new(&[
                ("sda/device/wwid", nothing),
                ("sda/device/serial", nothing),
                ("sda/device/vpd_pg80", nothing),
                ("nvme0n1/nguid", nothing),
                ("nvme0n1/eui", nothing),
                ("nvme0n1/wwid", nothing),
                ("nvme0n1/device/serial", nothing),
                ("dm-0/dm/uuid", nothing),
                ("dm-0/dm/name", nothing),
            ]);
            for name in ["sda", "nvme0n1", "dm-0"] {
                let evidence = tree.sysfs().disk(name).evidence();
                assert_eq!(evidence, Evidence::default(), "{name} with {nothing:?}");
            }
        }
    }

    /// After the trees of machines with such controllers.
    #[test]
    fn the_transport_is_the_last_bus_on_the_way() {
        let tree = Tree::new(&[]);
        let ways = [
            ("sda", "pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sda"),
            (
                "sdb",
                "pci0000:00/0000:03:00.0/host0/port-0:0/end_device-0:0/target0:0:0/0:0:0:0/block/sdb",
            ),
            ("sdc", "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdc"),
            ("sdd", "platform/host7/session1/target7:0:0/7:0:0:1/block/sdd"),
            ("sde", "pci0000:00/0000:05:00.0/host8/rport-8:0-2/target8:0:0/8:0:0:0/block/sde"),
            ("sdf", "pci0000:00/0000:00:05.0/virtio2/host9/target9:0:0/9:0:0:0/block/sdf"),
            ("vda", "pci0000:00/0000:00:02.0/virtio1/block/vda"),
            ("mmcblk0", "platform/soc/mmc1/mmc_host/mmc1/mmc1:0001/block/mmcblk0"),
            // A reader of cards on USB: what is in it is a card.
            ("mmcblk1", "pci0000:00/0000:00:14.0/usb1/1-2/mmc_host/mmc0/mmc0:0001/block/mmcblk1"),
            ("nvme0n1", "virtual/nvme-subsystem/nvme-subsys0/nvme0n1"),
            ("sdg", "pci0000:00/0000:06:00.0/host1/target1:2:0/1:2:0:0/block/sdg"),
            ("loop0", "virtual/block/loop0"),
        ];
        for (minor, (name, way)) in ways.iter().enumerate() {
            tree.disk(name, &format!("devices/{way}"), &format!("8:{minor}"));
        }
        let found = ways.map(|(name, _)| tree.sysfs().disk(name).transport());
        use Transport::{Fc, File, Iscsi, Mmc, Nvme, Sas, Sata, Unknown, Usb, Virtio};
        assert_eq!(
            found,
            [Sata, Sas, Usb, Iscsi, Fc, Virtio, Virtio, Mmc, Mmc, Nvme, Unknown, File]
        );
        assert_eq!(tree.sysfs().disk("gone").transport(), Unknown);
    }

    #[test]
    fn makers_and_firmware_are_told_where_they_are_words() {
        let tree = Tree::new(&[
            ("sda/device/vendor", b"SEAGATE \n"),
            ("sda/device/rev", b"0003\n"),
            ("sdb/dev", b"8:16"),
            ("sdb/device/vendor", b"ATA     \n"),
            ("sdb/device/rev", b"1.0\n2\x1b[2J \xc3\xa4\n"),
            ("vda/device/vendor", b"0x1af4\n"),
            ("nvme0n1/device/firmware_rev", b"5B2QGXA7\n"),
        ]);
        tree.udev("8:16", b"E:ID_VENDOR=WDC\n");
        let of = |name: &str| {
            let disk = tree.sysfs().disk(name);
            (disk.vendor(), disk.firmware())
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("sda"), (some("SEAGATE"), some("0003")));
        assert_eq!(of("sdb"), (some("WDC"), some("1.0?2?[2J ä")));
        assert_eq!(of("vda"), (None, None));
        assert_eq!(of("nvme0n1"), (None, some("5B2QGXA7")));
    }

    #[test]
    fn strange_bytes_in_attributes_are_one_text() {
        let tree = Tree::new(&[
            ("sda/device/model", b"  Gr\xc3\xb6\xc3\x9fe  2\n"),
            ("sda/device/serial", b"A\xff\n\n"),
        ]);
        let evidence = tree.sysfs().disk("sda").evidence();
        assert_eq!(evidence.model.as_deref(), Some("Größe  2"));
        assert_eq!(evidence.serial.as_deref(), Some("A\u{fffd}"));
    }
}

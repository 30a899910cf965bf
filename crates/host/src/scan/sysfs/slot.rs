//! Where a person finds a drive: the slot of an enclosure that says so, or the PCIe slot of a drive that has one to
//! itself.

use std::path::Path;

use hotbay_core::words::plain;

use super::{Disk, Sysfs, meaningful, names_in, read_text};

/// Before the name of an enclosure's slot, in the directory of the drive that is in it.
const ENCLOSURE_LINK: &str = "enclosure_device:";

/// Where a drive is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Place {
    pub(crate) bay: Option<String>,
    pub(crate) enclosure: Option<String>,
}

/// The names of PCIe slots, with the address of what is in each: domain, bus and device.
#[derive(Debug, Default)]
pub(crate) struct PciSlots(Vec<(String, String)>);

impl Sysfs {
    pub(crate) fn pci_slots(&self) -> PciSlots {
        let slots = self.root.join("bus/pci/slots");
        let named = names_in(&slots).into_iter();
        let addressed = |name: String| {
            let address = read_text(&slots.join(&name).join("address"))?;
            Some((name, address))
        };
        PciSlots(named.filter_map(addressed).collect())
    }
}

impl Disk {
    /// Where it is, as far as the machine can tell. An enclosure knows best; a slot on the board counts only for a
    /// drive that is alone in it: all drives behind a controller share the controller's.
    pub(crate) fn place(&self, slots: &PciSlots) -> Place {
        let bearer = self.bearer();
        bearer.in_enclosure().unwrap_or_else(|| Place {
            bay: bearer.pci_address().and_then(|address| slots.at(&address)),
            enclosure: None,
        })
    }

    fn in_enclosure(&self) -> Option<Place> {
        let device = self.directory.join("device");
        let links = names_in(&device);
        let link = links.iter().find(|name| name.starts_with(ENCLOSURE_LINK))?;
        let slot = device.join(link);
        let number = read_text(&slot.join("slot"));
        let bay = number.unwrap_or_else(|| link[ENCLOSURE_LINK.len()..].trim().to_owned());
        Some(Place { bay: Some(plain(&bay)), enclosure: enclosure_of(&slot) })
    }

    /// The address of the drive on the PCI bus, without the function: `0000:01:00`.
    fn pci_address(&self) -> Option<String> {
        let way = if self.name.starts_with("nvme") { self.way_of_controller() } else { self.way() };
        let behind_controller = |part: &String| {
            let number = part.strip_prefix("host");
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
        };
        if way.iter().any(behind_controller) {
            return None;
        }
        way.iter().rev().find_map(|part| pci_device(part)).map(str::to_owned)
    }

    /// An NVMe drive that the kernel may reach by several controllers is shown below none of them; it counts as in the
    /// slot of the first.
    fn way_of_controller(&self) -> Vec<String> {
        let way = self.way();
        if way.iter().any(|part| pci_device(part).is_some()) {
            return way;
        }
        let device = self.directory.join("device");
        let is_controller = |name: &&String| {
            let number = name.strip_prefix("nvme");
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
        };
        let controllers = names_in(&device);
        let controller = controllers.iter().find(is_controller);
        let place = controller.and_then(|name| device.join(name).canonicalize().ok());
        let parts = place.iter().flat_map(|place| place.iter());
        parts.map(|part| part.to_string_lossy().into_owned()).collect()
    }
}

impl PciSlots {
    fn at(&self, address: &str) -> Option<String> {
        let slot = self.0.iter().find(|(_, found)| found == address);
        slot.map(|(name, _)| plain(name))
    }
}

/// The enclosure of a slot: the number that its maker gave it, which stays, else the kernel's name for it.
fn enclosure_of(slot: &Path) -> Option<String> {
    let slot = slot.canonicalize().ok()?;
    let enclosure = slot.parent()?;
    let id = read_text(&enclosure.join("id")).and_then(meaningful_id);
    let name = || enclosure.file_name().map(|name| name.to_string_lossy().into_owned());
    id.or_else(name).map(|text| plain(&text))
}

fn meaningful_id(id: String) -> Option<String> {
    meaningful(id.strip_prefix("0x").unwrap_or(&id).to_owned())
}

/// `0000:01:00.0` without its function.
fn pci_device(part: &str) -> Option<&str> {
    let (device, function) = part.split_once('.')?;
    let parts: Vec<&str> = device.split(':').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    let is_hex = |part: &&str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Domains beyond 16 bits have more digits.
    let fits = matches!(lengths[..], [4..=8, 2, 2]) && parts.iter().all(is_hex);
    (fits && function.len() == 1).then_some(device)
}

#[cfg(test)]
mod tests {
    use super::super::recorded::Tree;
    use super::*;

    fn place(tree: &Tree, name: &str) -> (Option<String>, Option<String>) {
        let sysfs = tree.sysfs();
        let Place { bay, enclosure } = sysfs.disk(name).place(&sysfs.pci_slots());
        (bay, enclosure)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    /// After the tree of a machine whose board names its slots.
    #[test]
    fn a_drive_with_a_slot_of_its_own_is_found_there() {
        let tree = Tree::new(&[]);
        tree.file("bus/pci/slots/7/address", b"0000:01:00\n");
        tree.file("bus/pci/slots/8-1/address", b"0000:02:00\n");
        tree.file("bus/pci/slots/9/address", b"0000:03:00\n");
        tree.file("bus/pci/slots/10/power", b"0\n");
        let port = "devices/pci0000:00/0000:00:01.0";
        tree.disk("nvme0n1", &format!("{port}/0000:01:00.0/nvme/nvme0/nvme0n1"), "259:0");
        tree.disk("vdb", &format!("{port}/0000:02:00.0/virtio3/block/vdb"), "252:16");
        // A controller in a slot is not a bay for each of its drives.
        let scsi = "0000:03:00.0/host0/target0:0:0/0:0:0:0/block/sda";
        tree.disk("sda", &format!("{port}/{scsi}"), "8:0");
        tree.disk("vdc", "devices/pci0000:00/0000:00:04.0/virtio4/block/vdc", "252:32");
        // The kernel may show a drive below no controller, as it may have several.
        let subsystem = "devices/virtual/nvme-subsystem/nvme-subsys1";
        tree.disk("nvme1n1", &format!("{subsystem}/nvme1n1"), "259:1");
        tree.file(&format!("{port}/0000:01:00.0/nvme/nvme1/state"), b"live\n");
        tree.link(&format!("{subsystem}/nvme1"), &format!("{port}/0000:01:00.0/nvme/nvme1"));
        tree.link(&format!("{subsystem}/nvme1n1/device"), subsystem);
        assert_eq!(place(&tree, "nvme0n1"), (some("7"), None));
        assert_eq!(place(&tree, "vdb"), (some("8-1"), None));
        assert_eq!(place(&tree, "sda"), (None, None));
        assert_eq!(place(&tree, "vdc"), (None, None));
        assert_eq!(place(&tree, "nvme1n1"), (some("7"), None));
    }

    /// No enclosure was at hand: the tree is made after what the kernel's driver of enclosures makes, with the links of
    /// both sides.
    #[test]
    fn a_drive_in_an_enclosure_is_found_by_its_slot() {
        let tree = Tree::new(&[]);
        let bus = "devices/pci0000:00/0000:03:00.0/host0";
        let shelf = format!("{bus}/target0:0:9/0:0:9:0/enclosure/0:0:9:0");
        tree.file(&format!("{shelf}/id"), b"0x5001438024c4e8bd\n");
        tree.link("class/enclosure/0:0:9:0", &shelf);
        let nameless = format!("{bus}/target0:0:8/0:0:8:0/enclosure/0:0:8:0");
        tree.file(&format!("{nameless}/id"), b"0x0000000000000000\n");
        for (disk, number, shelf, slot) in
            [("sda", 0, &shelf, "Slot 04"), ("sdb", 1, &nameless, "ArrayDevice02")]
        {
            let device = format!("{bus}/target0:0:{number}/0:0:{number}:0");
            tree.disk(disk, &format!("{device}/block/{disk}"), &format!("8:{}", 16 * number));
            tree.link(&format!("{device}/block/{disk}/device"), &device);
            tree.file(&format!("{shelf}/{slot}/status"), b"OK\n");
            tree.link(&format!("{shelf}/{slot}/device"), &device);
            tree.link(&format!("{device}/enclosure_device:{slot}"), &format!("{shelf}/{slot}"));
        }
        tree.file(&format!("{shelf}/Slot 04/slot"), b"4\n");
        assert_eq!(place(&tree, "sda"), (some("4"), some("5001438024c4e8bd")));
        assert_eq!(place(&tree, "sdb"), (some("ArrayDevice02"), some("0:0:8:0")));
    }

    #[test]
    fn addresses_on_the_bus_have_one_form() {
        assert_eq!(pci_device("0000:01:00.0"), Some("0000:01:00"));
        assert_eq!(pci_device("10000:e1:00.0"), Some("10000:e1:00"));
        for other in
            ["pci0000:00", "0:0:0:0", "0000:01:00", "0000:01:00.10", "000x:01:00.0", "", "."]
        {
            assert_eq!(pci_device(other), None, "{other}");
        }
    }
}

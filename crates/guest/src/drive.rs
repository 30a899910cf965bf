//! A drive as it is put into the guest: which kind, where, and what it says of itself. The same value may be plugged
//! again, or into another slot: its contents are in an image named after its id.

use serde_json::{Value, json};

/// How many slots the guest has for drives that come and go.
pub(crate) const SLOTS: u8 = 16;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drive {
    /// Names its image, and the drive to QEMU. Nothing inside the guest shows it.
    pub id: String,
    pub bus: Bus,
    pub serial: String,
    pub size_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bus {
    /// A controller with one namespace, in a slot from 1 to 16.
    Nvme { slot: u8 },
    /// A virtio drive, in a slot from 1 to 16.
    Virtio { slot: u8 },
    /// A drive on the SCSI controller.
    Scsi {
        /// The world wide name, if it has one.
        wwn: Option<u64>,
        /// Turns per minute; 1 for a drive that does not turn, as the standard has it.
        rotation_rate: u16,
    },
}

impl Drive {
    pub fn new(id: &str, bus: Bus, serial: &str, size_bytes: u64) -> Self {
        Self { id: id.to_owned(), bus, serial: serial.to_owned(), size_bytes }
    }

    /// Whether it has a slot of its own, which tells of what is plugged there.
    pub(crate) fn is_in_a_slot(&self) -> bool {
        match self.bus {
            Bus::Nvme { .. } | Bus::Virtio { .. } => true,
            Bus::Scsi { .. } => false,
        }
    }

    /// Its name as a device of QEMU.
    pub(crate) fn device_id(&self) -> String {
        format!("drive-{}", self.id)
    }

    /// Its name as a block node of QEMU.
    pub(crate) fn node_name(&self) -> String {
        format!("image-{}", self.id)
    }

    /// What `-blockdev` and `blockdev-add` take.
    pub(crate) fn blockdev(&self, image: &str) -> Value {
        let file = json!({"driver": "file", "filename": image});
        json!({"driver": "raw", "node-name": self.node_name(), "file": file})
    }

    /// What `-device` and `device_add` take.
    pub(crate) fn device(&self) -> Value {
        let mut device = json!({
            "id": self.device_id(), "drive": self.node_name(), "serial": self.serial,
        });
        match self.bus {
            Bus::Nvme { slot } => {
                device["driver"] = json!("nvme");
                device["bus"] = json!(slot_name(slot));
            }
            Bus::Virtio { slot } => {
                device["driver"] = json!("virtio-blk-pci");
                device["bus"] = json!(slot_name(slot));
            }
            Bus::Scsi { wwn, rotation_rate } => {
                device["driver"] = json!("scsi-hd");
                device["bus"] = json!("scsi.0");
                device["rotation_rate"] = json!(rotation_rate);
                if let Some(wwn) = wwn {
                    device["wwn"] = json!(wwn);
                }
            }
        }
        device
    }
}

pub(crate) fn slot_name(slot: u8) -> String {
    format!("slot{slot}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_described_to_qemu() {
        let drive = Drive::new("a", Bus::Nvme { slot: 3 }, "S1", 1 << 26);
        let expected = json!({
            "driver": "nvme", "bus": "slot3", "id": "drive-a", "drive": "image-a", "serial": "S1",
        });
        assert_eq!(drive.device(), expected);
        let scsi = Drive { bus: Bus::Scsi { wwn: Some(5), rotation_rate: 7200 }, ..drive };
        assert_eq!((&scsi.device()["wwn"], &scsi.device()["bus"]), (&json!(5), &json!("scsi.0")));
    }
}

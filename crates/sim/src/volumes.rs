//! Clients of volumes: they create, expand, attach, detach and delete, ask again until it is so, as CSI does, and use
//! what they were told they may.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_core::cluster::{AttachmentState, Event as Happens, Reply, VolumeRequest, VolumeState};
use hotbay_core::ids::{AttachmentId, DriveId, VolumeId};
use hotbay_core::volume::class::{Class, Erase};
use hotbay_core::volume::{Size, Wish};

use crate::client::Request;
use crate::fault::Fault;
use crate::world::World;

const MIB: u64 = 1 << 20;
/// How many volumes a client has at the most.
const VOLUMES_MAX: usize = 4;

/// A volume that a client was told is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) id: VolumeId,
    size_mib: u64,
    /// The machine on which it may be used.
    pub(crate) attached: Option<usize>,
}

/// What a client asks about a volume.
#[derive(Debug, Clone)]
pub(crate) enum Ask {
    Create { name: String, size_mib: u64, required: bool },
    Expand { volume: VolumeId, size_mib: u64 },
    Attach { id: AttachmentId, volume: VolumeId },
    Detach { volume: VolumeId },
    Delete { volume: VolumeId },
}

/// What a client is told of a volume.
#[derive(Debug, Clone)]
pub(crate) enum VolumeTold {
    Gone,
    There(Seen),
}

#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) volume: VolumeId,
    pub(crate) state: VolumeState,
    pub(crate) size_bytes: u64,
    pub(crate) drive: Option<DriveId>,
    /// By machine.
    pub(crate) attachments: BTreeMap<usize, AttachmentState>,
}

impl World {
    /// What the answer to a request about a volume says, as things are when it is decided.
    pub(crate) fn told_of_volume(&self, site: usize, reply: &Reply) -> Option<VolumeTold> {
        let Reply::Volume(id) = reply else { return None };
        let cluster = &self.sites[site].process.as_ref()?.cluster;
        let Some(volume) = cluster.volume(*id) else { return Some(VolumeTold::Gone) };
        let attachments = volume.attachments.iter().filter_map(|(node, attachment)| {
            let name = &cluster.node(*node)?.record.name;
            let machine = self.machines.iter().position(|machine| machine.name == *name)?;
            Some((machine, attachment.record.state))
        });
        Some(VolumeTold::There(Seen {
            volume: *id,
            state: volume.record.state,
            size_bytes: volume.record.size_bytes,
            drive: volume.drive,
            attachments: attachments.collect(),
        }))
    }

    /// What a client of volumes asks for next.
    pub(crate) fn wish_for_volume(&mut self, client: usize) -> Option<Request> {
        let owned = self.clients[client].owned.clone();
        if owned.is_empty() || owned.len() < VOLUMES_MAX && self.rng.chance(400) {
            let number = self.number();
            let size_mib = if self.rng.chance(300) { 100 } else { self.rng.between(1, 40) };
            let required = self.rng.chance(200);
            let name = format!("pvc-{number}");
            return Some(Request::Volume(Ask::Create { name, size_mib, required }));
        }
        let Owned { id: volume, size_mib, attached } = self.rng.pick(&owned)?;
        let ask = match (attached, self.rng.between(0, 9)) {
            (_, 0..=1) => Ask::Expand { volume, size_mib: size_mib + self.rng.between(1, 20) },
            (Some(_), 2..=5) => Ask::Detach { volume },
            (Some(_), _) => return None,
            (None, 2..=5) => Ask::Attach { id: AttachmentId::from_bits(self.rng.id()), volume },
            (None, 6..=8) => {
                // From here on it may be gone at any moment.
                self.may_go(volume);
                Ask::Delete { volume }
            }
            (None, _) => return None,
        };
        Some(Request::Volume(ask))
    }

    /// The request as the registry hears it.
    fn volume_request(&mut self, site: usize, ask: &Ask) -> Option<VolumeRequest> {
        let request = match ask {
            Ask::Create { name, size_mib, required } => {
                let erase = if *required { Erase::Required } else { Erase::default() };
                let wish = Wish {
                    name: name.parse().expect("a plain name"),
                    size: Size::of(size_mib * MIB).expect("whole MiB"),
                    class: Class { max_shares: 1, erase, ..Class::default() },
                    parameters: BTreeMap::new(),
                    nodes: BTreeSet::new(),
                    preferred: Vec::new(),
                    claim: None,
                };
                // Drawn for each call, as the controller does: a registry that went back in time never hears one again.
                let id = VolumeId::from_bits(self.rng.id());
                VolumeRequest::Create { id, wish: Box::new(wish) }
            }
            Ask::Expand { volume, size_mib } => VolumeRequest::Expand {
                volume: *volume,
                size: Size::of(size_mib * MIB).expect("whole MiB"),
            },
            Ask::Attach { id, volume } => {
                // Where its drive is: the scheduler knows that from the volume.
                let cluster = &self.sites[site].process.as_ref()?.cluster;
                let drive = cluster.volume(*volume)?.drive?;
                let node = cluster.drive(drive)?.record.node;
                VolumeRequest::Attach { id: *id, volume: *volume, node, read_only: false }
            }
            Ask::Detach { volume } => VolumeRequest::Detach { volume: *volume, node: None },
            Ask::Delete { volume } => VolumeRequest::Delete { volume: *volume },
        };
        Some(request)
    }

    pub(crate) fn ask_about_volume(&mut self, client: usize, ask: &Ask) -> Option<Happens> {
        let site = self.clients[client].site;
        let request = self.volume_request(site, ask)?;
        Some(Happens::Volume { request, asked_by: format!("client-{client}") })
    }

    /// Takes an answer. True: it is as it was asked for, or never will be.
    pub(crate) fn volume_answered(
        &mut self,
        client: usize,
        ask: &Ask,
        told: Option<VolumeTold>,
    ) -> bool {
        match (ask, told) {
            (Ask::Create { size_mib, .. }, Some(VolumeTold::There(seen))) => {
                let made = seen.state == VolumeState::Created;
                if made {
                    self.fault(Fault::VolumeCreated);
                    let owned = Owned { id: seen.volume, size_mib: *size_mib, attached: None };
                    self.clients[client].owned.push(owned);
                }
                made
            }
            // There may be no room; a name is not asked for for ever.
            (Ask::Create { .. }, _) => self.rng.chance(300),
            (Ask::Expand { volume, size_mib }, Some(VolumeTold::There(seen))) => {
                let grown = seen.size_bytes >= size_mib * MIB;
                if grown {
                    self.fault(Fault::VolumeExpanded);
                    self.change_owned(client, *volume, |owned| owned.size_mib = *size_mib);
                }
                grown
            }
            (Ask::Attach { volume, .. }, Some(VolumeTold::There(seen))) => {
                let attached = seen
                    .attachments
                    .iter()
                    .find(|(_, state)| **state == AttachmentState::Attached)
                    .map(|(machine, _)| *machine);
                if attached.is_some() {
                    self.fault(Fault::VolumeAttached);
                    self.change_owned(client, *volume, |owned| owned.attached = attached);
                }
                attached.is_some()
            }
            // Refused, or not answered: it may be so for good.
            (Ask::Expand { .. } | Ask::Attach { .. }, _) => self.rng.chance(300),
            (Ask::Detach { volume }, Some(VolumeTold::There(seen))) => {
                let detached = seen.attachments.is_empty();
                if detached {
                    self.fault(Fault::VolumeDetached);
                    self.change_owned(client, *volume, |owned| owned.attached = None);
                }
                detached
            }
            (Ask::Detach { volume }, Some(VolumeTold::Gone)) => {
                self.change_owned(client, *volume, |owned| owned.attached = None);
                true
            }
            (Ask::Delete { volume }, Some(VolumeTold::Gone)) => {
                self.fault(Fault::VolumeDeleted);
                self.clients[client].owned.retain(|owned| owned.id != *volume);
                true
            }
            (Ask::Delete { .. }, Some(VolumeTold::There(_))) => false,
            // Nobody gives up on these.
            (Ask::Detach { .. } | Ask::Delete { .. }, None) => false,
        }
    }

    fn change_owned(&mut self, client: usize, volume: VolumeId, change: impl FnOnce(&mut Owned)) {
        let mut owned = self.clients[client].owned.iter_mut();
        if let Some(owned) = owned.find(|owned| owned.id == volume) {
            change(owned);
        }
    }
}

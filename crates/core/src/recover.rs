//! A registry that was lost, rebuilt from the labels of its drives: `hotbay recover` reads them and asks here.
//!
//! What labels say becomes the records that they follow from, or, where they contradict each other, a list of conflicts
//! in words. What no label has (names of nodes, terms, epochs, who uses what) is learnt from the agents afterwards, by
//! `hotbay registry adopt`; classes, parameters and annotations are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cluster::{
    Allocation, DriveRecord, NodeRecord, Records, RegistryRecord, State, VolumeRecord, short_name,
};
use crate::device::{LabelSeen, Observed};
use crate::evidence::Comparison;
use crate::ids::{CertificateNumber, ClusterId, DriveId, MachineId, NodeId, VolumeId};
use crate::label::extents::{Extent, Use, VolumeName, in_conflict};

/// Above every certificate that the lost registry can have issued: a purge of a node revokes those too.
const CERTIFICATES: CertificateNumber = CertificateNumber::from_number(1 << 32);

/// What was read from one drive with a label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reading {
    /// The machine that it was read on, for people.
    pub host: String,
    pub device: Observed,
    pub label: LabelSeen,
    pub extents: Vec<Extent>,
    /// Both places of the label are damaged: this is the third copy, which may be older than the label was.
    pub from_third_copy: bool,
}

impl Reading {
    /// Where the drive is, as people say it.
    pub fn place(&self) -> String {
        format!("{}:{}", self.host, self.device.path)
    }

    /// The extents that belong to a volume, in the order of its parts, for each volume that is not deleted.
    pub fn volumes(&self) -> BTreeMap<VolumeId, Vec<&Extent>> {
        let mut volumes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for extent in self.extents.iter().filter(|extent| extent.usage == Use::Used) {
            volumes.entry(extent.volume).or_default().push(extent);
        }
        volumes.values_mut().for_each(|parts| parts.sort_by_key(|extent| extent.part));
        volumes
    }
}

/// What a person says beside the drives.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The cluster that is meant, if there are drives of several.
    pub cluster: Option<ClusterId>,
    /// Drives that are left out.
    pub without: BTreeSet<DriveId>,
}

/// What would be rebuilt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub cluster: ClusterId,
    /// The drives that it is rebuilt from, by id.
    pub drives: Vec<Reading>,
    /// How many are left out, because they are of another cluster or because a person said so.
    pub left_out: usize,
}

/// Why labels are not one cluster's, in words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Conflict {
    #[error("no drive with a label of Hotbay was found")]
    NoDrives,
    #[error("the drives are of several clusters: {}", counted(clusters))]
    SeveralClusters { clusters: BTreeMap<ClusterId, usize> },
    #[error("no drive of cluster {meant} was found; there are: {}", counted(clusters))]
    NoSuchCluster { meant: ClusterId, clusters: BTreeMap<ClusterId, usize> },
    #[error("no drive with the id {drive} was found, which is to be left out")]
    NoSuchDrive { drive: DriveId },
    #[error("drive {drive} is there twice, as {}: one is a copy", places.join(" and "))]
    SameDrive { drive: DriveId, places: Vec<String> },
    #[error("volumes overlap on {place} (drive {drive}): {}", names.join(", "))]
    Overlap { drive: DriveId, place: String, names: Vec<String> },
    #[error("volume {name} ({volume}) is on several drives: {}", places.join(" and "))]
    SameVolume { volume: VolumeId, name: VolumeName, places: Vec<String> },
    #[error("volume {name} ({volume}) is not whole on {place} (drive {drive}): a part is missing")]
    NotWhole { volume: VolumeId, name: VolumeName, place: String, drive: DriveId },
    #[error("several volumes are called {name}: {}", volumes.join(" and "))]
    SameName { name: VolumeName, volumes: Vec<String> },
}

fn counted(clusters: &BTreeMap<ClusterId, usize>) -> String {
    let told = clusters.iter().map(|(cluster, drives)| match drives {
        1 => format!("{cluster} (1 drive)"),
        drives => format!("{cluster} ({drives} drives)"),
    });
    told.collect::<Vec<_>>().join(", ")
}

impl Plan {
    /// Sorts out what was read. A drive that was read twice counts once.
    pub fn new(readings: Vec<Reading>, choice: &Choice) -> Result<Self, Vec<Conflict>> {
        let cluster = cluster_of(&readings, choice.cluster).map_err(|conflict| vec![conflict])?;
        let known = |drive: &&DriveId| readings.iter().any(|read| read.label.drive == **drive);
        if let Some(drive) = choice.without.iter().find(|drive| !known(drive)) {
            return Err(vec![Conflict::NoSuchDrive { drive: *drive }]);
        }
        let (meant, left): (Vec<_>, Vec<_>) = readings.into_iter().partition(|read| {
            read.label.cluster == cluster && !choice.without.contains(&read.label.drive)
        });
        let (mut drives, mut conflicts) = (BTreeMap::<DriveId, Reading>::new(), Vec::new());
        for read in meant {
            let id = read.label.drive;
            match drives.get(&id) {
                None => drop(drives.insert(id, read)),
                Some(known) if same_drive(known, &read) => {
                    if read.label.sequence > known.label.sequence {
                        drives.insert(id, read);
                    }
                }
                Some(known) => {
                    let places = vec![known.place(), read.place()];
                    conflicts.push(Conflict::SameDrive { drive: id, places });
                }
            }
        }
        let drives: Vec<_> = drives.into_values().collect();
        conflicts.extend(drives.iter().flat_map(conflicts_on));
        conflicts.extend(conflicts_between(&drives));
        let left_out = left.len();
        if conflicts.is_empty() { Ok(Self { cluster, drives, left_out }) } else { Err(conflicts) }
    }

    /// The records of a registry that has not led yet: its first term is begun when it starts.
    pub fn records(&self, now_ms: u64) -> Records {
        let registry = RegistryRecord {
            cluster: self.cluster,
            terms: Vec::new(),
            newest_certificate: CERTIFICATES,
        };
        let mut records = Records { registry: Some(registry), ..Records::default() };
        let (mut node_names, mut drive_names) = (BTreeSet::new(), BTreeSet::new());
        for node in self.nodes() {
            let digits = node.to_string();
            let name = short_name("node-", &digits, |name| node_names.contains(name));
            let record = node_record(node, &name);
            node_names.insert(name);
            records.nodes.push(record);
        }
        for read in &self.drives {
            let digits = read.label.drive.to_string();
            let name = short_name("d-", &digits, |name| drive_names.contains(name));
            drive_names.insert(name.clone());
            let mut drive = drive_record(read, name, now_ms);
            for (volume, extents) in read.volumes() {
                let parts: Vec<_> = extents.iter().map(|extent| extent.segment()).collect();
                records.volumes.push(VolumeRecord::of_label(extents[0], &parts, now_ms));
                drive.volumes.insert(volume, Allocation { parts, exclusive: false });
            }
            records.drives.push(drive);
        }
        records
    }

    /// The nodes that hold the drives, or held them last.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.drives.iter().map(|read| read.label.node).collect()
    }
}

/// The one cluster that the drives are of, or the one that is meant.
fn cluster_of(readings: &[Reading], meant: Option<ClusterId>) -> Result<ClusterId, Conflict> {
    let mut clusters = BTreeMap::new();
    for read in readings {
        *clusters.entry(read.label.cluster).or_insert(0) += 1;
    }
    match (meant, clusters.keys().next().copied()) {
        (_, None) => Err(Conflict::NoDrives),
        (Some(meant), Some(_)) if clusters.contains_key(&meant) => Ok(meant),
        (Some(meant), Some(_)) => Err(Conflict::NoSuchCluster { meant, clusters }),
        (None, Some(only)) if clusters.len() == 1 => Ok(only),
        (None, Some(_)) => Err(Conflict::SeveralClusters { clusters }),
    }
}

/// Whether a drive was read twice, such as by a file that was written on this machine.
fn same_drive(one: &Reading, other: &Reading) -> bool {
    one.device.evidence.compare(&other.device.evidence) == Comparison::Same
}

fn conflicts_on(read: &Reading) -> Vec<Conflict> {
    let (drive, place) = (read.label.drive, read.place());
    let overlapping: BTreeSet<_> = in_conflict(&read.extents).collect();
    let named = read.extents.iter().filter(|extent| overlapping.contains(&extent.volume));
    let names: BTreeSet<_> = named.map(|extent| extent.name.to_string()).collect();
    let mut conflicts = Vec::new();
    if !names.is_empty() {
        let names = names.into_iter().collect();
        conflicts.push(Conflict::Overlap { drive, place: place.clone(), names });
    }
    for (volume, parts) in read.volumes() {
        let whole = parts.iter().enumerate().all(|(number, extent)| extent.part as usize == number);
        if !whole {
            let (name, place) = (parts[0].name.clone(), place.clone());
            conflicts.push(Conflict::NotWhole { volume, name, place, drive });
        }
    }
    conflicts
}

fn conflicts_between(drives: &[Reading]) -> Vec<Conflict> {
    let mut places: BTreeMap<VolumeId, (VolumeName, Vec<String>)> = BTreeMap::new();
    let mut names: BTreeMap<VolumeName, BTreeSet<VolumeId>> = BTreeMap::new();
    for read in drives {
        for (volume, parts) in read.volumes() {
            let name = &parts[0].name;
            let at = places.entry(volume).or_insert_with(|| (name.clone(), Vec::new()));
            at.1.push(format!("{} (drive {})", read.place(), read.label.drive));
            names.entry(name.clone()).or_default().insert(volume);
        }
    }
    let twice = places.into_iter().filter(|(_, (_, places))| places.len() > 1);
    let twice = twice.map(|(volume, (name, places))| Conflict::SameVolume { volume, name, places });
    let alike = names.into_iter().filter(|(_, volumes)| volumes.len() > 1);
    let alike = alike.map(|(name, volumes)| Conflict::SameName {
        name,
        volumes: volumes.iter().map(ToString::to_string).collect(),
    });
    twice.chain(alike).collect()
}

fn node_record(id: NodeId, name: &str) -> NodeRecord {
    let name = name.parse().expect("digits behind a word are a name");
    NodeRecord { recovered: true, ..NodeRecord::new(id, name, MachineId::from_bits(0)) }
}

fn drive_record(read: &Reading, name: String, now_ms: u64) -> DriveRecord {
    let LabelSeen { drive: id, node, generation, in_operation, .. } = read.label;
    let observed = Observed { label: None, denied: Vec::new(), ..read.device.clone() };
    DriveRecord {
        id,
        name,
        node,
        added_bytes: observed.size_bytes,
        observed: Arc::new(observed),
        generation,
        // Neither is taken for done before the agent has said so.
        state: if in_operation { State::Attaching } else { State::Closing },
        removal_wanted: false,
        removed_alone: !in_operation,
        take_over: false,
        wipe: None,
        volumes: BTreeMap::new(),
        since_ms: now_ms,
        asked_by: String::new(),
    }
}

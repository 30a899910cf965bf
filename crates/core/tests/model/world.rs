//! The world of the model: registries with their stores, machines with their agents and drives, and the network
//! between them, all as one value. `registry` and `machine` say how it moves; the model checker (`check`) and the
//! generated histories (`histories.rs`) choose which way.
//!
//! Only the shells are written again here, as plainly as possible. Every decision is taken by core's own functions.
//! Beside what a shell knows the world keeps a few ghost values: what really happened, for the invariants to compare
//! with. Nothing is decided by a ghost value.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};
use std::sync::Arc;

use hotbay_core::agent::{Agent, AgentRecord, AttachAtStart, AttachWork, Kept};
use hotbay_core::cluster::{Cluster, Records, Write};
use hotbay_core::cms::Code;
use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::gate::Gate;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, NodeName};
use hotbay_core::label::change::{Basis, LabelTold};
use hotbay_core::label::extents::{Digest, Extent, encode};
use hotbay_core::message::{Answer, Order, Registered, Registration};
use hotbay_core::order::{Generation, Goal, Ordered};
use hotbay_core::rules::Rules;

use crate::invariants::Broken;

/// The one cluster of the model.
pub(crate) const CLUSTER: ClusterId = ClusterId::from_bits(0xc);

/// Everything there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) rules: Rules,
    /// The registry, and after it a copy of its data directory that was started as a registry of its own.
    pub(crate) sites: Vec<Arc<Site>>,
    pub(crate) machines: Vec<Arc<Machine>>,
    /// Messages under way, in no order: any of them may be next, late, or never arrive.
    pub(crate) network: Vec<Arc<Message>>,
    pub(crate) backup: Option<Arc<Backup>>,
    /// What the client wants of each drive: its last request that changed anything.
    pub(crate) wishes: BTreeMap<DriveId, Goal>,
    /// Volumes that were asked for: each has an id of its own, as in the product.
    pub(crate) volumes: u8,
    /// Ghost: for each reign of a registry, the reigns it comes from and itself.
    pub(crate) lineages: Vec<Reigns>,
    /// Ghost: the first invariant that a step broke.
    pub(crate) broken: Option<Broken>,
}

/// A set of reigns, a bit each.
pub(crate) type Reigns = u64;

/// A registry with its store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Site {
    /// Counts the starts of registries all over the world: the ghost of a term.
    pub(crate) reign: usize,
    pub(crate) cluster: Cluster,
    pub(crate) gate: Gate<Output>,
    /// Batches handed to the store and not yet durable, with their numbers.
    pub(crate) pending: Vec<(u64, Vec<Write>)>,
    /// Sessions accepted by this process.
    pub(crate) sessions: u64,
    pub(crate) durable: Records,
    /// Ghost: the reigns that the durable records come from.
    pub(crate) lineage: Reigns,
    /// Ghost: it, or what it was copied from, has lost a part of its past or has a rival.
    pub(crate) forked: bool,
    /// Ghost: per drive the generation that clients have heard of.
    pub(crate) told: BTreeMap<DriveId, Generation>,
    /// Ghost: per machine the newest start of its agent that registered with this process.
    pub(crate) newest_start: BTreeMap<usize, u64>,
    /// Machines whose last registration this process refused because they know newer things than it does.
    pub(crate) rewound_for: BTreeSet<usize>,
}

/// A copy of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Backup {
    pub(crate) durable: Records,
    pub(crate) lineage: Reigns,
}

/// What a registry says when everything that it follows from is durable.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    ToAgent(Box<Message>),
    Reply(ClientReply),
}

/// What a client hears.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ClientReply {
    pub(crate) drive: DriveId,
    pub(crate) wish: Goal,
    pub(crate) code: Code,
    /// Ghost: the drive's generation when this was decided.
    pub(crate) generation: Generation,
}

/// A connection: which process accepted it, as what number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    pub(crate) site: usize,
    pub(crate) reign: usize,
    pub(crate) number: u64,
}

/// A message under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Message {
    pub(crate) connection: Connection,
    pub(crate) machine: usize,
    pub(crate) body: Body,
}

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Register(Box<Registration>),
    Answer(Answer),
    Registered(Box<Registered>),
    /// The registration was refused.
    TurnedAway,
    Order(Order),
}

/// A machine with its agent, its agent's disk and its drives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    pub(crate) index: usize,
    /// Counts the starts of the agent.
    pub(crate) starts: u64,
    pub(crate) agent: Agent,
    /// The record that is being written.
    pub(crate) saving: Option<AgentRecord>,
    pub(crate) record: Option<AgentRecord>,
    /// Kept apart from the record, and not lost with it: identity and term.
    pub(crate) kept: Option<Kept>,
    /// Steps that a child of the agent is busy with.
    pub(crate) steps: BTreeMap<DriveId, ChildStep>,
    /// Drives whose pause before the next try is running.
    pub(crate) pauses: BTreeSet<DriveId>,
    pub(crate) connection: Option<Connection>,
    pub(crate) disks: Vec<Disk>,
    /// Ghost: the reign whose registration the agent accepted last.
    pub(crate) accepted: Option<usize>,
    /// Ghost: the same as the record that is being written will have it, and as the record on disk has it.
    pub(crate) accepted_saving: Option<usize>,
    pub(crate) accepted_saved: Option<usize>,
    /// Ghost: reigns under which the agent has answered or acted, or that counted a confirmation of it.
    pub(crate) served: Reigns,
    /// Ghost: what this machine's drives have really been brought to, by which start of the agent.
    pub(crate) completed: BTreeSet<(u64, DriveId, Generation, Goal)>,
}

/// One drive as it really is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) id: DriveId,
    pub(crate) label: Option<LabelSeen>,
    /// Of the label.
    pub(crate) extents: Vec<Extent>,
    /// A descriptor of the agent is on it.
    pub(crate) open: bool,
    /// For now the machine takes it for another drive with this drive's label.
    pub(crate) mistaken: bool,
    /// Ghost: the record that was lost said "detach", the label says "in operation", and the drive has not been
    /// detached since.
    pub(crate) misled: bool,
    /// Ghost: the newest order that was acted upon, as far as record or label can know of it.
    pub(crate) acted: Option<(Generation, Goal)>,
    /// Ghost: an order that was refused for its content, and has not been accepted since.
    pub(crate) refused: Option<Ordered>,
}

/// What a child of the agent does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum ChildStep {
    Attach(AttachWork),
    Relabel(AttachWork),
    Detach(Generation),
    Prove(Generation),
}

impl World {
    /// One registry that has taken the lead, and machines with unlabelled drives whose agents have never registered.
    pub(crate) fn new(rules: Rules, machines: usize, drives: usize) -> Self {
        let mut world = Self {
            rules,
            sites: Vec::new(),
            machines: (0..machines).map(|index| Machine::new(rules, index, drives)).collect(),
            network: Vec::new(),
            backup: None,
            wishes: BTreeMap::new(),
            volumes: 0,
            lineages: Vec::new(),
            broken: None,
        };
        let site = world.lead(Records::default(), 0);
        world.sites.push(Arc::new(site));
        world
    }

    pub(crate) fn site(&mut self, site: usize) -> &mut Site {
        Arc::make_mut(&mut self.sites[site])
    }

    pub(crate) fn machine(&mut self, machine: usize) -> &mut Machine {
        Arc::make_mut(&mut self.machines[machine])
    }

    /// Puts a message under way. The order of sending is forgotten, so that equal worlds are equal.
    pub(crate) fn send(&mut self, message: Message) {
        let place =
            |message: &Message| BuildHasherDefault::<DefaultHasher>::default().hash_one(message);
        let key = place(&message);
        let at = self.network.partition_point(|other| place(other) < key);
        self.network.insert(at, Arc::new(message));
    }

    /// Notes that an invariant is broken; the first one counts.
    pub(crate) fn breaks(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    pub(crate) fn drive_ids(&self) -> impl Iterator<Item = DriveId> + '_ {
        self.machines.iter().flat_map(|machine| machine.disks.iter().map(|disk| disk.id))
    }
}

/// The machine that has a drive.
pub(crate) fn machine_of(drive: DriveId) -> usize {
    usize::try_from(drive.to_bits() / 0x100).expect("ids of drives are small here") - 1
}

/// The place of a drive in its machine.
pub(crate) fn slot_of(drive: DriveId) -> usize {
    usize::try_from(drive.to_bits() % 0x100).expect("ids of drives are small here")
}

impl Machine {
    fn new(rules: Rules, index: usize, drives: usize) -> Arc<Self> {
        let disks: Vec<_> = (0..drives).map(|slot| Disk::blank(index, slot)).collect();
        let found = hotbay_core::agent::RecordFound::Absent(None);
        let devices = disks.iter().map(Disk::observed).collect();
        let (agent, effects) =
            Agent::start(rules, incarnation(index, 0), found, devices, AttachAtStart::default());
        assert!(effects.is_empty(), "nothing is wanted of blank drives");
        Arc::new(Self {
            index,
            starts: 0,
            agent,
            saving: None,
            record: None,
            kept: None,
            steps: BTreeMap::new(),
            pauses: BTreeSet::new(),
            connection: None,
            disks,
            accepted: None,
            accepted_saving: None,
            accepted_saved: None,
            served: 0,
            completed: BTreeSet::new(),
        })
    }

    pub(crate) fn incarnation(&self) -> Incarnation {
        incarnation(self.index, self.starts)
    }

    pub(crate) fn name(&self) -> NodeName {
        format!("n{}", self.index).parse().expect("a plain name")
    }

    pub(crate) fn machine_id(&self) -> MachineId {
        MachineId::from_bits(self.index as u128 + 1)
    }

    pub(crate) fn node_id(&self) -> NodeId {
        NodeId::from_bits(self.index as u128 + 1)
    }

    pub(crate) fn devices(&self) -> Vec<Observed> {
        self.disks.iter().map(Disk::observed).collect()
    }

    pub(crate) fn disk(&mut self, drive: DriveId) -> &mut Disk {
        &mut self.disks[slot_of(drive)]
    }
}

/// The incarnation of the given start of a machine's agent.
pub(crate) fn incarnation(machine: usize, start: u64) -> Incarnation {
    Incarnation::from_bits(((machine as u128 + 1) << 32) | u128::from(start))
}

/// Which start of its agent an incarnation is.
pub(crate) fn start_of(incarnation: Incarnation) -> u64 {
    u64::try_from(incarnation.to_bits() & 0xffff_ffff).expect("32 bits")
}

impl Disk {
    fn blank(machine: usize, slot: usize) -> Self {
        Self {
            id: DriveId::from_bits((machine as u128 + 1) * 0x100 + slot as u128),
            label: None,
            extents: Vec::new(),
            open: false,
            mistaken: false,
            misled: false,
            acted: None,
            refused: None,
        }
    }

    /// What an agent tells of the label. Its sequence stands for what is in it, or no world would come twice.
    pub(crate) fn told(&self) -> LabelTold {
        let digest = Digest::of(&encode(&self.extents));
        let basis = Basis { sequence: u64::from(digest.extents), checksum: digest.checksum };
        LabelTold { basis, extents: self.extents.clone(), limit_bytes: 1 << 30 }
    }

    /// The drive as a scan of the machine shows it.
    pub(crate) fn observed(&self) -> Observed {
        let wwn = if self.mistaken { "mistaken".to_owned() } else { self.id.to_bits().to_string() };
        Observed {
            evidence: Evidence { wwn: Some(wwn), ..Evidence::default() },
            path: "/dev/x".to_owned(),
            bay: None,
            kind: DeviceKind::Block,
            media: Media::Ssd,
            size_bytes: 1 << 40,
            block_bytes: 512,
            details: Default::default(),
            label: self.label,
            denied: Vec::new(),
        }
    }
}

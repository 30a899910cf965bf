//! Brings the trouble: draws a fault, does it, and has it undone after a while; and ends all trouble.

use hotbay_core::cluster::RecordKey;

use crate::drive::Disk;
use crate::fault::Fault;
use crate::log::note;
use crate::registry::Site;
use crate::scenario::{Kind, MINUTE, Millis, SECOND};
use crate::world::{AgentEvent, Event, World};

/// After the trouble: longer than the longest pause of the registry (75 s) and of an agent on a slow clock, a few
/// times over.
const SETTLE: Millis = 6 * MINUTE;
/// How long a machine takes at most to notice that a drive came or went.
const LOOK_EVERY: Millis = 5 * SECOND;

/// A fault that ends.
#[derive(Debug)]
pub(crate) enum Undo {
    Store { site: usize },
    Refused { site: usize, key: RecordKey },
    Rewound { site: usize },
    Network { machines: Vec<usize> },
    RecordFails { machine: usize },
    Blind { machine: usize },
    Disk { disk: usize, machine: usize },
    PutBack { disk: usize, machine: usize, bay: usize },
}

impl World {
    /// One fault, and when the next one comes.
    pub(crate) fn chaos(&mut self) {
        if self.trouble_over {
            return;
        }
        match self.rng.between(0, 99) {
            0..=9 => self.trouble_registry(),
            10..=24 => self.trouble_network(),
            25..=44 => self.trouble_agent(),
            45..=69 => self.trouble_disk(),
            70..=84 => self.trouble_bay(),
            85..=89 => self.fork(),
            _ => self.trouble_clock(),
        }
        let most = self.scenario.fault_pause_max;
        let pause = self.rng.between(100, most);
        self.after(pause, Event::Chaos);
    }

    /// A machine that trouble may befall.
    fn victim(&mut self) -> Option<usize> {
        let troubled = self.machines.iter().enumerate().filter(|(_, machine)| !machine.calm);
        let troubled: Vec<_> = troubled.map(|(number, _)| number).collect();
        self.rng.pick(&troubled)
    }

    pub(crate) fn undo_later(&mut self, undo: Undo) {
        // Most trouble is short; some lasts, so that pauses reach their longest.
        let most = if self.rng.chance(150) { 5 * MINUTE } else { 20 * SECOND };
        let pause = self.rng.between(200, most);
        self.after(pause, Event::Undo(undo));
    }

    fn trouble_registry(&mut self) {
        if self.scenario.kind == Kind::Isolation {
            return;
        }
        let site = self.rng.index(self.sites.len());
        if self.rng.chance(600) {
            self.crash_registry(site);
        } else {
            self.fault(Fault::StoreErrors);
            note!(self, "registry {site}: its store cannot be written");
            self.sites[site].failing = true;
            self.undo_later(Undo::Store { site });
        }
    }

    fn trouble_network(&mut self) {
        let Some(machine) = self.victim() else { return };
        let (fault, up, down) = match self.rng.between(0, 4) {
            0 => (Fault::PartitionOne, true, true),
            1 => (Fault::PartitionUp, true, false),
            2 => (Fault::PartitionDown, false, true),
            3 => (Fault::PartitionMany, true, true),
            _ => {
                let process = self.machines[machine].process.as_ref();
                if let Some(id) = process.and_then(|process| process.connection) {
                    self.cut(id);
                }
                return;
            }
        };
        let mut machines = vec![machine];
        if fault == Fault::PartitionMany {
            for other in 0..self.machines.len() {
                if other != machine && !self.machines[other].calm && self.rng.chance(500) {
                    machines.push(other);
                }
            }
        }
        self.fault(fault);
        for machine in &machines {
            self.block(*machine, up, down);
        }
        self.undo_later(Undo::Network { machines });
    }

    fn trouble_agent(&mut self) {
        let Some(machine) = self.victim() else { return };
        match self.rng.between(0, 9) {
            0..=5 => {
                let idle = self.machines[machine]
                    .process
                    .as_ref()
                    .is_some_and(|process| process.saving.is_none() && process.steps.is_empty());
                if idle {
                    self.fault(Fault::AgentCrash);
                }
                self.crash_agent(machine);
            }
            6..=7 => {
                self.machines[machine].record_fails = true;
                self.undo_later(Undo::RecordFails { machine });
            }
            _ => {
                self.machines[machine].blind = true;
                self.undo_later(Undo::Blind { machine });
            }
        }
    }

    fn trouble_disk(&mut self) {
        let Some(machine) = self.victim() else { return };
        let there: Vec<_> = self.machines[machine].bays.iter().copied().flatten().collect();
        let Some(number) = self.rng.pick(&there) else { return };
        let kind = self.rng.between(0, 5);
        let disk = &mut self.disks[number];
        match kind {
            0 | 1 => disk.hangs = true,
            2 => disk.attach_fails = true,
            3 => disk.label_fails = true,
            4 => disk.foreign = true,
            _ => {
                disk.mistaken = true;
                self.fault(Fault::EvidenceMismatch);
                note!(self, "{}: misreads a drive", self.machines[machine].name);
                self.look_soon(machine);
            }
        }
        self.undo_later(Undo::Disk { disk: number, machine });
    }

    fn trouble_bay(&mut self) {
        let Some(machine) = self.victim() else { return };
        let bay = self.rng.index(self.machines[machine].bays.len());
        let Some(disk) = self.machines[machine].bays[bay].take() else { return };
        note!(self, "{}: the drive in bay {bay} is pulled", self.machines[machine].name);
        self.fault(Fault::DrivePulled);
        // Whatever reached into it leads nowhere from here on.
        self.machines[machine].mapped.retain(|_, mapping| mapping.disk != disk);
        self.look_soon(machine);
        let moves = self.scenario.takes_over && self.rng.chance(400);
        let fate = if moves { 8 } else { self.rng.between(0, 9) };
        match fate {
            0..=5 => self.undo_later(Undo::PutBack { disk, machine, bay }),
            6..=7 => {
                self.fault(Fault::DriveSwapped);
                let number = self.disks.len();
                let new = Disk::new(&mut self.rng, number);
                self.disks.push(new);
                self.undo_later(Undo::PutBack { disk: number, machine, bay });
            }
            8 => {
                let Some(other) = self.victim() else { return };
                let to = self.rng.index(self.machines[other].bays.len());
                self.fault(Fault::DriveMoved);
                self.undo_later(Undo::PutBack { disk, machine: other, bay: to });
                // Where people have drives taken over, what is in its way takes its place.
                if moves && let Some(disk) = self.machines[other].bays[to].take() {
                    self.machines[other].mapped.retain(|_, mapping| mapping.disk != disk);
                    self.look_soon(other);
                    self.undo_later(Undo::PutBack { disk, machine, bay });
                }
            }
            // It stays on the shelf.
            _ => {}
        }
    }

    /// The machine looks at its devices soon.
    fn look_soon(&mut self, machine: usize) {
        let pause = self.rng.between(1, LOOK_EVERY);
        self.agent_after(machine, pause, AgentEvent::Look);
    }

    fn trouble_clock(&mut self) {
        if self.rng.chance(500) {
            self.fault(Fault::WallClockJump);
            self.sites[0].wall_offset_ms = self.rng.between(0, 1 << 40);
        }
    }

    /// The registry's past splits.
    fn fork(&mut self) {
        match self.scenario.kind {
            Kind::Ordinary | Kind::Isolation => {}
            Kind::Restored => self.back_up_or_restore(),
            Kind::Rival if self.sites.len() == 1 => self.start_rival(),
            Kind::Rival => {
                let Some(machine) = self.victim() else { return };
                self.fault(Fault::NodeDialsRival);
                let there = &mut self.machines[machine];
                there.site = 1 - there.site;
                note!(self, "{}: dials registry {} from now on", there.name, there.site);
                let process = self.machines[machine].process.as_ref();
                if let Some(id) = process.and_then(|process| process.connection) {
                    self.cut(id);
                }
            }
        }
    }

    fn back_up_or_restore(&mut self) {
        let backup = self.sites[0].backup.take();
        let Some(backup) = backup else {
            // A store that nobody has led yet has nothing to come back to.
            if self.sites[0].store.registry.is_some() {
                note!(self, "registry 0: a backup is taken");
                self.sites[0].backup = Some(self.sites[0].store.clone());
            }
            return;
        };
        self.fault(Fault::BackupRestored);
        self.crash_registry(0);
        note!(self, "registry 0: the backup is RESTORED");
        self.sites[0].store = backup;
        self.sites[0].forked = true;
        self.past_is_gone(0);
        if self.scenario.adopts {
            self.undo_later(Undo::Rewound { site: 0 });
        }
    }

    fn start_rival(&mut self) {
        if self.sites[0].store.registry.is_none() {
            return;
        }
        self.fault(Fault::RivalStarted);
        note!(self, "registry 1: starts on a COPY of registry 0");
        let store = self.sites[0].store.clone();
        self.sites[0].forked = true;
        self.sites.push(Site { store, forked: true, ..Site::default() });
        self.after(1, Event::Lead { site: 1 });
        if let Some(client) = self.clients.last_mut() {
            client.site = 1;
        }
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Store { site } => self.sites[site].failing = false,
            Undo::Refused { site, key } => drop(self.sites[site].refused.remove(&key)),
            Undo::Rewound { site } => self.adopt(site),
            Undo::Network { machines } => {
                for machine in machines {
                    self.unblock(machine);
                }
            }
            Undo::RecordFails { machine } => self.machines[machine].record_fails = false,
            Undo::Blind { machine } => self.machines[machine].blind = false,
            Undo::Disk { disk, machine } => {
                self.well_again(disk);
                self.look_soon(machine);
            }
            Undo::PutBack { disk, machine, bay } => {
                let there = &mut self.machines[machine].bays[bay];
                if there.is_none() {
                    *there = Some(disk);
                    self.fault(Fault::DrivePutBack);
                    note!(self, "{}: a drive is put into bay {bay}", self.machines[machine].name);
                    self.look_soon(machine);
                }
            }
        }
    }

    fn well_again(&mut self, disk: usize) {
        let disk = &mut self.disks[disk];
        disk.mistaken = false;
        disk.attach_fails = false;
        disk.label_fails = false;
        disk.foreign = false;
        disk.hangs = false;
    }

    /// From here on nothing goes wrong any more; what is still away stays away.
    pub(crate) fn trouble_ends(&mut self) {
        note!(self, "ALL TROUBLE IS OVER");
        self.trouble_over = true;
        for site in &mut self.sites {
            site.failing = false;
            site.refused.clear();
        }
        for disk in 0..self.disks.len() {
            self.well_again(disk);
        }
        for machine in 0..self.machines.len() {
            self.machines[machine].record_fails = false;
            self.machines[machine].blind = false;
            self.unblock(machine);
            self.look_soon(machine);
        }
        if self.scenario.adopts {
            // By then every node has been heard.
            self.after(MINUTE, Event::Undo(Undo::Rewound { site: 0 }));
        }
        self.after(SETTLE, Event::End);
    }
}

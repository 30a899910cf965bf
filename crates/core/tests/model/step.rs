//! The steps that a world can take, by name, and their words for a reader of a broken history.

use std::fmt;

use hotbay_core::ids::{DriveId, SessionNumber};
use hotbay_core::message::AnswerResult;
use hotbay_core::order::Goal;

use crate::bounds::Late;
use crate::machine::WorkEnd;
use crate::world::{Body, Message, World, machine_of};

/// One step of the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Client { site: usize, drive: DriveId, wish: Goal },
    Place { machine: usize },
    Free { drive: DriveId },
    BatchDurable { site: usize },
    RestartRegistry { site: usize },
    MakeBackup,
    RestoreBackup,
    StartCopy,
    Resend { site: usize, drive: DriveId },
    SessionClosed { site: usize, session: SessionNumber },
    Connect { machine: usize, site: usize },
    Deliver { message: Message, keep: bool },
    Lose { message: Message },
    Saved { machine: usize },
    SaveFailed { machine: usize },
    WorkEnds { drive: DriveId, end: WorkEnd },
    PauseOver { drive: DriveId },
    RestartAgent { machine: usize, lose_record: bool },
    Mistake { drive: DriveId },
}

/// What a step led to that its caller counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Something was asked for or done that was not so before.
    Changed,
    /// Only a question was answered.
    Unchanged,
}

impl World {
    /// Takes a step.
    pub(crate) fn take(&mut self, step: Step, late: Late) -> Outcome {
        match step {
            Step::Client { site, drive, wish } => {
                if !self.client(site, drive, wish) {
                    return Outcome::Unchanged;
                }
            }
            Step::Place { machine } => {
                self.place(0, machine);
            }
            Step::Free { drive } => self.free(0, drive),
            Step::BatchDurable { site } => self.batch_durable(site),
            Step::RestartRegistry { site } => self.restart_registry(site),
            Step::MakeBackup => self.make_backup(),
            Step::RestoreBackup => self.restore_backup(),
            Step::StartCopy => self.start_copy(),
            Step::Resend { site, drive } => {
                self.resend(site, drive);
            }
            Step::SessionClosed { site, session } => self.session_closed(site, session),
            Step::Connect { machine, site } => self.connect(machine, site),
            Step::Deliver { message, keep } => {
                if !keep {
                    self.lose(&message);
                }
                self.arrives(message, late);
            }
            Step::Lose { message } => self.lose(&message),
            Step::Saved { machine } => self.saved(machine),
            Step::SaveFailed { machine } => self.save_failed(machine),
            Step::WorkEnds { drive, end } => self.work_ends(machine_of(drive), drive, end),
            Step::PauseOver { drive } => self.pause_over(drive, machine_of(drive)),
            Step::RestartAgent { machine, lose_record } => self.restart_agent(machine, lose_record),
            Step::Mistake { drive } => self.mistake(machine_of(drive), drive),
        }
        Outcome::Changed
    }

    fn lose(&mut self, message: &Message) {
        let at = self.network.iter().position(|under_way| **under_way == *message);
        self.network.remove(at.expect("only what is under way arrives or is lost"));
    }

    fn arrives(&mut self, message: Message, late: Late) {
        let Message { connection, machine, body } = message;
        let current = self.machines[machine].connection == Some(connection);
        match body {
            Body::Register(registration) => {
                if self.sites[connection.site].reign == connection.reign {
                    self.registration_arrives(connection, machine, *registration);
                }
            }
            Body::Answer(answer) => {
                let newest = self.machines[machine].connection.filter(|_| late == Late::Answers);
                self.answer_arrives(newest.unwrap_or(connection), answer);
            }
            Body::Registered(registered) => {
                if current || late == Late::Registered {
                    self.registered_arrives(machine, connection, *registered);
                }
            }
            Body::TurnedAway => self.turned_away(machine, connection),
            Body::Order(order) => self.order_arrives(machine, connection.reign, order),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let registry = |site: &usize| if *site == 0 { "the registry" } else { "the copy" };
        match self {
            Self::Client { site, drive, wish } => {
                let verb = if *wish == Goal::Attach { "Add" } else { "Remove" };
                write!(f, "client: {verb} {} at {}", short(*drive), registry(site))
            }
            Self::Place { machine } => write!(f, "a volume is asked for on machine {machine}"),
            Self::Free { drive } => write!(f, "the volume is off {}", short(*drive)),
            Self::BatchDurable { site } => write!(f, "{}: a batch is durable", registry(site)),
            Self::RestartRegistry { site } => write!(f, "{}: killed, started", registry(site)),
            Self::MakeBackup => f.write_str("a backup is made of the registry's store"),
            Self::RestoreBackup => f.write_str("the backup is restored, the registry started"),
            Self::StartCopy => f.write_str("a copy of the store is started as a second registry"),
            Self::Resend { site, drive } => {
                write!(f, "{}: sends what it owes {} again", registry(site), short(*drive))
            }
            Self::SessionClosed { site, session } => {
                write!(f, "{}: notices that session {} is over", registry(site), session.get())
            }
            Self::Connect { machine, site } => {
                write!(f, "agent {machine}: connects to {} and registers", registry(site))
            }
            Self::Deliver { message, keep: false } => write!(f, "arrives: {message}"),
            Self::Deliver { message, keep: true } => write!(f, "arrives, doubled: {message}"),
            Self::Lose { message } => write!(f, "lost: {message}"),
            Self::Saved { machine } => write!(f, "agent {machine}: its record is on disk"),
            Self::SaveFailed { machine } => write!(f, "agent {machine}: its record is not written"),
            Self::WorkEnds { drive, end } => write!(f, "step on {} ends: {end:?}", short(*drive)),
            Self::PauseOver { drive } => write!(f, "the pause for {} is over", short(*drive)),
            Self::RestartAgent { machine, lose_record: false } => {
                write!(f, "agent {machine}: killed, started")
            }
            Self::RestartAgent { machine, lose_record: true } => {
                write!(f, "agent {machine}: killed, its record lost, started")
            }
            Self::Mistake { drive } => {
                write!(f, "{} is taken for another drive, or known again", short(*drive))
            }
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let session = format!("reign {} session {}", self.connection.reign, self.connection.number);
        match &self.body {
            Body::Register(registration) => {
                let newest = registration.newest_term.map_or(0, |term| term.number);
                write!(f, "registration ({session}, newest term {newest}")?;
                for report in &registration.drives {
                    let (generation, goal) =
                        report.newest().unwrap_or((Default::default(), Goal::Detach));
                    let open = if report.open { "open" } else { "closed" };
                    write!(f, ", {} {open}, {goal} {generation}", short(report.drive))?;
                }
                f.write_str(")")
            }
            Body::Answer(answer) => {
                let said = match &answer.result {
                    AnswerResult::Done => "done".to_owned(),
                    AnswerResult::Waiting(obstacle) => format!("waiting: {obstacle}"),
                    AnswerResult::Refused(refused) => format!("refused: {refused}"),
                };
                let ordered = answer.ordered;
                write!(f, "answer ({session}) to {} {}: {said}", ordered.goal, ordered.stamp)
            }
            Body::Registered(registered) => {
                write!(f, "registered ({session}, term {}", registered.term.number)?;
                for order in registered.allowed.iter().chain(&registered.unknown) {
                    write!(f, ", {} {}", order.ordered.goal, order.ordered.stamp.generation)?;
                }
                f.write_str(")")
            }
            Body::TurnedAway => write!(f, "registration refused ({session})"),
            Body::Order(order) => {
                let start = crate::world::start_of(order.incarnation);
                let ordered = order.ordered;
                write!(f, "order ({session}, start {start}): {} {}", ordered.goal, ordered.stamp)
            }
        }
    }
}

fn short(drive: DriveId) -> String {
    format!("drive {:x}", drive.to_bits())
}

impl World {
    /// Where each drive is, in one line.
    pub(crate) fn in_words(&self) -> String {
        let mut words = Vec::new();
        for (number, site) in self.sites.iter().enumerate() {
            for drive in site.cluster.drives() {
                let record = &drive.record;
                let name = if number == 0 { "registry" } else { "copy" };
                let pending = site.pending.len();
                words.push(format!(
                    "{name} {} {} ({:?}, {pending} batches pending)",
                    record.state, record.generation, drive.contact
                ));
            }
        }
        for disk in self.machines.iter().flat_map(|machine| &machine.disks) {
            let open = if disk.open { "open" } else { "closed" };
            let label = disk.label.map_or("no label".to_owned(), |label| {
                let word = if label.in_operation { "in operation" } else { "released" };
                format!("label {} {word}", label.generation)
            });
            words.push(format!("{} {open}, {label}", short(disk.id)));
        }
        words.join("; ")
    }
}

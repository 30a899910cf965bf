//! The agent's loop: waits for the next event, steps the machine, carries out what it says.

mod csi;
mod devices;
mod locate;
mod marks;
mod retries;
mod stagings;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::agent::{Agent, AgentRecord, AttachAtStart, Effect, Event, Identity};
use hotbay_core::device::Observed;
use hotbay_core::ids::{DriveId, Incarnation, MachineId, NodeName, VolumeId};
use hotbay_core::message::{AgentVersion, NodeCondition};
use hotbay_core::node_labels::NodeLabels;
use hotbay_core::order::OrderId;
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::VolumeReport;
use hotbay_csi::serve::BindError;
use hotbay_host::locks::{AgentLock, LockError};
use hotbay_host::mapping::has_device_mapper;
use hotbay_host::worker::{Limits, Workers};
use hotbay_host::{RuntimeDir, RuntimeDirError};
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::dial::RegistryAt;
use crate::discovery::{Context, Discovery, Found, Handled, Metrics, Place, after_look};
use crate::drives::{Drives, StepEnd};
use crate::filters::{CHECK_EVERY, FilterFile};
use crate::link::{self, News};
use crate::metrics_socket;
use crate::state_dir::{StateDir, StateDirError};
use crate::volumes::{Children, Platform, Question, Stagings, bring_back};
use marks::Mark;
use retries::Retries;

/// How often a registry that does not answer, and drives that have gone unnoticed, are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a registry may take to answer a registration.
const REGISTRATION_LIMIT: Duration = Duration::from_secs(15);
/// How many finished steps and messages wait for the loop.
const WAITING: usize = 1_024;
/// The folder of the files behind dummies, below the agent's own.
const DUMMIES: &str = "dummies";
/// The pause before a record that could not be written is written again.
const SAVE_RETRY: Duration = Duration::from_secs(1);
/// How long children get, at the end, to take over the descriptors.
const LET_GO_LIMIT: Duration = Duration::from_millis(500);

/// What an agent needs to know.
#[derive(Debug, Clone)]
pub struct Config {
    pub name: NodeName,
    pub data_dir: PathBuf,
    pub registry: RegistryAt,
    /// Which devices to look at; empty for all.
    pub places: Vec<Place>,
    /// How the node is labelled when it registers for the first time.
    pub labels: NodeLabels,
    /// The file with the filters of this machine, if it has any.
    pub filters: Option<PathBuf>,
    /// Room for events of devices, in bytes; as much as is sensible if left out.
    pub receive_buffer: Option<usize>,
    /// What to open before the registry has said anything.
    pub at_start: AttachAtStart,
    /// The release that this is.
    pub version: AgentVersion,
    /// Freshly drawn for this start.
    pub incarnation: Incarnation,
    /// Freshly drawn, for a folder that has no id yet.
    pub folder_id: u128,
    /// Where CSI's Node service is served; nowhere if left out.
    pub csi: Option<PathBuf>,
    /// Called at every step that a crash could fall between; tests die there.
    pub checkpoint: fn(&'static str),
}

/// Why an agent does not start.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error(
        "another agent runs as {name} on this machine; stop it first, or choose another --name"
    )]
    Running {
        name: NodeName,
        #[source]
        source: LockError,
    },
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(transparent)]
    Csi(#[from] BindError),
}

/// Runs an agent until `stop` ends.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), NodeError> {
    let runtime_dir = RuntimeDir::of_this_user()?;
    let _lock = AgentLock::take(&runtime_dir, &config.name)
        .map_err(|source| NodeError::Running { name: config.name.clone(), source })?;
    let state_dir = StateDir::open(&config.data_dir, config.checkpoint)?;
    let machine = state_dir.machine(config.folder_id)?;
    let workers = Workers::of_this_program(runtime_dir, Limits::default());
    let (ends, ended) = mpsc::channel(WAITING);
    let (news_sender, news) = mpsc::channel(WAITING);
    let (questions, asked) = mpsc::channel(WAITING);
    let csi = csi::bind(config.csi.as_deref())?;
    let platform = platform(&config, questions, Children::new(workers.clone()))?;
    bring_back(&config.data_dir, &platform);
    let drives = Drives::new(workers.clone(), ends.clone());
    let found = state_dir.load();
    let metrics = Metrics::default();
    let first = devices::first_context(&found, config.at_start);
    let (context, context_receiver) = watch::channel(first);
    let (places, buffer) = (&config.places, config.receive_buffer);
    let (discovery, mut machine_found) =
        Discovery::start(workers, places, buffer, context_receiver, metrics.clone()).await;
    let Found { devices, hanging } = machine_found.borrow_and_update().clone();
    let mut handled = Handled::new();
    let (mut devices, _) = after_look(&[], &devices, &mut handled);
    let filters = FilterFile::open(config.filters.clone());
    devices.iter_mut().for_each(|device| filters.apply(device));
    let (agent, effects) =
        Agent::start(Rules::default(), config.incarnation, found, devices.clone(), config.at_start);
    let mut shell = Shell {
        agent,
        name: config.name,
        labels: config.labels,
        version: config.version,
        machine,
        state_dir,
        drives,
        platform: platform.clone(),
        told_stagings: BTreeMap::new(),
        marks: Vec::new(),
        ends,
        connection: None,
        reported: devices,
        told: Vec::new(),
        hanging,
        handled,
        not_ours: BTreeSet::new(),
        context,
        metrics: metrics.clone(),
        unpublished: VecDeque::new(),
        filters,
        reports: 0,
        retries: BTreeMap::new(),
    };
    shell.perform(effects);
    let linked = tokio::spawn(link::keep(config.registry, news_sender));
    let discovering = tokio::spawn(discovery.run());
    tokio::select! {
        () = shell.serve(machine_found, ended, news, asked, stop) => {}
        served = csi::serve(csi, platform) => tracing::error!("CSI is not served any more: {served:?}"),
        () = metrics_socket::serve(&config.data_dir, metrics) => unreachable!("it answers until it is dropped"),
    }
    discovering.abort();
    linked.abort();
    shell.drives.let_go();
    // The children have the descriptors once they have read them; one that hangs must not keep us.
    tokio::time::sleep(LET_GO_LIMIT).await;
    Ok(())
}

/// What carries out the calls of CSI.
fn platform(
    config: &Config,
    questions: mpsc::Sender<Question>,
    children: Children,
) -> Result<Platform, NodeError> {
    let stagings = Stagings::open(&config.data_dir, config.checkpoint)?;
    let dummies = config.data_dir.join(DUMMIES);
    // Loop devices are known by the whole path of what is behind them.
    let dummies = std::path::absolute(&dummies).unwrap_or(dummies);
    Ok(Platform { questions, children, stagings, dummies })
}

struct Shell {
    agent: Agent,
    name: NodeName,
    labels: NodeLabels,
    version: AgentVersion,
    machine: MachineId,
    state_dir: StateDir,
    drives: Drives,
    platform: Platform,
    /// What the registry has heard of stagings in this session.
    told_stagings: BTreeMap<VolumeId, VolumeReport>,
    /// Volumes whose label is to say that they have a filesystem.
    marks: Vec<Mark>,
    ends: mpsc::Sender<StepEnd>,
    connection: Option<Connection>,
    /// The devices and conditions that the registry has heard of.
    reported: Vec<Observed>,
    told: Vec<NodeCondition>,
    /// Devices that may be any drive.
    hanging: Vec<String>,
    /// The looks at devices that have been taken note of.
    handled: Handled,
    /// Drives that could not be attached for what is on them. Nobody has anything of ours to be left alone there.
    not_ours: BTreeSet<DriveId>,
    /// What discovery is to know.
    context: watch::Sender<Context>,
    metrics: Metrics,
    /// Reports that the registry has not said to have, and when what they tell was known.
    unpublished: VecDeque<(u64, Instant)>,
    filters: FilterFile,
    reports: u64,
    retries: BTreeMap<DriveId, Retries>,
}

struct Connection {
    number: u64,
    to_registry: mpsc::Sender<FromAgent>,
    /// When the registration must have been answered.
    answer_by: Instant,
}

impl Shell {
    async fn serve(
        &mut self,
        mut found: watch::Receiver<Found>,
        mut ended: mpsc::Receiver<StepEnd>,
        mut news: mpsc::Receiver<News>,
        mut asked: mpsc::Receiver<Question>,
        stop: impl Future<Output = ()>,
    ) {
        let mut look = tokio::time::interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        let mut check_filters = tokio::time::interval(CHECK_EVERY);
        let mut stagings_changed = self.platform.stagings.changes();
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return,
                Some(end) = ended.recv() => self.step_ended(end),
                Some(news) = news.recv() => self.heard(news),
                Some(question) = asked.recv() => self.answer(question),
                Ok(()) = stagings_changed.changed() => self.tell_stagings(),
                Ok(()) = found.changed() => {
                    let found = found.borrow_and_update().clone();
                    self.looked(found);
                }
                _ = check_filters.tick() => if self.filters.check().is_some() {
                    self.publish(self.agent.devices().to_vec());
                },
                _ = look.tick() => {
                    self.give_up_a_silent_registry();
                    self.close_what_is_gone();
                }
            }
            self.tell_discovery();
            self.look_at_the_dead();
        }
    }

    fn step_ended(&mut self, end: StepEnd) {
        let event = match end {
            StepEnd::Opened { drive, descriptor, id, label, told } => {
                self.drives.opened(drive, descriptor, id);
                self.drives.labelled(drive, told);
                self.look_at_remade(drive);
                Event::Attached { drive, result: Ok(label) }
            }
            StepEnd::StillOpen { drive, descriptor, id, obstacle } => {
                self.drives.opened(drive, descriptor, id);
                Event::StillOpen { drive, obstacle }
            }
            StepEnd::Relabelled { drive, label, told } => {
                self.drives.labelled(drive, told);
                Event::Attached { drive, result: Ok(label) }
            }
            StepEnd::LabelChanged { drive, told, result } => {
                if let Some(told) = told {
                    self.drives.labelled(drive, told);
                }
                self.note_failed_marks(drive, &result);
                Event::LabelChanged { drive, result }
            }
            StepEnd::Event(event) => event,
        };
        self.note_not_ours(&event);
        let well = match &event {
            Event::Attached { drive, result: Ok(_) }
            | Event::Closed { drive, result: Ok(()), .. } => Some(*drive),
            _ => None,
        };
        let effects = self.agent.step(event);
        // A drive that is closed, with a label that could not be written, is tried again all the same.
        if let Some(drive) = well.filter(|drive| !effects.contains(&Effect::RetryLater(*drive))) {
            self.retries.remove(&drive);
        }
        self.perform(effects);
        self.write_marks();
    }

    fn heard(&mut self, news: News) {
        match news {
            News::Connected { connection, to_registry } => {
                self.reported = self.agent.devices().to_vec();
                let mut registration = self.agent.registration(self.name.clone(), self.machine);
                self.told = self.filters.conditions();
                registration.conditions.clone_from(&self.told);
                registration.labels.clone_from(&self.labels);
                registration.device_mapper = has_device_mapper();
                registration.program.version = Some(self.version.clone());
                let answer_by = Instant::now() + REGISTRATION_LIMIT;
                let connection = Connection { number: connection, to_registry, answer_by };
                self.connection = Some(connection);
                self.tell(FromAgent::Register(registration));
            }
            News::Said { connection, message } if self.is_current(connection) => {
                self.said(*message);
            }
            News::Lost { connection } if self.is_current(connection) => {
                self.connection = None;
                // The next registration tells everything.
                self.unpublished.clear();
                let effects = self.agent.step(Event::SessionLost);
                self.perform(effects);
            }
            News::Said { .. } | News::Lost { .. } => {}
        }
    }

    /// A registration that is not answered is sent again over another connection. Looked at with every look.
    fn give_up_a_silent_registry(&mut self) {
        let late = |connection: &Connection| connection.answer_by < Instant::now();
        if self.agent.session().is_none() && self.connection.as_ref().is_some_and(late) {
            tracing::warn!("the registry has not answered the registration; asking again");
            self.connection = None;
        }
    }

    fn is_current(&self, number: u64) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.number == number)
    }

    fn said(&mut self, message: FromRegistry) {
        let event = match message {
            FromRegistry::Registered(registered) => {
                tracing::info!(session = registered.session.get(), "registered");
                for order in registered.allowed.iter().chain(&registered.unknown) {
                    tracing::info!(order = %order.id(), "ordered to {}", order.ordered.goal);
                }
                Event::Registered(registered)
            }
            FromRegistry::RegistrationRefused { reason, message } => {
                tracing::error!(reason, "the registry refuses this node: {message}");
                return;
            }
            FromRegistry::Order(order) => {
                tracing::info!(order = %order.id(), "ordered to {}", order.ordered.goal);
                Event::Order(order)
            }
            FromRegistry::LabelOrder(order) => Event::LabelOrder(order),
            FromRegistry::UseOrder(order) => Event::UseOrder(order),
            FromRegistry::ReportTaken { number } => {
                while let Some((_, known)) =
                    self.unpublished.pop_front_if(|(reported, _)| *reported <= number)
                {
                    self.metrics.published(known.elapsed());
                }
                return;
            }
        };
        let registered = matches!(event, Event::Registered(_));
        let effects = self.agent.step(event);
        self.perform(effects);
        if registered {
            self.tell_all_stagings();
            // What has changed since the registration was sent could not be told, and nobody tells it again.
            self.publish(self.agent.devices().to_vec());
        }
    }

    fn identity(&self) -> Option<Identity> {
        self.agent.record().identity
    }

    fn tell(&mut self, message: FromAgent) {
        let Some(connection) = &self.connection else { return };
        if connection.to_registry.try_send(message).is_err() {
            // Lost, or a registry that does not read. Everything is said again at the next registration.
            self.connection = None;
            self.agent.step(Event::SessionLost);
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Save(record) => self.save(record),
                Effect::Attach(work) => {
                    self.log_start(work.drive, "attaching");
                    let (at, identity) = self.at_work(&work);
                    self.drives.attach(work, at, identity);
                }
                Effect::Relabel(work) => {
                    self.log_start(work.drive, "bringing the label up to date");
                    let (at, identity) = self.at_work(&work);
                    self.drives.relabel(work, at, identity);
                }
                Effect::Detach { drive, generation } => {
                    self.log_start(drive, "closing");
                    let identity = self.identity().expect("an order names the cluster");
                    let at = self.place_of(drive);
                    let order = (generation, self.agent.is_given_up(drive));
                    self.drives.detach(drive, at, identity, order);
                }
                Effect::Prove { drive, generation } => {
                    self.log_start(drive, "proving that it is closed");
                    self.prove(drive, generation);
                }
                Effect::Send(answer) => {
                    tracing::info!(order = %answer.order(), "answering: {}", answer.result);
                    self.tell(FromAgent::Answer(answer));
                }
                effect @ (Effect::ChangeLabel { .. }
                | Effect::TellLabel(_)
                | Effect::SendLabel(_)
                | Effect::SendUse(_)
                | Effect::EndUse { .. }) => self.perform_for_volumes(effect),
                Effect::RetryLater(drive) => self.retry_later(drive),
                Effect::RefuseSession(refused) => {
                    tracing::error!("this registry is not obeyed: {refused}");
                    // Dropping the sender ends the connection; another one is dialled.
                    self.connection = None;
                }
                Effect::Alarm { drive, refused } => {
                    tracing::error!(%drive, "ALARM: an order is refused: {refused}");
                }
            }
        }
    }

    /// A step that is tried again and again is told once.
    fn log_start(&self, drive: DriveId, step: &str) {
        let ordered = self.agent.in_force(drive);
        // Without an order it follows from the drive's label.
        let order = ordered.map(|ordered| OrderId::new(drive, ordered.stamp));
        let order = order.map(tracing::field::display);
        let goal = ordered.map(|ordered| ordered.goal);
        if self.retries.get(&drive).is_some_and(|retries| retries.goal == goal) {
            tracing::debug!(order, %drive, "{step} again");
        } else {
            tracing::info!(order, %drive, "{step}");
        }
    }

    fn save(&self, record: AgentRecord) {
        let (state_dir, ends) = (self.state_dir.clone(), self.ends.clone());
        tokio::spawn(async move {
            loop {
                let (writer, copy) = (state_dir.clone(), record.clone());
                let saved = tokio::task::spawn_blocking(move || writer.save(&copy)).await;
                let event = match saved {
                    Ok(Ok(())) => Event::Saved,
                    Ok(Err(error)) => {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        let error = format!("{error}: {}", cause.unwrap_or_default());
                        tracing::error!("{error}");
                        Event::SaveFailed { error }
                    }
                    // The runtime is ending.
                    Err(_) => return,
                };
                let done = event == Event::Saved;
                if ends.send(StepEnd::Event(event)).await.is_err() || done {
                    return;
                }
                tokio::time::sleep(SAVE_RETRY).await;
            }
        });
    }
}

#[cfg(test)]
mod tests;

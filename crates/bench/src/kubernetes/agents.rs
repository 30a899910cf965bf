//! Agents in this process, each with a connection and a session of its own, as the real one has: it registers, carries
//! out every order at once, keeps what it was told, and dials again when its session ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hotbay_api::agent::AgentMessage;
use hotbay_api::agent::agents_client::AgentsClient;
use hotbay_api::cms::cms_client::CmsClient;
use hotbay_api::cms::{ActRequest, Action, ActionType};
use hotbay_api::convert::{FromAgent, FromRegistry, from_registry, to_registry};
use hotbay_api::{MESSAGE_LIMIT_BYTES, PROTOCOL};
use hotbay_core::device::LabelSeen;
use hotbay_core::ids::{ClusterId, DriveId, NodeId};
use hotbay_core::label::change::{Basis, LabelTold, applied};
use hotbay_core::label::extents::Extent;
use hotbay_core::message::{DriveReport, Order, RecordHealth, Registered, Registration};
use hotbay_core::order::Term;
use hotbay_core::volume::orders::{LabelAnswer, LabelOrder, LabelResult};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::cluster::{DRIVES_PER_NODE, done, node_name, registration};
use crate::connections::connect;

/// As the real agent does.
const BEAT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Agents that dial at the same time: a Unix socket refuses callers beyond its queue.
const DIALLING: usize = 64;
const DRIVE_BYTES: u64 = 2 << 40;

/// How far they are, all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Registrations that were answered.
    pub(super) registered: usize,
    /// Orders to attach that were answered.
    pub(super) attached: usize,
    /// Sessions that ended.
    pub(super) lost: usize,
    /// Registrations that were refused.
    pub(super) refused: usize,
}

/// What all of them share.
#[derive(Debug, Clone)]
struct Shared {
    socket: PathBuf,
    dialling: Arc<Semaphore>,
    progress: watch::Sender<Progress>,
}

/// Starts so many; they go on until the runtime ends.
pub(super) fn start(socket: &Path, agents: usize) -> watch::Receiver<Progress> {
    let (progress, shown) = watch::channel(Progress::default());
    let (socket, dialling) = (socket.to_owned(), Arc::new(Semaphore::new(DIALLING)));
    let shared = Shared { socket, dialling, progress };
    for number in 0..agents {
        tokio::spawn(Agent::new(number, shared.clone()).run());
    }
    shown
}

/// What an agent keeps on its disk.
struct Agent {
    number: usize,
    shared: Shared,
    first: Registration,
    identity: Option<(ClusterId, NodeId, Term)>,
    drives: BTreeMap<DriveId, Drive>,
    is_added: bool,
}

/// A drive that was ordered into operation, and its label.
struct Drive {
    order: Order,
    sequence: u64,
    extents: Vec<Extent>,
}

impl Drive {
    fn basis(&self) -> Basis {
        Basis { sequence: self.sequence, checksum: 0 }
    }
}

type Says = mpsc::Sender<AgentMessage>;

impl Agent {
    fn new(number: usize, shared: Shared) -> Self {
        let (first, drives) = (registration(number), BTreeMap::new());
        Self { number, shared, first, identity: None, drives, is_added: false }
    }

    /// Without end: nothing tells when a registry is back.
    async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let before = self.shared.progress.borrow().registered;
            // Why it ended is the controller's to say.
            if self.session().await.is_ok() || self.shared.progress.borrow().registered > before {
                pause = FIRST_PAUSE;
            }
            self.count(|progress| progress.lost += 1);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn count(&self, change: impl FnOnce(&mut Progress)) {
        self.shared.progress.send_modify(change);
    }

    async fn session(&mut self) -> anyhow::Result<()> {
        let (says, messages) = mpsc::channel(4 * DRIVES_PER_NODE);
        let mut hears = {
            let _turn = self.shared.dialling.acquire().await?;
            let channel = connect(self.shared.socket.clone()).await?;
            let mut client =
                AgentsClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT_BYTES);
            client.session(ReceiverStream::new(messages)).await?.into_inner()
        };
        says.send(to_registry(&FromAgent::Register(self.registration()))).await?;
        let mut beat = tokio::time::interval(BEAT);
        loop {
            let message = tokio::select! {
                message = hears.message() => message?.context("the session ended")?,
                _ = beat.tick() => {
                    says.send(to_registry(&FromAgent::Heartbeat)).await?;
                    continue;
                }
            };
            match from_registry(message)? {
                FromRegistry::Registered(registered) => self.registered(registered, &says).await?,
                FromRegistry::Order(order) => self.attach(order, &says).await?,
                FromRegistry::LabelOrder(order) => self.change_label(order, &says).await?,
                FromRegistry::RegistrationRefused { message, .. } => {
                    self.count(|progress| progress.refused += 1);
                    anyhow::bail!(message);
                }
                // No volume is used here.
                FromRegistry::UseOrder(_) | FromRegistry::ReportTaken { .. } => {}
            }
        }
    }

    /// Who it is, and all that it knows.
    fn registration(&self) -> Registration {
        let mut registration = self.first.clone();
        let Some((cluster, node, term)) = self.identity else { return registration };
        registration.cluster = Some(cluster);
        registration.node = Some(node);
        registration.newest_term = Some(term);
        registration.record = RecordHealth::Usable;
        for (id, drive) in &self.drives {
            let label = LabelSeen {
                cluster,
                drive: *id,
                node,
                generation: drive.order.ordered.stamp.generation,
                in_operation: true,
                sequence: drive.sequence,
            };
            let serial = &drive.order.evidence.serial;
            let device =
                registration.devices.iter_mut().find(|device| device.evidence.serial == *serial);
            if let Some(device) = device {
                device.label = Some(label);
            }
            registration.drives.push(DriveReport {
                drive: *id,
                seen: Some(drive.order.ordered),
                evidence: drive.order.evidence.clone(),
                label: Some(label),
                open: true,
            });
        }
        registration
    }

    async fn registered(&mut self, answer: Registered, says: &Says) -> anyhow::Result<()> {
        self.identity = Some((answer.cluster, answer.node, answer.term));
        self.count(|progress| progress.registered += 1);
        for order in answer.allowed {
            self.attach(order, says).await?;
        }
        if !self.is_added {
            self.is_added = true;
            let (socket, host) = (self.shared.socket.clone(), node_name(self.number));
            // The orders come before the answer to whoever asked for them.
            tokio::spawn(add_host(socket, host));
        }
        Ok(())
    }

    async fn attach(&mut self, order: Order, says: &Says) -> anyhow::Result<()> {
        says.send(to_registry(&FromAgent::Answer(done(&order)))).await?;
        let id = order.drive;
        let kept = self.drives.remove(&id);
        let (sequence, extents) =
            kept.map_or((1, Vec::new()), |kept| (kept.sequence, kept.extents));
        let drive = Drive { order, sequence, extents };
        let (basis, extents) = (drive.basis(), drive.extents.clone());
        let told = LabelTold { basis, extents, limit_bytes: DRIVE_BYTES };
        says.send(to_registry(&FromAgent::LabelTold { drive: id, told })).await?;
        self.drives.insert(id, drive);
        self.count(|progress| progress.attached += 1);
        Ok(())
    }

    async fn change_label(&mut self, order: LabelOrder, says: &Says) -> anyhow::Result<()> {
        let LabelOrder { drive: id, incarnation, basis: on, changes, .. } = order;
        let drive = self.drives.get_mut(&id).context("an order for a drive that is not open")?;
        // One that comes again was carried out already, and is told so by the label.
        let result = if drive.basis() == on {
            drive.extents = applied(&drive.extents, &changes, DRIVE_BYTES)?.extents;
            drive.sequence += 1;
            LabelResult::Done { now: drive.basis() }
        } else {
            let (basis, extents) = (drive.basis(), drive.extents.clone());
            let told = LabelTold { basis, extents, limit_bytes: DRIVE_BYTES };
            LabelResult::Refused { why: "decided on another label".to_owned(), told }
        };
        let answer = LabelAnswer { drive: id, incarnation, on, changes, result };
        Ok(says.send(to_registry(&FromAgent::LabelAnswer(answer))).await?)
    }
}

/// Puts all drives of a host into operation, as an administrator does.
async fn add_host(socket: PathBuf, host: String) -> anyhow::Result<()> {
    let action = Action { r#type: ActionType::AddHost.into(), host, ..Action::default() };
    let request = ActRequest { protocol: PROTOCOL, actions: vec![action], dry_run: false };
    CmsClient::new(connect(socket).await?).act(request).await?;
    Ok(())
}

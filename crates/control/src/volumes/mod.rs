//! Volumes: asked of the registry, and waited for. CSI ([`platform`]) and our own calls ([`calls`]) stand on this.
//! [`told`] is what is said of volumes elsewhere.

mod calls;
mod platform;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use hotbay_api::volumes as wire;
use hotbay_core::cluster::{
    AttachmentState, Cluster, Ground, Node, RecordKey, Sought, Volume, VolumeRefused,
    VolumeRequest, VolumeState,
};
use hotbay_core::ids::{AttachmentId, NodeId, VolumeId};
use hotbay_core::label::extents::NotAName;
use hotbay_core::volume::class::{Asked, NotAllowed};
use hotbay_core::volume::{NotASize, Size, Wish};
use hotbay_registry::{CallError, Registry};
use thiserror::Error;

use crate::patience::{StoreFailing, unless_failing};

pub(crate) use calls::VolumeCalls;
pub use platform::Platform;
pub(crate) use told::{brief, conditions};

/// How long a call waits for what it asked for. Whoever asks again goes on waiting for the same.
const PATIENCE: Duration = Duration::from_secs(25);

/// Asks for volumes, and waits until there is what was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Volumes {
    pub(crate) registry: Registry,
    /// Draws ids, as nothing below does.
    pub(crate) fresh: fn() -> u128,
}

/// Why there is not what was asked for.
#[derive(Debug, Error)]
pub(crate) enum VolumeError {
    #[error("{0}; nothing was changed")]
    Refused(VolumeRefused),
    #[error("the name cannot be used")]
    Name(#[from] NotAName),
    #[error("the parameters are not taken")]
    Parameters(#[from] NotAllowed),
    #[error("the size cannot be had")]
    Size(#[from] NotASize),
    #[error("there is no volume {name:?}")]
    NoSuchVolume { name: String },
    #[error("there is no node {name:?}")]
    NoSuchNode { name: String },
    #[error("it goes on, and is not done after {} s: {why}; ask again", PATIENCE.as_secs())]
    NotYet { why: String },
    #[error("it was deleted meanwhile")]
    Gone,
    #[error(transparent)]
    Registry(CallError),
    #[error(transparent)]
    StoreFailing(#[from] StoreFailing),
}

impl From<CallError> for VolumeError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(hotbay_core::cluster::Refused::Volume(refused)) => {
                Self::Refused(refused)
            }
            other => Self::Registry(other),
        }
    }
}

/// A volume to make.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    /// As in CSI: zero is "not said".
    pub(crate) required_bytes: i64,
    pub(crate) limit_bytes: i64,
    pub(crate) parameters: BTreeMap<String, String>,
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) preferred: Vec<NodeId>,
}

impl Wanted {
    /// What a caller of ours wants, and the names of the nodes where: these are looked up by whoever knows them.
    pub(crate) fn of(name: String, wish: wire::Wish) -> (Self, Vec<String>) {
        let wire::Wish { size_bytes, parameters, nodes } = wish;
        let required_bytes = i64::try_from(size_bytes).unwrap_or(i64::MAX);
        (Self { name, required_bytes, parameters, ..Self::default() }, nodes)
    }

    pub(crate) fn wish(self) -> Result<Wish, VolumeError> {
        let Asked { class, claim } = Asked::parse(&self.parameters)?;
        Ok(Wish {
            name: self.name.parse()?,
            size: Size::between(self.required_bytes, self.limit_bytes)?,
            class,
            parameters: self.parameters,
            nodes: self.nodes,
            preferred: self.preferred,
            claim,
        })
    }
}

/// What a volume is waited for.
enum Waited<T> {
    Done(T),
    /// Not yet, and why.
    Yet(String),
    Gone,
}

impl Volumes {
    /// Makes a volume, or finds it; answers when it is on its drive.
    pub(crate) async fn create(&self, wanted: Wanted, who: &str) -> Result<VolumeId, VolumeError> {
        let wish = Box::new(wanted.wish()?);
        let id = VolumeId::from_bits((self.fresh)());
        let id = self.ask(VolumeRequest::Create { id, wish }, who).await?;
        self.wait(id, move |cluster| match cluster.volume(id) {
            None => Waited::Gone,
            Some(volume) => match volume.record.state {
                VolumeState::Created => Waited::Done(id),
                VolumeState::Pending => Waited::Yet(why_pending(cluster, volume)),
                VolumeState::Deleting | VolumeState::Deleted | VolumeState::Lost => Waited::Gone,
            },
        })
        .await
    }

    /// Deletes a volume, and answers when it is gone for all who use it. One that is not there is deleted.
    pub(crate) async fn delete(&self, id: VolumeId, who: &str) -> Result<(), VolumeError> {
        match self.ask(VolumeRequest::Delete { volume: id }, who).await {
            Ok(_) => {}
            Err(VolumeError::Refused(VolumeRefused::NoSuchVolume)) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.wait(id, move |cluster| match cluster.volume(id) {
            None => Waited::Done(()),
            Some(volume) if volume.record.state == VolumeState::Deleted => Waited::Done(()),
            Some(volume) => Waited::Yet(why_pending(cluster, volume)),
        })
        .await
    }

    /// Makes a volume larger, and answers with its size when it is.
    pub(crate) async fn expand(
        &self,
        id: VolumeId,
        size: Size,
        who: &str,
    ) -> Result<u64, VolumeError> {
        self.ask(VolumeRequest::Expand { volume: id, size }, who).await?;
        self.wait(id, move |cluster| match cluster.volume(id) {
            None => Waited::Gone,
            Some(volume) if volume.record.size_bytes >= size.bytes => {
                Waited::Done(volume.record.size_bytes)
            }
            Some(volume) => Waited::Yet(why_pending(cluster, volume)),
        })
        .await
    }

    /// Lets a node use a volume, and answers when its agent has noted that.
    pub(crate) async fn attach(
        &self,
        volume: VolumeId,
        node: NodeId,
        read_only: bool,
        who: &str,
    ) -> Result<u64, VolumeError> {
        let id = AttachmentId::from_bits((self.fresh)());
        self.ask(VolumeRequest::Attach { id, volume, node, read_only }, who).await?;
        self.wait(volume, move |cluster| {
            let known = cluster.volume(volume).and_then(|known| known.attachments.get(&node));
            match known {
                None => Waited::Gone,
                Some(attachment) if attachment.record.state == AttachmentState::Attached => {
                    Waited::Done(attachment.record.epoch.get())
                }
                Some(attachment) => Waited::Yet(
                    attachment.waits.clone().unwrap_or_else(|| "the agent has not answered".into()),
                ),
            }
        })
        .await
    }

    /// Takes a volume back from a node, or from all, and answers when nothing uses it any more.
    pub(crate) async fn detach(
        &self,
        volume: VolumeId,
        node: Option<NodeId>,
        who: &str,
    ) -> Result<(), VolumeError> {
        self.ask(VolumeRequest::Detach { volume, node }, who).await?;
        self.wait(volume, move |cluster| {
            let mut left = cluster.volume(volume).into_iter().flat_map(|known| &known.attachments);
            let meant = |on: &NodeId| node.is_none_or(|node| node == *on);
            match left.find(|(on, _)| meant(on)) {
                None => Waited::Done(()),
                Some((_, attachment)) => Waited::Yet(
                    attachment.waits.clone().unwrap_or_else(|| "the agent has not answered".into()),
                ),
            }
        })
        .await
    }

    pub(crate) async fn annotate(
        &self,
        volume: VolumeId,
        changes: BTreeMap<String, Option<String>>,
        who: &str,
    ) -> Result<(), VolumeError> {
        self.ask(VolumeRequest::Annotate { volume, changes }, who).await.map(drop)
    }

    /// The volume that a person means by a name or an id; also one that only a label knows.
    pub(crate) async fn find(&self, name: String) -> Result<VolumeId, VolumeError> {
        let look = move |cluster: &Cluster| match find(cluster, &name) {
            Some(id) => (Ok(id), cluster.ground_of_volume(id)),
            None => (Err(name), Ground::Everything),
        };
        self.read_on(look).await?.map_err(|name| VolumeError::NoSuchVolume { name })
    }

    pub(crate) async fn find_node(&self, name: String) -> Result<NodeId, VolumeError> {
        self.find_node_among(name, |node| !node.record.purged).await
    }

    /// The same for a node that gives a volume back, which also one may that was purged.
    pub(crate) async fn find_user(&self, name: String) -> Result<NodeId, VolumeError> {
        match self.find_node(name.clone()).await {
            Err(VolumeError::NoSuchNode { .. }) => self.find_node_among(name, |_| true).await,
            found => found,
        }
    }

    async fn find_node_among(
        &self,
        name: String,
        fits: impl Fn(&&Node) -> bool + Send + 'static,
    ) -> Result<NodeId, VolumeError> {
        let find = move |cluster: &Cluster| {
            let mut nodes = cluster.nodes().filter(fits);
            let id = name.parse::<NodeId>().ok();
            let found =
                nodes.find(|node| node.record.name.as_str() == name || Some(node.record.id) == id);
            match found.map(|node| node.record.id) {
                Some(id) => (Ok(id), Ground::of([RecordKey::Node(id)])),
                None => (Err(name), Ground::Everything),
            }
        };
        self.read_on(find).await?.map_err(|name| VolumeError::NoSuchNode { name })
    }

    async fn ask(&self, request: VolumeRequest, who: &str) -> Result<VolumeId, VolumeError> {
        let asking = self.registry.request(request, who.to_owned());
        Ok(unless_failing(&self.registry, asking).await??)
    }

    /// Looks at what is durable, which is everything then.
    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Cluster) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        self.read_on(|cluster| (look(cluster), Ground::Everything)).await
    }

    /// Looks at one volume.
    async fn read_of<T: Send + 'static>(
        &self,
        volume: VolumeId,
        look: impl FnOnce(&Cluster) -> T + Send + 'static,
    ) -> Result<T, VolumeError> {
        self.read_on(move |cluster| (look(cluster), cluster.ground_of_volume(volume))).await
    }

    /// The same, for who says what it rests on.
    async fn read_on<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Cluster) -> (T, Ground) + Send + 'static,
    ) -> Result<T, VolumeError> {
        Ok(unless_failing(&self.registry, self.registry.read_on(look)).await??)
    }

    /// Looks at a volume again after every change, until it is done. Changes are told when they are durable: that one
    /// cannot be written is told by the store's health alone, and the look is then refused with the reason.
    async fn wait<T: Send + 'static>(
        &self,
        volume: VolumeId,
        look: impl Fn(&Cluster) -> Waited<T> + Clone + Send + 'static,
    ) -> Result<T, VolumeError> {
        let mut changes = self.registry.changes();
        let mut health = self.registry.store_health();
        let over = tokio::time::sleep(PATIENCE);
        tokio::pin!(over);
        loop {
            changes.mark_unchanged();
            health.mark_unchanged();
            let why = match self.read_of(volume, look.clone()).await? {
                Waited::Done(done) => return Ok(done),
                Waited::Gone => return Err(VolumeError::Gone),
                Waited::Yet(why) => why,
            };
            let told = tokio::select! {
                told = changes.changed() => told,
                told = health.changed() => told,
                () = &mut over => return Err(VolumeError::NotYet { why }),
            };
            told.map_err(|_| VolumeError::Registry(CallError::Stopped))?;
        }
    }
}

pub(crate) fn find(cluster: &Cluster, name: &str) -> Option<VolumeId> {
    let by_name = name.parse().ok().and_then(|name| cluster.volume_by_name(&name));
    if let Some(volume) = by_name {
        return Some(volume.record.id);
    }
    let id = name.parse::<VolumeId>().ok();
    if let Some(id) = id.filter(|id| cluster.volume(*id).is_some()) {
        return Some(id);
    }
    let mut orphans = cluster.orphans().map(|(_, extent)| extent);
    let meant = orphans.find(|extent| Some(extent.volume) == id || extent.name.as_str() == name);
    meant.map(|extent| extent.volume)
}

/// What stands between a volume and what is wanted of it.
fn why_pending(cluster: &Cluster, volume: &Volume) -> String {
    let Some(drive) = volume.drive.and_then(|id| cluster.drive(id)) else {
        return "it has no drive".into();
    };
    let name = &drive.record.name;
    match &drive.space {
        None => format!("the agent of drive {name} has not told its label"),
        Some(space) => match &space.trouble {
            Some(trouble) => format!("the label of drive {name} cannot be changed: {trouble}"),
            None if space.dirty_bytes() > 0 => format!("drive {name} is erasing"),
            None => format!("drive {name} has not answered"),
        },
    }
}

/// Where a volume would go.
pub(crate) fn sought<'a>(wish: &'a Wish, group: Option<&'a str>) -> Sought<'a> {
    Sought {
        bytes: wish.size.bytes,
        class: &wish.class,
        group,
        nodes: &wish.nodes,
        preferred: &wish.preferred,
    }
}

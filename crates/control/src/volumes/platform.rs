//! The controller's half of the CSI provisioner, over the registry.

use hotbay_core::cluster::{
    Cluster, Ground, RecordKey, State, Volume as Known, VolumeRefused, VolumeState,
};
use hotbay_core::ids::{NodeId, VolumeId};
use hotbay_core::volume::Size;
use hotbay_core::volume::class::Asked;
use hotbay_core::volume::orders::StagedAs;
use hotbay_csi::platform::{
    AttachVolume, Capacity, CapacityQuery, Condition, ControllerPlatform, CreateVolume,
    ExpandVolume, Expanded, Failure, FailureKind, Sizes, Texts, Volume, VolumePage,
};
use hotbay_registry::Registry;

use super::{VolumeError, Volumes, Wanted, sought};

/// Who asks, where CSI asks.
const CSI: &str = "csi";

/// What NodeStage needs to know of a volume, and no more.
const FILESYSTEM: &str = "fsType";
const MKFS_OPTIONS: &str = "mkfsOptions";
/// Under which use the node may stage it.
const EPOCH: &str = "epoch";
/// How large it is, for a node that cannot reach it to ask.
const SIZE: &str = "sizeBytes";

/// CSI's calls, carried out by a registry.
#[derive(Debug, Clone)]
pub struct Platform {
    volumes: Volumes,
}

impl Platform {
    pub fn new(registry: Registry, fresh: fn() -> u128) -> Self {
        Self { volumes: Volumes { registry, fresh } }
    }

    async fn told(&self, id: VolumeId) -> Result<Volume, Failure> {
        let look = move |cluster: &Cluster| cluster.volume(id).map(|known| told(cluster, known));
        let read = self.volumes.read_of(id, look).await?;
        read.ok_or_else(|| Failure::new(FailureKind::NotFound, "there is no such volume"))
    }
}

impl ControllerPlatform for Platform {
    async fn create(&self, request: CreateVolume) -> Result<Volume, Failure> {
        let CreateVolume { name, sizes, access: _, modes: _, parameters, requisite, preferred } =
            request;
        let (required_bytes, limit_bytes) = signed(sizes);
        let nodes = requisite.into_iter().collect();
        let wanted = Wanted { name, required_bytes, limit_bytes, parameters, nodes, preferred };
        let id = self.volumes.create(wanted, CSI).await?;
        self.told(id).await
    }

    async fn delete(&self, volume: VolumeId) -> Result<(), Failure> {
        Ok(self.volumes.delete(volume, CSI).await?)
    }

    async fn expand(&self, request: ExpandVolume) -> Result<Expanded, Failure> {
        let (required, limit) = signed(request.sizes);
        let size = Size::between(required, limit).map_err(VolumeError::from)?;
        let capacity_bytes = self.volumes.expand(request.volume, size, CSI).await?;
        Ok(Expanded { capacity_bytes, on_node: true })
    }

    async fn attach(&self, request: AttachVolume) -> Result<Texts, Failure> {
        let AttachVolume { volume, node, readonly, .. } = request;
        let look = move |cluster: &Cluster| {
            let known = cluster.volume(volume)?.attachments.get(&node)?;
            Some(known.record.read_only)
        };
        let there = self.volumes.read_of(volume, look).await?;
        if there.is_some_and(|there| there != readonly) {
            let words = "it is attached there already, and not in this way; detach it first";
            return Err(Failure::new(FailureKind::AlreadyExists, words));
        }
        let epoch = self.volumes.attach(volume, node, readonly, CSI).await?;
        let size = self.told(volume).await?.capacity_bytes;
        let told = [(EPOCH, epoch), (SIZE, size)];
        Ok(told.map(|(name, number)| (name.to_owned(), number.to_string())).into())
    }

    async fn detach(&self, volume: VolumeId, node: Option<NodeId>) -> Result<(), Failure> {
        Ok(self.volumes.detach(volume, node, CSI).await?)
    }

    async fn volume(&self, volume: VolumeId) -> Result<Volume, Failure> {
        self.told(volume).await
    }

    async fn volumes(&self, after: Option<VolumeId>, limit: usize) -> Result<VolumePage, Failure> {
        let look = move |cluster: &Cluster| {
            let there = cluster.volumes_after(after).filter(|known| is_there(known));
            let mut volumes: Vec<_> =
                there.take(limit.saturating_add(1)).map(|known| told(cluster, known)).collect();
            let more = volumes.len() > limit;
            volumes.truncate(limit);
            VolumePage { volumes, more }
        };
        Ok(self.volumes.read(look).await?)
    }

    async fn capacity(&self, query: CapacityQuery) -> Result<Capacity, Failure> {
        let Asked { class, claim } = Asked::parse(&query.parameters).map_err(VolumeError::from)?;
        let smallest = Size::of(1).map_err(VolumeError::from)?;
        let wish = hotbay_core::volume::Wish {
            name: "capacity".parse().map_err(VolumeError::from)?,
            size: smallest,
            class,
            parameters: query.parameters,
            nodes: query.node.into_iter().collect(),
            preferred: Vec::new(),
            claim,
        };
        let look = move |cluster: &Cluster| cluster.room(&sought(&wish, None));
        let room = self.volumes.read(look).await?;
        Ok(Capacity {
            available_bytes: room.bytes,
            largest_volume_bytes: Some(room.largest_bytes),
            smallest_volume_bytes: Some(smallest.bytes),
        })
    }

    async fn node_exists(&self, node: NodeId) -> Result<bool, Failure> {
        let look = move |cluster: &Cluster| {
            let is_there = cluster.node(node).is_some_and(|known| !known.record.purged);
            (is_there, Ground::of([RecordKey::Node(node)]))
        };
        Ok(self.volumes.read_on(look).await?)
    }
}

/// One that is being made or is deleted is nobody's yet, or no more.
fn is_there(known: &Known) -> bool {
    match known.record.state {
        VolumeState::Created | VolumeState::Lost => true,
        VolumeState::Pending | VolumeState::Deleting | VolumeState::Deleted => false,
    }
}

fn told(cluster: &Cluster, known: &Known) -> Volume {
    let record = &known.record;
    let mut volume_context = Texts::new();
    if let Some(filesystem) = record.class.filesystem {
        volume_context.insert(FILESYSTEM.to_owned(), filesystem.to_string());
    }
    if !record.class.mkfs_options.is_empty() {
        volume_context.insert(MKFS_OPTIONS.to_owned(), record.class.mkfs_options.join(" "));
    }
    let drive = known.drive.and_then(|id| cluster.drive(id));
    Volume {
        id: record.id,
        name: record.name.to_string(),
        capacity_bytes: record.size_bytes,
        volume_context,
        accessible_nodes: drive.map(|drive| drive.record.node).into_iter().collect(),
        published_nodes: known.attachments.keys().copied().collect(),
        condition: condition(cluster, known),
    }
}

pub(super) fn condition(cluster: &Cluster, known: &Known) -> Condition {
    let abnormal = |message: String| Condition { abnormal: true, message };
    let fake = known.attachments.values().find_map(|attachment| match &attachment.staged {
        Some(StagedAs::Fake { reason, .. }) => Some(reason),
        Some(StagedAs::Real | StagedAs::Unstaged) | None => None,
    });
    if let Some(reason) = fake {
        return abnormal(format!("a dummy is attached in its place: {reason}"));
    }
    if known.record.state == VolumeState::Lost {
        return abnormal("the label of its drive does not have it: it is lost".into());
    }
    let Some(drive) = known.drive.and_then(|id| cluster.drive(id)) else {
        return abnormal("it has no drive".into());
    };
    let name = &drive.record.name;
    let away = cluster.node(drive.record.node).is_none_or(|node| node.session.is_none());
    match drive.record.state {
        _ if away => abnormal(format!("the agent of its drive {name} cannot be reached")),
        State::Attached if !drive.present => abnormal(format!("its drive {name} is missing")),
        State::Attached => {
            Condition { abnormal: false, message: format!("on drive {name}, in operation") }
        }
        state => abnormal(format!("its drive {name} is not in operation: {state}")),
    }
}

fn signed(sizes: Sizes) -> (i64, i64) {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    (signed(sizes.required_bytes), sizes.limit_bytes.map_or(0, signed))
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let kind = match &error {
            VolumeError::Refused(refused) => kind_of(refused),
            VolumeError::Name(_) | VolumeError::Parameters(_) => FailureKind::InvalidArgument,
            VolumeError::Size(_) => FailureKind::OutOfRange,
            VolumeError::NoSuchVolume { .. } | VolumeError::NoSuchNode { .. } => {
                FailureKind::NotFound
            }
            // What was asked for may still come: nobody must take it for refused.
            VolumeError::NotYet { .. } | VolumeError::Gone => FailureKind::Aborted,
            VolumeError::Registry(_) | VolumeError::StoreFailing(_) => FailureKind::Unavailable,
        };
        let mut message = error.to_string();
        if let Some(cause) = std::error::Error::source(&error) {
            message = format!("{message}: {cause}");
        }
        Self { kind, message }
    }
}

fn kind_of(refused: &VolumeRefused) -> FailureKind {
    match refused {
        VolumeRefused::NoSuchVolume | VolumeRefused::NoSuchNode => FailureKind::NotFound,
        VolumeRefused::NameTaken { .. } => FailureKind::AlreadyExists,
        VolumeRefused::NoPlace { .. } => FailureKind::ResourceExhausted,
        VolumeRefused::InUse { .. } | VolumeRefused::OnOtherNode { .. } => {
            FailureKind::FailedPrecondition
        }
        VolumeRefused::WrongState { state: VolumeState::Pending } => FailureKind::Aborted,
        VolumeRefused::WrongState { .. } => FailureKind::FailedPrecondition,
        VolumeRefused::CannotGrow { .. } | VolumeRefused::TooLarge { .. } => {
            FailureKind::OutOfRange
        }
        VolumeRefused::Annotations { .. } | VolumeRefused::KeptAnnotation { .. } => {
            FailureKind::InvalidArgument
        }
        VolumeRefused::Rewound { .. } => FailureKind::Unavailable,
    }
}

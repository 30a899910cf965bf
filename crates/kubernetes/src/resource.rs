//! The kinds as Kubernetes knows them: their names, and where the server has them.

use hotbay_registry::Kind;

/// Group and version of all kinds.
pub const GROUP: &str = "hotbay.dev";
pub const VERSION: &str = "v1alpha1";

/// Held by Volumes and Attachments from their creation on: they go when the controller says so, whoever deletes them.
pub const FINALIZER: &str = "hotbay.dev/controller";

/// The annotation of objects that a controller made, with the number of its term.
pub const MADE_UNDER_TERM: &str = "hotbay.dev/made-under-term";

/// The annotation with the first record of an object, which counts until the object has a status.
pub const RECORD: &str = "hotbay.dev/record";

/// As whom the server notes the one who makes objects.
pub const MANAGER: &str = "hotbay-controller";

/// The one Registry object.
pub const REGISTRY_NAME: &str = "registry";

/// One kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    Registry,
    StorageNode,
    Drive,
    Volume,
    Attachment,
}

impl Resource {
    /// Every kind, in the order of the keys of a store.
    pub const ALL: [Self; 5] =
        [Self::Registry, Self::StorageNode, Self::Drive, Self::Volume, Self::Attachment];

    /// The objects that records of this kind are.
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Registry => Self::Registry,
            Kind::Node => Self::StorageNode,
            Kind::Drive => Self::Drive,
            Kind::Volume => Self::Volume,
            Kind::Attachment => Self::Attachment,
        }
    }

    /// The records that these objects are.
    pub const fn records(self) -> Kind {
        match self {
            Self::Registry => Kind::Registry,
            Self::StorageNode => Kind::Node,
            Self::Drive => Kind::Drive,
            Self::Volume => Kind::Volume,
            Self::Attachment => Kind::Attachment,
        }
    }

    /// As in `kind: Drive`.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Registry => "Registry",
            Self::StorageNode => "StorageNode",
            Self::Drive => "Drive",
            Self::Volume => "Volume",
            Self::Attachment => "Attachment",
        }
    }

    /// As in `kubectl get drives`, and in paths.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Registry => "registries",
            Self::StorageNode => "storagenodes",
            Self::Drive => "drives",
            Self::Volume => "volumes",
            Self::Attachment => "attachments",
        }
    }

    /// As in `kubectl get hbd`. All begin alike, because other systems have drives and volumes too.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Registry => "hbr",
            Self::StorageNode => "hbn",
            Self::Drive => "hbd",
            Self::Volume => "hbv",
            Self::Attachment => "hba",
        }
    }

    /// Whether objects of this kind have the finalizer. The others stand for machines and drives, which stay whatever
    /// becomes of the object.
    pub const fn has_finalizer(self) -> bool {
        match self {
            Self::Volume | Self::Attachment => true,
            Self::Registry | Self::StorageNode | Self::Drive => false,
        }
    }

    /// Where all objects of this kind are.
    pub(crate) fn path(self) -> String {
        format!("/apis/{GROUP}/{VERSION}/{}", self.plural())
    }
}

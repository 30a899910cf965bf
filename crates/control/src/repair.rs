//! Repairs that a person decides: what a registry that went back in time does next.

use hotbay_api::PROTOCOL;
use hotbay_api::cms as wire;
use hotbay_api::convert::Malformed;
use hotbay_core::cluster::{Cluster, Difference};
use hotbay_core::ids::{DriveId, TermId};
use hotbay_registry::Registry;
use tonic::{Request, Response, Status};

use crate::caller::Caller;
use crate::clients::rights::Right;
use crate::patience::patiently;
use crate::peer::admit;

pub(crate) struct Repairs {
    registry: Registry,
    fresh: fn() -> u128,
}

impl Repairs {
    pub(crate) fn new(registry: Registry, fresh: fn() -> u128) -> Self {
        Self { registry, fresh }
    }
}

#[tonic::async_trait]
impl wire::repair_server::Repair for Repairs {
    async fn adopt(
        &self,
        request: Request<wire::AdoptRequest>,
    ) -> Result<Response<wire::AdoptResponse>, Status> {
        let caller = admit(&request)?;
        let wire::AdoptRequest { protocol, confirmed } = request.into_inner();
        if protocol != PROTOCOL {
            let malformed = Malformed::Protocol { theirs: protocol };
            return Err(Status::failed_precondition(malformed.to_string()));
        }
        adopt(&self.registry, self.fresh, &caller, confirmed).await.map(Response::new)
    }
}

/// What nodes know that the registry has forgotten; taken over if `confirmed`.
pub(crate) async fn adopt(
    registry: &Registry,
    fresh: fn() -> u128,
    caller: &Caller,
    confirmed: bool,
) -> Result<wire::AdoptResponse, Status> {
    if confirmed {
        caller.must_have(Right::Write)?;
    }
    let nodes = patiently(registry, registry.read(differences)).await?;
    let adopted = confirmed && !nodes.is_empty();
    if adopted {
        tracing::warn!(who = caller.who, "adopting what {} nodes know", nodes.len());
        let term = TermId::from_bits(fresh());
        patiently(registry, registry.adopt(term)).await?;
    }
    Ok(wire::AdoptResponse { protocol: PROTOCOL, nodes, adopted })
}

fn differences(cluster: &Cluster) -> Vec<wire::NodeDifferences> {
    let in_words = |difference: &Difference| match difference {
        Difference::UnknownTerm { accepted, ours } => format!(
            "has accepted orders of term {accepted}; this registry is at {ours} and never had that term"
        ),
        Difference::Generation { drive, theirs, ours } => format!(
            "{}: has seen generation {theirs}; this registry is at {ours}",
            name(cluster, *drive)
        ),
        Difference::Goal { drive, generation, theirs } => format!(
            "{}: was told to {theirs} in generation {generation}; this registry wants the opposite",
            name(cluster, *drive)
        ),
        Difference::Epoch { volume, theirs, ours } => format!(
            "volume {}: has seen use {theirs} of it; this registry is at {ours}",
            cluster.volume_name(*volume)
        ),
        Difference::UseEnded { volume, epoch } => format!(
            "volume {}: was told to end use {epoch} of it; this registry still grants it",
            cluster.volume_name(*volume)
        ),
    };
    let nodes = cluster.rewound_nodes();
    nodes
        .map(|(node, differences)| wire::NodeDifferences {
            node: node.to_string(),
            differences: differences.iter().map(in_words).collect(),
        })
        .collect()
}

fn name(cluster: &Cluster, drive: DriveId) -> String {
    cluster.drive(drive).map_or_else(|| drive.to_string(), |drive| drive.record.name.clone())
}

//! Actions of people and of infrastructure automation: a list in one call, a result for each.

use std::collections::{BTreeMap, BTreeSet};

use hotbay_api::cms as wire;
use hotbay_api::convert::action_from_wire;
use hotbay_api::{PROTOCOL, convert::Malformed};
use hotbay_core::cluster::Cluster;
use hotbay_core::cms::{Action, Code, Outcome};
use hotbay_core::ids::{DriveId, VolumeId};
use hotbay_registry::Registry;
use tonic::{Request, Response, Status};

use crate::caller::Caller;
use crate::clients::rights::Right;
use crate::patience::patiently;
use crate::peer::admit;
use crate::volumes;

/// How many actions one call may carry. A longer list would keep everybody else waiting.
pub(crate) const ACTIONS_IN_A_CALL: usize = 10_000;

/// How many drives of hosts one answer names. More would not fit into a message.
const DRIVES_IN_AN_ANSWER: usize = 50_000;

/// How many volumes one answer tells more of than their names.
const VOLUMES_IN_AN_ANSWER: usize = 50_000;

pub(crate) struct Actions {
    registry: Registry,
}

impl Actions {
    pub(crate) fn new(registry: Registry) -> Self {
        Self { registry }
    }
}

#[tonic::async_trait]
impl wire::cms_server::Cms for Actions {
    async fn act(
        &self,
        request: Request<wire::ActRequest>,
    ) -> Result<Response<wire::ActResponse>, Status> {
        let caller = admit(&request)?;
        let wire::ActRequest { protocol, actions, dry_run } = request.into_inner();
        if protocol != PROTOCOL {
            let malformed = Malformed::Protocol { theirs: protocol };
            return Err(Status::failed_precondition(malformed.to_string()));
        }
        if actions.len() > ACTIONS_IN_A_CALL {
            return Err(Status::invalid_argument(format!(
                "{} actions in one call are too many; nothing was changed; send at most {ACTIONS_IN_A_CALL}",
                actions.len()
            )));
        }
        let decoded = actions.into_iter().map(action_from_wire).collect();
        let results = act(&self.registry, decoded, &caller, dry_run).await?;
        Ok(Response::new(wire::ActResponse { protocol: PROTOCOL, results }))
    }
}

/// Takes the actions that were understood, in order. Every one has a result, also those that were not. Whoever may only
/// read may ask what would happen, and what there is.
pub(crate) async fn act(
    registry: &Registry,
    decoded: Vec<Result<Action, Malformed>>,
    caller: &Caller,
    dry_run: bool,
) -> Result<Vec<wire::ActionResult>, Status> {
    let asks =
        |action: &Result<Action, Malformed>| matches!(action, Ok(Action::GetDependentVolumes(_)));
    if !dry_run && !decoded.iter().all(asks) {
        caller.must_have(Right::Write)?;
    }
    let who = caller.who.clone();
    let understood = decoded.iter().filter_map(|action| action.as_ref().ok().cloned());
    let acting = registry.act(understood.collect(), who, dry_run);
    let outcomes = patiently(registry, acting).await?;
    let briefs = briefs(registry, &outcomes).await?;
    let mut outcomes = outcomes.into_iter();
    let results = decoded.into_iter().map(|action| match action {
        Ok(_) => result(outcomes.next().expect("one outcome per action"), &briefs),
        Err(malformed) => wire::ActionResult {
            result: Code::Argument.to_string(),
            reasons: vec![malformed.to_string()],
            ..wire::ActionResult::default()
        },
    });
    Ok(bounded(results.collect(), DRIVES_IN_AN_ANSWER))
}

/// Leaves the answers per drive out where there would be too many. The answer of the host stays what it is.
fn bounded(mut results: Vec<wire::ActionResult>, limit: usize) -> Vec<wire::ActionResult> {
    let mut named = 0;
    for result in &mut results {
        let drives = result.drives.len();
        if named + drives > limit {
            result.drives.clear();
            result.reasons.push(format!(
                "its {drives} drives are not named, because one answer names at most {limit}; ask for fewer hosts in \
                 one call to see them"
            ));
        } else {
            named += drives;
        }
    }
    results
}

/// Which drives and volumes are meant by their ids.
struct Briefs {
    drives: BTreeMap<DriveId, wire::DriveBrief>,
    volumes: BTreeMap<VolumeId, wire::VolumeBrief>,
}

/// Says of each drive and volume that an outcome names which one it is.
async fn briefs(registry: &Registry, outcomes: &[Outcome]) -> Result<Briefs, Status> {
    let all = || outcomes.iter().chain(outcomes.iter().flat_map(|outcome| &outcome.drives));
    let drives: Vec<_> = all().filter_map(|outcome| outcome.drive).collect();
    let volumes: BTreeSet<_> =
        all().flat_map(|outcome| &outcome.dependent).copied().take(VOLUMES_IN_AN_ANSWER).collect();
    let look = move |cluster: &Cluster| {
        let drives = drives.into_iter().filter_map(|id| Some((id, brief(cluster, id)?)));
        let volumes = volumes.into_iter().filter_map(|id| Some((id, volumes::brief(cluster, id)?)));
        Briefs { drives: drives.collect(), volumes: volumes.collect() }
    };
    // The outcomes are durable; names change nothing.
    patiently(registry, registry.read_around(look)).await
}

fn brief(cluster: &Cluster, id: DriveId) -> Option<wire::DriveBrief> {
    let record = &cluster.drive(id)?.record;
    let node = cluster.node(record.node).map(|node| node.record.name.to_string());
    Some(wire::DriveBrief {
        name: record.name.clone(),
        node: node.unwrap_or_default(),
        path: record.observed.path.clone(),
        bay: record.observed.bay.clone().unwrap_or_default(),
        serial: record.observed.evidence.serial.clone().unwrap_or_default(),
        order: cluster.order_id(id).map(|order| order.to_string()).unwrap_or_default(),
    })
}

fn result(outcome: Outcome, briefs: &Briefs) -> wire::ActionResult {
    let Outcome { code, reasons, drive, dependent, retry_after_ms, drives } = outcome;
    let volumes = dependent.iter().filter_map(|id| briefs.volumes.get(id).cloned());
    let name = |id: &VolumeId| match briefs.volumes.get(id) {
        Some(volume) => volume.name.clone(),
        None => id.to_string(),
    };
    wire::ActionResult {
        result: code.to_string(),
        reasons: reasons.iter().map(ToString::to_string).collect(),
        dependent_volumes: dependent.iter().map(name).collect(),
        volumes: volumes.collect(),
        retry_after_ms: retry_after_ms.unwrap_or(0),
        drive: drive.and_then(|id| briefs.drives.get(&id).cloned()),
        drives: drives.into_iter().map(|outcome| result(outcome, briefs)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_huge_answer_names_no_more_drives_than_fit_and_says_so() {
        let host = |drives| wire::ActionResult {
            result: "E_TRY_AGAIN".to_owned(),
            drives: vec![wire::ActionResult::default(); drives],
            ..wire::ActionResult::default()
        };
        let results = bounded(vec![host(4), host(7), host(6)], 10);
        let named: Vec<_> = results.iter().map(|result| result.drives.len()).collect();
        assert_eq!(named, [4, 0, 6]);
        assert!(results[1].reasons[0].contains("its 7 drives are not named"), "{:?}", results[1]);
        assert_eq!(results[1].result, "E_TRY_AGAIN");
        assert!(results[0].reasons.is_empty() && results[2].reasons.is_empty());
    }
}

//! Which nodes are meant. There is one key, and its value is a node's id: a volume is on the drive of one machine.

use hotbay_api::csi::{Topology, TopologyRequirement};
use hotbay_core::ids::NodeId;

use super::{Refusal, shown};
use crate::TOPOLOGY_KEY;

/// The node that a topology names.
pub(super) fn node(topology: &Topology) -> Result<NodeId, Refusal> {
    let Some((value, 1)) =
        topology.segments.get(TOPOLOGY_KEY).map(|value| (value, topology.segments.len()))
    else {
        let keys: Vec<_> = topology.segments.keys().map(String::as_str).collect();
        return Err(Refusal::ForeignTopology { found: shown(&keys.join(", ")) });
    };
    super::node_id(value).map_err(|_| Refusal::TopologyValue { value: shown(value) })
}

/// Those that must and those that should reach a volume, each once, in the order given.
pub(super) fn nodes(
    requirement: Option<TopologyRequirement>,
) -> Result<(Vec<NodeId>, Vec<NodeId>), Refusal> {
    let requirement = requirement.unwrap_or_default();
    Ok((each_once(&requirement.requisite)?, each_once(&requirement.preferred)?))
}

fn each_once(topologies: &[Topology]) -> Result<Vec<NodeId>, Refusal> {
    let mut seen = std::collections::BTreeSet::new();
    let mut nodes = topologies.iter().map(node).collect::<Result<Vec<_>, _>>()?;
    nodes.retain(|node| seen.insert(*node));
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topology(segments: &[(&str, &str)]) -> Topology {
        let segments = segments.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        Topology { segments: segments.collect() }
    }

    #[test]
    fn a_topology_names_one_node_and_nothing_else() {
        let id = NodeId::from_bits(7);
        let text = id.to_string();
        assert_eq!(node(&topology(&[(TOPOLOGY_KEY, &text)])), Ok(id));
        let zone = ("topology.kubernetes.io/zone", "a");
        for bad in [&[][..], &[zone], &[zone, (TOPOLOGY_KEY, &text)]] {
            let refused = node(&topology(bad));
            assert!(matches!(refused, Err(Refusal::ForeignTopology { .. })), "{refused:?}");
        }
        let refused = node(&topology(&[(TOPOLOGY_KEY, "worker-1")]));
        assert!(matches!(refused, Err(Refusal::TopologyValue { .. })), "{refused:?}");
    }

    #[test]
    fn order_is_kept_and_each_node_counts_once() {
        let id = |bits| NodeId::from_bits(bits);
        let term = |bits| topology(&[(TOPOLOGY_KEY, &id(bits).to_string())]);
        let requisite = vec![term(9), term(3), term(9)];
        let asked = TopologyRequirement { requisite, preferred: vec![term(3)] };
        assert_eq!(nodes(Some(asked)), Ok((vec![id(9), id(3)], vec![id(3)])));
        assert_eq!(nodes(None), Ok((vec![], vec![])));
    }
}

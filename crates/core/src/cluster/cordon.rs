//! Cordoned nodes: their drives get no new volumes, because somebody asked for that. Volumes that are there stay in
//! use, may grow, and be deleted. [`Cluster::act`](super::actions) calls it; placement asks.

use super::{About, Cluster, Effects, Notice, Write};
use crate::cms::{Code, Outcome};
use crate::ids::NodeId;

impl Cluster {
    pub(super) fn is_cordoned(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.record.cordoned)
    }

    /// Keeps new volumes off a node, or lets them onto it again.
    pub(super) fn cordon(
        &mut self,
        id: NodeId,
        cordoned: bool,
        by: &str,
        effects: &mut Effects,
    ) -> Outcome {
        let node = self.nodes.get_mut(&id).expect("only known nodes");
        if node.record.cordoned == cordoned {
            return Outcome::new(Code::Already);
        }
        node.record.cordoned = cordoned;
        effects.writes.push(Write::Node(node.record.clone()));
        let name = &node.record.name;
        let (reason, what) = match cordoned {
            true => ("NodeCordoned", "is cordoned and gets no new volumes"),
            false => ("NodeUncordoned", "is not cordoned any more and may get new volumes"),
        };
        let text = format!("Node {name} {what}, asked by {by}.");
        effects.notices.push(Notice::plain(reason, About::Node(id), text));
        Outcome::new(Code::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::Records;
    use crate::cluster::testing::{act, device, lead, register, says, store};
    use crate::cms::Action;
    use crate::ids::Incarnation;
    use crate::rules::Rules;

    fn agent() -> Agent {
        let (incarnation, found) = (Incarnation::from_bits(5), RecordFound::Absent(None));
        let at_start = AttachAtStart::default();
        Agent::start(Rules::default(), incarnation, found, vec![device("S1")], at_start).0
    }

    fn cordon(cordoned: bool) -> Action {
        Action::CordonHost { host: "node-a".into(), cordoned }
    }

    fn is_cordoned(cluster: &Cluster) -> bool {
        cluster.nodes().next().unwrap().record.cordoned
    }

    #[test]
    fn a_cordon_is_told_kept_and_taken_off() {
        let mut records = Records::default();
        let (mut cluster, writes) = lead(Records::default(), 1);
        store(&mut records, writes);
        let effects = register(&mut cluster, 1, says(&agent(), "node-a")).unwrap();
        store(&mut records, effects.writes);
        assert_eq!(act(&mut cluster, cordon(false)).1.code, Code::Already);
        let (effects, outcome) = act(&mut cluster, cordon(true));
        assert_eq!((outcome.code, effects.writes.len()), (Code::Ok, 1));
        let told = "Node node-a is cordoned and gets no new volumes, asked by me.";
        assert_eq!(effects.notices[0].text, told);
        store(&mut records, effects.writes);
        assert_eq!(act(&mut cluster, cordon(true)).1.code, Code::Already);
        // Also when the registry starts anew, and when the agent registers again.
        let (mut cluster, _) = lead(records, 2);
        assert!(is_cordoned(&cluster));
        register(&mut cluster, 1, says(&agent(), "node-a")).unwrap();
        assert!(is_cordoned(&cluster));
        assert_eq!(act(&mut cluster, cordon(false)).1.code, Code::Ok);
        assert!(!is_cordoned(&cluster));
    }

    #[test]
    fn a_host_that_is_not_there_cannot_be_cordoned() {
        let (mut cluster, _) = lead(Records::default(), 1);
        assert_eq!(act(&mut cluster, cordon(true)).1.code, Code::NotFound);
    }
}

//! Labels of nodes: set and removed because somebody asked. [`Cluster::act`](super::actions) calls it; the rules that
//! ask for labels look at the node's drives again in the same step.

use super::actions::Asked;
use super::{About, Cluster, Effects, Notice, Write};
use crate::cms::{Code, Outcome, Reason};
use crate::ids::NodeId;
use crate::node_labels::{LABELS_LIMIT, LabelChange, difference};

impl Cluster {
    /// Changes the labels of a node. The answer names the drives that a rule adds because of it.
    pub(super) fn label(
        &mut self,
        id: NodeId,
        change: &LabelChange,
        asked: Asked<'_>,
        effects: &mut Effects,
    ) -> Outcome {
        let node = self.nodes.get_mut(&id).expect("only known nodes");
        let after = match change.applied_to(&node.record.labels) {
            Ok(after) => after,
            Err(labels) => {
                let labels = labels.to_string();
                return Outcome::because(Code::InvalidState, Reason::LabelledOtherwise { labels });
            }
        };
        if after == node.record.labels {
            return Outcome::new(Code::Already);
        }
        if after.iter().count() > LABELS_LIMIT {
            return Outcome::because(Code::InvalidState, Reason::TooManyLabels);
        }
        let changed = difference(&node.record.labels, &after);
        let by = asked.by;
        let text =
            format!("The labels of {} have changed, asked by {by}: {changed}.", node.record.name);
        node.record.labels = after;
        effects.writes.push(Write::Node(node.record.clone()));
        effects.notices.push(Notice::plain("NodeLabelled", About::Node(id), text));
        let drives = self.add_by_rule(id, asked.now_ms, effects);
        Outcome { drives, ..Outcome::new(Code::Ok) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, says, store};
    use crate::cluster::{AutoAdd, AutoAddRule, Event, Records, Reply, State};
    use crate::cms::Action;
    use crate::ids::Incarnation;
    use crate::rules::Rules;

    fn agent() -> Agent {
        let (incarnation, found) = (Incarnation::from_bits(5), RecordFound::Absent(None));
        let at_start = AttachAtStart::default();
        Agent::start(Rules::default(), incarnation, found, vec![device("S1")], at_start).0
    }

    fn started(rules: AutoAdd) -> (Cluster, Records) {
        let mut records = Records::default();
        let (cluster, writes) = lead(Records::default(), 1);
        store(&mut records, writes);
        let mut cluster = cluster.adding_by(rules);
        let effects = register(&mut cluster, 1, says(&agent(), "node-a")).unwrap();
        store(&mut records, effects.writes);
        (cluster, records)
    }

    fn rack_a() -> AutoAdd {
        let rule = serde_json::json!({ "name": "rack-a", "node-labels": { "rack": "a" } });
        [serde_json::from_value::<AutoAddRule>(rule).unwrap()].into_iter().collect()
    }

    fn asking(texts: &[&str], overwrite: bool) -> Action {
        let change = LabelChange::of_texts(texts, overwrite).unwrap();
        Action::LabelHost { host: "node-a".into(), change }
    }

    fn labels(cluster: &Cluster) -> String {
        cluster.nodes().next().unwrap().record.labels.to_string()
    }

    #[test]
    fn labels_are_set_removed_told_and_kept() {
        let (mut cluster, mut records) = started(AutoAdd::default());
        let (effects, outcome) = act(&mut cluster, asking(&["rack=a", "zone=z"], false));
        assert_eq!((outcome.code, labels(&cluster)), (Code::Ok, "rack=a,zone=z".into()));
        store(&mut records, effects.writes);
        let (effects, _) = act(&mut cluster, asking(&["zone-", "rack=b"], true));
        assert_eq!(labels(&cluster), "rack=b");
        let told = "The labels of node-a have changed, asked by me: rack=b (was a), zone removed.";
        assert_eq!(effects.notices[0].text, told);
        store(&mut records, effects.writes);
        // Also when the registry starts anew, and when the agent registers again.
        let (mut cluster, _) = lead(records, 2);
        assert_eq!(labels(&cluster), "rack=b");
        register(&mut cluster, 1, says(&agent(), "node-a")).unwrap();
        assert_eq!(labels(&cluster), "rack=b");
    }

    #[test]
    fn another_value_is_refused_and_the_same_one_changes_nothing() {
        let (mut cluster, _) = started(AutoAdd::default());
        act(&mut cluster, asking(&["rack=a"], false));
        let (effects, outcome) = act(&mut cluster, asking(&["rack=b", "new=x"], false));
        let labels_before = "rack=a".to_owned();
        assert_eq!(outcome.code, Code::InvalidState);
        assert_eq!(outcome.reasons, [Reason::LabelledOtherwise { labels: labels_before.clone() }]);
        assert!(effects.writes.is_empty() && effects.notices.is_empty());
        let (effects, outcome) = act(&mut cluster, asking(&["rack=a", "none-"], false));
        assert_eq!((outcome.code, labels(&cluster)), (Code::Already, labels_before));
        assert!(effects.writes.is_empty() && effects.notices.is_empty());
    }

    #[test]
    fn a_node_has_no_more_labels_than_the_limit() {
        let (mut cluster, _) = started(AutoAdd::default());
        let many: Vec<_> = (0..LABELS_LIMIT).map(|n| format!("k{n}=v")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(act(&mut cluster, asking(&many, false)).1.code, Code::Ok);
        let (effects, outcome) = act(&mut cluster, asking(&["one-more=v"], false));
        assert_eq!(outcome.reasons, [Reason::TooManyLabels]);
        assert!(effects.writes.is_empty());
        assert_eq!(act(&mut cluster, asking(&["one-more=v", "k0-"], false)).1.code, Code::Ok);
    }

    #[test]
    fn a_rule_that_asks_for_a_label_takes_the_drives_when_the_node_gets_it() {
        let (mut cluster, _) = started(rack_a());
        let state = |cluster: &Cluster| cluster.drive(DRIVE).unwrap().record.state;
        act(&mut cluster, asking(&["rack=b"], false));
        assert_eq!(state(&cluster), State::Unknown);
        let asked_by = "me".to_owned();
        let actions = vec![asking(&["rack=a"], true)];
        let dry = Event::Act { actions, asked_by, dry_run: true };
        let effects = cluster.apply(dry, 0).unwrap();
        let Reply::Acted(outcomes) = &effects.reply else { panic!("not acted") };
        assert_eq!(outcomes[0].drives[0].drive, Some(DRIVE), "a dry run says what would be added");
        assert!(effects.writes.is_empty() && effects.orders.is_empty());
        assert_eq!((state(&cluster), labels(&cluster)), (State::Unknown, "rack=b".into()));

        let (effects, outcome) = act(&mut cluster, asking(&["rack=a"], true));
        assert_eq!(outcome.drives[0].drive, Some(DRIVE));
        assert_eq!((state(&cluster), effects.orders.len()), (State::Attaching, 1));
        assert_eq!(cluster.drive(DRIVE).unwrap().record.asked_by, "auto-add rule rack-a");
        // Taking the label away takes nothing out of operation.
        let (effects, outcome) = act(&mut cluster, asking(&["rack-"], false));
        assert!(effects.orders.is_empty() && outcome.drives.is_empty());
        assert_eq!(state(&cluster), State::Attaching);
    }

    #[test]
    fn a_host_that_is_not_there_cannot_be_labelled() {
        let (mut cluster, _) = started(AutoAdd::default());
        let change = LabelChange::of_texts(&["a=b"], false).unwrap();
        let (_, outcome) = act(&mut cluster, Action::LabelHost { host: "node-x".into(), change });
        assert_eq!(outcome.code, Code::NotFound);
    }
}

//! Which rule has added a drive, and why the others have not: for people who ask. The registry's views call it.

use super::auto_add::{AutoAddRule, is_untouched};
use super::{Cluster, Drive};
use crate::filter::RuleName;
use crate::ids::DriveId;

/// What one rule makes of a drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleVerdict {
    pub rule: RuleName,
    /// It has added the drive, and nobody has asked anything else of it since.
    pub took: bool,
    /// Why, or why not, in words: the first thing that the rule asks for and that is not so, else what keeps every
    /// rule from it.
    pub why: String,
}

impl Cluster {
    /// What each rule makes of a drive, in the order of the rules. None if there are no rules.
    pub fn rules_on(&self, id: DriveId) -> Vec<RuleVerdict> {
        let Some(drive) = self.drives.get(&id) else { return Vec::new() };
        let one = |rule: &AutoAddRule| {
            let took = self.in_operation(id) && drive.record.asked_by == rule.to_string();
            let why = if took {
                "it has added it".to_owned()
            } else {
                let of_rule = self.unmet_by_rule(rule, drive);
                of_rule.unwrap_or_else(|| self.unmet_by_all(id, drive))
            };
            RuleVerdict { rule: rule.name.clone(), took, why }
        };
        self.auto_add.0.iter().map(one).collect()
    }

    /// The first thing that a rule asks for and that is not so.
    fn unmet_by_rule(&self, rule: &AutoAddRule, drive: &Drive) -> Option<String> {
        let node = &self.nodes[&drive.record.node].record;
        if !rule.fits_node(&node.name) {
            let asked: Vec<_> = rule.node.0.iter().map(ToString::to_string).collect();
            let asked = asked.join(" or ");
            return Some(format!("its node is {}, and {asked} is asked for", node.name));
        }
        if let Some((key, asked)) = rule.unmet_label(&node.labels) {
            return Some(match node.labels.get(key.as_str()) {
                Some(now) => {
                    format!("its node has the label {key}={now}, and {key}={asked} is asked for")
                }
                None => format!("its node has no label {key}, and {key}={asked} is asked for"),
            });
        }
        rule.criteria.why_not((&*drive.record.observed).into())
    }

    /// Why no rule adds a drive that one fits.
    fn unmet_by_all(&self, id: DriveId, drive: &Drive) -> String {
        let record = &drive.record;
        let why_not = if let Some(denied) = self.denied(id).next() {
            denied.to_string()
        } else if self.in_operation(id) {
            format!("it is in operation already, asked by {}", record.asked_by)
        } else if !drive.present {
            "it is not on the machine".to_owned()
        } else if drive.label.is_some() {
            "it has a label of ours, and so was in operation before".to_owned()
        } else if is_untouched(drive) {
            return "it fits; the drive is added with the next report of its node".to_owned();
        } else {
            let by = match record.asked_by.as_str() {
                "" => String::new(),
                who => format!(" by {who}"),
            };
            format!("something was asked of it before{by}, and a rule does not undo that")
        };
        format!("it fits, but {why_not}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, says};
    use crate::cluster::{AutoAdd, Records};
    use crate::cms::{Action, Target};
    use crate::device::{Denied, Observed};
    use crate::ids::Incarnation;
    use crate::node_labels::LabelChange;
    use crate::rules::Rules;

    fn started(rules: serde_json::Value, device: Observed) -> Cluster {
        let rules: Vec<AutoAddRule> = serde_json::from_value(rules).unwrap();
        let rules: AutoAdd = rules.into_iter().collect();
        let mut cluster = lead(Records::default(), 1).0.adding_by(rules);
        let (incarnation, found) = (Incarnation::from_bits(5), RecordFound::Absent(None));
        let at_start = AttachAtStart::default();
        let (agent, _) = Agent::start(Rules::default(), incarnation, found, vec![device], at_start);
        register(&mut cluster, 1, says(&agent, "node-a")).unwrap();
        cluster
    }

    fn told(cluster: &Cluster) -> Vec<(bool, String)> {
        let told = cluster.rules_on(DRIVE).into_iter();
        told.map(|it| (it.took, format!("{}: {}", it.rule, it.why))).collect()
    }

    fn why(rules: serde_json::Value, device: Observed) -> String {
        let mut told = told(&started(rules, device));
        assert!(told.len() == 1 && !told[0].0, "{told:?}");
        told.remove(0).1
    }

    fn target() -> Target {
        Target { host: Some("node-a".into()), device: "/dev/sdx".into() }
    }

    #[test]
    fn the_rule_that_took_a_drive_is_told_and_what_the_others_miss() {
        let cluster = started(
            json!([
                { "name": "elsewhere", "node": ["b-*", "c-*"] },
                { "name": "rack", "node-labels": { "rack": "a" } },
                { "name": "hdd", "media": "HDD" },
                { "name": "ssd", "media": "SSD" },
                { "name": "all", "node": "*" },
            ]),
            device("S1"),
        );
        assert_eq!(
            told(&cluster),
            [
                (false, "elsewhere: its node is node-a, and b-* or c-* is asked for".into()),
                (false, "rack: its node has no label rack, and rack=a is asked for".into()),
                (false, "hdd: media is SSD, and HDD is asked for".into()),
                (true, "ssd: it has added it".into()),
                (
                    false,
                    "all: it fits, but it is in operation already, asked by auto-add rule ssd"
                        .into()
                ),
            ]
        );
        assert_eq!(started(json!([]), device("S1")).rules_on(DRIVE), []);
    }

    #[test]
    fn another_value_of_a_label_is_told() {
        let rules = json!([{ "name": "rack", "node-labels": { "rack": "a", "zone": "z" } }]);
        let mut cluster = started(rules, device("S1"));
        let change = LabelChange::of_texts(&["rack=b", "zone=z"], false).unwrap();
        act(&mut cluster, Action::LabelHost { host: "node-a".into(), change });
        let why = "rack: its node has the label rack=b, and rack=a is asked for";
        assert_eq!(told(&cluster), [(false, why.into())]);
    }

    #[test]
    fn what_keeps_every_rule_from_a_drive_is_told() {
        let all = || json!([{ "name": "all", "node": "*" }]);
        let denied = Observed { denied: vec![Denied::ReadOnly], ..device("S1") };
        assert_eq!(why(all(), denied), "all: it fits, but it is read-only");
        let mut cluster = started(all(), device("S1"));
        act(&mut cluster, Action::RemoveDevice(target()));
        let (took, words) = told(&cluster).remove(0);
        assert!(!took && words.contains("asked of it before by me"), "{words}");
        // Not yet looked at: the rules are new.
        let cluster = started(json!([]), device("S1"));
        let rules: Vec<AutoAddRule> = serde_json::from_value(all()).unwrap();
        let cluster = cluster.adding_by(rules.into_iter().collect());
        assert!(told(&cluster)[0].1.contains("with the next report"), "{:?}", told(&cluster));
    }
}

//! Rules that put new drives into operation without anybody asking. There are none unless somebody writes them, and
//! they take only what is provably empty and was never asked anything of: what a person decided, a rule does not undo.
//!
//! Decided whenever a node has reported its devices, or its labels have changed:
//! [`Cluster::take_inventory`](super::registration) and [`Cluster::label`](super::node_labels) call it.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use thiserror::Error;

use super::actions::Asked;
use super::{Cluster, Drive, Effects, State};
use crate::cms::{Code, Outcome};
use crate::device::Media;
use crate::filter::{AnyOf, Criteria, Pattern, RuleName, Size};
use crate::ids::{DriveId, NodeId, NodeName};
use crate::node_labels::{LabelKey, LabelValue, NodeLabels};
use crate::order::Generation;

/// The rules, in order: the first one that fits a drive is the one that adds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct AutoAdd(pub(super) Arc<[AutoAddRule]>);

impl FromIterator<AutoAddRule> for AutoAdd {
    fn from_iter<I: IntoIterator<Item = AutoAddRule>>(rules: I) -> Self {
        Self(rules.into_iter().collect())
    }
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "Written")]
pub struct AutoAddRule {
    pub name: RuleName,
    /// On which nodes.
    pub node: AnyOf<Pattern>,
    /// With which labels; the node has all of them.
    pub node_labels: NodeLabels,
    pub criteria: Criteria,
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", expecting = "a rule, with a name")]
struct Written {
    name: RuleName,
    #[serde(default)]
    node: AnyOf<Pattern>,
    #[serde(default)]
    node_labels: NodeLabels,
    #[serde(default)]
    media: AnyOf<Media>,
    #[serde(default)]
    vendor: AnyOf<Pattern>,
    #[serde(default)]
    model: AnyOf<Pattern>,
    #[serde(default, deserialize_with = "crate::filter::size_field")]
    min_size: Option<Size>,
    #[serde(default, deserialize_with = "crate::filter::size_field")]
    max_size: Option<Size>,
}

/// A rule that says nothing about the drives that it adds.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("this rule would add every empty drive of every node; write node = \"*\" if that is meant")]
pub struct AsksForNothing;

impl TryFrom<Written> for AutoAddRule {
    type Error = AsksForNothing;

    fn try_from(written: Written) -> Result<Self, Self::Error> {
        let Written { name, node, node_labels, media, vendor, model, min_size, max_size } = written;
        let criteria = Criteria { media, vendor, model, min_size, max_size, ..Criteria::default() };
        if node.0.is_empty() && node_labels.is_empty() && criteria == Criteria::default() {
            return Err(AsksForNothing);
        }
        Ok(Self { name, node, node_labels, criteria })
    }
}

impl fmt::Display for AutoAddRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "auto-add rule {}", self.name)
    }
}

impl Cluster {
    /// Gives the registry rules by which it adds new drives by itself. They count from the next report of each node.
    #[must_use]
    pub fn adding_by(self, auto_add: AutoAdd) -> Self {
        Self { auto_add, ..self }
    }

    /// Adds the drives of a node that a rule fits and that nobody could miss anything on, and tells which.
    pub(super) fn add_by_rule(
        &mut self,
        node: NodeId,
        now_ms: u64,
        effects: &mut Effects,
    ) -> Vec<Outcome> {
        let rules = self.auto_add.0.clone();
        let mut added = Vec::new();
        if rules.is_empty() {
            return added;
        }
        for id in self.nodes[&node].drives.clone() {
            let rule = rules.iter().find(|rule| self.takes(rule, id));
            if let Some(by) = rule.map(ToString::to_string) {
                let asked = Asked { by: &by, with_host: false, now_ms };
                // What speaks against it is known only to the add itself, and then nothing changes.
                let outcome = self.add(id, asked, None, effects);
                if outcome.code == Code::Ok {
                    added.push(Outcome { drive: Some(id), ..outcome });
                }
            }
        }
        added
    }

    fn takes(&self, rule: &AutoAddRule, id: DriveId) -> bool {
        let drive = &self.drives[&id];
        let node = &self.nodes[&drive.record.node].record;
        is_untouched(drive)
            && self.denied(id).next().is_none()
            && rule.fits_node(&node.name)
            && rule.unmet_label(&node.labels).is_none()
            && rule.criteria.fit((&*drive.record.observed).into())
    }
}

impl AutoAddRule {
    pub(super) fn fits_node(&self, name: &NodeName) -> bool {
        self.node.fits(|pattern| pattern.fits(name.as_str()))
    }

    /// The first label that is asked for and that a node does not have.
    pub(super) fn unmet_label(&self, labels: &NodeLabels) -> Option<(&LabelKey, &LabelValue)> {
        self.node_labels.iter().find(|(key, value)| labels.get(key.as_str()) != Some(value))
    }
}

/// Whether a drive is there, has no label of ours, and nobody has ever asked anything of it, not even that it stay out.
pub(super) fn is_untouched(drive: &Drive) -> bool {
    let record = &drive.record;
    drive.present
        && drive.label.is_none()
        && record.state == State::Unknown
        && record.generation == Generation::ZERO
        && !record.removed_alone
        && record.asked_by.is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says};
    use crate::cluster::{Event, Records};
    use crate::cms::{Action, Target};
    use crate::device::{Denied, LabelSeen, Observed};
    use crate::ids::{Incarnation, SessionNumber};
    use crate::rules::Rules;

    const A: SessionNumber = SessionNumber::from_number(1);

    fn rule(json: serde_json::Value) -> AutoAdd {
        let rule: AutoAddRule = serde_json::from_value(json).unwrap();
        [rule].into_iter().collect()
    }

    fn ssds() -> AutoAdd {
        rule(json!({ "name": "ssds", "media": "SSD", "node": "node-*" }))
    }

    fn registration(devices: Vec<Observed>) -> crate::message::Registration {
        let (agent, _) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Absent(None),
            devices,
            AttachAtStart::default(),
        );
        says(&agent, "node-a")
    }

    fn started(rules: AutoAdd, devices: Vec<Observed>) -> (Cluster, Effects) {
        let mut cluster = lead(Records::default(), 1).0.adding_by(rules);
        let effects = register(&mut cluster, 1, registration(devices)).unwrap();
        (cluster, effects)
    }

    fn reports(cluster: &mut Cluster, devices: Vec<Observed>) -> Effects {
        let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
        let event = Event::Devices { session: A, devices, conditions: vec![], fresh };
        cluster.apply(event, 0).unwrap()
    }

    fn state(cluster: &Cluster) -> State {
        cluster.drive(DRIVE).unwrap().record.state
    }

    fn target() -> Target {
        Target { host: Some("node-a".into()), device: "/dev/sdx".into() }
    }

    #[test]
    fn without_rules_nothing_is_added() {
        let (cluster, _) = started(AutoAdd::default(), vec![device("S1")]);
        assert_eq!(state(&cluster), State::Unknown);
    }

    #[test]
    fn an_empty_drive_that_fits_is_added_at_registration() {
        let (cluster, effects) = started(ssds(), vec![device("S1")]);
        assert_eq!(state(&cluster), State::Attaching);
        assert_eq!(cluster.drive(DRIVE).unwrap().record.asked_by, "auto-add rule ssds");
        assert_eq!(registered(&effects).allowed.len(), 1);
        assert!(effects.orders.is_empty(), "the answer has it");
        let told = effects.notices.iter().any(|notice| {
            notice.text.ends_with("goes into operation, asked by auto-add rule ssds.")
        });
        assert!(told, "{:?}", effects.notices);
    }

    #[test]
    fn a_drive_that_is_put_in_later_is_added_with_the_report() {
        let (mut cluster, _) = started(ssds(), vec![]);
        let effects = reports(&mut cluster, vec![device("S1")]);
        assert_eq!(effects.orders.len(), 1);
        let again = reports(&mut cluster, vec![device("S1")]);
        assert!(again.orders.is_empty() && again.writes.is_empty());
    }

    #[test]
    fn what_does_not_fit_or_is_not_provably_empty_is_left_alone() {
        let hdd = Observed { media: Media::Hdd, ..device("S1") };
        let partitioned = Denied::Partitioned { table: "gpt".into() };
        let with_data = Observed { denied: vec![partitioned], ..device("S1") };
        let filtered = Denied::Filtered { rule: "x".into() };
        let filtered = Observed { denied: vec![filtered], ..device("S1") };
        for left in [hdd, with_data, filtered] {
            assert_eq!(state(&started(ssds(), vec![left.clone()]).0), State::Unknown, "{left:?}");
        }
        let elsewhere = rule(json!({ "name": "x", "node": "rack-*" }));
        assert_eq!(state(&started(elsewhere, vec![device("S1")]).0), State::Unknown);
        let twins = vec![device("S1"), Observed { path: "/dev/sdy".into(), ..device("S1") }];
        let mut cluster = lead(Records::default(), 1).0.adding_by(ssds());
        register(&mut cluster, 1, registration(vec![])).unwrap();
        assert!(reports(&mut cluster, twins).orders.is_empty());
    }

    #[test]
    fn a_label_of_ours_is_no_empty_drive() {
        let label = LabelSeen {
            cluster: lead(Records::default(), 1).0.id(),
            drive: DriveId::from_bits(77),
            node: NodeId::from_bits(78),
            generation: Generation::from_number(3),
            in_operation: false,
            sequence: 4,
        };
        let (mut cluster, _) = started(ssds(), vec![]);
        let effects = reports(&mut cluster, vec![Observed { label: Some(label), ..device("S1") }]);
        assert!(effects.orders.is_empty(), "{effects:?}");
    }

    #[test]
    fn what_a_person_removed_is_never_added_again() {
        for remove in [Action::RemoveDevice(target()), Action::RemoveHost { host: "node-a".into() }]
        {
            // Removed before a rule was written, and after one has added it.
            let (cluster, _) = started(AutoAdd::default(), vec![device("S1")]);
            let (added, _) = started(ssds(), vec![device("S1")]);
            for (mut cluster, before) in [(cluster, State::Unknown), (added, State::Closing)] {
                act(&mut cluster, remove.clone());
                assert_eq!(state(&cluster), before);
                let mut cluster = cluster.adding_by(ssds());
                let effects = reports(&mut cluster, vec![device("S1")]);
                assert!(effects.orders.is_empty(), "{remove:?}");
                assert_eq!(state(&cluster), before);
            }
        }
    }

    #[test]
    fn a_person_can_add_what_was_removed() {
        let (mut cluster, _) = started(AutoAdd::default(), vec![device("S1")]);
        act(&mut cluster, Action::RemoveHost { host: "node-a".into() });
        let (_, outcome) = act(
            &mut cluster,
            Action::AddHost { host: "node-a".into(), with_removed: false, returned: false },
        );
        assert_eq!((outcome.code, state(&cluster)), (Code::Ok, State::Attaching));
    }

    #[test]
    fn a_rule_must_say_what_it_takes() {
        let refused = |rule| serde_json::from_value::<AutoAddRule>(rule).unwrap_err().to_string();
        assert!(refused(json!({ "name": "x" })).contains("node = \"*\""));
        assert!(refused(json!({ "name": "x", "node-labels": {} })).contains("node = \"*\""));
        let no_label = json!({ "name": "x", "node-labels": { "ra ck": "a" } });
        assert!(refused(no_label).contains("\"ra ck\" is no key of a label"));
        assert!(refused(json!({ "media": "SSD" })).contains("missing field `name`"));
        assert!(refused(json!({ "name": "x", "labels": {} })).contains("unknown field `labels`"));
        assert!(serde_json::from_value::<AutoAddRule>(json!({ "name": "x", "node": "*" })).is_ok());
    }
}

//! The numbers of a controller for Prometheus, in its text format (OpenMetrics 1.0). They are read when somebody asks:
//! what the registry has done from its own counters, what there is from the state itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use hotbay_core::cluster::{Cluster, State};
use hotbay_registry::stats::{Histogram, Snapshot};
use hotbay_registry::{Registry, StoreHealth};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry as Format, Unit};

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long the state may take to be looked at. While a store hangs or fails nobody sees the state; all other numbers
/// are there, and they are the ones that are needed then.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// The whole answer.
pub(super) async fn text(registry: &Registry) -> String {
    let looking = tokio::time::timeout(LOOK_LIMIT, registry.read_around(Inventory::of)).await;
    let numbers = Numbers {
        inventory: looking.ok().and_then(Result::ok),
        stats: registry.stats().snapshot(),
        health: registry.store_health().borrow().clone(),
    };
    written(numbers)
}

fn written(numbers: Numbers) -> String {
    let mut format = Format::default();
    format.register_collector(Box::new(numbers));
    let mut text = String::new();
    text::encode(&mut text, &format).expect("a text takes what is written to it");
    text
}

/// How much there is of everything. What was purged stays in the records for good, as somebody left it: counted among
/// the rest, it would look like something that waits.
#[derive(Debug, Default)]
struct Inventory {
    drives: BTreeMap<&'static str, u64>,
    nodes_ready: u64,
    nodes_not_ready: u64,
    purged_drives: u64,
    purged_nodes: u64,
    fake_attachments: u64,
}

impl Inventory {
    fn of(cluster: &Cluster) -> Self {
        let states =
            [State::Unknown, State::Attaching, State::Attached, State::Closing, State::Detached];
        let drives = states.map(|state| (state.wire_name(), 0)).into();
        let mut this = Self { drives, ..Self::default() };
        let mut purged = BTreeSet::new();
        for node in cluster.nodes() {
            *if node.record.purged {
                purged.insert(node.record.id);
                &mut this.purged_nodes
            } else if node.session.is_some() {
                &mut this.nodes_ready
            } else {
                &mut this.nodes_not_ready
            } += 1;
        }
        for drive in cluster.drives() {
            *if purged.contains(&drive.record.node) {
                &mut this.purged_drives
            } else {
                this.drives.entry(drive.record.state.wire_name()).or_default()
            } += 1;
        }
        let faked = cluster.volumes_after(None).filter(|volume| volume.is_faked());
        this.fake_attachments = faked.map(|volume| volume.attachments.len() as u64).sum();
        this
    }

    fn encode(&self, page: &mut Page<'_>) -> fmt::Result {
        let Self {
            drives,
            nodes_ready,
            nodes_not_ready,
            purged_drives,
            purged_nodes,
            fake_attachments,
        } = self;
        page.gauges(
            "hotbay_drives",
            "Drives that the registry knows, by state, without those of purged nodes.",
            drives.iter().map(|(state, count)| ([("state", *state)], *count)),
        )?;
        page.gauges(
            "hotbay_nodes",
            "Nodes by whether their agent is registered, without those that were purged.",
            [([("ready", "true")], *nodes_ready), ([("ready", "false")], *nodes_not_ready)],
        )?;
        page.gauge("hotbay_purged_drives", "Drives of purged nodes.", *purged_drives)?;
        page.gauge("hotbay_purged_nodes", "Nodes that were purged.", *purged_nodes)?;
        page.gauge(
            "hotbay_fake_attachments",
            "Volumes on nodes where pods have a dummy in the volume's place.",
            *fake_attachments,
        )
    }
}

#[derive(Debug)]
struct Numbers {
    inventory: Option<Inventory>,
    stats: Snapshot,
    health: StoreHealth,
}

impl Collector for Numbers {
    fn encode(&self, encoder: DescriptorEncoder) -> fmt::Result {
        let mut page = Page { encoder };
        if let Some(inventory) = &self.inventory {
            inventory.encode(&mut page)?;
        }
        self.encode_conversations(&mut page)?;
        self.encode_store(&mut page)
    }
}

impl Numbers {
    fn encode_conversations(&self, page: &mut Page<'_>) -> fmt::Result {
        let Snapshot { actions, orders, answers, sessions, registrations_refused, .. } =
            &self.stats;
        let actions = actions.iter();
        page.counters(
            "hotbay_actions",
            "Actions answered, by type and result. Dry runs do not count.",
            actions
                .map(|(kind, code, count)| ([("type", *kind), ("result", code.as_str())], *count)),
        )?;
        let orders = orders.map(|(goal, count)| (goal.to_string(), count));
        page.counters(
            "hotbay_orders_sent",
            "Orders to attach or detach a drive that were handed to sessions of agents, repeats included.",
            orders.iter().map(|(goal, count)| ([("goal", goal.as_str())], *count)),
        )?;
        page.counters(
            "hotbay_answers",
            "Answers of agents to orders. not_counted: not about the order in force.",
            answers.iter().map(|(result, count)| ([("result", *result)], *count)),
        )?;
        page.counter("hotbay_sessions", "Sessions of agents that were opened.", *sessions)?;
        page.counters(
            "hotbay_registrations_refused",
            "Registrations of agents that were refused, by reason.",
            registrations_refused.iter().map(|(reason, count)| ([("reason", *reason)], *count)),
        )
    }

    fn encode_store(&self, page: &mut Page<'_>) -> fmt::Result {
        let Snapshot { commit_seconds, batch_writes, held, .. } = &self.stats;
        page.counter(
            "hotbay_store_commits",
            "Batches of writes that the store has made durable.",
            commit_seconds.count(),
        )?;
        page.histogram(
            "hotbay_store_commit",
            "How long the store took to make a batch durable.",
            Some(&Unit::Seconds),
            commit_seconds,
        )?;
        page.histogram(
            "hotbay_store_batch_writes",
            "Writes in a batch, which share one sync; 1 where each record is written by itself.",
            None,
            batch_writes,
        )?;
        page.gauge(
            "hotbay_store_failing",
            "1 while no record can be written, and every request is refused, else 0.",
            u64::from(matches!(self.health, StoreHealth::Failing(_))),
        )?;
        page.gauge(
            "hotbay_store_partly_failing",
            "1 while some records cannot be written, and what rests on them is refused, else 0.",
            u64::from(matches!(self.health, StoreHealth::Partly(_))),
        )?;
        page.gauge(
            "hotbay_held_replies",
            "Replies, orders and reads that wait for what they rest on to be durable.",
            *held,
        )
    }
}

/// Writes whole families.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    /// The name is without the `_total` that the format adds.
    fn counters(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (impl EncodeLabelSet, u64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        family.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        family.encode_gauge(&value)
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (impl EncodeLabelSet, u64)>,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<&Unit>,
        values: &Histogram,
    ) -> fmt::Result {
        let mut family = self.encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(values.sum, values.count(), &values.buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::ids::{ClusterId, TermId};
    use hotbay_registry::{MemoryStore, Surroundings};

    use super::*;

    /// The story: one Drive that a policy of the cluster refused was told as a store that fails, so that the alert said
    /// that every request is refused, while all but those for that drive went on.
    #[tokio::test]
    async fn a_store_that_fails_in_part_is_told_apart_from_one_that_fails() {
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(1),
            term: TermId::from_bits(2),
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: std::iter::empty().collect(),
        };
        let (registry, _ended) = Registry::start(MemoryStore::new(), surroundings).unwrap();
        let why = || "a policy forbids it".to_owned();
        for (health, failing, partly) in [
            (StoreHealth::Good, 0, 0),
            (StoreHealth::Partly(why()), 0, 1),
            (StoreHealth::Failing(why()), 1, 0),
        ] {
            let stats = registry.stats().snapshot();
            let metrics = written(Numbers { inventory: None, stats, health });
            for told in [
                format!("\nhotbay_store_failing {failing}\n"),
                format!("\nhotbay_store_partly_failing {partly}\n"),
            ] {
                assert!(metrics.contains(&told), "no {told:?} in\n{metrics}");
            }
        }
    }
}

//! What discovery has done, in numbers. The loop counts, whoever asks the agent for its metrics reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hotbay_core::discovery::Probes;
use hotbay_core::discovery::queue::Run;
use hotbay_core::discovery::triage::Change;
use hotbay_host::uevent::Counters;

/// Shared between the loop that counts and the socket that shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
pub(super) struct Counts {
    /// What the sockets have told.
    pub(super) events: Counters,
    /// Looks that events called for.
    pub(super) pushed: u64,
    /// Looks that were made for them.
    pub(super) taken: u64,
    /// Listings of the whole machine, the first among them.
    pub(super) resyncs: u64,
    /// Devices that a child hangs on now.
    pub(super) quarantined: usize,
    probe_runs: BTreeMap<(&'static str, &'static str), u64>,
    /// How long children took to read a device.
    reads: Durations,
    reports: u64,
    /// From the moment that a change was known to the registry's word that it has it.
    publish: Durations,
}

#[derive(Debug, Default)]
struct Durations {
    count: u64,
    sum: Duration,
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.sum += duration;
    }
}

impl Metrics {
    pub(super) fn count(&self) -> MutexGuard<'_, Counts> {
        // Numbers are whole whatever happened to another holder.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Probes are run for an event.
    pub(super) fn probed(&self, run: Run, probes: Probes) {
        let action = match run.change {
            Change::Came => "add",
            Change::Changed => "change",
            Change::Went => "remove",
        };
        // That a device has gone is asked of sysfs.
        let probes = if probes.is_empty() { Probes::SIZE } else { probes };
        let mut counts = self.count();
        for probe in probes.metric_names() {
            *counts.probe_runs.entry((probe, action)).or_default() += 1;
        }
    }

    pub(super) fn read(&self, took: Duration) {
        self.count().reads.add(took);
    }

    /// A report was sent to the registry.
    pub(crate) fn reported(&self) {
        self.count().reports += 1;
    }

    /// The registry has a report, so long after the change was known.
    pub(crate) fn published(&self, lag: Duration) {
        self.count().publish.add(lag);
    }

    /// All of it, as Prometheus reads it.
    pub(crate) fn text(&self) -> String {
        let counts = self.count();
        let mut text = Text::default();
        let Counters { added, removed, changed, other, from_udev, .. } = counts.events;
        text.counter("hotbay_discovery_events", "Events of devices, by kind.");
        let kinds = ["add", "remove", "change", "other", "udev"];
        for (kind, count) in kinds.iter().zip([added, removed, changed, other, from_udev]) {
            text.line(&format!("hotbay_discovery_events_total{{kind=\"{kind}\"}}"), count);
        }
        let Counters { overflows, unreadable, foreign, .. } = counts.events;
        text.counter(
            "hotbay_discovery_events_dropped",
            "Overflows, and messages that are no events.",
        );
        for (why, count) in
            [("overflow", overflows), ("unreadable", unreadable), ("foreign", foreign)]
        {
            text.line(&format!("hotbay_discovery_events_dropped_total{{why=\"{why}\"}}"), count);
        }
        text.counter("hotbay_probe_runs", "Probes that events ran.");
        for ((probe, action), count) in &counts.probe_runs {
            let labels = format!("probe=\"{probe}\",action=\"{action}\"");
            text.line(&format!("hotbay_probe_runs_total{{{labels}}}"), *count);
        }
        text.single(
            "hotbay_discovery_looks_wanted",
            "Looks that events called for.",
            counts.pushed,
        );
        let coalesced = counts.pushed.saturating_sub(counts.taken);
        let help = "Looks that were made together with another of the same device.";
        text.single("hotbay_discovery_looks_coalesced", help, coalesced);
        text.single("hotbay_discovery_resyncs", "Looks at the whole machine.", counts.resyncs);
        text.single("hotbay_discovery_reports", "Reports of a change.", counts.reports);
        text.family("hotbay_discovery_quarantined", "gauge", "Devices that a process hangs on.");
        text.line("hotbay_discovery_quarantined", counts.quarantined as u64);
        text.durations("hotbay_probe_seconds", "Time to read a device.", &counts.reads);
        let help = "Time from a change to the registry's having it.";
        text.durations("hotbay_publish_lag_seconds", help, &counts.publish);
        text.0.push_str("# EOF\n");
        text.0
    }
}

/// Text for Prometheus. Writing to a string does not fail.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str) {
        self.family(name, "counter", help);
    }

    fn single(&mut self, name: &str, help: &str, count: u64) {
        self.counter(name, help);
        self.line(&format!("{name}_total"), count);
    }

    fn line(&mut self, series: &str, count: u64) {
        let _ = writeln!(self.0, "{series} {count}");
    }

    fn durations(&mut self, name: &str, help: &str, durations: &Durations) {
        self.family(name, "summary", help);
        let Durations { count, sum } = durations;
        let _ = writeln!(self.0, "{name}_sum {}\n{name}_count {count}", sum.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::device::DeviceNumber;
    use hotbay_core::discovery::Needs;
    use hotbay_core::discovery::queue::DeviceKey;

    use super::*;

    #[test]
    fn the_text_names_what_was_run_for_which_action() {
        let metrics = Metrics::default();
        let device = DeviceKey { number: DeviceNumber { major: 8, minor: 0 }, sequence: None };
        let run = |change| Run { device, change, needs: Needs::NONE };
        metrics.probed(run(Change::Changed), Probes::SIZE | Probes::UDEV_DB);
        metrics.probed(run(Change::Went), Probes::NONE);
        metrics.published(Duration::from_millis(1_500));
        let text = metrics.text();
        for expected in [
            "hotbay_probe_runs_total{probe=\"sysfs-probe\",action=\"change\"} 1\n",
            "hotbay_probe_runs_total{probe=\"udev-probe\",action=\"change\"} 1\n",
            "hotbay_probe_runs_total{probe=\"sysfs-probe\",action=\"remove\"} 1\n",
            "hotbay_publish_lag_seconds_sum 1.5\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }
}

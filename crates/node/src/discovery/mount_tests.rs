//! What a look says of mounts, when the mount table was read by somebody else in the meantime.

use std::collections::BTreeMap;

use hotbay_core::discovery::queue::Run;
use hotbay_core::discovery::triage::Change;
use hotbay_core::discovery::{Needs, Probes};
use hotbay_host::RuntimeDir;
use hotbay_host::scan::Candidate;
use hotbay_host::worker::{Limits, Workers};
use tokio::sync::watch;

use super::inventory::tests::device;
use super::{Context, Discovery, Ended, Metrics, Place, sleep_until};

/// Discovery that knows one drive, which nothing of this machine is mounted from.
struct Rig {
    discovery: Discovery,
    drive: Candidate,
    _context: watch::Sender<Context>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime_dir = RuntimeDir::at(dir.path().join("run")).unwrap();
        let workers = Workers::of_this_program(runtime_dir, Limits::default());
        let (_context, context) = watch::channel(Context::default());
        let nowhere = Place { bay: None, pattern: "/nowhere/at/all".into() };
        let metrics = Metrics::default();
        let (mut discovery, _) = Discovery::new(workers, &[nowhere], None, context, metrics);
        let drive = device("sd-of-a-test", 0);
        discovery.inventory.listed(BTreeMap::from([(drive.path.clone(), (None, drive.clone()))]));
        // It counts as being read, so that no child is started for it.
        discovery.inventory.due_to_be_read();
        Self { discovery, drive, _context, _dir: dir }
    }

    /// A look that has met the drive as it is mounted.
    fn stale(&self) -> (Option<String>, Candidate) {
        (None, Candidate { mounts: vec!["/mnt".into()], ..self.drive.clone() })
    }

    fn probed(&self, tables: u64) -> Ended {
        let device = self.discovery.inventory.keys().next().unwrap();
        let needs = Needs::only(Probes::MOUNTS);
        let run = Run { device, change: Change::Changed, needs };
        Ended::Probed(run, Ok(Some(Box::new(self.stale()))), tables)
    }

    fn listed(&self, tables: u64) -> Ended {
        Ended::Listed(Ok(BTreeMap::from([(self.drive.path.clone(), self.stale())])), tables)
    }

    /// Reads the mount table for as long as anybody asks for it.
    async fn read_tables(&mut self) {
        while let Some(due) = self.discovery.queue.next() {
            sleep_until(Some(self.discovery.clock.instant(due))).await;
            self.discovery.work();
            while let Some(ended) = self.discovery.jobs.join_next().await {
                self.discovery.ended(ended);
            }
        }
    }

    fn mounts(&self) -> &[String] {
        &self.discovery.inventory.candidates().next().unwrap().mounts
    }
}

/// A look at a drive, or a listing, had read the mount table; then something was unmounted, and the table with that was
/// taken note of; then the look ended. What it says of mounts is over, and no event tells so again.
#[tokio::test(start_paused = true)]
async fn a_look_from_before_the_last_mount_table_has_it_read_again() {
    for late in [Rig::probed, Rig::listed] {
        let mut rig = Rig::new();
        let tables = rig.discovery.inventory.mount_tables();
        rig.discovery.queue.mounts_changed(rig.discovery.clock.now());
        rig.read_tables().await;
        assert_eq!(rig.mounts(), [""; 0]);
        let ended = late(&rig, tables);
        rig.discovery.ended(Ok(ended));
        assert_eq!(rig.mounts(), ["/mnt"], "as the look has it");
        rig.read_tables().await;
        assert_eq!(rig.mounts(), [""; 0], "as the machine has it");
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_began_after_it_has_nothing_read_again() {
    for in_time in [Rig::probed, Rig::listed] {
        let mut rig = Rig::new();
        rig.discovery.queue.mounts_changed(rig.discovery.clock.now());
        rig.read_tables().await;
        let ended = in_time(&rig, rig.discovery.inventory.mount_tables());
        rig.discovery.ended(Ok(ended));
        assert_eq!(rig.discovery.queue.next(), None);
        assert_eq!(rig.mounts(), ["/mnt"]);
    }
}

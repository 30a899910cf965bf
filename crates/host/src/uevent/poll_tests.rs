//! The poll over a directory that looks like sysfs; real devices are in the tests that need root.

use std::path::Path;

use hotbay_core::device::DeviceNumber;
use hotbay_core::discovery::probes::Probes;
use hotbay_core::discovery::queue::{DeviceKey, Run};
use hotbay_core::discovery::triage::Change;

use super::{KernelCounter, Poll, run};

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        tree.write("sda/dev", "8:0");
        tree.write("sda/diskseq", "7");
        tree.write("sda/size", "2048");
        tree.write("sda/ro", "0");
        tree
    }

    fn write(&self, file: &str, contents: &str) {
        let path = self.0.path().join("block").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, format!("{contents}\n")).unwrap();
    }

    fn remove(&self, directory: &str) {
        std::fs::remove_dir_all(self.0.path().join("block").join(directory)).unwrap();
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn sda(sequence: u64, change: Change, probes: Probes) -> Run {
    let number = DeviceNumber { major: 8, minor: 0 };
    run(DeviceKey { number, sequence: Some(sequence) }, change, probes)
}

fn swept(poll: &mut Poll) -> Vec<Run> {
    let mut found = Vec::new();
    poll.sweep(&mut found);
    found
}

fn listed(poll: &mut Poll) -> Vec<Run> {
    let mut found = Vec::new();
    poll.relist(|name| name.starts_with("sd"), &mut found).unwrap();
    found
}

#[test]
fn what_changes_is_told_once_whether_its_file_is_kept_open_or_not() {
    for most_kept in [0, 1, 100] {
        let tree = Tree::new();
        tree.write("loop0/dev", "7:0");
        tree.write("sda/sda1/partition", "1");
        tree.write("sda/sda1/dev", "8:1");
        tree.write("sda/sda1/size", "100");
        let mut poll = Poll::at(tree.path(), most_kept);
        assert_eq!(listed(&mut poll), [sda(7, Change::Came, Probes::ALL)]);
        assert_eq!((poll.len(), poll.kept), (1, most_kept.min(3)));
        assert_eq!(listed(&mut poll), []);
        assert_eq!(swept(&mut poll), []);
        for (file, contents, probes) in [
            ("sda/size", "4096", Probes::SIZE),
            ("sda/ro", "1", Probes::READ_ONLY),
            ("sda/sda1/size", "200", Probes::HIERARCHY),
        ] {
            tree.write(file, contents);
            assert_eq!(swept(&mut poll), [sda(7, Change::Changed, probes)], "{file}");
            assert_eq!(swept(&mut poll), [], "{file}");
        }
        tree.write("sda/size", "not a number");
        assert_eq!(swept(&mut poll), [], "what cannot be read has not changed");
    }
}

#[test]
fn what_goes_is_told_once_and_not_watched_any_more() {
    let tree = Tree::new();
    let mut poll = Poll::at(tree.path(), 0);
    listed(&mut poll);
    tree.remove("sda");
    assert_eq!(swept(&mut poll), [sda(7, Change::Went, Probes::NONE)]);
    assert!(poll.is_empty());
    assert_eq!((swept(&mut poll), listed(&mut poll)), (vec![], vec![]));
}

#[test]
fn a_new_list_tells_what_came_went_and_was_replaced() {
    let tree = Tree::new();
    let mut poll = Poll::at(tree.path(), 100);
    listed(&mut poll);
    tree.write("sda/diskseq", "8");
    assert_eq!(listed(&mut poll), [sda(8, Change::Came, Probes::ALL)]);
    tree.write("sda/sda1/partition", "1");
    tree.write("sda/sda1/dev", "8:1");
    let table = Probes::HIERARCHY | Probes::INSIDE | Probes::MOUNTS;
    assert_eq!(listed(&mut poll), [sda(8, Change::Changed, table)]);
    tree.remove("sda");
    assert_eq!(listed(&mut poll), [sda(8, Change::Went, Probes::NONE)]);
    assert_eq!((poll.len(), poll.kept), (0, 0));
}

#[test]
fn a_machine_that_cannot_be_asked_is_not_empty() {
    let tree = Tree::new();
    let mut poll = Poll::at(tree.path(), 100);
    listed(&mut poll);
    std::fs::rename(tree.path().join("block"), tree.path().join("away")).unwrap();
    let mut found = Vec::new();
    assert!(poll.relist(|_| true, &mut found).is_err());
    assert_eq!((found, poll.len()), (vec![], 1));
}

#[test]
fn the_kernel_counts_its_events() {
    let counter = KernelCounter::open().unwrap();
    assert!(counter.read().unwrap() <= counter.read().unwrap());
}

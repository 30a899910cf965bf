//! Real processes: a second one on the same directory, and one that is killed while it commits.
//!
//! The test binary starts itself as the child; the environment tells it which part to play.

use std::env;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use hotbay_registry::{CheckError, Kind, RedbStore, Store, StoreError, check};
use tempfile::TempDir;

use crate::{Random, key, load, put, seed};

const DATA_DIR: &str = "HOTBAY_TEST_DATA_DIR";
const FIRST: &str = "HOTBAY_TEST_FIRST";
const ACKNOWLEDGED: &str = "acknowledged:";

/// A child that plays `part`; killed and waited for when dropped.
struct Part(Child);

impl Part {
    fn start(part: &str, data_dir: &Path, first: u64) -> (Self, BufReader<ChildStdout>) {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([part, "--exact", "--nocapture", "--test-threads=1"])
            .env(DATA_DIR, data_dir)
            .env(FIRST, first.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        (Self(child), out)
    }

    fn kill(&mut self) {
        self.0.kill().expect("it is our child");
        self.0.wait().expect("it is our child");
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Already waited for, or still running because the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The child's part: commits number after number, and says each once it is durable.
#[test]
fn part_commits_until_killed() {
    let Some(data_dir) = env::var_os(DATA_DIR) else { return };
    let first: u64 = env::var(FIRST).unwrap().parse().unwrap();
    let mut store = RedbStore::open(data_dir.as_ref()).unwrap();
    // The limit ends a child whose parent died; no round comes near it.
    for number in first..first + 100_000 {
        let half = |kind| put(key(kind, u128::from(number)), &number.to_string());
        store.commit(&[half(Kind::Drive), half(Kind::Volume)]).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{ACKNOWLEDGED}{number}").unwrap();
        out.flush().unwrap();
    }
}

fn acknowledged(line: &str) -> Option<u64> {
    // The test harness may have begun the line.
    line.split_once(ACKNOWLEDGED).map(|(_, number)| number.parse().expect("a whole line"))
}

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    let mut random = Random(seed());
    let dir = TempDir::new().unwrap();
    let mut next = 0;
    for round in 0..20 {
        let (mut part, out) = Part::start("processes::part_commits_until_killed", dir.path(), next);
        let mut lines = out.lines().map_while(Result::ok);
        let wait_for = 1 + usize::try_from(random.below(30)).unwrap();
        let mut last = lines.by_ref().filter_map(|line| acknowledged(&line)).take(wait_for).last();
        part.kill();
        // What it still said before it died counts as well.
        last = lines.filter_map(|line| acknowledged(&line)).last().or(last);
        let last = last.expect("at least one commit was waited for");

        let records = load(&mut RedbStore::open(dir.path()).unwrap());
        let found = u64::try_from(records.len()).unwrap() / 2;
        assert!(found > last, "round {round}: {last} was acknowledged, {found} are there");
        assert!(found <= last + 2, "round {round}: more than the one in flight");
        for number in 0..found {
            for kind in [Kind::Drive, Kind::Volume] {
                let value = &records[&key(kind, u128::from(number))];
                assert_eq!(value, number.to_string().as_bytes(), "round {round}");
            }
        }
        next = found;
    }
    println!("{next} commits in 20 rounds");
}

#[test]
fn a_second_process_is_told_who_is_there() {
    let dir = TempDir::new().unwrap();
    let (mut part, out) = Part::start("processes::part_commits_until_killed", dir.path(), 0);
    let mut lines = out.lines().map_while(Result::ok);
    lines.by_ref().find_map(|line| acknowledged(&line)).expect("it commits");
    let pid = part.0.id().to_string();

    let error = RedbStore::open(dir.path()).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Locked(_)) && !error.retryable(), "{error:?}");
    assert!(error.to_string().contains(&format!("process {pid} (")), "{error}");
    let error = check(dir.path()).unwrap_err();
    assert!(matches!(error, CheckError::Locked(_)), "{error:?}");
    assert!(error.to_string().contains(&pid), "{error}");

    part.kill();
    let report = check(dir.path()).unwrap();
    assert!(report.unclean_stop, "{report}");
    RedbStore::open(dir.path()).expect("the kernel let go of the lock");
}

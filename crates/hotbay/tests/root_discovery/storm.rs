//! Storms: a hundred thousand events that mean nothing, on some drives, while another one really changes. With room
//! for all of them, and with so little that most are lost.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::cluster::eventually;
use crate::rig::{FIRST_BYTES, MIB, Rig, id, reasons};

/// Events of a storm, all drives of it together.
const EVENTS: usize = 100_000;
/// Drives that have them, from a thread each.
const STORMED: usize = 3;
/// More memory than this, in KiB, is not flat. What a storm leaves behind would be more: an event has some 200 bytes.
const FLAT_KIB: u64 = 6 * 1024;

/// What was seen of a storm.
struct Seen {
    resizes: u64,
    reports: u64,
    overflows: u64,
}

/// A storm on all drives but the last, and resizes of that one, one after the other, until it is over. At the end
/// something else is on each drive of the storm, which is published after all that was to be published before it.
fn weather(rig: &Rig) -> Seen {
    let (stormed, steady) = (&rig.loops[..STORMED], &rig.loops[STORMED]);
    // What is allocated once, for the first events.
    stormed.iter().for_each(|drive| drive.says_changed(1_000));
    steady.resize(FIRST_BYTES + MIB);
    rig.wait_size(steady, FIRST_BYTES + MIB);
    let (before, memory) = (rig.numbers(), rig.agent_memory());
    let (over, started) = (AtomicBool::new(false), Instant::now());
    let (mut resizes, mut most) = (0, memory);
    thread::scope(|scope| {
        let storms = stormed
            .iter()
            .map(|drive| scope.spawn(|| drive.says_changed(EVENTS.div_ceil(STORMED))));
        let storms: Vec<_> = storms.collect();
        scope.spawn(|| {
            storms.into_iter().for_each(|storm| storm.join().unwrap());
            over.store(true, Ordering::Release);
        });
        while resizes < 5 || !over.load(Ordering::Acquire) {
            resizes += 1;
            let bytes = FIRST_BYTES + (1 + resizes) * MIB;
            steady.resize(bytes);
            rig.wait_size(steady, bytes);
            most = most.max(rig.agent_memory());
        }
    });
    let took = started.elapsed();
    for drive in stormed {
        drive.scribble();
        rig.wait(&drive.path, "not empty", |status| reasons(status) == ["NotEmpty"]);
    }
    let (after, left) = (rig.numbers(), rig.agent_memory());
    let more = |series: &str| after.get(series) - before.get(series);
    let overflows = more("hotbay_discovery_events_dropped_total{why=\"overflow\"}");
    println!(
        "{EVENTS} events and {resizes} resizes in {took:?}: heard {}, overflows {overflows}, looks wanted {}, \
         made together {}, listings {}, reports {}; memory {memory} KiB before, {most} at most, {left} after",
        more("hotbay_discovery_events_total{kind=\"change\"}"),
        more("hotbay_discovery_looks_wanted_total"),
        more("hotbay_discovery_looks_coalesced_total"),
        more("hotbay_discovery_resyncs_total"),
        more("hotbay_discovery_reports_total"),
    );
    assert!(most.max(left) < memory + FLAT_KIB, "{most} and {left} KiB, from {memory}");
    Seen { resizes, reports: more("hotbay_discovery_reports_total"), overflows }
}

#[test]
fn in_a_storm_each_resize_is_published_once_and_nothing_else() {
    let rig = Rig::started(STORMED + 1);
    let seen = weather(&rig);
    assert_eq!(seen.reports, seen.resizes + STORMED as u64);
    assert_eq!(seen.overflows, 0, "there is room for them");
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

#[test]
fn events_that_are_lost_hide_no_resize_and_make_no_drive_go() {
    let mut rig = Rig::new(STORMED + 1);
    rig.start(&["--receive-buffer", "2048"]);
    let seen = weather(&rig);
    assert!(seen.overflows > 0);
    assert_eq!(seen.reports, seen.resizes + STORMED as u64);
    assert_eq!(rig.told_missing(), 0, "{:?}", rig.told());
}

/// Of the same size, and as empty: nothing but the lost event and a look at the whole machine tells of it.
#[test]
fn another_drive_under_the_same_name_is_found_though_its_event_is_lost() {
    let mut rig = Rig::new(STORMED + 1);
    rig.start(&["--receive-buffer", "2048"]);
    let (stormed, drive) = (&rig.loops[..STORMED], &rig.loops[STORMED]);
    let other = rig.file("other.img");
    File::create_new(&other).unwrap().set_len(FIRST_BYTES).unwrap();
    let first = id(&rig.at(&drive.path).unwrap());
    let over = AtomicBool::new(false);
    let seen: BTreeSet<String> = thread::scope(|scope| {
        for drive in stormed {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    drive.says_changed(100);
                }
            });
        }
        // Also when this fails the storm has to end.
        let _over = Finally(&over);
        let mut before = first.clone();
        let files = [&other, &drive.file, &other, &drive.file];
        let swap = |file: &&PathBuf| {
            drive.detach();
            drive.attach(file);
            let now = eventually("another drive is there", || {
                let now = rig.at(&drive.path).filter(|now| now["status"]["present"] == true)?;
                Some(id(&now)).filter(|now| *now != before)
            });
            before.clone_from(&now);
            now
        };
        files.iter().map(swap).collect()
    });
    let overflows = "hotbay_discovery_events_dropped_total{why=\"overflow\"}";
    assert!(rig.numbers().get(overflows) > 0);
    assert!(seen.contains(&first), "{first} is not among {seen:?}");
    assert_eq!((seen.len(), rig.drives().len()), (2, STORMED + 2), "{:?}", rig.drives());
}

/// Says that something is over, however it ends.
struct Finally<'a>(&'a AtomicBool);

impl Drop for Finally<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

//! Cuts every way of writing a label at every write and sync, and cuts the repair again.

use std::cell::RefCell;

use hotbay_core::ids::NodeId;
use hotbay_core::label::update::Want;
use hotbay_core::label::{Found, Header};

use super::memory::{BLOCK_SIZES, Fault, MemoryDevice, WANT};
use super::{Outcome, bring_up_to_date, read};

/// A drive before a call, what its label says for certain, and what the call wants.
struct Scenario {
    name: &'static str,
    start: MemoryDevice,
    before: Option<Header>,
    want: Want,
}

fn scenarios(block_bytes: u32) -> Vec<Scenario> {
    let (labelled, header) = MemoryDevice::labelled(block_bytes);
    let released = labelled.again(None);
    let release = Want { in_operation: false, generation: WANT.generation.next(), ..WANT };
    let released_header = released.bring(&release).unwrap().header().unwrap();
    let half = MemoryDevice::new(block_bytes).again(Some(Fault::PowerCut(2)));
    half.bring(&WANT).unwrap_err();
    let [half] = half.power_cut().try_into().expect("only the slot was written, and synced");
    let newer = |generation: hotbay_core::order::Generation| generation.next().next();
    let attach = Want { generation: newer(WANT.generation), ..WANT };
    let other = Want { node: NodeId::from_bits(0x0b), take_over: true, ..attach };
    let scenario = |name, start: &MemoryDevice, before, want| Scenario {
        name,
        start: start.again(None),
        before,
        want,
    };
    vec![
        scenario("initialise", &MemoryDevice::new(block_bytes), None, WANT),
        scenario("release", &labelled, Some(header), release),
        scenario("attach again", &released, Some(released_header), attach),
        scenario("take over", &labelled, Some(header), other),
        scenario("finish the table", &half, Some(header), WANT),
        scenario("finish the table, released", &half, Some(header), release),
        scenario("keep", &labelled, Some(header), WANT),
    ]
}

impl Scenario {
    /// Every state that a cut may leave, and whether the call had returned before it. A killed process leaves its
    /// unsynced writes to the kernel, which may still lose them.
    fn cuts(&self, start: &MemoryDevice) -> Vec<(MemoryDevice, bool)> {
        let whole = start.again(None);
        whole.bring(&self.want).unwrap_or_else(|error| panic!("{}: {error:?}", self.name));
        (0..=whole.operations())
            .flat_map(|cut| {
                let device = start.again(Some(Fault::PowerCut(cut)));
                let returned = device.bring(&self.want).is_ok();
                assert_eq!(returned, cut == whole.operations());
                let killed = device.again(None);
                device.power_cut().into_iter().chain([killed]).map(move |left| (left, returned))
            })
            .collect()
    }

    /// The old label or the new one, never another, and never none where there was one.
    fn check_label(&self, device: &MemoryDevice, returned: bool) {
        let found = read(device).unwrap();
        let sound = match found {
            Found::Valid { header, .. } => {
                says(&header, &self.want) || (!returned && self.before == Some(header))
            }
            Found::Absent => !returned && self.before.is_none(),
            Found::Damaged | Found::UnknownVersion(_) => false,
        };
        assert!(sound, "{}, returned: {returned}: {found:?}", self.name);
    }

    /// Running once more reaches what is wanted, and it lasts.
    fn check_finish(&self, device: &MemoryDevice) {
        let again = device.again(None);
        let outcome = again.bring(&self.want).unwrap_or_else(|error| {
            panic!("{}: cannot be finished: {error:?}", self.name);
        });
        let header = outcome.header().unwrap();
        assert!(says(&header, &self.want));
        for survivor in again.power_cut() {
            assert_eq!(survivor.bring(&self.want).unwrap(), Outcome::Kept(header), "{}", self.name);
            assert_eq!(survivor.writes(), 0);
        }
    }
}

fn says(header: &Header, want: &Want) -> bool {
    let Want { cluster, drive, node, generation, in_operation, take_over: _ } = *want;
    let Header { sequence, extents, .. } = *header;
    *header == Header { cluster, drive, node, generation, in_operation, sequence, extents }
}

/// Invariant 7: what was acknowledged survives.
#[test]
fn every_cut_leaves_the_old_label_or_the_new_one_and_can_be_finished() {
    for block_bytes in BLOCK_SIZES {
        for scenario in scenarios(block_bytes) {
            for (device, returned) in scenario.cuts(&scenario.start) {
                scenario.check_label(&device, returned);
                scenario.check_finish(&device);
            }
        }
    }
}

#[test]
fn a_repair_that_is_cut_again_can_be_finished_too() {
    for scenario in scenarios(512) {
        for (once, returned) in scenario.cuts(&scenario.start) {
            for (twice, returned_now) in scenario.cuts(&once) {
                scenario.check_label(&twice, returned || returned_now);
                scenario.check_finish(&twice);
            }
        }
    }
}

#[test]
fn an_error_of_any_operation_is_told_and_the_next_call_finishes() {
    for block_bytes in BLOCK_SIZES {
        for scenario in scenarios(block_bytes) {
            let whole = scenario.start.again(None);
            whole.bring(&scenario.want).unwrap();
            for at in 0..whole.operations() {
                let device = scenario.start.again(Some(Fault::Error(at)));
                let error = device.bring(&scenario.want).unwrap_err();
                assert!(error.retryable(), "{}: {error:?}", scenario.name);
                assert_eq!(device.operations(), at + 1, "nothing follows what has failed");
                scenario.check_label(&device, false);
                scenario.check_finish(&device);
            }
        }
    }
}

/// The story: a process was killed between its write and its sync. The next one found the label in the kernel's
/// cache as it was wanted, had nothing to write, and said so; then the power went.
#[test]
fn a_label_found_in_place_is_synced_before_it_counts() {
    let (device, _) = MemoryDevice::labelled(512);
    let want = Want { generation: WANT.generation.next(), ..WANT };
    let killed = device.again(Some(Fault::PowerCut(2)));
    killed.bring(&want).unwrap_err();
    let next = killed.again(None);
    let Outcome::Kept(header) = next.bring(&want).unwrap() else { panic!("it was written") };
    for survivor in next.power_cut() {
        assert!(
            matches!(read(&survivor).unwrap(), Found::Valid { header: left, .. } if left == header)
        );
    }
}

/// Nothing is promised about a sector torn in itself, but it must not cost a label that was acknowledged: also not
/// when a process was killed between its write and its sync, and the next one went on from what it found.
#[test]
fn a_torn_slot_never_costs_the_acknowledged_label() {
    let (start, before) = MemoryDevice::labelled(512);
    let one = Want { generation: WANT.generation.next(), ..WANT };
    let two = Want { generation: one.generation.next(), ..WANT };
    let mut torn_slots = 0;
    for first_cut in 0..=3 {
        let killed = start.again(Some(Fault::PowerCut(first_cut)));
        let acknowledged = killed.bring(&one).is_ok();
        for second_cut in 0..3 {
            let device = killed.again(Some(Fault::PowerCut(second_cut)));
            device.bring(&two).unwrap_err();
            for torn in device.torn() {
                torn_slots += 1;
                let Found::Valid { header, .. } = read(&torn).unwrap() else { panic!("no label") };
                assert!(says(&header, &one) || (header == before && !acknowledged));
                assert!(says(&torn.bring_known(&two).unwrap().header().unwrap(), &two));
            }
        }
    }
    assert!(torn_slots >= 4, "the test tears something");
}

#[test]
fn each_write_and_sync_is_a_checkpoint() {
    let steps = RefCell::new(Vec::new());
    let run = |device: &MemoryDevice, want: &Want| {
        let device = device.again(None);
        bring_up_to_date(&device, want, || Ok(()), &|step| steps.borrow_mut().push(step)).unwrap();
        assert_eq!(device.operations(), steps.borrow().len());
        (device, steps.take())
    };
    let (device, initialise) = run(&MemoryDevice::new(4096), &WANT);
    assert_eq!(
        initialise,
        [
            "slot-written",
            "slot-synced",
            "backup-entries-written",
            "backup-header-written",
            "backup-table-synced",
            "primary-entries-written",
            "primary-header-written",
            "protective-mbr-written",
            "primary-table-synced",
        ]
    );
    let (device, update) = run(&device, &Want { in_operation: false, ..WANT });
    assert_eq!(update, ["found-synced", "slot-written", "slot-synced"]);
    let (_, keep) = run(&device, &Want { in_operation: false, ..WANT });
    assert_eq!(keep, ["found-synced"]);
}

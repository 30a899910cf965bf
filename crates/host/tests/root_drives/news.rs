//! What happens to real loop devices is told by events, and by nothing that only poses as one.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use hotbay_core::device::DeviceNumber;
use hotbay_core::discovery::event::Action;
use hotbay_core::discovery::probes::Probes;
use hotbay_core::discovery::queue::{DeviceKey, Queue, Run, Work};
use hotbay_core::discovery::triage::Change;
use hotbay_core::discovery::{Verdict, triage};
use hotbay_core::pace::Monotonic;
use hotbay_host::uevent::{Counters, Item, Loss, Source, Sources, resolve};
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, SocketType};

use crate::Test;
use crate::rig::{DRIVE_BYTES, LIMIT, LoopDevice, Rig, block_on, run, skipped};

pub(crate) const TESTS: &[Test] = &[
    ("uevent_life_of_a_loop_device_is_told", life),
    ("uevent_flood_is_received_whole", flood),
    ("uevent_overflow_is_told_and_events_go_on", overflow),
    ("uevent_from_a_process_is_refused", foreign),
    ("uevent_from_udev_must_be_roots", udev),
    ("uevent_cost_is_told", cost),
];

const EVENTS_IN_A_FLOOD: u64 = 10_000;

/// What a change without a sign is worth.
const PLAIN: Probes = Probes::OUTSIDE.and(Probes::UDEV_DB);

pub(crate) fn number_of(device: &LoopDevice) -> DeviceNumber {
    let file = format!("/sys/block/{}/dev", name_of(device));
    DeviceNumber::parse(&std::fs::read_to_string(file).unwrap()).unwrap()
}

pub(crate) fn name_of(device: &LoopDevice) -> &str {
    device.path.strip_prefix("/dev/").unwrap()
}

fn source(udev: bool, buffer_bytes: usize) -> Source {
    Source::open(Sources { udev, buffer_bytes }).unwrap()
}

fn large() -> usize {
    Sources::default().buffer_bytes
}

/// What the events of one device that come next call for, until one of them ends it.
async fn told(source: &mut Source, number: DeviceNumber, last: impl Fn(&Run) -> bool) -> Vec<Run> {
    let mut runs = Vec::new();
    while !runs.last().is_some_and(&last) {
        let next = source.receive(|item| {
            let Item::Event(event) = item else { panic!("{item:?}") };
            let Verdict::Look(look) = triage(&event) else { return };
            resolve(look.target, |device| {
                if device.number == number {
                    runs.push(Run { device, change: look.change, needs: look.needs });
                }
            });
        });
        tokio::time::timeout(LIMIT, next).await.expect("an event in time").unwrap();
    }
    runs
}

fn needs(run: &Run, probes: Probes) -> bool {
    run.needs.now == probes
}

fn life() {
    if skipped("life") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let mut source = source(false, large());
        let backing = rig.file("a.img");
        let device = LoopDevice::over(&backing);
        let number = number_of(&device);

        let attached = told(&mut source, number, |run| needs(run, PLAIN)).await;
        let first = attached.last().unwrap().device;
        assert!(first.sequence.is_some(), "{attached:?}");

        for bytes in [DRIVE_BYTES * 2, DRIVE_BYTES] {
            File::options().write(true).open(&backing).unwrap().set_len(bytes).unwrap();
            run("losetup", &["-c", &device.path]);
            let resized = told(&mut source, number, |_| true).await;
            assert_eq!(resized.len(), 1);
            assert!(needs(&resized[0], Probes::SIZE), "{bytes} bytes: {resized:?}");
        }
        run("losetup", &["-c", &device.path]);
        let same = told(&mut source, number, |_| true).await;
        assert!(needs(&same[0], PLAIN), "nothing but what is outside is looked at: {same:?}");
        assert_eq!(same[0].device, first);

        let path = device.path.clone();
        drop(device);
        let detached = told(&mut source, number, |run| needs(run, Probes::ALL)).await;
        assert_eq!(detached.last().unwrap().change, Change::Changed);

        let other = rig.file("b.img");
        run("losetup", &[&path, other.to_str().unwrap()]);
        let again = LoopDevice { path };
        let attached = told(&mut source, number, |run| run.device != first).await;
        let second = attached.last().unwrap().device;
        assert_eq!(second.number, first.number);
        assert!(second.sequence > first.sequence, "the same number, another device");
        drop(again);
    });
}

/// Has the kernel send changes of a device, and returns how many of them came.
fn flood_of(device: &LoopDevice, source: &mut Source) -> (u64, Vec<Loss>) {
    let uevent = PathBuf::from(format!("/sys/block/{}/uevent", name_of(device)));
    for _ in 0..EVENTS_IN_A_FLOOD {
        std::fs::write(&uevent, "change").unwrap();
    }
    let number = number_of(device);
    let (mut changes, mut lost) = (0, Vec::new());
    let each = |item: Item<'_>| match item {
        Item::Event(event) => {
            let ours = event.number == Some(number) && event.action == Action::Change;
            changes += u64::from(ours && event.signs.synthetic);
        }
        Item::Lost(loss) => lost.push(loss),
    };
    source.drain(each).unwrap();
    (changes, lost)
}

fn flood() {
    if skipped("flood") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let mut source = source(true, large());
        assert!(source.buffer_bytes() >= large());
        assert_eq!(flood_of(&device, &mut source), (EVENTS_IN_A_FLOOD, vec![]));
        assert!(source.counters().changed >= EVENTS_IN_A_FLOOD);
    });
}

fn overflow() {
    if skipped("overflow") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let mut source = source(false, 16 << 10);
        let (changes, lost) = flood_of(&device, &mut source);
        assert!(changes < EVENTS_IN_A_FLOOD, "{changes}");
        assert_eq!(lost, [Loss::Overflow], "told once");
        run("losetup", &["-c", &device.path]);
        let after = told(&mut source, number_of(&device), |run| needs(run, PLAIN)).await;
        assert!(!after.is_empty());
        assert_eq!(source.counters().overflows, 1);
    });
}

/// The same event as the kernel would send, and as udev would.
const POSED: &[u8] = b"remove@/devices/virtual/block/none\0ACTION=remove\0\
    DEVPATH=/devices/virtual/block/none\0SUBSYSTEM=block\0MAJOR=7\0MINOR=9999\0DEVTYPE=disk\0";

fn posed_by_udev() -> Vec<u8> {
    let properties = POSED.splitn(2, |byte| *byte == 0).nth(1).unwrap();
    let length = u32::try_from(properties.len()).unwrap();
    let mut datagram = b"libudev\0\xfe\xed\xca\xfe".to_vec();
    datagram.extend([40, 40, length, 0, 0, 0, 0].into_iter().flat_map(u32::to_ne_bytes));
    datagram.extend(properties);
    datagram
}

/// What this program does as the other process: sends a datagram to a port or group as some user.
pub(crate) fn send(target: &str) -> ! {
    use rustix::net::{
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, UCred, sendmsg_addr, socket,
    };
    let mut numbers = target.split(',').map(|number| number.parse::<u32>().unwrap());
    let mut next = || numbers.next().unwrap();
    let (port, groups, user) = (next(), next(), next());
    let datagram = if groups == 2 { posed_by_udev() } else { POSED.to_vec() };
    let socket = socket(AddressFamily::NETLINK, SocketType::DGRAM, Some(KOBJECT_UEVENT)).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let credentials = UCred {
        pid: rustix::process::getpid(),
        uid: rustix::fs::Uid::from_raw(user),
        gid: rustix::fs::Gid::from_raw(user),
    };
    assert!(control.push(SendAncillaryMessage::ScmCredentials(credentials)));
    let to = SocketAddrNetlink::new(port, groups);
    let parts = [IoSlice::new(&datagram)];
    sendmsg_addr(&socket, &to, &parts, &mut control, SendFlags::empty()).unwrap();
    std::process::exit(0)
}

fn send_as_another_process(port: u32, groups: u32, user: u32) {
    let target = format!("{port},{groups},{user}");
    let status = Command::new("/proc/self/exe").args(["send-uevent", &target]).status().unwrap();
    assert!(status.success());
}

fn foreign() {
    if skipped("foreign") {
        return;
    }
    block_on(async {
        let mut source = source(false, large());
        let (port, _) = source.ports().unwrap();
        for (sent, (port, groups)) in [(port, 0), (0, 1)].into_iter().enumerate() {
            send_as_another_process(port, groups, 0);
            source.drain(|item| assert!(!removes(item), "{item:?}")).unwrap();
            assert_eq!(source.counters().foreign, sent as u64 + 1);
        }
    });
}

/// Whether it is the event that nobody but these tests has sent.
fn removes(item: Item<'_>) -> bool {
    match item {
        Item::Event(event) => event.action == Action::Remove && event.seqnum.is_none(),
        Item::Lost(_) => false,
    }
}

fn udev() {
    if skipped("udev") {
        return;
    }
    block_on(async {
        let mut source = source(true, large());
        let (_, port) = source.ports().unwrap();
        let accepted = |source: &mut Source| -> (usize, Counters) {
            let mut count = 0;
            source.drain(|item| count += usize::from(removes(item))).unwrap();
            (count, source.counters())
        };
        send_as_another_process(0, 2, 0);
        let (count, counters) = accepted(&mut source);
        assert_eq!((count, counters.foreign), (1, 0), "what root sends to the group is udev's");
        send_as_another_process(0, 2, 1_000);
        let (count, counters) = accepted(&mut source);
        assert_eq!((count, counters.foreign), (0, 1), "another user's");
        send_as_another_process(port.unwrap(), 0, 0);
        let (count, counters) = accepted(&mut source);
        assert_eq!((count, counters.foreign), (0, 2), "sent to this socket alone");
    });
}

/// Not a limit, a number to read: the time from the socket to the decision, for one event among many.
fn cost() {
    if skipped("cost") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let mut source = source(false, large());
        let uevent = PathBuf::from(format!("/sys/block/{}/uevent", name_of(&device)));
        let sent = Instant::now();
        for _ in 0..EVENTS_IN_A_FLOOD {
            std::fs::write(&uevent, "change").unwrap();
        }
        let sent = sent.elapsed();
        let mut queue = Queue::default();
        let (mut events, mut looks) = (0_u32, 0_u32);
        let start = Instant::now();
        let now = || Monotonic(u64::try_from(start.elapsed().as_millis()).unwrap());
        let each = |item: Item<'_>| {
            let Item::Event(event) = item else { panic!("{item:?}") };
            events += 1;
            if let Verdict::Look(look) = triage(&event) {
                resolve(look.target, |device: DeviceKey| {
                    queue.push(Run { device, change: look.change, needs: look.needs }, now());
                });
            }
            while let Some(work) = queue.take(now()) {
                looks += u32::from(matches!(work, Work::Probe(_)));
                queue.finished(work.subject(), now());
            }
        };
        source.drain(each).unwrap();
        let took = start.elapsed();
        println!(
            "{events} events: {:?} each to send, {:?} each from the socket to the decision, {looks} looks",
            sent / events,
            took / events
        );
        assert!(took / events < Duration::from_millis(1), "{took:?}");
        assert!(looks < 100, "{looks}");
    });
}

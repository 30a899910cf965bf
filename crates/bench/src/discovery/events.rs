//! Events: from the bytes of a datagram to what is to be done about it, in memory; and a flood of real ones.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_core::discovery::queue::{Queue, Run, Work};
use hotbay_core::discovery::triage::Target;
use hotbay_core::discovery::{Probes, Verdict, kernel_event, triage};
use hotbay_core::pace::Monotonic;
use hotbay_host::scan::{self, Candidate, Selection};
use hotbay_host::uevent::{Item, Source, Sources};

use super::is_root;
use crate::discovery::rest::LoopDevice;
use crate::registry::median;

const ROUNDS: usize = 15;
const EVENTS: usize = 20_000;
const FLOOD: u64 = 100_000;
/// No event of the flood for so long: it is over.
const QUIET: Duration = Duration::from_secs(2);

pub(super) fn run() -> anyhow::Result<()> {
    println!(
        "From the bytes of an event to the decision ({EVENTS} events a round, median of {ROUNDS}):\n"
    );
    println!("| event | µs |\n|---|---|");
    let noise = datagrams("");
    row("a change that says nothing, all of one device", &noise[..1], None);
    row("the same, of 100 devices in turn", &noise, None);
    if is_root() {
        let device = LoopDevice::new()?;
        let number = device.number()?;
        let selection = Selection::Patterns(vec![device.path.clone()]);
        let candidate = scan::one(number, &selection)?.context("a loop device is a candidate")?;
        let resize = datagrams("RESIZE=1\0");
        row("a change of size, with the size read and compared", &resize[..1], Some(candidate));
        println!();
        flood(&device)
    } else {
        println!(
            "\n!! NOT MEASURED: reading a size, and a flood of real events: both need root.\n"
        );
        Ok(())
    }
}

/// Events as the kernel sends them, one for each of 100 devices.
fn datagrams(signs: &str) -> Vec<Vec<u8>> {
    let one = |minor: u32| {
        let path = format!("/devices/virtual/block/loop{minor}");
        let text = format!(
            "change@{path}\0ACTION=change\0DEVPATH={path}\0SUBSYSTEM=block\0{signs}MAJOR=7\0MINOR={minor}\0\
             DEVNAME=loop{minor}\0DEVTYPE=disk\0DISKSEQ={}\0SEQNUM=4711\0",
            minor + 1
        );
        text.into_bytes()
    };
    (0..100).map(one).collect()
}

fn row(what: &str, datagrams: &[Vec<u8>], candidate: Option<Candidate>) {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let mut candidate = candidate.clone();
        let mut queue = Queue::default();
        let began = Instant::now();
        for (number, datagram) in (0_u64..).zip(datagrams.iter().cycle().take(EVENTS)) {
            // Time goes on, so that looks are given out between the events, as in the agent.
            decide(datagram, &mut queue, Monotonic(number / 100), candidate.as_mut());
        }
        times.push(began.elapsed());
    }
    println!("| {what} | {:.2} |", median(times).as_secs_f64() * 1e6 / EVENTS as f64);
}

/// What the agent does with one event.
fn decide(datagram: &[u8], queue: &mut Queue, now: Monotonic, candidate: Option<&mut Candidate>) {
    let event = kernel_event(datagram).expect("as the kernel sends it");
    let Verdict::Look(look) = triage(&event) else { return };
    if let Target::Device(device) = look.target {
        queue.push(Run { device, change: look.change, needs: look.needs }, now);
    }
    // The device's own size is read for every event, whatever its pace would be.
    if let Some(candidate) = candidate {
        black_box(candidate.read_quickly(Probes::SIZE));
    }
    while let Some(work) = queue.take(now) {
        if let Work::Probe(run) = work {
            black_box(run);
        }
        queue.finished(work.subject(), now);
    }
}

/// Real events, sent by the kernel as fast as it is asked to, received in this process.
fn flood(device: &LoopDevice) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let name = device.path.trim_start_matches("/dev/");
    let file = format!("/sys/block/{name}/uevent");
    let (heard, lost, took) = runtime.block_on(async {
        let mut source = Source::open(Sources { udev: false, ..Sources::default() })?;
        let sender = std::thread::spawn(move || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).open(file)?;
            (0..FLOOD).try_for_each(|_| file.write_all(b"change"))
        });
        let (mut heard, mut lost) = (0_u64, 0_u64);
        let mut queue = Queue::default();
        let began = Instant::now();
        let mut last = began;
        let mut each = |item: Item<'_>| match item {
            Item::Event(event) => {
                heard += 1;
                if let Verdict::Look(look) = triage(&event)
                    && let Target::Device(device) = look.target
                {
                    let run = Run { device, change: look.change, needs: look.needs };
                    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                    queue.push(run, Monotonic(ms));
                }
            }
            Item::Lost(_) => lost += 1,
        };
        while tokio::time::timeout(QUIET, source.receive(&mut each)).await.is_ok() {
            last = Instant::now();
        }
        sender.join().expect("it does not panic")?;
        anyhow::Ok((heard, lost, last - began))
    })?;
    let rate = heard as f64 / took.as_secs_f64();
    println!(
        "A flood of {FLOOD} real events of one device, sent and received on this machine: {heard} heard, {lost} \
         overflows, {rate:.0} events/s.\n"
    );
    Ok(())
}

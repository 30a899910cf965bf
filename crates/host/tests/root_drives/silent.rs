//! What no event tells is found all the same: mounts by their table, the rest by the poll.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use hotbay_core::discovery::probes::Probes;
use hotbay_core::discovery::queue::Run;
use hotbay_core::discovery::sequence::{Check, Sequence};
use hotbay_core::discovery::triage::Change;
use hotbay_host::uevent::{Item, KernelCounter, MountTable, MountWatch, Poll, Source, Sources};

use crate::Test;
use crate::news::{name_of, number_of};
use crate::rig::{LIMIT, LoopDevice, Rig, block_on, run, skipped, skipped_without};

pub(crate) const TESTS: &[Test] = &[
    ("uevent_mounts_wake_the_watch", mounts),
    ("uevent_silent_read_only_flip_is_found_by_the_poll", read_only),
    ("uevent_silent_partition_resize_is_found_by_the_poll", partition),
    ("uevent_poll_sees_what_came_and_went", came_and_went),
    ("uevent_sockets_in_some_namespaces_are_deaf_and_say_so", namespaces),
];

struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).stderr(Stdio::null()).status();
    }
}

fn mounts() {
    if skipped("mounts") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let at = rig.dir.path().canonicalize().unwrap().join("mounted");
        std::fs::create_dir(&at).unwrap();
        let path = at.to_str().unwrap();
        let mut watch = MountWatch::open().unwrap();
        assert_eq!(watch.table(), MountTable::Machine);
        let _unmounted = Unmounted(&at);
        let bind = ["--bind", path, path];
        let tmpfs = ["-t", "tmpfs", "tmpfs", path];
        for (program, arguments, is_there) in [
            ("mount", &bind[..], true),
            ("umount", &[path], false),
            ("mount", &tmpfs[..], true),
            ("umount", &[path], false),
        ] {
            run(program, arguments);
            // Others mount things on this machine too: only the last look counts.
            loop {
                let changed = tokio::time::timeout(LIMIT, watch.changed()).await;
                changed.expect("woken in time").unwrap();
                let table = String::from_utf8(watch.read().unwrap().to_vec()).unwrap();
                if table.contains(path) == is_there {
                    break;
                }
            }
        }
    });
}

/// Takes the read-only flag away again: it stays with the loop device when its file is gone.
struct Writable<'a>(&'a LoopDevice);

impl Writable<'_> {
    fn restore(&self) {
        let _ = Command::new("blockdev").args(["--setrw", &self.0.path]).status();
    }
}

impl Drop for Writable<'_> {
    fn drop(&mut self) {
        self.restore();
    }
}

/// The poll over one device, once it has been seen.
fn poll_of(device: &LoopDevice) -> Poll {
    let mut poll = Poll::new();
    let mut found = Vec::new();
    poll.relist(|name| name == name_of(device), &mut found).unwrap();
    assert_eq!((poll.len(), found.len(), found[0].change), (1, 1, Change::Came));
    poll
}

fn swept(poll: &mut Poll) -> Vec<Run> {
    let mut found = Vec::new();
    poll.sweep(&mut found);
    found
}

/// Does something to a device, and sees to it that no event tells.
fn silently(device: &LoopDevice, act: impl FnOnce()) {
    let mut source = Source::open(Sources { udev: false, ..Sources::default() }).unwrap();
    let devpath = format!("/{}", name_of(device));
    act();
    let each = |item: Item<'_>| match item {
        Item::Event(event) => assert!(!event.devpath.contains(&devpath), "{event:?}"),
        Item::Lost(loss) => panic!("{loss}"),
    };
    source.drain(each).unwrap();
}

fn changed(found: &[Run], device: &LoopDevice) -> Probes {
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].device.number, found[0].change), (number_of(device), Change::Changed));
    found[0].needs.now
}

fn read_only() {
    if skipped("read_only") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let writable = Writable(&device);
        // Whoever had the loop device before may have left the flag set.
        writable.restore();
        let mut poll = poll_of(&device);
        assert_eq!(swept(&mut poll), []);
        for flag in ["--setro", "--setrw"] {
            silently(&device, || {
                run("blockdev", &[flag, &device.path]);
            });
            assert_eq!(changed(&swept(&mut poll), &device), Probes::READ_ONLY, "{flag}");
            assert_eq!(swept(&mut poll), []);
        }
    });
}

fn partition() {
    if skipped("partition") || skipped_without("addpart", "partition") {
        return;
    }
    block_on(async {
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let mut poll = poll_of(&device);
        let path = device.path.as_str();
        run("addpart", &[path, "1", "2048", "4096"]);
        let mut found = Vec::new();
        poll.relist(|name| name == name_of(&device), &mut found).unwrap();
        assert!(changed(&found, &device).contains(Probes::HIERARCHY));
        silently(&device, || {
            run("resizepart", &[path, "1", "8192"]);
        });
        assert_eq!(changed(&swept(&mut poll), &device), Probes::HIERARCHY);
        assert_eq!(swept(&mut poll), []);
        run("delpart", &[path, "1"]);
        assert_eq!(changed(&swept(&mut poll), &device), Probes::HIERARCHY);
    });
}

fn came_and_went() {
    if skipped("came_and_went") {
        return;
    }
    block_on(async {
        let counter = KernelCounter::open().unwrap();
        let before = counter.read().unwrap();
        let rig = Rig::new();
        let device = rig.loop_drive("a.img");
        let mut poll = poll_of(&device);
        assert!(counter.read().unwrap() > before, "an attached loop device is an event");
        let path = device.path.clone();
        drop(device);
        let other = rig.file("b.img");
        run("losetup", &[&path, other.to_str().unwrap()]);
        let again = LoopDevice { path };
        let mut found = Vec::new();
        poll.relist(|name| name == name_of(&again), &mut found).unwrap();
        assert_eq!((found.len(), found[0].change), (1, Change::Came), "another disk sequence");
        found.clear();
        poll.relist(|_| false, &mut found).unwrap();
        assert_eq!((found.len(), found[0].change), (1, Change::Went));
        assert!(poll.is_empty());
    });
}

/// What this program does in another namespace: listens, and says at each line what the numbers of events tell.
pub(crate) fn hear() -> ! {
    block_on(async {
        let mut source = Source::open(Sources { udev: false, ..Sources::default() }).unwrap();
        let counter = KernelCounter::open().unwrap();
        let mut sequence = Sequence::after(counter.read().unwrap());
        println!("listening");
        for _ in std::io::stdin().lines() {
            let sent = counter.read().unwrap();
            let each = |item: Item<'_>| match item {
                Item::Event(event) => event.seqnum.into_iter().for_each(|n| sequence.seen(n)),
                Item::Lost(loss) => panic!("{loss}"),
            };
            source.drain(each).unwrap();
            let word = match sequence.check(sent) {
                Check::Complete => "complete",
                Check::Suspect { .. } => "suspect",
                Check::Deaf { .. } => "deaf",
            };
            println!("{word}");
        }
    });
    std::process::exit(0)
}

/// A child that listens in a namespace, killed with the test.
struct Listener {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Listener {
    fn start(namespaces: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new("unshare");
        command.arg(namespaces).arg(program).arg("hear-uevents");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut listener = Self { child, output };
        assert_eq!(listener.line(), "listening");
        listener
    }

    fn ask(&mut self) -> String {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn namespaces() {
    if skipped("namespaces") || skipped_without("unshare", "namespaces") {
        return;
    }
    let probe = Command::new("unshare").args(["-Urn", "true"]).status().unwrap();
    if !probe.success() {
        eprintln!("SKIPPED namespaces: user namespaces are not allowed here");
        return;
    }
    let rig = Rig::new();
    let mut in_network = Listener::start("-n");
    let mut in_user = Listener::start("-Urn");
    drop(rig.loop_drive("a.img"));
    // The second answer counts: what is sent at the very moment of the first may still be on its way.
    in_network.ask();
    let heard = in_network.ask();
    // What others do with their networks at the same time takes numbers that this one does not hear of.
    assert!(["complete", "suspect"].contains(&heard.as_str()), "{heard}");
    in_user.ask();
    assert_eq!(in_user.ask(), "deaf");
}

//! A Hotbay over loop devices that are a test's own, by number: nobody who asks the machine for a free one gets them
//! while they are detached. Everything is taken apart with its value, also when a test fails.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, NoArg, Opcode, ioctl};
use serde_json::Value;

use crate::cluster::{Cluster, TestDrive, eventually};

pub(crate) const MIB: u64 = 1 << 20;
/// The size of a drive, until a test changes it.
pub(crate) const FIRST_BYTES: u64 = 64 * MIB;

/// One test at a time: a storm of events reaches every agent of the machine, and would be counted by all.
static ALONE: Mutex<()> = Mutex::new(());

/// `LOOP_CTL_ADD` and `LOOP_CTL_REMOVE`, both with the number of the device.
const ADD: Opcode = 0x4C80;
const REMOVE: Opcode = 0x4C81;
/// `LOOP_CLR_FD`, of a device: nothing if it has no file.
const DETACH: Opcode = 0x4C01;
/// Numbers from here on are tried until one is free, at most so many.
const FIRST_NUMBER: usize = 300;
const MOST_TRIED: usize = 4096;

/// Runs a program, which must succeed; gives what it printed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device of our own, and the file that it has at first.
pub(crate) struct Loop {
    number: usize,
    pub(crate) path: PathBuf,
    pub(crate) file: PathBuf,
}

impl Loop {
    /// Over a new file, which takes no space until it is written to.
    pub(crate) fn new(file: PathBuf, bytes: u64) -> Self {
        let looped = Self::detached(file);
        File::create_new(&looped.file).unwrap().set_len(bytes).unwrap();
        looped.attach(&looped.file);
        looped
    }

    /// A device that has no file yet.
    pub(crate) fn detached(file: PathBuf) -> Self {
        let numbers = FIRST_NUMBER..FIRST_NUMBER + MOST_TRIED;
        let free = |number: &usize| match control::<ADD>(*number) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => panic!("loop device {number} cannot be made: {error}"),
        };
        let number = numbers.into_iter().find(free).expect("a machine has fewer loop devices");
        Self { number, path: format!("/dev/loop{number}").into(), file }
    }

    /// Waits for whoever still has the device open from before, if anyone has: it is detached when he closes it.
    pub(crate) fn attach(&self, file: &Path) {
        eventually("the device can be attached", || {
            let output = Command::new("losetup").arg(self.node()).arg(file).output().unwrap();
            let busy = String::from_utf8_lossy(&output.stderr).contains("busy");
            assert!(output.status.success() || busy, "{output:?}");
            output.status.success().then_some(())
        });
    }

    pub(crate) fn detach(&self) {
        run("losetup", &["-d", self.node()]);
    }

    /// Gives the file another size, and has the device take it over.
    pub(crate) fn resize(&self, bytes: u64) {
        File::options().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        self.take_size();
    }

    /// Has the device take over the size of its file, whether or not it is another one.
    pub(crate) fn take_size(&self) {
        run("losetup", &["-c", self.node()]);
    }

    /// The path, as an argument.
    pub(crate) fn node(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// `loop300`
    pub(crate) fn name(&self) -> String {
        format!("loop{}", self.number)
    }

    /// Has the kernel say that the device has changed, so many times.
    pub(crate) fn says_changed(&self, times: usize) {
        let path = format!("/sys/block/{}/uevent", self.name());
        let mut file = File::options().write(true).open(path).unwrap();
        for _ in 0..times {
            file.write_all(b"change").unwrap();
        }
    }

    /// Puts something that has no name on it, where the drive was empty.
    pub(crate) fn scribble(&self) {
        let mut device = File::options().write(true).open(&self.path).unwrap();
        device.write_all(&[7; 512]).unwrap();
        device.sync_all().unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Outlives the file behind it.
        if std::fs::read_to_string(format!("/sys/block/{}/ro", self.name()))
            .is_ok_and(|ro| ro.trim() == "1")
        {
            Command::new("blockdev").args(["--setrw", self.node()]).status().ok();
        }
        if let Ok(device) = File::open(&self.path) {
            #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
            // SAFETY: it takes no argument.
            let _ = unsafe { ioctl(device, NoArg::<DETACH>::new()) };
        }
        // Busy for a moment after its last user.
        for _ in 0..500 {
            if control::<REMOVE>(self.number) != Err(Errno::BUSY) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
}

fn control<const OPCODE: Opcode>(number: usize) -> rustix::io::Result<()> {
    let control = File::open("/dev/loop-control").expect("a machine with loop devices");
    #[expect(unsafe_code, reason = "no safe wrapper for this ioctl")]
    // SAFETY: both opcodes take a number by value, and nothing by address.
    unsafe {
        ioctl(control, IntegerSetter::<OPCODE>::new_usize(number))
    }
}

/// Something mounted, which is unmounted with the value.
pub(crate) struct Mounted {
    at: PathBuf,
}

impl Mounted {
    pub(crate) fn new(options: &[&str], what: &str, at: PathBuf) -> Self {
        std::fs::create_dir(&at).unwrap();
        run("mount", &[options, &[what, at.to_str().unwrap()]].concat());
        Self { at }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.at).status().ok();
    }
}

/// Numbers of a process that shows them to Prometheus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    /// Whole numbers alone; one that was never counted is zero.
    pub(crate) fn get(&self, series: &str) -> u64 {
        self.0.get(series).copied().unwrap_or(0)
    }

    /// What was counted since, by series of this family.
    pub(crate) fn since(&self, before: &Self, family: &str) -> BTreeMap<String, u64> {
        let of_family = self.0.iter().filter(|(series, _)| series.starts_with(family));
        let more = of_family.map(|(series, count)| (series.clone(), count - before.get(series)));
        more.filter(|(_, more)| *more > 0).collect()
    }
}

/// A registry and an agent that looks at some loop devices.
pub(crate) struct Rig {
    pub(crate) cluster: Cluster,
    pub(crate) loops: Vec<Loop>,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    /// With so many drives, each known to the registry.
    pub(crate) fn started(drives: usize) -> Self {
        let mut rig = Self::new(drives);
        rig.start(&[]);
        rig
    }

    /// Starts nothing yet.
    pub(crate) fn new(drives: usize) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cluster = Cluster::new(0, true);
        let file = |bay| cluster.path().join(format!("bay-{bay}.img"));
        let loops: Vec<_> = (0..drives).map(|bay| Loop::new(file(bay), FIRST_BYTES)).collect();
        cluster.drives = loops.iter().map(|drive| TestDrive::of(drive.path.clone())).collect();
        Self { cluster, loops, _alone: alone }
    }

    pub(crate) fn start(&mut self, options: &[&str]) {
        self.cluster.start_registry();
        self.start_agent(options);
    }

    /// Starts the agent, and waits until all that is there is known.
    pub(crate) fn start_agent(&mut self, options: &[&str]) {
        self.cluster.start_agent_with(options);
        self.cluster.wait_ready();
        for drive in &self.loops {
            self.wait(&drive.path, "there", |status| status["present"] == true);
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.cluster.path().join(name)
    }

    /// The objects of all drives that the registry has heard of.
    pub(crate) fn drives(&self) -> Vec<Value> {
        let text = ask(&self.cluster.http(), "/v1/drives").expect("the registry answers");
        let list: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        list["items"].as_array().unwrap().clone()
    }

    /// The drive that was last seen at a path, if only one was.
    pub(crate) fn at(&self, path: &Path) -> Option<Value> {
        let path = path.to_str().unwrap();
        let mut there = self.drives();
        there.retain(|drive| drive["status"]["path"] == path);
        there.sort_by_key(|drive| drive["status"]["present"] == true);
        there.pop()
    }

    /// Waits until the drive at a path is as told; gives its object.
    pub(crate) fn wait(&self, path: &Path, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = None;
        eventually(&format!("{} is {what}", path.display()), || {
            last = self.at(path);
            let status = &last.as_ref()?["status"];
            is(status).then(|| last.clone()).flatten()
        })
    }

    pub(crate) fn wait_size(&self, drive: &Loop, bytes: u64) -> Value {
        let is = |status: &Value| status["sizeBytes"] == bytes && status["present"] == true;
        self.wait(&drive.path, &format!("{bytes} bytes large"), is)
    }

    /// What the agent has counted.
    pub(crate) fn numbers(&self) -> Numbers {
        numbers(&self.file("node/metrics.sock"))
    }

    /// What the registry has counted.
    pub(crate) fn registry_numbers(&self) -> Numbers {
        numbers(&self.cluster.http())
    }

    /// How many reports of a change the agent has sent since it started.
    pub(crate) fn reports(&self) -> u64 {
        self.numbers().get("hotbay_discovery_reports_total")
    }

    /// What happened, in words.
    pub(crate) fn told(&self) -> Vec<String> {
        let text = ask(&self.cluster.http(), "/v1/events").expect("the registry answers");
        let list: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let items = list["items"].as_array().unwrap().iter();
        items.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
    }

    /// How many of these were said to be gone.
    pub(crate) fn told_missing(&self) -> usize {
        self.told().iter().filter(|text| text.contains("is not on its machine")).count()
    }

    pub(crate) fn agent_pid(&self) -> u32 {
        self.cluster.agent.as_ref().unwrap().pid()
    }

    /// The memory that the agent has now, in KiB.
    pub(crate) fn agent_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.agent_pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// By what name the registry knows a drive.
pub(crate) fn id(drive: &Value) -> String {
    drive["metadata"]["name"].as_str().unwrap().to_owned()
}

/// Why a drive cannot be added.
pub(crate) fn reasons(status: &Value) -> Vec<String> {
    let denied = status["denied"].as_array().unwrap().iter();
    denied.map(|denied| denied["reason"].as_str().unwrap().to_owned()).collect()
}

fn numbers(socket: &Path) -> Numbers {
    let text = eventually("the numbers are shown", || ask(socket, "/metrics"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let number = |line: &str| {
        let (series, count) = line.rsplit_once(' ')?;
        Some((series.to_owned(), count.parse().ok()?))
    };
    Numbers(lines.filter_map(number).collect())
}

/// Asks for a page; none if nobody answers.
fn ask(socket: &Path, page: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    write!(stream, "GET {page} HTTP/1.0\r\nHost: hotbay\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.lines().next()?.contains(" 200"), "{page}: {answer}");
    Some(body.to_owned())
}

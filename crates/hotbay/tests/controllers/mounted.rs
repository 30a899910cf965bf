//! A volume in use, on the machine of the test, and a program that uses it all the time: whatever happens around it,
//! every write is kept.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Rig, until};

const PAUSE: Duration = Duration::from_millis(10);

/// Mounts a volume; gives where.
pub(crate) fn mount(rig: &Rig, volume: &str) -> PathBuf {
    let at = rig.path("agent").join(format!("{volume}-at"));
    fs::create_dir_all(&at).unwrap();
    let dir = rig.agent().data_dir();
    rig.client(&["volume", "mount", volume, at.to_str().unwrap(), "--agent-dir", &dir]);
    at
}

pub(crate) fn unmount(rig: &Rig, volume: &str) {
    rig.client(&["volume", "unmount", volume, "--agent-dir", &rig.agent().data_dir()]);
}

pub(crate) struct Writer {
    over: Arc<AtomicBool>,
    /// How many lines are on the drive.
    synced: Arc<AtomicUsize>,
    /// Gives how many lines were written, and the longest time that one took.
    thread: Option<JoinHandle<(usize, Duration)>>,
    file: PathBuf,
}

impl Writer {
    /// Appends lines to a file, and syncs each.
    pub(crate) fn start(folder: &Path) -> Self {
        let file = folder.join("lines");
        let (over, path) = (Arc::new(AtomicBool::new(false)), file.clone());
        let (ends, synced) = (Arc::clone(&over), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&synced);
        let thread = thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            let (mut lines, mut longest) = (0, Duration::ZERO);
            while !ends.load(Ordering::Acquire) {
                let began = Instant::now();
                writeln!(file, "{lines}").unwrap();
                file.sync_all().unwrap();
                longest = longest.max(began.elapsed());
                lines += 1;
                counts.store(lines, Ordering::Release);
                thread::sleep(PAUSE);
            }
            (lines, longest)
        });
        Self { over, synced, thread: Some(thread), file }
    }

    /// Waits until it has written a line more than it has now.
    pub(crate) fn goes_on(&self) {
        let before = self.synced.load(Ordering::Acquire);
        until("the program goes on writing", || {
            let now = self.synced.load(Ordering::Acquire);
            if now > before { Ok(()) } else { Err(format!("{now} lines")) }
        });
    }

    /// Ends it; every line is there.
    pub(crate) fn end(mut self) {
        self.over.store(true, Ordering::Release);
        let (lines, longest) = self.thread.take().unwrap().join().unwrap();
        let text = fs::read_to_string(&self.file).unwrap();
        let expected: String = (0..lines).map(|line| format!("{line}\n")).collect();
        assert_eq!(text, expected, "what was written is not there");
        println!("{lines} lines were written and synced meanwhile, the slowest took {longest:?}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A test that failed before has its own words.
            drop(thread.join());
        }
    }
}

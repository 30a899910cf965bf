//! A program that uses a volume all the time: whatever happens around it, every write is kept.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Writer {
    over: Arc<AtomicBool>,
    /// Gives how many lines were written, and the longest time that one took.
    thread: Option<JoinHandle<(usize, Duration)>>,
    file: PathBuf,
}

impl Writer {
    /// Appends lines to a file, and syncs each.
    pub(crate) fn start(folder: &Path) -> Self {
        let file = folder.join("lines");
        let (over, path) = (Arc::new(AtomicBool::new(false)), file.clone());
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            let (mut lines, mut longest) = (0, Duration::ZERO);
            while !ends.load(Ordering::Acquire) {
                let began = Instant::now();
                writeln!(file, "{lines}").unwrap();
                file.sync_all().unwrap();
                longest = longest.max(began.elapsed());
                lines += 1;
                thread::sleep(PAUSE);
            }
            (lines, longest)
        });
        Self { over, thread: Some(thread), file }
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

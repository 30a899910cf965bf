//! Catches a moment that is soon over, so that a test does its harm in the middle of something. What files say is asked
//! every few milliseconds: a program that asks a server takes longer to start than such a moment lasts.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const STEP: Duration = Duration::from_millis(2);
/// How long it may take to come, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(120);

/// Waits for it.
pub(crate) fn catch(what: &str, mut is: impl FnMut() -> bool) {
    let give_up = Instant::now() + LIMIT;
    while !is() {
        assert!(Instant::now() < give_up, "not in time: {what}");
        sleep(STEP);
    }
}

/// What an API server was asked since some moment, by its own log.
pub(crate) struct Requests {
    log: PathBuf,
    /// In bytes.
    from: u64,
}

impl Requests {
    pub(crate) fn from_now(log: PathBuf) -> Self {
        let from = fs::metadata(&log).unwrap().len();
        Self { log, from }
    }

    /// How many Volumes were made.
    pub(crate) fn volumes_made(&self) -> usize {
        let mut file = File::open(&self.log).unwrap();
        file.seek(SeekFrom::Start(self.from)).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).lines().filter(|line| makes_volume(line)).count()
    }
}

fn makes_volume(line: &str) -> bool {
    // The last line may still be on its way.
    let Ok(event) = serde_json::from_str::<Value>(line) else { return false };
    let object = &event["objectRef"];
    let is_volume = object["apiGroup"] == "hotbay.dev" && object["resource"] == "volumes";
    is_volume && event["verb"] == "create" && event["responseStatus"]["code"] == 201
}

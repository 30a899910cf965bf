//! A pod that writes all the time: what shows that a volume was never away, whatever was done to it meanwhile.

use std::time::Duration;

use crate::cluster::{Installed, until};
use crate::pods::{self, FILESYSTEM};

/// Every line is on the drive before the next one is written; a write that fails ends the pod. The second number is the
/// kernel's clock, in seconds with two digits after the point.
const SCRIPT: &str = "n=0; while read now rest </proc/uptime; do echo $n $now | \
                      dd of=/v/beats oflag=append conv=notrunc,fsync 2>/dev/null || exit 1; \
                      n=$((n+1)); sleep 0.05; done";

/// The longest that a write may take on a machine that has much else to do. What is done to the writers takes longer,
/// or would end them.
const GAP_MAX: Duration = Duration::from_secs(10);

pub(crate) struct Writer<'a> {
    pub(crate) pod: &'a str,
}

impl<'a> Writer<'a> {
    /// Starts a pod that writes into its claim.
    pub(crate) fn start(installed: &Installed, pod: &'a str, claim: &str, on: &str) -> Self {
        let command = format!("[sh, -c, {SCRIPT:?}]");
        installed.kubectl().apply(&pods::pod(pod, claim, FILESYSTEM, on, &command)).unwrap();
        pods::until_runs(installed, pod);
        let this = Self { pod };
        this.until_more(installed);
        this
    }

    /// Waits until it has written a line more than it has now.
    fn until_more(&self, installed: &Installed) {
        let before = self.lines(installed).unwrap_or_default().len();
        until(&format!("{} goes on writing", self.pod), || {
            let now = self.lines(installed)?.len();
            if now > before { Ok(()) } else { Err(format!("{now} lines")) }
        });
    }

    /// It still writes, and has never waited, nor begun anew. Says how long it waited at most.
    pub(crate) fn has_never_stopped(&self, installed: &Installed) -> Duration {
        self.until_more(installed);
        let lines = self.lines(installed).unwrap();
        let mut before = None;
        let mut longest = 0;
        for (expected, (number, now)) in lines.into_iter().enumerate() {
            assert_eq!(number, expected, "a line of {} is missing, or is there twice", self.pod);
            longest = longest.max(now - before.unwrap_or(now));
            before = Some(now);
        }
        let longest = Duration::from_millis(longest * 10);
        assert!(longest < GAP_MAX, "{} wrote nothing for {longest:?}", self.pod);
        longest
    }

    /// The number of each line, and when it was written in hundredths of a second.
    fn lines(&self, installed: &Installed) -> Result<Vec<(usize, u64)>, String> {
        let cat = installed.kubectl().run(&["exec", self.pod, "--", "cat", "/v/beats"]);
        let text = cat.map_err(|error| error.to_string())?;
        // It may be in the middle of the last one.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let line = |line: &str| {
            let (number, now) = line.split_once(' ')?;
            Some((number.parse().ok()?, now.replace('.', "").parse().ok()?))
        };
        whole.lines().map(|each| line(each).ok_or_else(|| format!("a line is {each:?}"))).collect()
    }
}

//! Everything that the registry holds of a drive over a time, and not only what it comes to: a state that is right in
//! the end may have been wrong for a moment.

use serde_json::Value;

use crate::lab::Lab;

const FOLLOWED: &str = "/run/followed";

/// A client that follows all drives. A case ends it, so that the next one can begin another.
pub(crate) struct Follower {
    pid: String,
}

impl Follower {
    /// Follows from now on; what there is now comes first.
    pub(crate) fn start(lab: &mut Lab) -> Self {
        let follow = format!("hotbay get drives --watch -o json >{FOLLOWED} 2>/dev/console");
        let pid = lab.ok(&format!("rm -f {FOLLOWED}; {follow} & echo $!"));
        lab.wait_until("the client follows", |guest| {
            guest.run(&format!("test -s {FOLLOWED}")).unwrap().success()
        });
        Self { pid: pid.trim().to_owned() }
    }

    /// The states of the drive with this serial number, the oldest first, once it has come to one as `is` says.
    pub(crate) fn seen_until(
        &self,
        lab: &mut Lab,
        serial: &str,
        is: impl Fn(&Value) -> bool,
    ) -> Vec<Value> {
        let mut seen = Vec::new();
        let found =
            lab.guest.wait_until(&format!("the client shows {serial} as awaited"), |guest| {
                let text = guest.run(&format!("cat {FOLLOWED}")).unwrap().stdout;
                // The last line may not be there in full yet.
                let whole =
                    text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
                seen = whole.filter(|drive| drive["status"]["serial"] == serial).collect();
                (seen.len() > 1 && seen.last().is_some_and(&is)).then_some(())
            });
        found.unwrap_or_else(|error| panic!("{error}; it has shown {seen:#?}"));
        seen
    }

    pub(crate) fn end(self, lab: &mut Lab) {
        lab.ok(&format!("kill {}", self.pid));
    }
}

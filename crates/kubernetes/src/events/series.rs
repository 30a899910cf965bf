//! What happens again and again: one Event object with a count, written at most once a minute.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::object::{Regarding, Told, time};

/// How many events are remembered. With more, the oldest may be told as new ones.
const KEPT: usize = 1_000;
/// After so long without a repetition the next one is a new event.
const OVER: Duration = Duration::from_secs(10 * 60);
/// The shortest pause between two writes of a count.
const BETWEEN_WRITES: Duration = Duration::from_secs(60);

/// What makes two events the same.
type Same = (Regarding, &'static str, String);

#[derive(Default)]
pub(super) struct Series {
    kept: HashMap<Same, Kept>,
}

struct Kept {
    object: Value,
    count: u64,
    last: Instant,
    written: Instant,
}

/// What is to be written.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// It is counted, and told later.
    Nothing,
    Make,
    /// The object with its count.
    Count(Value),
}

fn same(told: &Told<'_>) -> Same {
    (told.regarding.clone(), told.notice.reason, told.note())
}

impl Series {
    pub(super) fn next(&mut self, told: &Told<'_>, now: Instant) -> Step {
        let Some(kept) = self.kept.get_mut(&same(told)) else { return Step::Make };
        if now.duration_since(kept.last) > OVER {
            return Step::Make;
        }
        kept.count += 1;
        kept.last = now;
        // The second time is told at once: it says that this was no single event.
        if kept.count > 2 && now.duration_since(kept.written) < BETWEEN_WRITES {
            return Step::Nothing;
        }
        let mut object = kept.object.clone();
        object["series"] = json!({ "count": kept.count, "lastObservedTime": time(told.wall_ms) });
        Step::Count(object)
    }

    /// The server has it.
    pub(super) fn noted(&mut self, told: &Told<'_>, object: Value, now: Instant) {
        if self.kept.len() >= KEPT {
            let oldest = self.kept.iter().min_by_key(|(_, kept)| kept.last);
            if let Some(oldest) = oldest.map(|(same, _)| same.clone()) {
                self.kept.remove(&oldest);
            }
        }
        let count = object["series"]["count"].as_u64().unwrap_or(1);
        let kept = Kept { object, count, last: now, written: now };
        self.kept.insert(same(told), kept);
    }

    /// The server has it with a lower count. It is written with the next that is due.
    pub(super) fn not_written(&mut self, told: &Told<'_>, now: Instant) {
        if let Some(kept) = self.kept.get_mut(&same(told)) {
            kept.written = now;
        }
    }

    /// The server has it no more, or never had; or another than is known.
    pub(super) fn forget(&mut self, told: &Told<'_>) {
        self.kept.remove(&same(told));
    }
}

#[cfg(test)]
mod tests {
    use hotbay_core::cluster::{About, Notice};

    use super::*;

    fn told(notice: &Notice) -> Told<'_> {
        Told { regarding: Regarding::claim("n", "c", "u"), notice, wall_ms: 0 }
    }

    fn notice() -> Notice {
        Notice {
            warning: true,
            reason: "DriveGone",
            about: About::Registry,
            text: "It is gone.".to_owned(),
            order: None,
        }
    }

    /// The story: the server let nobody change an event. What could not be counted was forgotten, so every second time
    /// was a new event, and nobody was told why.
    #[test]
    fn what_cannot_be_counted_is_counted_later_and_is_no_new_event() {
        let notice = notice();
        let (mut series, mut now) = (Series::default(), Instant::now());
        assert_eq!(series.next(&told(&notice), now), Step::Make);
        series.noted(&told(&notice), json!({}), now);
        assert!(matches!(series.next(&told(&notice), now), Step::Count(_)));
        series.not_written(&told(&notice), now);
        for _ in 0..5 {
            now += Duration::from_secs(5);
            assert_eq!(series.next(&told(&notice), now), Step::Nothing);
        }
        now += BETWEEN_WRITES;
        let Step::Count(later) = series.next(&told(&notice), now) else { panic!("not counted") };
        assert_eq!(later["series"]["count"], 8);
    }

    #[test]
    fn repetitions_are_counted_and_rarely_written() {
        let notice = notice();
        let (mut series, mut now) = (Series::default(), Instant::now());
        assert_eq!(series.next(&told(&notice), now), Step::Make);
        series.noted(&told(&notice), json!({}), now);
        let Step::Count(second) = series.next(&told(&notice), now) else { panic!("not counted") };
        assert_eq!(second["series"]["count"], 2);
        series.noted(&told(&notice), second, now);
        for _ in 0..10 {
            now += Duration::from_secs(5);
            assert_eq!(series.next(&told(&notice), now), Step::Nothing);
        }
        now += BETWEEN_WRITES;
        let Step::Count(later) = series.next(&told(&notice), now) else { panic!("not counted") };
        assert_eq!(later["series"]["count"], 13);
        series.noted(&told(&notice), later, now);
        now += OVER + Duration::from_secs(1);
        assert_eq!(series.next(&told(&notice), now), Step::Make);
        series.forget(&told(&notice));
        assert_eq!(series.next(&told(&notice), now), Step::Make);
    }
}

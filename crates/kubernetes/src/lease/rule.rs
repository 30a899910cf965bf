//! The rule of the lead. Times are of the caller's own monotonic clock.

use std::time::{Duration, Instant};

/// A Lease, as far as it decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Of the object: another one means that somebody wrote it.
    pub version: String,
    /// Nobody's if empty: it was given back.
    pub holder: String,
    pub duration: Duration,
}

/// What one who does not lead knows of the Lease.
#[derive(Debug, Default)]
pub struct Following {
    /// The Lease that somebody held, and since when it is as it is.
    last: Option<(Seen, Instant)>,
}

/// Stands for a Lease that was deleted; no version is like it.
const GONE: &str = "";

/// What one who does not lead may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// Make the Lease: there is none.
    Make,
    /// Take it, in place of this version.
    Take { version: String },
    /// Another leads, or may do so: look again, at the latest after this time.
    Wait(Duration),
}

impl Following {
    /// Takes in what was seen at `now`, and says what follows. A Lease without a holder is free. Any other is free when
    /// it was seen unchanged for the whole time that it is good for: a full period after the first look, so that one
    /// who has just started never takes it from a leader that lives. So is one that was deleted: whoever held it may
    /// have renewed it just before, and does not know yet.
    pub fn look(&mut self, seen: Option<Seen>, now: Instant) -> Move {
        let Some(seen) = seen else {
            let Some((last, since)) = &mut self.last else { return Move::Make };
            if last.version != GONE {
                GONE.clone_into(&mut last.version);
                *since = now;
            }
            let left = (*since + last.duration).saturating_duration_since(now);
            return if left.is_zero() { Move::Make } else { Move::Wait(left) };
        };
        if seen.holder.is_empty() {
            self.last = None;
            return Move::Take { version: seen.version };
        }
        let since = match self.last.take() {
            Some((last, since)) if last.version == seen.version => since,
            Some(_) | None => now,
        };
        let (left, version) =
            ((since + seen.duration).saturating_duration_since(now), seen.version.clone());
        self.last = Some((seen, since));
        if left.is_zero() { Move::Take { version } } else { Move::Wait(left) }
    }
}

impl Following {
    /// Whether it was last held by this one.
    pub fn is_held_by(&self, holder: &str) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last.holder == holder)
    }
}

/// How often a leader renews: two renewals may be lost before the third would be too late.
pub fn renewal_pause(duration: Duration) -> Duration {
    duration / 4
}

/// Until when a renewal that was sent at `sent` is good. A little less than others wait, as clocks run differently.
pub fn good_until(sent: Instant, duration: Duration) -> Instant {
    sent + duration - duration / 20
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn seen(version: u32, holder: &str) -> Option<Seen> {
        Some(Seen { version: version.to_string(), holder: holder.to_owned(), duration: DURATION })
    }

    #[test]
    fn what_nobody_holds_is_taken_at_once() {
        let (mut following, now) = (Following::default(), Instant::now());
        assert_eq!(following.look(None, now), Move::Make);
        assert_eq!(following.look(seen(1, ""), now), Move::Take { version: "1".into() });
    }

    #[test]
    fn one_who_has_just_started_waits_a_full_period() {
        let (mut following, now) = (Following::default(), Instant::now());
        assert_eq!(following.look(seen(7, "a"), now), Move::Wait(DURATION));
        let almost = now + DURATION - Duration::from_millis(1);
        assert_eq!(following.look(seen(7, "a"), almost), Move::Wait(Duration::from_millis(1)));
        let over = now + DURATION;
        assert_eq!(following.look(seen(7, "a"), over), Move::Take { version: "7".into() });
    }

    /// A person deletes it; the leader renewed it a moment ago, and answers until its next renewal fails.
    #[test]
    fn what_was_deleted_is_made_after_a_full_period() {
        let (mut following, now) = (Following::default(), Instant::now());
        following.look(seen(7, "a"), now);
        let gone = now + DURATION - Duration::from_secs(1);
        assert_eq!(following.look(None, gone), Move::Wait(DURATION));
        let later = gone + Duration::from_secs(5);
        assert_eq!(following.look(None, later), Move::Wait(DURATION - Duration::from_secs(5)));
        assert_eq!(following.look(None, gone + DURATION), Move::Make);
        // Somebody else has made it: that one leads.
        assert_eq!(following.look(seen(8, "b"), gone + DURATION), Move::Wait(DURATION));
        // What was given back, and then deleted, is nobody's.
        following.look(seen(9, ""), gone + DURATION);
        assert_eq!(following.look(None, gone + DURATION), Move::Make);
    }

    #[test]
    fn a_renewal_begins_the_period_again() {
        let (mut following, now) = (Following::default(), Instant::now());
        following.look(seen(7, "a"), now);
        assert_eq!(following.look(seen(8, "a"), now + DURATION), Move::Wait(DURATION));
        // A Lease that was deleted and made anew has another version as well.
        assert_eq!(following.look(seen(9, "b"), now + DURATION * 2), Move::Wait(DURATION));
    }

    proptest! {
        /// However renewals and looks fall, and whatever is lost: nobody takes while the leader may still speak. Both
        /// clocks may run up to 2 % apart.
        #[test]
        fn a_lease_is_never_taken_while_it_is_good(
            sends in proptest::collection::vec((1u64..6_000, 0u64..4_000, any::<bool>()), 1..12),
            looks in proptest::collection::vec(1u64..3_000, 1..40),
            skew in 980u32..1_020,
        ) {
            let start = Instant::now();
            // When each renewal is sent and when the server has it; a lost one never arrives.
            let (mut at, mut free) = (0, 0);
            let mut arrivals = vec![(0, 0)];
            let mut good = good_until(start, DURATION);
            for (pause, travel, lost) in sends {
                at = (at + pause).max(free);
                let sent = start + Duration::from_millis(at);
                if sent >= good { break; }
                free = at + travel;
                if !lost {
                    arrivals.push((at + travel, arrivals.len()));
                    // The answer may come after the end; then it counts for nothing.
                    if start + Duration::from_millis(free) < good {
                        good = good_until(sent, DURATION);
                    }
                }
            }
            let mut following = Following::default();
            let mut at = 0;
            for pause in looks {
                at += pause;
                let newest = arrivals.iter().rfind(|(arrived, _)| *arrived <= at);
                let version = u32::try_from(newest.unwrap().1).unwrap();
                let theirs = start + Duration::from_millis(at) * skew / 1_000;
                if let Move::Take { .. } = following.look(seen(version, "a"), theirs) {
                    prop_assert!(start + Duration::from_millis(at) >= good);
                    break;
                }
            }
        }
    }
}

//! Whether an event was missed, told by the numbers that the kernel counts all events of the machine with.
//!
//! A number that never arrived proves nothing: events of another network namespace (every container's interfaces) take
//! numbers too and are not sent to us, and two events sent at once by two processors can arrive in the wrong order.
//! But an event that the kernel had no memory to send leaves no other sign. So a number that is still missing one check
//! later is a *suspicion*, and the answer is the cheap poll: the list of disks with their sizes and sequences. If that
//! finds what no event told, the suspicion is confirmed and everything is looked at; else the numbers are written off.
//! An overflow of the socket needs none of this: the kernel says so itself.
//!
//! The agent's loop reads the kernel's counter, then empties the socket, then calls [`Sequence::check`].

use std::collections::VecDeque;

/// So many runs of missing numbers are told apart; of more, the two oldest become one.
const MAX_GAPS: usize = 64;

/// The numbers seen so far.
#[derive(Debug)]
pub struct Sequence {
    /// The next number that is expected.
    next: u64,
    /// Numbers that were passed over: first and last of each run, in order, apart from each other.
    gaps: VecDeque<(u64, u64)>,
    /// The kernel's counter at the last check.
    checked: u64,
    heard: bool,
}

/// What the numbers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Every number up to the last check has arrived.
    Complete,
    /// Some have not: poll, then call [`Sequence::polled`].
    Suspect { missing: u64 },
    /// None has ever arrived although there were events: most likely the socket is in a namespace that gets none.
    /// Poll, then call [`Sequence::polled`].
    Deaf { missing: u64 },
}

/// What follows from the poll after a suspicion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conclusion {
    /// The missing numbers were other people's.
    Nothing,
    /// An event was lost.
    Lost,
}

impl Sequence {
    /// Starts after the number that the kernel's counter has once the socket is bound.
    pub fn after(counter: u64) -> Self {
        let next = counter.saturating_add(1);
        Self { next, gaps: VecDeque::new(), checked: counter, heard: false }
    }

    /// An event of the kernel with this number has arrived.
    pub fn seen(&mut self, number: u64) {
        self.heard = true;
        if number < self.next {
            self.fill(number);
            return;
        }
        self.pass(number);
        self.next = number.saturating_add(1);
    }

    /// Compares with the kernel's counter, read before the socket was emptied. A number is missed only if it was
    /// already due at the check before: the kernel counts an event before it sends it.
    pub fn check(&mut self, counter: u64) -> Check {
        let due = self.checked;
        self.checked = counter.max(due);
        let end = self.next.saturating_sub(1);
        let in_gaps = self.gaps.iter().filter(|(first, _)| *first <= due);
        let passed_over: u64 = in_gaps.map(|(first, last)| (*last).min(due) - first + 1).sum();
        let missing = passed_over.saturating_add(due.saturating_sub(end));
        match (missing, self.heard) {
            (0, _) => Check::Complete,
            (missing, true) => Check::Suspect { missing },
            (missing, false) => Check::Deaf { missing },
        }
    }

    /// The poll that a suspicion asked for has ended; `found`: something had changed that no event told. Either way
    /// the numbers up to the last check are done with.
    pub fn polled(&mut self, found: bool) -> Conclusion {
        let upto = self.checked;
        self.next = self.next.max(upto.saturating_add(1));
        while let Some((first, last)) = self.gaps.front_mut() {
            if *last <= upto {
                self.gaps.pop_front();
                continue;
            }
            *first = (*first).max(upto.saturating_add(1));
            break;
        }
        if found { Conclusion::Lost } else { Conclusion::Nothing }
    }

    /// Numbers from the expected one up to `number` were passed over.
    fn pass(&mut self, number: u64) {
        if number == self.next {
            return;
        }
        self.gaps.push_back((self.next, number - 1));
        if self.gaps.len() > MAX_GAPS {
            // Numbers between the two have arrived: counting them as missing costs a poll, forgetting them an event.
            let first = self.gaps.pop_front();
            if let (Some((first, _)), Some(second)) = (first, self.gaps.front_mut()) {
                second.0 = first;
            }
        }
    }

    /// A number that was passed over has arrived late.
    fn fill(&mut self, number: u64) {
        let holds = |(first, last): &(u64, u64)| (*first..=*last).contains(&number);
        let Some(index) = self.gaps.iter().position(holds) else { return };
        let (first, last) = self.gaps[index];
        match (first == number, last == number) {
            (true, true) => {
                self.gaps.remove(index);
            }
            (true, false) => self.gaps[index].0 = number + 1,
            (false, true) => self.gaps[index].1 = number - 1,
            // Without room for one more run, the number counts as missing.
            (false, false) if self.gaps.len() < MAX_GAPS => {
                self.gaps[index].1 = number - 1;
                self.gaps.insert(index + 1, (number + 1, last));
            }
            (false, false) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_order_are_complete() {
        let mut sequence = Sequence::after(10);
        assert_eq!(sequence.check(10), Check::Complete);
        sequence.seen(11);
        sequence.seen(12);
        assert_eq!(sequence.check(12), Check::Complete);
        assert_eq!(sequence.check(12), Check::Complete);
        // Sent before the socket was bound, or twice.
        sequence.seen(3);
        sequence.seen(12);
        assert_eq!(sequence.check(12), Check::Complete);
    }

    #[test]
    fn a_gap_is_suspect_at_the_second_check_and_confirmed_by_the_poll_alone() {
        let mut sequence = Sequence::after(0);
        for number in [1, 2, 5, 7] {
            sequence.seen(number);
        }
        assert_eq!(sequence.check(7), Check::Complete, "they may still be on their way");
        assert_eq!(sequence.check(9), Check::Suspect { missing: 3 });
        assert_eq!(sequence.polled(false), Conclusion::Nothing);
        assert_eq!(sequence.check(9), Check::Complete, "written off");
        sequence.seen(11);
        sequence.check(11);
        assert_eq!(sequence.check(11), Check::Suspect { missing: 1 });
        assert_eq!(sequence.polled(true), Conclusion::Lost);
        assert_eq!(sequence.check(11), Check::Complete);
    }

    #[test]
    fn late_numbers_fill_their_gap() {
        let mut sequence = Sequence::after(0);
        for number in [5, 2, 4, 1, 3] {
            sequence.seen(number);
        }
        sequence.check(5);
        assert_eq!(sequence.check(5), Check::Complete);
        assert!(sequence.gaps.is_empty());
    }

    #[test]
    fn the_last_events_can_be_missing_too() {
        let mut sequence = Sequence::after(0);
        sequence.seen(1);
        assert_eq!(sequence.check(4), Check::Complete);
        assert_eq!(sequence.check(4), Check::Suspect { missing: 3 });
    }

    #[test]
    fn a_socket_that_never_hears_anything_is_deaf() {
        let mut sequence = Sequence::after(100);
        sequence.check(250);
        assert_eq!(sequence.check(250), Check::Deaf { missing: 150 });
        sequence.polled(false);
        sequence.seen(251);
        sequence.check(253);
        assert_eq!(sequence.check(253), Check::Suspect { missing: 2 });
    }

    #[test]
    fn however_many_gaps_there_are_memory_is_bounded_and_none_is_forgotten() {
        let mut sequence = Sequence::after(0);
        for number in (2..=20_000).step_by(2) {
            sequence.seen(number);
        }
        assert!(sequence.gaps.len() <= MAX_GAPS);
        sequence.check(20_000);
        let Check::Suspect { missing } = sequence.check(20_000) else { panic!("{sequence:?}") };
        assert!(missing >= 10_000, "{missing}");
        sequence.polled(false);
        assert_eq!(sequence.check(20_000), Check::Complete);
    }

    #[test]
    fn the_ends_of_the_range_do_no_harm() {
        let mut sequence = Sequence::after(u64::MAX);
        sequence.seen(u64::MAX);
        sequence.seen(0);
        sequence.check(u64::MAX);
        sequence.check(0);
        sequence.polled(true);
        let mut sequence = Sequence::after(0);
        sequence.seen(u64::MAX);
        assert_eq!(sequence.check(u64::MAX), Check::Complete);
        assert!(matches!(sequence.check(u64::MAX), Check::Suspect { .. }));
    }
}

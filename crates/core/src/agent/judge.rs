//! Which orders an agent takes: the heart of the order protocol, as one pure function.

use crate::ids::Incarnation;
use crate::message::{Order, OrderRefused};
use crate::order::{Ordered, Term};
use crate::rules::{Rule, Rules};

/// What an agent knows when an order arrives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) incarnation: Incarnation,
    /// The term accepted at registration; none while no session stands.
    pub(super) term: Option<Term>,
    /// The newest order seen for this drive.
    pub(super) seen: Option<Ordered>,
}

/// How an order stands to what was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// Neither of its numbers is lower, and one is higher.
    Newer,
    /// The very same order again.
    Same,
}

/// Decides by order alone, before anything about the drive is looked at. A refusal here changes nothing.
pub(super) fn judge(
    rules: Rules,
    standing: Standing,
    order: &Order,
) -> Result<Judgement, OrderRefused> {
    let Standing { incarnation, term, seen } = standing;
    if rules.hold(Rule::OrderIncarnation) && order.incarnation != incarnation {
        return Err(OrderRefused::ForeignIncarnation);
    }
    let stamp = order.ordered.stamp;
    if rules.hold(Rule::OrderTerm) && Some(stamp.term) != term {
        return Err(OrderRefused::ForeignTerm { accepted: term });
    }
    let Some(seen) = seen else {
        return Ok(Judgement::Newer);
    };
    if rules.hold(Rule::OrderGeneration) && stamp.generation < seen.stamp.generation {
        return Err(OrderRefused::Stale { seen: seen.stamp });
    }
    if rules.hold(Rule::OrderTerm) && stamp.term.number < seen.stamp.term.number {
        return Err(OrderRefused::Stale { seen: seen.stamp });
    }
    if rules.hold(Rule::GoalConflict)
        && stamp.generation == seen.stamp.generation
        && order.ordered.goal != seen.goal
    {
        return Err(OrderRefused::GoalConflict { seen });
    }
    Ok(if order.ordered == seen { Judgement::Same } else { Judgement::Newer })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;
    use crate::ids::{DriveId, TermId};
    use crate::order::{Generation, Goal, Stamp};

    fn term(number: u64, id: u128) -> Term {
        Term { number, id: TermId::from_bits(id) }
    }

    fn ordered(goal: Goal, term: Term, generation: u64) -> Ordered {
        Ordered { goal, stamp: Stamp { term, generation: Generation::from_number(generation) } }
    }

    fn judged(seen: Ordered, accepted: Term, order: Ordered) -> Result<Judgement, OrderRefused> {
        let incarnation = Incarnation::from_bits(1);
        let order = Order {
            drive: DriveId::from_bits(1),
            ordered: order,
            incarnation,
            evidence: Evidence::default(),
            take_over: false,
            wipe: None,
            given_up: false,
        };
        let standing = Standing { incarnation, term: Some(accepted), seen: Some(seen) };
        judge(Rules::default(), standing, &order)
    }

    #[test]
    fn neither_number_may_be_lower() {
        let seen = ordered(Goal::Attach, term(2, 2), 5);
        let now = term(3, 3);
        assert_eq!(judged(seen, now, ordered(Goal::Attach, now, 5)), Ok(Judgement::Newer));
        assert_eq!(judged(seen, now, ordered(Goal::Detach, now, 6)), Ok(Judgement::Newer));
        let late = judged(seen, now, ordered(Goal::Detach, now, 4));
        assert_eq!(late, Err(OrderRefused::Stale { seen: seen.stamp }));
        let old_term = judged(seen, now, ordered(Goal::Detach, term(2, 2), 6));
        assert_eq!(old_term, Err(OrderRefused::ForeignTerm { accepted: Some(now) }));
    }

    #[test]
    fn one_generation_has_one_goal_under_every_term() {
        let seen = ordered(Goal::Attach, term(2, 2), 5);
        let now = term(3, 3);
        let contradiction = judged(seen, now, ordered(Goal::Detach, now, 5));
        assert_eq!(contradiction, Err(OrderRefused::GoalConflict { seen }));
    }

    #[test]
    fn the_same_order_again_is_known_as_such() {
        let now = term(3, 3);
        let seen = ordered(Goal::Detach, now, 7);
        assert_eq!(judged(seen, now, seen), Ok(Judgement::Same));
    }
}

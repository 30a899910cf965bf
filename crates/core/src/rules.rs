//! The rules of order by name.
//!
//! Every place that enforces a rule asks [`Rules::hold`] for it, so that one search finds the rule and its
//! enforcement. In the product all rules hold, always, and the question costs nothing. With the feature `mutations`
//! the model checker leaves out one rule at a time and must then find a broken invariant: the proof that the model
//! would notice.

/// One rule of order each. The comment says what is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Agent: an order of another term than the one accepted at registration is refused.
    OrderTerm,
    /// Agent: an order meant for another start of the agent is refused.
    OrderIncarnation,
    /// Agent: an order of a lower generation than one already seen is refused.
    OrderGeneration,
    /// Agent: the same generation with another goal is refused, whatever the term.
    GoalConflict,
    /// Agent: goal and order are on its own disk before it acts.
    RecordBeforeAct,
    /// Agent: the term is on its own disk before any answer under it.
    TermBeforeAnswer,
    /// Agent: an order refused for its content raises what was seen, never the goal.
    RefusedKeepsGoal,
    /// Agent: a registration answer under a term that is lower than, or a rival of, the accepted one is refused.
    TermNeverBack,
    /// Agent: a repeated order is compared with the drive as it is before it is answered.
    CompareAgain,
    /// Agent: a label order that was decided on another label is refused.
    LabelBasis,
    /// Agent: a use under a lower epoch than one seen, or one that was taken back, is refused.
    UseEpoch,
    /// Agent: a grant is on its own disk before it is answered.
    UseBeforeAnswer,
    /// Agent: a volume is not freed before it is known that nothing on the machine uses it.
    FreeUnused,
    /// Registry: a confirmation counts only for the drive's current generation.
    ConfirmationGeneration,
    /// Registry: a confirmation counts only from the agent's current start.
    ConfirmationIncarnation,
    /// Registry: a confirmation counts only under the registry's own term.
    ConfirmationTerm,
    /// Registry: nothing from a session older than the node's newest registered one counts.
    NewestSession,
    /// Registry: every action that changes what is wanted raises the generation.
    GenerationRises,
    /// Registry: every start takes a new term.
    TermRises,
    /// Registry: replies, orders and reads leave only when what they were computed from is durable.
    ReleaseDurable,
    /// Registry: a registration that reports a detached drive open resumes closing.
    ReopenedIsClosing,
    /// Registry: an agent whose newest term is not in the list of terms gets no order.
    RewoundTerm,
    /// Registry: an agent that has seen a higher generation gets no order.
    RewoundGeneration,
    /// Registry: an agent that has seen the same generation with another goal gets no order.
    RewoundGoal,
}

/// The rules in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Rules {
    #[cfg(feature = "mutations")]
    left_out: Option<Rule>,
}

impl Rules {
    /// Whether `rule` is enforced.
    #[cfg(not(feature = "mutations"))]
    #[inline]
    #[expect(clippy::unused_self, reason = "the same call as with one rule left out")]
    pub(crate) const fn hold(self, _rule: Rule) -> bool {
        true
    }

    /// Whether `rule` is enforced.
    #[cfg(feature = "mutations")]
    pub fn hold(self, rule: Rule) -> bool {
        self.left_out != Some(rule)
    }

    /// All rules but one.
    #[cfg(feature = "mutations")]
    pub fn without(rule: Rule) -> Self {
        Self { left_out: Some(rule) }
    }
}

//! What an agent makes of a permission to wipe a drive: it counts for one generation, until the drive is attached, and
//! only while the registry has said so to this start of the agent.

use super::{Agent, Effect};
use crate::device::Observed;
use crate::ids::DriveId;
use crate::message::{Obstacle, Order};
use crate::order::Generation;
use crate::wipe::{Content, Wipe, contents_of};

/// The permission that an order brings. Void: for another generation, and for one under which the drive has been
/// attached before, so that an order that comes again does not wipe again.
pub(super) fn permission(order: &Order, used_up: Option<Generation>) -> Option<Wipe> {
    let generation = order.ordered.stamp.generation;
    let wipe = order.wipe.clone()?.for_generation(generation)?;
    (used_up != Some(generation)).then_some(wipe)
}

impl Agent {
    /// What an attach of the drive may wipe. Refused if the device is known to have a reason against it that a wipe
    /// does not cure.
    pub(super) fn may_wipe(
        &self,
        drive: DriveId,
        device: &Observed,
    ) -> Result<Vec<Content>, Obstacle> {
        let owed = self.drives.get(&drive).and_then(|local| local.owed);
        let memory = self.record.drives.get(&drive);
        // By its record alone an agent opens drives, and destroys nothing: the registry may have changed its mind.
        let Some((owed, wipe)) = owed.zip(memory.and_then(|memory| memory.wipe.clone())) else {
            return Ok(Vec::new());
        };
        let Some(wipe) = wipe.for_generation(owed.stamp.generation) else { return Ok(Vec::new()) };
        match contents_of(&device.denied) {
            Ok(_) => Ok(wipe.contents),
            Err(uncured) => {
                let why = uncured.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                Err(Obstacle::NotOurs { why: format!("it is not wiped: {why}") })
            }
        }
    }

    /// The drive is attached: its permission ends, on disk before the registry hears of the attach.
    pub(super) fn use_up_permission(&mut self, drive: DriveId, effects: &mut Vec<Effect>) {
        let Some(memory) = self.record.drives.get_mut(&drive) else { return };
        if let Some(wipe) = memory.wipe.take() {
            memory.wiped = Some(wipe.generation);
            self.write(effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AgentRecord, AttachAtStart, Event, RecordFound};
    use crate::cluster::testing::{DRIVE, device};
    use crate::device::{Denied, LabelSeen};
    use crate::ids::{ClusterId, Incarnation, NodeId, SessionNumber, TermId};
    use crate::message::Registered;
    use crate::order::{Goal, Ordered, Stamp, Term};
    use crate::rules::Rules;

    const ONE: Generation = Generation::from_number(1);
    const TWO: Generation = Generation::from_number(2);

    fn ext4() -> Vec<Content> {
        vec![Content::Filesystem { kind: "ext4".into() }]
    }

    fn with_ext4() -> Observed {
        let denied = vec![Denied::Filesystem { kind: "ext4".into() }];
        Observed { denied, ..device("S1") }
    }

    fn term() -> Term {
        Term::first(TermId::from_bits(7))
    }

    fn started(found: RecordFound, start: u128) -> (Agent, Vec<Effect>) {
        let incarnation = Incarnation::from_bits(start);
        let devices = vec![with_ext4()];
        Agent::start(Rules::default(), incarnation, found, devices, AttachAtStart::default())
    }

    /// Registers; the answer has these orders.
    fn registers(agent: &mut Agent, allowed: Vec<Order>) -> Vec<Effect> {
        agent.step(Event::Registered(Registered {
            session: SessionNumber::from_number(1),
            cluster: ClusterId::from_bits(1),
            node: NodeId::from_bits(2),
            term: term(),
            allowed,
            unknown: vec![],
        }))
    }

    fn attach(generation: Generation, wipe: Option<Generation>, start: u128) -> Order {
        let stamp = Stamp { term: term(), generation };
        Order {
            drive: DRIVE,
            ordered: Ordered { goal: Goal::Attach, stamp },
            incarnation: Incarnation::from_bits(start),
            evidence: device("S1").evidence,
            take_over: false,
            wipe: wipe.map(|generation| Wipe { generation, contents: ext4() }),
            given_up: false,
        }
    }

    fn label(generation: Generation) -> LabelSeen {
        LabelSeen {
            cluster: ClusterId::from_bits(1),
            drive: DRIVE,
            node: NodeId::from_bits(2),
            generation,
            in_operation: true,
            sequence: 1,
        }
    }

    /// What the one attach among the effects may wipe.
    fn wiped_by(effects: Vec<Effect>) -> Vec<Content> {
        let attach = |effect| match effect {
            Effect::Attach(work) | Effect::Relabel(work) => Some(work.wipe),
            Effect::Save(_)
            | Effect::Detach { .. }
            | Effect::Prove { .. }
            | Effect::Send(_)
            | Effect::ChangeLabel { .. }
            | Effect::TellLabel(_)
            | Effect::SendLabel(_)
            | Effect::SendUse(_)
            | Effect::EndUse { .. }
            | Effect::RetryLater(_)
            | Effect::RefuseSession(_)
            | Effect::Alarm { .. } => None,
        };
        let mut found: Vec<_> = effects.into_iter().filter_map(attach).collect();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// The record as it is on disk once the agent has taken an order.
    fn saved(agent: &mut Agent) -> (AgentRecord, Vec<Effect>) {
        let mut effects = agent.step(Event::Saved);
        if effects.iter().any(|effect| matches!(effect, Effect::Save(_))) {
            effects.extend(agent.step(Event::Saved));
        }
        (agent.record().clone(), effects)
    }

    #[test]
    fn the_permission_is_on_disk_before_anything_is_wiped() {
        let (mut agent, _) = started(RecordFound::Absent(None), 5);
        let effects = registers(&mut agent, vec![attach(ONE, Some(ONE), 5)]);
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::Attach(_))), "{effects:?}");
        let (record, effects) = saved(&mut agent);
        let kept = Wipe { generation: ONE, contents: ext4() };
        assert_eq!(record.drives[&DRIVE].wipe, Some(kept));
        assert_eq!(wiped_by(effects), ext4());
    }

    #[test]
    fn it_is_void_for_every_other_generation() {
        for (generation, permitted) in [(TWO, ONE), (ONE, TWO)] {
            let (mut agent, _) = started(RecordFound::Absent(None), 5);
            registers(&mut agent, vec![attach(generation, Some(permitted), 5)]);
            let (record, effects) = saved(&mut agent);
            assert_eq!(record.drives[&DRIVE].wipe, None);
            assert_eq!(wiped_by(effects), []);
        }
    }

    #[test]
    fn an_order_that_comes_again_after_the_attach_wipes_nothing() {
        let (mut agent, _) = started(RecordFound::Absent(None), 5);
        let order = attach(ONE, Some(ONE), 5);
        registers(&mut agent, vec![order.clone()]);
        saved(&mut agent);
        let effects = agent.step(Event::Attached { drive: DRIVE, result: Ok(label(ONE)) });
        // The registry hears of it only when the permission is off the disk.
        assert!(matches!(effects[..], [Effect::Save(_), Effect::TellLabel(_)]), "{effects:?}");
        let (record, effects) = saved(&mut agent);
        assert!(matches!(effects[..], [Effect::Send(_)]), "{effects:?}");
        let memory = &record.drives[&DRIVE];
        assert_eq!((memory.wipe.as_ref(), memory.wiped), (None, Some(ONE)));
        agent.step(Event::Order(order));
        assert_eq!(agent.record().drives[&DRIVE].wipe, None);

        // Also after a restart, with the drive as if it had never been wiped.
        let (mut agent, effects) = started(RecordFound::Usable(record), 6);
        assert_eq!(wiped_by(effects), []);
        agent.step(Event::Attached { drive: DRIVE, result: Err(Obstacle::DeviceMissing) });
        let effects = registers(&mut agent, vec![attach(ONE, Some(ONE), 6)]);
        assert_eq!(wiped_by(effects), []);
        assert_eq!(agent.record().drives[&DRIVE].wipe, None);
    }

    #[test]
    fn an_agent_wipes_nothing_by_its_record_alone() {
        let (mut agent, _) = started(RecordFound::Absent(None), 5);
        registers(&mut agent, vec![attach(ONE, Some(ONE), 5)]);
        let (record, _) = saved(&mut agent);
        assert!(record.drives[&DRIVE].wipe.is_some());
        let (mut agent, effects) = started(RecordFound::Usable(record), 6);
        assert_eq!(wiped_by(effects), [], "it was killed in the middle, and starts again");
        let not_empty = Obstacle::NotOurs { why: "not empty".into() };
        agent.step(Event::Attached { drive: DRIVE, result: Err(not_empty) });
        // The registry says it again, and the wipe is finished.
        let effects = registers(&mut agent, vec![attach(ONE, Some(ONE), 6)]);
        assert_eq!(wiped_by(effects), ext4());
    }

    #[test]
    fn a_drive_that_came_into_use_is_not_even_tried() {
        let (mut agent, _) = started(RecordFound::Absent(None), 5);
        registers(&mut agent, vec![attach(ONE, Some(ONE), 5)]);
        let mut used = with_ext4();
        used.denied.push(Denied::Mounted { at: vec!["/mnt".into()] });
        agent.step(Event::Devices(vec![used]));
        let (_, effects) = saved(&mut agent);
        let tried = |effect: &Effect| matches!(effect, Effect::Attach(_));
        assert!(!effects.iter().any(tried), "{effects:?}");
        assert!(format!("{effects:?}").contains("it is mounted at /mnt"), "{effects:?}");
        assert_eq!(wiped_by(agent.step(Event::Devices(vec![with_ext4()]))), ext4());
    }
}

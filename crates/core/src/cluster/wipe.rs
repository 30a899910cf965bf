//! Adding a drive that is not empty: the registry's decision that what is on it may go.
//!
//! | drive | answer |
//! |---|---|
//! | Attaching, Attached, Closing | `E_INVALID_STATE`, `InOperation` |
//! | not as it was when the person looked | `E_INVALID_STATE`, `ChangedSince` |
//! | not on its machine, or nobody there to ask | `E_INVALID_STATE`, `ContentsUnknown` |
//! | of another serial number | `E_ARGUMENT`, `OtherSerial` |
//! | with a reason against it that no wipe cures | `E_INVALID_STATE` with those reasons |
//! | empty, or one of ours with nothing else on it | as Add: nothing is wiped |
//! | with a label of this cluster, and something else | `E_INVALID_STATE`, `OwnLabel` |
//! | else | generation+1, Attaching, `S_OK`, with the permission for that generation |
//!
//! The permission is a part of the one Add: it is in the drive's record, for its generation alone, and goes when the
//! drive is attached or removed.

use super::actions::Asked;
use super::{Cluster, DriveRecord, Effects, State, StateHash};
use crate::cms::{Code, Outcome, Reason};
use crate::device::Denied;
use crate::ids::DriveId;
use crate::wipe::{Wipe, contents_of};

/// What somebody says who wants a drive wiped: which drive, and what he has seen of it.
#[derive(Clone, Copy)]
pub(super) struct Consent<'a> {
    pub(super) state: StateHash,
    pub(super) serial: &'a str,
}

/// What the attach of a drive may wipe now.
pub(super) fn permitted(record: &DriveRecord) -> Option<Wipe> {
    match record.state {
        State::Attaching => record.wipe.as_deref().cloned()?.for_generation(record.generation),
        State::Unknown | State::Attached | State::Closing | State::Detached => None,
    }
}

impl Cluster {
    pub(super) fn add_wiped(
        &mut self,
        id: DriveId,
        asked: Asked<'_>,
        consent: Consent<'_>,
        effects: &mut Effects,
    ) -> Outcome {
        if let Some((code, reason)) = self.refuses_wipe(id, consent) {
            return Outcome::because(code, reason);
        }
        let denied: Vec<Denied> = self.denied(id).collect();
        match contents_of(&denied) {
            Err(uncured) => {
                let reasons = uncured.into_iter().map(Reason::Denied).collect();
                Outcome { reasons, ..Outcome::new(Code::InvalidState) }
            }
            Ok(contents) if !contents.is_empty() && self.drives[&id].label.is_some() => {
                Outcome::because(Code::InvalidState, Reason::OwnLabel)
            }
            Ok(contents) => self.put_in(id, asked, contents, effects),
        }
    }

    /// What speaks against wiping a drive, beside the reasons that it is denied for.
    fn refuses_wipe(&self, id: DriveId, consent: Consent<'_>) -> Option<(Code, Reason)> {
        let drive = &self.drives[&id];
        let record = &drive.record;
        let invalid = |reason| Some((Code::InvalidState, reason));
        if let Some(reason) = self.takes_no_add(id) {
            return invalid(reason);
        }
        match record.state {
            state @ (State::Attaching | State::Attached | State::Closing) => {
                return invalid(Reason::InOperation { state });
            }
            State::Unknown | State::Detached => {}
        }
        if let Some(now) = self.state_hash(id).filter(|now| *now != consent.state) {
            return invalid(Reason::ChangedSince { now });
        }
        let reports = self.nodes.get(&record.node).is_some_and(|node| node.session.is_some());
        if !reports || !drive.present {
            return invalid(Reason::ContentsUnknown);
        }
        let serial = record.observed.evidence.serial.as_ref();
        if serial.unwrap_or(&record.name) != consent.serial {
            let has_serial = serial.is_some();
            return Some((Code::Argument, Reason::OtherSerial { has_serial }));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{Agent, AttachAtStart, RecordFound};
    use crate::cluster::testing::{DRIVE, act, device, lead, register, registered, says, store};
    use crate::cluster::{Event, Records, Write};
    use crate::cms::{Action, Target};
    use crate::device::{LabelSeen, Observed};
    use crate::ids::{ClusterId, Incarnation, NodeId, SessionNumber};
    use crate::message::{Answer, AnswerResult, Order, Registration};
    use crate::order::Generation;
    use crate::rules::Rules;
    use crate::wipe::Content;

    const A: SessionNumber = SessionNumber::from_number(1);

    fn ext4() -> Vec<Denied> {
        vec![Denied::Filesystem { kind: "ext4".into() }]
    }

    fn with(denied: Vec<Denied>) -> Observed {
        Observed { denied, ..device("S1") }
    }

    fn registration(device: Observed) -> Registration {
        let (agent, _) = Agent::start(
            Rules::default(),
            Incarnation::from_bits(5),
            RecordFound::Absent(None),
            vec![device],
            AttachAtStart::default(),
        );
        says(&agent, "node-a")
    }

    fn cluster(device: Observed) -> Cluster {
        let (mut cluster, _) = lead(Records::default(), 1);
        register(&mut cluster, 1, registration(device)).unwrap();
        cluster
    }

    fn report(cluster: &mut Cluster, devices: Vec<Observed>) {
        let fresh = (100..).take(devices.len()).map(DriveId::from_bits).collect();
        let event = Event::Devices { session: A, devices, conditions: vec![], fresh };
        cluster.apply(event, 0).unwrap();
    }

    fn target(cluster: &Cluster) -> Target {
        Target { host: None, device: cluster.drive(DRIVE).unwrap().record.name.clone() }
    }

    fn wipe_as(cluster: &Cluster, serial: &str) -> Action {
        let state = cluster.state_hash(DRIVE).unwrap();
        Action::AddWiped { target: target(cluster), state, serial: serial.into() }
    }

    fn wipe(cluster: &mut Cluster) -> (Effects, Outcome) {
        let action = wipe_as(cluster, "S1");
        act(cluster, action)
    }

    fn order(effects: &Effects) -> Order {
        effects.orders[0].1.clone()
    }

    fn done(cluster: &mut Cluster, order: &Order) -> Effects {
        let Order { drive, ordered, incarnation, .. } = *order;
        let answer = Answer { drive, ordered, incarnation, result: AnswerResult::Done };
        cluster.apply(Event::Answer { session: A, answer }, 0).unwrap()
    }

    fn refused_for(effects: &Effects, outcome: &Outcome, expected: &Reason) {
        assert_eq!(outcome.code, Code::InvalidState, "{outcome:?}");
        assert_eq!(outcome.reasons, std::slice::from_ref(expected));
        assert!(effects.writes.is_empty() && effects.orders.is_empty());
    }

    #[test]
    fn the_permission_goes_with_the_order_until_the_drive_is_attached() {
        let mut cluster = cluster(with(ext4()));
        let plain = Action::AddDevice(target(&cluster));
        assert_eq!(act(&mut cluster, plain).1.code, Code::InvalidState);
        let (effects, outcome) = wipe(&mut cluster);
        assert_eq!(outcome.code, Code::Ok);
        let order = order(&effects);
        let one = Generation::from_number(1);
        let contents = vec![Content::Filesystem { kind: "ext4".into() }];
        assert_eq!(order.wipe, Some(Wipe { generation: one, contents }));
        let text = &effects.notices[0].text;
        assert!(text.ends_with("asked by me; on it is ext4."), "{text}");
        assert!(effects.notices[0].warning);
        let Write::Drive(written) = &effects.writes[0] else { panic!() };
        assert_eq!(written.wipe.as_deref(), order.wipe.as_ref());

        let effects = done(&mut cluster, &order);
        assert!(
            effects.notices[0].text.contains("was wiped of ext4, asked by me, and is in operation")
        );
        assert_eq!(cluster.drive(DRIVE).unwrap().record.wipe, None);
    }

    #[test]
    fn a_registry_that_was_restarted_still_gives_it_and_for_that_generation_alone() {
        let mut cluster = cluster(with(ext4()));
        let (effects, _) = wipe(&mut cluster);
        let mut records = Records {
            registry: Some(cluster.registry.clone()),
            nodes: cluster.nodes().map(|node| node.record.clone()).collect(),
            drives: vec![],
            ..Records::default()
        };
        store(&mut records, effects.writes.clone());
        let (mut next, _) = lead(records, 2);
        let effects = register(&mut next, 2, registration(with(ext4()))).unwrap();
        assert!(registered(&effects).allowed[0].wipe.is_some());

        let remove = Action::RemoveDevice(target(&next));
        let (effects, _) = act(&mut next, remove);
        assert_eq!(order(&effects).wipe, None);
        assert_eq!(next.drive(DRIVE).unwrap().record.wipe, None);
        // Whatever else may raise a generation takes the permission with it.
        let record = &cluster.drive(DRIVE).unwrap().record;
        let later = DriveRecord { generation: record.generation.next(), ..record.clone() };
        assert_eq!(permitted(&later), None);
        for state in [State::Unknown, State::Attached, State::Closing, State::Detached] {
            assert_eq!(permitted(&DriveRecord { state, ..record.clone() }), None, "{state}");
        }
    }

    #[test]
    fn a_record_from_before_has_no_permission() {
        let cluster = cluster(with(ext4()));
        let record = &cluster.drive(DRIVE).unwrap().record;
        let text = serde_json::to_string(record).unwrap();
        assert!(!text.contains("wipe"), "{text}");
        assert_eq!(serde_json::from_str::<DriveRecord>(&text).unwrap(), *record);
    }

    #[test]
    fn a_drive_in_operation_is_never_wiped() {
        let mut cluster = cluster(with(ext4()));
        let (effects, _) = wipe(&mut cluster);
        let attach = order(&effects);
        for state in [State::Attaching, State::Attached, State::Closing] {
            assert_eq!(cluster.drive(DRIVE).unwrap().record.state, state);
            let (effects, outcome) = wipe(&mut cluster);
            refused_for(&effects, &outcome, &Reason::InOperation { state });
            if state == State::Attaching {
                done(&mut cluster, &attach);
            } else {
                let remove = Action::RemoveDevice(target(&cluster));
                act(&mut cluster, remove);
            }
        }
    }

    #[test]
    fn what_a_wipe_does_not_cure_is_named_and_nothing_changes() {
        let mounted = Denied::Mounted { at: vec!["/mnt".into()] };
        let mut cluster = cluster(with([vec![mounted.clone()], ext4()].concat()));
        let (effects, outcome) = wipe(&mut cluster);
        refused_for(&effects, &outcome, &Reason::Denied(mounted));
        // A twin beside it: nobody can tell which of the two is meant.
        report(
            &mut cluster,
            vec![with(ext4()), Observed { path: "/dev/sdy".into(), ..with(ext4()) }],
        );
        let (_, outcome) = wipe(&mut cluster);
        assert!(matches!(outcome.reasons[0], Reason::Denied(Denied::IdentityConflict { .. })));
    }

    #[test]
    fn another_drive_or_another_state_is_refused() {
        let mut cluster = cluster(with(ext4()));
        let before = wipe_as(&cluster, "S1");
        for serial in ["S2", "", "s1", "S1 "] {
            let action = wipe_as(&cluster, serial);
            let (effects, outcome) = act(&mut cluster, action);
            assert_eq!(outcome.code, Code::Argument, "{serial:?}");
            assert_eq!(outcome.reasons, [Reason::OtherSerial { has_serial: true }]);
            assert!(effects.writes.is_empty() && effects.orders.is_empty());
        }
        report(&mut cluster, vec![with(vec![Denied::Filesystem { kind: "xfs".into() }])]);
        let now = cluster.state_hash(DRIVE).unwrap();
        let (effects, outcome) = act(&mut cluster, before);
        refused_for(&effects, &outcome, &Reason::ChangedSince { now });
        report(&mut cluster, vec![]);
        let (effects, outcome) = wipe(&mut cluster);
        refused_for(&effects, &outcome, &Reason::ContentsUnknown);
        report(&mut cluster, vec![with(ext4())]);
        cluster.apply(Event::SessionClosed(A), 0).unwrap();
        let (effects, outcome) = wipe(&mut cluster);
        refused_for(&effects, &outcome, &Reason::ContentsUnknown);
    }

    #[test]
    fn a_drive_without_a_serial_number_goes_by_its_name() {
        let mut nameless = with(ext4());
        nameless.evidence.serial = None;
        nameless.evidence.wwn = Some("5000".into());
        let mut cluster = cluster(nameless);
        let (_, outcome) = wipe(&mut cluster);
        assert_eq!(outcome.reasons, [Reason::OtherSerial { has_serial: false }]);
        let named = wipe_as(&cluster, &target(&cluster).device);
        assert_eq!(act(&mut cluster, named).1.code, Code::Ok);
    }

    #[test]
    fn of_an_empty_drive_and_of_one_of_ours_nothing_is_wiped() {
        let label = LabelSeen {
            cluster: ClusterId::from_bits(1),
            drive: DRIVE,
            node: NodeId::from_bits(7),
            generation: Generation::ZERO,
            in_operation: false,
            sequence: 1,
        };
        for label in [None, Some(label)] {
            let mut cluster = cluster(with(vec![]));
            report(&mut cluster, vec![Observed { label, ..with(vec![]) }]);
            let (effects, outcome) = wipe(&mut cluster);
            assert_eq!((outcome.code, order(&effects).wipe), (Code::Ok, None));
            assert!(!effects.notices[0].warning);
        }
        let mut ours = cluster(with(vec![]));
        report(&mut ours, vec![Observed { label: Some(label), ..with(ext4()) }]);
        let (effects, outcome) = wipe(&mut ours);
        refused_for(&effects, &outcome, &Reason::OwnLabel);
    }

    #[test]
    fn a_dry_run_answers_the_same_and_changes_nothing() {
        let mut cluster = cluster(with(ext4()));
        let before = cluster.clone();
        for serial in ["S1", "S2"] {
            let asked = |cluster: &Cluster, dry_run| Event::Act {
                actions: vec![wipe_as(cluster, serial)],
                asked_by: "me".into(),
                dry_run,
            };
            let dry = cluster.apply(asked(&cluster, true), 0).unwrap();
            assert_eq!(cluster, before);
            let mut copy = cluster.clone();
            let real = copy.apply(asked(&cluster, false), 0).unwrap();
            assert_eq!(dry.reply, real.reply);
        }
    }
}

//! The actor, step by step, with the test as its writer: which callers share a batch, and when a batch goes. No thread
//! and no clock is in it, so that what is seen does not depend on the machine.

use hotbay_core::cluster::{FreshIds, Records, VolumeRequest};
use hotbay_core::cms::{Action, Target};
use hotbay_core::device::{DeviceKind, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, Incarnation, MachineId, NodeId, TermId, VolumeId};
use hotbay_core::message::{RecordHealth, Registration};
use std::sync::mpsc as blocking;

use tokio::sync::oneshot;

use super::super::writer::ToWriter;
use super::*;

const DRIVES: u128 = 8;

struct Played {
    actor: Actor,
    batches: blocking::Receiver<ToWriter>,
}

type Answer = oneshot::Receiver<Result<Reply, CallError>>;

impl Played {
    /// An actor with one node and its drives, and nothing on its way.
    fn new() -> Self {
        let (cluster, term) = (ClusterId::from_bits(1), TermId::from_bits(2));
        let surroundings = Surroundings {
            cluster,
            term,
            wall_ms: || 0,
            checkpoint: |_| {},
            auto_add: Default::default(),
        };
        let (cluster, _) = Cluster::lead(Rules::default(), Records::default(), cluster, term);
        let (writer, batches) = blocking::channel();
        let shown = Shown {
            changed: watch::Sender::new(0),
            health: watch::Sender::new(StoreHealth::Good),
            events: EventLog::new(),
            stats: Arc::new(Stats::new()),
        };
        let writer = (Writer(writer), false);
        let actor = Actor::new(cluster, Mandate::without_end(), surroundings, writer, shown);
        let mut this = Self { actor, batches };
        let session = SessionNumber::from_number(1);
        let (registration, fresh) = registration();
        let mut registered =
            this.ask(Event::Register { session, certificate: None, registration, fresh });
        this.commit();
        this.waited();
        registered.try_recv().unwrap().unwrap();
        this
    }

    fn ask(&mut self, event: Event) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.actor.command(Command::Apply { event: Box::new(event), report: None, reply });
        self.actor.hand_over();
        answer
    }

    fn add(&mut self, drive: usize) -> Answer {
        let target = Target { host: None, device: format!("serial-{drive}") };
        let actions = vec![Action::AddDevice(target)];
        self.ask(Event::Act { actions, asked_by: String::new(), dry_run: false })
    }

    /// A volume that nobody knows is to be deleted.
    fn delete_nothing(&mut self) -> Answer {
        let request = VolumeRequest::Delete { volume: VolumeId::from_bits(7) };
        self.ask(Event::Volume { request, asked_by: String::new() })
    }

    /// Takes the batch that the actor has handed over and makes it durable; says how many callers it had.
    fn commit(&mut self) -> usize {
        let Batch { number, callers, .. } = self.handed_over().expect("a batch was handed over");
        self.actor.written(Written::Durable { number, callers });
        self.actor.hand_over();
        callers
    }

    fn waited(&mut self) {
        self.actor.written(Written::Waited);
        self.actor.hand_over();
    }

    fn handed_over(&self) -> Option<Batch> {
        match self.batches.try_recv().ok()? {
            ToWriter::Batch(batch) => Some(batch),
            other => panic!("{other:?}"),
        }
    }
}

fn registration() -> (Registration, FreshIds) {
    let device = |drive: u128| Observed {
        evidence: Evidence { serial: Some(format!("serial-{drive}")), ..Evidence::default() },
        path: format!("/dev/drive{drive}"),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: Vec::new(),
    };
    let drives = (0..DRIVES).map(|drive| DriveId::from_bits(100 + drive)).collect();
    let registration = Registration {
        node: None,
        name: "node-1".parse().unwrap(),
        machine: MachineId::from_bits(3),
        incarnation: Incarnation::from_bits(4),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Absent,
        drives: Vec::new(),
        devices: (0..DRIVES).map(device).collect(),
        conditions: vec![],
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    };
    (registration, FreshIds { node: NodeId::from_bits(5), drives })
}

/// One caller is being written, three queue. When the first is answered the three wait for it, and all four go
/// together; each is answered only when that batch is durable.
#[test]
fn callers_that_were_just_answered_come_into_the_next_batch() {
    let mut played = Played::new();
    let mut first = played.add(0);
    let mut queued: Vec<_> = (1..4).map(|drive| played.add(drive)).collect();
    assert!(first.try_recv().is_err(), "answered before it was durable");
    assert_eq!(played.commit(), 1);
    assert!(first.try_recv().unwrap().is_ok());
    assert!(played.handed_over().is_none(), "went without the caller that was just answered");
    queued.push(played.add(4));
    assert!(queued.iter_mut().all(|answer| answer.try_recv().is_err()));
    assert_eq!(played.commit(), 4);
    assert!(queued.iter_mut().all(|answer| answer.try_recv().unwrap().is_ok()));
}

#[test]
fn callers_that_do_not_come_back_are_not_waited_for_longer() {
    let mut played = Played::new();
    drop(played.add(0));
    drop((played.add(1), played.add(2)));
    assert_eq!(played.commit(), 1);
    assert!(played.handed_over().is_none());
    played.waited();
    assert_eq!(played.commit(), 2, "the time is over: it goes as it is");
    // And when the time is over before anyone asks, whoever asks first goes at once.
    played.waited();
    drop(played.add(3));
    assert_eq!(played.commit(), 1);
}

/// The usual case by day: one client, one action after the other. Nothing holds it up, whether it is quick or slow.
#[test]
fn one_who_is_alone_never_waits() {
    let mut played = Played::new();
    for drive in 0..DRIVES {
        drop(played.add(usize::try_from(drive).unwrap()));
        assert_eq!(played.commit(), 1);
        if drive.is_multiple_of(2) {
            played.waited();
        }
    }
}

/// A leader that was stopped in the middle of a write hears that it is durable only after its lead is over.
#[test]
fn nothing_leaves_after_the_lead_is_over() {
    let mut played = Played::new();
    let mut asked = played.add(0);
    played.actor.mandate.end();
    assert_eq!(played.commit(), 1);
    let heard = asked.try_recv();
    assert_eq!(heard.map(|_| ()), Err(oneshot::error::TryRecvError::Closed), "it spoke");
}

/// One that stalled has requests in its socket when it goes on. That a volume is not there would be taken for its
/// deletion, and the next leader may have made it.
#[test]
fn even_a_refusal_is_not_said_after_the_lead_is_over() {
    let mut played = Played::new();
    played.actor.mandate.end();
    let heard = played.delete_nothing().try_recv();
    assert_eq!(heard.map(|_| ()), Err(oneshot::error::TryRecvError::Closed), "it spoke");
}

/// The volume may have been there a moment ago, and its deletion be on its way to the store.
#[test]
fn that_there_is_no_volume_waits_for_what_it_was_computed_from() {
    let mut played = Played::new();
    assert!(matches!(played.delete_nothing().try_recv(), Ok(Err(CallError::Refused(_)))));
    drop(played.add(0));
    let mut answer = played.delete_nothing();
    assert!(answer.try_recv().is_err(), "answered before it was durable");
    played.commit();
    assert!(matches!(answer.try_recv(), Ok(Err(CallError::Refused(_)))));
}

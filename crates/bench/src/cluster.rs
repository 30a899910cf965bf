//! A cluster of any size in memory: nodes that are registered, and drives in operation.

use hotbay_core::cluster::{Cluster, Effects, Event, FreshIds, Records, Reply};
use hotbay_core::cms::Action;
use hotbay_core::device::{Details, DeviceKind, Media, Observed, Transport};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, Incarnation, MachineId, NodeId, SessionNumber, TermId};
use hotbay_core::label::change::{Basis, LabelTold};
use hotbay_core::message::{Answer, AnswerResult, Order, RecordHealth, Registration};
use hotbay_core::rules::Rules;
use hotbay_core::volume::orders::{LabelAnswer, LabelOrder, LabelResult, VolumeOrder};

/// As many as a storage server has.
pub(crate) const DRIVES_PER_NODE: usize = 20;

/// The name of a node by number.
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// What a node says when it first registers.
pub(crate) fn registration(node: usize) -> Registration {
    let device = |bay: usize| Observed {
        evidence: Evidence {
            serial: Some(format!("S{node:05}X{bay:03}")),
            model: Some("ACME NV-2000".to_owned()),
            wwn: Some(format!("eui.{node:08x}{bay:08x}")),
            ..Evidence::default()
        },
        path: format!("/dev/nvme{bay}n1"),
        bay: Some(bay.to_string()),
        kind: DeviceKind::Block,
        media: Media::Nvme,
        size_bytes: 2 << 40,
        block_bytes: 4096,
        details: Box::new(Details {
            vendor: Some("ACME".to_owned()),
            firmware: Some("2.1.0".to_owned()),
            transport: Transport::Nvme,
            physical_block_bytes: 4096,
            links: vec![format!("nvme-ACME_NV-2000_S{node:05}X{bay:03}")],
            ..Details::default()
        }),
        label: None,
        denied: Vec::new(),
    };
    Registration {
        node: None,
        name: node_name(node).parse().expect("a plain name"),
        machine: MachineId::from_bits(bits(node, 0)),
        incarnation: Incarnation::from_bits(bits(node, 1)),
        cluster: None,
        newest_term: None,
        record: RecordHealth::Absent,
        drives: Vec::new(),
        devices: (0..DRIVES_PER_NODE).map(device).collect(),
        conditions: Vec::new(),
        labels: Default::default(),
        uses: vec![],
        device_mapper: false,
        program: Default::default(),
    }
}

/// Ids for what a node may make.
pub(crate) fn fresh(node: usize) -> FreshIds {
    let drive = |bay| DriveId::from_bits(bits(node, 100 + bay));
    FreshIds {
        node: NodeId::from_bits(bits(node, 2)),
        drives: (0..DRIVES_PER_NODE).map(drive).collect(),
    }
}

/// Spread like random ids, but the same in every run.
fn bits(node: usize, what: usize) -> u128 {
    let mixed = (node as u128 * 1_000 + what as u128 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    mixed ^ (mixed >> 61)
}

/// What an agent that does everything at once answers.
pub(crate) fn done(order: &Order) -> Answer {
    Answer {
        drive: order.drive,
        ordered: order.ordered,
        incarnation: order.incarnation,
        result: AnswerResult::Done,
    }
}

/// A cluster of so many nodes, all drives in operation and confirmed, with empty labels that are known.
pub(crate) fn in_operation(nodes: usize) -> (Cluster, Vec<DriveId>) {
    let (id, term) = (ClusterId::from_bits(1), TermId::from_bits(2));
    let (mut cluster, _) = Cluster::lead(Rules::default(), Records::default(), id, term);
    let mut drives = Vec::new();
    for node in 0..nodes {
        let session = SessionNumber::from_number(node as u64 + 1);
        let (registration, fresh) = (registration(node), fresh(node));
        drives.extend(fresh.drives.iter().copied());
        apply(&mut cluster, Event::Register { session, certificate: None, registration, fresh });
        let action =
            Action::AddHost { host: node_name(node), with_removed: false, returned: false };
        let effects = apply(&mut cluster, act(action));
        for (session, order) in effects.orders {
            let drive = order.drive;
            apply(&mut cluster, Event::Answer { session, answer: done(&order) });
            let basis = Basis { sequence: 1, checksum: 0 };
            let told = LabelTold { basis, extents: Vec::new(), limit_bytes: 2 << 40 };
            apply(&mut cluster, Event::LabelTold { session, drive, told });
        }
    }
    (cluster, drives)
}

/// One action.
pub(crate) fn act(action: Action) -> Event {
    Event::Act { actions: vec![action], asked_by: "bench".to_owned(), dry_run: false }
}

/// Applies an event that must be taken.
pub(crate) fn apply(cluster: &mut Cluster, event: Event) -> Effects {
    let effects = cluster.apply(event, 0).expect("nothing here is refused");
    if let Reply::Acted(outcomes) = &effects.reply {
        assert!(outcomes.iter().all(|outcome| outcome.reasons.is_empty()), "{outcomes:?}");
    }
    effects
}

/// Answers the label order that followed, as done: the label as it was told then has the next sequence.
pub(crate) fn label_done(cluster: &mut Cluster, effects: &Effects) -> Option<Effects> {
    let (session, VolumeOrder::Label(order)) = effects.volume_orders.first()? else { return None };
    let sequence = order.basis.sequence + 1;
    let result = LabelResult::Done { now: Basis { sequence, checksum: 0 } };
    let LabelOrder { drive, incarnation, basis: on, changes, .. } = order.clone();
    let answer = LabelAnswer { drive, incarnation, on, changes, result };
    Some(apply(cluster, Event::LabelAnswer { session: *session, answer }))
}

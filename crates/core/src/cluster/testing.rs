//! A registry and agents for unit tests.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cluster, Effects, Event, FreshIds, Records, Refused, Reply, VolumeRequest, Write};
use crate::agent::Agent;
use crate::cms::{Action, Outcome};
use crate::device::{DeviceKind, Media, Observed};
use crate::evidence::Evidence;
use crate::ids::{
    CertificateNumber, ClusterId, DriveId, MachineId, NodeId, SessionNumber, TermId, VolumeId,
};
use crate::label::change::{Basis, LabelTold};
use crate::message::{Registered, Registration};
use crate::rules::Rules;
use crate::volume::class::Class;
use crate::volume::orders::{LabelAnswer, LabelResult, VolumeOrder};
use crate::volume::{Size, Wish};

/// The drive of the first node that registers.
pub(crate) const DRIVE: DriveId = DriveId::from_bits(7);

pub(super) fn lead(records: Records, term: u128) -> (Cluster, Vec<Write>) {
    let (cluster, id) = (ClusterId::from_bits(1), TermId::from_bits(term));
    Cluster::lead(Rules::default(), records, cluster, id)
}

/// Applies writes to what a store holds.
pub(super) fn store(records: &mut Records, writes: Vec<Write>) {
    for write in writes {
        match write {
            Write::Registry(record) => records.registry = Some(record),
            Write::Node(record) => {
                records.nodes.retain(|known| known.id != record.id);
                records.nodes.push(record);
            }
            Write::NodeGone(id) => records.nodes.retain(|known| known.id != id),
            Write::DriveGone(id) => records.drives.retain(|known| known.id != id),
            Write::Drive(record) => {
                records.drives.retain(|known| known.id != record.id);
                records.drives.push(*record);
            }
            Write::Volume(record) => {
                records.volumes.retain(|known| known.id != record.id);
                records.volumes.push(*record);
            }
            Write::VolumeGone(id) => records.volumes.retain(|known| known.id != id),
            Write::Attachment(record) => {
                records.attachments.retain(|known| known.id != record.id);
                records.attachments.push(record);
            }
            Write::AttachmentGone(id) => records.attachments.retain(|known| known.id != id),
        }
    }
}

pub(crate) fn device(serial: &str) -> Observed {
    Observed {
        evidence: Evidence { serial: Some(serial.into()), ..Evidence::default() },
        path: "/dev/sdx".into(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 30,
        block_bytes: 512,
        details: Default::default(),
        label: None,
        denied: vec![],
    }
}

/// Registers over a session; what is new gets ids after the session's number.
pub(super) fn register(
    cluster: &mut Cluster,
    session: u64,
    registration: Registration,
) -> Result<Effects, Refused> {
    register_with(cluster, session, None, registration)
}

/// The same, with a certificate.
pub(super) fn register_with(
    cluster: &mut Cluster,
    session: u64,
    certificate: Option<CertificateNumber>,
    registration: Registration,
) -> Result<Effects, Refused> {
    let bits = DRIVE.to_bits() + u128::from(session) - 1;
    let fresh = FreshIds { node: NodeId::from_bits(bits), drives: vec![DriveId::from_bits(bits)] };
    let session = SessionNumber::from_number(session);
    cluster.apply(Event::Register { session, certificate, registration, fresh }, 0)
}

pub(super) fn registered(effects: &Effects) -> Registered {
    match &effects.reply {
        Reply::Registered(registered) => *registered.clone(),
        Reply::Nothing
        | Reply::Acted(_)
        | Reply::Adopted
        | Reply::Certify(_)
        | Reply::Volume(_) => panic!("not registered"),
    }
}

/// What an agent says when it registers under a name; each name is a machine.
pub(super) fn says(agent: &Agent, name: &str) -> Registration {
    let machine = name.bytes().fold(0, |sum, byte| sum * 256 + u128::from(byte));
    agent.registration(name.parse().unwrap(), MachineId::from_bits(machine))
}

/// Takes one action.
pub(super) fn act(cluster: &mut Cluster, action: Action) -> (Effects, Outcome) {
    let event = Event::Act { actions: vec![action], asked_by: "me".into(), dry_run: false };
    let effects = cluster.apply(event, 0).unwrap();
    let Reply::Acted(outcomes) = &effects.reply else { panic!("not acted") };
    let outcome = outcomes[0].clone();
    (effects, outcome)
}

/// Has a volume made on a drive that is in operation.
pub(super) fn volume_on(cluster: &mut Cluster, session: SessionNumber, drive: DriveId) -> VolumeId {
    let basis = Basis { sequence: 1, checksum: 0 };
    let told = LabelTold { basis, extents: vec![], limit_bytes: 1 << 30 };
    cluster.apply(Event::LabelTold { session, drive, told }, 0).unwrap();
    let volume = VolumeId::from_bits(9);
    let wish = Wish {
        name: "pvc-9".parse().unwrap(),
        size: Size::of(1 << 20).unwrap(),
        class: Class { max_shares: 1, ..Class::default() },
        parameters: BTreeMap::new(),
        nodes: BTreeSet::new(),
        preferred: vec![],
        claim: None,
    };
    let request = VolumeRequest::Create { id: volume, wish: Box::new(wish) };
    let asked = Event::Volume { request, asked_by: "me".into() };
    let effects = cluster.apply(asked, 0).unwrap();
    let [(session, VolumeOrder::Label(order))] = &effects.volume_orders[..] else {
        panic!("{effects:?}")
    };
    let result = LabelResult::Done { now: Basis { sequence: 2, checksum: 0 } };
    let (on, changes) = (order.basis, order.changes.clone());
    let answer = LabelAnswer { drive, incarnation: order.incarnation, on, changes, result };
    cluster.apply(Event::LabelAnswer { session: *session, answer }, 0).unwrap();
    volume
}

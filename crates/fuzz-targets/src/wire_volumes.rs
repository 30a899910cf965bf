//! Seeds of what registry and agent say about volumes.

use hotbay_api::convert::{FromAgent, FromRegistry};
use hotbay_core::ids::{DriveId, Incarnation, TermId, VolumeId};
use hotbay_core::label::change::{Basis, Change, LabelTold};
use hotbay_core::label::extents::{Claim, Extent, Use};
use hotbay_core::order::Term;
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::{
    Grant, LabelAnswer, LabelOrder, LabelResult, StagedAs, UseAnswer, UseOrder, UseResult,
    VolumeReport,
};

const DRIVE: DriveId = DriveId::from_bits(5);
const VOLUME: VolumeId = VolumeId::from_bits(6);
const INCARNATION: Incarnation = Incarnation::from_bits(7);
const BASIS: Basis = Basis { sequence: 4, checksum: 9 };
const TERM: Term = Term { number: 2, id: TermId::from_bits(3) };

fn told() -> LabelTold {
    let extent = Extent {
        volume: VOLUME,
        part: 0,
        start_bytes: 2 << 20,
        length_bytes: 1 << 20,
        usage: Use::Used,
        formatted: false,
        name: "db".parse().expect("a plain name"),
        claim: Some(Claim::new("shop", "data-0").expect("plain names")),
    };
    LabelTold { basis: BASIS, extents: vec![extent], limit_bytes: 1 << 30 }
}

pub(crate) fn from_agents() -> Vec<FromAgent> {
    let answer = |result| LabelAnswer {
        drive: DRIVE,
        incarnation: INCARNATION,
        on: BASIS,
        changes: vec![Change::Free { volume: VOLUME }],
        result,
    };
    let used = |result| UseAnswer {
        volume: VOLUME,
        incarnation: INCARNATION,
        epoch: Epoch::from_number(1),
        granted: true,
        result,
    };
    let staged = |access, inaccessible| VolumeReport {
        volume: VOLUME,
        epoch: Epoch::from_number(1),
        access,
        inaccessible,
    };
    let fake = StagedAs::Fake { device: Some("/dev/loop7".into()), reason: "gone".into() };
    vec![
        FromAgent::LabelTold { drive: DRIVE, told: told() },
        FromAgent::LabelAnswer(answer(LabelResult::Done { now: BASIS })),
        FromAgent::LabelAnswer(answer(LabelResult::Refused { why: "x".into(), told: told() })),
        FromAgent::UseAnswer(used(UseResult::Done)),
        FromAgent::UseAnswer(used(UseResult::Waiting { why: "mounted".into() })),
        FromAgent::VolumeReport(staged(StagedAs::Real, None)),
        FromAgent::VolumeReport(staged(fake, Some("its drive is gone".into()))),
    ]
}

pub(crate) fn from_registries() -> Vec<FromRegistry> {
    let changes = told().extents.into_iter().map(Change::Place);
    let free = Change::Free { volume: VOLUME };
    let erase = Change::Erase { volume: VOLUME, part: 0, length_bytes: 1 << 20 };
    let grant = Grant {
        epoch: Epoch::from_number(1),
        granted: false,
        read_only: true,
        ignore_if_inaccessible: false,
    };
    let (drive, term, incarnation) = (DRIVE, TERM, INCARNATION);
    vec![
        FromRegistry::LabelOrder(LabelOrder {
            drive,
            term,
            incarnation,
            basis: BASIS,
            changes: changes.chain([free, erase]).collect(),
        }),
        FromRegistry::UseOrder(UseOrder { volume: VOLUME, drive, term, incarnation, grant }),
    ]
}

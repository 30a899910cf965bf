//! What agent and registry read from their own disks at a start.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use hotbay_core::agent::{AgentRecord, DriveMemory, Identity, UseMemory};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, NodeId, TermId, VolumeId};
use hotbay_core::order::{Generation, Goal, Ordered, Stamp, Term};
use hotbay_core::volume::Epoch;
use hotbay_core::volume::orders::Grant;
use hotbay_core::wipe::{Content, Wipe};
use hotbay_node::fuzzing as node;
use hotbay_registry::fuzzing as registry;
use hotbay_registry::store::embedded::make_empty;
use hotbay_registry::store::file::STORE_NAME;
use hotbay_registry::store::medium::Medium;
use hotbay_registry::{Key, Kind, RedbStore, Store, Write};
use redb::StorageBackend;

use crate::assert_plain;
use crate::bytes::Bytes;

/// No store grows beyond this here.
const LONGEST_FILE: u64 = 64 << 20;

/// The agent's record, as a file and, so that the checksum does not hide the rest, as what it guards.
pub(crate) fn agent_record(data: &[u8]) {
    for file in [data.to_vec(), node::sealed(data)] {
        match node::read_record(&file) {
            Err(why) => assert_plain(why),
            Ok(record) => {
                let again = node::record_file(&record);
                assert_eq!(node::read_record(&again), Ok(record));
            }
        }
    }
}

pub(crate) fn agent_record_seeds() -> Vec<Vec<u8>> {
    let term = Term { number: 2, id: TermId::from_bits(3) };
    let stamp = Stamp { term, generation: Generation::from_number(4) };
    let ordered = Ordered { goal: Goal::Attach, stamp };
    let memory = DriveMemory {
        seen: ordered,
        in_force: Some(ordered),
        evidence: Evidence { serial: Some("S1".to_owned()), ..Evidence::default() },
        take_over: false,
        wipe: Some(Wipe { generation: stamp.generation, contents: vec![Content::Nameless] }),
        wiped: Some(Generation::from_number(3)),
        given_up: true,
    };
    let grant = Grant {
        epoch: Epoch::from_number(7),
        granted: true,
        read_only: false,
        ignore_if_inaccessible: true,
    };
    let granted = UseMemory { drive: DriveId::from_bits(5), grant };
    let record = AgentRecord {
        identity: Some(Identity { cluster: ClusterId::from_bits(1), node: NodeId::from_bits(2) }),
        term: Some(term),
        drives: [(DriveId::from_bits(5), memory)].into(),
        volumes: [(VolumeId::from_bits(6), granted)].into(),
    };
    [AgentRecord::default(), record]
        .iter()
        .flat_map(|record| {
            let file = node::record_file(record);
            let json = file.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            [file[json..].to_vec(), file]
        })
        .collect()
}

/// One record of the registry's store.
pub(crate) fn registry_record(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let kind = Kind::ALL[usize::from(bytes.pick(5))];
    let key = Key { kind, id: 5 };
    let value = bytes.rest();
    match registry::written_again(key, value) {
        Err(why) => assert_plain(why),
        Ok(again) => assert_eq!(registry::written_again(key, &again), Ok(again)),
    }
}

pub(crate) fn record_seeds() -> Vec<Vec<u8>> {
    let id = format!("{:032x}", 5);
    let drive = format!(
        r#"{{"id":"{id}","name":"d-1","node":"{id}","observed":{{"evidence":{{"serial":"S"}},"path":"/dev/a",
        "kind":"Block","media":"NVMe","sizeBytes":1,"blockBytes":512,"denied":[{{"reason":"ReadOnly"}}]}},
        "generation":1,"state":"Attached","removal_wanted":false,"removed_alone":false,
        "volumes":[{{"volume":"{id}","at":{{"parts":[{{"start_bytes":2097152,"length_bytes":1048576}}]}}}}],
        "since_ms":0,"asked_by":"me"}}"#
    );
    let node = format!(r#"{{"id":"{id}","name":"node-a","machine":"{id}"}}"#);
    let own = format!(r#"{{"cluster":"{id}","terms":[{{"number":1,"id":"{id}"}}]}}"#);
    let volume = format!(
        r#"{{"id":"{id}","name":"db","size_bytes":1048576,"state":"Created","epoch":2,"class":{{"sharing":"Shared",
        "spread":"Required","spreadKey":"db","erase":"Zeroes","maxShares":1}},
        "parameters":{{"spread":"required"}},"since_ms":0,"asked_by":"me"}}"#
    );
    let attachment = format!(
        r#"{{"id":"{id}","volume":"{id}","node":"{id}","epoch":2,"state":"Attached","since_ms":0}}"#
    );
    [(0, own), (1, node), (2, drive), (3, volume), (4, attachment)]
        .map(|(kind, json)| [&[kind][..], json.as_bytes()].concat())
        .into()
}

/// The bytes of a store's file, or changes to a good one. Whatever is taken must read the same a second time.
pub(crate) fn store_file(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let file = if bytes.flag() { bytes.rest().to_vec() } else { changed(good_store(), bytes) };
    let first = match read_store(&file) {
        Err(why) => return assert_plain(why),
        Ok(first) => first,
    };
    assert_eq!(read_store(&file), Ok(first), "the same file reads differently");
}

/// Offset, length and bytes, again and again.
fn changed(mut file: Vec<u8>, mut bytes: Bytes<'_>) -> Vec<u8> {
    while !bytes.is_empty() && !file.is_empty() {
        let at = usize::try_from(bytes.number() & 0xff_ffff).unwrap_or_default() % file.len();
        match bytes.pick(16) {
            0 => file.truncate(at),
            length => {
                let with = bytes.take(usize::from(length));
                let room = with.len().min(file.len() - at);
                file[at..at + room].copy_from_slice(&with[..room]);
            }
        }
    }
    file
}

fn read_store(file: &[u8]) -> Result<Vec<(Key, Vec<u8>)>, String> {
    let told = |error: hotbay_registry::StoreError| error.to_string();
    // redb stops on some damage by a panic, which the store turns into a refusal; a fuzzer's hook would end it there.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let opened = RedbStore::over(Memory(Arc::new(Mutex::new(file.to_vec()))));
    std::panic::set_hook(hook);
    opened.map_err(told)?.load().map_err(told)
}

/// A file in memory. The bytes stay when redb has let go of them.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for Memory {
    type Backend = Self;

    fn path(&self) -> &Path {
        Path::new(STORE_NAME)
    }

    fn open(&mut self) -> io::Result<Self> {
        Ok(self.clone())
    }

    fn forget_unwritten(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes();
        let from = usize::try_from(offset).ok().and_then(|at| bytes.get(at..));
        let found = from.and_then(|from| from.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > LONGEST_FILE {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes().resize(usize::try_from(len).map_err(io::Error::other)?, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes();
        let from = usize::try_from(offset).ok().and_then(|at| bytes.get_mut(at..));
        let place = from.and_then(|from| from.get_mut(..data.len()));
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(data);
        Ok(())
    }
}

/// A store with some records, written and closed.
fn good_store() -> Vec<u8> {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    let make = || {
        let memory = Memory::default();
        make_empty(Path::new(STORE_NAME), memory.clone()).expect("memory takes everything");
        let mut store = RedbStore::over(memory.clone()).expect("it was just made");
        for id in 0..40 {
            let key = Key { kind: Kind::Drive, id };
            let put = Write::Put { key, value: format!("{{\"id\":{id}}}").into_bytes() };
            store.commit(&[put]).expect("memory takes everything");
        }
        drop(store);
        memory.bytes().clone()
    };
    MADE.get_or_init(make).clone()
}

pub(crate) fn store_file_seeds() -> Vec<Vec<u8>> {
    let change = |at: u64, with: &[u8]| {
        let length = u8::try_from(with.len()).unwrap_or(u8::MAX);
        [&[0][..], &at.to_le_bytes(), &[length], with].concat()
    };
    vec![vec![0], vec![1], change(9, &[0]), change(64, &[1, 2, 3]), change(5_000, b"changed")]
}

//! The store on Kubernetes: each record is a custom resource, and the API server's etcd makes it durable.
//!
//! The registry's actor is the only caller, through the trait [`Store`]. Objects are written at the same time, in the
//! order that the registry keeps; every write names the version that it replaces.
//! `docs/design/0010-kubernetes-store.md` says why it is so.
//!
//! ```text
//!  begin, commit ── write (one object, until durable) ── api ──▶ API server
//!  load, read ───── list (each kind at one moment) ───── api ──▶
//! ```

mod asked;
pub(crate) mod beside;
pub(crate) mod entry;
pub(crate) mod list;
pub(crate) mod objects;
mod origin;
mod runner;
pub(crate) mod write;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use hotbay_core::order::Term;
use hotbay_registry::store::{Origin, WhenEnded, refuse_too_long};
use hotbay_registry::{Key, Kind, Store, StoreError, Write};
use serde_json::Value;

use self::beside::Beside;
use self::entry::Entry;
use self::list::{Found, Held};
pub use self::objects::Objects;
use self::runner::Runner;
use self::write::{Outcome, Target, Wanted, Writing};
use crate::client::Client;
use crate::names::candidates;
use crate::object;
use crate::resource::Resource;
use crate::view::{self, FORMAT_VERSION, Names, Record};

/// The longest record. etcd takes 1.5 MiB in one request, and the public part of the status may be as long again.
pub const VALUE_MAX_BYTES: usize = 512 << 10;

/// Keeps records as custom resources.
pub struct CustomResourceStore {
    api: Client,
    /// The objects, as far as they were read or written.
    objects: Objects,
    names: Names,
    /// The kinds whose objects are known, before all of them are.
    looked_up: BTreeSet<Kind>,
    /// Called at every step that the end of this process could fall between; tests stop there.
    checkpoint: fn(&'static str),
    /// Let go last: the client lives on it.
    runner: Runner,
}

impl CustomResourceStore {
    /// A store over a client, which is made by `connect` on the runtime that it will be used on. Nothing is asked of
    /// the server yet.
    pub fn new<E>(connect: impl FnOnce() -> Result<Client, E>) -> Result<Self, StoreError>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let unreachable = |source: Box<dyn std::error::Error + Send + Sync>| {
            let object = "the Kubernetes API server".to_owned();
            StoreError::Unreachable { action: "reach", object, source }
        };
        let runner = Runner::start().map_err(|error| unreachable(error.into()))?;
        let client = {
            let _on_it = runner.enter();
            connect().map_err(|error| unreachable(error.into()))?
        };
        let (objects, names) = (Objects::default(), Names::default());
        let (looked_up, checkpoint) = (BTreeSet::new(), |_: &'static str| {});
        Ok(Self { api: client, objects, names, looked_up, checkpoint, runner })
    }

    /// The same store, which passes `checkpoint` between the calls of a commit.
    pub fn with_checkpoint(self, checkpoint: fn(&'static str)) -> Self {
        Self { checkpoint, ..self }
    }

    /// What it knows of the objects, for those who watch them.
    pub fn objects(&self) -> Objects {
        self.objects.clone()
    }

    /// What the records are about is learnt again with each load.
    fn load_all(&mut self) -> Result<Loaded, StoreError> {
        let loaded = self.load_kinds(Resource::ALL)?;
        self.names = Names::default();
        for (key, (_, value)) in &loaded.records {
            self.names.learn(&Write::Put { key: *key, value: value.clone() });
        }
        Ok(loaded)
    }

    fn load_kinds(
        &self,
        resources: impl IntoIterator<Item = Resource>,
    ) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        for resource in resources {
            for found in self.list(resource)? {
                loaded.add(resource, found)?;
            }
        }
        Ok(loaded)
    }

    fn list(&self, resource: Resource) -> Result<Vec<Found>, StoreError> {
        let (api, ours) = (self.api.clone(), self.objects.term());
        self.runner.run(async move { list::list(&api, resource, ours).await })
    }

    /// What a write asks of the server.
    fn wanted(&self, write: &Write, beside: &Beside) -> Result<Wanted, StoreError> {
        let (key, ours) = (write.key(), self.objects.term());
        let Write::Put { value, .. } = write else {
            return Ok(Wanted { key, to: Target::Gone, ours });
        };
        let stored = stored(key, value)?;
        let record = Record::read(key.kind, value);
        let mut view = view::view(record.as_ref(), &self.names);
        beside.show(&mut view);
        let observed = beside.noticed.as_ref().map(|noticed| noticed.observed);
        let (status, checksum) = object::status(key, ours, &stored, view);
        let wanted = self.names.wanted(record.as_ref());
        let names = candidates(Resource::of(key.kind), key.id, wanted.as_deref());
        let spec = view::spec(key.kind, record.as_ref(), &self.names);
        let travels = record.as_ref().is_some_and(Record::is_passing);
        let to = Target::Status { status, checksum, observed, names, spec, travels };
        Ok(Wanted { key, to, ours })
    }

    /// Learns what has to be known before anything is written.
    fn prepare(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        refuse_too_long(writes, VALUE_MAX_BYTES)?;
        if !self.objects.is_loaded() {
            self.look_up(writes)?;
        }
        for write in writes {
            self.names.learn(write);
            if let Write::Put { key: Key { kind: Kind::Registry, .. }, value } = write {
                let term = Record::read(Kind::Registry, value).and_then(|record| record.term());
                self.objects.lead(term);
            }
        }
        Ok(())
    }

    /// What is written before everything is loaded, as a new term is: only of these kinds the objects must be known.
    fn look_up(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        for kind in writes.iter().map(|write| write.key().kind) {
            if self.looked_up.contains(&kind) {
                continue;
            }
            let loaded = self.load_kinds([Resource::of(kind)])?;
            loaded.known.into_iter().for_each(|(key, entry)| self.objects.set(key, Some(entry)));
            self.looked_up.insert(kind);
        }
        Ok(())
    }

    /// Writes one record; what is to be written is made only now.
    fn write(
        &self,
        write: &Write,
    ) -> Result<impl Future<Output = Result<(), StoreError>> + 'static, StoreError> {
        let beside = self.objects.beside(write.key());
        let wanted = self.wanted(write, &beside)?;
        let (entry, newest) = (self.objects.get(wanted.key), self.objects.newest());
        let (objects, checkpoint) = (self.objects.clone(), self.checkpoint);
        let writing = Writing::new(self.api.clone(), wanted, entry, newest, checkpoint);
        Ok(async move {
            let Outcome { key, entry, result } = writing.run().await;
            objects.end_write(key, entry, result.is_ok().then_some(&beside));
            result.inspect(|()| checkpoint("object-written"))
        })
    }
}

impl Store for CustomResourceStore {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        let loaded = self.load_all()?;
        self.objects.load(loaded.known, loaded.beside);
        Ok(loaded.records.into_iter().map(|(key, (_, value))| (key, value)).collect())
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        writes.iter().try_for_each(refuse_unfit)?;
        self.prepare(writes)?;
        writes.iter().try_for_each(|write| self.runner.run(self.write(write)?))
    }

    fn begin(&mut self, write: Write, ended: WhenEnded) {
        match self.prepare(std::slice::from_ref(&write)).and_then(|()| self.write(&write)) {
            Ok(writing) => self.runner.spawn(async move { ended(writing.await) }),
            Err(error) => ended(Err(error)),
        }
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let mut loaded = self.load_kinds([Resource::of(key.kind)])?;
        Ok(loaded.records.remove(key).map(|(_, value)| value))
    }

    fn origin(&mut self) -> Result<Origin, StoreError> {
        let api = self.api.clone();
        let cluster = self.runner.run(async move { origin::cluster(&api).await })?;
        let loaded = self.load_kinds(Resource::ALL)?;
        let terms = loaded.records.into_values().filter_map(|(term, _)| term);
        let newest_term = terms.max_by_key(|term| term.number);
        Ok(Origin { cluster: Some(cluster), newest_term })
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl fmt::Debug for CustomResourceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomResourceStore")
            .field("objects", &self.objects.len())
            .field("term", &self.objects.term())
            .finish_non_exhaustive()
    }
}

/// A record as it stands in an object; refused if the server would not give it back as it is.
fn stored(key: Key, value: &[u8]) -> Result<Value, StoreError> {
    let unfit = |what: String| StoreError::Unfit { key, what };
    let stored: Value = serde_json::from_slice(value)
        .ok()
        .filter(Value::is_object)
        .ok_or_else(|| unfit("it is no JSON object".to_owned()))?;
    if let Some(what) = object::unfit(&stored) {
        return Err(unfit(what));
    }
    if key.kind == Kind::Registry && key.id != 0 {
        return Err(unfit("there is one registry".to_owned()));
    }
    Ok(stored)
}

fn refuse_unfit(write: &Write) -> Result<(), StoreError> {
    match write {
        Write::Put { key, value } => stored(*key, value).map(drop),
        Write::Delete { .. } => Ok(()),
    }
}

/// What the objects hold.
#[derive(Default)]
struct Loaded {
    known: HashMap<Key, Entry>,
    beside: HashMap<Key, Beside>,
    records: BTreeMap<Key, (Option<Term>, Vec<u8>)>,
}

impl Loaded {
    fn add(&mut self, resource: Resource, found: Found) -> Result<(), StoreError> {
        let Found { entry, held, beside, format } = found;
        let name = format!("{}/{}", resource.plural(), entry.name);
        if let Some(found) = format.filter(|found| *found > FORMAT_VERSION) {
            let (object, reads) = (name, FORMAT_VERSION);
            return Err(StoreError::NewerFormat { object, found, reads });
        }
        let (key, term, value) = match held {
            Held::Record { key, term, value } => (key, term, value),
            Held::Nothing => return Ok(()),
            // Without it nobody knows which cluster this is.
            Held::Edited if resource == Resource::Registry => {
                return Err(StoreError::Edited { object: name });
            }
            Held::Edited => {
                tracing::warn!(
                    object = name,
                    "its status was changed by hand and is left out; what it stood for is learnt again from its drive"
                );
                return Ok(());
            }
        };
        let newer = |(other, _): &(Option<Term>, Vec<u8>)| {
            term.map(|term| term.number) > other.map(|other| other.number)
        };
        if self.records.get(&key).is_none_or(newer) {
            self.records.insert(key, (term, value));
            self.known.insert(key, entry);
            // Of another object with the same record, if there was one.
            self.beside.remove(&key);
            self.beside
                .extend(Some(beside).filter(|told| !told.is_empty()).map(|told| (key, told)));
        } else {
            tracing::warn!(
                object = name,
                "another object has the same record; this one is left alone"
            );
        }
        Ok(())
    }
}

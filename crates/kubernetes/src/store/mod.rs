//! The store on Kubernetes: each record is a custom resource, and the API server's etcd makes it durable.
//!
//! The registry's actor is the only caller, through the trait [`Store`]. Objects are written at the same time, the
//! records of one action one after the other; every write names the version that it replaces.
//! `docs/design/kubernetes-store.md` says why it is so.
//!
//! ```text
//!  commit_actions ── order (what waits for what) ── write (one object, until durable) ── api ──▶ API server
//!  load ──────────── list (each kind at one moment)                                       └──▶
//! ```

mod entry;
mod list;
mod order;
mod runner;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use hotbay_core::order::Term;
use hotbay_registry::store::refuse_too_long;
use hotbay_registry::{Key, Kind, Store, StoreError, Write};
use kube_client::Client;
use serde_json::Value;
use tokio::task::JoinSet;

use self::entry::Entry;
use self::list::{Found, Held};
use self::runner::Runner;
use self::write::{Outcome, Target, Wanted, Writing};
use crate::api::Api;
use crate::names::candidates;
use crate::object;
use crate::resource::Resource;
use crate::view::{self, Names, Record};

/// The longest record. etcd takes 1.5 MiB in one request, and the public part of the status may be as long again.
pub const VALUE_MAX_BYTES: usize = 512 << 10;

/// Objects that are written at the same time.
const WRITES_IN_FLIGHT: usize = 32;

/// Keeps records as custom resources.
pub struct CustomResourceStore {
    api: Api,
    /// The objects, as far as they were read or written; none before the first load.
    known: Option<HashMap<Key, Entry>>,
    names: Names,
    /// The term that the registry's record was last written with, by this store.
    term: Option<Term>,
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
        Ok(Self { api: Api::new(client), known: None, names: Names::default(), term: None, runner })
    }

    /// What the records are about is learnt again with each load.
    fn load_all(&mut self) -> Result<Loaded, StoreError> {
        let mut loaded = Loaded::default();
        for resource in Resource::ALL {
            for found in self.list(resource)? {
                loaded.add(resource, found)?;
            }
        }
        self.names = Names::default();
        for (key, (_, value)) in &loaded.records {
            self.names.learn(&Write::Put { key: *key, value: value.clone() });
        }
        Ok(loaded)
    }

    fn list(&self, resource: Resource) -> Result<Vec<Found>, StoreError> {
        let (api, ours) = (self.api.clone(), self.term);
        self.runner.run(async move { list::list(&api, resource, ours).await })
    }

    /// What a write asks of the server.
    fn wanted(&self, write: &Write) -> Result<Wanted, StoreError> {
        let (key, ours) = (write.key(), self.term);
        let Write::Put { value, .. } = write else {
            return Ok(Wanted { key, to: Target::Gone, ours });
        };
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
        let record = Record::read(key.kind, value);
        let view = view::view(record.as_ref(), &self.names);
        let (status, checksum) = object::status(key, ours, &stored, view);
        let wanted = self.names.wanted(record.as_ref());
        let names = candidates(Resource::of(key.kind), key.id, wanted.as_deref());
        let spec = view::spec(key.kind, record.as_ref(), &self.names);
        Ok(Wanted { key, to: Target::Status { status, checksum, names, spec }, ours })
    }

    /// Everything that can be refused is, before anything is written.
    fn prepare(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        refuse_too_long(writes, VALUE_MAX_BYTES)?;
        if self.known.is_none() {
            self.known = Some(self.load_all()?.known);
        }
        for write in writes {
            self.names.learn(write);
            if let Write::Put { key: Key { kind: Kind::Registry, .. }, value } = write {
                let term = Record::read(Kind::Registry, value).and_then(|record| record.term());
                self.lead(term);
            }
        }
        Ok(())
    }

    /// From now on it writes under this term.
    fn lead(&mut self, term: Option<Term>) {
        if self.term == term {
            return;
        }
        self.term = term;
        for entry in self.known.iter_mut().flat_map(HashMap::values_mut) {
            entry.ours = false;
        }
    }
}

impl Store for CustomResourceStore {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        let loaded = self.load_all()?;
        self.known = Some(loaded.known);
        Ok(loaded.records.into_iter().map(|(key, (_, value))| (key, value)).collect())
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.commit_actions(writes, &[writes.len()])
    }

    fn commit_actions(&mut self, writes: &[Write], ends: &[usize]) -> Result<(), StoreError> {
        self.prepare(writes)?;
        let steps = order::steps(writes, ends);
        let mut todo = Vec::new();
        for step in steps {
            todo.push(Todo { wanted: Some(self.wanted(step.write)?), after: step.after });
        }
        let (api, known) = (self.api.clone(), self.known.take().unwrap_or_default());
        let (known, result) = self.runner.run(write_all(api, known, todo));
        self.known = Some(known);
        result
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        let mut loaded = Loaded::default();
        let resource = Resource::of(key.kind);
        for found in self.list(resource)? {
            loaded.add(resource, found)?;
        }
        Ok(loaded.records.remove(key).map(|(_, value)| value))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

impl fmt::Debug for CustomResourceStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomResourceStore")
            .field("objects", &self.known.as_ref().map(HashMap::len))
            .field("term", &self.term)
            .finish_non_exhaustive()
    }
}

/// A write with those that it waits for.
struct Todo {
    /// Taken when it begins.
    wanted: Option<Wanted>,
    after: Vec<usize>,
}

/// Makes the writes, as many at the same time as may be. After the first failure no more are begun.
async fn write_all(
    api: Api,
    mut known: HashMap<Key, Entry>,
    mut todo: Vec<Todo>,
) -> (HashMap<Key, Entry>, Result<(), StoreError>) {
    let mut done = vec![false; todo.len()];
    let mut in_flight = JoinSet::new();
    let mut result = Ok(());
    loop {
        if result.is_ok() {
            for (at, next) in todo.iter_mut().enumerate() {
                if in_flight.len() >= WRITES_IN_FLIGHT {
                    break;
                }
                if next.after.iter().all(|before| done[*before])
                    && let Some(wanted) = next.wanted.take()
                {
                    let entry = known.get(&wanted.key).cloned();
                    let writing = Writing::new(api.clone(), wanted, entry);
                    in_flight.spawn(async move { (at, writing.run().await) });
                }
            }
        }
        let Some(ended) = in_flight.join_next().await else { return (known, result) };
        let (at, Outcome { key, entry, result: ended }) =
            ended.expect("a write neither panics nor is cancelled");
        match entry {
            Some(entry) => drop(known.insert(key, entry)),
            None => drop(known.remove(&key)),
        }
        match ended {
            Ok(()) => done[at] = true,
            // One that says that the lead is lost counts more than one that can be tried again.
            Err(error) if result.is_ok() || !error.retryable() => result = Err(error),
            Err(_) => {}
        }
    }
}

/// What the objects hold.
#[derive(Default)]
struct Loaded {
    known: HashMap<Key, Entry>,
    records: BTreeMap<Key, (Option<Term>, Vec<u8>)>,
}

impl Loaded {
    fn add(&mut self, resource: Resource, found: Found) -> Result<(), StoreError> {
        let Found { entry, held } = found;
        let name = format!("{}/{}", resource.plural(), entry.name);
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
        } else {
            tracing::warn!(
                object = name,
                "another object has the same record; this one is left alone"
            );
        }
        Ok(())
    }
}

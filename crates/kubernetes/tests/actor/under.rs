//! What is below the registry: custom resources on a server in memory.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use hotbay_kubernetes::CustomResourceStore;
use hotbay_registry::store::WhenEnded;
use hotbay_registry::{Key, Store, StoreError, Write};

use crate::fake::Fake;
use crate::faults::Faults;

pub(crate) const SHARED: bool = true;

pub(crate) fn new() -> Under {
    Under::on(Fake::default())
}

/// A store and its server; clones share both.
#[derive(Clone)]
pub(crate) struct Under {
    server: Fake,
    calls: Faults,
    store: Arc<Mutex<CustomResourceStore>>,
}

impl Under {
    fn on(server: Fake) -> Self {
        let calls = Faults::default();
        let client = calls.before(server.client());
        let store = CustomResourceStore::new(|| Ok::<_, Infallible>(client)).unwrap();
        Self { server, calls, store: Arc::new(Mutex::new(store)) }
    }

    /// Another store on the same server, for the next one that leads.
    pub(crate) fn fork(&self) -> Self {
        Self::on(self.server.clone())
    }

    pub(crate) fn durable(&self) -> BTreeMap<Key, Vec<u8>> {
        self.fork().load().unwrap().into_iter().collect()
    }

    /// How many writes the server was asked for.
    pub(crate) fn commits(&self) -> u64 {
        self.calls.writes() as u64
    }

    fn store(&self) -> MutexGuard<'_, CustomResourceStore> {
        self.store.lock().unwrap()
    }
}

impl std::fmt::Debug for Under {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Under")
    }
}

impl Store for Under {
    fn load(&mut self) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        self.store().load()
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.store().commit(writes)
    }

    fn begin(&mut self, write: Write, ended: WhenEnded) {
        self.store().begin(write, ended);
    }

    fn read(&mut self, key: &Key) -> Result<Option<Vec<u8>>, StoreError> {
        self.store().read(key)
    }
}

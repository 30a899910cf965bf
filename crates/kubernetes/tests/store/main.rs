//! The store on an API server that is a map in this process: the promises of every store, and what each fault makes
//! of them. `k8s_store` asks the same of a real server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod back;
#[path = "../../../registry/tests/store/behaviour.rs"]
#[expect(dead_code, reason = "other stores use more of it")]
mod behaviour;
mod cases;
mod deep;
mod fake;
#[expect(dead_code, reason = "other tests use more of it")]
mod faults;
mod lists;
mod many;
mod people;
mod piped;
mod rivals;

use hotbay_kubernetes::CustomResourceStore;
use hotbay_kubernetes::client::Client;
use hotbay_kubernetes::store::VALUE_MAX_BYTES;

use behaviour::{Place, behaves};
use fake::Fake;
use faults::{Fault, Faults};

/// The faults that every call meets once.
const FAULTS: [Fault; 6] = [
    Fault::RequestLost,
    Fault::AnswerLost,
    Fault::DoneAndFailed,
    Fault::Refused(500),
    Fault::Refused(503),
    Fault::Refused(429),
];

/// A server with nothing on it yet.
fn server() -> Server {
    Server { fake: Fake::default() }
}

/// Where the objects are.
#[derive(Clone)]
struct Server {
    fake: Fake,
}

impl Server {
    /// A client of its own. It must be made on a runtime.
    fn client(&self) -> Client {
        self.fake.client()
    }

    /// Takes the definitions of the kinds away, with all objects, or gives them back.
    fn set_definitions(&self, there: bool) {
        self.fake.set_definitions(there);
    }
}

impl Place for Server {
    type S = CustomResourceStore;
    const VALUE_MAX_BYTES: usize = VALUE_MAX_BYTES;

    fn open(&self) -> CustomResourceStore {
        self.open_with(&Faults::default())
    }
}

impl Server {
    /// A store whose calls meet faults.
    fn open_with(&self, faults: &Faults) -> CustomResourceStore {
        let connect = || Ok::<_, std::convert::Infallible>(faults.before(self.client()));
        CustomResourceStore::new(connect).unwrap()
    }
}

#[test]
fn custom_resource_store_behaves() {
    behaves(server);
}

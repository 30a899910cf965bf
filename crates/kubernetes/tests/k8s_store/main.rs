//! The store on a real API server: all that `store` asks of it on a map in memory, and what only a real one has:
//! schemas, pages, definitions that come and go, a server that stops.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../registry/tests/store/behaviour.rs"]
#[expect(dead_code, reason = "other stores use more of it")]
mod behaviour;
#[path = "../store/cases.rs"]
mod cases;
#[path = "../store/faults.rs"]
#[expect(dead_code, reason = "some of them cost more time here than they tell")]
mod faults;
#[path = "../store/people.rs"]
mod people;
#[path = "../store/piped.rs"]
mod piped;
mod real;
#[path = "../store/rivals.rs"]
mod rivals;
mod server;

use hotbay_kubernetes::CustomResourceStore;
use hotbay_kubernetes::store::VALUE_MAX_BYTES;

use behaviour::{Place, behaves};
use faults::{Fault, Faults};
use server::{Server, server};

/// The faults that every call meets once. `store` has more of them; here they cost time.
const FAULTS: [Fault; 1] = [Fault::AnswerLost];

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

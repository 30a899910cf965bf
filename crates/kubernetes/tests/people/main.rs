//! What people do to the objects of a registry, on an API server that is a map in this process. `k8s_people` asks the
//! same of a real one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod agent;
mod annotations;
mod cases;
mod claims;
mod deep;
mod dummies;
#[path = "../store/fake.rs"]
mod fake;
#[path = "../store/faults.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod faults;
mod gaps;
mod gone_wishes;
mod lives;
mod living;
mod long_lists;
mod lost_registry;
#[path = "../store/people.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod people;
mod programs;
mod published;
mod put_back;
mod raced_wishes;
mod refused_specs;
mod release_words;
mod stranded;
mod unwritable;
mod unwritten_wishes;
mod waits;
mod wishes;
mod world;

use hotbay_kubernetes::client::Client;

use fake::Fake;

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
    fn client(&self) -> Client {
        self.fake.client()
    }

    /// Takes the definitions of the kinds away, with all objects, or gives them back.
    fn set_definitions(&self, there: bool) {
        self.fake.set_definitions(there);
    }
}

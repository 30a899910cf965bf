//! What people do to the objects of a registry, on a real API server: all that `people` asks of a map in memory, and
//! what they do with kubectl.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../people/agent.rs"]
mod agent;
#[path = "../people/annotations.rs"]
mod annotations;
#[path = "../people/cases.rs"]
mod cases;
#[path = "../people/dummies.rs"]
mod dummies;
#[path = "../store/faults.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod faults;
mod kubectl;
#[path = "../people/lives.rs"]
mod lives;
#[path = "../people/living.rs"]
mod living;
#[path = "../people/lost_registry.rs"]
mod lost_registry;
#[path = "../store/people.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod people;
#[path = "../people/programs.rs"]
mod programs;
#[path = "../people/published.rs"]
mod published;
#[path = "../people/refused_specs.rs"]
mod refused_specs;
#[path = "../k8s_store/server.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod server;
#[path = "../people/unwritten_wishes.rs"]
mod unwritten_wishes;
#[path = "../people/waits.rs"]
mod waits;
#[path = "../people/wishes.rs"]
mod wishes;
#[path = "../people/world.rs"]
mod world;

use server::{Server, server};

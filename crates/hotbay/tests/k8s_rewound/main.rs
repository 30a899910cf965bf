//! etcd restored from a backup, on a real API server with the product's own processes: whoever went back in time is
//! noticed by what the agents know, gives no order, and goes on from that knowledge once a person says so.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../controllers/mod.rs"]
mod controllers;
mod running;
mod two_elections;

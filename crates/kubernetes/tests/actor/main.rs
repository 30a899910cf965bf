//! What the registry's actor promises, asked once more with custom resources below it: the tests are those that the
//! registry's own crate runs on its stores. The API server is the one in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../../../registry/tests/actor/callers.rs"]
mod callers;
#[path = "../store/fake.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod fake;
#[path = "../store/faults.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod faults;
#[path = "../../../registry/tests/actor/records.rs"]
mod records;
#[path = "../../../registry/tests/actor/rewrite.rs"]
mod rewrite;
#[path = "../../../registry/tests/actor/rig.rs"]
mod rig;
#[path = "../../../registry/tests/actor/store_faults.rs"]
mod store_faults;
#[path = "../../../registry/tests/actor/time.rs"]
mod time;
mod under;

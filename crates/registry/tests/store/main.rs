//! What a store promises, tried on both stores, on disks that fail and lose power, on damaged
//! files, and with real processes that are killed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod behaviour;
mod cuts;
mod damage;
mod directory;
mod disk;
mod faults;
mod full;
mod processes;
mod suite;

use behaviour::{Random, Records, apply, key, load, put, seed, some_writes};

//! Every decision of Hotbay, and no effect: no clock, no random numbers, no files, no network.
//!
//! The product, the model checker and the simulation all call the functions of this crate, so that no rule exists
//! twice, on either side of the wire.

#![warn(clippy::wildcard_enum_match_arm)]

pub mod agent;
pub mod cluster;
pub mod cms;
pub mod device;
pub mod discovery;
pub mod evidence;
pub mod filter;
pub mod gate;
pub mod ids;
pub mod label;
pub mod message;
pub mod node_labels;
pub mod order;
pub mod pace;
pub mod pipeline;
pub mod recover;
pub mod rules;
pub mod volume;
pub mod wipe;
pub mod words;

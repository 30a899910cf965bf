//! Volumes through CSI by the real program on loop devices, under what callers and machines do to it: a crowd of them,
//! requests that cannot be meant, targets that are something else, drives and disks that are full, drives and
//! tools that fail. After each of them nothing is left behind.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../cluster/mod.rs"]
mod cluster;
mod crowd;
mod faults;
mod input;
#[path = "../machine/mod.rs"]
#[expect(dead_code, reason = "this program uses a part of it")]
mod machine;
mod no_room_below;
mod rig;
mod sockets;
mod targets;

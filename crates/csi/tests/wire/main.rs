//! The services as a sidecar or a kubelet sees them: over real Unix sockets, by a real gRPC client, over the simulated
//! platform.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod codes;
mod concurrency;
mod lifecycle;
mod rig;

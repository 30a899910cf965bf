//! Hotbay on Kubernetes: the registry's records as custom resources.
//!
//! - [`crd`]: the definitions of the kinds; `hotbay crd` prints them.
//! - [`resource`]: the kinds as Kubernetes knows them.

pub mod crd;
pub mod resource;

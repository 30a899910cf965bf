//! Hotbay on Kubernetes: the registry's records as custom resources.
//!
//! - [`crd`]: the definitions of the kinds; `hotbay crd` prints them.
//! - [`resource`]: the kinds as Kubernetes knows them; [`names`]: what an object is called.
//! - [`object`]: how a record is an object, and what people see of it: [`view`].
//! - [`store`]: the registry's store over the API server; [`api`]: one call to it.

mod api;
pub mod crd;
mod names;
mod object;
pub mod resource;
pub mod store;
mod view;

pub use store::CustomResourceStore;

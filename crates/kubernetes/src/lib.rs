//! Hotbay on Kubernetes: the registry's records as custom resources.
//!
//! - [`crd`]: the definitions of the kinds; `hotbay crd` prints them.
//! - [`resource`]: the kinds as Kubernetes knows them; [`names`]: what an object is called.
//! - [`object`]: how a record is an object, and what people see of it: [`view`]; [`first`]: one in a new object.
//! - [`people`]: what people do to the objects, and what follows from it.
//! - [`store`]: the registry's store over the API server; [`client`]: calls to it.
//! - [`living`]: what only the leading controller's memory knows, in the objects; machines that go away.
//! - [`lease`]: which controller leads.
//! - [`claims`]: what people say on claims; [`events`]: what they are told.
//! - [`accounts`]: who joins, and who asks, by their service accounts.
//! - [`authority`]: the key and certificate that all controllers share.

pub mod accounts;
pub mod authority;
pub mod claims;
pub mod client;
pub mod crd;
pub mod events;
mod first;
pub mod lease;
pub mod living;
mod names;
mod object;
pub mod people;
pub mod resource;
pub mod store;
mod view;

pub use store::CustomResourceStore;

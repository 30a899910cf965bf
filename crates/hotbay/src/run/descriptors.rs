//! How many descriptors a process may have: a controller one per caller, an agent one per drive and child. Systems
//! begin with a low number for the sake of old programs and let those that need more ask for it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Asks for as many as this process may have.
pub(crate) fn allow_many() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        // It works all the same, for fewer callers or drives at a time.
        tracing::warn!("this process cannot have more descriptors: {error}");
    }
}

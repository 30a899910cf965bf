//! The body of an HTTP request as bytes, for `hotbay-fuzz-targets` alone: a fuzzer needs the parser without a socket.

use hotbay_api::convert::Malformed;
use hotbay_core::cms::Action;

use super::body::{ActBody, Object};

/// What the body of `POST /v1/actions` asks for.
pub fn actions(body: &[u8]) -> Result<Vec<Result<Action, Malformed>>, String> {
    let ActBody { actions, dry_run: _ } = ActBody::read(body)?;
    Ok(actions.into_iter().map(|Object(action)| action.decode()).collect())
}

//! The body of an HTTP request as bytes, for `hotbay-fuzz-targets` alone: a fuzzer needs the parser without a socket.

use hotbay_api::convert::Malformed;
use hotbay_core::cms::Action;
use hotbay_core::volume::{Size, Wish};
use hotbay_csi::platform::Failure;

use super::body::{ActBody, Object};
use super::volumes;
use crate::volumes::Wanted;

/// What the body of `POST /v1/actions` asks for.
pub fn actions(body: &[u8]) -> Result<Vec<Result<Action, Malformed>>, String> {
    let ActBody { actions, dry_run: _ } = ActBody::read(body)?;
    Ok(actions.into_iter().map(|Object(action)| action.decode()).collect())
}

/// What the body of `POST /v1/volumes` asks for; the nodes that it names are known to the registry alone.
pub fn new_volume(body: &[u8]) -> Result<(Wish, Vec<String>), String> {
    let (name, wish) = volumes::created(body)?;
    let (wanted, nodes) = Wanted::of(name, wish);
    let wish = wanted.wish().map_err(|error| Failure::from(error).message)?;
    Ok((wish, nodes))
}

/// How large the body of `POST /v1/volumes/{name}/expand` wants a volume.
pub fn larger_volume(body: &[u8]) -> Result<Size, String> {
    Size::of(volumes::expanded(body)?).map_err(|error| error.to_string())
}

//! How messages are put on the wire: as protocol buffers, with small buffers to begin with. A controller has one stream
//! for every agent, mostly silent, and would keep two of the usual 8 KiB for each.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Room for a heartbeat or an order. A longer message makes it grow.
const FIRST_BYTES: usize = 1 << 10;
/// So much is gathered before it is handed on, as without this codec.
const YIELD_BYTES: usize = 32 << 10;

/// The codec of all services; named in `build.rs`.
#[derive(Debug)]
pub struct SmallCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for SmallCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for SmallCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = ProstDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::raw_encoder(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<T, U>::raw_decoder(settings())
    }
}

fn settings() -> BufferSettings {
    BufferSettings::new(FIRST_BYTES, YIELD_BYTES)
}

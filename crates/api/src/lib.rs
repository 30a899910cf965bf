//! The contracts of Hotbay: what crosses a wire and what people see. No behaviour.
//!
//! - [`access`], [`agent`], [`cms`], [`csi`], [`join`] and [`volumes`]: the gRPC messages, made from `proto/`.
//! - [`codec`]: how they are put on the wire.
//! - [`convert`]: those messages to and from the values of `hotbay-core`, refusing what is malformed.
//! - [`kinds`]: the objects that `hotbay get` shows, in the JSON shape that stays.
//! - [`leader`]: how a registry that does not lead names the one that does.
//! - [`token`]: the text of a join token; [`client_token`]: that of a client's.

pub mod client_token;
pub mod codec;
pub mod convert;
pub mod kinds;
pub mod leader;
pub mod token;

/// The version of the protocol that this program speaks. A peer that speaks another is refused with words.
pub const PROTOCOL: u32 = 1;

/// Largest message that either side takes.
pub const MESSAGE_LIMIT_BYTES: usize = 64 << 20;

/// Tokens of people and programs on other machines.
#[expect(clippy::too_many_lines, reason = "generated code")]
pub mod access {
    tonic::include_proto!("hotbay.access.v1");
}

/// The agent's session.
pub mod agent {
    tonic::include_proto!("hotbay.agent.v1");
}

/// Actions and views.
#[expect(clippy::too_many_lines, reason = "generated code")]
pub mod cms {
    tonic::include_proto!("hotbay.cms.v1");
}

/// The Container Storage Interface.
#[expect(clippy::too_many_lines, reason = "generated code")]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// Joining from another machine.
#[expect(clippy::too_many_lines, reason = "generated code")]
pub mod join {
    tonic::include_proto!("hotbay.join.v1");

    /// Without the secrets that let a node join.
    impl std::fmt::Debug for JoinRequest {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            let mut shown = f.debug_struct("JoinRequest");
            shown.field("protocol", &self.protocol).field("node_name", &self.node_name);
            shown.finish_non_exhaustive()
        }
    }
}

/// Volumes, for those who do not speak CSI.
#[expect(clippy::too_many_lines, reason = "generated code")]
pub mod volumes {
    tonic::include_proto!("hotbay.volumes.v1");
}

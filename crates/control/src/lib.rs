//! The controller: sessions with agents, actions of people and programs, and what they see. Knows no Kubernetes.
//!
//! - [`sessions`]: the agents' side, one two-way stream each.
//! - [`actions`]: what infrastructure automation asks for.
//! - [`repair`]: what a person decides when a registry went back in time.
//! - [`volumes`]: volumes are made, used and deleted, for CSI and for ourselves.
//! - [`view`], [`listing`] and [`objects`]: the state as the kinds of `hotbay-api`, and what happened;
//!   [`conditions`]: what is not as it should be.
//! - [`http`]: the same for curl and any automation, and what monitoring asks.
//! - [`peer`] and [`incoming`]: who is at the other end of the socket, and how they get in. [`caller`]: what they may.
//! - [`accounts`]: accounts of the platform, if it has any.
//! - [`patience`]: how long a caller waits for a store that cannot be written.
//! - [`doors`]: what listens on TCP: [`door`] for agents, [`clients`] for people and programs. [`reception`] takes the
//!   connections of both.
//! - [`following`]: a controller among several that does not lead.
//! - [`health`]: what a supervisor asks.
//!
//! Everything listens on Unix sockets, one for gRPC and one for HTTP; only root and the user that the controller runs
//! as may speak to them. If asked for, other machines are served over TLS: agents with a certificate at one door,
//! people and programs with a token at another.

mod accounts;
mod actions;
mod caller;
mod clients;
pub mod conditions;
mod door;
mod doors;
mod following;
mod health;
mod http;
mod incoming;
mod listing;
mod objects;
mod patience;
mod peer;
mod reception;
mod repair;
mod rewound;
mod sessions;
mod view;
mod volumes;

use std::time::Duration;

use hotbay_api::MESSAGE_LIMIT_BYTES;
use hotbay_api::access::access_server::AccessServer;
use hotbay_api::agent::agents_server::AgentsServer;
use hotbay_api::cms::cms_server::CmsServer;
use hotbay_api::cms::repair_server::RepairServer;
use hotbay_api::cms::view_server::ViewServer;
use hotbay_api::join::joining_server::JoiningServer;
use hotbay_api::join::tokens_server::TokensServer;
use hotbay_api::volumes::volumes_server::VolumesServer;
use hotbay_registry::Registry;
use tokio::net::UnixListener;
use tonic::service::Routes;
use tonic::transport::Server;

pub use accounts::{Account, AccountToken, Accounts, Asked, May, NotKnown};
pub use clients::file::FileError;
pub use door::{AuthorityAt, AuthorityError, AuthorityPems};
pub use doors::{DoorError, DoorOptions, Doors, PassedOn};
pub use following::{CsiBy, LeaderAt, csi_of_whoever_leads, follow};
pub use health::{Ready, serve_health};
#[doc(hidden)]
pub use http::fuzzing;
pub use objects::device;
pub use volumes::Platform;

/// A connection that does not answer for so long is given up, so that a cut cable is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// How many calls one agent may have under way; it needs two.
const CALLS_OF_AN_AGENT: u32 = 8;

/// Serves a registry on a Unix socket until `stop` ends. Draws ids with `fresh`, as nothing below does.
pub async fn serve(
    registry: Registry,
    listener: UnixListener,
    fresh: fn() -> u128,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    serve_with_doors(registry, vec![listener], Doors::default(), fresh, stop).await
}

/// Like [`serve`], on several Unix sockets, and serves other machines through the doors that are open.
pub async fn serve_with_doors(
    registry: Registry,
    listeners: Vec<UnixListener>,
    doors: Doors,
    fresh: fn() -> u128,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let calls = client_calls(&registry, &doors, fresh);
    let local = Server::builder()
        .add_routes(calls.clone())
        .add_service(agents(&registry, fresh))
        .serve_with_incoming_shutdown(incoming::all(listeners), stop);
    let Doors { agents, clients, renewal: _renewal } = doors;
    let router = http::router(registry.clone(), fresh);
    // Sessions never end by themselves: when the local side has ended, the doors are left to the end of the process.
    tokio::select! {
        served = local => served,
        served = if_open(agents.map(|door| serve_agents(registry, door, fresh))) => served,
        served = if_open(clients.map(|door| door.serve(calls, router))) => served,
    }
}

/// Never ends where there is nothing to do.
async fn if_open<T>(serving: Option<impl Future<Output = T>>) -> T {
    match serving {
        Some(serving) => serving.await,
        None => std::future::pending().await,
    }
}

/// What people and programs call, wherever they are.
fn client_calls(registry: &Registry, doors: &Doors, fresh: fn() -> u128) -> Routes {
    let cms = CmsServer::new(actions::Actions::new(registry.clone()))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES);
    let repair = RepairServer::new(repair::Repairs::new(registry.clone(), fresh));
    let view = ViewServer::new(view::Views::new(registry.clone()))
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES);
    let office = doors.agents.as_ref().map(|door| door.office.clone());
    let desk = doors.clients.as_ref().map(|door| door.desk.clone());
    let volumes = volumes::Volumes { registry: registry.clone(), fresh };
    Routes::new(cms)
        .add_service(VolumesServer::new(volumes::VolumeCalls { volumes }))
        .add_service(repair)
        .add_service(view)
        .add_service(TokensServer::new(door::join::TokenMaker {
            office,
            registry: registry.clone(),
        }))
        .add_service(AccessServer::new(clients::access::AccessCalls { desk }))
}

fn agents(registry: &Registry, fresh: fn() -> u128) -> AgentsServer<sessions::Sessions> {
    AgentsServer::new(sessions::Sessions::new(registry.clone(), fresh))
        .max_decoding_message_size(MESSAGE_LIMIT_BYTES)
        .max_encoding_message_size(MESSAGE_LIMIT_BYTES)
}

/// Behind the door are sessions, joining and renewal, and nothing else.
async fn serve_agents(
    registry: Registry,
    door: door::Door,
    fresh: fn() -> u128,
) -> Result<(), tonic::transport::Error> {
    let registrar =
        door::join::Registrar { office: door.office.clone(), registry: registry.clone() };
    let joining =
        JoiningServer::new(registrar).max_decoding_message_size(door::join::REQUEST_LIMIT_BYTES);
    let (streams, _tasks) = door.receive();
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(CALLS_OF_AN_AGENT)
        .add_service(agents(&registry, fresh))
        .add_service(joining)
        .serve_with_incoming(streams)
        .await
}

/// Serves a registry as HTTP and JSON on a Unix socket of its own. Never ends; to stop it, drop it.
pub async fn serve_http(registry: Registry, listener: UnixListener, fresh: fn() -> u128) {
    http::serve(registry, listener, fresh).await;
}

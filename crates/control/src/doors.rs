//! What listens on TCP, if anything does: the door for agents and the one for clients, over one authority and with one
//! certificate of the registry, which is renewed for as long as they are open, whoever serves them. The program opens
//! them and hands them to [`crate::serve_with_doors`], or to [`crate::follow`] before.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rcgen::SanType;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::KEEP_ALIVE;
use crate::accounts::Accounts;
use crate::clients::file::FileError;
use crate::clients::{self, ClientDoor};
use crate::door::accept::AgentStream;
use crate::door::authority::{Authority, make_folder};
use crate::door::identity::{Identity, keep_fresh};
use crate::door::{self, AuthorityAt, AuthorityError, Door, Office};

/// How many connections of other controllers wait to be served.
const PASSED_ON: usize = 16;

/// Where the doors are, and how long what is handed out there is good for.
#[derive(Debug, Clone)]
pub struct DoorOptions {
    /// For agents: HOST:PORT each.
    pub agents: Vec<String>,
    /// For people and programs: HOST:PORT each.
    pub clients: Vec<String>,
    /// Who certifies.
    pub authority: AuthorityAt,
    /// Where the tokens of clients are kept.
    pub tls_dir: PathBuf,
    /// Who checks accounts of the platform, if it has any.
    pub accounts: Option<Arc<dyn Accounts>>,
    /// The life of a node's certificate; a connection lasts no longer either.
    pub node_life: Duration,
    /// The life of the registry's own certificate.
    pub registry_life: Duration,
    /// Unix time.
    pub wall_ms: fn() -> u64,
}

/// Why the doors stay shut.
#[derive(Debug, Error)]
pub enum DoorError {
    #[error("cannot listen for {whom} on {address}")]
    Listen {
        whom: &'static str,
        address: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error(transparent)]
    Tokens(#[from] FileError),
    #[error("cannot set TLS up")]
    Tls(#[source] rustls::Error),
    #[error("cannot verify certificates")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// The open doors. Nobody is served before [`crate::serve_with_doors`] has them.
#[derive(Default)]
pub struct Doors {
    pub(crate) agents: Option<Door>,
    pub(crate) clients: Option<ClientDoor>,
    /// Exchanges the certificate in time; ends with the doors.
    pub(crate) renewal: JoinSet<()>,
}

impl std::fmt::Debug for Doors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Doors")
            .field("agents", &self.agent_addresses())
            .field("clients", &self.client_addresses())
            .finish_non_exhaustive()
    }
}

impl Doors {
    /// Listens, and makes the authority if there is none yet. Without any address nothing is done at all.
    pub async fn open(options: DoorOptions) -> Result<Self, DoorError> {
        let DoorOptions {
            agents,
            clients,
            authority,
            tls_dir,
            accounts,
            node_life,
            registry_life,
            wall_ms,
        } = options;
        if agents.is_empty() && clients.is_empty() {
            return Ok(Self::default());
        }
        let for_agents = listen("agents", &agents).await?;
        let for_clients = listen("clients", &clients).await?;
        let authority = Arc::new(Authority::of(authority)?);
        let bound = for_agents.iter().chain(&for_clients).map(|(_, address)| address.ip());
        let names = names(bound, &clients);
        let first = authority.certify_registry(&names, wall_ms(), registry_life)?;
        let identity = Arc::new(Identity::new(first));
        let agents = if agents.is_empty() {
            None
        } else {
            let (listeners, addresses) = for_agents.into_iter().unzip();
            let (authority, tokens) = (Arc::clone(&authority), Mutex::default());
            let config = door::server_config(&authority, Arc::clone(&identity))?;
            let accounts = accounts.clone();
            let office = Office { authority, tokens, accounts, addresses, node_life, wall_ms };
            Some(Door { office: Arc::new(office), listeners, config, controllers: None })
        };
        let clients = if clients.is_empty() {
            None
        } else {
            make_folder(&tls_dir)?;
            let config = clients::server_config(Arc::clone(&identity))?;
            let door = ClientDoor::open(
                for_clients,
                clients,
                config,
                &authority,
                &tls_dir,
                accounts,
                wall_ms,
            );
            Some(door?)
        };
        let mut renewal = JoinSet::new();
        renewal.spawn(keep_fresh(identity, authority, names, registry_life, wall_ms));
        Ok(Self { agents, clients, renewal })
    }

    /// From when the doors are served on, other controllers may pass CSI's calls on through them.
    pub fn let_controllers_in(&mut self) -> PassedOn {
        let (sender, passed) = mpsc::channel(PASSED_ON);
        if let Some(door) = &mut self.agents {
            door.controllers = Some(sender);
        }
        PassedOn(passed)
    }

    /// Where agents are listened for.
    pub fn agent_addresses(&self) -> &[SocketAddr] {
        self.agents.as_ref().map_or(&[], |door| &door.office.addresses)
    }

    /// Where people and programs are listened for.
    pub fn client_addresses(&self) -> &[SocketAddr] {
        self.clients.as_ref().map_or(&[], |door| &door.addresses)
    }
}

/// Connections of other controllers, with CSI's calls.
pub struct PassedOn(mpsc::Receiver<io::Result<AgentStream>>);

impl PassedOn {
    /// Answers the calls for as long as there are doors.
    pub async fn serve(self, routes: Routes) -> Result<(), tonic::transport::Error> {
        Server::builder()
            .http2_keepalive_interval(Some(KEEP_ALIVE))
            .http2_keepalive_timeout(Some(KEEP_ALIVE))
            .add_routes(routes)
            .serve_with_incoming(ReceiverStream::new(self.0))
            .await
    }
}

impl std::fmt::Debug for PassedOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PassedOn").finish_non_exhaustive()
    }
}

async fn listen(
    whom: &'static str,
    addresses: &[String],
) -> Result<Vec<(TcpListener, SocketAddr)>, DoorError> {
    let mut listeners = Vec::new();
    for address in addresses {
        let failed = |source| DoorError::Listen { whom, address: address.clone(), source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        listeners.push((listener, bound));
    }
    Ok(listeners)
}

/// What a client that compares names, as curl does, may find in the certificate: each address that is listened on, and
/// each name that was given for one.
fn names(bound: impl Iterator<Item = IpAddr>, given: &[String]) -> Vec<SanType> {
    let addresses = bound.filter(|ip| !ip.is_unspecified()).map(SanType::IpAddress);
    let hosts = given.iter().filter_map(|address| Some(address.rsplit_once(':')?.0));
    let hosts = hosts.filter(|host| !host.starts_with('[') && host.parse::<IpAddr>().is_err());
    let hosts = hosts.filter_map(|host| Some(SanType::DnsName(host.try_into().ok()?)));
    let mut names: Vec<_> = Vec::new();
    for name in addresses.chain(hosts) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller may follow for longer than its certificate is good for; it leads, and names the leader, with the
    /// next one.
    #[tokio::test(start_paused = true)]
    async fn the_certificate_is_exchanged_while_nobody_leads_here() {
        let dir = tempfile::tempdir().unwrap();
        let life = Duration::from_secs(3_600);
        let doors = Doors::open(DoorOptions {
            agents: vec!["127.0.0.1:0".to_owned()],
            clients: Vec::new(),
            authority: AuthorityAt::Folder(dir.path().join("tls")),
            tls_dir: dir.path().join("tls"),
            accounts: None,
            node_life: life,
            registry_life: life,
            wall_ms: || 1_800_000_000_000,
        });
        let doors = doors.await.unwrap();
        let shown = || format!("{:?}", doors.agents.as_ref().unwrap().config.cert_resolver);
        let first = shown();
        tokio::time::sleep(life * 2 / 3 - Duration::from_secs(1)).await;
        assert_eq!(shown(), first);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_ne!(shown(), first);
    }

    #[test]
    fn the_certificate_names_what_is_listened_on() {
        let bound = [[127, 0, 0, 1].into(), [0, 0, 0, 0].into(), [127, 0, 0, 1].into()];
        let given = ["localhost:7444", "0.0.0.0:7444", "[::1]:7444"].map(str::to_owned);
        let expected = [
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::DnsName("localhost".try_into().unwrap()),
        ];
        assert_eq!(names(bound.into_iter(), &given), expected);
    }
}

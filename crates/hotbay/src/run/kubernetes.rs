//! `hotbay controller --kubernetes`: one of several controllers, on custom resources. It opens its doors at once; while
//! another leads it passes on what comes, and when it leads it runs the registry.
//!
//! ```text
//!   start ── follow ──Lease──▶ lead ──▶ end of the process: the lead was lost, or given back
//! ```
//!
//! A process that has led never follows again: what it has in memory may be out of date, and a new start loads it.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use hotbay_control::{AuthorityAt, AuthorityPems, CsiBy, Doors, LeaderAt, Platform};
use hotbay_core::ids::{ClusterId, TermId};
use hotbay_csi::identity::Identity;
use hotbay_csi::serve::{self, Socket};
use hotbay_kubernetes::accounts::ServiceAccounts;
use hotbay_kubernetes::authority::AuthorityError;
use hotbay_kubernetes::client::{Client, Server};
use hotbay_kubernetes::lease::{Contender, Lead, contend};
use hotbay_kubernetes::living::Times;
use hotbay_kubernetes::store::Objects;
use hotbay_kubernetes::{CustomResourceStore, authority, claims, events, living, people};
use hotbay_registry::{Ended, Mandate, Registry, StartError, Surroundings};
use tokio::net::UnixListener;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinError, JoinSet};
use tonic::service::Routes;

use super::checkpoint::checkpoint;
use super::controller::{READY, fresh, stopped_for_long, wall_ms};
use super::{door, stop, up};
use crate::config::Settings;

/// The Lease that says who leads.
const LEASE: &str = "hotbay-controller";
/// The pause before the records are loaded again, when the API server could not be asked.
const LOAD_PAUSE: Duration = Duration::from_secs(1);

/// What a controller on Kubernetes is told.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = crate::cli::ON_KUBERNETES)]
pub(super) struct KubernetesArgs {
    /// Keeps the records as custom resources of the cluster that this pod runs in; one of several controllers leads
    #[arg(long)]
    kubernetes: bool,
    /// A kubeconfig with a certificate or a token, instead of the pod's service account
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    kubeconfig: Option<PathBuf>,
    /// The namespace of the Lease and of the authority's Secret
    #[arg(long, value_name = "NAME", requires = "kubernetes", default_value = "hotbay")]
    namespace: String,
    /// The name of this controller in the Lease, such as its pod's [default: the name of the machine]
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    identity: Option<String>,
    /// Where agents and other controllers reach this one: its address, with the port if that is not the one of
    /// --listen-agents
    #[arg(long, value_name = "IP[:PORT]", requires = "kubernetes", value_parser = advertised)]
    advertise: Option<Advertised>,
    /// Where to answer /healthz and /readyz, as plain HTTP
    #[arg(long, value_name = "HOST:PORT", requires = "kubernetes")]
    health: Option<String>,
    /// How long a lead is good without a renewal, in seconds
    #[arg(long, value_name = "SECONDS", requires = "kubernetes", default_value_t = 15)]
    #[arg(value_parser = clap::value_parser!(u64).range(2..=300))]
    lease_duration: u64,
    /// How long the Kubernetes Node of a machine must be gone before the machine is forgotten, in seconds. One with a
    /// drive in operation or with volumes is kept
    #[arg(long, value_name = "SECONDS", requires = "kubernetes", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=2_592_000))]
    node_grace: u64,
}

/// An address that others can reach.
#[derive(Debug, Clone, Copy)]
struct Advertised {
    ip: IpAddr,
    port: Option<u16>,
}

fn advertised(text: &str) -> Result<Advertised, String> {
    if let Ok(ip) = text.parse() {
        return Ok(Advertised { ip, port: None });
    }
    let address: SocketAddr =
        text.parse().map_err(|_| "not an IP address, nor one with a port".to_owned())?;
    Ok(Advertised { ip: address.ip(), port: Some(address.port()) })
}

impl KubernetesArgs {
    pub(super) fn is_wanted(&self) -> bool {
        self.kubernetes
    }

    fn server(&self) -> anyhow::Result<Server> {
        Ok(match &self.kubeconfig {
            Some(path) => Server::from_kubeconfig(path)?,
            None => Server::in_cluster()?,
        })
    }

    /// Where this controller is reached at the doors that it has opened.
    fn reached_at(&self, doors: &Doors) -> anyhow::Result<LeaderAt> {
        let advertised = self
            .advertise
            .context("others must know how to reach this one: give --advertise IP")?;
        let [agents, ..] = doors.agent_addresses() else {
            bail!("agents must reach this controller: give --listen-agents HOST:PORT");
        };
        let port = advertised.port.unwrap_or(agents.port());
        let clients = doors.client_addresses().first().map(|address| address.port());
        let clients = clients.map(|port| SocketAddr::new(advertised.ip, port).to_string());
        Ok(LeaderAt {
            agents: SocketAddr::new(advertised.ip, port).to_string(),
            clients: clients.unwrap_or_default(),
        })
    }

    fn contender(&self, reached_at: LeaderAt) -> Contender {
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = self.identity.clone().unwrap_or_else(machine);
        Contender {
            namespace: self.namespace.clone(),
            lease: LEASE.to_owned(),
            identity: format!("{name}_{:08x}", fresh() >> 96),
            reached_at,
            duration: Duration::from_secs(self.lease_duration),
            wall_ms,
        }
    }
}

pub(super) async fn serve(
    settings: Settings,
    data_dir: PathBuf,
    args: KubernetesArgs,
) -> anyhow::Result<ExitCode> {
    let server = args.server()?;
    let client = Client::new(server.clone());
    let namespace = args.namespace.clone();
    let (leader, leads) = watch::channel(None);
    // From the beginning: one that waits for the API server, or for a right, is well, and is not to be restarted.
    if let Some(address) = &args.health {
        health(address, leads).await?;
    }
    let pems = tokio::select! {
        pems = shared_authority(&client, &namespace) => pems?,
        () = stop::told_to_stop() => return Ok(ExitCode::SUCCESS),
    };
    tokio::select! {
        served = serve_under(pems.clone(), settings, data_dir, args, (server, leader)) => served,
        () = authority::replaced(&client, &namespace, &pems) => {
            tracing::error!(
                "the Secret {} has another authority by now; this controller ends, and starts again with that one",
                authority::NAME
            );
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Everything that a controller does, with the authority that it has.
async fn serve_under(
    pems: AuthorityPems,
    settings: Settings,
    data_dir: PathBuf,
    args: KubernetesArgs,
    (server, leader): (Server, watch::Sender<Option<LeaderAt>>),
) -> anyhow::Result<ExitCode> {
    let (sockets, addresses) = up::listening(&settings)?;
    let client = Client::new(server.clone());
    let agents = settings.listen_agents.value.clone();
    let accounts = Arc::new(ServiceAccounts::new(client, &args.namespace));
    let authority = AuthorityAt::Given(pems);
    let doors = door::open_with(&data_dir, agents, addresses, authority, Some(accounts)).await?;
    // Their files go with these values, at the end of the process.
    let sockets = sockets.iter().map(|path| Socket::bind(path)).collect::<Result<Vec<_>, _>>()?;
    let contender = args.contender(args.reached_at(&doors)?);
    let instance = contender.identity.clone();
    let (csi_by, by) = watch::channel(CsiBy::Nobody);
    if let Some(path) = &settings.csi.value {
        serve_csi(Socket::bind(path)?, &doors, by);
    }
    println!("{READY}");
    // Nobody may read it; then nobody waits for it.
    std::io::stdout().flush().unwrap_or_default();
    tracing::info!(identity = contender.identity, "contending for the lead");
    // On a connection of its own: a renewal waits for nobody else's call.
    let for_the_lease = Client::new(server.clone());
    let lead = tokio::select! {
        lead = contend(for_the_lease, contender, &leader) => lead,
        followed = follow(&doors, &sockets, leader.subscribe(), &csi_by) => {
            followed?;
            bail!("the doors are shut");
        }
        () = stop::told_to_stop() => return Ok(ExitCode::SUCCESS),
    };
    // Whoever led before answers nothing any more, and this one nothing before it has loaded the records.
    csi_by.send_replace(CsiBy::Nobody);
    let times = Times { gone: Duration::from_secs(args.node_grace), ..Times::default() };
    let leading = Leading { settings, sockets, doors, server, csi_by, instance, times };
    leading.run(lead).await
}

/// Says whether this process is well, and ready, which is when it knows of a leader.
async fn health(address: &str, leads: watch::Receiver<Option<LeaderAt>>) -> anyhow::Result<()> {
    let ready = move || match *leads.borrow() {
        Some(_) => Ok(()),
        None => Err("no controller leads".to_owned()),
    };
    let served = hotbay_control::serve_health(address, Arc::new(ready)).await;
    served.map(drop).with_context(|| format!("cannot listen on {address}"))
}

/// The authority that all controllers share. A server that does not answer is asked again, and a Secret that is damaged
/// ends it.
async fn shared_authority(client: &Client, namespace: &str) -> anyhow::Result<AuthorityPems> {
    loop {
        match authority::load_or_make(client, namespace).await {
            // Rights may be given while this waits.
            Err(error @ (AuthorityError::Call { .. } | AuthorityError::Forbidden { .. })) => {
                tracing::warn!(
                    "the authority cannot be read, trying again: {:#}",
                    anyhow::Error::new(error)
                );
                tokio::time::sleep(LOAD_PAUSE).await;
            }
            loaded => return Ok(loaded?),
        }
    }
}

fn listeners(sockets: &[Socket]) -> anyhow::Result<Vec<UnixListener>> {
    Ok(sockets.iter().map(Socket::listener).collect::<Result<_, _>>()?)
}

/// Passes everything on to whoever leads; ends only when that is impossible.
async fn follow(
    doors: &Doors,
    sockets: &[Socket],
    mut leads: watch::Receiver<Option<LeaderAt>>,
    csi_by: &watch::Sender<CsiBy>,
) -> anyhow::Result<()> {
    let following = hotbay_control::follow(doors, listeners(sockets)?, leads.clone());
    tokio::pin!(following);
    loop {
        let at = leads.borrow_and_update().clone();
        match &at {
            Some(at) => tracing::info!(leader = at.agents, "another controller leads"),
            None => tracing::info!("no controller leads"),
        }
        csi_by.send_replace(at.map_or(CsiBy::Nobody, CsiBy::Other));
        tokio::select! {
            followed = &mut following => return Ok(followed?),
            changed = leads.changed() => changed?,
        }
    }
}

/// CSI for as long as this process runs: whoever leads answers. Sidecars that start wait until it says that it is
/// ready, and end if they are refused then. A leader that still loads its records can answer nothing yet.
fn serve_csi(socket: Socket, doors: &Doors, by: watch::Receiver<CsiBy>) {
    let answers = by.clone();
    let is_ready = move || !matches!(*answers.borrow(), CsiBy::Nobody);
    let identity = Identity::new(env!("CARGO_PKG_VERSION"), is_ready);
    let identity = serve::identity(identity);
    let routes = hotbay_control::csi_of_whoever_leads(identity, doors, by, wall_ms);
    tokio::spawn(async move {
        if let Err(error) = serve::serve(socket, routes, std::future::pending()).await {
            tracing::error!("CSI is not served any more: {error}");
        }
    });
}

/// What the leader serves.
struct Leading {
    settings: Settings,
    sockets: Vec<Socket>,
    doors: Doors,
    server: Server,
    csi_by: watch::Sender<CsiBy>,
    /// The name of this controller.
    instance: String,
    times: Times,
}

impl Leading {
    async fn run(self, mut lead: Lead) -> anyhow::Result<ExitCode> {
        let mandate = lead.mandate();
        let (give_back, told) = oneshot::channel::<()>();
        // Renewed from the first moment on: loading may take longer than a lease.
        let keeping = tokio::spawn(async move {
            tokio::select! {
                why = lead.keep() => Err(why),
                _ = told => {
                    lead.give_back().await;
                    Ok(())
                }
            }
        });
        let leading = self.lead(mandate);
        tokio::pin!(keeping);
        tokio::select! {
            // Whatever is decided and not written is given up with this process; the next leader loads what is there.
            kept = &mut keeping => {
                match kept? {
                    Ok(()) => {}
                    Err(why) => tracing::error!("the lead is lost: {why}"),
                }
                Ok(ExitCode::FAILURE)
            }
            led = leading => {
                // Nobody may be left to hear it.
                give_back.send(()).unwrap_or_default();
                keeping.await?.unwrap_or_default();
                led
            }
        }
    }

    async fn lead(self, mandate: Mandate) -> anyhow::Result<ExitCode> {
        let (registry, ended, objects) = tokio::select! {
            started = self.start_registry(mandate) => started?,
            () = stop::told_to_stop() => return Ok(ExitCode::SUCCESS),
        };
        let Self { settings, sockets, mut doors, server, csi_by, instance, times } = self;
        let listeners = listeners(&sockets)?;
        let http = settings.http.value.map(|path| Socket::bind(&path)).transpose()?;
        if let Some(http) = &http {
            // Ends with this process: whatever was answered is durable.
            tokio::spawn(hotbay_control::serve_http(registry.clone(), http.listener()?, fresh));
        }
        let routes = csi_routes(&registry);
        csi_by.send_replace(CsiBy::Ourselves(routes.clone()));
        let passed_on = doors.let_controllers_in();
        let mut beside = beside(&registry, &objects, server, instance, times);
        beside.spawn(async move {
            if let Err(error) = passed_on.serve(routes).await {
                tracing::error!("other controllers cannot pass CSI's calls on: {error}");
            }
        });
        tracing::info!("this controller leads");
        let stop = stop::told_to_stop();
        let serving = hotbay_control::serve_with_doors(registry, listeners, doors, fresh, stop);
        Ok(tokio::select! {
            served = serving => {
                served?;
                ExitCode::SUCCESS
            }
            () = stopped_for_long() => ExitCode::SUCCESS,
            // A leader that does only a part of its work is worse than the next one, which does all of it.
            error = failed(&mut beside) => {
                tracing::error!("a part of this controller has failed, it cannot lead on: {error}");
                ExitCode::FAILURE
            }
            ended = ended => {
                match ended {
                    Ok(error) => tracing::error!("this controller cannot lead on: {error}"),
                    Err(_) => tracing::error!("the registry ended without a word"),
                }
                ExitCode::FAILURE
            }
        })
    }

    /// Loads the records. A server that does not answer is asked again for as long as the lead lasts. Reading all of a
    /// large cluster takes many seconds: it has a thread of its own, so that signals and the end of the lead are heard.
    async fn start_registry(&self, mandate: Mandate) -> anyhow::Result<(Registry, Ended, Objects)> {
        let rules = self.settings.auto_add.iter().map(|told| told.rule.clone());
        let surroundings = Surroundings {
            cluster: ClusterId::from_bits(fresh()),
            term: TermId::from_bits(fresh()),
            wall_ms,
            checkpoint,
            auto_add: rules.collect(),
        };
        loop {
            let (surroundings, mandate) = (surroundings.clone(), mandate.clone());
            let server = self.server.clone();
            let started = tokio::task::spawn_blocking(move || {
                let connect = || Ok::<_, std::convert::Infallible>(Client::new(server));
                let store = CustomResourceStore::new(connect)?.with_checkpoint(checkpoint);
                let objects = store.objects();
                let (registry, ended) = Registry::start_under(mandate, store, surroundings)?;
                Ok((registry, ended, objects))
            });
            match started.await? {
                Err(StartError::Store(error)) if error.retryable() => {
                    tracing::warn!("the records cannot be loaded, trying again: {error}");
                    tokio::time::sleep(LOAD_PAUSE).await;
                }
                started => return Ok(started?),
            }
        }
    }
}

/// What goes on beside the registry, and ends with it.
fn beside(
    registry: &Registry,
    objects: &Objects,
    server: Server,
    instance: String,
    times: Times,
) -> JoinSet<()> {
    let surroundings = people::Surroundings { fresh, wall_ms };
    let client = Client::new(server.clone());
    let all = || (client.clone(), registry.clone(), objects.clone());
    let mut tasks = JoinSet::new();
    let (to_people, of, on) = all();
    tasks.spawn(people::follow(to_people, of, on, surroundings));
    let (to_living, of, on) = all();
    tasks.spawn(living::follow(to_living, of, on, surroundings, times));
    let (to_events, of, on) = all();
    tasks.spawn(events::publish(to_events, of, on, instance));
    // Claims are everybody's, and many: on a connection of their own they keep nobody else waiting.
    tasks.spawn(claims::follow(Client::new(server), registry.clone()));
    tasks
}

/// Why one of the tasks has failed; that others end is as it should be.
async fn failed(tasks: &mut JoinSet<()>) -> JoinError {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            return error;
        }
    }
    std::future::pending().await
}

fn csi_routes(registry: &Registry) -> Routes {
    let identity = Identity::new(env!("CARGO_PKG_VERSION"), || true);
    serve::controller(identity, Arc::new(Platform::new(registry.clone(), fresh)))
}

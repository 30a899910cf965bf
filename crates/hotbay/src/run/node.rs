//! `hotbay node`: the agent of one machine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use hotbay_api::token::{JoinToken, check_address};
use hotbay_core::agent::AttachAtStart;
use hotbay_core::ids::{Incarnation, NodeName};
use hotbay_core::node_labels::NodeLabels;
use hotbay_node::{AccountOptions, Config, JoinOptions, Member, Place, RegistryAt};
use uuid::Uuid;

use super::checkpoint::checkpoint;
use super::controller::wall_ms;
use super::{RunError, csi, descriptors, logging, node_scan, stop};
use crate::cli::ON_KUBERNETES;
use crate::config::{AtStart, ConfigArgs, Given, Settings};

pub(crate) const EXAMPLES: &str = "\
On the registry's machine:  hotbay up --listen-agents HOST:PORT, then hotbay token create NODE

Examples:
  hotbay node --join hotbay-join-1,...    join with the token, and run
  hotbay node                             run again: the data directory knows the rest
  hotbay node scan                        what it would see here; needs no registry";

/// The kernel counts in signed numbers of this width, and doubles them.
pub(super) const MOST_RECEIVE_BUFFER: i64 = 1 << 30;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    command: Option<NodeCommand>,
    /// The join token of a registry on another machine, or the Unix socket of one on this machine. Not needed again
    /// once joined with a token
    #[arg(long, value_name = "TOKEN|PATH", env = "HOTBAY_JOIN", hide_env_values = true)]
    join: Option<String>,
    /// A file with the token of the account that this node's platform gives it, as Kubernetes gives its pods: the node
    /// joins with it, and again whenever it must. Needs --authority and --address
    #[arg(long, value_name = "FILE", requires_all = ["authority", "address"], conflicts_with = "join")]
    #[arg(help_heading = ON_KUBERNETES)]
    join_account: Option<PathBuf>,
    /// A file with the certificate of the registry's authority: with --join-account no other registry is believed
    #[arg(long, value_name = "FILE", requires = "join_account", help_heading = ON_KUBERNETES)]
    authority: Option<PathBuf>,
    /// The node's name. With a token the name that it was made for, if given at all
    #[arg(long)]
    name: Option<NodeName>,
    /// Where the agent keeps what must survive [default: /var/lib/hotbay/node, without root
    /// ~/.local/share/hotbay/node]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A drive to look at: a path or pattern, or BAY=PATH; may be repeated. All drives of the machine if left out. None
    /// is in operation until it is added
    #[arg(long, value_name = "GLOB")]
    drives: Vec<String>,
    /// Where the registry on another machine listens now, if it is not where the token said; kept
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// Which drives the agent opens when it starts, before the registry has answered [default: record]. The price of
    /// all: a drive that was removed is opened again for a moment at every start of the agent, or for as long as the
    /// registry is away
    #[arg(long, value_name = "WHICH")]
    attach_at_start: Option<AtStart>,
    /// A file with rules that say which drives may be used at all; read again when it changes
    #[arg(long, value_name = "FILE")]
    filters: Option<PathBuf>,
    /// A Unix socket for CSI's Node service [default: csi.sock in the data directory]
    #[arg(long, value_name = "PATH")]
    csi_node: Option<PathBuf>,
    /// A label of the node when it registers for the first time; may be repeated. Later: hotbay host label
    #[arg(long, value_name = "KEY=VALUE", value_parser = crate::cli::label)]
    labels: Vec<String>,
    /// Room for events of devices; so little that some are lost, for tests
    #[arg(long, value_name = "BYTES", hide = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=MOST_RECEIVE_BUFFER))]
    receive_buffer: Option<u32>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What to do instead of running.
#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Shows what the agent would see on this machine, and for each device whether it can be added. Needs no registry
    #[command(after_help = node_scan::EXAMPLES)]
    Scan(node_scan::ScanArgs),
}

pub(crate) fn node(args: NodeArgs) -> Result<ExitCode, RunError> {
    let NodeArgs {
        command,
        join,
        name,
        data_dir,
        drives,
        address,
        attach_at_start,
        filters,
        csi_node,
        labels,
        join_account,
        authority,
        ..
    } = args;
    if let Some(NodeCommand::Scan(args)) = command {
        return node_scan::scan(args);
    }
    let join = join.filter(|join| !join.is_empty());
    let given = Given {
        join,
        name,
        drives,
        address,
        attach_at_start,
        filters,
        node_csi: csi_node,
        labels,
        ..Given::default()
    };
    let settings = args.config.settings(given)?;
    let data_dir = settings.folder("node", data_dir)?;
    let account = join_account.zip(authority);
    Ok(start(settings, data_dir, account, args.receive_buffer)?)
}

/// The files of an account's token and of an authority's certificate.
type AccountFiles = Option<(PathBuf, PathBuf)>;

fn start(
    settings: Settings,
    data_dir: PathBuf,
    account: AccountFiles,
    receive_buffer: Option<u32>,
) -> anyhow::Result<ExitCode> {
    logging::start();
    stop::with_supervisor()?;
    descriptors::allow_many();
    // One thread: everything that may wait for a drive is in a child.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ran = runtime.block_on(async {
        let stop = stop::told_to_stop();
        tokio::pin!(stop);
        let config = tokio::select! {
            config = config(settings, data_dir, account) => config?,
            () = &mut stop => return anyhow::Ok(()),
        };
        let receive_buffer = receive_buffer.map(|bytes| bytes as usize);
        Ok(hotbay_node::run(Config { receive_buffer, ..config }, stop).await?)
    });
    // A blocking call that hangs must not keep the process.
    runtime.shutdown_background();
    ran?;
    Ok(ExitCode::SUCCESS)
}

/// What the agent needs to know; joins first if that is asked for.
async fn config(
    settings: Settings,
    data_dir: PathBuf,
    account: AccountFiles,
) -> anyhow::Result<Config> {
    let address = settings.address.value.clone();
    let (name, registry) = match settings.join.value.as_deref() {
        _ if let Some(files) = account => {
            let member = with_account(&data_dir, files, settings.told_name(), address).await?;
            (member.node(), RegistryAt::Remote(member))
        }
        Some(text) if JoinToken::is_meant(text) => {
            let mut token: JoinToken = text.parse()?;
            if let Some(address) = &address {
                check_address(address)?;
                token.address.clone_from(address);
            }
            let data_dir = data_dir.clone();
            let name = settings.told_name();
            let options = JoinOptions { data_dir, token, name, wall_ms, checkpoint };
            let member = hotbay_node::join(options).await.context("this node did not join")?;
            move_to(&member, address)?;
            (member.node(), RegistryAt::Remote(member))
        }
        Some(path) => {
            let name = settings.name()?;
            let path = path.strip_prefix("unix:").unwrap_or(path);
            (name, RegistryAt::Local(PathBuf::from(path)))
        }
        None => {
            let member = stored(&data_dir, settings.told_name(), address)?;
            (member.node(), RegistryAt::Remote(member))
        }
    };
    let places = settings.drives.value.iter().map(|text| {
        let Ok(place) = text.parse::<Place>();
        place
    });
    Ok(Config {
        name,
        csi: csi::node_socket(settings.node_csi.value, &data_dir),
        data_dir,
        registry,
        places: places.collect(),
        filters: settings.filters.value,
        labels: NodeLabels::of_texts(&settings.labels.value)?,
        receive_buffer: None,
        at_start: match settings.attach_at_start.value {
            AtStart::Record => AttachAtStart::Allowed,
            AtStart::All => AttachAtStart::All,
        },
        version: env!("CARGO_PKG_VERSION").parse()?,
        incarnation: Incarnation::from_bits(Uuid::new_v4().as_u128()),
        folder_id: Uuid::new_v4().as_u128(),
        checkpoint,
    })
}

/// The member that this machine's account makes it.
async fn with_account(
    data_dir: &Path,
    (token, authority): (PathBuf, PathBuf),
    name: Option<NodeName>,
    address: Option<String>,
) -> anyhow::Result<Member> {
    let address = address.context("--join-account needs --address HOST:PORT")?;
    check_address(&address)?;
    let data_dir = data_dir.to_owned();
    let options = AccountOptions { data_dir, token, authority, address, name, wall_ms, checkpoint };
    hotbay_node::join_with_account(options).await.context("this node did not join")
}

/// The member that an earlier start has become.
fn stored(
    data_dir: &Path,
    name: Option<NodeName>,
    address: Option<String>,
) -> anyhow::Result<Member> {
    let member = Member::stored(data_dir, checkpoint, wall_ms)?.with_context(|| {
        format!(
            "{} has not joined a registry; give --join with a token (hotbay token create) or a Unix socket",
            data_dir.display()
        )
    })?;
    if let Some(name) = name.filter(|name| *name != member.node()) {
        bail!("{} joined as {}, not as {name}", data_dir.display(), member.node());
    }
    move_to(&member, address)?;
    Ok(member)
}

/// Notes where the registry is now, if that was told and is new.
fn move_to(member: &Member, address: Option<String>) -> anyhow::Result<()> {
    if let Some(address) = address.filter(|address| *address != member.address()) {
        check_address(&address)?;
        member.moved(&address)?;
    }
    Ok(())
}

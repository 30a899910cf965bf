//! `hotbay token create`: lets an agent on another machine join. Asks the registry of this machine.

use std::time::Duration;

use clap::Subcommand;
use hotbay_api::PROTOCOL;
use hotbay_api::join::CreateTokenRequest;
use hotbay_core::ids::NodeName;

use crate::cli::parse_time;
use crate::client::api::{self, Api};
use crate::client::{ClientError, Exit};

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay token create node-b           then, on node-b: hotbay node --join TOKEN
  hotbay token create node-b --ttl 10m --address storage.example:7443";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a token that lets one agent join as NODE, once. It is shown here and nowhere else
    #[command(after_help = EXAMPLES)]
    Create {
        #[arg(value_name = "NODE")]
        node: NodeName,
        /// How long it is good for, such as 10m or 1h. A registry that is started again forgets it sooner
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time)]
        ttl: Duration,
        /// Where the agent dials the registry [default: the first address of --listen-agents]
        #[arg(long, value_name = "HOST:PORT")]
        address: Option<String>,
    },
}

/// Runs one command against the registry at `api`, or where one is found.
pub(crate) fn run(api: Option<&str>, command: TokenCommand) -> Result<Exit, ClientError> {
    let TokenCommand::Create { node, ttl, address } = command;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Start)?;
    let token = runtime.block_on(async {
        let api = Api::connect(api::socket(api)?).await?;
        api.create_token(CreateTokenRequest {
            protocol: PROTOCOL,
            node_name: node.to_string(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            address: address.unwrap_or_default(),
        })
        .await
    })?;
    // Alone on standard output, for scripts.
    println!("{token}");
    Ok(Exit::Done)
}

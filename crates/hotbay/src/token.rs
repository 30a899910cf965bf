//! `hotbay token`: who gets in from other machines. Agents join with a token that is good once; people and programs
//! show theirs with every request, until it expires or is revoked.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hotbay_api::PROTOCOL;
use hotbay_api::access::{self as wire, ClientToken};
use hotbay_api::join::CreateTokenRequest;
use hotbay_api::token::REGISTRY_NAME;
use hotbay_core::ids::NodeName;

use crate::cli::{ApiArgs, parse_time};
use crate::client::api::Api;
use crate::client::get::now_ms;
use crate::client::place::Place;
use crate::client::table::{Cell, Table, Tone};
use crate::client::words::ago;
use crate::client::{ClientError, Exit, Screen};

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay token create node-b           let an agent join as node-b, once
  hotbay token create --client ci --may read
                                       let people or programs in, again and again";

const CREATE_EXAMPLES: &str = "\
An agent:  hotbay token create NODE, then there: hotbay node --join TOKEN
A client:  hotbay token create --client NAME --may read|write, then there: see what is printed

Examples:
  hotbay token create node-b --ttl 10m --address storage.example:7443
  hotbay token create --client ci --may write --valid 30d > token";

const LIST_EXAMPLES: &str = "\
Examples:
  hotbay token list
  hotbay token list --api https://storage.example:7444";

const REVOKE_EXAMPLES: &str = "\
Examples:
  hotbay token revoke ci               its next request is refused, and what it follows ends
  hotbay token revoke ci && hotbay token create --client ci --may read";

const AUTHORITY_EXAMPLES: &str = "\
Examples:
  hotbay token authority > authority.pem
  curl --cacert <(hotbay token authority) --header \"Authorization: Bearer $HOTBAY_TOKEN\" $HOTBAY_API/v1/drives";

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Makes a token, for one agent or for clients. It is shown here and nowhere else
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArgs),
    /// Shows the clients' tokens: what each may, and until when
    #[command(after_help = LIST_EXAMPLES)]
    List,
    /// Ends a client's token, at once
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Prints the certificate of the registry's authority, by which curl and others know the registry
    #[command(after_help = AUTHORITY_EXAMPLES)]
    Authority,
}

#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The node that an agent may join as, once
    #[arg(value_name = "NODE", required_unless_present = "client", conflicts_with = "client")]
    node: Option<NodeName>,
    /// How long an agent's token is good for, such as 10m or 1h. A registry that is started again forgets it sooner
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time, conflicts_with = "client")]
    ttl: Duration,
    /// Where the agent dials the registry [default: the first address of --listen-agents]
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "client")]
    address: Option<String>,
    /// A name for the token of people or programs; it is recorded with everything that they ask for
    #[arg(long, value_name = "NAME", requires = "may")]
    client: Option<String>,
    /// What the client's token may do: look, or also change
    #[arg(long, value_name = "read|write", requires = "client")]
    may: Option<May>,
    /// How long the client's token is good for, such as 12h or 90d
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = parse_days, requires = "client")]
    valid: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum May {
    /// Look, and ask what would happen
    Read,
    /// The same, and change things
    Write,
}

/// Reads a time that may have days.
fn parse_days(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days @ 1..=3_650)) => Ok(Duration::from_secs(days * 24 * 3_600)),
        Some(_) => Err("1d to 3650d are expected".to_owned()),
        None => parse_time(text).map_err(|why| format!("{why}; or 90d")),
    }
}

/// Runs one command against the registry that was named, or where one is found.
pub(crate) fn run(api: &ApiArgs, command: TokenCommand) -> Result<Exit, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Start)?;
    runtime.block_on(async {
        let api = Api::connect(Place::find(api)?).await?;
        let mut screen = Screen::new();
        match command {
            TokenCommand::Create(args) => create(&api, &mut screen, args).await?,
            TokenCommand::List => list(&api, &mut screen).await?,
            TokenCommand::Revoke { name } => {
                let request = wire::RevokeTokenRequest { protocol: PROTOCOL, name: name.clone() };
                api.access(async |mut access| access.revoke_token(request).await).await?;
                screen.line(&format!("The token {name} is revoked."))?;
            }
            TokenCommand::Authority => {
                let request = wire::GetAuthorityRequest { protocol: PROTOCOL };
                let answer = api.access(async |mut access| access.get_authority(request).await);
                screen.print(&answer.await?.authority_pem)?;
            }
        }
        Ok(Exit::Done)
    })
}

async fn create(api: &Api, screen: &mut Screen, args: CreateArgs) -> Result<(), ClientError> {
    let CreateArgs { node, ttl, address, client, may, valid } = args;
    if let (Some(name), Some(may)) = (client, may) {
        return create_for_client(api, screen, name, may, valid).await;
    }
    let request = CreateTokenRequest {
        protocol: PROTOCOL,
        node_name: node.map(String::from).unwrap_or_default(),
        ttl_ms: in_ms(ttl),
        address: address.unwrap_or_default(),
    };
    // Alone on standard output, for scripts.
    Ok(screen.line(&api.create_token(request).await?)?)
}

async fn create_for_client(
    api: &Api,
    screen: &mut Screen,
    name: String,
    may: May,
    valid: Duration,
) -> Result<(), ClientError> {
    let right = match may {
        May::Read => wire::May::Read,
        May::Write => wire::May::Write,
    };
    let request = wire::CreateTokenRequest {
        protocol: PROTOCOL,
        name: name.clone(),
        may: right.into(),
        valid_ms: in_ms(valid),
    };
    let made = api.access(async |mut access| access.create_token(request).await).await?;
    // Alone on standard output, for scripts; the rest is for people.
    screen.line(&made.token)?;
    let may = match may {
        May::Read => "may read",
        May::Write => "may read and write",
    };
    let until = ahead(made.expires_ms, now_ms());
    let address = match api.place() {
        Place::Remote { address, .. } => address.clone(),
        Place::Socket(_) | Place::Service { .. } => made.address,
    };
    screen.aside(&format!(
        "\nThe token {name} {may}, and expires in {until}. It is shown here and nowhere else. To use it:\n{}",
        how_to_use(&address)
    ));
    Ok(())
}

/// Lines to copy. An address without a host is where the registry listens on all addresses of its machine.
fn how_to_use(address: &str) -> String {
    let (dialled, curl) = match address.strip_prefix(':') {
        Some(port) => {
            let dialled = format!("HOST:{port}");
            let curl = format!("--connect-to ::{dialled} https://{REGISTRY_NAME}");
            (dialled, curl)
        }
        None => (address.to_owned(), format!("https://{address}")),
    };
    format!(
        "  export HOTBAY_API=https://{dialled} HOTBAY_TOKEN=...
  hotbay get drives
  hotbay token authority > authority.pem
  curl --cacert authority.pem --header \"Authorization: Bearer $HOTBAY_TOKEN\" {curl}/v1/drives
"
    )
}

async fn list(api: &Api, screen: &mut Screen) -> Result<(), ClientError> {
    let request = wire::ListTokensRequest { protocol: PROTOCOL };
    let answer = api.access(async |mut access| access.list_tokens(request).await).await?;
    if answer.tokens.is_empty() {
        screen.aside("There are no tokens of clients. Make one:  hotbay token create --client NAME --may read\n");
        return Ok(());
    }
    let now_ms = now_ms();
    let table = Table {
        titles: vec!["NAME", "MAY", "CREATED", "EXPIRES", "LAST USED"],
        rows: answer.tokens.iter().map(|token| row(token, now_ms)).collect(),
        squeezes: &[],
        keeps_its_end: "",
    };
    let widths = table.natural(&Vec::new());
    let mut lines = vec![table.title_line(&widths)];
    lines.extend(table.row_lines(&widths, screen.has_colour()));
    Ok(screen.print(&(lines.join("\n") + "\n"))?)
}

fn row(token: &ClientToken, now_ms: u64) -> Vec<Cell> {
    let may = match token.may() {
        wire::May::Read => "read",
        wire::May::Write => "write",
        wire::May::Unknown => "?",
    };
    let expires = if token.expired {
        Cell::toned("expired", Tone::Bad)
    } else {
        Cell::new(format!("in {}", ahead(token.expires_ms, now_ms)))
    };
    let last_used = match token.last_used_ms {
        0 => "not since the registry started".to_owned(),
        used => format!("{} ago", ago(used, now_ms)),
    };
    let created = format!("{} ago", ago(token.created_ms, now_ms));
    vec![Cell::new(&token.name), Cell::new(may), Cell::new(created), expires, Cell::new(last_used)]
}

/// How far ahead a time is, for a table; rounded up, so that a token of 90 days has 90 days at first.
fn ahead(then_ms: u64, now_ms: u64) -> String {
    let seconds = then_ms.saturating_sub(now_ms).div_ceil(1_000);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds.div_ceil(60)),
        7_200..172_800 => format!("{}h", seconds.div_ceil(3_600)),
        _ => format!("{}d", seconds.div_ceil(86_400)),
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_may_be_good_for_days() {
        assert_eq!(parse_days("90d"), Ok(Duration::from_secs(90 * 86_400)));
        assert_eq!(parse_days("12h"), Ok(Duration::from_secs(12 * 3_600)));
        for bad in ["", "d", "0d", "-1d", "4000d", "1.5d", "90", "99999999999999999999d"] {
            assert!(parse_days(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_new_token_has_all_its_time() {
        assert_eq!(ahead(90 * 86_400_000, 500), "90d");
        assert_eq!(ahead(3_600_000, 1), "60m");
        assert_eq!(ahead(1_000, 2_000), "0s");
    }

    #[test]
    fn what_to_type_fits_where_the_registry_listens() {
        let known = how_to_use("192.0.2.7:7444");
        assert!(known.contains("HOTBAY_API=https://192.0.2.7:7444 "), "{known}");
        assert!(known.contains(" https://192.0.2.7:7444/v1/drives\n"), "{known}");
        let anywhere = how_to_use(":7444");
        assert!(anywhere.contains("--connect-to ::HOST:7444 https://registry.hotbay.internal/v1/"));
    }
}

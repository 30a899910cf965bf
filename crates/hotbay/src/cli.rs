//! The command line: every command, option and help text of `hotbay`. `main` parses it.
//!
//! The help of the program as a whole is written by hand, so that it fits one screen and is grouped by what people come
//! for. A test keeps it in step with the commands.

mod drive;
mod host;
mod label;
mod volume;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

pub(crate) use drive::{
    DriveAddArgs, DriveArgs, DriveCommand, ExplainFormat, PlanArgs, TakeOverArgs, TakeOverFormat,
};
pub(crate) use host::HostCommand;
pub(crate) use label::{LabelArgs, label};
pub(crate) use volume::{AgentArgs, Annotation, MountArgs, VolumeCommand, WishArgs};

use crate::config::ConfigCommand;
use crate::crd::CrdArgs;
use crate::recover::RecoverArgs;
use crate::run::RunCommand;
use crate::store::StoreCommand;
use crate::token::TokenCommand;

/// The heading of options that only pods are started with.
pub(crate) const ON_KUBERNETES: &str = "On Kubernetes";

const HELP: &str = "\
Hotbay: block storage for bare metal. Usage: hotbay [--api PLACE] [-V] COMMAND
Run:
  up           Run Hotbay on this machine, with its real drives
  demo         See Hotbay at work, on drives that are files in a folder
  node         Run this machine's agent for a registry elsewhere, or just scan
  config       Look at the settings of up and node, and their file: check
  token        Let agents and clients on other machines in: create, list, revoke
Look:
  get          Show drives, nodes or volumes, and why one is not as wished
  describe     Everything about one of them, with what happened to it
  events       What happened lately, and with --follow what happens
  status       How it all stands, in a few lines
Act:
  drive        In and out of operation: add, remove, take-over; plan, explain
  host         All drives of a host: add, remove; cordon, label, forget, purge
  volume       Pieces of drives: create, delete, expand, mount, explain, list
Repair, and for the shell:
  registry     Let a restored registry learn from its nodes: adopt
  recover      Rebuild a lost registry from the labels on its drives
  store        Look after the registry's records: check
  completions  Print completions for bash, zsh or fish
  crd          Print what Kubernetes must know of drives, volumes and the rest
  --api PLACE  A socket or https://HOST:PORT; 'hotbay COMMAND --help' has more
Exit codes: 0 done, 1 failed, 2 usage, 3 try again, 4 not found, 5 refused
";

const GET_EXAMPLES: &str = "\
Examples:
  hotbay get drives                    what there is, and why it is not in use
  hotbay get nodes -o json             the same objects that the API has";

const GET_DRIVES_EXAMPLES: &str = "\
Examples:
  hotbay get drives --usable           what can be added
  hotbay get drives node-a:bay-0 -o yaml
                                       everything about one drive";

const GET_VOLUMES_EXAMPLES: &str = "\
Examples:
  hotbay get volumes --watch           follow what changes
  hotbay get volumes db -o json        everything about one volume";

const GET_NODES_EXAMPLES: &str = "\
Examples:
  hotbay get nodes --watch             follow what changes
  hotbay get nodes node-a -o json      everything about one node";

const DESCRIBE_EXAMPLES: &str = "\
Examples:
  hotbay describe drive node-a:bay-0
  hotbay describe node node-a";

const EVENTS_EXAMPLES: &str = "\
Examples:
  hotbay events                        what happened lately
  hotbay events --follow";

const STATUS_EXAMPLES: &str = "\
Exits with 0 if every node is there and every drive as wished, else with 3.

Examples:
  hotbay status
  hotbay status --api /run/hotbay/api.sock";

const REGISTRY_EXAMPLES: &str = "\
Examples:
  hotbay registry adopt                says what the nodes know that the registry forgot, and asks
  hotbay registry adopt --yes";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(hotbay completions bash)
  hotbay completions fish > ~/.config/fish/completions/hotbay.fish";

#[derive(Debug, Parser)]
#[command(name = "hotbay", version, about, override_help = HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which registry is meant, and what to show there.
#[derive(Debug, Args)]
pub(crate) struct ApiArgs {
    /// The registry's Unix socket, or https://HOST:PORT of one on another machine
    #[arg(long, global = true, env = "HOTBAY_API", value_name = "PLACE", hide_env_values = true)]
    pub(crate) api: Option<String>,
    /// A file with the token for a registry on another machine, closed to others [default: $HOTBAY_TOKEN]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    Run(RunCommand),
    #[command(flatten)]
    Client(ClientCommand),
    /// Lets agents, and clients, on other machines in
    #[command(after_help = crate::token::EXAMPLES)]
    Token {
        #[command(subcommand)]
        command: TokenCommand,
    },
    /// Rebuilds a registry that is lost from the labels on its drives
    #[command(after_help = crate::recover::EXAMPLES)]
    Recover(RecoverArgs),
    /// Looks after the registry's records
    #[command(after_help = crate::store::EXAMPLES)]
    Store {
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Looks at the settings of what runs and stays
    #[command(after_help = crate::config::EXAMPLES)]
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Prints the custom resource definitions, for kubectl apply
    #[command(after_help = crate::crd::EXAMPLES)]
    Crd(CrdArgs),
    /// Prints the manual page of hotbay, or writes all pages into a folder of manuals
    #[command(hide = true, after_help = crate::man::EXAMPLES)]
    Man {
        /// The folder, such as /usr/local/share/man; made if it is missing
        dir: Option<PathBuf>,
    },
    /// Prints completions for a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions { shell: Shell },
}

/// Commands that ask a registry.
#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// Shows drives, nodes or volumes, and why one is not as wished
    #[command(after_help = GET_EXAMPLES)]
    Get(GetArgs),
    /// Shows everything about one drive, node or volume, with what happened to it
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Describe {
        #[command(subcommand)]
        what: Described,
    },
    /// Shows what happened lately: the last 1,000 events since the registry started
    #[command(after_help = EVENTS_EXAMPLES)]
    Events {
        /// Go on and show what happens
        #[arg(short, long)]
        follow: bool,
    },
    /// Shows how it all stands, in a few lines
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
    /// Puts drives into operation, or takes them out; plans that for many, and explains why not
    #[command(after_help = drive::DRIVE_EXAMPLES)]
    Drive {
        #[command(subcommand)]
        command: DriveCommand,
    },
    /// Puts all drives of a host into operation, or takes them out; cordons or labels a host, or gives it up
    #[command(after_help = host::HOST_EXAMPLES)]
    Host {
        #[command(subcommand)]
        command: HostCommand,
    },
    /// Makes volumes on drives, deletes and expands them; explains where one would go
    #[command(after_help = volume::VOLUME_EXAMPLES)]
    Volume {
        #[command(subcommand)]
        command: VolumeCommand,
    },
    /// Decides for a registry that went back in time
    #[command(after_help = REGISTRY_EXAMPLES)]
    Registry {
        #[command(subcommand)]
        command: RegistryCommand,
    },
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(subcommand)]
    pub(crate) what: What,
    /// How to print it. json and yaml are the API's own objects, with sizes in bytes and times in Unix milliseconds
    #[arg(short, long, global = true, value_name = "FORMAT")]
    pub(crate) output: Option<Format>,
    /// Go on and show every change: repainted on a terminal, one line per change otherwise
    #[arg(short, long, global = true)]
    pub(crate) watch: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// The drives of all nodes, or those named
    #[command(visible_alias = "drive", alias = "dr", after_help = GET_DRIVES_EXAMPLES)]
    Drives {
        /// A drive's name, serial number or id, or node:/dev/x, or node:bay-0
        #[arg(value_name = "DRIVE")]
        names: Vec<String>,
        /// Only drives that can be added: present, not in operation, and nothing on them that is not ours
        #[arg(long)]
        usable: bool,
    },
    /// The machines with an agent, or those named
    #[command(visible_alias = "node", alias = "no", after_help = GET_NODES_EXAMPLES)]
    Nodes {
        #[arg(value_name = "NODE")]
        names: Vec<String>,
    },
    /// The volumes on all drives, or those named
    #[command(visible_alias = "volume", alias = "vol", after_help = GET_VOLUMES_EXAMPLES)]
    Volumes {
        /// A volume's name or id
        #[arg(value_name = "VOLUME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Described {
    /// One drive
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Drive {
        /// A drive's name, serial number or id, or node:/dev/x, or node:bay-0
        #[arg(value_name = "DRIVE")]
        name: String,
    },
    /// One node
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Node {
        #[arg(value_name = "NODE")]
        name: String,
    },
    /// One volume
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Volume {
        /// A volume's name or id
        #[arg(value_name = "VOLUME")]
        name: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// More columns, nothing cut
    Wide,
    Json,
    Yaml,
    /// Names alone, one per line
    Name,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RegistryCommand {
    /// Takes over what the nodes know: after a restored backup or a copied data directory
    #[command(after_help = REGISTRY_EXAMPLES)]
    Adopt {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// How an action is taken.
#[derive(Debug, Args)]
pub(crate) struct HowArgs {
    /// Wait until it is done. Ctrl-C stops waiting, not the action
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) wait: bool,
    /// How long to wait, such as 90s, 5m or 1h; 0 is as long as it takes
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = parse_time, requires = "wait")]
    pub(crate) timeout: Duration,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

impl HowArgs {
    /// The limit of the wait; `None` is none.
    pub(crate) fn limit(&self) -> Option<Duration> {
        Some(self.timeout).filter(|limit| !limit.is_zero())
    }
}

/// The shells that completions are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints completions. A reader that hangs up has seen enough.
pub(crate) fn print_completions(shell: Shell) {
    let generator = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(generator, &mut Cli::command(), "hotbay", &mut script);
    std::io::stdout().write_all(&script).unwrap_or_default();
}

/// Reads a number with its unit.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "a number with a unit is expected: 500ms, 90s, 5m or 1h";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or(EXPECTED)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| EXPECTED)?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(EXPECTED.to_owned()),
    };
    // A year is longer than anybody waits, and far from where clocks overflow.
    let limit_ms = 365 * 24 * 3_600_000;
    let time_ms = number.checked_mul(unit_ms).filter(|ms| *ms <= limit_ms);
    time_ms.map(Duration::from_millis).ok_or_else(|| "longer than a year".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_fits_one_screen() {
        assert!(HELP.lines().count() <= 24, "{} lines", HELP.lines().count());
        assert_eq!(HELP.lines().find(|line| line.chars().count() > 80), None);
    }

    #[test]
    fn the_help_lists_every_command_that_is_not_hidden() {
        for command in Cli::command().get_subcommands() {
            let listed = HELP.lines().any(|line| {
                line.strip_prefix("  ").is_some_and(|line| {
                    line.split_whitespace().next() == Some(command.get_name())
                        && line.contains("  ")
                })
            });
            assert_eq!(listed, !command.is_hide_set(), "{}", command.get_name());
        }
    }

    /// Commands that run and stay have their help beside their code.
    #[test]
    fn the_help_of_every_client_command_ends_with_two_examples() {
        fn check(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
            let count = examples.lines().filter(|line| line.contains("hotbay ")).count();
            assert_eq!(count, 2, "{}: {help:?}", command.get_name());
            command.get_subcommands().for_each(check);
        }
        let cli = Cli::command();
        for name in [
            "get",
            "describe",
            "events",
            "status",
            "drive",
            "host",
            "volume",
            "registry",
            "token",
            "config",
            "man",
            "store",
            "recover",
            "crd",
            "completions",
        ] {
            check(cli.find_subcommand(name).expect("a command of that name"));
        }
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_time("0"), Ok(Duration::ZERO));
        for bad in ["", "5", "m", "5 m", "-5s", "5d", "1e9s", "99999999999999999999s", "9000000h"] {
            assert!(parse_time(bad).is_err(), "{bad:?} was taken");
        }
    }
}

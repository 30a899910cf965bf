//! The command line of `kubectl hotbay`: the client's commands, and which cluster is meant.

use std::path::PathBuf;

use clap::builder::StyledStr;
use clap::{Args, Command, CommandFactory, FromArgMatches, Parser};

use super::with_kubectl;
use crate::cli::ClientCommand;

const HELP: &str = "\
Hotbay: block storage for bare metal. Usage: kubectl hotbay COMMAND
Look:
  get          Show drives, nodes or volumes, and why one is not as wished
  describe     Everything about one of them, with what happened to it
  events       What happened lately, and with --follow what happens
  status       How it all stands, in a few lines
Act:
  drive        In and out of operation: add, remove, take-over; plan, explain
  host         The same for all drives of a host: add, remove; purge, label it
  volume       Pieces of drives: create, delete, expand, annotate, explain, list
Repair:
  registry     Let a restored registry learn from its nodes: adopt
Which cluster:
  -n, --namespace NAME   Where Hotbay is installed [default: hotbay]
  --context NAME         The context of the kubeconfig
  --kubeconfig FILE      Another kubeconfig
  --as-viewer            With the rights of hotbay-viewer, also for what changes
'kubectl hotbay COMMAND --help' has more
Exit codes: 0 done, 1 failed, 2 usage, 3 try again, 4 not found, 5 refused
";

#[derive(Debug, Parser)]
#[command(name = "kubectl-hotbay", bin_name = "kubectl hotbay", version, about)]
#[command(override_help = HELP, max_term_width = 100)]
struct PluginCli {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(subcommand)]
    command: ClientCommand,
}

/// Which cluster is meant, and as whom it is asked.
#[derive(Debug, Args)]
pub(super) struct ClusterArgs {
    /// Where Hotbay is installed
    #[arg(short, long, global = true, value_name = "NAME", default_value = "hotbay")]
    pub(super) namespace: String,
    /// The context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Another kubeconfig
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) kubeconfig: Option<PathBuf>,
    /// With the rights of hotbay-viewer, also for what changes something
    #[arg(long, global = true)]
    pub(super) as_viewer: bool,
}

/// What was asked for; ends the process with help, or with what is wrong.
pub(super) fn parse() -> (ClusterArgs, ClientCommand) {
    let matches = command().get_matches();
    let PluginCli { cluster, command } =
        PluginCli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    (cluster, command)
}

/// The commands, in the words of a plug-in. What needs the machine of a drive is not listed.
fn command() -> Command {
    let elsewhere = |command: Command| command.hide(true);
    renamed(PluginCli::command())
        .mut_subcommand("drive", |drive| drive.mut_subcommand("inspect", elsewhere))
        .mut_subcommand("volume", |volume| {
            volume.mut_subcommand("mount", elsewhere).mut_subcommand("unmount", elsewhere)
        })
}

fn renamed(mut command: Command) -> Command {
    let said = |text: &StyledStr| with_kubectl(&text.to_string());
    if let Some(about) = command.get_about().map(said) {
        command = command.about(about);
    }
    if let Some(examples) = command.get_after_help().map(said) {
        command = command.after_help(examples);
    }
    command.mut_subcommands(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_its_help_fits_one_screen() {
        command().debug_assert();
        assert!(HELP.lines().count() <= 24, "{} lines", HELP.lines().count());
        assert_eq!(HELP.lines().find(|line| line.chars().count() > 80), None);
        for command in command().get_subcommands() {
            assert!(HELP.contains(&format!("\n  {} ", command.get_name())), "{command}");
        }
    }

    #[test]
    fn examples_say_kubectl() {
        fn check(command: &Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let examples = help.split("Examples:\n").nth(1).unwrap_or_default();
            for line in examples.lines().filter(|line| line.contains("hotbay ")) {
                let elsewhere = line.contains("hotbay up") || line.contains("hotbay node");
                assert!(line.contains("kubectl hotbay ") || elsewhere, "{line}");
            }
            command.get_subcommands().for_each(check);
        }
        command().get_subcommands().for_each(check);
    }
}

//! `kubectl hotbay`: called as `kubectl-hotbay`, the program is a plug-in of kubectl. It reaches the controllers with
//! the kubeconfig and the rights of whoever calls it: kubectl makes a token that is good for some minutes, and a way
//! to the controllers' Service; everything else is as for any client on another machine. `main` calls [`run`].
//!
//! - [`cli`]: its command line. [`kubectl`]: what kubectl is asked for, and why it does not work.
//! - [`renewal`]: another token before one ends, for as long as a command goes on.
//! - [`tunnel`]: the way to the Service, which ends with this process.

mod cli;
pub(crate) mod kubectl;
mod renewal;
mod tunnel;

use std::process::ExitCode;
use std::sync::OnceLock;

use crate::cli::ClientCommand;
use crate::client::{self, ClientError};
use crate::complain;
use kubectl::{Account, Kubectl};
use tunnel::Tunnel;

/// What kubectl looks for.
const CALLED: &str = "kubectl-hotbay";

/// Commands that a plug-in has; texts name them.
const COMMANDS: [&str; 8] =
    ["get", "describe", "events", "status", "drive", "host", "volume", "registry"];

/// Whether this process was called by that name.
pub(crate) fn is_called() -> bool {
    static IS_CALLED: OnceLock<bool> = OnceLock::new();
    *IS_CALLED.get_or_init(|| {
        let called = std::env::args_os().next().unwrap_or_default();
        std::path::Path::new(&called).file_name().is_some_and(|name| name == CALLED)
    })
}

/// A text for people, with commands as they are called here.
pub(crate) fn as_called(text: &str) -> String {
    if is_called() { with_kubectl(text) } else { text.to_owned() }
}

/// Puts kubectl before every command of ours that a text names.
fn with_kubectl(text: &str) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("hotbay ") {
        let (before, from) = rest.split_at(at);
        let (ours, after) = from.split_at("hotbay ".len());
        said.push_str(before);
        let word = after.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
        let begins = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || "-./".contains(c));
        if begins && COMMANDS.contains(&word) && !said.ends_with("kubectl ") {
            said.push_str("kubectl ");
        }
        said.push_str(ours);
        rest = after;
    }
    said + rest
}

/// Does what the command line says.
pub(crate) fn run() -> ExitCode {
    if let Some(code) = tunnel::held() {
        return code;
    }
    let (cluster, command) = cli::parse();
    let account =
        if cluster.as_viewer || !changes(&command) { Account::Viewer } else { Account::Admin };
    let mut tunnel = None;
    let find = || {
        let kubectl = Kubectl::new(&cluster);
        let opened = tunnel.insert(Tunnel::open(&kubectl)?);
        let token = renewal::begin(&kubectl, account)?;
        Ok(opened.place(token, kubectl.authority()?, kubectl.namespace())?)
    };
    let done = client::run_at(find, command);
    drop(tunnel);
    match done {
        Ok(exit) => exit.into(),
        Err(error) => {
            complain(&error, &error.next_steps());
            ClientError::exit(&error).into()
        }
    }
}

/// Whether a command may change something.
fn changes(command: &ClientCommand) -> bool {
    use crate::cli::{DriveCommand, HostCommand, VolumeCommand};
    match command {
        ClientCommand::Get(_)
        | ClientCommand::Describe { .. }
        | ClientCommand::Events { .. }
        | ClientCommand::Status => false,
        ClientCommand::Drive { command } => match command {
            DriveCommand::Add(args) => !args.how.dry_run,
            DriveCommand::Remove(args) => !args.how.dry_run,
            DriveCommand::TakeOver(args) => !args.how.dry_run,
            DriveCommand::Plan(_) | DriveCommand::Explain { .. } | DriveCommand::Inspect { .. } => {
                false
            }
        },
        ClientCommand::Host { command } => match command {
            HostCommand::Add { how, .. } | HostCommand::Remove { how, .. } => !how.dry_run,
            HostCommand::Label(args) => !args.dry_run,
            HostCommand::Purge { .. }
            | HostCommand::Forget { .. }
            | HostCommand::Cordon { .. }
            | HostCommand::Uncordon { .. } => true,
        },
        ClientCommand::Volume { command } => match command {
            VolumeCommand::List { .. } | VolumeCommand::Explain { .. } => false,
            VolumeCommand::Create { .. }
            | VolumeCommand::Delete { .. }
            | VolumeCommand::Expand { .. }
            | VolumeCommand::Mount(_)
            | VolumeCommand::Unmount { .. }
            | VolumeCommand::Annotate { .. } => true,
        },
        ClientCommand::Registry { .. } => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_commands_as_they_are_called() {
        for (text, said) in [
            ("see:  hotbay get drives", "see:  kubectl hotbay get drives"),
            ("hotbay drive add d --wait", "kubectl hotbay drive add d --wait"),
            ("kubectl hotbay get drives", "kubectl hotbay get drives"),
            (
                "use the same release of hotbay on both sides",
                "use the same release of hotbay on both sides",
            ),
            ("hotbay up and hotbay demo start one", "hotbay up and hotbay demo start one"),
            ("hotbay getter", "hotbay getter"),
        ] {
            assert_eq!(with_kubectl(text), said);
        }
    }
}

//! The first connection of a command: made at once, or, by a command that waits anyway, waited for. The folder's `run`
//! calls it.

use std::future::pending;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::time::{Duration, Instant};

use tokio::time::sleep_until;

use super::api::Api;
use super::error::ClientError;
use super::place::Place;
use super::screen::Screen;
use super::words;
use crate::cli::{ClientCommand, DriveCommand, HostCommand, HowArgs, VolumeCommand};

/// How often a registry that is not there is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How long a registry that is not there is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: it is an error at once.
    None,
    /// As long as the command waits for the rest.
    Limited(Duration),
    /// Until somebody presses Ctrl-C.
    Endless,
}

impl Patience {
    /// A command that waits for what it asks for, or follows what happens, waits for the registry as well.
    pub(crate) fn of(command: &ClientCommand) -> Self {
        match command {
            ClientCommand::Get(args) if args.watch => Self::Endless,
            ClientCommand::Events { follow: true } => Self::Endless,
            ClientCommand::Drive { command: DriveCommand::Add(args) } => Self::of_action(&args.how),
            ClientCommand::Drive { command: DriveCommand::Remove(args) } => {
                Self::of_action(&args.how)
            }
            ClientCommand::Drive { command: DriveCommand::TakeOver(args) } => {
                Self::of_action(&args.how)
            }
            ClientCommand::Host {
                command: HostCommand::Add { how, .. } | HostCommand::Remove { how, .. },
            } => Self::of_action(how),
            ClientCommand::Volume { command: VolumeCommand::List { watch: true, .. } } => {
                Self::Endless
            }
            ClientCommand::Get(_)
            | ClientCommand::Volume { .. }
            | ClientCommand::Events { follow: false }
            | ClientCommand::Describe { .. }
            | ClientCommand::Status
            | ClientCommand::Drive {
                command:
                    DriveCommand::Plan(_) | DriveCommand::Explain { .. } | DriveCommand::Inspect { .. },
            }
            | ClientCommand::Host {
                command:
                    HostCommand::Purge { .. }
                    | HostCommand::Forget { .. }
                    | HostCommand::Label(_)
                    | HostCommand::Cordon { .. }
                    | HostCommand::Uncordon { .. },
            }
            | ClientCommand::Registry { .. } => Self::None,
        }
    }

    fn of_action(how: &HowArgs) -> Self {
        match how.limit() {
            _ if !how.wait => Self::None,
            Some(limit) => Self::Limited(limit),
            None => Self::Endless,
        }
    }
}

/// Connects. `None`: somebody pressed Ctrl-C before there was anything to connect to.
pub(crate) async fn connect(
    place: Place,
    patience: Patience,
    began: Instant,
    screen: &mut Screen,
) -> Result<Option<Api>, ClientError> {
    let limit = async {
        match patience {
            Patience::Limited(limit) => sleep_until((began + limit).into()).await,
            Patience::None | Patience::Endless => pending().await,
        }
    };
    let mut last = None;
    let api = tokio::select! {
        // Listened to before anything is said: who reads that it waits may press Ctrl-C at once.
        biased;
        _ = tokio::signal::ctrl_c(), if patience != Patience::None => None,
        found = look(&place, patience, began, screen, &mut last) => Some(found?),
        () = limit => {
            screen.end_live()?;
            let waited = words::took(began.elapsed());
            return Err(match last {
                Some(last) => {
                    let (place, last) = (place.to_string(), Box::new(last));
                    ClientError::StayedAway { place, waited, last }
                }
                None => {
                    let waited_s = began.elapsed().as_secs();
                    ClientError::NoAnswer { place: place.to_string(), waited_s }
                }
            });
        }
    };
    screen.end_live()?;
    if api.is_none() {
        screen.aside("Stopped waiting. Nothing was asked for.\n");
    }
    Ok(api)
}

/// Tries until it succeeds, or until what fails will not come right by itself. Leaves the last failure in `last`.
async fn look(
    place: &Place,
    patience: Patience,
    began: Instant,
    screen: &mut Screen,
    last: &mut Option<ClientError>,
) -> Result<Api, ClientError> {
    // Without end of its own: whoever calls has a limit, or was told to have none.
    loop {
        let error = match Api::connect(place.clone()).await {
            Ok(api) => return Ok(api),
            Err(error) => never_a_socket(place).unwrap_or(error),
        };
        if patience == Patience::None || !comes_right(&error) {
            return Err(error);
        }
        let (at, why) = (place, error.why_away());
        if screen.is_terminal() {
            let so_far = began.elapsed().as_secs();
            screen.live(&format!("waiting for the registry at {at}, {so_far} s so far: {why}"))?;
        } else if last.as_ref().is_none_or(|last| last.why_away() != why) {
            screen.aside(&format!("waiting for the registry at {at}: {why}\n"));
        }
        *last = Some(error);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// What stands at the path instead of a socket. The kernel says of it only that nobody listens.
fn never_a_socket(place: &Place) -> Option<ClientError> {
    let Place::Socket(socket) = place else { return None };
    let found = std::fs::metadata(socket).ok()?.file_type();
    let what = match found {
        kind if kind.is_socket() => return None,
        kind if kind.is_dir() => "directory",
        _ => "file",
    };
    Some(ClientError::NotASocket { socket: socket.to_owned(), what })
}

/// Whether a registry that starts could be what is missing.
fn comes_right(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { cause, .. } => {
            matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                || cause.raw_os_error().is_some_and(|number| {
                    // Its queue of callers is full, or it ended while we called.
                    [
                        rustix::io::Errno::AGAIN,
                        rustix::io::Errno::CONNRESET,
                        rustix::io::Errno::PIPE,
                    ]
                    .iter()
                    .any(|errno| errno.raw_os_error() == number)
                })
        }
        other => other.retryable(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn who_waits_for_the_answer_waits_for_the_registry() {
        let minutes = Patience::Limited(Duration::from_secs(300));
        for (line, expected) in [
            ("get drives", Patience::None),
            ("get drives --watch", Patience::Endless),
            ("events", Patience::None),
            ("events --follow", Patience::Endless),
            ("status", Patience::None),
            ("drive remove a", Patience::None),
            ("drive remove a --wait", minutes),
            ("drive add a --wait --timeout 0", Patience::Endless),
            ("host add a --wait --timeout 2s", Patience::Limited(Duration::from_secs(2))),
            ("host remove a --wait", minutes),
            ("drive take-over a --wait", minutes),
            ("host purge a --yes", Patience::None),
            ("host forget a", Patience::None),
        ] {
            let words = std::iter::once("hotbay").chain(line.split(' '));
            let Command::Client(command) = Cli::try_parse_from(words).unwrap().command else {
                panic!("{line} asks no registry")
            };
            assert_eq!(Patience::of(&command), expected, "{line}");
        }
    }
}

//! The client: everything that asks a registry, for people and scripts. `main` calls [`run`].
//!
//! - [`get`], [`describe`], [`events`] and [`status`] show.
//! - [`act`] asks for something, [`wait`] follows it to its end, [`answer`] puts answers into words.
//!   [`repair`] and [`take_over`] are for what a person decides once things went wrong, with [`mod@typed`].
//! - [`mod@wipe`] adds a drive that is not empty.
//! - [`plan`] lists drives to be added later, [`plan_file`] is that list, [`explain`] says why one can or cannot be.
//!   [`inspect`] reads a label from the drive itself, and needs no registry.
//! - [`mod@volume`] makes volumes and deletes them.
//! - [`place`] is where the registry is, [`api`] the connection, [`bearer`] what is shown there, [`first`] how long it
//!   is waited for at first, [`error`] why it does not work, [`exit`] what a script sees of all that.
//! - [`screen`], [`table`], [`rows`], [`words`], [`mod@nearest`]: how things look and read.

mod act;
mod answer;
pub(crate) mod api;
pub(crate) mod bearer;
mod cordon;
mod describe;
mod error;
mod events;
mod exit;
mod explain;
mod first;
pub(crate) mod get;
mod inspect;
mod label;
mod nearest;
pub(crate) mod place;
mod plan;
mod plan_file;
mod repair;
pub(crate) mod rows;
mod screen;
mod status;
mod suggest;
pub(crate) mod table;
mod take_over;
mod typed;
mod volume;
mod wait;
mod wipe;
pub(crate) mod words;

pub(crate) use error::ClientError;
pub(crate) use exit::Exit;
pub(crate) use nearest::{did_you_mean, nearest};
pub(crate) use screen::{Screen, plain};
pub(crate) use typed::typed;

use std::time::Instant;

use crate::cli::{ApiArgs, ClientCommand, DriveCommand, HostCommand, RegistryCommand};
use act::{Asked, Verb};
use api::Api;
use first::Patience;
use place::Place;

/// Runs one command against the registry that was named, or where one is found.
pub(crate) fn run(api: &ApiArgs, command: ClientCommand) -> Result<Exit, ClientError> {
    run_at(|| Place::find(api), command)
}

/// `hotbay host`.
async fn host(
    api: &Api,
    screen: &mut Screen,
    command: HostCommand,
    began: Instant,
) -> Result<Exit, ClientError> {
    let asked = match command {
        HostCommand::Add { hosts, with_removed, returned, how } => {
            Asked { with_removed, returned, ..Asked::of_hosts(Verb::Add, hosts, how) }
        }
        HostCommand::Remove { hosts, how } => Asked::of_hosts(Verb::Remove, hosts, how),
        HostCommand::Cordon { hosts } => return cordon::run(api, screen, hosts, true).await,
        HostCommand::Uncordon { hosts } => return cordon::run(api, screen, hosts, false).await,
        HostCommand::Label(args) => return label::run(api, screen, args).await,
        HostCommand::Forget { host } => return repair::forget(api, screen, &host).await,
        HostCommand::Purge { host, yes } => return repair::purge(api, screen, &host, yes).await,
    };
    act::run(api, screen, asked, began).await
}

/// Runs one command against a registry that is looked for when it is needed.
pub(crate) fn run_at(
    find: impl FnOnce() -> Result<Place, ClientError>,
    command: ClientCommand,
) -> Result<Exit, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ClientError::Start)?;
    runtime.block_on(async {
        let began = Instant::now();
        let mut screen = Screen::new();
        let patience = Patience::of(&command);
        if let ClientCommand::Drive { command: DriveCommand::Inspect { path, output } } = &command {
            return inspect::run(&mut screen, path, *output);
        }
        // A mistake needs no registry to be refused.
        if let ClientCommand::Volume { command } = &command {
            volume::check(command)?;
        }
        let listed = match &command {
            ClientCommand::Drive { command: DriveCommand::Add(args) } => {
                wipe::check(args)?;
                args.file.as_deref().map(plan_file::read).transpose()?
            }
            _ => None,
        };
        let Some(api) = first::connect(find()?, patience, began, &mut screen).await? else {
            return Ok(Exit::TryAgain);
        };
        match command {
            ClientCommand::Get(args) => get::run(&api, &mut screen, args).await,
            ClientCommand::Describe { what } => describe::run(&api, &mut screen, what).await,
            ClientCommand::Events { follow } => events::run(&api, &mut screen, follow).await,
            ClientCommand::Status => status::run(&api, &mut screen).await,
            ClientCommand::Drive { command } => {
                let asked = match command {
                    DriveCommand::Add(args) if args.wipe => {
                        return wipe::run(&api, &mut screen, args, began).await;
                    }
                    DriveCommand::Add(args) => Asked::to_add(args, listed),
                    DriveCommand::Remove(args) => Asked::to_remove(args),
                    DriveCommand::TakeOver(args) => {
                        return take_over::run(&api, &mut screen, args, began).await;
                    }
                    DriveCommand::Plan(args) => return plan::run(&api, &mut screen, args).await,
                    DriveCommand::Explain { name, output } => {
                        return explain::run(&api, &mut screen, &name, output).await;
                    }
                    DriveCommand::Inspect { path, output } => {
                        return inspect::run(&mut screen, &path, output);
                    }
                };
                act::run(&api, &mut screen, asked, began).await
            }
            ClientCommand::Host { command } => host(&api, &mut screen, command, began).await,
            ClientCommand::Volume { command } => volume::run(&api, &mut screen, command).await,
            ClientCommand::Registry { command: RegistryCommand::Adopt { yes } } => {
                repair::adopt(&api, &mut screen, yes).await
            }
        }
    })
}

//! The `hotbay` program: parses the command line, does what it says, and turns the outcome into an exit code.
//!
//! Everything that runs and stays is in [`run`], everything that speaks to a registry in [`client`] and [`token`],
//! everything that looks at a data directory without one in [`store`], settings in [`config`], manual pages in [`man`],
//! definitions for Kubernetes in [`crd`]; [`recover`] looks at drives without one. As `kubectl-hotbay` it is a
//! [`plugin`].

mod cli;
mod client;
mod config;
mod crd;
mod man;
mod plugin;
mod recover;
mod run;
mod store;
mod token;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::client::Exit;

fn main() -> ExitCode {
    if plugin::is_called() {
        return plugin::run();
    }
    let Cli { api, command } = Cli::parse();
    match command {
        Command::Run(command) => run::run(command).unwrap_or_else(|error| {
            complain(&error, &error.next_steps());
            error.exit().into()
        }),
        Command::Client(command) => match client::run(&api, command) {
            Ok(exit) => exit.into(),
            Err(error) => {
                complain(&error, &error.next_steps());
                error.exit().into()
            }
        },
        Command::Token { command } => match token::run(&api, command) {
            Ok(exit) => exit.into(),
            Err(error) => {
                complain(&error, &error.next_steps());
                error.exit().into()
            }
        },
        Command::Store { command } => match store::run(command) {
            Ok(exit) => exit.into(),
            Err(error) => {
                complain(&error, &error.next_steps());
                error.exit().into()
            }
        },
        Command::Recover(args) => match recover::run(args) {
            Ok(exit) => exit.into(),
            Err(error) => {
                complain(&error, &error.next_steps());
                error.exit().into()
            }
        },
        Command::Config { command } => match config::run(command) {
            Ok(exit) => exit.into(),
            Err(error) => {
                complain(&error, &error.next_steps());
                error.exit().into()
            }
        },
        Command::Crd(args) => match crd::run(&args) {
            Ok(()) => Exit::Done.into(),
            Err(error) => {
                complain(&error, &[]);
                Exit::Failed.into()
            }
        },
        Command::Man { dir } => match man::run(dir.as_deref()) {
            Ok(()) => Exit::Done.into(),
            Err(error) => {
                complain(&error, &[]);
                Exit::Failed.into()
            }
        },
        Command::Completions { shell } => {
            cli::print_completions(shell);
            Exit::Done.into()
        }
    }
}

/// Says on one line what failed and why, and below it what to do.
fn complain(error: &dyn std::error::Error, next_steps: &[String]) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    for step in next_steps {
        text.push_str(&format!("\n  {}", plugin::as_called(step)));
    }
    // Nobody is left to tell when this fails.
    writeln!(std::io::stderr(), "{text}").unwrap_or_default();
}

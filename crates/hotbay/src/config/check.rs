//! `hotbay config check`: which settings count, and where each came from. Starts nothing and changes nothing.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use hotbay_api::token::JoinToken;
use hotbay_core::filter::Rule;
use serde_json::{Value, json};

use super::auto_add::ToldRule;
use super::error::ConfigError;
use super::settings::{Given, Settings, Source, Surroundings};
use super::table::{SETTINGS, Setting};
use super::{DEFAULT_FILE, find};
use crate::client::table::{Cell, Squeeze, Table, Widths};
use crate::client::{Exit, Screen, words};

pub(crate) const EXAMPLES: &str = "\
Exits with 0 if the settings can be used, else with 2.

Examples:
  hotbay config check                  what hotbay up or hotbay node would run with
  hotbay config check ./hotbay.toml -o json";

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Shows the settings that count, and where each came from; starts nothing
    #[command(after_help = EXAMPLES)]
    Check {
        /// The file [default: /etc/hotbay/hotbay.toml]
        #[arg(env = "HOTBAY_CONFIG", hide_env_values = true)]
        file: Option<PathBuf>,
        /// How to print it
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<ConfigFormat>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ConfigFormat {
    Json,
    Yaml,
}

pub(crate) fn run(command: ConfigCommand) -> Result<Exit, ConfigError> {
    let ConfigCommand::Check { file, output } = command;
    let file = find(file.as_deref())?;
    let variable = |name: &str| std::env::var(name).ok();
    let settings =
        Settings::resolve(Given::default(), variable, file.as_ref(), &Surroundings::now());
    check_token(&settings)?;
    // An agent would start without them, and say so where nobody may look for a while.
    let filters = settings.filters.value.as_deref().map(hotbay_node::read_filters).transpose()?;
    let file = file.map(|file| file.path.display().to_string());
    let mut screen = Screen::new();
    match output {
        None => {
            screen.aside(&match &file {
                Some(file) => format!("{file} is good.\n"),
                None => format!("There is no {DEFAULT_FILE}, and none is needed.\n"),
            });
            let table = table(&settings, file.as_deref().unwrap_or_default());
            let widths = match screen.size() {
                Some((columns, _)) => table.fitted(columns),
                None => table.natural(&Widths::new()),
            };
            let mut lines = vec![table.title_line(&widths)];
            lines.extend(table.row_lines(&widths, screen.has_colour()));
            screen.print(&(lines.join("\n") + "\n"))?;
            for line in rule_lines(&settings, filters.as_deref()) {
                screen.line(&line)?;
            }
        }
        Some(ConfigFormat::Json) => {
            let text = serde_json::to_string_pretty(&object(&settings, file));
            screen.line(&text.map_err(|error| ConfigError::Format(error.into()))?)?;
        }
        Some(ConfigFormat::Yaml) => {
            let text = serde_saphyr::to_string(&object(&settings, file));
            screen.print(&text.map_err(|error| ConfigError::Format(error.into()))?)?;
        }
    }
    Ok(Exit::Done)
}

/// A file is checked when it is read; a token in the environment is looked at by `hotbay node` alone, and here.
fn check_token(settings: &Settings) -> Result<(), ConfigError> {
    if let (Source::Environment(variable), Some(join)) = (settings.join.from, &settings.join.value)
        && JoinToken::is_meant(join)
    {
        join.parse::<JoinToken>()
            .map_err(|source| ConfigError::Environment { variable, source })?;
    }
    Ok(())
}

/// The rules that stand in tables or in a file of their own.
fn rule_lines(settings: &Settings, filters: Option<&[Rule]>) -> Vec<String> {
    let mut lines: Vec<_> =
        settings.auto_add.iter().map(|told| format!("auto-add  {}", told.json)).collect();
    if let (Some(rules), Some(path)) = (filters, &settings.filters.value) {
        let count = words::count(rules.len(), "filter rule");
        lines.push(format!("{}: {count}", path.display()));
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

fn table(settings: &Settings, file: &str) -> Table {
    let row = |setting: &Setting| {
        let (values, from) = settings.shown(setting.key);
        let value = if values.is_empty() { setting.default.to_owned() } else { values.join(", ") };
        let from = match from {
            Source::CommandLine => "command line".to_owned(),
            Source::Environment(variable) => format!("environment, {variable}"),
            Source::File { line } => format!("{file}, line {line}"),
            Source::Default => "default".to_owned(),
        };
        vec![Cell::new(setting.full_name()), Cell::new(value), Cell::new(from)]
    };
    Table {
        titles: vec!["SETTING", "VALUE", "FROM"],
        rows: SETTINGS.iter().map(row).collect(),
        squeezes: &[
            Squeeze::Cut { title: "VALUE", least: 24 },
            Squeeze::Cut { title: "FROM", least: 12 },
        ],
        keeps_its_end: "FROM",
    }
}

/// The settings for programs. A value is a text, a list, or null where there is none.
fn object(settings: &Settings, file: Option<String>) -> Value {
    let one = |setting: &Setting| {
        let (values, from) = settings.shown(setting.key);
        let value = if setting.list { json!(values) } else { json!(values.first()) };
        let (from, more) = match from {
            Source::CommandLine => ("command-line", json!({})),
            Source::Environment(variable) => ("environment", json!({ "variable": variable })),
            Source::File { line } => ("file", json!({ "line": line })),
            Source::Default => ("default", json!({})),
        };
        let mut object = json!({ "name": setting.full_name(), "value": value, "from": from });
        if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
            object.extend(more);
        }
        object
    };
    let rule = |told: &ToldRule| serde_json::from_str::<Value>(&told.json).unwrap_or_default();
    json!({
        "file": file,
        "settings": SETTINGS.iter().map(one).collect::<Vec<_>>(),
        "autoAdd": settings.auto_add.iter().map(rule).collect::<Vec<_>>(),
    })
}

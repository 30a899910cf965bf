//! Manual pages: one per command, made of the command line's own definition, and one for the configuration file, made
//! of the table of settings. So none of them can say what the program does not do. `main` calls [`run`].

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, italic, roman};
use thiserror::Error;

use crate::cli::Cli;
use crate::client::Exit;
use crate::config::table::{Key, SETTINGS, Setting, TABLES};
use crate::config::{DEFAULT_FILE, auto_add};

pub(crate) const EXAMPLES: &str = "\
Examples:
  hotbay man | man -l -                read the first page here and now
  hotbay man /usr/local/share/man      write them all, below man1 and man5";

const ROOT_EXAMPLES: &str = "\
Examples:
  hotbay demo                          see it at work, on drives that are files
  hotbay get drives                    what there is, and why it is not in use
  hotbay drive add node-a:bay-0 --wait
  hotbay drive remove node-a:bay-0 --wait";

const FILES: [(&str, &str); 5] = [
    (DEFAULT_FILE, "Settings of hotbay up and hotbay node: see hotbay.toml(5)."),
    ("/var/lib/hotbay", "What must survive, without root in ~/.local/share/hotbay."),
    (
        "/run/hotbay/api.sock",
        "Where the registry listens, without root in $XDG_RUNTIME_DIR/hotbay.",
    ),
    ("/run/hotbay/http.sock", "The same API as HTTP and JSON."),
    ("./hotbay-demo", "What hotbay demo makes, and where clients look first."),
];

/// Variables that no option stands for.
const ENVIRONMENT: [(&str, &str); 2] = [
    ("HOTBAY_LOG", "What up, node and demo log: error, warn, info, debug; info if not set."),
    ("NO_COLOR", "If set and not empty, nothing is printed in colour."),
];

/// Why there are no pages.
#[derive(Debug, Error)]
pub(crate) enum ManError {
    #[error("cannot print the page")]
    Print(#[source] io::Error),
    #[error("cannot make the folder {}", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Prints the page of the program, or writes all pages into a folder with one below it for each section.
pub(crate) fn run(folder: Option<&Path>) -> Result<(), ManError> {
    let pages = pages();
    let Some(folder) = folder else {
        let printed = io::stdout().write_all(pages["hotbay.1"].as_bytes());
        // A reader that hangs up has seen enough.
        return match printed {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ManError::Print(error)),
            Ok(()) | Err(_) => Ok(()),
        };
    };
    for (name, text) in &pages {
        let section = folder.join(if name.ends_with(".5") { "man5" } else { "man1" });
        let path = section.join(name);
        std::fs::create_dir_all(&section)
            .map_err(|source| ManError::Folder { path: section, source })?;
        std::fs::write(&path, text).map_err(|source| ManError::Write { path, source })?;
    }
    println!("{} pages are written below {}.", pages.len(), folder.display());
    Ok(())
}

/// All pages, by the names of their files.
fn pages() -> BTreeMap<String, String> {
    let mut root = Cli::command().disable_help_subcommand(true).after_help(ROOT_EXAMPLES);
    root.build();
    let mut pages = BTreeMap::from([("hotbay.toml.5".to_owned(), settings_page())]);
    let mut commands = vec![(root, None)];
    while let Some((command, parent)) = commands.pop() {
        let name = page_name(&command);
        pages.insert(format!("{name}.1"), page(&command, parent));
        let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
        commands.extend(visible.map(|command| (command.clone(), Some(name.clone()))));
    }
    pages
}

/// Such as `hotbay-drive-add`.
fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, parent: Option<String>) -> String {
    let man = Man::new(command.clone());
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (more, examples) = after.split_once("Examples:\n").unwrap_or((&after, ""));
    let mut text = title(&page_name(command), 1).into_bytes();
    let written = (|| {
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        paragraphs(more).to_writer(&mut text)?;
        man.render_options_section(&mut text)?;
        if command.get_subcommands().any(|command| !command.is_hide_set()) {
            man.render_subcommands_section(&mut text)?;
        }
        let mut rest = Roff::new();
        add_examples(&mut rest, examples);
        add_exit_codes(&mut rest);
        add_environment(&mut rest, command);
        add_list(&mut rest, "FILES", &FILES);
        add_see_also(&mut rest, command, parent);
        rest.to_writer(&mut text)
    })();
    written.expect("memory takes everything");
    once(&String::from_utf8(text).expect("roff is made of text"))
}

/// The first line of a page. It has no date, so that the same program always makes the same pages.
fn title(name: &str, section: u8) -> String {
    format!(".TH {name} {section} \"\" \"hotbay {}\" Hotbay\n", env!("CARGO_PKG_VERSION"))
}

/// Each section comes with the same two lines about apostrophes; the first are enough.
fn once(text: &str) -> String {
    let mut kept = String::new();
    for line in text.lines() {
        let preamble = line.starts_with(".ie ") || line.starts_with(".el ");
        if !(preamble && kept.contains(line)) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

fn paragraphs(text: &str) -> Roff {
    let mut roff = Roff::new();
    for paragraph in text.split("\n\n").map(str::trim).filter(|text| !text.is_empty()) {
        roff.control("PP", []).text([roman(paragraph)]);
    }
    roff
}

fn add_examples(roff: &mut Roff, examples: &str) {
    if examples.is_empty() {
        return;
    }
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.lines() {
        roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    roff.control("fi", []);
}

fn add_exit_codes(roff: &mut Roff) {
    roff.control("SH", ["EXIT STATUS"]);
    for (exit, meaning) in Exit::MEANINGS {
        roff.control("TP", []).text([bold(exit.code().to_string())]).text([roman(meaning)]);
    }
}

/// The variables of the command's options, and those that there is no option for.
fn add_environment(roff: &mut Roff, command: &Command) {
    roff.control("SH", ["ENVIRONMENT"]);
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let Some(variable) = argument.get_env() else { continue };
        let stands_for = match argument.get_long() {
            Some(long) => vec![roman("The same as "), bold(format!("--{long}")), roman(".")],
            None => vec![roman("The same as the argument.")],
        };
        roff.control("TP", []).text([bold(variable.to_string_lossy())]).text(stands_for);
    }
    for (variable, text) in ENVIRONMENT {
        roff.control("TP", []).text([bold(variable)]).text([roman(text)]);
    }
}

fn add_list(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    roff.control("SH", [title]);
    for (name, text) in entries {
        roff.control("TP", []).text([italic(*name)]).text([roman(*text)]);
    }
}

fn add_see_also(roff: &mut Roff, command: &Command, parent: Option<String>) {
    let visible = command.get_subcommands().filter(|command| !command.is_hide_set());
    let pages = parent.into_iter().chain(visible.map(page_name));
    roff.control("SH", ["SEE ALSO"]);
    for page in pages {
        roff.text([bold(page), roman("(1),")]);
    }
    roff.text([bold("hotbay.toml"), roman("(5)")]);
}

fn settings_page() -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["NAME"])
        .text([roman("hotbay.toml - settings of hotbay up and hotbay node")]);
    roff.control("SH", ["SYNOPSIS"]).text([italic(DEFAULT_FILE)]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "Everything here can be given as an option as well. An option counts before a variable in the environment, \
         that before the file, and the file before the default. An empty text or list stands for the default. One \
         file serves hotbay up and, on other machines, hotbay node: each looks only at what concerns it.",
    )]);
    roff.control("PP", []).text([roman(
        "The file is TOML. A name that does not exist, a value that cannot be, or a file that cannot be read is an \
         error: nothing is started then, and the exit code is 2. hotbay config check says what counts, and why.",
    )]);
    roff.control("PP", []).text([roman(
        "A file that others than its owner can write is refused, whatever it says: it decides where Hotbay listens, \
         which drives it opens and whom it obeys. One with a join token must not be readable by others either.",
    )]);
    roff.control("SH", ["SETTINGS"]);
    SETTINGS
        .iter()
        .filter(|s| s.table.is_empty())
        .for_each(|setting| add_setting(&mut roff, setting));
    for (table, text) in TABLES {
        roff.control("SS", [&*format!("[{table}]")]).text([roman(text)]);
        let of_table = SETTINGS.iter().filter(|setting| setting.table == table);
        of_table.for_each(|setting| add_setting(&mut roff, setting));
    }
    roff.control("SS", [&*format!("[[{}]]", auto_add::TABLE)]).text([roman(auto_add::TEXT)]);
    roff.control("SH", ["EXAMPLES"])
        .text([roman("A registry that agents on other machines can join:")]);
    add_block(
        &mut roff,
        "drives = [\"/dev/nvme*n1\"]\n\n[registry]\nlisten-agents = \"192.0.2.7:7443\"",
    );
    roff.control("PP", []).text([roman("An agent on another machine:")]);
    add_block(&mut roff, "[node]\njoin = \"hotbay-join-1,...\"");
    roff.control("PP", []).text([roman("New NVMe drives go into operation by themselves:")]);
    add_block(&mut roff, "[[auto-add]]\nname = \"new-nvme\"\nmedia = \"NVMe\"\nmin-size = \"1TB\"");
    roff.control("SH", ["SEE ALSO"]);
    for page in ["hotbay-up", "hotbay-node", "hotbay-token-create"] {
        roff.text([bold(page), roman("(1),")]);
    }
    roff.text([bold("hotbay-config-check"), roman("(1)")]);
    title("hotbay.toml", 5) + &roff.render()
}

fn add_block(roff: &mut Roff, text: &str) {
    roff.control("PP", []).control("RS", ["4"]).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("RE", []);
}

fn add_setting(roff: &mut Roff, setting: &Setting) {
    let values = if setting.key == Key::Labels {
        "{ KEY = \"...\" }"
    } else if setting.list {
        "\"...\" or [\"...\", \"...\"]"
    } else {
        "\"...\""
    };
    roff.control("TP", []).text([bold(setting.name), roman(format!(" = {values}"))]);
    roff.text([roman(setting.text)]);
    let mut more = format!(
        "Default: {}. For: hotbay {}.",
        setting.default,
        visible(setting).join(", hotbay ")
    );
    if let Some(variable) = setting.environment {
        more.push_str(&format!(" Environment: {variable}."));
    }
    roff.control("IP", []).text([roman(more)]);
}

/// The commands that people know which look at a setting.
fn visible(setting: &Setting) -> Vec<&'static str> {
    setting.used_by.iter().copied().filter(|name| *name != "controller").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_its_page_and_no_other_has_one() {
        fn collect(prefix: &str, command: &Command, names: &mut Vec<String>) {
            names.push(format!("{prefix}.1"));
            for command in command.get_subcommands().filter(|c| !c.is_hide_set()) {
                collect(&format!("{prefix}-{}", command.get_name()), command, names);
            }
        }
        let mut expected = vec!["hotbay.toml.5".to_owned()];
        collect("hotbay", &Cli::command(), &mut expected);
        expected.sort();
        assert_eq!(pages().into_keys().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn every_page_has_every_section_once() {
        const COMMAND: &str =
            "NAME SYNOPSIS DESCRIPTION OPTIONS EXAMPLES EXIT-STATUS ENVIRONMENT FILES SEE-ALSO";
        const FILE: &str = "NAME SYNOPSIS DESCRIPTION SETTINGS EXAMPLES SEE-ALSO";
        for (name, text) in pages() {
            let found = text.lines().filter_map(|line| line.strip_prefix(".SH "));
            let found = found.map(|s| s.replace('"', "").replace(' ', "-"));
            let some_have = ["SUBCOMMANDS", "ON-KUBERNETES"];
            let found: Vec<_> = found.filter(|s| !some_have.contains(&s.as_str())).collect();
            let expected = if name == "hotbay.toml.5" { FILE } else { COMMAND };
            assert_eq!(found.join(" "), expected, "{name}");
        }
    }

    #[test]
    fn the_page_of_the_file_has_every_setting() {
        let page = &pages()["hotbay.toml.5"];
        for setting in &SETTINGS {
            let name = setting.name.replace('-', "\\-");
            assert!(page.contains(&format!("\\fB{name}\\fR = ")), "{name}\n{page}");
        }
    }
}

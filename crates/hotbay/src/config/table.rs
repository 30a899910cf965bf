//! Every setting that can stand in the configuration file: its name, its words, and what a value must be like. The file
//! is read by it, `hotbay config check` prints it, and `hotbay.toml(5)` is made of it.

use clap::ValueEnum;
use hotbay_api::token::{JoinToken, NotAnAddress, check_address};
use hotbay_core::ids::NodeName;
use hotbay_host::scan::check_pattern;
use hotbay_node::Place;

use crate::run::listen::Listen;

/// A Unix socket's path may not be longer.
const SOCKET_PATH_LIMIT: usize = 107;

/// A setting, for code that tells one from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    DataDir,
    Name,
    Drives,
    Listen,
    ListenAgents,
    Http,
    Csi,
    NodeCsi,
    Join,
    Address,
    AttachAtStart,
    Filters,
    Labels,
}

/// Which drives an agent opens before the registry has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AtStart {
    /// Those that its own record allows
    Record,
    /// Every drive whose label names this cluster and node, until the registry has said otherwise
    All,
}

/// A setting, for people.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) key: Key,
    /// The table that it stands in; empty: above all tables.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    /// Several values in `[...]` are allowed.
    pub(crate) list: bool,
    /// The variable that overrides the file.
    pub(crate) environment: Option<&'static str>,
    /// The commands that look at it.
    pub(crate) used_by: &'static [&'static str],
    /// What it is, in sentences.
    pub(crate) text: &'static str,
    /// What counts if it is left out, in words.
    pub(crate) default: &'static str,
    /// Why a value cannot be one, if it cannot.
    pub(crate) check: fn(&str) -> Result<(), String>,
}

/// The tables of the file, and what they are for.
pub(crate) const TABLES: [(&str, &str); 2] = [
    ("registry", "The registry: looked at by hotbay up."),
    ("node", "The agent: looked at by hotbay node, and by hotbay up where it says so."),
];

/// All settings, in the order in which they are shown. Those above all tables come first.
pub(crate) const SETTINGS: [Setting; 13] = [
    Setting {
        key: Key::DataDir,
        table: "",
        name: "data-dir",
        list: false,
        environment: Some("HOTBAY_DATA_DIR"),
        used_by: &["up", "controller", "node"],
        text: "Where everything is kept that must survive: the registry's records in the folder registry below it, the \
               agent's in the folder node. (The option --data-dir of hotbay node names the agent's own folder.)",
        default: "/var/lib/hotbay, without root ~/.local/share/hotbay",
        check: absolute,
    },
    Setting {
        key: Key::Name,
        table: "",
        name: "name",
        list: false,
        environment: None,
        used_by: &["up", "node"],
        text: "The name of this node. An agent that joins with a token has the name that the token was made for, and \
               needs none here.",
        default: "the machine's host name",
        check: node_name,
    },
    Setting {
        key: Key::Drives,
        table: "",
        name: "drives",
        list: true,
        environment: None,
        used_by: &["up", "node"],
        text: "The drives to look at: paths or patterns, or BAY=PATH. None is in operation until it is added.",
        default: "all drives of the machine",
        check: place,
    },
    Setting {
        key: Key::Listen,
        table: "registry",
        name: "listen",
        list: true,
        environment: None,
        used_by: &["up", "controller"],
        text: "Where to listen. A path: a Unix socket, for clients and the agent of this machine; there is always one. \
               HOST:PORT: for clients on other machines, over TLS and with a token.",
        default: "api.sock in /run/hotbay, or in the user's runtime directory",
        check: listen,
    },
    Setting {
        key: Key::ListenAgents,
        table: "registry",
        name: "listen-agents",
        list: true,
        environment: None,
        used_by: &["up", "controller"],
        text: "Where to listen for agents on other machines, over TLS: HOST:PORT.",
        default: "nowhere",
        check: address,
    },
    Setting {
        key: Key::Http,
        table: "registry",
        name: "http",
        list: false,
        environment: None,
        used_by: &["up", "controller"],
        text: "A second Unix socket, for the same API as HTTP and JSON.",
        default: "http.sock beside the socket of listen",
        check: socket,
    },
    Setting {
        key: Key::Csi,
        table: "registry",
        name: "csi",
        list: false,
        environment: None,
        used_by: &["up", "controller"],
        text: "A Unix socket for CSI's Controller service, in a folder that only its owner may write to.",
        default: "csi.sock beside the socket of listen",
        check: socket,
    },
    Setting {
        key: Key::Join,
        table: "node",
        name: "join",
        list: false,
        environment: Some("HOTBAY_JOIN"),
        used_by: &["node"],
        text: "The registry of this agent: a join token of one on another machine, or the Unix socket of one on this \
               machine. A token is not needed again once joined, and may stay. A file with a token must be closed to \
               other users (mode 600). Not for hotbay up, whose agent belongs to its own registry.",
        default: "the registry that this agent has joined",
        check: registry,
    },
    Setting {
        key: Key::Address,
        table: "node",
        name: "address",
        list: false,
        environment: None,
        used_by: &["node"],
        text: "Where the registry on another machine listens now, if it is not where the token said: HOST:PORT. Kept.",
        default: "where it was when the agent joined",
        check: address,
    },
    Setting {
        key: Key::AttachAtStart,
        table: "node",
        name: "attach-at-start",
        list: false,
        environment: None,
        used_by: &["up", "node"],
        text: "Which drives an agent opens when it starts, before the registry has answered. \"record\": those that \
               its own record allows. \"all\": every drive whose label names this cluster and node, until the registry \
               has said otherwise. The price of \"all\": a drive that was removed is opened again for a moment at \
               every start of the agent, or for as long as the registry is away.",
        default: "record",
        check: at_start,
    },
    Setting {
        key: Key::Filters,
        table: "node",
        name: "filters",
        list: false,
        environment: None,
        used_by: &["up", "node"],
        text: "A file with rules that say which drives of this machine may be used at all; docs/discovery.md tells how \
               they are written. It is read again, without a restart, when it has changed. While it has a mistake the \
               rules of before stay; at the start there are none before, and no drive can be added then. It must be \
               there, and must not be writable by other users.",
        default: "no filters: every drive may be used",
        check: absolute,
    },
    Setting {
        key: Key::NodeCsi,
        table: "node",
        name: "csi-node",
        list: false,
        environment: None,
        used_by: &["up", "node"],
        text: "A Unix socket for CSI's Node service, in a folder that only its owner may write to.",
        default: "csi.sock in the agent's own folder",
        check: socket,
    },
    Setting {
        key: Key::Labels,
        table: "node",
        name: "labels",
        list: true,
        environment: None,
        used_by: &["up", "node"],
        text: "Labels of this node, such as { rack = \"a\" }; as options KEY=VALUE. They count when the node registers \
               for the first time; from then on hotbay host label changes them, and what stands here does not. Rules \
               that add drives can ask for them.",
        default: "none",
        check: label,
    },
];

impl AtStart {
    /// Reads a value that has been checked.
    pub(super) fn of_setting(text: String) -> Self {
        Self::from_str(&text, false).expect("checked when the file was read")
    }

    /// As it is written.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::All => "all",
        }
    }
}

impl Setting {
    /// The setting of a key.
    pub(crate) fn of(key: Key) -> &'static Self {
        SETTINGS.iter().find(|setting| setting.key == key).expect("every key has its setting")
    }

    /// Its name with the table's before it, as TOML allows to write it.
    pub(crate) fn full_name(&self) -> String {
        match self.table {
            "" => self.name.to_owned(),
            table => format!("{table}.{}", self.name),
        }
    }
}

fn absolute(text: &str) -> Result<(), String> {
    if text.starts_with('/') && !text.contains('\0') {
        Ok(())
    } else {
        Err(format!("{text:?} is not an absolute path; it begins with /"))
    }
}

fn socket(text: &str) -> Result<(), String> {
    absolute(text)?;
    if text.len() <= SOCKET_PATH_LIMIT {
        Ok(())
    } else {
        Err(format!("a Unix socket's path has at most {SOCKET_PATH_LIMIT} bytes"))
    }
}

fn listen(text: &str) -> Result<(), String> {
    match text.parse().map_err(|error: NotAnAddress| error.to_string())? {
        Listen::Socket(path) => socket(&path.to_string_lossy()),
        Listen::Clients(_) => Ok(()),
    }
}

fn node_name(text: &str) -> Result<(), String> {
    text.parse::<NodeName>().map(drop).map_err(|error| error.to_string())
}

fn place(text: &str) -> Result<(), String> {
    let Ok(Place { bay: _, pattern }) = text.parse::<Place>();
    check_pattern(&pattern).map_err(|error| error.to_string())
}

fn label(text: &str) -> Result<(), String> {
    crate::cli::label(text).map(drop)
}

fn address(text: &str) -> Result<(), String> {
    check_address(text).map_err(|error| error.to_string())
}

fn at_start(text: &str) -> Result<(), String> {
    AtStart::from_str(text, false)
        .map(drop)
        .map_err(|_| format!("{text:?} is neither \"record\" nor \"all\""))
}

fn registry(text: &str) -> Result<(), String> {
    if JoinToken::is_meant(text) {
        return text.parse::<JoinToken>().map(drop).map_err(|error| error.to_string());
    }
    let path = text.strip_prefix("unix:").unwrap_or(text);
    socket(path).map_err(|_| {
        "neither a join token (hotbay token create) nor the absolute path of a Unix socket"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::{Cli, ON_KUBERNETES};

    /// A setting and an option of the same command mean the same.
    #[test]
    fn every_option_of_what_runs_and_stays_can_stand_in_the_file() {
        let root = Cli::command();
        for name in ["up", "controller", "node"] {
            let command = root.find_subcommand(name).unwrap();
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            // What a pod is started with stands in its manifest.
            let shown = shown.filter(|shown| shown.get_help_heading() != Some(ON_KUBERNETES));
            let options = shown.filter_map(|argument| argument.get_long());
            let mut options: Vec<_> = options.filter(|name| !name.ends_with("config")).collect();
            let settings = SETTINGS.iter().filter(|setting| setting.used_by.contains(&name));
            let mut settings: Vec<_> = settings.map(|setting| setting.name).collect();
            options.sort_unstable();
            settings.sort_unstable();
            assert_eq!(options, settings, "{name}");
        }
    }

    #[test]
    fn variables_of_settings_are_those_of_options() {
        let root = Cli::command();
        for setting in SETTINGS.iter().filter(|setting| setting.environment.is_some()) {
            let command = root.find_subcommand(setting.used_by[0]).unwrap();
            let option = command.get_arguments().find(|a| a.get_long() == Some(setting.name));
            let variable = option.unwrap().get_env().and_then(std::ffi::OsStr::to_str);
            assert_eq!(variable, setting.environment, "{}", setting.name);
        }
    }
}

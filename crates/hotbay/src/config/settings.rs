//! The settings that count, each with where it came from: command line, environment, file, default.

use std::path::{Path, PathBuf};

use hotbay_api::token::JoinToken;
use hotbay_core::ids::{NodeName, NotANodeName};
use hotbay_host::RuntimeDir;

use super::auto_add::ToldRule;
use super::error::ConfigError;
use super::file::ConfigFile;
use super::table::{AtStart, Key, Setting};
use crate::run::listen::Listen;

/// What was given on the command line. What is left out is looked for elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// The folder above those of registry and agent.
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) name: Option<NodeName>,
    pub(crate) drives: Vec<String>,
    pub(crate) listen: Vec<String>,
    pub(crate) listen_agents: Vec<String>,
    pub(crate) http: Option<PathBuf>,
    pub(crate) csi: Option<PathBuf>,
    pub(crate) node_csi: Option<PathBuf>,
    pub(crate) join: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) attach_at_start: Option<AtStart>,
    pub(crate) filters: Option<PathBuf>,
    pub(crate) labels: Vec<String>,
    pub(crate) auto_add: Vec<ToldRule>,
}

/// Where a value came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    CommandLine,
    Environment(&'static str),
    File { line: usize },
    Default,
}

/// A value, and where it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) from: Source,
}

/// What counts. Where nothing was said and there is no default, there is no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    data_dir: Sourced<Option<PathBuf>>,
    name: Sourced<Result<NodeName, NotANodeName>>,
    pub(crate) drives: Sourced<Vec<String>>,
    pub(crate) listen: Sourced<Vec<String>>,
    pub(crate) listen_agents: Sourced<Vec<String>>,
    pub(crate) http: Sourced<Option<PathBuf>>,
    pub(crate) csi: Sourced<Option<PathBuf>>,
    /// None: in the agent's own folder.
    pub(crate) node_csi: Sourced<Option<PathBuf>>,
    pub(crate) join: Sourced<Option<String>>,
    pub(crate) address: Sourced<Option<String>>,
    pub(crate) attach_at_start: Sourced<AtStart>,
    pub(crate) filters: Sourced<Option<PathBuf>>,
    /// As `KEY=VALUE`.
    pub(crate) labels: Sourced<Vec<String>>,
    /// Only from the file, or from whoever has read it.
    pub(crate) auto_add: Vec<ToldRule>,
}

/// What defaults depend on.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) root: bool,
    pub(super) home: Option<PathBuf>,
    pub(super) runtime_dir: PathBuf,
    pub(super) host_name: String,
}

impl Surroundings {
    pub(super) fn now() -> Self {
        Self {
            root: rustix::process::geteuid().is_root(),
            home: std::env::var_os("HOME").map(PathBuf::from),
            runtime_dir: RuntimeDir::place_of_this_user(),
            host_name: rustix::system::uname().nodename().to_string_lossy().to_lowercase(),
        }
    }

    fn data_dir(&self) -> Option<PathBuf> {
        if self.root {
            return Some(PathBuf::from("/var/lib/hotbay"));
        }
        self.home.as_ref().map(|home| home.join(".local/share/hotbay"))
    }
}

fn first_socket(places: &[String]) -> Option<PathBuf> {
    places.iter().find_map(|place| match place.parse() {
        Ok(Listen::Socket(path)) => Some(path),
        Ok(Listen::Clients(_)) | Err(_) => None,
    })
}

impl Settings {
    /// Decides what counts. `variable` looks into the environment.
    pub(super) fn resolve(
        given: Given,
        variable: impl Fn(&str) -> Option<String>,
        file: Option<&ConfigFile>,
        surroundings: &Surroundings,
    ) -> Self {
        let Given {
            data_dir,
            name,
            drives,
            listen,
            listen_agents,
            http,
            csi,
            node_csi,
            join,
            address,
            attach_at_start,
            filters,
            labels,
            mut auto_add,
        } = given;
        auto_add.extend(file.map(ConfigFile::auto_add).unwrap_or_default());
        let elsewhere = Elsewhere { variable: &variable, file };
        let default_listen =
            || vec![surroundings.runtime_dir.join("api.sock").to_string_lossy().into_owned()];
        let mut listen =
            elsewhere.many(Key::Listen, listen).unwrap_or_else(|| by_default(default_listen()));
        // The agent of this machine needs one, whoever else is listened for.
        if first_socket(&listen.value).is_none() {
            listen.value.extend(default_listen());
        }
        let beside = |name| first_socket(&listen.value).map(|path| path.with_file_name(name));
        let (http_beside, csi_beside) = (beside("http.sock"), beside("csi.sock"));
        Self {
            data_dir: or_default(elsewhere.one(Key::DataDir, data_dir, PathBuf::from), || {
                surroundings.data_dir()
            }),
            name: match elsewhere.one(Key::Name, name.map(Ok), |name| name.parse()) {
                Some(name) => name,
                None => by_default(surroundings.host_name.parse()),
            },
            drives: elsewhere.many(Key::Drives, drives).unwrap_or_else(|| by_default(Vec::new())),
            listen_agents: elsewhere
                .many(Key::ListenAgents, listen_agents)
                .unwrap_or_else(|| by_default(Vec::new())),
            http: or_default(elsewhere.one(Key::Http, http, PathBuf::from), || http_beside),
            csi: or_default(elsewhere.one(Key::Csi, csi, PathBuf::from), || csi_beside),
            node_csi: or_default(elsewhere.one(Key::NodeCsi, node_csi, PathBuf::from), || None),
            join: or_default(elsewhere.one(Key::Join, join, |join| join), || None),
            address: or_default(elsewhere.one(Key::Address, address, |address| address), || None),
            attach_at_start: elsewhere
                .one(Key::AttachAtStart, attach_at_start, AtStart::of_setting)
                .unwrap_or_else(|| by_default(AtStart::Record)),
            filters: or_default(elsewhere.one(Key::Filters, filters, PathBuf::from), || None),
            labels: elsewhere.many(Key::Labels, labels).unwrap_or_else(|| by_default(Vec::new())),
            listen,
            auto_add,
        }
    }

    /// The folder above those of registry and agent.
    pub(crate) fn data_dir(&self) -> Result<&Path, ConfigError> {
        self.data_dir.value.as_deref().ok_or(ConfigError::NoHome)
    }

    /// The folder of one part: the one that was given, or the one of this name where everything is.
    pub(crate) fn folder(
        &self,
        part: &str,
        given: Option<PathBuf>,
    ) -> Result<PathBuf, ConfigError> {
        given.map_or_else(|| Ok(self.data_dir()?.join(part)), Ok)
    }

    /// The node's name: the one that was told, or the host name.
    pub(crate) fn name(&self) -> Result<NodeName, ConfigError> {
        Ok(self.name.value.clone()?)
    }

    /// The node's name, if somebody told one.
    pub(crate) fn told_name(&self) -> Option<NodeName> {
        self.name.value.clone().ok().filter(|_| self.name.from != Source::Default)
    }

    /// What a setting is, for people, and where that came from. A join token is not shown.
    pub(super) fn shown(&self, key: Key) -> (Vec<String>, Source) {
        let one = |text: Option<String>| text.into_iter().collect();
        let path =
            |path: &Option<PathBuf>| one(path.as_ref().map(|path| path.display().to_string()));
        match key {
            Key::DataDir => (path(&self.data_dir.value), self.data_dir.from),
            Key::Name => {
                (one(self.name.value.as_ref().ok().map(ToString::to_string)), self.name.from)
            }
            Key::Drives => (self.drives.value.clone(), self.drives.from),
            Key::Listen => (self.listen.value.clone(), self.listen.from),
            Key::ListenAgents => (self.listen_agents.value.clone(), self.listen_agents.from),
            Key::Http => (path(&self.http.value), self.http.from),
            Key::Csi => (path(&self.csi.value), self.csi.from),
            Key::NodeCsi => (path(&self.node_csi.value), self.node_csi.from),
            Key::Join => (one(self.join.value.as_deref().map(without_secret)), self.join.from),
            Key::Address => (one(self.address.value.clone()), self.address.from),
            Key::Labels => (self.labels.value.clone(), self.labels.from),
            Key::Filters => (path(&self.filters.value), self.filters.from),
            Key::AttachAtStart => {
                (vec![self.attach_at_start.value.name().to_owned()], self.attach_at_start.from)
            }
        }
    }
}

fn without_secret(join: &str) -> String {
    if JoinToken::is_meant(join) { "hotbay-join-1,...".to_owned() } else { join.to_owned() }
}

fn by_default<T>(value: T) -> Sourced<T> {
    Sourced { value, from: Source::Default }
}

fn or_default<T>(
    told: Option<Sourced<T>>,
    default: impl FnOnce() -> Option<T>,
) -> Sourced<Option<T>> {
    match told {
        Some(Sourced { value, from }) => Sourced { value: Some(value), from },
        None => by_default(default()),
    }
}

/// Where to look for a value that was not given on the command line.
struct Elsewhere<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    file: Option<&'a ConfigFile>,
}

impl Elsewhere<'_> {
    fn values(&self, key: Key) -> Option<Sourced<Vec<String>>> {
        if let Some(variable) = Setting::of(key).environment
            && let Some(value) = (self.variable)(variable).filter(|value| !value.is_empty())
        {
            return Some(Sourced { value: vec![value], from: Source::Environment(variable) });
        }
        let told = self.file?.told(key)?;
        Some(Sourced { value: told.values, from: Source::File { line: told.line } })
    }

    fn many(&self, key: Key, given: Vec<String>) -> Option<Sourced<Vec<String>>> {
        if given.is_empty() {
            return self.values(key);
        }
        Some(Sourced { value: given, from: Source::CommandLine })
    }

    fn one<T>(
        &self,
        key: Key,
        given: Option<T>,
        read: impl FnOnce(String) -> T,
    ) -> Option<Sourced<T>> {
        if let Some(value) = given {
            return Some(Sourced { value, from: Source::CommandLine });
        }
        let Sourced { value, from } = self.values(key)?;
        Some(Sourced { value: read(value.into_iter().next()?), from })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::table::{SETTINGS, TABLES};
    use super::*;

    const EXAMPLE: &str = include_str!("../../../../packaging/hotbay.toml");

    fn as_root() -> Surroundings {
        Surroundings {
            root: true,
            home: None,
            runtime_dir: PathBuf::from("/run/hotbay"),
            host_name: "storage-7".to_owned(),
        }
    }

    fn file(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("hotbay.toml"), text.into()).unwrap()
    }

    fn resolved(given: Given, environment: &[(&str, &str)], text: &str) -> Settings {
        let environment: BTreeMap<_, _> = environment.iter().copied().collect();
        let variable = |name: &str| environment.get(name).map(|value| (*value).to_owned());
        Settings::resolve(given, variable, Some(&file(text)), &as_root())
    }

    /// The lines of the example that are settings, with the mark of the comment taken away.
    fn example() -> String {
        let setting = |line: &&str| {
            line.starts_with('[')
                || line
                    .strip_prefix('#')
                    .is_some_and(|l| l.starts_with(|c: char| c.is_ascii_lowercase()))
        };
        let lines = EXAMPLE.lines().filter(|line| !line.is_empty()).filter(setting);
        lines.map(|line| format!("{}\n", line.trim_start_matches('#'))).collect()
    }

    #[test]
    fn every_line_of_the_example_is_the_default() {
        let values = |settings: &Settings| SETTINGS.each_ref().map(|s| settings.shown(s.key).0);
        let defaults = resolved(Given::default(), &[], "");
        assert_eq!(values(&resolved(Given::default(), &[], &example())), values(&defaults));
        assert_eq!(resolved(Given::default(), &[], EXAMPLE), defaults);
    }

    #[test]
    fn the_example_has_every_setting_in_its_table_and_in_order() {
        let mut table = "";
        let mut found = Vec::new();
        let example = example();
        for line in example.lines() {
            match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                Some(name) => table = name,
                None => found.push((table, line.split(' ').next().unwrap())),
            }
        }
        let all: Vec<_> = SETTINGS.iter().map(|s| (s.table, s.name)).collect();
        assert_eq!(found, all);
        for (name, _) in TABLES {
            assert!(SETTINGS.iter().any(|setting| setting.table == name), "{name}");
        }
    }

    #[test]
    fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
        let text = "name = 'from-file'\ndata-dir = '/file'\ndrives = ['/dev/a', '1=/dev/b']\n";
        let settings = resolved(Given::default(), &[], text);
        assert_eq!(settings.data_dir().unwrap(), Path::new("/file"));
        assert_eq!(settings.shown(Key::Drives).1, Source::File { line: 3 });
        assert_eq!(settings.name().unwrap().as_str(), "from-file");

        let environment = [("HOTBAY_DATA_DIR", "/environment")];
        let settings = resolved(Given::default(), &environment, text);
        assert_eq!(settings.data_dir().unwrap(), Path::new("/environment"));
        assert_eq!(settings.shown(Key::DataDir).1, Source::Environment("HOTBAY_DATA_DIR"));

        let given = Given {
            data_dir: Some("/given".into()),
            drives: vec!["/dev/c".to_owned()],
            name: Some("given".parse().unwrap()),
            ..Given::default()
        };
        let settings = resolved(given, &environment, text);
        assert_eq!(settings.data_dir().unwrap(), Path::new("/given"));
        assert_eq!(settings.drives.value, ["/dev/c"]);
        assert_eq!(settings.told_name().unwrap().as_str(), "given");
        assert_eq!(settings.listen.from, Source::Default);
    }

    #[test]
    fn what_is_empty_is_the_default() {
        let text = "name = ''\ndrives = []\n[registry]\nlisten = ''\n";
        let settings = resolved(Given::default(), &[("HOTBAY_DATA_DIR", "")], text);
        assert_eq!(settings, resolved(Given::default(), &[], ""));
        assert_eq!(settings.told_name(), None);
        assert_eq!(settings.listen.value, ["/run/hotbay/api.sock"]);
        assert_eq!(settings.http.value, Some("/run/hotbay/http.sock".into()));
    }

    #[test]
    fn the_http_socket_is_beside_the_one_that_is_told() {
        let settings = resolved(Given::default(), &[], "registry.listen = '/srv/a.sock'");
        assert_eq!(settings.http.value, Some("/srv/http.sock".into()));
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = JoinToken { address: "h:1".into(), authority: [1; 32], secret: [2; 32] };
        let told = [("HOTBAY_JOIN", &*token.to_string())];
        let (shown, _) = resolved(Given::default(), &told, "").shown(Key::Join);
        assert_eq!(shown, ["hotbay-join-1,..."]);
    }

    #[test]
    fn without_a_home_the_place_for_data_must_be_told() {
        let lost = Surroundings { root: false, ..as_root() };
        let settings = Settings::resolve(Given::default(), |_| None, None, &lost);
        assert!(matches!(settings.data_dir(), Err(ConfigError::NoHome)));
    }
}

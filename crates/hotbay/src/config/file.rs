//! The configuration file as it is written: read, checked as a whole, and refused with the place of the first mistake.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hotbay_api::token::JoinToken;
use hotbay_core::cluster::AutoAddRule;
use rustix::fs::{Mode, OFlags};
use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::auto_add::{self, ToldRule};
use super::error::{At, ConfigError};
use super::table::{Key, SETTINGS, Setting, TABLES};
use crate::client::{did_you_mean, nearest, plain};

/// A longer file is no configuration, and reading it would only take memory.
pub(super) const FILE_LIMIT_BYTES: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const READABLE_BY_OTHERS: u32 = 0o044;
/// Tables whose keys are free to choose.
const OF_LABELS: [&str; 2] = ["labels", "node-labels"];

/// A file whose every setting has been checked.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    text: String,
    document: Document,
}

/// What the file says about one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) values: Vec<String>,
    pub(super) line: usize,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    data_dir: Option<Spanned<One>>,
    name: Option<Spanned<One>>,
    drives: Option<Spanned<Many>>,
    registry: RegistryTable,
    node: NodeTable,
    /// Looked at only for mistakes here.
    #[serde(deserialize_with = "auto_add::checked")]
    auto_add: Vec<AutoAddRule>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "kebab-case",
    expecting = "the table [registry]"
)]
struct RegistryTable {
    listen: Option<Spanned<Many>>,
    listen_agents: Option<Spanned<Many>>,
    http: Option<Spanned<One>>,
    csi: Option<Spanned<One>>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case", expecting = "the table [node]")]
struct NodeTable {
    join: Option<Spanned<One>>,
    address: Option<Spanned<One>>,
    attach_at_start: Option<Spanned<One>>,
    filters: Option<Spanned<One>>,
    csi_node: Option<Spanned<One>>,
    labels: Option<Spanned<Pairs>>,
}

/// One text. An empty one stands for the default.
#[derive(Debug)]
struct One(Vec<String>);

/// A text or a list of texts. An empty one stands for the default.
#[derive(Debug)]
struct Many(Vec<String>);

/// A table of texts, each told as `KEY=VALUE`.
#[derive(Debug)]
struct Pairs(Vec<String>);

impl ConfigFile {
    /// Reads a file. `None`: there is none at this path.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, ConfigError> {
        let failed = |source: io::Error| ConfigError::Read { path: path.to_owned(), source };
        // Opening must not wait: a pipe without a writer would keep us for ever.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            return Err(ConfigError::NotAFile { path: path.to_owned() });
        }
        // Whatever it says now: who can write it can make it say anything.
        let mode = found.mode() & 0o777;
        if mode & WRITABLE_BY_OTHERS != 0 {
            return Err(ConfigError::Writable { path: path.to_owned(), mode });
        }
        let mut bytes = Vec::new();
        file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_LIMIT_BYTES {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        let this = Self::parse(path, bytes)?;
        if this.holds_a_token() && mode & READABLE_BY_OTHERS != 0 {
            return Err(ConfigError::Readable { path: path.to_owned(), mode });
        }
        Ok(Some(this))
    }

    /// Takes the bytes of a file.
    pub(super) fn parse(path: &Path, bytes: Vec<u8>) -> Result<Self, ConfigError> {
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = error.utf8_error().valid_up_to();
            let before = String::from_utf8_lossy(&error.as_bytes()[..good]).into_owned();
            let what = "this is not text in UTF-8".to_owned();
            ConfigError::Text { path: path.to_owned(), at: at(&before, good), what, hint: None }
        })?;
        let document: Document =
            toml::from_str(&text).map_err(|error| explain(path, &text, &error))?;
        let this = Self { path: path.to_owned(), text, document };
        for setting in &SETTINGS {
            this.check(setting)?;
        }
        Ok(this)
    }

    /// What the file says about a setting; nothing if that stands for the default.
    pub(super) fn told(&self, key: Key) -> Option<Told> {
        let (values, span) = self.written(key)?;
        let line = at(&self.text, span.start).line;
        (!values.is_empty()).then(|| Told { values: values.to_vec(), line })
    }

    /// The rules that add drives; nothing else stands in tables of its own.
    pub(super) fn auto_add(&self) -> Vec<ToldRule> {
        if self.document.auto_add.is_empty() { Vec::new() } else { auto_add::told(&self.text) }
    }

    fn written(&self, key: Key) -> Option<(&[String], Range<usize>)> {
        fn one(found: &Option<Spanned<One>>) -> Option<(&[String], Range<usize>)> {
            found.as_ref().map(|found| (&*found.get_ref().0, found.span()))
        }
        fn many(found: &Option<Spanned<Many>>) -> Option<(&[String], Range<usize>)> {
            found.as_ref().map(|found| (&*found.get_ref().0, found.span()))
        }
        let Document { data_dir, name, drives, registry, node, auto_add: _ } = &self.document;
        match key {
            Key::DataDir => one(data_dir),
            Key::Name => one(name),
            Key::Drives => many(drives),
            Key::Listen => many(&registry.listen),
            Key::ListenAgents => many(&registry.listen_agents),
            Key::Http => one(&registry.http),
            Key::Csi => one(&registry.csi),
            Key::NodeCsi => one(&node.csi_node),
            Key::Join => one(&node.join),
            Key::Address => one(&node.address),
            Key::AttachAtStart => one(&node.attach_at_start),
            Key::Filters => one(&node.filters),
            Key::Labels => node.labels.as_ref().map(|found| (&*found.get_ref().0, found.span())),
        }
    }

    fn check(&self, setting: &Setting) -> Result<(), ConfigError> {
        let Some((values, span)) = self.written(setting.key) else { return Ok(()) };
        let wrong = |why: String| ConfigError::Text {
            path: self.path.clone(),
            at: at(&self.text, span.start),
            what: format!("{}: {}", setting.full_name(), plain(&why)),
            hint: None,
        };
        values.iter().try_for_each(|value| (setting.check)(value)).map_err(wrong)
    }

    fn holds_a_token(&self) -> bool {
        let (values, _) = self.written(Key::Join).unwrap_or_default();
        values.iter().any(|value| JoinToken::is_meant(value))
    }
}

/// Says what is wrong, by the setting that it is wrong with.
fn explain(path: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let offset = error.span().map_or(0, |span| span.start);
    let place = at(text, offset);
    let (what, hint) = match mistaken(text, offset) {
        Some(Mistaken { table, key, is_key: true }) if !OF_LABELS.contains(&&*table) => {
            unknown(&table, &key)
        }
        Some(Mistaken { table, key, .. }) => {
            let dot = if table.is_empty() { "" } else { "." };
            (format!("{table}{dot}{key}: {}", error.message()), None)
        }
        None => (error.message().replace('\n', "; "), None),
    };
    ConfigError::Text { path: path.to_owned(), at: place, what: plain(&what), hint }
}

/// The setting that a mistake was made with.
struct Mistaken {
    table: String,
    key: String,
    /// The mistake is its name, not its value.
    is_key: bool,
}

/// Finds the setting at a place in the text. `None` if the text is no TOML, or there is none.
fn mistaken(text: &str, offset: usize) -> Option<Mistaken> {
    let document = DeTable::parse(text).ok()?;
    let mut tables = vec![(String::new(), document.get_ref())];
    while let Some((table, entries)) = tables.pop() {
        for (key, value) in entries {
            let inner: Vec<_> = match value.get_ref() {
                DeValue::Table(inner) => vec![inner],
                DeValue::Array(list) => {
                    list.iter().filter_map(|one| one.get_ref().as_table()).collect()
                }
                _ => Vec::new(),
            };
            let is_key = key.span().contains(&offset);
            if is_key || (value.span().contains(&offset) && inner.is_empty()) {
                return Some(Mistaken { table, key: key.get_ref().to_string(), is_key });
            }
            tables.extend(inner.into_iter().map(|inner| (key.get_ref().to_string(), inner)));
        }
    }
    None
}

/// What is said about a name that there is not, and what may have been meant.
fn unknown(table: &str, key: &str) -> (String, Option<String>) {
    let what = match table {
        "" => format!("there is no setting or table {key:?}"),
        table => format!("there is no setting {key:?} in [{table}]"),
    };
    let here = SETTINGS.iter().filter(|setting| setting.table == table).map(|setting| setting.name);
    let of_rule = auto_add::FIELDS.into_iter().filter(|_| table == auto_add::TABLE);
    let here = here.chain(of_rule);
    let tables = TABLES.iter().map(|(name, _)| *name).chain([auto_add::TABLE]);
    let tables = tables.filter(|_| table.is_empty());
    let near = nearest(key, here.chain(tables));
    let hint = did_you_mean(&near).or_else(|| {
        let elsewhere = nearest(key, SETTINGS.iter().map(|setting| setting.name));
        let setting = SETTINGS.iter().find(|setting| elsewhere.contains(&setting.name))?;
        Some(match setting.table {
            "" => format!("{} stands above all tables", setting.name),
            table => format!("{} stands in the table [{table}]", setting.name),
        })
    });
    (what, hint.or_else(|| Some("man 5 hotbay.toml lists all settings".to_owned())))
}

/// The place of a byte in a text.
fn at(text: &str, offset: usize) -> At {
    let before = &text[..text.floor_char_boundary(offset)];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    At { line, column }
}

impl<'de> Deserialize<'de> for One {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Texts { list: false }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Many {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Texts { list: true }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = std::collections::BTreeMap::<String, String>::deserialize(deserializer)?;
        Ok(Self(pairs.into_iter().map(|(key, value)| format!("{key}={value}")).collect()))
    }
}

struct Texts {
    list: bool,
}

impl<'de> Visitor<'de> for Texts {
    type Value = Vec<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.list { ", or a list of them: [\"...\", \"...\"]" } else { "" };
        write!(f, "a text in quotes{more}")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text).filter(|text| !text.is_empty()).map(str::to_owned).into_iter().collect())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        if !self.list {
            return Err(de::Error::invalid_type(de::Unexpected::Seq, &self));
        }
        let mut texts = Vec::new();
        while let Some(text) = list.next_element()? {
            texts.push(text);
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn refused(text: &str) -> (String, String) {
        let error = ConfigFile::parse(Path::new("x.toml"), text.into()).unwrap_err();
        (error.to_string(), error.next_steps().join("; "))
    }

    #[test]
    fn mistakes_are_named_with_their_place_and_their_setting() {
        for (text, place, words) in [
            ("name = 5", "line 1, column 8: name: ", "expected a text in quotes"),
            (
                "\n[registry]\nlisten = [1]",
                "line 3, column 11: registry.listen: ",
                "expected a string",
            ),
            ("name = ['a']", "line 1, column 8: name: ", "sequence"),
            ("[node]\nlabels = 'a=b'", "line 2, column 10: node.labels: ", "expected a map"),
            ("[node]\nlabels = { a = 5 }", "line 2, column 16: labels.a: ", "expected a string"),
            ("[node]\nlabels = { a = 'b c' }", "line 2, column 10: node.labels: ", "\"b c\""),
            (
                "[[auto-add]]\nname = 'x'\nnode-labels = { 'a b' = 'c' }",
                "line 3, column 17: node-labels.a b: ",
                "no key of a label",
            ),
            ("name = 'Upper'", "line 1, column 8: name: ", "\"Upper\""),
            ("drives = ['/dev/a', 'b']", "line 1, column 10: drives: ", "absolute path"),
            ("data-dir = 'here'", "line 1, column 12: data-dir: ", "begins with /"),
            (
                "[registry]\nlisten = ['/a', 'storage.example:x']",
                "line 2, column 10: registry.listen: ",
                "HOST:PORT",
            ),
            (
                "[registry]\nlisten-agents = 'x'",
                "line 2, column 17: registry.listen-agents: ",
                "HOST:PORT",
            ),
            (
                "node.join = 'hotbay-join-1,x'",
                "line 1, column 13: node.join: ",
                "copy it once more",
            ),
            ("node.join = 'relative'", "line 1, column 13: node.join: ", "hotbay token create"),
            (
                "node.attach-at-start = 'some'",
                "line 1, column 24: node.attach-at-start: ",
                "neither",
            ),
            ("registry = 5", "line 1, column 12: registry: ", "the table [registry]"),
            (
                "[[auto-add]]\nname = 'a'\nmedia = ['SSD', 'Tape']",
                "line 3, column 9: auto-add.media: ",
                "\"Tape\" is none of NVMe",
            ),
            ("name = 'a'\n[[auto-add]]\nname = 'a'", "line 2, column 1: ", "write node = \"*\""),
            (
                "[[auto-add]]\nname = 'a'\nnode = '*'\n[[auto-add]]\nname = 'a'\nnode = '*'",
                "line 1, column 1: ",
                "two rules are named a",
            ),
            ("name = 'a'\nname = 'b'", "line 2, column 1: ", "duplicate key"),
            ("# für\nname = \"a", "line 2, column 10: ", "invalid basic string"),
        ] {
            let (what, next) = refused(text);
            assert!(what.starts_with(&format!("x.toml, {place}")), "{text:?}: {what}");
            assert!(what.contains(words), "{text:?}: {what}");
            assert!(next.contains("nothing was started"), "{text:?}: {next}");
            assert!(next.contains("hotbay config check x.toml"), "{text:?}: {next}");
        }
    }

    #[test]
    fn unknown_names_come_with_the_nearest_known_one() {
        for (text, place, words, hint) in [
            (
                "nmae = 'a'",
                "line 1, column 1: ",
                "no setting or table \"nmae\"",
                "did you mean name?",
            ),
            ("[registy]\n", "line 1, column 2: ", "\"registy\"", "did you mean registry?"),
            (
                "[registry]\nlisen = ''",
                "line 2, column 1: ",
                "in [registry]",
                "did you mean listen?",
            ),
            (
                "[[auto-add]]\nmedai = 'SSD'",
                "line 2, column 1: ",
                "in [auto-add]",
                "did you mean media?",
            ),
            ("listen = ''", "line 1, column 1: ", "\"listen\"", "stands in the table [registry]"),
            ("node.data-dir = ''", "line 1, column 6: ", "in [node]", "stands above all tables"),
            ("zzzzzzzz = ''", "line 1, column 1: ", "zzzzzzzz", "man 5 hotbay.toml"),
            ("\"a\\u001b\" = ''", "line 1, column 1: ", "a", "man 5"),
        ] {
            let (what, next) = refused(text);
            assert!(what.starts_with(&format!("x.toml, {place}")), "{text:?}: {what}");
            assert!(what.contains(words) && !what.contains('\u{1b}'), "{text:?}: {what}");
            assert!(next.contains(hint), "{text:?}: {next}");
        }
    }

    #[test]
    fn a_file_that_is_not_text_is_refused_where_that_begins() {
        let error = ConfigFile::parse(Path::new("x"), b"name = 'a'\n# \xff".to_vec()).unwrap_err();
        assert!(error.to_string().contains("line 2, column 3: this is not text"), "{error}");
    }

    #[test]
    fn only_a_file_that_others_cannot_write_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hotbay.toml");
        assert!(ConfigFile::read(&path).unwrap().is_none());
        let token = JoinToken { address: "h:1".into(), authority: [1; 32], secret: [2; 32] };
        std::fs::write(&path, "name = 'a'").unwrap();
        for (mode, good) in [(0o644, true), (0o664, false), (0o646, false), (0o600, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = ConfigFile::read(&path);
            assert_eq!(read.is_ok(), good, "{mode:o}");
            assert!(good || matches!(read, Err(ConfigError::Writable { .. })));
        }
        std::fs::write(&path, format!("node.join = '{token}'")).unwrap();
        assert!(ConfigFile::read(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(ConfigFile::read(&path), Err(ConfigError::Readable { .. })));
        assert!(matches!(ConfigFile::read(dir.path()), Err(ConfigError::NotAFile { .. })));
        let large = vec![b'#'; 1 + (1 << 20)];
        std::fs::write(&path, large).unwrap();
        assert!(matches!(ConfigFile::read(&path), Err(ConfigError::TooLarge { .. })));
    }
}

//! The file with a machine's filters: read at the start, looked at once a second, and read again when it has changed.
//! The agent's loop lets every device that a look has found pass through [`FilterFile::apply`].
//!
//! A file that cannot be used changes nothing: the filters of before stay, and the node says what is wrong. At the
//! start there is no before: then nothing is included until the file is put right, because nobody knows what it leaves
//! out.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbay_core::device::Observed;
use hotbay_core::filter::{self, Filters, Rule};
use hotbay_core::message::NodeCondition;
use hotbay_core::words::plain;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use thiserror::Error;
use toml::Spanned;

/// How often the loop should look whether the file has changed.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A longer file is no list of rules, and reading it would only take memory.
const FILE_LIMIT_BYTES: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why a file with filters cannot be used.
#[derive(Debug, Error)]
pub enum FilterError {
    #[error("cannot read the filter file {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the filter file {} is not a file", path.display())]
    NotAFile { path: PathBuf },
    #[error("the filter file {} has more than {FILE_LIMIT_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    /// It decides which drives can be used.
    #[error("the filter file {} can be written by other users (mode {mode:03o})", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{}, line {line}, column {column}: {what}", path.display())]
    Text { path: PathBuf, line: usize, column: usize, what: String },
}

/// What a look at a changed file came to.
#[derive(Debug)]
pub enum Changed {
    /// The filters of the file count now.
    Taken { rules: usize },
    /// Those of before stay.
    Refused(FilterError),
}

/// The filters in force, and the file that they come from.
#[derive(Debug, Default)]
pub struct FilterFile {
    /// Without a file there are no filters.
    path: Option<PathBuf>,
    filters: Filters,
    /// What the file looked like when it was last read.
    read: Option<Stamp>,
    /// It looks otherwise since the last check. It is read when it looks the same twice in a row: whoever writes it may
    /// be in the middle of it, and half a file of filters lets in what the other half leaves out.
    unsettled: Option<Option<Stamp>>,
    problem: Option<String>,
}

/// What tells a file that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: (i64, i64),
    mode: u32,
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    filter: Vec<Spanned<Rule>>,
}

impl FilterFile {
    /// Reads the filters, if there is a file for them.
    pub fn open(path: Option<PathBuf>) -> Self {
        let Some(path) = path else { return Self::default() };
        let mut this = Self { path: Some(path.clone()), ..Self::default() };
        this.read = stamp(&path);
        match read(&path) {
            Ok(rules) => this.filters = Filters::Rules(rules),
            Err(error) => {
                let problem = in_full(&error);
                tracing::error!("{problem}; no drive can be added until it is put right");
                this.filters = Filters::Unusable;
                this.problem = Some(problem);
            }
        }
        this
    }

    /// Looks whether the file has changed, and takes it over if it can be used. To be called every [`CHECK_EVERY`].
    /// What comes back is logged already; the devices must pass through [`Self::apply`] again.
    pub fn check(&mut self) -> Option<Changed> {
        let path = self.path.as_deref()?;
        let now = stamp(path);
        if now == self.read {
            self.unsettled = None;
            return None;
        }
        if self.unsettled.replace(now) != Some(now) {
            return None;
        }
        (self.read, self.unsettled) = (now, None);
        Some(match read(path) {
            Ok(rules) => {
                let count = rules.len();
                tracing::info!(rules = count, "the filters have changed");
                (self.filters, self.problem) = (Filters::Rules(rules), None);
                Changed::Taken { rules: count }
            }
            Err(error) => {
                let problem = in_full(&error);
                tracing::error!("{problem}; the filters stay as they were");
                self.problem = Some(problem);
                Changed::Refused(error)
            }
        })
    }

    /// Denies a device that the filters leave out, and takes that back from one that they do not.
    pub fn apply(&self, device: &mut Observed) {
        filter::apply(&self.filters, device);
    }

    /// What people should know: that the file cannot be used, and what counts meanwhile.
    pub fn conditions(&self) -> Vec<NodeCondition> {
        let meanwhile = match self.filters {
            Filters::Unusable => "no drive of the node can be added until it is put right",
            Filters::Rules(_) => "the filters stay as they were before",
        };
        let condition =
            |why: &String| NodeCondition::FiltersInvalid { why: format!("{why}; {meanwhile}") };
        self.problem.iter().map(condition).collect()
    }
}

/// One sentence, with the cause.
fn in_full(error: &FilterError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// What the file looks like; `None` if there is none.
fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    Some(Stamp {
        device: found.dev(),
        inode: found.ino(),
        size_bytes: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        mode: found.mode(),
    })
}

/// Reads the rules of a file, all of them or none.
pub fn read(path: &Path) -> Result<Vec<Rule>, FilterError> {
    let failed = |source: io::Error| FilterError::Read { path: path.to_owned(), source };
    // Opening must not wait: a pipe without a writer would keep us for ever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|error| failed(error.into()))?);
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(FilterError::NotAFile { path: path.to_owned() });
    }
    let mode = found.mode() & 0o777;
    if mode & WRITABLE_BY_OTHERS != 0 {
        return Err(FilterError::Writable { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        return Err(FilterError::TooLarge { path: path.to_owned() });
    }
    parse(path, &bytes)
}

/// Takes the bytes of a file.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<Rule>, FilterError> {
    let wrong = |text: &str, offset: usize, what: &str| {
        let before = &text[..text.floor_char_boundary(offset)];
        FilterError::Text {
            path: path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before.rsplit('\n').next().unwrap_or_default().chars().count() + 1,
            what: plain(&what.replace('\n', "; ")),
        }
    };
    let text = str::from_utf8(bytes).map_err(|error| {
        let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
        wrong(&before, before.len(), "this is not text in UTF-8")
    })?;
    let document: Document = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        wrong(text, offset, error.message())
    })?;
    let mut names = BTreeSet::new();
    for rule in &document.filter {
        if let Some(name) = &rule.get_ref().name
            && !names.insert(name)
        {
            return Err(wrong(text, rule.span().start, &format!("two rules are named {name}")));
        }
    }
    Ok(document.filter.into_iter().map(Spanned::into_inner).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use hotbay_core::device::{DeviceKind, Media};
    use hotbay_core::evidence::Evidence;

    use super::*;

    const NO_FILES: &str = "[[filter]]\nname = 'no-files'\nexclude = { media = 'File' }\n";

    fn device() -> Observed {
        Observed {
            evidence: Evidence::default(),
            path: "/srv/drive.img".into(),
            bay: None,
            kind: DeviceKind::File,
            media: Media::File,
            size_bytes: 1 << 30,
            block_bytes: 512,
            details: Default::default(),
            label: None,
            denied: Vec::new(),
        }
    }

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn path(&self) -> PathBuf {
            self.0.path().join("filters.toml")
        }

        /// As an editor does it: another file takes the place.
        fn write(&self, text: &str) {
            let new = self.0.path().join("new");
            std::fs::write(&new, text).unwrap();
            std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o644)).unwrap();
            std::fs::rename(new, self.path()).unwrap();
        }
    }

    fn folder(text: &str) -> (Folder, FilterFile) {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write(text);
        let file = FilterFile::open(Some(folder.path()));
        (folder, file)
    }

    fn denied(file: &FilterFile) -> Vec<String> {
        let mut device = device();
        file.apply(&mut device);
        device.denied.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_file_nothing_is_left_out() {
        let mut none = FilterFile::open(None);
        assert!(none.check().is_none() && denied(&none).is_empty());
    }

    #[test]
    fn a_changed_file_counts_once_it_looks_the_same_twice() {
        let (folder, mut file) = folder("");
        assert!(denied(&file).is_empty() && file.check().is_none());
        folder.write("");
        assert!(file.check().is_none());
        folder.write(NO_FILES);
        assert!(file.check().is_none(), "it may be half written");
        assert!(denied(&file).is_empty());
        assert!(matches!(file.check(), Some(Changed::Taken { rules: 1 })));
        assert_eq!(denied(&file), ["it is filtered out by its node (no-files)"]);
        assert!(file.check().is_none());
    }

    #[test]
    fn a_file_with_an_error_changes_nothing_and_says_where() {
        let (folder, mut file) = folder(NO_FILES);
        folder.write("[[filter]]\nexclude = { media = 'Tape' }\n");
        file.check();
        assert!(matches!(file.check(), Some(Changed::Refused(FilterError::Text { line: 2, .. }))));
        assert_eq!(denied(&file).len(), 1);
        let condition = file.conditions().remove(0).to_string();
        assert!(condition.contains("filters.toml, line 2, column 21: "), "{condition}");
        assert!(condition.ends_with("; the filters stay as they were before"), "{condition}");
        // A file that is taken away is no consent to use everything.
        std::fs::remove_file(folder.path()).unwrap();
        file.check();
        assert!(matches!(file.check(), Some(Changed::Refused(FilterError::Read { .. }))));
        assert_eq!(denied(&file).len(), 1);
        folder.write("");
        file.check();
        assert!(matches!(file.check(), Some(Changed::Taken { rules: 0 })));
        assert!(denied(&file).is_empty() && file.conditions().is_empty());
    }

    #[test]
    fn without_a_file_that_can_be_used_at_the_start_nothing_is_included() {
        let (folder, mut file) = folder("[[filter]]\n");
        assert_eq!(
            denied(&file),
            ["it is filtered out by its node (the filter file cannot be used)"]
        );
        assert!(file.conditions()[0].to_string().contains("no drive of the node can be added"));
        folder.write("");
        file.check();
        file.check();
        assert!(denied(&file).is_empty());
        let absent = FilterFile::open(Some(folder.0.path().join("absent")));
        assert_eq!(denied(&absent).len(), 1);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (text, place, words) in [
            ("[[filter]]\nname = 'x'", "line 1, column 1: ", "include = { ... } or exclude"),
            ("[[filter]]\ninclude = { modle = 'x' }", "line 2, column 13: ", "`modle`"),
            ("[[filter]]\ninclude = { min-size = '1XB' }", "line 2, column 24: ", "no size"),
            ("[[filters]]\n", "line 1, column 3: ", "`filters`, expected `filter`"),
            ("filter = 5", "line 1, column 10: ", "expected"),
            ("[[filter]]\nexclude = {\n", "line ", ""),
            (
                "[[filter]]\nname='a'\nexclude={}\n[[filter]]\nname='a'\nexclude={}",
                "line 4, ",
                "two",
            ),
        ] {
            let error = parse(Path::new("f.toml"), text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("f.toml, {place}")), "{text:?}: {error}");
            assert!(error.contains(words), "{text:?}: {error}");
        }
        let error = parse(Path::new("f"), b"# a\n#\xff").unwrap_err().to_string();
        assert!(error.starts_with("f, line 2, column 2: this is not text"), "{error}");
    }

    #[test]
    fn only_a_file_that_others_cannot_write_is_taken() {
        let (folder, _) = folder("");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o664)).unwrap();
        assert!(matches!(read(&folder.path()), Err(FilterError::Writable { mode: 0o664, .. })));
        assert!(matches!(read(folder.0.path()), Err(FilterError::NotAFile { .. })));
    }
}

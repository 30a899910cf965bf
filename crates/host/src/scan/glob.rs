//! Patterns that name devices and files in the configuration: `/dev/sd*`, `/srv/drives/[a-d]?.img`.
//!
//! Each component of a path is a pattern as the filters have them; here a leading dot must be matched by a dot, as in a
//! shell.

use std::io;
use std::path::{Path, PathBuf};

use hotbay_core::filter::{NotAPattern, Pattern as Component};
use thiserror::Error;

/// Most paths that one pattern may name.
const MAX_MATCHES: usize = 4096;

/// Why a pattern cannot be used, or could not be answered.
#[derive(Debug, Error)]
pub enum PatternError {
    #[error("{pattern:?} is not a pattern for devices: an absolute path without `..` is expected")]
    NotAbsolute { pattern: String },
    #[error("{pattern:?} has a `[` that is not closed")]
    OpenBracket { pattern: String },
    #[error("{pattern:?} has a name that is longer than any file's")]
    TooLong { pattern: String },
    #[error("{pattern:?} names more than {MAX_MATCHES} paths")]
    TooMany { pattern: String },
    #[error("cannot list {}", directory.display())]
    Directory {
        directory: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A pattern, checked.
#[derive(Debug)]
pub(crate) struct Pattern {
    text: String,
    components: Vec<Component>,
}

impl Pattern {
    pub(crate) fn parse(text: &str) -> Result<Self, PatternError> {
        let wrong = || PatternError::NotAbsolute { pattern: text.to_owned() };
        let relative = text.strip_prefix('/').ok_or_else(wrong)?;
        let mut components = Vec::new();
        for component in relative.split('/').filter(|part| !part.is_empty() && *part != ".") {
            if component == ".." {
                return Err(wrong());
            }
            components.push(component.parse().map_err(|error| {
                let pattern = text.to_owned();
                match error {
                    NotAPattern::OpenBracket { .. } => PatternError::OpenBracket { pattern },
                    NotAPattern::TooLong => PatternError::TooLong { pattern },
                    NotAPattern::Empty => PatternError::NotAbsolute { pattern },
                }
            })?);
        }
        if components.is_empty() {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), components })
    }

    /// The paths that exist now and match, sorted. A directory that is missing has no matches; one that cannot be
    /// read is an error, because its drives are then unknown and not gone.
    pub(crate) fn matches(&self) -> Result<Vec<PathBuf>, PatternError> {
        let mut found = vec![PathBuf::from("/")];
        for component in &self.components {
            let mut next = Vec::new();
            for directory in &found {
                match component.literal() {
                    Some(name) => next.push(directory.join(name)),
                    None => list(directory, component, &mut next)?,
                }
                if next.len() > MAX_MATCHES {
                    return Err(PatternError::TooMany { pattern: self.text.clone() });
                }
            }
            found = next;
        }
        found.retain(|path| path.symlink_metadata().is_ok());
        found.sort();
        Ok(found)
    }

    /// Whether a path is written as the pattern says. Looks at nothing.
    pub(crate) fn fits(&self, path: &str) -> bool {
        let Some(relative) = path.strip_prefix('/') else { return false };
        let names: Vec<&str> = relative.split('/').collect();
        let fits_name = |(component, name): (&Component, &&str)| fits(component, name);
        names.len() == self.components.len() && self.components.iter().zip(&names).all(fits_name)
    }
}

fn list(
    directory: &Path,
    component: &Component,
    out: &mut Vec<PathBuf>,
) -> Result<(), PatternError> {
    let failed = |source| PatternError::Directory { directory: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if absent(&error) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        // A name that is not text cannot be written in a pattern either.
        let Some(name) = name.to_str() else { continue };
        if fits(component, name) {
            out.push(directory.join(name));
            if out.len() > MAX_MATCHES {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn fits(component: &Component, name: &str) -> bool {
    let hidden = name.starts_with('.') && !component.as_str().starts_with('.');
    !hidden && component.fits(name)
}

fn absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(pattern: &str, name: &str) -> bool {
        pattern.parse::<Component>().is_ok_and(|pattern| fits(&pattern, name))
    }

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, name) in [
            ("sd*", "sda"),
            ("sd*", "sd"),
            ("*", ""),
            ("nvme?n1", "nvme0n1"),
            ("loop[0-3]", "loop3"),
            ("sd[!a]", "sdb"),
            ("[]x]", "]"),
            ("[a-]", "-"),
            ("*a*b*", "xxaxxbxx"),
            ("drive-*.img", "drive-é.img"),
        ] {
            assert!(matched(pattern, name), "{pattern:?} must match {name:?}");
        }
        for (pattern, name) in [
            ("sd?", "sd"),
            ("sd?", "sdaa"),
            ("sd[!a]", "sda"),
            ("loop[0-3]", "loop4"),
            ("*a*b", "ab1"),
            ("", "x"),
            ("[z-a]", "m"),
        ] {
            assert!(!matched(pattern, name), "{pattern:?} must not match {name:?}");
        }
    }

    #[test]
    fn many_stars_do_not_take_forever() {
        let name = "a".repeat(255);
        assert!(!matched(&format!("{}b", "*a".repeat(100)), &name));
    }

    #[test]
    fn bad_patterns_are_refused() {
        for bad in ["", "dev/sda", "/", "/./", "/dev/../etc/x"] {
            assert!(
                matches!(Pattern::parse(bad), Err(PatternError::NotAbsolute { .. })),
                "{bad:?}"
            );
        }
        for bad in ["/dev/sd[a", "/dev/sd[", "/dev/sd[!", "/dev/sd[]"] {
            assert!(
                matches!(Pattern::parse(bad), Err(PatternError::OpenBracket { .. })),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn a_path_fits_as_it_is_written() {
        let fits = |pattern: &str, path: &str| Pattern::parse(pattern).unwrap().fits(path);
        assert!(fits("/dev/sd[a-c]", "/dev/sdb") && fits("//dev/./*", "/dev/sdb"));
        for (pattern, path) in [
            ("/dev/sd*", "/dev/nvme0n1"),
            ("/dev/*", "/dev/disk/by-id"),
            ("/dev/*", "/dev/.hidden"),
            ("/dev/sda", "dev/sda"),
            ("/dev/sda/*", "/dev/sda"),
        ] {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn components_are_expanded_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["a1/x.img", "a2/x.img", "a2/y.img", "b/x.img", ".a/x.img"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let find = |pattern: &str| -> Vec<String> {
            let pattern = Pattern::parse(&format!("{}/{pattern}", dir.path().display())).unwrap();
            let strip = |p: PathBuf| p.strip_prefix(dir.path()).unwrap().display().to_string();
            pattern.matches().unwrap().into_iter().map(strip).collect()
        };
        assert_eq!(find("a*/x.img"), ["a1/x.img", "a2/x.img"]);
        assert_eq!(find("*/[xy].img"), ["a1/x.img", "a2/x.img", "a2/y.img", "b/x.img"]);
        assert_eq!(find(".a/*"), [".a/x.img"]);
        assert_eq!(find("b/x.img"), ["b/x.img"]);
        assert!(find("missing/*").is_empty());
        assert!(find("a1/x.img/*").is_empty());
        assert!(find("none.img").is_empty());
    }
}

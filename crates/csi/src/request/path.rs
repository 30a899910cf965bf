//! Paths that the kubelet names. Hotbay makes, mounts and removes there, as root: only what is plainly meant is taken.

use std::path::PathBuf;

use super::{PATH_BYTES_MAX, Refusal, at_most, shown};

/// A path as given, if it is absolute, leads nowhere else by "..", and can be one. Spaces and line breaks can be.
pub(super) fn absolute(field: &'static str, text: String) -> Result<PathBuf, Refusal> {
    at_most(field, text.len(), PATH_BYTES_MAX)?;
    if text.contains('\0') {
        return Err(Refusal::NulInPath { field, path: shown(&text) });
    }
    if !text.starts_with('/') {
        return Err(Refusal::RelativePath { field, path: shown(&text) });
    }
    if text.split('/').any(|part| part == "..") {
        return Err(Refusal::ParentInPath { field, path: shown(&text) });
    }
    Ok(PathBuf::from(text))
}

/// Like [`absolute`], where empty is not given.
pub(super) fn optional(field: &'static str, text: String) -> Result<Option<PathBuf>, Refusal> {
    if text.is_empty() { Ok(None) } else { absolute(field, text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_paths_are_taken_and_dangerous_ones_refused() {
        for good in ["/", "/a", "/with space/new\nline", "/..a/b..", "/a/...", "/ä", "//a/./b/"] {
            assert_eq!(absolute("p", good.to_owned()), Ok(PathBuf::from(good)));
        }
        for bad in ["", "a", "./a", "some/path", " /a", "/..", "/a/../b", "/a/..", "/a\0b"] {
            assert!(absolute("p", bad.to_owned()).is_err(), "{bad:?} was taken");
        }
        let long = format!("/{}", "a".repeat(PATH_BYTES_MAX));
        assert!(absolute("p", long[..PATH_BYTES_MAX].to_owned()).is_ok());
        assert!(matches!(absolute("p", long), Err(Refusal::TooLong { .. })));
    }

    proptest! {
        #[test]
        fn no_path_that_is_taken_climbs(text in "[a./ \n\0]{0,12}") {
            if let Ok(path) = absolute("p", text) {
                prop_assert!(path.is_absolute());
                let up = std::path::Component::ParentDir;
                prop_assert!(!path.components().any(|part| part == up));
            }
        }
    }
}

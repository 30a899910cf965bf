//! The list of drives that `hotbay drive plan` prints and `hotbay drive add -f` takes: YAML, edited by people in
//! between. It is read as a whole before anything is asked for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use hotbay_core::cluster::StateHash;
use serde::{Deserialize, Serialize};
use serde_saphyr::{Location, Spanned};

use super::error::ClientError;
use super::screen::plain;

/// Room for 100,000 drives; a longer file is no plan.
const FILE_LIMIT_BYTES: u64 = 64 << 20;
/// What a reader of YAML may meet in such a file.
const NODES: usize = 4_000_000;

/// A plan. The texts know their place in a file that was read.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan<Text> {
    pub(super) drives: Vec<Entry<Text>>,
}

/// One drive. Its name and state count; the rest is for people, and is not compared with anything.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry<Text> {
    pub(super) name: Text,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) serial: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) size: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) media: Option<String>,
    /// Why it would be refused, if that is known already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) why: Option<String>,
    pub(super) state: Text,
}

/// The drives of a plan: which, and in which state each must be.
pub(super) type Listed = Vec<(String, StateHash)>;

/// Reads a plan from a file, or from standard input if it is called `-`.
pub(super) fn read(path: &Path) -> Result<Listed, ClientError> {
    let shown = if path == Path::new("-") {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let failed = |source: io::Error| ClientError::PlanFile { file: shown.clone(), source };
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(path).map_err(failed)?)
    };
    let mut text = String::new();
    source.take(FILE_LIMIT_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_LIMIT_BYTES {
        let what = format!("a plan has at most {FILE_LIMIT_BYTES} bytes");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    parse(&shown, &text)
}

/// Takes a text as a plan, all of it or nothing.
pub(super) fn parse(file: &str, text: &str) -> Result<Listed, ClientError> {
    let wrong = |at: Option<Location>, what: String| ClientError::PlanText {
        file: file.to_owned(),
        line: at.map_or(1, |at| at.line()),
        column: at.map_or(1, |at| at.column()),
        what: plain(&what),
    };
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: NODES, max_events: 2 * NODES },
        with_snippet: false,
    };
    let plan: Plan<Spanned<String>> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| wrong(error.location(), in_words(&error)))?;
    let mut listed = Vec::with_capacity(plan.drives.len());
    let mut lines = BTreeMap::new();
    for Entry { name, state, .. } in plan.drives {
        let at = Some(name.referenced);
        if name.value.is_empty() {
            return Err(wrong(at, "name: it is empty".to_owned()));
        }
        if let Some(before) = lines.insert(name.value.clone(), name.referenced.line()) {
            let what = format!("name: {} is listed already, in line {before}", name.value);
            return Err(wrong(at, what));
        }
        let hash = state.value.parse().map_err(|error| {
            let what = format!("state of {}: {error}, and not {:?}", name.value, state.value);
            wrong(Some(state.referenced), what)
        })?;
        listed.push((name.value, hash));
    }
    Ok(listed)
}

/// What is wrong, without the place: that is told before it.
fn in_words(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let text = text.split('\n').next().unwrap_or_default();
    text.rsplit_once(" at line ").map_or(text, |(what, _)| what).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_named_with_line_and_field() {
        let good = "drives:\n  - name: d-1\n    state: s-0123456789abcdef\n";
        assert_eq!(parse("p", good).unwrap().len(), 1);
        assert_eq!(parse("p", "# nothing left\ndrives: []\n").unwrap(), []);
        for (text, place, words) in [
            ("drives:\n  - name: d-1\n", "line 2", "state"),
            ("drives:\n  - state: s-0123456789abcdef\n", "line 2", "name"),
            ("drives:\n  - name: d-1\n    state: 5\n", "line 3, column 12", "state of d-1: "),
            ("drives:\n  - name: d-1\n    stat: x\n", "line 3, column 5", "stat"),
            (
                "drives:\n  - name: ''\n    state: s-0123456789abcdef\n",
                "line 2",
                "name: it is empty",
            ),
            (
                &format!("{good}{}", &good[8..]),
                "line 4, column 11",
                "d-1 is listed already, in line 2",
            ),
            ("drives: 5\n", "line 1", ""),
            ("drives:\n  - name: [d-1\n", "line ", ""),
            ("", "line 1", "end of input"),
            ("- d-1\n", "line 1", ""),
        ] {
            let error = parse("p.yaml", text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("p.yaml, {place}")), "{text:?}: {error}");
            assert!(error.contains(words), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_plan_for_thousands_of_drives_is_read() {
        // More than a reader of YAML takes by itself, and less than takes long in a test.
        const DRIVES: usize = 15_000;
        let mut text = "drives:\n".to_owned();
        for number in 0..DRIVES {
            text.push_str(&format!(
                "- name: d-{number}\n  node: n\n  path: p\n  bay: '1'\n  model: m\n  serial: s\n  \
                 size: 1T\n  media: SSD\n  state: s-0123456789abcdef\n"
            ));
        }
        assert_eq!(parse("p", &text).unwrap().len(), DRIVES);
    }
}

//! What csi-sanity says of each of its cases, read from its report, and whether it skipped what it may and no more.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    spec_reports: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Case {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_text: String,
    state: String,
}

impl Case {
    fn name(&self) -> String {
        let outer = self.container_hierarchy_texts.iter().flatten().map(String::as_str);
        outer.chain([self.leaf_node_text.as_str()]).collect::<Vec<_>>().join(" ")
    }
}

/// The names in the list of what may be skipped.
pub(super) fn expected_skips(path: &Path) -> anyhow::Result<BTreeSet<String>> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the list of skips {}", path.display()))?;
    let names = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(names.map(str::to_owned).collect())
}

/// One line that tells how it went; an error if a case failed, none ran, or another was skipped than expected.
pub(super) fn judge(report: &str, expected: &BTreeSet<String>) -> anyhow::Result<String> {
    let suites: Vec<Suite> =
        serde_json::from_str(report).context("cannot read the report of csi-sanity")?;
    let cases = || suites.iter().flat_map(|suite| &suite.spec_reports);
    let of = |state: &str| -> BTreeSet<String> {
        cases().filter(|case| case.state == state).map(Case::name).collect()
    };
    let (passed, skipped, pending) = (of("passed"), of("skipped"), of("pending"));
    // What runs around the cases has no name.
    let named = cases().filter(|case| !case.leaf_node_text.is_empty());
    let failed: Vec<_> = named
        .filter(|case| !["passed", "skipped", "pending"].contains(&case.state.as_str()))
        .map(|case| format!("{}: {}", case.state, case.name()))
        .collect();
    ensure!(failed.is_empty(), "csi-sanity is not content:\n  {}", failed.join("\n  "));
    ensure!(!passed.is_empty(), "csi-sanity ran no case");
    let mut differences = String::new();
    for name in skipped.difference(expected) {
        write!(differences, "\n  skipped, and not in the list: {name}")?;
    }
    for name in expected.difference(&skipped) {
        write!(differences, "\n  in the list, and not skipped: {name}")?;
    }
    if !differences.is_empty() {
        bail!("csi-sanity did not skip what it was expected to skip:{differences}");
    }
    Ok(format!(
        "{} passed, {} skipped as expected, {} pending in csi-sanity itself",
        passed.len(),
        skipped.len(),
        pending.len()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(cases: &[(&str, &str)]) -> String {
        let case = |(name, state): &(&str, &str)| {
            format!(
                r#"{{"ContainerHierarchyTexts": ["Node"], "LeafNodeText": "{name}",
                    "State": "{state}"}}"#
            )
        };
        let cases: Vec<_> = cases.iter().map(case).collect();
        format!(r#"[{{"SpecReports": [{}]}}]"#, cases.join(","))
    }

    fn list(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| format!("Node {name}")).collect()
    }

    #[test]
    fn the_line_counts_and_names_are_whole() {
        let report = report(&[("works", "passed"), ("clones", "skipped"), ("pages", "pending")]);
        let line = judge(&report, &list(&["clones"])).unwrap();
        assert_eq!(line, "1 passed, 1 skipped as expected, 1 pending in csi-sanity itself");
    }

    #[test]
    fn a_skip_more_and_a_skip_less_both_fail() {
        let report = report(&[("works", "passed"), ("clones", "skipped")]);
        let more = judge(&report, &list(&[])).unwrap_err().to_string();
        assert!(more.contains("not in the list: Node clones"), "{more}");
        let less = judge(&report, &list(&["clones", "works"])).unwrap_err().to_string();
        assert!(less.contains("not skipped: Node works"), "{less}");
    }

    #[test]
    fn failures_and_empty_runs_fail() {
        for state in ["failed", "panicked", "interrupted", "aborted", "timedout", ""] {
            let report = report(&[("works", "passed"), ("breaks", state)]);
            assert!(judge(&report, &list(&[])).is_err(), "{state:?} was let pass");
        }
        assert!(judge(&report(&[]), &list(&[])).is_err());
        assert!(judge("not json", &list(&[])).is_err());
    }
}

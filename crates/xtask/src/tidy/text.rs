//! The rules for one file: its name, its length, its lines. Pure: path and text in, findings out.
//!
//! What is searched for is written in two pieces wherever it would otherwise be found in this very file.

use std::collections::BTreeSet;

use super::Finding;

const FILE_LINES_MAX: usize = 500;
/// No reason is good enough for a longer file.
const LONG_FILE_LINES_MAX: usize = 800;
const LINE_COLUMNS_MAX: usize = 120;

/// A file allowed to have up to 800 lines.
struct LongFile {
    path: &'static str,
    /// Why it reads better in one piece.
    reason: &'static str,
}

const LONG_FILES: &[LongFile] = &[];

/// Names that say nothing about what is inside, so that everything ends up there.
const EMPTY_NAMES: [&str; 7] = ["common", "helper", "helpers", "manager", "misc", "util", "utils"];

/// What may not be in the Rust code that is kept, and what to do instead.
const MARKERS: [(&str, &str); 4] = [
    (concat!("to", "do!("), "write it, or say in an error what is not supported"),
    (concat!("unimple", "mented!("), "write it, or say in an error what is not supported"),
    (concat!("db", "g!("), "remove it, or use tracing"),
    (concat!("#[", "ignore"), "a test that runs nowhere rots: a name root_* or the soak tier"),
];

/// Words for what is to be done later; it belongs into an issue.
const LATER: [&str; 2] = [concat!("FIX", "ME"), concat!("XX", "X")];

/// What would tie the project to one machine or one way of working. Lower case; upper case is found as well.
const FOREIGN: [(&str, &str); 9] = [
    (concat!("/work/", "main"), "a path of one machine"),
    (concat!("/work/", "shared"), "a path of one machine"),
    (concat!("/home/", "runner"), "a path of one machine"),
    (concat!("sparse+", "http"), "the address of a package registry"),
    (concat!("index.", "crates.io"), "the address of a package registry"),
    (concat!("registry.", "npmjs"), "the address of a package registry"),
    (concat!("proxy.", "golang"), "the address of a package registry"),
    (concat!("pypi.", "org/simple"), "the address of a package registry"),
    (concat!("sub", "agent"), "a word about how the project is made"),
];

/// A word of the file's name, or of a folder's, that says nothing.
pub(super) fn name_finding(path: &str) -> Option<Finding> {
    let empty = path
        .split(['/', '.', '_', '-'])
        .find(|word| EMPTY_NAMES.contains(&word.to_lowercase().as_str()))?;
    Some(Finding::of_file(path, format!("\"{empty}\" does not say what is inside: name it")))
}

/// Everything wrong with the text of one file.
pub(super) fn file_findings(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    // Split by hand: `lines` would swallow a carriage return.
    for (index, line) in text.split('\n').enumerate() {
        let rules = any_line(line);
        findings.extend(rules.into_iter().map(|rule| Finding::of_line(path, index + 1, rule)));
    }
    if path.ends_with(".rs") {
        findings.extend(rust_findings(path, text));
    }
    findings
}

/// Entries of the table of long files that are of no use any more.
pub(super) fn exception_findings(files: &BTreeSet<String>) -> Vec<Finding> {
    LONG_FILES
        .iter()
        .filter(|long| !files.contains(long.path))
        .map(|long| Finding::of_file(long.path, "listed as a long file, and does not exist"))
        .collect()
}

fn any_line(line: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if line.ends_with([' ', '\t', '\r']) {
        rules.push("white space at the end of the line".to_owned());
    }
    let lower = line.to_lowercase();
    for (pattern, what) in FOREIGN {
        if lower.contains(pattern) {
            rules.push(format!("\"{pattern}\" is {what}"));
        }
    }
    rules
}

fn rust_findings(path: &str, text: &str) -> Vec<Finding> {
    let lines: Vec<_> = text.lines().collect();
    let mut findings: Vec<_> = length_rule(path, lines.len()).into_iter().collect();
    if !text.starts_with("//!") {
        let rule = "open the file with //! lines: why it exists and who calls it";
        findings.push(Finding::of_line(path, 1, rule));
    }
    for (index, line) in lines.iter().enumerate() {
        let mut rules = rust_line(line);
        if is_glob_of_parent(line) && !in_tests(path, &lines[..=index]) {
            rules.push("name what is used: a glob of the parent is for mod tests".to_owned());
        }
        findings.extend(rules.into_iter().map(|rule| Finding::of_line(path, index + 1, rule)));
    }
    findings
}

fn length_rule(path: &str, lines: usize) -> Option<Finding> {
    let listed = LONG_FILES.iter().find(|long| long.path == path);
    let rule = match listed {
        None if lines > FILE_LINES_MAX => {
            format!("{lines} lines: split it at {FILE_LINES_MAX}, or list it in {}", file!())
        }
        Some(_) if lines <= FILE_LINES_MAX => {
            format!("listed as a long file, and has {lines} lines: take it off the list")
        }
        Some(LongFile { reason, .. }) if lines > LONG_FILE_LINES_MAX => {
            format!("{lines} lines: over {LONG_FILE_LINES_MAX} is too many even because {reason}")
        }
        _ => return None,
    };
    Some(Finding::of_file(path, rule))
}

fn rust_line(line: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let columns = line.chars().count();
    if columns > LINE_COLUMNS_MAX {
        rules.push(format!("{columns} columns: at most {LINE_COLUMNS_MAX}"));
    }
    for (marker, instead) in MARKERS {
        if line.contains(marker) {
            rules.push(format!("{marker} is not kept: {instead}"));
        }
    }
    for word in LATER {
        if line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|found| found == word) {
            rules.push(format!("{word} is not kept: do it, or open an issue"));
        }
    }
    rules
}

fn is_glob_of_parent(line: &str) -> bool {
    let line = line.trim();
    (line.starts_with("use super::") || line.starts_with("pub use super::"))
        && line.ends_with("::*;")
}

/// Whether the last of `lines` stands in tests: in a file of tests, or below a `mod tests` by its indentation, which
/// rustfmt keeps honest.
fn in_tests(path: &str, lines: &[&str]) -> bool {
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        return true;
    }
    let indent = |line: &str| line.len() - line.trim_start().len();
    let Some((last, above)) = lines.split_last() else { return false };
    let mut inner = indent(last);
    for line in above.iter().rev().filter(|line| !line.trim().is_empty()) {
        if indent(line) < inner {
            inner = indent(line);
            if line.trim_start().starts_with("mod tests {") {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOB: &str = concat!("use super::", "*;");

    fn rules(path: &str, text: &str) -> Vec<String> {
        file_findings(path, text).into_iter().map(|finding| finding.rule).collect()
    }

    fn passes(path: &str, text: &str) {
        assert_eq!(rules(path, text), Vec::<String>::new(), "{text}");
    }

    /// One finding, and its words.
    fn fails(path: &str, text: &str, words: &str) {
        let rules = rules(path, text);
        assert_eq!(rules.len(), 1, "{rules:?}");
        assert!(rules[0].contains(words), "{rules:?}");
    }

    fn rust(code: &str) -> String {
        format!("//! Why.\n{code}\n")
    }

    #[test]
    fn file_opens_with_its_reason() {
        passes("a.rs", "//! Why.\n");
        fails("a.rs", "use std::fs;\n", "open the file");
        fails("a.rs", "", "open the file");
        passes("a.sh", "echo\n");
    }

    #[test]
    fn length_of_a_file() {
        passes("a.rs", &rust(&"\n".repeat(FILE_LINES_MAX - 2)));
        fails("a.rs", &rust(&"\n".repeat(FILE_LINES_MAX - 1)), "501 lines");
        passes("a.md", &"\n".repeat(FILE_LINES_MAX + 1));
    }

    #[test]
    fn width_of_a_line() {
        passes("a.rs", &rust(&"ä".repeat(LINE_COLUMNS_MAX)));
        fails("a.rs", &rust(&"ä".repeat(LINE_COLUMNS_MAX + 1)), "121 columns");
        passes("a.md", &"a".repeat(LINE_COLUMNS_MAX + 1));
    }

    #[test]
    fn white_space_at_the_end() {
        passes("a.md", "words\n\nwords\n");
        for end in [" ", "\t", "\r"] {
            fails("a.md", &format!("words{end}\nwords\n"), "white space");
        }
    }

    #[test]
    fn markers_are_not_kept() {
        for (marker, _) in MARKERS {
            fails("a.rs", &rust(&format!("    {marker}")), "is not kept");
            passes("a.md", marker);
        }
        passes("a.rs", &rust("fn ignore() {}"));
    }

    #[test]
    fn words_for_later_are_not_kept() {
        for word in LATER {
            fails("a.rs", &rust(&format!("// {word}: more")), "is not kept");
            passes("a.rs", &rust(&format!("// {word}{word}")));
        }
    }

    #[test]
    fn glob_of_parent_is_for_tests() {
        passes("a.rs", &rust(&format!("mod tests {{\n    {GLOB}\n}}")));
        passes(
            "a.rs",
            &rust(&format!("mod tests {{\n    mod inner {{\n        {GLOB}\n    }}\n}}")),
        );
        passes("a/tests.rs", &rust(GLOB));
        fails("a.rs", &rust(GLOB), "a glob");
        fails("a.rs", &rust(&format!("pub {GLOB}")), "a glob");
        fails("a.rs", &rust(&format!("mod inner {{\n    {GLOB}\n}}")), "a glob");
        let after_tests = format!("mod tests {{\n}}\nmod inner {{\n    {GLOB}\n}}");
        fails("a.rs", &rust(&after_tests), "a glob");
    }

    #[test]
    fn nothing_foreign_in_any_file() {
        for (pattern, what) in FOREIGN {
            fails("a.md", &format!("see {pattern}"), what);
            fails("a.md", &format!("see {}", pattern.to_uppercase()), what);
        }
        passes("Cargo.lock", "registry+https://github.com/rust-lang/crates.io-index\n");
    }

    #[test]
    fn names_say_what_is_inside() {
        for path in ["crates/core/src/utils.rs", "tests/common/mod.rs", "a/drive_manager.rs"] {
            assert!(name_finding(path).is_some(), "{path}");
        }
        for path in ["crates/core/src/order.rs", "CONTRIBUTING.md", ".ci/run", "managers_guide.md"]
        {
            assert_eq!(name_finding(path), None);
        }
    }

    #[test]
    fn every_listed_file_exists() {
        let none = BTreeSet::new();
        assert_eq!(exception_findings(&none).len(), LONG_FILES.len());
    }
}

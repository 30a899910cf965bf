//! The house rules of CONTRIBUTING.md, as a test: what a reviewer would otherwise have to say twice. Called by
//! `cargo xtask tidy`, by the `check` tier, and as a test of this crate.
//!
//! `text` holds the rules for one file, `manifest` those for one crate. Each finding names file and line; all
//! findings of a run are told at once.

mod manifest;
mod text;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

use crate::workspace::Workspace;

/// One rule broken in one place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// From 1; 0 where the whole file is meant.
    line: usize,
    rule: String,
}

impl Finding {
    fn of_file(path: &str, rule: impl Into<String>) -> Self {
        Self::of_line(path, 0, rule)
    }

    fn of_line(path: &str, line: usize, rule: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule: rule.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.rule),
            line => write!(f, "{}:{line}: {}", self.path, self.rule),
        }
    }
}

/// Fails with everything in the workspace that breaks a rule.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<()> {
    let files = files(&workspace.root)?;
    let mut findings = text::exception_findings(&files);
    for path in &files {
        findings.extend(text::name_finding(path));
        let bytes =
            fs::read(workspace.root.join(path)).with_context(|| format!("cannot read {path}"))?;
        // What is not text has no lines to check.
        if let Ok(text) = str::from_utf8(&bytes) {
            findings.extend(text::file_findings(path, text));
            findings.extend(manifest::core_finding(path, text));
        }
    }
    for package in &workspace.packages {
        let manifest = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("cannot read {}", package.manifest_path.display()))?;
        findings.extend(manifest::package_findings(package, &manifest, &workspace.root, &files));
    }
    if findings.is_empty() {
        println!("tidy: {} files, nothing found", files.len());
        return Ok(());
    }
    let lines: Vec<_> = findings.iter().map(ToString::to_string).collect();
    bail!("{} findings:\n  {}", lines.len(), lines.join("\n  "));
}

/// Every file that is or would be in the repository, relative to its root.
fn files(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    if !root.join(".git").exists() {
        // Unpacked from an archive: there is no git to ask.
        let mut files = BTreeSet::new();
        walk(root, "", &mut files)?;
        return Ok(files);
    }
    let output = Command::new("git")
        // A checkout made by another user, as CI systems do, is fine to list.
        .arg("-c")
        .arg(format!("safe.directory={}", root.display()))
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    // Git also names what is deleted here and not yet there.
    let exists = |path: &&str| root.join(path).is_file();
    Ok(names.split_terminator('\0').filter(exists).map(str::to_owned).collect())
}

/// Adds the files below `folder`, which is relative to `root`, without what cargo built.
fn walk(root: &Path, folder: &str, files: &mut BTreeSet<String>) -> anyhow::Result<()> {
    let place = root.join(folder);
    let entries =
        fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", place.display()))?;
        let name = entry.file_name().into_string().ok().context("a file name is not UTF-8")?;
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let kind = entry.file_type().with_context(|| format!("cannot look at {path}"))?;
        if !kind.is_dir() {
            files.insert(path);
        } else if path != "target" {
            walk(root, &path, files)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_tidy() {
        check(&Workspace::load().unwrap()).unwrap();
    }

    #[test]
    fn git_and_a_walk_both_find_this_file() {
        let root = Workspace::load().unwrap().root;
        assert!(files(&root).unwrap().contains("crates/xtask/src/tidy.rs"));
        let mut walked = BTreeSet::new();
        walk(&root.join("crates"), "", &mut walked).unwrap();
        assert!(walked.contains("xtask/src/tidy.rs"));
    }

    #[test]
    fn finding_names_its_place() {
        assert_eq!(Finding::of_line("a.rs", 3, "too long").to_string(), "a.rs:3: too long");
        assert_eq!(Finding::of_file("a.rs", "too long").to_string(), "a.rs: too long");
    }
}

//! The rules for one crate: what its Cargo.toml must say, and how its tests that need root, a virtual machine or
//! Kubernetes are declared.
//!
//! Pure: what cargo and the file say goes in, findings come out.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;
use crate::layering;
use crate::workspace::{GUEST_FEATURE, K8S_FEATURE, Package, ROOT_FEATURE, SOAK_FEATURE};

/// Makes the compiler name every match in core that a new variant would slip through.
const NO_WILDCARDS: &str = "#![warn(clippy::wildcard_enum_match_arm)]";

/// Everything wrong with one crate. `manifest` is the text of its Cargo.toml; `files` are all files, relative to
/// `root`.
pub(super) fn package_findings(
    package: &Package,
    manifest: &str,
    root: &Path,
    files: &BTreeSet<String>,
) -> Vec<Finding> {
    let folder = package.manifest_path.parent().unwrap_or(root);
    let folder = folder.strip_prefix(root).unwrap_or(folder).to_string_lossy().into_owned();
    let path = format!("{folder}/Cargo.toml");
    let mut findings = Vec::new();
    if !has_workspace_lints(manifest) {
        let rule = "add [lints] with workspace = true: the lints are the same for every crate";
        findings.push(Finding::of_file(&path, rule));
    }
    if !layering::knows(&package.name) {
        let rule = format!("{} has no place in the table of layering.rs", package.name);
        findings.push(Finding::of_file(&path, rule));
    }
    let tests = format!("{folder}/tests/");
    let kinds = [
        ("root_", ROOT_FEATURE),
        ("guest_", GUEST_FEATURE),
        ("k8s_", K8S_FEATURE),
        ("soak_k8s_", SOAK_FEATURE),
    ];
    for (prefix, feature) in kinds {
        let files = files.iter().filter(|path| {
            path.strip_prefix(&tests).is_some_and(|name| is_test_named(name, prefix))
        });
        let undeclared =
            files.filter(|path| !is_declared(package, &root.join(path), prefix, feature));
        findings.extend(undeclared.map(|path| {
            let rule = format!(
                "declare it in Cargo.toml: a [[test]] with its name and required-features = \
                 [\"{feature}\"]"
            );
            Finding::of_file(path, rule)
        }));
    }
    findings
}

/// What must stand at the head of core's lib.rs.
pub(super) fn core_finding(path: &str, text: &str) -> Option<Finding> {
    (path == "crates/core/src/lib.rs" && !text.lines().any(|line| line == NO_WILDCARDS)).then(
        || Finding::of_file(path, format!("add {NO_WILDCARDS}: a new variant must be decided on")),
    )
}

fn has_workspace_lints(manifest: &str) -> bool {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
    lines.find(|line| !line.is_empty()) == Some("workspace = true")
}

/// Whether cargo takes a file of the folder `tests` for a test of its own, and its name begins with `prefix`.
fn is_test_named(name: &str, prefix: &str) -> bool {
    let stem = name.strip_suffix("/main.rs").or_else(|| name.strip_suffix(".rs"));
    stem.is_some_and(|stem| stem.starts_with(prefix) && !stem.contains('/'))
}

/// A test that needs root, a virtual machine or Kubernetes and is not declared so would run, and fail, in a plain
/// `cargo test`.
fn is_declared(package: &Package, source: &Path, prefix: &str, feature: &str) -> bool {
    package.targets.iter().any(|target| {
        target.is_test()
            && target.src_path == source
            && target.name.starts_with(prefix)
            && target.required_features.iter().any(|required| required == feature)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    const GOOD: &str = "[package]\nname = \"hotbay-host\"\n\n[lints]\nworkspace = true\n";

    fn package(name: &str, targets: Vec<Target>) -> Package {
        Package {
            name: name.to_owned(),
            manifest_path: "/src/crates/host/Cargo.toml".into(),
            dependencies: Vec::new(),
            targets,
        }
    }

    fn target(name: &str, file: &str, features: &[&str]) -> Target {
        Target {
            name: name.to_owned(),
            kind: vec!["test".to_owned()],
            src_path: format!("/src/crates/host/tests/{file}").into(),
            required_features: features.iter().map(|feature| (*feature).to_owned()).collect(),
        }
    }

    fn root_test(features: &[&str]) -> Target {
        target("root_hang", "root_hang.rs", features)
    }

    fn findings(package: &Package, manifest: &str, files: &[&str]) -> Vec<String> {
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        let findings = package_findings(package, manifest, Path::new("/src"), &files);
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn lints_are_those_of_the_workspace() {
        let host = package("hotbay-host", Vec::new());
        assert_eq!(findings(&host, GOOD, &[]), Vec::<String>::new());
        for bad in ["[package]\n", "[lints]\n[features]\n", "[lints.clippy]\nworkspace = true\n"] {
            let findings = findings(&host, bad, &[]);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].starts_with("crates/host/Cargo.toml: add [lints]"), "{findings:?}");
        }
    }

    #[test]
    fn crate_has_a_place_among_the_layers() {
        let findings = findings(&package("hotbay-new", Vec::new()), GOOD, &[]);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].contains("no place"), "{findings:?}");
    }

    #[test]
    fn root_test_is_declared() {
        let files = ["crates/host/tests/root_hang.rs"];
        let declared = package("hotbay-host", vec![root_test(&[ROOT_FEATURE])]);
        assert_eq!(findings(&declared, GOOD, &files), Vec::<String>::new());
        for targets in [Vec::new(), vec![root_test(&[])], vec![root_test(&["mutations"])]] {
            let findings = findings(&package("hotbay-host", targets), GOOD, &files);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].contains("declare it"), "{findings:?}");
        }
    }

    #[test]
    fn test_in_a_virtual_machine_is_declared_also_as_a_folder() {
        let files = ["crates/host/tests/guest_drives/main.rs"];
        let declared = |features| {
            package("hotbay-host", vec![target("guest_drives", "guest_drives/main.rs", features)])
        };
        assert_eq!(findings(&declared(&[GUEST_FEATURE]), GOOD, &files), Vec::<String>::new());
        assert_eq!(findings(&declared(&[ROOT_FEATURE]), GOOD, &files).len(), 1);
    }

    #[test]
    fn test_on_kubernetes_is_declared() {
        let files = ["crates/host/tests/k8s_pods.rs"];
        let declared =
            |features| package("hotbay-host", vec![target("k8s_pods", "k8s_pods.rs", features)]);
        assert_eq!(findings(&declared(&[K8S_FEATURE]), GOOD, &files), Vec::<String>::new());
        assert_eq!(findings(&declared(&[]), GOOD, &files).len(), 1);
    }

    #[test]
    fn soak_on_kubernetes_is_not_for_ci() {
        let files = ["crates/host/tests/soak_k8s_all.rs"];
        let declared = |features| {
            package("hotbay-host", vec![target("soak_k8s_all", "soak_k8s_all.rs", features)])
        };
        assert_eq!(findings(&declared(&[SOAK_FEATURE]), GOOD, &files), Vec::<String>::new());
        assert_eq!(findings(&declared(&[K8S_FEATURE]), GOOD, &files).len(), 1);
    }

    #[test]
    fn only_test_files_of_this_crate_are_root_tests() {
        let host = package("hotbay-host", Vec::new());
        let files = [
            "crates/node/tests/root_hang.rs",
            "crates/host/src/root_cause.rs",
            "crates/host/tests/hang.rs",
            "crates/host/tests/root_hang/drive.rs",
        ];
        assert_eq!(findings(&host, GOOD, &files), Vec::<String>::new());
    }

    #[test]
    fn core_decides_on_every_variant() {
        let lib = "crates/core/src/lib.rs";
        assert_eq!(core_finding(lib, &format!("//! Why.\n\n{NO_WILDCARDS}\n")), None);
        assert!(core_finding(lib, &format!("//! Why.\n// {NO_WILDCARDS}\n")).is_some());
        assert_eq!(core_finding("crates/host/src/lib.rs", "//! Why.\n"), None);
    }
}

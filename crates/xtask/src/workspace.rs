//! What cargo knows about our own crates: their folders, the crates they use, their test targets.
//!
//! Read once at start from `cargo metadata --no-deps`, which needs no network. Everything here is a value, so the
//! checks that work on it are tested without cargo.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

/// The feature that keeps a test out of `cargo test --workspace`: its tests need root.
pub(crate) const ROOT_FEATURE: &str = "root-tests";
/// The same for tests that boot a virtual machine.
pub(crate) const GUEST_FEATURE: &str = "guest-tests";
/// The same for tests on a real Kubernetes.
pub(crate) const K8S_FEATURE: &str = "k8s-tests";
/// The same for tests that take too long for CI.
pub(crate) const SOAK_FEATURE: &str = "soak-tests";

#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "workspace_root")]
    pub(crate) root: PathBuf,
    /// Where cargo puts what it builds.
    #[serde(default, rename = "target_directory")]
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `None` for an ordinary dependency, else `dev` or `build`.
    pub(crate) kind: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
    #[serde(default, rename = "required-features")]
    pub(crate) required_features: Vec<String>,
}

/// One integration test and the features that it is built with.
#[derive(Debug)]
pub(crate) struct TestTarget<'a> {
    pub(crate) package: &'a str,
    pub(crate) name: &'a str,
    pub(crate) features: &'a [String],
}

impl Workspace {
    pub(crate) fn load() -> anyhow::Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("cannot run cargo metadata")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed:\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).context("cannot read what cargo metadata says")
    }

    /// Every integration test of every crate, by package and name.
    pub(crate) fn tests(&self) -> impl Iterator<Item = TestTarget<'_>> {
        self.packages.iter().flat_map(|package| {
            package.targets.iter().filter(|target| target.is_test()).map(|target| TestTarget {
                package: &package.name,
                name: &target.name,
                features: &target.required_features,
            })
        })
    }
}

impl Target {
    pub(crate) fn is_test(&self) -> bool {
        self.kind.iter().any(|kind| kind == "test")
    }
}

impl TestTarget<'_> {
    /// Whether only the `root` tier runs it. Tidy sees to it that name and feature agree.
    pub(crate) fn needs_root(&self) -> bool {
        self.name.starts_with("root_")
    }

    /// Whether only the `guest` tier runs it.
    pub(crate) fn needs_guest(&self) -> bool {
        self.name.starts_with("guest_")
    }

    /// Whether only the `k8s` tier runs it.
    pub(crate) fn needs_k8s(&self) -> bool {
        self.name.starts_with("k8s_")
    }

    /// Whether only the `soak-k8s` tier runs it.
    pub(crate) fn needs_soak(&self) -> bool {
        self.name.starts_with("soak_k8s_")
    }

    /// Whether a tier of its own runs it, and not `check`.
    pub(crate) fn is_of_others(&self) -> bool {
        self.needs_root() || self.needs_guest() || self.needs_k8s() || self.needs_soak()
    }

    /// The features as cargo takes them when the whole workspace is selected: `package/feature`.
    pub(crate) fn qualified_features(&self) -> impl Iterator<Item = String> {
        self.features.iter().map(|feature| format!("{}/{feature}", self.package))
    }
}

/// The cargo that runs us, so that every step uses the same toolchain.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_tells_our_crates_and_root_folder() {
        let workspace = Workspace::load().unwrap();
        assert!(workspace.root.join("Cargo.lock").exists());
        assert!(workspace.packages.iter().any(|package| package.name == "xtask"));
    }

    #[test]
    fn features_are_qualified_by_their_package() {
        let features = ["root-tests".to_owned()];
        let test = TestTarget { package: "hotbay-host", name: "root_hang", features: &features };
        assert!(test.needs_root());
        assert_eq!(test.qualified_features().collect::<Vec<_>>(), ["hotbay-host/root-tests"]);
    }
}

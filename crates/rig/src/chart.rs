//! The chart in deploy/chart, rendered by Helm itself: for the manifests that are checked in, and for tests that
//! install it on a rig. `product` does that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::components::HELM;
use crate::error::RigError;
use crate::folder::Folder;

/// The namespace of the manifests, and of everything that a test installs.
pub const NAMESPACE: &str = "hotbay";

/// What stands at the beginning of the manifests and is not in the chart: Helm deletes what it made, and the namespace
/// holds what must stay.
const HEAD: &str = "\
# Hotbay on Kubernetes, for `kubectl apply --server-side -f`. Written by `cargo xtask manifests` from deploy/chart with
# its default values; docs/kubernetes.md says how to install with it, and how to remove it and keep the records:
# `kubectl delete -f` with this file alone would delete them, and the namespace.
---
apiVersion: v1
kind: Namespace
metadata:
  name: hotbay
  labels:
    app.kubernetes.io/name: hotbay
    # The agents are privileged: they open drives, and mount what is on them.
    pod-security.kubernetes.io/enforce: privileged
";

/// The folder `deploy` of this clone.
pub fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy")
}

/// The chart's objects with these values, YAML. Without the definitions of the kinds, as `helm template` has it.
pub(crate) fn render(folder: &Folder, values: &str) -> Result<String, RigError> {
    let values = folder.write("values.yaml", values)?;
    rendered(NAMESPACE, &["--values", &values.display().to_string()])
}

/// What must be there before the chart's objects: the namespace and the definitions of the kinds.
pub(crate) fn before() -> Result<String, RigError> {
    let path = deploy().join("crds.yaml");
    let definitions = fs::read_to_string(&path).map_err(RigError::file("read", &path))?;
    Ok(format!("{HEAD}{definitions}"))
}

/// What `deploy/hotbay.yaml` has to be.
pub fn manifests() -> Result<String, RigError> {
    let rendered = rendered(NAMESPACE, &["--include-crds"])?;
    // Helm leaves blank lines at the ends of documents.
    let lines = rendered.trim_end().lines().map(str::trim_end);
    Ok(lines.fold(HEAD.to_owned(), |text, line| text + line + "\n"))
}

/// Writes `deploy/hotbay.yaml`, and says where it is.
pub fn write_manifests() -> Result<PathBuf, RigError> {
    let path = deploy().join("hotbay.yaml");
    fs::write(&path, manifests()?).map_err(RigError::file("write", &path))?;
    Ok(path)
}

/// The chart's objects as `helm template` has them in this namespace, with more of its arguments. What Helm refuses is
/// an error with its words.
pub fn rendered(namespace: &str, args: &[&str]) -> Result<String, RigError> {
    let mut command = Command::new(HELM.program("helm")?);
    command.args(["template", "hotbay"]).arg(deploy().join("chart"));
    command.args(["--namespace", namespace]).args(args);
    let output = command
        .output()
        .map_err(|source| RigError::Start { program: "helm".to_owned(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(RigError::Command { command: format!("helm template {}", args.join(" ")), said })
}

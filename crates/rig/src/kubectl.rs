//! kubectl with the rig's kubeconfig: how the rig asks whether something is ready, and tests do what people do.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::RigError;

#[derive(Debug, Clone)]
pub struct Kubectl {
    pub(crate) program: PathBuf,
    pub(crate) kubeconfig: PathBuf,
}

impl Kubectl {
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A command to which arguments can be added.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        // A test must hear soon that the API server is away.
        command.arg("--request-timeout=30s").env("KUBECONFIG", &self.kubeconfig);
        command
    }

    /// What it prints; fails with what it says if it fails.
    pub fn run(&self, args: &[&str]) -> Result<String, RigError> {
        self.with_input(args, "")
    }

    /// Creates or changes what the manifests describe.
    pub fn apply(&self, manifests: &str) -> Result<String, RigError> {
        self.with_input(&["apply", "-f", "-"], manifests)
    }

    /// The same, for manifests that people install with: a field that the API server does not know is an error.
    pub fn apply_strictly(&self, manifests: &str) -> Result<String, RigError> {
        self.with_input(&["apply", "--server-side", "--validate=strict", "-f", "-"], manifests)
    }

    /// What it prints when it is given this on its input.
    pub fn with_input(&self, args: &[&str], input: &str) -> Result<String, RigError> {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |source| RigError::Start { program: "kubectl".to_owned(), source };
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut pipe) = child.stdin.take() {
            // One that ended early says why on its own.
            drop(pipe.write_all(input.as_bytes()));
        }
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(RigError::Command {
            command: format!("kubectl {}", args.join(" ")),
            said: String::from_utf8_lossy(&output.stderr).trim_end().to_owned(),
        })
    }
}

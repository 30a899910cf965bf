//! What kubectl is asked for: a token of a service account, and the certificate of the controllers' authority. Why that
//! does not work is told with what a person does about it.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use hotbay_control::AccountToken;
use hotbay_kubernetes::accounts::{ADMIN, AUDIENCE, VIEWER};
use hotbay_kubernetes::authority::NAME as AUTHORITY;
use thiserror::Error;

use super::cli::ClusterArgs;
use crate::client::{Exit, plain};

/// The Service of the controllers.
pub(crate) const SERVICE: &str = "hotbay-controller";
/// For how long a token is good: the shortest that Kubernetes makes.
pub(super) const TOKEN_LIFE: Duration = Duration::from_secs(600);
/// How long the API server may take to answer.
const PATIENCE: &str = "--request-timeout=15s";

/// Why there is no way to the controllers.
#[derive(Debug, Error)]
pub(crate) enum KubectlError {
    #[error("there is no program kubectl")]
    NoKubectl,
    #[error("cannot start kubectl")]
    Start(#[source] io::Error),
    #[error("no token of the service account {account} in the namespace {namespace}: {said}")]
    Token { account: &'static str, namespace: String, said: String },
    #[error("cannot read the ConfigMap {AUTHORITY} in the namespace {namespace}: {said}")]
    Authority { namespace: String, said: String },
    #[error("the ConfigMap {AUTHORITY} in the namespace {namespace} holds no certificate")]
    NoAuthority { namespace: String },
    #[error("no way to the Service {SERVICE} in the namespace {namespace}: {said}")]
    Forward { namespace: String, said: String },
}

impl KubectlError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::NoKubectl | Self::Start(_) | Self::NoAuthority { .. } => Exit::Failed,
            Self::Token { said, .. }
            | Self::Authority { said, .. }
            | Self::Forward { said, .. } => match Cause::of(said) {
                Cause::Forbidden => Exit::Refused,
                Cause::NotFound => Exit::NotFound,
                Cause::Other => Exit::TryAgain,
            },
        }
    }

    /// What a person does next, a line each.
    pub(crate) fn next_steps(&self) -> Vec<String> {
        let need = |namespace: &str, right: &str| {
            vec![format!("ask for a Role in {namespace} that allows it:  {right}")]
        };
        match self {
            Self::NoKubectl => vec!["install it, or put its folder into PATH".to_owned()],
            Self::Start(_) => Vec::new(),
            Self::NoAuthority { namespace } => pods(namespace),
            Self::Token { account, namespace, said } => match Cause::of(said) {
                Cause::Forbidden => {
                    let right = format!("create serviceaccounts/token, for the name {account}");
                    let mut steps = need(namespace, &right);
                    if *account == ADMIN {
                        steps.push(format!("{VIEWER} is enough to look:  --as-viewer"));
                    }
                    steps
                }
                Cause::NotFound => installed(),
                Cause::Other => Vec::new(),
            },
            Self::Authority { namespace, said } => match Cause::of(said) {
                Cause::Forbidden => {
                    need(namespace, &format!("get configmaps, for the name {AUTHORITY}"))
                }
                // The first controller that starts makes it.
                Cause::NotFound => [installed(), pods(namespace)].concat(),
                Cause::Other => Vec::new(),
            },
            Self::Forward { namespace, said } => match Cause::of(said) {
                Cause::Forbidden => need(
                    namespace,
                    "get services, get and list pods, get and create pods/portforward",
                ),
                Cause::NotFound => installed(),
                Cause::Other => pods(namespace),
            },
        }
    }
}

fn installed() -> Vec<String> {
    let list = "kubectl get deployments -A -l app.kubernetes.io/name=hotbay";
    vec![
        format!("see where Hotbay is installed:  {list}"),
        "then say so:                    -n NAMESPACE".to_owned(),
    ]
}

fn pods(namespace: &str) -> Vec<String> {
    vec![format!("see how its controllers are:    kubectl get pods -n {namespace}")]
}

/// What kubectl's words mean.
enum Cause {
    Forbidden,
    NotFound,
    Other,
}

impl Cause {
    fn of(said: &str) -> Self {
        if said.contains("(Forbidden)") || said.contains("is forbidden") {
            Self::Forbidden
        } else if said.contains("(NotFound)") || said.contains("not found") {
            Self::NotFound
        } else {
            Self::Other
        }
    }
}

/// Whose token is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Account {
    Admin,
    Viewer,
}

/// kubectl, for the cluster that is meant.
#[derive(Debug, Clone)]
pub(super) struct Kubectl {
    namespace: String,
    which: Vec<OsString>,
}

impl Kubectl {
    pub(super) fn new(cluster: &ClusterArgs) -> Self {
        let ClusterArgs { namespace, context, kubeconfig, .. } = cluster;
        let mut which: Vec<OsString> = vec!["--namespace".into(), namespace.into()];
        if let Some(context) = context {
            which.extend(["--context".into(), context.into()]);
        }
        if let Some(kubeconfig) = kubeconfig {
            which.extend(["--kubeconfig".into(), kubeconfig.into()]);
        }
        Self { namespace: namespace.clone(), which }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its arguments, for one of its commands.
    pub(super) fn arguments(&self, command: &[&str]) -> Vec<OsString> {
        let command = command.iter().map(OsString::from);
        command.chain(self.which.iter().cloned()).collect()
    }

    /// A token that is good for some minutes.
    pub(super) fn token(&self, account: Account) -> Result<AccountToken, KubectlError> {
        let account = match account {
            Account::Admin => ADMIN,
            Account::Viewer => VIEWER,
        };
        let failed =
            |said| KubectlError::Token { account, namespace: self.namespace.clone(), said };
        let life = format!("{}s", TOKEN_LIFE.as_secs());
        let life = ["--duration", &life, PATIENCE];
        let token = ["create", "token", account, "--audience", AUDIENCE];
        let token = self.run(&[&token[..], &life].concat())?.map_err(failed)?;
        AccountToken::new(token.trim()).ok_or_else(|| failed("kubectl printed none".to_owned()))
    }

    /// SHA-256 of the authority's certificate.
    pub(super) fn authority(&self) -> Result<[u8; 32], KubectlError> {
        let namespace = || self.namespace.clone();
        let read =
            ["get", "configmap", AUTHORITY, "-o", "jsonpath={.data.authority\\.pem}", PATIENCE];
        let pem = self.run(&read)?;
        let pem = pem.map_err(|said| KubectlError::Authority { namespace: namespace(), said })?;
        hotbay_node::authority_hash(&pem)
            .ok_or_else(|| KubectlError::NoAuthority { namespace: namespace() })
    }

    /// What it printed, or what it says is wrong.
    fn run(&self, command: &[&str]) -> Result<Result<String, String>, KubectlError> {
        let mut kubectl = Command::new("kubectl");
        kubectl.args(self.arguments(command)).stdin(Stdio::null());
        let output = kubectl.output().map_err(not_started)?;
        Ok(if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(in_words(&String::from_utf8_lossy(&output.stderr)))
        })
    }
}

pub(super) fn not_started(error: io::Error) -> KubectlError {
    match error.kind() {
        io::ErrorKind::NotFound => KubectlError::NoKubectl,
        _ => KubectlError::Start(error),
    }
}

/// The last line of what kubectl said, which is its own; warnings and logs come before it.
pub(super) fn in_words(said: &str) -> String {
    let last = said.lines().map(str::trim).rfind(|line| !line.is_empty());
    let line = last.unwrap_or("it does not say why");
    let own = line.strip_prefix("error: ").or_else(|| line.strip_prefix("Error from server "));
    plain(own.unwrap_or(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kubectl_says_becomes_a_reason_and_a_next_step() {
        let said = "Warning: old\nError from server (Forbidden): serviceaccounts \"hotbay-admin\" is \
                    forbidden: User \"u\" cannot create resource\n";
        let error = KubectlError::Token {
            account: ADMIN,
            namespace: "hotbay".to_owned(),
            said: in_words(said),
        };
        assert!(error.to_string().contains("hotbay: (Forbidden): serviceaccounts"), "{error}");
        assert_eq!(error.exit(), Exit::Refused);
        let steps = error.next_steps().join("\n");
        assert!(
            steps.contains("create serviceaccounts/token, for the name hotbay-admin"),
            "{steps}"
        );
        assert!(steps.contains("--as-viewer"), "{steps}");
        let said = in_words("error: services \"hotbay-controller\" not found");
        let error = KubectlError::Forward { namespace: "hotbay".to_owned(), said };
        assert_eq!(error.exit(), Exit::NotFound);
        assert!(error.next_steps()[0].contains("kubectl get deployments -A"));
        assert_eq!(in_words(""), "it does not say why");
        assert_eq!(in_words("Unable to connect\n\n"), "Unable to connect");
    }
}

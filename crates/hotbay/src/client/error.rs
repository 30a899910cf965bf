//! Why a client command cannot go on: one sentence, what to do next, and the exit code.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use hotbay_api::client_token::NotAClientToken;
use hotbay_api::token::{NotAnAddress, check_address};
use hotbay_core::label::extents::NotAName;
use hotbay_core::node_labels::NotALabel;
use hotbay_core::volume::class::NotAllowed;
use hotbay_host::RuntimeDirError;
use hotbay_node::{PersistError, TlsError};
use thiserror::Error;

use super::exit::Exit;
use super::place::SERVICE_MARK;
use crate::config::ConfigError;
use crate::plugin::kubectl::KubectlError;

/// What to do about a list of drives that is none.
const NO_PLAN: &[&str] =
    &["nothing was changed", "a plan is made by:  hotbay drive plan > drives.yaml"];

/// Why a command ends without a result.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error("no registry answers at {place}: {}", why_unreachable(cause))]
    Unreachable { place: String, cause: io::Error },
    /// No registry can ever listen there.
    #[error("{} is not a socket: it is a {what}", socket.display())]
    NotASocket { socket: PathBuf, what: &'static str },
    #[error("no registry has answered at {place} within {waited}: {}", last.why_away())]
    StayedAway { place: String, waited: String, last: Box<ClientError> },
    #[error("the registry at {place} does not answer (waited {waited_s} s)")]
    NoAnswer { place: String, waited_s: u64 },
    #[error("the connection to the registry at {place} was lost")]
    Lost { place: String },
    #[error("--api {given:?}: a registry on another machine is https://HOST:PORT")]
    Scheme { given: String },
    #[error("--api: {why}")]
    Address { why: NotAnAddress },
    #[error("the registry at https://{address} wants a token, and there is none")]
    NoToken { address: String },
    #[error("the token in {from} cannot be used: {why}")]
    BadToken { from: String, why: NotAClientToken },
    #[error("cannot read the token file {}", path.display())]
    TokenFile {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("others can read the token file {} (mode {mode:03o}); it is not used", path.display())]
    OpenTokenFile { path: PathBuf, mode: u32 },
    #[error(
        "who answers at {place} is not the registry that made this token; the token was not sent"
    )]
    OtherAuthority { place: String },
    #[error(
        "the certificate of the registry at {place} has expired, or is not valid yet; the token was not sent"
    )]
    CertificateTime { place: String },
    #[error("who answers at {place} does not speak TLS 1.3 as a registry does: {why}")]
    NoTls { place: String, why: String },
    #[error("cannot set TLS up")]
    Tls(#[source] TlsError),
    /// The registry turned the call down, in its own words.
    #[error("{message}")]
    TurnedDown { exit: Exit, message: String },
    #[error("the registry's answer cannot be read")]
    Answer(#[source] serde_json::Error),
    #[error("the registry answered {answers} actions of {actions}")]
    AnswerCount { answers: usize, actions: usize },
    #[error("cannot make YAML of the answer")]
    Yaml(#[source] serde_saphyr::ser::Error),
    #[error("{given} names are too many to follow at once; give at most {limit}, or none for all")]
    TooManyNames { given: usize, limit: usize },
    #[error("cannot tell where the registry's socket is")]
    RuntimeDir(#[from] RuntimeDirError),
    #[error("cannot write the output")]
    Output(#[from] io::Error),
    #[error("cannot read the plan {file}")]
    PlanFile {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{file}, line {line}, column {column}: {what}")]
    PlanText { file: String, line: u64, column: u64, what: String },
    #[error("cannot read {}", path.display())]
    Inspect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Label(#[from] NotALabel),
    #[error(transparent)]
    VolumeName(#[from] NotAName),
    #[error("parameter {name} is given twice, and differently")]
    ParameterTwice { name: String },
    #[error("{why}")]
    Parameters { why: NotAllowed, meant: Option<String> },
    #[error("this is not done without a word of consent")]
    NotConfirmed { typed: String, instead: &'static str },
    #[error("--wipe is for one drive at a time, and {given} are given")]
    WipeOne { given: usize },
    #[error("{}", why_not_wiped(*typed, what))]
    NotWiped { typed: bool, what: &'static str, word: String },
    #[error("no agent serves CSI at {}", socket.display())]
    NoAgent { socket: PathBuf },
    #[error("{} is not UTF-8, and CSI takes nothing else", path.display())]
    PathNotText { path: PathBuf },
    #[error("the volume has no id yet")]
    NoVolumeId,
    #[error("it is mounted, but not noted to come back")]
    Persist(#[from] PersistError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// A command has outlived its token.
    #[error("the token has ended, and there is no other: {why}")]
    NotRenewed { why: Arc<KubectlError> },
    #[error("cannot start")]
    Start(#[source] io::Error),
}

impl ClientError {
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. }
            | Self::StayedAway { .. }
            | Self::NoAnswer { .. }
            | Self::Lost { .. }
            | Self::NoAgent { .. } => Exit::TryAgain,
            Self::TurnedDown { exit, .. } => *exit,
            Self::Kubectl(error) => error.exit(),
            Self::NotRenewed { why } => why.exit(),
            Self::NotASocket { .. }
            | Self::PathNotText { .. }
            | Self::Config(_)
            | Self::TooManyNames { .. }
            | Self::NotConfirmed { .. }
            | Self::WipeOne { .. }
            | Self::NotWiped { .. }
            | Self::PlanFile { .. }
            | Self::PlanText { .. }
            | Self::Label(_)
            | Self::VolumeName(_)
            | Self::ParameterTwice { .. }
            | Self::Parameters { .. }
            | Self::Scheme { .. }
            | Self::Address { .. } => Exit::Usage,
            Self::NoToken { .. }
            | Self::BadToken { .. }
            | Self::TokenFile { .. }
            | Self::OpenTokenFile { .. }
            | Self::OtherAuthority { .. }
            | Self::CertificateTime { .. } => Exit::Refused,
            Self::NoTls { .. }
            | Self::Tls(_)
            | Self::Answer(_)
            | Self::AnswerCount { .. }
            | Self::Yaml(_)
            | Self::RuntimeDir(_)
            | Self::Output(_)
            | Self::NoVolumeId
            | Self::Persist(_)
            | Self::Start(_) => Exit::Failed,
            Self::Inspect { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Exit::NotFound
            }
            Self::Inspect { .. } => Exit::Failed,
        }
    }

    /// Whether the same call may succeed later by itself.
    pub(crate) fn retryable(&self) -> bool {
        self.exit() == Exit::TryAgain
    }

    /// Why there is no registry, for a sentence that says where it was looked for.
    pub(crate) fn why_away(&self) -> String {
        match self {
            Self::Unreachable { cause, .. } => why_unreachable(cause),
            other => other.to_string(),
        }
    }

    /// What a person does next, a line each.
    pub(crate) fn next_steps(&self) -> Vec<String> {
        let lines: &[&str] = match self {
            Self::Unreachable { place, cause } => return unreachable_steps(place, cause),
            // The call may have arrived; actions may be repeated without harm.
            Self::NoAnswer { .. } | Self::Lost { .. } => {
                &["whether it took the request is not known; asking again is safe"]
            }
            Self::Kubectl(error) => return error.next_steps(),
            Self::NotRenewed { why } => return why.next_steps(),
            Self::OtherAuthority { place } if place.starts_with(SERVICE_MARK) => OTHER_CONTROLLERS,
            Self::NoToken { .. } => MAKE_A_TOKEN,
            Self::BadToken { .. } => COPY_THE_TOKEN,
            Self::OpenTokenFile { path, .. } => {
                return vec![format!("close it to others:  chmod 600 {}", path.display())];
            }
            Self::OtherAuthority { .. } => &[
                "check the address; if the registry was set up anew, make another token on its machine:",
                "hotbay token create --client NAME --may read",
            ],
            Self::CertificateTime { .. } => &[
                "compare the clocks of both machines; the registry renews its certificate by itself",
            ],
            Self::NoTls { .. } => &["check the address: --listen HOST:PORT of the registry"],
            Self::StayedAway { last, .. } => {
                let mut steps = vec!["nothing was asked for".to_owned()];
                steps.extend(last.next_steps());
                return steps;
            }
            Self::NotASocket { .. } => {
                &["say where the registry listens:  --api PATH, or HOTBAY_API in the environment"]
            }
            Self::RuntimeDir(_) => {
                &["say where it is:  --api PATH, or HOTBAY_API in the environment"]
            }
            Self::Answer(_) | Self::AnswerCount { .. } => {
                &["use the same release of hotbay on both sides"]
            }
            Self::NoAgent { .. } => &[
                "run it on the machine that has the volume's drive, where hotbay up or hotbay node runs",
                "or say where its socket is:  --csi PATH, or --agent-dir DIR",
            ],
            Self::PlanFile { .. } | Self::PlanText { .. } => NO_PLAN,
            Self::Inspect { source, .. } => inspect_instead(source.kind()),
            Self::NotConfirmed { typed, instead } => {
                return unchanged(format!("type {typed} when asked, or give {instead}"));
            }
            Self::NotWiped { word, .. } => {
                return unchanged(format!("if it is the drive that is meant:  --serial {word}"));
            }
            Self::Parameters { meant: Some(meant), .. } => return unchanged(meant.clone()),
            Self::WipeOne { .. }
            | Self::Label(_)
            | Self::VolumeName(_)
            | Self::ParameterTwice { .. }
            | Self::Parameters { meant: None, .. } => &["nothing was changed"],
            Self::TurnedDown { .. }
            | Self::PathNotText { .. }
            | Self::NoVolumeId
            | Self::Persist(_)
            | Self::Config(_)
            | Self::Yaml(_)
            | Self::TooManyNames { .. }
            | Self::Scheme { .. }
            | Self::Address { .. }
            | Self::TokenFile { .. }
            | Self::Tls(_)
            | Self::Output(_)
            | Self::Start(_) => &[],
        };
        lines.iter().map(|line| (*line).to_owned()).collect()
    }
}

const OTHER_CONTROLLERS: &[&str] = &[
    "the ConfigMap hotbay-authority is not the one of these controllers; their log says why:",
    "kubectl logs -n NAMESPACE deployment/hotbay-controller",
];

const MAKE_A_TOKEN: &[&str] = &[
    "make one, on its machine:  hotbay token create --client NAME --may read",
    "then, here:                HOTBAY_TOKEN in the environment, or --token-file FILE",
];

const COPY_THE_TOKEN: &[&str] = &[
    "copy it once more, as a whole, or make another on the registry's machine:",
    "hotbay token create --client NAME --may read",
];

fn inspect_instead(why: io::ErrorKind) -> &'static [&'static str] {
    match why {
        io::ErrorKind::NotFound => &["see what this machine has:  hotbay node scan"],
        io::ErrorKind::PermissionDenied => &["only root can read it: use sudo"],
        _ => &["name a block device, such as /dev/sdb, or a plain file"],
    }
}

fn why_not_wiped(typed: bool, what: &str) -> String {
    if typed {
        format!("that is not the drive's {what}")
    } else {
        format!("the drive's {what} has to be typed, and there is no terminal to type it on")
    }
}

/// What to do next, where nothing has been done.
fn unchanged(next_step: String) -> Vec<String> {
    vec!["nothing was changed".to_owned(), next_step]
}

/// What a person does about a registry that cannot be reached.
fn unreachable_steps(place: &str, cause: &io::Error) -> Vec<String> {
    let lines: &[&str] = if cause.kind() == io::ErrorKind::PermissionDenied {
        &["run it as root, or as the user that the registry runs as"]
    } else if place.starts_with(SERVICE_MARK) {
        &["see how its controllers are:  kubectl get pods -n NAMESPACE"]
    } else if place.starts_with("https://") {
        &[
            "see that it runs there and listens:  hotbay up --listen HOST:PORT",
            "or say where it listens:             --api https://HOST:PORT, or HOTBAY_API",
        ]
    } else if check_address(place).is_ok() {
        return vec![format!("for a registry on another machine:  --api https://{place}")];
    } else {
        &[
            "start one:                hotbay demo, or hotbay up",
            "or say where it listens:  --api PATH, or HOTBAY_API in the environment",
        ]
    };
    lines.iter().map(ToString::to_string).collect()
}

fn why_unreachable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens there".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

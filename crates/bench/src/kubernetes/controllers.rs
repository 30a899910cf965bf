//! Controllers of the real program, as processes on a control plane of the rig. What they log tells when one leads.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_api::csi;
use hotbay_api::csi::controller_client::ControllerClient;
use hotbay_api::csi::volume_capability::access_mode::Mode;
use hotbay_api::csi::volume_capability::{AccessMode, AccessType, BlockVolume};
use hotbay_rig::{ControlPlane, Settings, chart};
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

/// Until the definitions are served, somebody leads, or a volume is made.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(50);
const LEADS: &str = "this controller leads";
const FOLLOWS: &str = "another controller leads";

/// etcd and an API server that know our kinds.
pub(super) fn control_plane(folder: &Path) -> anyhow::Result<ControlPlane> {
    let plane = ControlPlane::start(folder, &Settings::default())?;
    let kubectl = plane.kubectl();
    kubectl.apply(&fs::read_to_string(chart::deploy().join("crds.yaml"))?)?;
    kubectl.run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"])?;
    until("our kinds are served", || kubectl.run(&["get", "hotbay"]).map_err(Into::into))?;
    kubectl.run(&["create", "namespace", chart::NAMESPACE])?;
    Ok(plane)
}

/// Asks until the answer is as wanted; fails with what was heard last.
pub(super) fn until<T>(
    what: &str,
    mut ask: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let give_up = Instant::now() + LIMIT;
    loop {
        match ask() {
            Ok(answer) => return Ok(answer),
            Err(heard) if Instant::now() > give_up => {
                return Err(heard.context(format!("not within {LIMIT:?}: {what}")));
            }
            Err(_) => std::thread::sleep(STEP),
        }
    }
}

/// One controller; it ends with this value.
#[derive(Debug)]
pub(super) struct Controller {
    child: Child,
    folder: PathBuf,
    pub(super) agents: SocketAddr,
    log: mpsc::Receiver<(Instant, Said)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Leads,
    Follows,
}

impl Controller {
    /// Starts one. `user` is what the API server knows it by; its files are in a folder of this name.
    pub(super) fn start(
        plane: &ControlPlane,
        kubeconfig: &Path,
        name: &str,
        lease: Option<u64>,
    ) -> anyhow::Result<Self> {
        let folder = plane.folder().join(name);
        fs::create_dir_all(&folder)?;
        // Free a moment ago.
        let agents = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(super::product()?);
        command.args(["controller", "--no-config", "--kubernetes", "--kubeconfig"]).arg(kubeconfig);
        command.args(["--identity", name, "--advertise", "127.0.0.1"]);
        command.args(["--listen-agents", &agents.to_string()]);
        if let Some(seconds) = lease {
            command.args(["--lease-duration", &seconds.to_string()]);
        }
        for (option, file) in [
            ("--listen", "api.sock"),
            ("--http", "http.sock"),
            ("--csi", "csi.sock"),
            ("--data-dir", "data"),
        ] {
            command.arg(option).arg(folder.join(file));
        }
        // Not the lines that there are for every agent and drive.
        command.env("HOTBAY_LOG", "warn,hotbay=info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let says = child.stderr.take().context("its log is a pipe")?;
        let log = listen(says, &folder.join("log"))?;
        Ok(Self { child, folder, agents, log })
    }

    pub(super) fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// When it took the lead, once it has.
    pub(super) fn leads(&self) -> anyhow::Result<Instant> {
        self.said(Said::Leads)
    }

    /// When it first knew that another leads.
    pub(super) fn follows(&self) -> anyhow::Result<Instant> {
        self.said(Said::Follows)
    }

    fn said(&self, wanted: Said) -> anyhow::Result<Instant> {
        let give_up = Instant::now() + LIMIT;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let (when, said) = self.log.recv_timeout(left).with_context(|| {
                format!(
                    "not {wanted:?} within {LIMIT:?}; see {}",
                    self.folder.join("log").display()
                )
            })?;
            if said == wanted {
                return Ok(when);
            }
        }
    }

    /// Ends it with a signal, and waits until it has ended.
    pub(super) fn end(mut self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal)?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends a signal, and does not wait.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// The client, at its socket: answers only while it leads.
    pub(super) fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let api = format!("unix:{}", self.socket("api.sock").display());
        let output = Command::new(super::product()?).args(["--api", &api]).args(words).output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "hotbay {}: {}", words.join(" "), error.trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        // It may be gone already.
        self.child.kill().unwrap_or_default();
        self.child.wait().ok();
    }
}

/// Notes when it says who leads; the whole log goes to a file.
fn listen(says: ChildStderr, log: &Path) -> anyhow::Result<mpsc::Receiver<(Instant, Said)>> {
    let mut log = File::options().create(true).append(true).open(log)?;
    let (tell, told) = mpsc::channel();
    // Ends with the process.
    std::thread::spawn(move || {
        for line in BufReader::new(says).lines().map_while(Result::ok) {
            let said = [(LEADS, Said::Leads), (FOLLOWS, Said::Follows)];
            if let Some((_, said)) = said.into_iter().find(|(words, _)| line.contains(words)) {
                // Nobody may wait for it.
                tell.send((Instant::now(), said)).unwrap_or_default();
            }
            writeln!(log, "{line}").unwrap_or_default();
        }
    });
    Ok(told)
}

/// A sidecar's connection to a controller, dialled again when it breaks.
pub(super) fn sidecar(socket: PathBuf) -> ControllerClient<Channel> {
    let connect = move |_| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    };
    let endpoint = Endpoint::from_static("http://controller").timeout(Duration::from_secs(60));
    ControllerClient::new(endpoint.connect_with_connector_lazy(tower::service_fn(connect)))
}

/// Asks for a volume until it is made, as a sidecar does; only that one waits for a second and more in between.
pub(super) async fn made(
    client: &mut ControllerClient<Channel>,
    name: &str,
    bytes: u32,
) -> anyhow::Result<()> {
    let give_up = Instant::now() + LIMIT;
    loop {
        let Err(status) = client.create_volume(volume(name.to_owned(), bytes)).await else {
            return Ok(());
        };
        let goes_on = matches!(
            status.code(),
            Code::Unavailable
                | Code::Aborted
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Unknown
                | Code::ResourceExhausted
        );
        anyhow::ensure!(goes_on && Instant::now() < give_up, "{name}: {status}");
        tokio::time::sleep(STEP).await;
    }
}

/// What a sidecar asks for a claim of a raw block volume.
fn volume(name: String, bytes: u32) -> csi::CreateVolumeRequest {
    let required_bytes = i64::from(bytes);
    csi::CreateVolumeRequest {
        name,
        capacity_range: Some(csi::CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![csi::VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        ..Default::default()
    }
}

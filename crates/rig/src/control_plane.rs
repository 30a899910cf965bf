//! A control plane: etcd and kube-apiserver, and kube-controller-manager and kube-scheduler where they are wanted. It
//! needs no root, and listens on loopback alone. Tests of what is kept in Kubernetes use it as it is; `Cluster` adds
//! nodes.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::address;
use crate::components::KUBERNETES;
use crate::error::RigError;
use crate::folder::Folder;
use crate::keys::{Keys, MASTERS};
use crate::kubectl::Kubectl;
use crate::process::Process;
use crate::programs::fetched;

/// How long a part may take until it answers, on a machine that has much else to do.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Every request is noted when it is answered, without what was in it.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
                     rules:\n- level: Metadata\n";

/// Which parts beyond etcd and the API server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Without kube-controller-manager nothing acts on what is written: no garbage collection, and namespaces stay.
    pub controllers: bool,
    pub scheduler: bool,
}

/// Where clients find the API server, and from where services get their addresses.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(crate) server: SocketAddr,
    pub(crate) services: String,
    /// The first address of services, which leads pods to the API server, where there can be pods.
    pub(crate) for_pods: Option<IpAddr>,
}

/// Ends with all its parts when it is dropped.
#[derive(Debug)]
pub struct ControlPlane {
    folder: Folder,
    keys: Keys,
    kubectl: Kubectl,
    front: Front,
    /// Where the others listen.
    inner: IpAddr,
    // Dropped in this order: who asks ends before who answers.
    scheduler: Option<Process>,
    controllers: Option<Process>,
    api_server: Option<Process>,
    etcd: Option<Process>,
}

impl ControlPlane {
    /// Starts it in this folder, which is made if it is not there; everything of it is in there and stays there
    /// afterwards, for whoever wants to read a log. Ready for requests when it returns.
    pub fn start(folder: &Path, settings: &Settings) -> Result<Self, RigError> {
        Self::start_in(new_rig(folder, false)?, settings)
    }

    pub(crate) fn start_in(folder: Folder, settings: &Settings) -> Result<Self, RigError> {
        let server = SocketAddr::new(address::free_loopback()?, address::API_SERVER);
        Self::start_at(
            folder,
            settings,
            Front { server, services: "10.96.0.0/24".to_owned(), for_pods: None },
        )
    }

    pub(crate) fn start_at(
        folder: Folder,
        settings: &Settings,
        front: Front,
    ) -> Result<Self, RigError> {
        let keys = Keys::make(&folder, front.server)?;
        let kubectl = Kubectl {
            program: KUBERNETES.program("kubectl")?,
            kubeconfig: keys.kubeconfig("admin", "admin", Some(MASTERS))?,
        };
        folder.write("audit-policy.yaml", AUDIT)?;
        let mut plane = Self {
            inner: address::free_loopback()?,
            folder,
            keys,
            kubectl,
            front,
            scheduler: None,
            controllers: None,
            api_server: None,
            etcd: None,
        };
        plane.start_etcd()?;
        plane.start_api_server()?;
        if settings.controllers {
            plane.start_controllers()?;
        }
        if settings.scheduler {
            plane.start_scheduler()?;
        }
        Ok(plane)
    }

    /// For a client that may do everything.
    pub fn kubeconfig(&self) -> &Path {
        self.kubectl.kubeconfig()
    }

    /// For another client that may do everything, under a name by which the log of requests tells it from others.
    pub fn kubeconfig_of(&self, user: &str) -> Result<PathBuf, RigError> {
        self.keys.kubeconfig(user, user, Some(MASTERS))
    }

    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// A line of JSON, an `Event` of `audit.k8s.io/v1`, for every request that was answered.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }

    /// Where logs, keys and data are.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// From here on the API server does not answer; connections stay. Until `resume_api_server`.
    pub fn pause_api_server(&self) -> Result<(), RigError> {
        self.api_server.as_ref().map_or(Ok(()), Process::pause)
    }

    pub fn resume_api_server(&self) -> Result<(), RigError> {
        self.api_server.as_ref().map_or(Ok(()), Process::resume)
    }

    /// From here on connections are refused. Until `start_api_server`.
    pub fn stop_api_server(&mut self) -> Result<(), RigError> {
        self.api_server.take().map_or(Ok(()), |mut process| process.stop())
    }

    /// Starts the API server with what etcd holds, at the same address. Answers requests when this returns.
    pub fn start_api_server(&mut self) -> Result<(), RigError> {
        let server = self.front.server;
        let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
        let addresses: Vec<_> = [server.ip()].into_iter().chain(self.front.for_pods).collect();
        let pair = self.keys.server("server", &addresses, &names)?;
        let kubelet_client = self.keys.client("api-server", "api-server", Some(MASTERS))?;
        let mut command = Command::new(KUBERNETES.program("kube-apiserver")?);
        command
            .arg(format!("--etcd-servers=http://{}", self.at(address::ETCD)))
            .arg(format!("--bind-address={}", server.ip()))
            .arg(format!("--advertise-address={}", server.ip()))
            .arg(format!("--secure-port={}", server.port()))
            .arg(format!("--service-cluster-ip-range={}", self.front.services))
            .arg(if self.front.for_pods.is_some() {
                "--endpoint-reconciler-type=lease"
            } else {
                "--endpoint-reconciler-type=none"
            })
            .arg("--authorization-mode=Node,RBAC")
            .arg("--enable-admission-plugins=NodeRestriction")
            .arg("--allow-privileged=true")
            .arg("--service-account-issuer=https://kubernetes.default.svc")
            .arg(file("--service-account-key-file", &self.keys.accounts_public()))
            .arg(file("--service-account-signing-key-file", &self.keys.accounts_private()))
            .arg(file("--client-ca-file", &self.keys.authority()))
            .arg(file("--tls-cert-file", &pair.certificate))
            .arg(file("--tls-private-key-file", &pair.key))
            .arg(file("--kubelet-client-certificate", &kubelet_client.certificate))
            .arg(file("--kubelet-client-key", &kubelet_client.key))
            // The names of nodes are known to nobody else.
            .arg("--kubelet-preferred-address-types=InternalIP")
            .arg(file("--audit-policy-file", &self.folder.join("audit-policy.yaml")))
            .arg(file("--audit-log-path", &self.audit_log()))
            // One file, so that what counts its lines sees all.
            .arg("--audit-log-maxsize=10000");
        let mut process = Process::start(&self.folder, "kube-apiserver", command)?;
        let kubectl = &self.kubectl;
        process.until("the API server is ready", READY_LIMIT, || {
            match kubectl.run(&["get", "--raw", "/readyz"]) {
                Ok(answer) if answer == "ok" => Ok(()),
                Ok(answer) => Err(answer),
                Err(error) => Err(error.to_string()),
            }
        })?;
        self.api_server = Some(process);
        Ok(())
    }

    /// Writes what etcd holds now to a file.
    pub fn save_snapshot(&self, snapshot: &Path) -> Result<(), RigError> {
        let mut etcdctl = self.etcdctl()?;
        etcdctl.args(["snapshot", "save"]).arg(snapshot);
        run("etcdctl snapshot save", etcdctl)
    }

    /// Puts the cluster back to a snapshot, as an administrator does after a disaster: the API server, etcd, and those
    /// of the control plane who ask them, are stopped and started again, and all that came later is gone.
    pub fn restore_snapshot(&mut self, snapshot: &Path) -> Result<(), RigError> {
        let (controllers, scheduler) = (self.controllers.take(), self.scheduler.take());
        let restarts = (controllers.is_some(), scheduler.is_some());
        for mut process in [controllers, scheduler].into_iter().flatten() {
            process.stop()?;
        }
        self.stop_api_server()?;
        if let Some(mut etcd) = self.etcd.take() {
            etcd.stop()?;
        }
        let data = self.folder.join("etcd");
        fs::remove_dir_all(&data).map_err(RigError::file("remove", &data))?;
        let mut etcdctl = self.etcdctl()?;
        let peers = self.at(address::ETCD_PEERS);
        etcdctl.args(["snapshot", "restore"]).arg(snapshot).arg(file("--data-dir", &data));
        etcdctl.arg(format!("--initial-cluster=default=http://{peers}"));
        etcdctl.arg(format!("--initial-advertise-peer-urls=http://{peers}"));
        run("etcdctl snapshot restore", etcdctl)?;
        self.start_etcd()?;
        self.start_api_server()?;
        if restarts.0 {
            self.start_controllers()?;
        }
        if restarts.1 {
            self.start_scheduler()?;
        }
        Ok(())
    }

    /// Ends all parts, who asks before who answers.
    pub fn stop(mut self) -> Result<(), RigError> {
        let parts =
            [&mut self.scheduler, &mut self.controllers, &mut self.api_server, &mut self.etcd];
        parts.into_iter().flatten().try_for_each(Process::stop)
    }

    /// From now on it goes on when this value is dropped, until `rig down`.
    pub(crate) fn keep(&mut self) {
        let parts =
            [&mut self.scheduler, &mut self.controllers, &mut self.api_server, &mut self.etcd];
        parts.into_iter().flatten().for_each(Process::keep);
    }

    fn start_etcd(&mut self) -> Result<(), RigError> {
        let (clients, peers) = (self.at(address::ETCD), self.at(address::ETCD_PEERS));
        let mut command = Command::new(fetched("usr/bin/etcd")?);
        command
            .arg(file("--data-dir", &self.folder.join("etcd")))
            .arg(format!("--listen-client-urls=http://{clients}"))
            .arg(format!("--advertise-client-urls=http://{clients}"))
            .arg(format!("--listen-peer-urls=http://{peers}"))
            .arg(format!("--initial-advertise-peer-urls=http://{peers}"))
            .arg(format!("--initial-cluster=default=http://{peers}"));
        let mut process = Process::start(&self.folder, "etcd", command)?;
        process.until("etcd is ready", READY_LIMIT, || {
            let mut etcdctl = self.etcdctl().map_err(|error| error.to_string())?;
            etcdctl.args(["endpoint", "health"]);
            run("etcdctl endpoint health", etcdctl).map_err(|error| error.to_string())
        })?;
        self.etcd = Some(process);
        Ok(())
    }

    fn start_controllers(&mut self) -> Result<(), RigError> {
        let user = "system:kube-controller-manager";
        let kubeconfig = self.keys.kubeconfig("controllers", user, None)?;
        let mut command = Command::new(KUBERNETES.program("kube-controller-manager")?);
        command
            .arg(file("--kubeconfig", &kubeconfig))
            .arg(file("--authentication-kubeconfig", &kubeconfig))
            .arg(file("--authorization-kubeconfig", &kubeconfig))
            .arg(file("--service-account-private-key-file", &self.keys.accounts_private()))
            .arg(file("--root-ca-file", &self.keys.authority()))
            .arg(format!("--bind-address={}", self.inner))
            .args(["--use-service-account-credentials", "--leader-elect=false"]);
        let mut process = Process::start(&self.folder, "kube-controller-manager", command)?;
        let kubectl = &self.kubectl;
        // Without these two no pod is accepted.
        let made = ["get", "serviceaccount/default", "configmap/kube-root-ca.crt", "-o", "name"];
        process.until("the controllers are ready", READY_LIMIT, || {
            kubectl.run(&made).map_err(|error| error.to_string())
        })?;
        self.controllers = Some(process);
        Ok(())
    }

    fn start_scheduler(&mut self) -> Result<(), RigError> {
        let kubeconfig = self.keys.kubeconfig("scheduler", "system:kube-scheduler", None)?;
        let pair = self.keys.server("scheduler-server", &[self.inner], &[])?;
        let mut command = Command::new(KUBERNETES.program("kube-scheduler")?);
        command
            .arg(file("--kubeconfig", &kubeconfig))
            .arg(file("--authentication-kubeconfig", &kubeconfig))
            .arg(file("--authorization-kubeconfig", &kubeconfig))
            .arg(file("--tls-cert-file", &pair.certificate))
            .arg(file("--tls-private-key-file", &pair.key))
            .arg(format!("--bind-address={}", self.inner))
            .arg("--leader-elect=false");
        let mut process = Process::start(&self.folder, "kube-scheduler", command)?;
        let server = format!("--server=https://{}", self.at(address::SCHEDULER));
        let kubectl = &self.kubectl;
        process.until("the scheduler is ready", READY_LIMIT, || {
            kubectl.run(&[&server, "get", "--raw", "/readyz"]).map_err(|error| error.to_string())
        })?;
        self.scheduler = Some(process);
        Ok(())
    }

    fn etcdctl(&self) -> Result<Command, RigError> {
        let mut command = Command::new(fetched("usr/bin/etcdctl")?);
        command.env("ETCDCTL_API", "3");
        command.arg(format!("--endpoints=http://{}", self.at(address::ETCD)));
        Ok(command)
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.inner, port)
    }
}

/// The folder of a new rig. It is made only if all programs are there: a rig that cannot start leaves nothing behind.
pub(crate) fn new_rig(folder: &Path, outlives: bool) -> Result<Folder, RigError> {
    KUBERNETES.program("kube-apiserver")?;
    fetched("usr/bin/etcd")?;
    Folder::make(folder, outlives)
}

fn file(flag: &str, path: &Path) -> String {
    format!("{flag}={}", path.display())
}

fn run(what: &str, mut command: Command) -> Result<(), RigError> {
    let output =
        command.output().map_err(|source| RigError::Start { program: what.to_owned(), source })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
    Err(RigError::Command { command: what.to_owned(), said })
}

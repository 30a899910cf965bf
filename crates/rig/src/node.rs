//! A node: a real kubelet with its own containerd, in namespaces of its own for processes, mounts and network. So it
//! has its own address with all ports, its own /run, /var/lib and /var/log, and nothing of it is left when it is gone.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde_json::json;

use crate::cgroup::Cgroup;
use crate::components::KUBERNETES;
use crate::control_plane::ControlPlane;
use crate::error::RigError;
use crate::folder::Folder;
use crate::image::{self, PAUSE};
use crate::network::Network;
use crate::process::Process;
use crate::programs::{cache, fetched};

const READY_LIMIT: Duration = Duration::from_secs(120);
const INIT: &str = include_str!("node-init.sh");
/// As containerd and the kubelet are called everywhere.
const SOCKET: &str = "run/containerd/containerd.sock";

/// Ends with everything on it when it is dropped.
#[derive(Debug)]
pub struct Node {
    name: String,
    rig: Folder,
    // Dropped in this order; the last takes everything with it that is still there.
    proxy: Option<Process>,
    kubelet: Option<Process>,
    containerd: Option<Process>,
    init: Process,
}

impl Node {
    /// Ready to run pods when it returns.
    pub(crate) fn start(
        plane: &ControlPlane,
        network: &Network,
        cgroup: &Cgroup,
        number: u8,
    ) -> Result<Self, RigError> {
        let name = format!("node{number}");
        let rig = plane.folder().clone();
        let init = start_init(&rig, &name)?;
        network.connect(number, init.pid())?;
        let mut node = Self { name, rig, proxy: None, kubelet: None, containerd: None, init };
        node.start_containerd(&network.pods(number))?;
        node.import(&image::write_own(&node.folder())?)?;
        let address = network.node(number).to_string();
        node.write_kubelet_config(plane, &address, &cgroup.of_node(&node.name)?)?;
        let user = format!("system:node:{}", node.name);
        plane.keys().kubeconfig(&node.name, &user, Some("system:nodes"))?;
        node.start_kubelet()?;
        let ready = r"jsonpath={.status.conditions[?(@.type=='Ready')].status}";
        let question = ["get", "node", &node.name, "-o", ready];
        let what = format!("{} is ready", node.name);
        if let Some(kubelet) = &mut node.kubelet {
            kubelet.until(&what, READY_LIMIT, || match plane.kubectl().run(&question) {
                Ok(answer) if answer == "True" => Ok(()),
                Ok(answer) => Err(format!("its status of readiness is {answer:?}")),
                Err(error) => Err(error.to_string()),
            })?;
        }
        node.start_proxy(plane)?;
        Ok(node)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is `/run`, `/var/lib`, `/var/log` on the node is `run`, `lib`, `log` in here, without what is mounted.
    pub fn folder(&self) -> PathBuf {
        self.rig.join("nodes").join(&self.name)
    }

    /// A command that sees the node's mounts, processes and network, to which arguments can be added.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.pid().to_string(), "--mount", "--net", "--pid", "--"]);
        command.arg(program.as_ref());
        command
    }

    /// Starts a program on the node that goes on until it is stopped or dropped. `name` is that of its log.
    pub fn start_program(
        &self,
        name: &str,
        program: &Path,
        args: &[String],
    ) -> Result<Process, RigError> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.init.pid().to_string(), "--mount", "--net", "--"]);
        // The programs of the rig come first, because containerd looks for runc and its shim.
        let debian = cache().join("debian");
        let path = env::var("PATH").unwrap_or_default();
        let path = format!("{0}/usr/bin:{0}/usr/sbin:{path}:/usr/sbin:/sbin", debian.display());
        // Only runc's library, which this machine may lack.
        let libraries = debian.join(format!("usr/lib/{}-linux-gnu", env::consts::ARCH));
        command.env("PATH", path).env("LD_LIBRARY_PATH", libraries);
        command.arg(program).args(args).current_dir("/");
        self.start_within(&format!("{}-{name}", self.name), command)
    }

    /// Makes images known to the node's containerd: archives as `Image` writes them.
    pub fn import(&self, archives: &[PathBuf]) -> Result<(), RigError> {
        for archive in archives {
            let mut ctr = Command::new(fetched("usr/bin/ctr")?);
            ctr.arg("--address").arg(self.folder().join(SOCKET));
            ctr.args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
            let output = ctr
                .output()
                .map_err(|source| RigError::Start { program: "ctr".to_owned(), source })?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
                let command = format!("ctr images import {}", archive.display());
                return Err(RigError::Command { command, said });
            }
        }
        Ok(())
    }

    /// Stops the kubelet and leaves its pods running, as an upgrade of it does.
    pub fn stop_kubelet(&mut self) -> Result<(), RigError> {
        self.kubelet.take().map_or(Ok(()), |mut kubelet| kubelet.stop())
    }

    pub fn start_kubelet(&mut self) -> Result<(), RigError> {
        let args = [
            format!("--config={}", self.folder().join("kubelet.yaml").display()),
            format!("--kubeconfig={}.kubeconfig", self.rig.join(&self.name).display()),
            format!("--hostname-override={}", self.name),
            format!("--node-ip={}", self.address()?),
        ];
        let program = KUBERNETES.program("kubelet")?;
        self.kubelet = Some(self.start_program("kubelet", &program, &args)?);
        Ok(())
    }

    /// Starts again what asks the API server. Its pods go on.
    pub(crate) fn restart(&mut self, plane: &ControlPlane) -> Result<(), RigError> {
        self.stop_kubelet()?;
        self.proxy.take().map_or(Ok(()), |mut proxy| proxy.stop())?;
        self.start_kubelet()?;
        self.start_proxy(plane)
    }

    pub(crate) fn keep(&mut self) {
        let parts = [&mut self.proxy, &mut self.kubelet, &mut self.containerd];
        parts.into_iter().flatten().for_each(Process::keep);
        self.init.keep();
    }

    /// By it the addresses of services lead somewhere.
    fn start_proxy(&mut self, plane: &ControlPlane) -> Result<(), RigError> {
        let kubeconfig =
            plane.keys().kubeconfig(&format!("{}-proxy", self.name), "system:kube-proxy", None)?;
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--hostname-override={}", self.name),
            "--proxy-mode=nftables".to_owned(),
            // The kernel's table of connections stays as it is: it is the machine's.
            "--conntrack-max-per-core=0".to_owned(),
            "--conntrack-tcp-timeout-established=0".to_owned(),
            "--conntrack-tcp-timeout-close-wait=0".to_owned(),
        ];
        let program = KUBERNETES.program("kube-proxy")?;
        let mut proxy = self.start_program("proxy", &program, &args)?;
        let mut rules = self.command("nft");
        rules.args(["list", "map", "ip", "kube-proxy", "service-ips"]);
        proxy.until("pods can reach the API server", READY_LIMIT, || match rules.output() {
            // The only service that there is from the beginning.
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains(". tcp . 443") => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Err(error.to_string()),
        })?;
        self.proxy = Some(proxy);
        Ok(())
    }

    fn start_containerd(&mut self, pods: &str) -> Result<(), RigError> {
        let folder = self.folder();
        let cni = folder.join("cni");
        fs::create_dir_all(&cni).map_err(RigError::file("make the folder", &cni))?;
        write(&cni.join("10-rig.conflist"), &pod_network(pods))?;
        let config = folder.join("containerd.toml");
        write(&config, &containerd_config(&cni, &cache().join("debian/usr/lib/cni")))?;
        let program = fetched("usr/bin/containerd")?;
        let args = ["--config".to_owned(), config.display().to_string()];
        let mut containerd = self.start_program("containerd", &program, &args)?;
        let ctr = fetched("usr/bin/ctr")?;
        containerd.until("containerd is ready", READY_LIMIT, || {
            let mut command = Command::new(&ctr);
            let asked = command.arg("--address").arg(folder.join(SOCKET)).arg("version").output();
            match asked {
                Ok(output) if output.status.success() => Ok(()),
                Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
                Err(error) => Err(error.to_string()),
            }
        })?;
        self.containerd = Some(containerd);
        Ok(())
    }

    fn write_kubelet_config(
        &self,
        plane: &ControlPlane,
        address: &str,
        cgroup: &str,
    ) -> Result<(), RigError> {
        let folder = self.folder();
        write(&folder.join("address"), address)?;
        let config = kubelet_config(address, cgroup, &plane.keys().authority());
        write(&folder.join("kubelet.yaml"), &config)
    }

    fn address(&self) -> Result<String, RigError> {
        let path = self.folder().join("address");
        fs::read_to_string(&path).map_err(RigError::file("read", path))
    }

    /// Starts a command as a child of ours that is among the node's processes.
    fn start_within(&self, name: &str, command: Command) -> Result<Process, RigError> {
        let failed = |source| RigError::Start { program: name.to_owned(), source };
        let init = i32::try_from(self.init.pid()).ok().and_then(Pid::from_raw);
        let init = init.ok_or_else(|| failed(std::io::ErrorKind::NotFound.into()))?;
        let namespaces = pidfd_open(init, PidfdFlags::empty()).map_err(|e| failed(e.into()))?;
        // A thread moves, and with it what it starts; it ends here, so that nothing else goes astray.
        thread::scope(|scope| {
            let started = scope.spawn(|| {
                move_into_thread_name_spaces(
                    std::os::fd::AsFd::as_fd(&namespaces),
                    ThreadNameSpaceType::PROCESS_ID,
                )
                .map_err(|error| failed(error.into()))?;
                Process::start(&self.rig, name, command)
            });
            started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// The first process of a node, with the namespaces that all others of it are in.
fn start_init(rig: &Folder, name: &str) -> Result<Process, RigError> {
    for sub in ["run", "lib", "log"] {
        rig.subfolder(&format!("nodes/{name}/{sub}"))?;
    }
    let folder = rig.join("nodes").join(name);
    let ready = folder.join("ready");
    if ready.exists() {
        fs::remove_file(&ready).map_err(RigError::file("remove", &ready))?;
    }
    let mut command = Command::new("unshare");
    // The kernel ends it when unshare is ended, by whomever.
    command.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]);
    command.args(["sh", "-c", INIT, "node-init"]).arg(&folder);
    let mut init = Process::start(rig, name, command)?;
    init.until("the node's namespaces are there", READY_LIMIT, || {
        if ready.exists() { Ok(()) } else { Err("its first process has not said so".to_owned()) }
    })?;
    init.stand_for_child()?;
    Ok(init)
}

fn write(path: &Path, text: &str) -> Result<(), RigError> {
    fs::write(path, text).map_err(RigError::file("write", path))
}

/// A bridge in the node's network namespace, on which every pod has an address.
fn pod_network(pods: &str) -> String {
    let bridge = json!({
        "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "subnet": pods, "routes": [{"dst": "0.0.0.0/0"}]},
    });
    json!({"cniVersion": "0.4.0", "name": "rig", "plugins": [bridge]}).to_string()
}

fn containerd_config(cni: &Path, plugins: &Path) -> String {
    // Where setting a process's score is not permitted to root, runc fails without a word: restrict_oom_score_adj.
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{}"
    conf_dir = "{}"
"#,
        plugins.display(),
        cni.display()
    )
}

/// A volume is mounted once the node's status says that it is in use, so that status is looked at often; written it is
/// where it has changed, or else at the pace of a cluster that nothing happens on.
fn kubelet_config(address: &str, cgroup: &str, authority: &Path) -> String {
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: {address}
healthzBindAddress: 127.0.0.1
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {}}}
authorization: {{mode: Webhook}}
containerRuntimeEndpoint: unix:///{SOCKET}
cgroupDriver: cgroupfs
cgroupRoot: {cgroup}
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
localStorageCapacityIsolation: false
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "1Mi", nodefs.available: "0%", imagefs.available: "0%"}}
resolvConf: ""
syncFrequency: 3s
nodeStatusUpdateFrequency: 1s
nodeStatusReportFrequency: 10s
volumeStatsAggPeriod: 10s
"#,
        authority.display()
    )
}

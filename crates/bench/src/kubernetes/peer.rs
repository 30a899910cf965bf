//! The driver that Hotbay is measured beside: csi-driver-host-path, as a process on the node, with the same sidecars in
//! the same settings as the chart has. Its filesystem volumes are folders, its block volumes files under loop devices.

use std::path::Path;

use anyhow::Context;
use hotbay_rig::components::{HOSTPATH, PROVISIONER, RESIZER, SIDECARS};
use hotbay_rig::{ControlPlane, Node, Process, Sidecars};

const DRIVER: &str = "hostpath.csi.k8s.io";
const SOCKET: &str = "/var/lib/kubelet/plugins/hostpath.csi.k8s.io/csi.sock";
const STATE: &str = "/var/lib/hostpath";
/// Under this name its sidecars are known to the API server.
pub(super) const USER: &str = "hostpath";
/// The word by which its storage classes and its capacity know each other.
const STORE: &str = "bench";

/// Ends when it is dropped.
#[derive(Debug)]
pub(super) struct Peer {
    _sidecars: Vec<Process>,
    _registrar: Sidecars,
    _driver: Process,
}

impl Peer {
    pub(super) fn start(plane: &ControlPlane, node: &Node) -> anyhow::Result<Self> {
        let driver = format!(
            "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{name: {DRIVER}}}\nspec: {{attachRequired: \
             true, podInfoOnMount: true, fsGroupPolicy: File, storageCapacity: true}}\n"
        );
        plane.kubectl().apply(&driver)?;
        plane.kubectl().run(&["create", "namespace", USER])?;
        let plugin = Path::new(SOCKET).parent().context("a folder")?.display().to_string();
        let made = node.command("mkdir").args(["-p", &plugin, STATE]).status()?;
        anyhow::ensure!(made.success(), "no folders for the driver");
        let args = [
            format!("--endpoint=unix://{SOCKET}"),
            format!("--nodeid={}", node.name()),
            format!("--statedir={STATE}"),
            format!("--capacity={STORE}=100Gi"),
            "--enable-attach".to_owned(),
        ];
        let program = HOSTPATH.program("hostpathplugin")?;
        let driver = node.start_program("hostpath", &program, &args)?;
        let registrar = Sidecars::register(plane, node, DRIVER, Path::new(SOCKET))?;
        Ok(Self { _sidecars: sidecars(plane, node)?, _registrar: registrar, _driver: driver })
    }
}

fn sidecars(plane: &ControlPlane, node: &Node) -> anyhow::Result<Vec<Process>> {
    let kubeconfig = plane.kubeconfig_of(USER)?;
    let all = [
        format!("--csi-address={SOCKET}"),
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-election".to_owned(),
        format!("--leader-election-namespace={USER}"),
        "--timeout=60s".to_owned(),
    ];
    let provisioner = [
        "--default-fstype=ext4",
        "--extra-create-metadata",
        "--strict-topology",
        "--enable-capacity",
        // It is in no pod, so nothing owns what it writes.
        "--capacity-ownerref-level=-1",
        "--capacity-poll-interval=15s",
    ];
    let resizer = ["--handle-volume-inuse-error=false"];
    let programs = [
        ("provisioner", PROVISIONER.program("csi-provisioner")?, provisioner.as_slice()),
        ("attacher", SIDECARS.program("attacher")?, &[]),
        ("resizer", RESIZER.program("csi-resizer")?, &resizer),
    ];
    let start = |(name, program, more): &(&str, std::path::PathBuf, &[&str])| {
        let mut args = vec![format!("NAMESPACE={USER}"), program.display().to_string()];
        args.extend(all.iter().cloned().chain(more.iter().map(|&word| word.to_owned())));
        node.start_program(name, Path::new("env"), &args)
    };
    Ok(programs.iter().map(start).collect::<Result<_, _>>()?)
}

/// A storage class, without its name and when it binds.
pub(super) fn class() -> String {
    format!("provisioner: {DRIVER}\nparameters: {{kind: {STORE}}}\n")
}

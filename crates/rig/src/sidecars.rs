//! What accompanies a CSI driver on Kubernetes, as processes on a node: who tells the kubelet of it, makes volumes for
//! claims, attaches and grows them. For a driver that runs as a process as well.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::components::{PROVISIONER, RESIZER, SIDECARS};
use crate::control_plane::ControlPlane;
use crate::error::RigError;
use crate::node::Node;
use crate::process::Process;

/// Where a kubelet looks for drivers.
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
const READY_LIMIT: Duration = Duration::from_secs(120);

/// They end when this is dropped.
#[derive(Debug)]
pub struct Sidecars {
    processes: Vec<Process>,
}

impl Sidecars {
    /// Tells the kubelet of the driver whose Node service is at this path of the node, and waits until it knows.
    pub fn register(
        plane: &ControlPlane,
        node: &Node,
        driver: &str,
        socket: &Path,
    ) -> Result<Self, RigError> {
        let args = [
            format!("--csi-address={}", socket.display()),
            format!("--kubelet-registration-path={}", socket.display()),
            format!("--plugin-registration-path={REGISTRY}"),
        ];
        let mut process =
            node.start_program("registrar", &SIDECARS.program("registrar")?, &args)?;
        let drivers = "jsonpath={.spec.drivers[*].name}";
        let question = ["get", "csinode", node.name(), "-o", drivers];
        let what = format!("the kubelet of {} knows {driver}", node.name());
        process.until(&what, READY_LIMIT, || match plane.kubectl().run(&question) {
            Ok(drivers) if drivers.split(' ').any(|name| name == driver) => Ok(()),
            Ok(drivers) => Err(format!("it knows {drivers:?}")),
            Err(error) => Err(error.to_string()),
        })?;
        Ok(Self { processes: vec![process] })
    }

    /// Starts provisioner, attacher and resizer on a node; the driver's Controller service is at this path of it.
    pub fn serve(plane: &ControlPlane, node: &Node, socket: &Path) -> Result<Self, RigError> {
        let programs = [
            ("provisioner", PROVISIONER.program("csi-provisioner")?),
            ("attacher", SIDECARS.program("attacher")?),
            ("resizer", RESIZER.program("csi-resizer")?),
        ];
        let args = [
            format!("--csi-address={}", socket.display()),
            format!("--kubeconfig={}", plane.kubeconfig().display()),
        ];
        let start = |(name, program): &(&str, PathBuf)| node.start_program(name, program, &args);
        let processes = programs.iter().map(start).collect::<Result<_, _>>()?;
        Ok(Self { processes })
    }

    pub fn stop(mut self) -> Result<(), RigError> {
        self.processes.iter_mut().try_for_each(Process::stop)
    }
}

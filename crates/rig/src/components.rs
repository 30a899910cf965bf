//! What is built from Go's module proxy, in which versions: the one table of it. Every component has a folder in the
//! cache whose name changes with everything that it is built from.
//!
//! The proxy need not have every module: it may refuse some of those that a CSI driver is accompanied by. For these
//! `go/sidecars` has programs of our own that do as much of their work as the tests need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use aws_lc_rs::digest::{Context, SHA256};

use crate::error::RigError;
use crate::programs::cache;

/// A module that builds programs, as it is written down in this crate's folder `go`.
struct Module {
    go_mod: &'static str,
    go_sum: &'static str,
    /// Sources of our own, by their path in the module.
    sources: &'static [(&'static str, &'static str)],
}

pub struct Component {
    pub name: &'static str,
    pub version: &'static str,
    /// In words, how long it takes on two cores from nothing.
    pub takes: &'static str,
    module: Module,
    /// Go's name of the folder of each program; the program is called like its last part.
    packages: &'static [&'static str],
    /// The same for programs that are made of tests, called like the last part with `.test` after it.
    tests: &'static [&'static str],
    /// Set in the programs when they are linked, without which they would not know their version.
    variables: &'static [(&'static str, &'static str)],
}

macro_rules! module {
    ($folder:literal $(, $source:literal)*) => {
        Module {
            go_mod: include_str!(concat!("../go/", $folder, "/go.mod")),
            go_sum: include_str!(concat!("../go/", $folder, "/go.sum")),
            sources: &[$(($source, include_str!(concat!("../go/", $folder, "/", $source)))),*],
        }
    };
}

/// The cluster itself. go.mod names the same version of all its parts, which Kubernetes as a dependency does not.
pub const KUBERNETES: Component = Component {
    name: "kubernetes",
    version: "v1.36.4",
    takes: "6 to 12 minutes",
    module: module!("kubernetes"),
    packages: &[
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-proxy",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "k8s.io/kubernetes/cmd/kubectl",
        "k8s.io/kubernetes/cmd/kubelet",
    ],
    tests: &[],
    variables: KUBERNETES_VERSION,
};

const KUBERNETES_VERSION: &[(&str, &str)] = &[
    ("k8s.io/component-base/version.gitVersion", "v1.36.4"),
    ("k8s.io/component-base/version.gitMajor", "1"),
    ("k8s.io/component-base/version.gitMinor", "36"),
    ("k8s.io/component-base/version.gitTreeState", "clean"),
];

/// Makes volumes for claims.
pub const PROVISIONER: Component = Component {
    name: "provisioner",
    version: "v5.3.0",
    takes: "2 to 4 minutes",
    module: module!("provisioner"),
    packages: &["github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"],
    tests: &[],
    variables: &[("main.version", "v5.3.0")],
};

/// Grows volumes whose claims have grown.
pub const RESIZER: Component = Component {
    name: "resizer",
    version: "v1.14.0",
    takes: "2 to 4 minutes",
    module: module!("resizer"),
    packages: &["github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"],
    tests: &[],
    variables: &[("main.version", "v1.14.0")],
};

/// Ours: they stand in for external-attacher, node-driver-registrar and livenessprobe, which the proxy may refuse.
pub const SIDECARS: Component = Component {
    name: "sidecars",
    version: "own",
    takes: "1 to 2 minutes",
    module: module!(
        "sidecars",
        "attacher/attach.go",
        "attacher/main.go",
        "csi/csi.go",
        "livenessprobe/main.go",
        "registrar/main.go"
    ),
    packages: &["./attacher", "./livenessprobe", "./registrar"],
    tests: &[],
    variables: &[],
};

/// Renders the chart in deploy/chart. Uses nothing that was compiled for the others: it is of another release.
pub const HELM: Component = Component {
    name: "helm",
    version: "v3.22.0",
    takes: "2 to 4 minutes",
    module: module!("helm"),
    packages: &["helm.sh/helm/v3/cmd/helm"],
    tests: &[],
    // The version of Kubernetes that it renders for where it is not told.
    variables: &[
        ("helm.sh/helm/v3/internal/version.version", "v3.22.0"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor", "36"),
        ("helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor", "1"),
        ("helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor", "36"),
    ],
};

/// Kubernetes' own tests of storage, and what they run in pods. Only the soak needs them.
pub const E2E: Component = Component {
    name: "e2e",
    version: "v1.36.4",
    takes: "10 to 15 minutes",
    module: module!("e2e"),
    packages: &["k8s.io/kubernetes/test/images/agnhost"],
    tests: &["k8s.io/kubernetes/test/e2e"],
    variables: KUBERNETES_VERSION,
};

/// The Kubernetes project's own example of a CSI driver, which Hotbay is measured beside. The newest release that the
/// proxy was found to have; with its go.mod come libraries of that time.
pub const HOSTPATH: Component = Component {
    name: "hostpath",
    version: "v1.7.2",
    takes: "1 to 2 minutes",
    module: module!("hostpath"),
    packages: &["github.com/kubernetes-csi/csi-driver-host-path/cmd/hostpathplugin"],
    tests: &[],
    variables: &[("main.version", "v1.7.2")],
};

/// In the order in which they are built: what comes later uses what was compiled for those before.
pub const ALL: &[&Component] = &[&KUBERNETES, &SIDECARS, &PROVISIONER, &RESIZER, &HELM];

/// Those that are built only for whoever names them.
pub const ON_DEMAND: &[&Component] = &[&E2E, &HOSTPATH];

impl Component {
    /// Where its programs are, or will be.
    pub fn folder(&self) -> PathBuf {
        cache().join(format!("{}-{}-{}", self.name, self.version, self.key()))
    }

    /// Where a program of it is, which must be built.
    pub fn program(&self, name: &str) -> Result<PathBuf, RigError> {
        let path = self.folder().join(name);
        if path.is_file() { Ok(path) } else { Err(RigError::NotBuilt { path }) }
    }

    pub fn is_built(&self) -> bool {
        // It is moved there when all are built.
        self.folder().is_dir()
    }

    /// Builds all its programs; those that are there already stay as they are. `go` is the program that does it.
    pub fn build(&self, go: &Path) -> Result<(), RigError> {
        if self.is_built() {
            return Ok(());
        }
        let part = cache().join(format!("{}.{}", self.name, std::process::id()));
        self.remove_parts();
        let built = self.build_in(&part, go);
        // After a success only the module's folder is left of it, after a failure what was built so far.
        drop(fs::remove_dir_all(&part));
        built
    }

    /// Removes what builds that were killed have left. It takes up space, no more: a failure is none of ours.
    fn remove_parts(&self) {
        for entry in fs::read_dir(cache()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some((component, pid)) = name.split_once('.') else { continue };
            let is_pid = !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit());
            if component == self.name && is_pid && !Path::new("/proc").join(pid).exists() {
                drop(fs::remove_dir_all(entry.path()));
            }
        }
    }

    fn build_in(&self, part: &Path, go: &Path) -> Result<(), RigError> {
        let (module, programs) = (part.join("module"), part.join("programs"));
        let texts = [("go.mod", self.module.go_mod), ("go.sum", self.module.go_sum)];
        for (file, text) in texts.iter().chain(self.module.sources) {
            let path = module.join(file);
            let folder = path.parent().unwrap_or(&module);
            fs::create_dir_all(folder).map_err(RigError::file("make the folder", folder))?;
            fs::write(&path, text).map_err(RigError::file("write", &path))?;
        }
        fs::create_dir_all(&programs).map_err(RigError::file("make the folder", &programs))?;
        let packages = self.packages.iter().map(|package| (package, false));
        let tests = self.tests.iter().map(|package| (package, true));
        for (package, is_test) in packages.chain(tests) {
            let mut command = self.command(go, is_test);
            let (_, last) = package.rsplit_once('/').unwrap_or(("", package));
            let output = if is_test { format!("{last}.test") } else { last.to_owned() };
            command.current_dir(&module).arg("-o").arg(programs.join(output)).arg(package);
            println!("building {package}");
            let status = command
                .status()
                .map_err(|source| RigError::Start { program: go.display().to_string(), source })?;
            if !status.success() {
                let command = format!("go build {package}");
                let said = "it says why above".to_owned();
                return Err(RigError::Command { command, said });
            }
        }
        let folder = self.folder();
        match fs::rename(&programs, &folder) {
            Err(_) if self.is_built() => Ok(()),
            moved => moved.map_err(RigError::file("move what was built to", folder)),
        }
    }

    fn command(&self, go: &Path, is_test: bool) -> Command {
        let variables = self.variables.iter().map(|(name, value)| format!(" -X {name}={value}"));
        let flags = format!("-s -w{}", variables.collect::<String>());
        let mut command = Command::new("nice");
        command.args(["-n", "5"]).arg(go);
        // What go.mod and go.sum name, and nothing else; by the Go that is here.
        command.env("GOFLAGS", "-mod=readonly -buildvcs=false").env("GOTOOLCHAIN", "local");
        command.env("CGO_ENABLED", "0").env("GOCACHE", compiled());
        // Go's own lints would take as long again, and are not for us to heed.
        command.args(if is_test { ["test", "-c", "-vet=off"].as_slice() } else { &["build"] });
        command.args(["-trimpath", "-ldflags", &flags]);
        command
    }

    /// Twelve digits that stand for everything that the programs are built from.
    fn key(&self) -> String {
        let mut context = Context::new(&SHA256);
        let mut add = |text: &str| {
            context.update(&text.len().to_be_bytes());
            context.update(text.as_bytes());
        };
        let Module { go_mod, go_sum, sources } = &self.module;
        [go_mod, go_sum].into_iter().chain(self.packages).for_each(|text| add(text));
        for (name, text) in sources.iter().chain(self.variables) {
            add(name);
            add(text);
        }
        self.tests.iter().for_each(|text| add(text));
        let hash = context.finish();
        hash.as_ref().iter().take(6).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What Go compiled so far: of use until all components are built, and larger than all of them.
pub fn compiled() -> PathBuf {
    cache().join("go-build")
}

impl std::fmt::Debug for Component {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

//! Kubernetes' own tests of storage, its suite for drivers from outside, against the chart's pods: those of
//! `names.txt`, which run without pulling images. `cargo xtask soak-k8s` runs it; what came out is in
//! docs/kubernetes-soak.md.
//!
//! HOTBAY_E2E_FOCUS=pattern runs all that fit the pattern instead, and judges nothing: to find what could be in the
//! list.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../k8s_pods/cluster.rs"]
#[expect(dead_code, reason = "other tests use more of it")]
mod cluster;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};

use hotbay_rig::components::{E2E, KUBERNETES};
use hotbay_rig::image;
use serde_json::Value;

use cluster::{Installed, VALUES};

/// Sparse files: only what is written takes room.
const DRIVE_BYTES: u64 = 16 << 30;
const DRIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/soak_k8s_external/driver.yaml");
/// One name a line.
const NAMES: &str = include_str!("names.txt");
/// The whole suite; it ends by itself long before.
const LIMIT: &str = "120m";
/// So many of them run at the same time: they wait more than they work.
const AT_ONCE: usize = 3;

/// What the tests run in pods, under the names that they call it by. All of it is busybox, with their own program.
const IMAGES: [&str; 5] = [
    "registry.k8s.io/e2e-test-images/busybox",
    "registry.k8s.io/e2e-test-images/agnhost",
    "registry.k8s.io/e2e-test-images/glibc-dns-testing",
    "registry.k8s.io/e2e-test-images/nginx",
    "registry.k8s.io/pause",
];

/// Imports the images into all nodes, with the tags that the suite wants.
fn import(installed: &Installed, suite: &Path) {
    let listed = Command::new(suite).arg("--list-images").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let is_ours = |name: &&str| {
        name.rsplit_once(':').is_some_and(|(repository, _)| IMAGES.contains(&repository))
    };
    let agnhost = E2E.program("agnhost").unwrap();
    let archive = installed.cluster.plane().folder().join("suite.tar");
    for name in listed.lines().filter(is_ours) {
        let entrypoint: &[&str] = match name {
            name if name.contains("agnhost") => &["/agnhost"],
            name if name.contains("pause") => &["/bin/busybox", "sleep", "2147483647"],
            _ => &["/bin/sh"],
        };
        let mut image = image::busybox(name, entrypoint).unwrap();
        if name.contains("agnhost") {
            image.program("agnhost", &agnhost).unwrap();
            image.arguments(&["pause"]);
        }
        image.write(&archive).unwrap();
        for node in installed.cluster.nodes() {
            node.import(std::slice::from_ref(&archive)).unwrap();
        }
    }
}

/// How each test ended, by its name; of those that ran.
fn ended(report: &Path) -> BTreeMap<String, (String, f64)> {
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap();
    let texts = |spec: &Value| {
        let mut texts: Vec<_> =
            spec["ContainerHierarchyTexts"].as_array().cloned().unwrap_or_default();
        texts.push(spec["LeafNodeText"].clone());
        let texts: Vec<_> = texts.iter().filter_map(Value::as_str).collect();
        texts.join(" ")
    };
    let seconds = |spec: &Value| spec["RunTime"].as_f64().unwrap_or_default() / 1e9;
    let state = |spec: &Value| spec["State"].as_str().unwrap_or_default().to_owned();
    let is_it = |spec: &&Value| spec["LeafNodeType"] == "It" && spec["NumAttempts"] != 0;
    specs.iter().filter(is_it).map(|spec| (texts(spec), (state(spec), seconds(spec)))).collect()
}

/// A pattern that fits these names alone. The suite puts its own name before them.
fn pattern(names: &[&str]) -> String {
    let special = r"\.+*?()|[]{}^$";
    let escaped = |name: &&str| {
        let mut text = String::new();
        for letter in name.chars() {
            if special.contains(letter) {
                text.push('\\');
            }
            text.push(letter);
        }
        format!("{text}$")
    };
    names.iter().map(escaped).collect::<Vec<_>>().join("|")
}

/// What runs at the same time, one round after the other. A volume on a file grows only into the room behind it, which
/// others would take meanwhile: these have the drives for themselves.
fn rounds(names: &[&str]) -> Vec<Vec<String>> {
    let (grow, others): (Vec<_>, Vec<_>) =
        names.iter().copied().partition(|name| name.contains("expan"));
    let part = |first| others.iter().copied().skip(first).step_by(AT_ONCE).collect::<Vec<_>>();
    vec![(0..AT_ONCE).map(part).map(|part| pattern(&part)).collect(), vec![pattern(&grow)]]
}

/// One process of the suite, and what it leaves.
struct Running {
    process: Child,
    log: PathBuf,
    report: PathBuf,
}

impl Running {
    fn start(installed: &Installed, suite: &Path, focus: &str) -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let plane = installed.cluster.plane();
        let report = plane.folder().join(format!("report{number}.json"));
        let mut command = Command::new(suite);
        command.current_dir(plane.folder().path()).args(["--provider=skeleton", "--num-nodes=2"]);
        command.arg(format!("--kubeconfig={}", plane.kubeconfig().display()));
        command.arg(format!("--kubectl-path={}", KUBERNETES.program("kubectl").unwrap().display()));
        command.arg(format!("--storage.testdriver={DRIVER}"));
        command.arg(format!("--ginkgo.focus={focus}"));
        command.args([r"--ginkgo.skip=\[Disruptive\]|\[Serial\]", "--ginkgo.no-color"]);
        command.arg(format!("--ginkgo.timeout={LIMIT}"));
        command.arg(format!("--ginkgo.json-report={}", report.display()));
        let log = plane.folder().join(format!("logs/suite{number}.log"));
        let output = fs::File::create(&log).unwrap();
        command.stdout(output.try_clone().unwrap()).stderr(output);
        Self { process: command.spawn().unwrap(), log, report }
    }
}

#[test]
fn kubernetes_own_tests_of_storage_pass() {
    let installed = Installed::new(VALUES, DRIVE_BYTES);
    let suite = E2E.program("e2e.test").unwrap();
    import(&installed, &suite);
    let names: Vec<_> = NAMES.lines().filter(|line| !line.is_empty()).collect();
    let asked = env::var("HOTBAY_E2E_FOCUS").ok();
    let (mut results, mut said) = (BTreeMap::new(), String::new());
    for focuses in asked.clone().map_or_else(|| rounds(&names), |asked| vec![vec![asked]]) {
        let start = |focus: &String| Running::start(&installed, &suite, focus);
        for mut each in focuses.iter().map(start).collect::<Vec<_>>() {
            each.process.wait().unwrap();
            said.push_str(&fs::read_to_string(&each.log).unwrap());
            results.extend(ended(&each.report));
        }
    }
    for (name, (state, seconds)) in &results {
        println!("{state} {seconds:.0} s: {name}");
    }
    let has_passed = |name: &&str| results.get(*name).is_some_and(|(state, _)| state == "passed");
    if asked.is_some() {
        println!("{said}");
        return;
    }
    let passed = names.iter().copied().filter(has_passed).count();
    println!("{passed} of {} tests passed", names.len());
    let missing: Vec<_> = names.into_iter().filter(|name| !has_passed(name)).collect();
    assert!(missing.is_empty() && passed > 0, "{said}\ndid not pass: {missing:#?}");
}

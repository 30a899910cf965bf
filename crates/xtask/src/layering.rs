//! Which crate may use which: the rooms of docs/ARCHITECTURE.md as a table, checked against cargo's own graph.
//!
//! Nothing points back. Decisions stay in core, which knows neither clock nor kernel nor runtime, so that the model
//! checker and the simulation run the very functions that the product runs; the agent holds no Kubernetes code.
//! Called by `cargo xtask layering`, by the `check` tier, and as a test of this crate.

use anyhow::bail;

use crate::workspace::{Dependency, Package, Workspace};

struct Layer {
    package: &'static str,
    /// Which of our crates it may use, in tests as well.
    may_use: &'static [&'static str],
    /// Crates of others that would bring in what this one must not know, in tests as well.
    never: &'static [&'static str],
}

/// Crates for tests: whoever may use one may do so in tests only.
const FOR_TESTS: &[&str] = &["hotbay-guest", "hotbay-rig"];

/// Crates that nothing of the product uses, nor is built from: what is for tests is for them as it is. `bench` measures
/// on the very cluster that tests run on.
const BESIDE_THE_PRODUCT: &[&str] = &["hotbay-bench"];

const LAYERS: &[Layer] = &[
    Layer {
        package: "hotbay-core",
        may_use: &[],
        never: &["libc", "rand", "rustix", "tokio", "uuid"],
    },
    Layer { package: "hotbay-registry", may_use: &["hotbay-core"], never: &[] },
    Layer { package: "hotbay-host", may_use: &["hotbay-core", "hotbay-guest"], never: &[] },
    Layer { package: "hotbay-api", may_use: &["hotbay-core"], never: &[] },
    Layer { package: "hotbay-dataplane", may_use: &["hotbay-core"], never: &[] },
    Layer {
        package: "hotbay-csi",
        may_use: &["hotbay-api", "hotbay-core"],
        never: &["k8s-openapi", "kube"],
    },
    Layer {
        package: "hotbay-node",
        may_use: &["hotbay-api", "hotbay-core", "hotbay-csi", "hotbay-host"],
        never: &["k8s-openapi", "kube"],
    },
    Layer {
        package: "hotbay-control",
        may_use: &["hotbay-api", "hotbay-core", "hotbay-csi", "hotbay-host", "hotbay-registry"],
        never: &["k8s-openapi", "kube"],
    },
    Layer {
        package: "hotbay-kubernetes",
        may_use: &["hotbay-api", "hotbay-control", "hotbay-core", "hotbay-registry", "hotbay-rig"],
        never: &[],
    },
    Layer {
        package: "hotbay",
        may_use: &[
            "hotbay-api",
            "hotbay-control",
            "hotbay-core",
            "hotbay-csi",
            "hotbay-dataplane",
            "hotbay-guest",
            "hotbay-host",
            "hotbay-kubernetes",
            "hotbay-node",
            "hotbay-registry",
            "hotbay-rig",
        ],
        never: &[],
    },
    Layer { package: "hotbay-guest", may_use: &[], never: &[] },
    Layer { package: "hotbay-rig", may_use: &[], never: &[] },
    Layer { package: "hotbay-sim", may_use: &["hotbay-core"], never: &[] },
    Layer {
        package: "hotbay-bench",
        may_use: &["hotbay-api", "hotbay-core", "hotbay-host", "hotbay-registry", "hotbay-rig"],
        never: &[],
    },
    Layer {
        package: "hotbay-fuzz-targets",
        may_use: &[
            "hotbay-api",
            "hotbay-control",
            "hotbay-core",
            "hotbay-csi",
            "hotbay-host",
            "hotbay-node",
            "hotbay-registry",
        ],
        never: &[],
    },
    Layer { package: "xtask", may_use: &[], never: &[] },
];

/// Fails with every edge that the table does not allow.
pub(crate) fn check(workspace: &Workspace) -> anyhow::Result<()> {
    let faults: Vec<_> = workspace.packages.iter().flat_map(package_faults).collect();
    if faults.is_empty() {
        println!("layering: {} crates, every edge allowed", workspace.packages.len());
        return Ok(());
    }
    bail!("the crates are not layered as agreed:\n  {}", faults.join("\n  "));
}

/// Whether the table has a place for this package.
pub(crate) fn knows(package: &str) -> bool {
    layer(package).is_some()
}

fn layer(package: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.package == package)
}

fn package_faults(package: &Package) -> Vec<String> {
    let Some(layer) = layer(&package.name) else {
        return vec![format!(
            "{} has no place in the table of {}: say there which crates it may use",
            package.name,
            file!()
        )];
    };
    package.dependencies.iter().filter_map(|used| edge_fault(layer, used)).collect()
}

fn edge_fault(layer: &Layer, used: &Dependency) -> Option<String> {
    let kind = used.kind.as_deref().map(|kind| format!(" ({kind})")).unwrap_or_default();
    let edge = format!("{} -> {}{kind}", layer.package, used.name);
    // The name decides, not the table: a crate of ours without a place in it is still ours.
    let ours = used.name == "xtask" || used.name.starts_with("hotbay");
    if layer.never.contains(&used.name.as_str()) {
        Some(format!("{edge}: it must know nothing of {}", used.name))
    } else if FOR_TESTS.contains(&used.name.as_str())
        && used.kind.as_deref() != Some("dev")
        && !BESIDE_THE_PRODUCT.contains(&layer.package)
    {
        Some(format!("{edge}: {} is for tests alone", used.name))
    } else if ours && !layer.may_use.contains(&used.name.as_str()) {
        let may_use = match layer.may_use {
            [] => "none of our crates".to_owned(),
            some => format!("only {}", some.join(", ")),
        };
        Some(format!("{edge}: {} may use {may_use}", layer.package))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(package: &str, uses: &[(&str, Option<&str>)]) -> Vec<String> {
        package_faults(&Package {
            name: package.to_owned(),
            manifest_path: "Cargo.toml".into(),
            dependencies: uses
                .iter()
                .map(|(name, kind)| Dependency {
                    name: (*name).to_owned(),
                    kind: kind.map(str::to_owned),
                })
                .collect(),
            targets: Vec::new(),
        })
    }

    #[test]
    fn this_workspace_is_layered() {
        check(&Workspace::load().unwrap()).unwrap();
    }

    #[test]
    fn allowed_edges_pass() {
        let uses = [("hotbay-core", None), ("hotbay-host", None), ("tokio", None)];
        assert_eq!(faults("hotbay-node", &uses), Vec::<String>::new());
    }

    #[test]
    fn edge_upwards_is_named_with_its_kind() {
        let faults = faults("hotbay-registry", &[("hotbay-control", Some("dev"))]);
        assert_eq!(
            faults,
            ["hotbay-registry -> hotbay-control (dev): hotbay-registry may use only hotbay-core"]
        );
    }

    #[test]
    fn core_uses_none_of_ours_and_no_runtime() {
        let faults = faults("hotbay-core", &[("hotbay-api", None), ("tokio", None)]);
        assert_eq!(faults.len(), 2, "{faults:?}");
    }

    #[test]
    fn agent_links_no_kubernetes_code() {
        assert_eq!(faults("hotbay-node", &[("kube", None)]).len(), 1);
    }

    #[test]
    fn product_uses_the_virtual_machine_in_tests_alone() {
        assert_eq!(faults("hotbay", &[("hotbay-guest", Some("dev"))]), Vec::<String>::new());
        for kind in [None, Some("build")] {
            assert_eq!(faults("hotbay", &[("hotbay-guest", kind)]).len(), 1);
        }
    }

    #[test]
    fn bench_uses_the_cluster_of_the_tests_and_nobody_uses_bench() {
        assert_eq!(faults("hotbay-bench", &[("hotbay-rig", None)]), Vec::<String>::new());
        assert_eq!(faults("hotbay-bench", &[("hotbay-guest", None)]).len(), 1);
        for layer in LAYERS {
            assert_eq!(faults(layer.package, &[("hotbay-bench", Some("dev"))]).len(), 1);
        }
    }

    #[test]
    fn crate_without_a_place_fails() {
        assert_eq!(faults("hotbay-new", &[]).len(), 1);
        assert!(!knows("hotbay-new"));
    }
}

//! `hotbay crd`: the custom resource definitions, as kubectl takes them. Needs neither a registry nor a cluster.

use clap::{Args, ValueEnum};
use hotbay_kubernetes::crd::definitions;
use serde_json::json;
use thiserror::Error;

use crate::client::Screen;

pub(crate) const EXAMPLES: &str = "\
Drives, volumes and the rest become objects of Kubernetes: kubectl get hotbay, kubectl explain drive.status.
Applying the definitions again changes no object. Deleting one deletes its objects, and nothing on any drive.

Examples:
  hotbay crd | kubectl apply --server-side --force-conflicts -f -
  hotbay crd -o json                   the same, as one list";

#[derive(Debug, Args)]
pub(crate) struct CrdArgs {
    /// How to print them: YAML documents, or one list as JSON
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: CrdFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CrdFormat {
    Yaml,
    Json,
}

/// Why nothing was printed.
#[derive(Debug, Error)]
pub(crate) enum CrdError {
    #[error("cannot write YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
    #[error("cannot write the output")]
    Output(#[from] std::io::Error),
}

/// Prints every definition.
pub(crate) fn run(args: &CrdArgs) -> Result<(), CrdError> {
    let text = match args.output {
        CrdFormat::Yaml => yaml()?,
        CrdFormat::Json => {
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": definitions() });
            format!("{list:#}\n")
        }
    };
    Ok(Screen::new().print(&text)?)
}

fn yaml() -> Result<String, serde_saphyr::ser::Error> {
    let documents =
        definitions().iter().map(serde_saphyr::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.iter().map(|document| format!("---\n{}\n", document.trim_end())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployed(file: &str) -> String {
        let deploy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
        std::fs::read_to_string(format!("{deploy}/{file}")).unwrap_or_default()
    }

    #[test]
    fn the_checked_in_copies_are_what_the_program_prints() {
        let printed = yaml().unwrap();
        for copy in ["crds.yaml", "chart/crds/crds.yaml"] {
            assert!(deployed(copy) == printed, "run: hotbay crd > deploy/{copy}");
        }
    }

    #[test]
    fn the_chart_is_of_this_version() {
        let chart = deployed("chart/Chart.yaml");
        for key in ["version", "appVersion"] {
            let line = format!("{key}: {}", env!("CARGO_PKG_VERSION"));
            assert!(chart.lines().any(|found| found == line), "Chart.yaml has no line {line}");
        }
    }

    #[test]
    fn what_is_printed_reads_back_as_the_definitions() {
        let text = yaml().unwrap();
        let documents: Vec<serde_json::Value> = text
            .split("---\n")
            .skip(1)
            .map(|document| serde_saphyr::from_str(document).unwrap())
            .collect();
        assert_eq!(documents, definitions());
    }
}

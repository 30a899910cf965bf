//! `hotbay host label`: its options and help texts.

use clap::Args;
use hotbay_core::node_labels::{LabelChange, NodeLabels};

pub(crate) const LABEL_EXAMPLES: &str = "\
Keys and values are written as in Kubernetes. Rules that add drives can ask for
labels ('node-labels' in [[auto-add]]): they look at the host's drives again,
and what they add is said. Taking a label away takes no drive out of operation.

Examples:
  hotbay host label node-a rack=a example.com/tier=fast
  hotbay host label node-a rack=b zone- --overwrite";

#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    pub(crate) host: String,
    /// KEY=VALUE sets a label, KEY- removes it
    #[arg(value_name = "KEY=VALUE|KEY-", required = true, value_parser = change)]
    pub(crate) changes: Vec<String>,
    /// Also change a label that has another value
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Say what would happen, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Checks one text, so that a mistake needs no registry to be refused.
fn change(text: &str) -> Result<String, String> {
    let checked = LabelChange::of_texts(&[text], false);
    checked.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Checks one label that a node is to have.
pub(crate) fn label(text: &str) -> Result<String, String> {
    let checked = NodeLabels::of_texts(&[text]);
    checked.map(|_| text.to_owned()).map_err(|error| error.to_string())
}

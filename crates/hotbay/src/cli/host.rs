//! `hotbay host`: its subcommands and help texts.

use clap::Subcommand;

use super::HowArgs;
use super::label::{self, LabelArgs};

pub(crate) const HOST_EXAMPLES: &str = "\
Examples:
  hotbay host add node-a --wait
  hotbay host remove node-a --dry-run  what would be closed, and what is in the way";

const HOST_ADD_EXAMPLES: &str = "\
Examples:
  hotbay host add node-a --wait        all of its drives that can be added
  hotbay host add node-a --with-removed";

const HOST_CORDON_EXAMPLES: &str = "\
Volumes that are there stay in use, and may grow. 'hotbay volume explain' says that a node is cordoned.

Examples:
  hotbay host cordon node-a            before work on the machine
  hotbay host uncordon node-a          after it";

const HOST_REMOVE_EXAMPLES: &str = "\
Exits with 0 only when every drive is closed and that is proved; with 3 while one is not yet.

Examples:
  hotbay host remove node-a --wait
  hotbay host remove node-a node-b --dry-run";

const HOST_PURGE_EXAMPLES: &str = "\
A machine that returns is told to close its drives; 'hotbay host add HOST --returned' takes it back.

Examples:
  hotbay host purge node-a             says what is lost, and asks
  hotbay host purge node-a --yes";

const HOST_FORGET_EXAMPLES: &str = "\
Nothing is lost by it: a machine that comes back later is a new one, and its drives are known again by their labels.
With drives in operation or volumes on it a host is purged instead.

Examples:
  hotbay host forget node-a            or says what is still needed of it
  hotbay get nodes                     the others";

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Puts all drives of a host that can be added into operation
    #[command(after_help = HOST_ADD_EXAMPLES)]
    Add {
        #[arg(value_name = "HOST", required = true)]
        hosts: Vec<String>,
        /// Also the drives that were removed on their own
        #[arg(long)]
        with_removed: bool,
        /// The host was purged, and its machine is back
        #[arg(long)]
        returned: bool,
        #[command(flatten)]
        how: HowArgs,
    },
    /// Keeps new volumes off the drives of a host
    #[command(after_help = HOST_CORDON_EXAMPLES)]
    Cordon {
        #[arg(value_name = "HOST", required = true)]
        hosts: Vec<String>,
    },
    /// Lets new volumes onto the drives of a host again
    #[command(after_help = HOST_CORDON_EXAMPLES)]
    Uncordon {
        #[arg(value_name = "HOST", required = true)]
        hosts: Vec<String>,
    },
    /// Forgets a host whose machine is gone, if no drive of it is in operation and no volume is there
    #[command(after_help = HOST_FORGET_EXAMPLES)]
    Forget { host: String },
    /// Sets and removes labels of a host, which rules that add drives can ask for
    #[command(after_help = label::LABEL_EXAMPLES)]
    Label(LabelArgs),
    /// Gives up a host whose machine is gone, with all that is on its drives
    #[command(after_help = HOST_PURGE_EXAMPLES)]
    Purge {
        host: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Takes all drives of a host out of operation
    #[command(after_help = HOST_REMOVE_EXAMPLES)]
    Remove {
        #[arg(value_name = "HOST", required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        how: HowArgs,
    },
}

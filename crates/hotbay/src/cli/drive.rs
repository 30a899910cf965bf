//! `hotbay drive`: its commands, options and help texts.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use hotbay_core::device::{Media, Transport};
use hotbay_core::filter::{Pattern, Size};

use super::HowArgs;

pub(crate) const DRIVE_EXAMPLES: &str = "\
Examples:
  hotbay drive add node-a:bay-0 --wait
  hotbay drive remove S3X1A9 --wait    by its serial number";

const ADD_EXAMPLES: &str = "\
A drive with anything on it is not added. --wipe shows what that is, says that
all of it will be lost, and wants the drive's serial number typed (its name, if
it has none); in a script --serial gives it. A drive that is mounted, held,
swapped to, in operation, of the system or of this cluster is never wiped.

With -f FILE: what 'hotbay drive plan' has printed. A drive that has changed
since is refused, and the others are added all the same; a file with a mistake
changes nothing.

Examples:
  hotbay drive add d-7f3a91c0 --wait   add it, and wait until it is open
  hotbay drive add node-a:/dev/sdb --wipe --dry-run    what would be lost";

const REMOVE_EXAMPLES: &str = "\
Exits with 0 only when the drive is closed and that is proved; with 3 while it is not yet.

Examples:
  hotbay drive remove S3X1A9 --wait    by its serial number
  hotbay drive remove node-a:bay-0 --wait --timeout 30m";

const TAKE_OVER_EXAMPLES: &str = "\
A drive that was moved is denied with IdentityConflict while its old node still
has it in its record. If that node reports it gone and nothing is wanted of it
there, the drive moves by itself. Else a person has to say so: because the node
is dead, or because the drive was pulled out while it was in operation.

The drive keeps its name and what is on it; only its label is written. The old
node may only close it from then on. While that node is connected and reports
the drive as well, this is refused. A node that is not connected cannot be
asked: see that it is off, or does not reach the drive. If it still runs and
does, both would write to it.

The serial number has to be typed (the drive's name, if it has none).

Examples:
  hotbay drive take-over node-b:bay-3 --dry-run
  hotbay drive take-over node-b:/dev/sdb --serial S3X1A9 --wait";

const PLAN_EXAMPLES: &str = "\
Prints a list for 'hotbay drive add -f', with the state of every drive; look at
it, take out what is to stay as it is, and add the rest. Patterns have *, ? and
[...]; sizes are 960GB or 1TB (powers of ten), or 1TiB (powers of two).

Examples:
  hotbay drive plan > drives.yaml      all drives that can be added
  hotbay drive plan --node 'rack1-*' --media NVMe,SSD --min-size 1TB > drives.yaml";

const EXPLAIN_EXAMPLES: &str = "\
Goes through everything that decides, in order: the node, its filters and which
rule of them decided, what is on the drive, what was asked of it, and what each
rule that adds drives made of it.

Examples:
  hotbay drive explain node-a:/dev/sda
  hotbay drive explain S3X1A9 -o json";

const INSPECT_EXAMPLES: &str = "\
Reads the drive itself, on any machine, and needs no registry. Nothing is
written, and the drive may be in operation meanwhile. Exits with 4 if there is
no label, with 1 if there is one that cannot be read.

Examples:
  hotbay drive inspect /dev/sdb
  hotbay drive inspect /var/lib/drives/bay-0.img -o json";

#[derive(Debug, Subcommand)]
pub(crate) enum DriveCommand {
    /// Puts drives into operation
    #[command(after_help = ADD_EXAMPLES)]
    Add(DriveAddArgs),
    /// Takes drives out of operation
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(DriveArgs),
    /// Takes over a drive that was moved here while another node holds it
    #[command(after_help = TAKE_OVER_EXAMPLES)]
    TakeOver(TakeOverArgs),
    /// Prints a list of drives to look at and then to add: for many at once
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(PlanArgs),
    /// Tells why a drive can or cannot be added, reason by reason
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain {
        /// A drive's name, serial number or id, or node:/dev/x, or node:bay-0
        #[arg(value_name = "DRIVE")]
        name: String,
        /// How to print it
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<ExplainFormat>,
    },
    /// Shows what the label on a drive says, without a registry
    #[command(after_help = INSPECT_EXAMPLES)]
    Inspect {
        /// The drive on this machine: a block device, or a plain file
        #[arg(value_name = "PATH")]
        path: PathBuf,
        /// How to print it
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<ExplainFormat>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DriveArgs {
    /// A drive's name, serial number or id, or node:/dev/x, or node:bay-0
    #[arg(value_name = "DRIVE", required = true)]
    pub(crate) targets: Vec<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DriveAddArgs {
    /// A drive's name, serial number or id, or node:/dev/x, or node:bay-0
    #[arg(value_name = "DRIVE", required_unless_present = "file", conflicts_with = "file")]
    pub(crate) targets: Vec<String>,
    /// The drives that a plan lists, as far as they have not changed since; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Wipe what is on the drive: all of it is lost. One drive at a time
    #[arg(long, conflicts_with = "file")]
    pub(crate) wipe: bool,
    /// With --wipe: the drive's serial number (its name, if it has none), so that nobody has to type it
    #[arg(long, value_name = "SERIAL", requires = "wipe")]
    pub(crate) serial: Option<String>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TakeOverArgs {
    /// Where the drive is now: node:/dev/x, or node:bay-0
    #[arg(value_name = "NODE:PATH")]
    pub(crate) target: String,
    /// Its serial number, instead of typing it when asked
    #[arg(long, value_name = "SERIAL")]
    pub(crate) serial: Option<String>,
    /// Print the answer as JSON; nothing is asked, so --serial or --dry-run goes with it
    #[arg(short, long, value_name = "FORMAT", conflicts_with = "wait")]
    pub(crate) output: Option<TakeOverFormat>,
    #[command(flatten)]
    pub(crate) how: HowArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TakeOverFormat {
    Json,
}

/// Which drives a plan lists: those that fit everything given here.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// On nodes with such a name
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) node: Vec<Pattern>,
    /// NVMe, SSD, HDD or File
    #[arg(long, value_name = "MEDIA", value_delimiter = ',')]
    pub(crate) media: Vec<Media>,
    /// At least so large
    #[arg(long, value_name = "SIZE")]
    pub(crate) min_size: Option<Size>,
    /// At most so large
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_size: Option<Size>,
    /// Of such a model; small and capital letters are alike
    #[arg(long, value_name = "PATTERN")]
    pub(crate) model: Vec<Pattern>,
    /// Of such a maker; small and capital letters are alike
    #[arg(long, value_name = "PATTERN")]
    pub(crate) vendor: Vec<Pattern>,
    /// nvme, sata, sas, usb, virtio, iscsi, fc, mmc or file
    #[arg(long, value_name = "TRANSPORT", value_delimiter = ',')]
    pub(crate) transport: Vec<Transport>,
    /// Only drives that can be added now: present, not in operation, nothing on them that is not ours. This is so
    /// unless --all is given
    #[arg(long, conflicts_with = "all")]
    pub(crate) usable: bool,
    /// Also drives that cannot be added, or are in operation already
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExplainFormat {
    Json,
    Yaml,
}

//! `hotbay volume`: its commands, options and help texts.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use hotbay_core::device::Media;
use hotbay_core::filter;
use hotbay_core::volume::Size;
use hotbay_core::volume::class::Filesystem;

use super::{ExplainFormat, Format};

pub(crate) const VOLUME_EXAMPLES: &str = "\
A volume is a piece of one drive. It is reached on the node that has the drive,
and only there.

Examples:
  hotbay volume create db --size 10GiB
  hotbay volume list";

const CREATE_EXAMPLES: &str = "\
The least filled drive that fits takes it. Sizes are 10GiB (powers of two) or
10GB (powers of ten), rounded up to whole MiB. The same command again finds the
volume that it has made.

Examples:
  hotbay volume create db --size 10GiB --media NVMe
  hotbay volume create db-0 --size 10GiB --spread required --group db";

const DELETE_EXAMPLES: &str = "\
All that is on it is lost. What it had of its drive is zeroed before anybody else
gets it. A volume that a node may use is not deleted.

Examples:
  hotbay volume delete db              says what is lost, and asks
  hotbay volume delete db --yes";

const EXPAND_EXAMPLES: &str = "\
A volume grows where it is: there has to be room behind it on its drive. It never
becomes smaller.

Examples:
  hotbay volume expand db --size 20GiB
  hotbay volume expand pvc-11aa --size 1TiB";

const LIST_EXAMPLES: &str = "\
The same as 'hotbay get volumes'.

Examples:
  hotbay volume list
  hotbay volume list --watch";

const EXPLAIN_EXAMPLES: &str = "\
Says which drive a volume would go to, and of every other drive why not. Nothing
is made.

Examples:
  hotbay volume explain --size 100GiB --media NVMe
  hotbay volume explain --size 1TiB --drive exclusive --node node-a -o json";

const MOUNT_EXAMPLES: &str = "\
On the machine that has the volume's drive. It is attached to this node, checked
or formatted, and mounted; all of it can be repeated. With --persist the agent
mounts it again after a reboot.

Examples:
  hotbay volume mount db /srv/db
  hotbay volume mount db /srv/db --filesystem xfs --option noatime --persist";

const UNMOUNT_EXAMPLES: &str = "\
What was written stays on the volume. It does not come back by itself any more.

Examples:
  hotbay volume unmount db
  hotbay volume unmount db /srv/db";

const ANNOTATE_EXAMPLES: &str = "\
Annotations are for people and programs; Hotbay reads this one:
pv.attach.kubernetes.io/ignore-if-inaccessible=yes lets a pod start although the
volume is dead.

Examples:
  hotbay volume annotate db owner=shop
  hotbay volume annotate db owner- ticket=4711";

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Makes a volume, and waits until it is on its drive
    #[command(after_help = CREATE_EXAMPLES)]
    Create {
        /// What it is to be called: 1 to 128 bytes
        name: String,
        #[command(flatten)]
        wish: WishArgs,
    },
    /// Deletes a volume, with all that is on it
    #[command(after_help = DELETE_EXAMPLES)]
    Delete {
        /// Its name or id
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Makes a volume larger, and waits until it is
    #[command(after_help = EXPAND_EXAMPLES)]
    Expand {
        /// Its name or id
        #[arg(value_name = "VOLUME")]
        name: String,
        /// How large it is to be, in all
        #[arg(long, value_parser = size, allow_hyphen_values = true)]
        size: u64,
    },
    /// Shows all volumes, and why one is not as it should be
    #[command(after_help = LIST_EXAMPLES)]
    List {
        /// How to print it. json and yaml are the API's own objects
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<Format>,
        /// Go on and show every change
        #[arg(short, long)]
        watch: bool,
    },
    /// Tells where a volume would go, and why not elsewhere
    #[command(after_help = EXPLAIN_EXAMPLES)]
    Explain {
        #[command(flatten)]
        wish: WishArgs,
        /// How to print it
        #[arg(short, long, value_name = "FORMAT")]
        output: Option<ExplainFormat>,
    },
    /// Mounts a volume on this machine, with a filesystem that is made if there is none
    #[command(after_help = MOUNT_EXAMPLES)]
    Mount(MountArgs),
    /// Unmounts a volume on this machine, and gives its use back
    #[command(after_help = UNMOUNT_EXAMPLES)]
    Unmount {
        /// Its name or id
        #[arg(value_name = "VOLUME")]
        name: String,
        /// Only here, if it is mounted at several places
        path: Option<PathBuf>,
        #[command(flatten)]
        agent: AgentArgs,
    },
    /// Sets and removes annotations of a volume
    #[command(after_help = ANNOTATE_EXAMPLES)]
    Annotate {
        /// Its name or id
        #[arg(value_name = "VOLUME")]
        name: String,
        /// KEY=VALUE sets an annotation, KEY- removes it
        #[arg(value_name = "KEY=VALUE|KEY-", required = true, value_parser = annotation)]
        changes: Vec<Annotation>,
    },
}

#[derive(Debug, Clone, Args)]
pub(crate) struct MountArgs {
    /// Its name or id
    #[arg(value_name = "VOLUME")]
    pub(crate) name: String,
    /// Where; the last folder is made if it is missing
    pub(crate) path: PathBuf,
    /// ext4, xfs or btrfs [default: as it was made for, else ext4]
    #[arg(long)]
    pub(crate) filesystem: Option<Filesystem>,
    /// An option of mount, such as noatime; may be repeated
    #[arg(long, value_name = "OPTION")]
    pub(crate) option: Vec<String>,
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Mount it again whenever the machine starts
    #[arg(long)]
    pub(crate) persist: bool,
    #[command(flatten)]
    pub(crate) agent: AgentArgs,
}

/// The agent of this machine.
#[derive(Debug, Clone, Args)]
pub(crate) struct AgentArgs {
    /// The agent's data directory [default: node in the data directory of hotbay up]
    #[arg(long, value_name = "DIR")]
    pub(crate) agent_dir: Option<PathBuf>,
    /// The socket of its CSI Node service [default: csi.sock in that directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) csi: Option<PathBuf>,
}

/// What a volume is to be like.
#[derive(Debug, Clone, Args)]
pub(crate) struct WishArgs {
    /// How large, such as 10GiB or 500MB
    #[arg(long, value_parser = size, allow_hyphen_values = true)]
    pub(crate) size: u64,
    /// On a drive that is NVMe, SSD, HDD or File
    #[arg(long, value_name = "MEDIA")]
    pub(crate) media: Option<Media>,
    /// Whether other volumes may be on its drive: shared or exclusive
    #[arg(long, value_name = "SHARING", value_parser = ["shared", "exclusive"])]
    pub(crate) drive: Option<String>,
    /// On another drive than the others of its group: preferred or required
    #[arg(long, value_parser = ["none", "preferred", "required"], requires = "group")]
    pub(crate) spread: Option<String>,
    /// The group that spreads: volumes with the same key
    #[arg(long, value_name = "KEY", requires = "spread")]
    pub(crate) group: Option<String>,
    /// On a drive of this node, or of one of these
    #[arg(long, value_name = "NODE", value_delimiter = ',')]
    pub(crate) node: Vec<String>,
    /// What it is formatted with when it is first used: ext4, xfs or btrfs
    #[arg(long, value_name = "KIND")]
    pub(crate) filesystem: Option<Filesystem>,
    /// Another parameter of a storage class
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    pub(crate) parameters: Vec<(String, String)>,
}

impl WishArgs {
    /// All parameters by their names in a storage class. One that is given twice, and differently, is named.
    pub(crate) fn parameters(&self) -> Result<BTreeMap<String, String>, String> {
        let own = [
            ("media", self.media.map(|media| media.to_string())),
            ("drive", self.drive.clone()),
            ("spread", self.spread.clone()),
            ("spreadKey", self.group.clone()),
            ("fsType", self.filesystem.map(|kind| kind.to_string())),
        ];
        let own = own.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let mut all = BTreeMap::new();
        for (name, value) in own.chain(self.parameters.iter().cloned()) {
            let before = all.insert(name.clone(), value.clone());
            if before.is_some_and(|before| before != value) {
                return Err(name);
            }
        }
        Ok(all)
    }
}

/// A change of one annotation: its key, and the value; without one it is removed.
pub(crate) type Annotation = (String, Option<String>);

fn annotation(text: &str) -> Result<Annotation, String> {
    let change = match (text.split_once('='), text.strip_suffix('-')) {
        (Some((key, value)), _) => (key, Some(value.to_owned())),
        (None, Some(key)) => (key, None),
        (None, None) => return Err("KEY=VALUE sets it, KEY- removes it".to_owned()),
    };
    match change {
        ("", _) => Err("the key is missing: KEY=VALUE sets it, KEY- removes it".to_owned()),
        (key, value) => Ok((key.to_owned(), value)),
    }
}

fn parameter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is expected")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A size that a volume can have, in bytes.
fn size(text: &str) -> Result<u64, String> {
    let bytes = text
        .parse::<filter::Size>()
        .map_err(|_| "write it like 10GiB (powers of two) or 10GB (powers of ten)".to_owned())?;
    match Size::of(bytes.0) {
        _ if bytes.0 == 0 => Err("a volume has 1 MiB or more".to_owned()),
        Ok(_) => Ok(bytes.0),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_a_volume_can_have() {
        assert_eq!(size("10GiB"), Ok(10 << 30));
        assert_eq!(size("1"), Ok(1), "rounded up where it is made");
        assert_eq!(size("1.5g"), Ok(3 << 29));
        for bad in ["", "0", "0GiB", "-1", "-1GiB", "ten", "1e9", "8192PiB", "99999PB", "1 2"] {
            assert!(size(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn annotations_are_set_and_removed() {
        let set = |key: &str, value: &str| Ok((key.to_owned(), Some(value.to_owned())));
        assert_eq!(annotation("owner=shop"), set("owner", "shop"));
        assert_eq!(annotation("owner="), set("owner", ""));
        assert_eq!(annotation("a=b-"), set("a", "b-"));
        assert_eq!(annotation("owner-"), Ok(("owner".to_owned(), None)));
        for bad in ["", "owner", "=shop", "-"] {
            assert!(annotation(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn options_and_parameters_say_one_thing() {
        let wish = |parameters: &[(&str, &str)]| WishArgs {
            size: 1,
            media: Some(Media::Nvme),
            drive: None,
            spread: Some("required".to_owned()),
            group: Some("db".to_owned()),
            node: Vec::new(),
            filesystem: Some(Filesystem::Xfs),
            parameters: parameters.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect(),
        };
        let all = wish(&[("erase", "required"), ("media", "NVMe")]).parameters().unwrap();
        let all: Vec<_> = all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        let expected = [
            ("erase", "required"),
            ("fsType", "xfs"),
            ("media", "NVMe"),
            ("spread", "required"),
            ("spreadKey", "db"),
        ];
        assert_eq!(all, expected);
        assert_eq!(wish(&[("media", "HDD")]).parameters(), Err("media".to_owned()));
    }
}

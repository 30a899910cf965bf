//! `hotbay node scan`: what the agent of this machine would see, without any registry.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hotbay_api::kinds::{API_VERSION, Drive};
use hotbay_core::device::{Denied, Observed};
use hotbay_core::ids::ClusterId;
use hotbay_host::RuntimeDir;
use hotbay_host::scan::check_pattern;
use hotbay_host::worker::{Limits, Workers};
use hotbay_node::{Place, cluster_of, survey};
use serde_json::json;

use super::{RunError, descriptors};
use crate::cli::Format;
use crate::client::rows::{self, Seen};
use crate::client::table::Widths;
use crate::client::{Exit, Screen, plain, words};
use crate::config::{ConfigArgs, Given, Settings};

pub(crate) const EXAMPLES: &str = "\
Each device is opened for reading, for a moment, and never written to. Without root it is shown as far as sysfs tells.
Exits with 4 if what --drives names is not there.

Examples:
  hotbay node scan                     every drive of this machine, and why one cannot be added
  hotbay node scan --drives '/dev/loop*' -o json";

#[derive(Debug, Args)]
pub(crate) struct ScanArgs {
    /// What to look at: paths or patterns, or BAY=PATH. All drives of the machine if left out, or what the settings say
    #[arg(long, value_name = "GLOB", num_args = 1..)]
    drives: Vec<String>,
    /// How to print it. json and yaml have the same objects as hotbay get drives, as far as they go
    #[arg(short, long, value_name = "FORMAT")]
    output: Option<Format>,
    /// The agent's folder, which knows the cluster that the machine belongs to [default: as for hotbay node]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn scan(args: ScanArgs) -> Result<ExitCode, RunError> {
    let ScanArgs { drives, output, data_dir, config } = args;
    let named = !drives.is_empty();
    let settings = config.settings(Given { drives, ..Given::default() })?;
    let places = places(&settings)?;
    // A user without a home has no such folder either.
    let ours = settings.folder("node", data_dir).ok().as_deref().and_then(cluster_of);
    let seen = look(&places, ours)?;
    let mut screen = Screen::new();
    print(&mut screen, &objects(&settings, &seen, ours), output)?;
    if seen.is_empty() {
        screen.aside(nothing(named));
        return Ok(if named { Exit::NotFound } else { Exit::Done }.into());
    }
    if let Some(note) = unseen(&seen) {
        screen.aside(&note);
    }
    Ok(Exit::Done.into())
}

fn places(settings: &Settings) -> Result<Vec<Place>, RunError> {
    let places = settings.drives.value.iter().map(|text| {
        let Ok(place) = text.parse::<Place>();
        check_pattern(&place.pattern)?;
        Ok(place)
    });
    places.collect()
}

fn look(places: &[Place], ours: Option<ClusterId>) -> anyhow::Result<Vec<Observed>> {
    descriptors::allow_many();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let workers = Workers::of_this_program(RuntimeDir::of_this_user()?, Limits::default());
    let seen = runtime.block_on(survey(&workers, places, ours));
    // A child that hangs must not keep the process.
    runtime.shutdown_background();
    Ok(seen?)
}

fn objects(settings: &Settings, seen: &[Observed], ours: Option<ClusterId>) -> Vec<Seen> {
    let node = settings.name().map(|name| name.to_string()).unwrap_or_default();
    let object = |observed: &Observed| {
        let mut drive = hotbay_control::device(&node, observed);
        if ours.is_none() {
            drive.status.denied.iter_mut().for_each(|reason| {
                if let Denied::ForeignCluster { cluster } = reason.denied {
                    reason.message = format!("it carries the label of a cluster ({cluster})");
                }
            });
        }
        let is_ours = observed.label.is_some_and(|label| Some(label.cluster) == ours);
        Seen { drive, is_ours }
    };
    seen.iter().map(object).collect()
}

fn print(screen: &mut Screen, seen: &[Seen], format: Option<Format>) -> anyhow::Result<()> {
    let drives: Vec<&Drive> = seen.iter().map(|seen| &seen.drive).collect();
    let list = || json!({ "apiVersion": API_VERSION, "kind": "DriveList", "items": drives });
    match format {
        Some(Format::Json) => screen.line(&serde_json::to_string_pretty(&list())?)?,
        Some(Format::Yaml) => screen.print(&serde_saphyr::to_string(&list())?)?,
        Some(Format::Name) => {
            for drive in drives {
                screen.line(&plain(&drive.metadata.name))?;
            }
        }
        None | Some(Format::Wide) if seen.is_empty() => {}
        None | Some(Format::Wide) => {
            let table = rows::seen(seen, format.is_some());
            let widths = match screen.size() {
                Some((columns, _)) if format.is_none() => table.fitted(columns),
                _ => table.natural(&Widths::new()),
            };
            let mut lines = vec![table.title_line(&widths)];
            lines.extend(table.row_lines(&widths, screen.has_colour()));
            screen.print(&(lines.join("\n") + "\n"))?;
        }
    }
    Ok(())
}

fn nothing(named: bool) -> &'static str {
    if named {
        "Nothing that could be a drive is there: a block device, a loop device over something, a plain file.\n"
    } else {
        "This machine shows no drives. Loop devices and files are seen when --drives names them.\n"
    }
}

/// What could not be looked at, and what to do.
fn unseen(seen: &[Observed]) -> Option<String> {
    let is_unseen = |observed: &&Observed| {
        observed.denied.iter().any(|denied| matches!(denied, Denied::Unreadable { .. }))
    };
    let count = seen.iter().filter(is_unseen).count();
    let next = if rustix::process::geteuid().is_root() {
        "the last column says why"
    } else {
        "root can see what is on them"
    };
    (count > 0).then(|| {
        let devices = words::count(seen.len(), "device");
        format!("{count} of {devices} could not be looked at: {next}\n")
    })
}

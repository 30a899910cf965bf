//! When objects became what they are: one `kubectl get --watch` per kind tells of every change, and the moment at which
//! its line arrives is noted. So nothing is asked again and again while something is measured.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use hotbay_rig::Kubectl;

/// Objects whose changes are noted; a persistent volume goes by the name of its claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Claim,
    Pod,
    Volume,
}

/// What an object came to be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Became {
    /// It is there.
    Made,
    /// Its status says so.
    Phase(&'static str),
    Gone,
}

type Moments = HashMap<(Kind, String, Became), Instant>;

/// The phases that anybody asks for.
const PHASES: [&str; 2] = ["Bound", "Running"];

#[derive(Debug)]
pub(super) struct Timeline {
    noted: Arc<(Mutex<Moments>, Condvar)>,
    watches: Vec<Child>,
}

impl Timeline {
    /// Notes everything from now on.
    pub(super) fn start(kubectl: &Kubectl) -> anyhow::Result<Self> {
        let mut this = Self { noted: Arc::default(), watches: Vec::new() };
        for (kind, plural, name) in [
            (Kind::Claim, "pvc", "metadata.name"),
            (Kind::Pod, "pods", "metadata.name"),
            (Kind::Volume, "pv", "spec.claimRef.name"),
        ] {
            let columns =
                format!(r#"{{.type}} {{.object.{name}}} {{.object.status.phase}}{{"\n"}}"#);
            let mut watch = kubectl.command();
            watch.args(["--request-timeout=0", "get", plural, "--watch", "--output-watch-events"]);
            watch.arg(format!("--output=jsonpath={columns}"));
            watch.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut child = watch.spawn()?;
            let told = child.stdout.take().context("its output is a pipe")?;
            this.watches.push(child);
            let noted = Arc::clone(&this.noted);
            // Ends with the watch.
            std::thread::spawn(move || {
                for line in BufReader::new(told).lines().map_while(Result::ok) {
                    note(&noted, kind, &line);
                }
            });
        }
        Ok(this)
    }

    /// When an object became that, as soon as it has.
    pub(super) fn when(
        &self,
        kind: Kind,
        name: &str,
        became: Became,
        limit: Duration,
    ) -> anyhow::Result<Instant> {
        let wanted = (kind, name.to_owned(), became);
        let (noted, changed) = &*self.noted;
        let (moments, _) = changed
            .wait_timeout_while(lock(noted), limit, |moments| !moments.contains_key(&wanted))
            .unwrap_or_else(PoisonError::into_inner);
        let moment = moments.get(&wanted).copied();
        moment.with_context(|| format!("not within {limit:?}: {wanted:?}"))
    }
}

fn note((moments, changed): &(Mutex<Moments>, Condvar), kind: Kind, line: &str) {
    let now = Instant::now();
    let mut words = line.split(' ');
    let (Some(event), Some(name)) = (words.next(), words.next()) else { return };
    let phase = words.next().unwrap_or_default();
    let mut moments = lock(moments);
    let mut add = |became| {
        moments.entry((kind, name.to_owned(), became)).or_insert(now);
    };
    if event == "DELETED" {
        add(Became::Gone);
    } else {
        add(Became::Made);
        if let Some(phase) = PHASES.into_iter().find(|known| *known == phase) {
            add(Became::Phase(phase));
        }
    }
    changed.notify_all();
}

fn lock(moments: &Mutex<Moments>) -> MutexGuard<'_, Moments> {
    moments.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Timeline {
    fn drop(&mut self) {
        for watch in &mut self.watches {
            watch.kill().unwrap_or_default();
            watch.wait().ok();
        }
    }
}

//! The bare things beside the steps of a life: a write that is synced for what must be durable, an empty call for what
//! is decided in the registry, and the machine's own tools for what the agent does.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use hotbay_api::csi::ProbeRequest;

use super::life::{Client, Step, USUAL_BYTES};
use super::rig::Rig;
use super::{gathered, shares};

/// What is written and synced: a page, the least that a store or a label writes.
const WRITTEN: [u8; 4096] = [7; 4096];
/// Another may take the loop device that was free a moment ago.
const TRIES: usize = 20;

/// What is measured beside a step.
pub(super) fn name(step: Step) -> &'static str {
    match step {
        Step::Create | Step::Delete => "4 KiB written and synced",
        Step::Publish | Step::Unpublish => "an empty gRPC call",
        Step::Stage => "losetup, mkfs.ext4, mount",
        Step::Mount => "mount --bind",
        Step::Unmount => "umount",
        Step::Unstage => "umount, losetup -d",
    }
}

/// A filesystem in a file, of the size of a volume, made by hand.
#[derive(Debug)]
pub(super) struct Peer {
    file: PathBuf,
    staging: PathBuf,
    target: PathBuf,
    device: String,
}

impl Peer {
    pub(super) fn new(rig: &Rig, number: usize) -> Self {
        let path = |what: &str| rig.folder().join(format!("bare-{number}-{what}"));
        let device = String::new();
        Self { file: path("file"), staging: path("staging"), target: path("target"), device }
    }

    /// What is beside one step; made ready before the time runs.
    fn step(&mut self, step: Step) -> anyhow::Result<Duration> {
        if step == Step::Create {
            File::create(&self.file)?.set_len(USUAL_BYTES)?;
            std::fs::create_dir_all(&self.staging)?;
            std::fs::create_dir_all(&self.target)?;
        }
        let began = Instant::now();
        match step {
            Step::Create | Step::Delete => {
                let file = File::options().write(true).open(&self.file)?;
                file.write_all_at(&WRITTEN, 0)?;
                file.sync_data()?;
            }
            Step::Stage => {
                self.device = loop_device(&self.file)?;
                run(Command::new("mkfs.ext4").args(["-q", &self.device]))?;
                run(Command::new("mount").arg(&self.device).arg(&self.staging))?;
            }
            Step::Mount => {
                let (staging, target) = (&self.staging, &self.target);
                run(Command::new("mount").arg("--bind").arg(staging).arg(target))?;
            }
            Step::Unmount => drop(run(Command::new("umount").arg(&self.target))?),
            Step::Unstage => {
                run(Command::new("umount").arg(&self.staging))?;
                run(Command::new("losetup").args(["-d", &self.device]))?;
            }
            Step::Publish | Step::Unpublish => {}
        }
        let took = began.elapsed();
        if step == Step::Delete {
            std::fs::remove_file(&self.file)?;
        }
        Ok(took)
    }
}

/// As for volumes: one step of all of them, each client with its share.
pub(super) async fn one_step(
    clients: &[Client],
    peers: Vec<Peer>,
    step: Step,
) -> anyhow::Result<(Vec<Duration>, Vec<Peer>)> {
    let work = shares(clients, peers).into_iter().map(move |(client, peers)| async move {
        if matches!(step, Step::Publish | Step::Unpublish) {
            return empty_calls(client, peers).await;
        }
        let taken = tokio::task::spawn_blocking(move || {
            let mut peers = peers;
            let times = peers.iter_mut().map(|peer| peer.step(step)).collect::<Result<_, _>>()?;
            anyhow::Ok((times, peers))
        });
        taken.await?
    });
    gathered(work).await
}

async fn empty_calls(
    mut client: Client,
    peers: Vec<Peer>,
) -> anyhow::Result<(Vec<Duration>, Vec<Peer>)> {
    let mut times = Vec::new();
    for _ in &peers {
        let began = Instant::now();
        client.identity.probe(ProbeRequest {}).await?;
        times.push(began.elapsed());
    }
    Ok((times, peers))
}

/// A loop device over a file.
pub(super) fn loop_device(file: &Path) -> anyhow::Result<String> {
    let mut tries = 0;
    loop {
        tries += 1;
        match run(Command::new("losetup").args(["--find", "--show"]).arg(file)) {
            Ok(said) => return Ok(said.trim().to_owned()),
            Err(error) if tries == TRIES => return Err(error),
            Err(_) => {}
        }
    }
}

/// Runs a program that must end well; gives what it said.
pub(super) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{command:?}: {}", error.trim());
    Ok(String::from_utf8(output.stdout)?)
}

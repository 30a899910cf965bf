//! Mounts that come back after a restart of the machine: a file for each in the agent's folder. A person's program
//! writes and removes them ([`PersistedMount::keep`], [`PersistedMount::forget`]); the agent brings them back at its
//! start, registry or not, as soon as their drives are open.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hotbay_core::ids::VolumeId;
use hotbay_csi::platform::{
    Access, AccessMode, Failure, NodePlatform, PublishVolume, StageVolume, Texts,
};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::platform::Platform;

/// The folder, in that of the agent.
const FOLDER: &str = "mounts";
/// How many there may be: each is a file, and each is tried again and again.
const MOST: usize = 10_000;
/// The pauses between tries, while a drive is not open.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A volume that is mounted whenever the machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PersistedMount {
    pub volume: VolumeId,
    pub staging_path: PathBuf,
    pub target_path: PathBuf,
    /// Empty: as the class says.
    pub fs_type: String,
    pub flags: Vec<String>,
    pub read_only: bool,
    pub volume_context: Texts,
}

/// Why a mount is not kept, or still is.
#[derive(Debug, Error)]
pub enum PersistError {
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl PersistedMount {
    /// Has the agent with this folder bring it back from now on.
    pub fn keep(&self, agent_folder: &Path) -> Result<(), PersistError> {
        let path = place(agent_folder, self.volume);
        let failed = |source| PersistError::Write { path: path.clone(), source };
        let folder = agent_folder.join(FOLDER);
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let text = serde_json::to_vec_pretty(self).expect("texts and paths become JSON");
        let unfinished = path.with_extension("new");
        std::fs::write(&unfinished, text).map_err(failed)?;
        std::fs::File::open(&unfinished).and_then(|file| file.sync_all()).map_err(failed)?;
        std::fs::rename(&unfinished, &path).map_err(failed)?;
        std::fs::File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// It is not brought back any more. One that never was is fine.
    pub fn forget(agent_folder: &Path, volume: VolumeId) -> Result<(), PersistError> {
        let path = place(agent_folder, volume);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(PersistError::Write { path, source })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn place(agent_folder: &Path, volume: VolumeId) -> PathBuf {
    agent_folder.join(FOLDER).join(format!("{volume}.json"))
}

/// All of them that can be read. One that cannot is told, and left.
fn all(agent_folder: &Path) -> Vec<PersistedMount> {
    let Ok(files) = std::fs::read_dir(agent_folder.join(FOLDER)) else { return Vec::new() };
    let paths = files.filter_map(Result::ok).map(|file| file.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|end| end == "json")).take(MOST).collect();
    paths.sort();
    let read = |path: &PathBuf| {
        let text = std::fs::read(path).map_err(|error| error.to_string())?;
        serde_json::from_slice(&text).map_err(|error| error.to_string())
    };
    let told = |path: &PathBuf| match read(path) {
        Ok(mount) => Some(mount),
        Err(error) => {
            tracing::error!("{} is no mount to be brought back: {error}", path.display());
            None
        }
    };
    paths.iter().filter_map(told).collect()
}

/// Brings back what was kept, each by itself: one dead drive delays no other.
pub(crate) fn bring_back(agent_folder: &Path, platform: &Platform) {
    for mount in all(agent_folder) {
        let (platform, folder) = (platform.clone(), agent_folder.to_owned());
        tokio::spawn(async move {
            let mut pause = FIRST_PAUSE;
            let mut told = String::new();
            // Until it is there, or is not to come back any more.
            while place(&folder, mount.volume).exists() {
                match mounted(&platform, &mount).await {
                    Ok(()) => {
                        let (volume, target) = (mount.volume, mount.target_path.display());
                        tracing::info!(%volume, "mounted again at {target}");
                        return;
                    }
                    Err(failure) if failure.message != told => {
                        tracing::warn!(volume = %mount.volume, "not mounted yet: {failure}");
                        told = failure.message;
                    }
                    Err(_) => {}
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }
}

async fn mounted(platform: &Platform, mount: &PersistedMount) -> Result<(), Failure> {
    let PersistedMount {
        volume,
        staging_path,
        target_path,
        fs_type,
        flags,
        read_only,
        volume_context,
    } = mount.clone();
    let access = Access::Mount { fs_type, flags };
    let mode = AccessMode::SingleNodeMultiWriter;
    // Under whichever use is granted now: the publish context of before may be an older one's.
    let publish_context = Texts::new();
    platform
        .stage(StageVolume {
            volume,
            staging_path: staging_path.clone(),
            access: access.clone(),
            mode,
            publish_context: publish_context.clone(),
            volume_context: volume_context.clone(),
        })
        .await?;
    platform
        .publish(PublishVolume {
            volume,
            staging_path,
            target_path,
            access,
            mode,
            readonly: read_only,
            publish_context,
            volume_context,
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_and_what_is_not_a_mount_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let mount = |bits| PersistedMount {
            volume: VolumeId::from_bits(bits),
            staging_path: "/stage".into(),
            target_path: "/srv/a b\nc".into(),
            fs_type: "xfs".into(),
            flags: vec!["noatime".into()],
            read_only: false,
            volume_context: Texts::new(),
        };
        assert_eq!(all(folder.path()), []);
        mount(2).keep(folder.path()).unwrap();
        mount(1).keep(folder.path()).unwrap();
        std::fs::write(folder.path().join(FOLDER).join("x.json"), "{").unwrap();
        assert_eq!(all(folder.path()), [mount(1), mount(2)]);
        PersistedMount::forget(folder.path(), VolumeId::from_bits(1)).unwrap();
        PersistedMount::forget(folder.path(), VolumeId::from_bits(1)).unwrap();
        assert_eq!(all(folder.path()), [mount(2)]);
    }
}

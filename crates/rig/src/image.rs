//! Container images without a registry: an archive as `docker save` writes it, which `ctr images import` reads. Made
//! from files of this machine; nobody is asked for anything.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;

use crate::error::RigError;
use crate::programs::fetched;
use crate::tar::Tar;

/// What containerd keeps a pod's namespaces open with, and what pods of tests run: busybox.
pub const PAUSE: &str = "docker.io/local/pause:1";
pub const BUSYBOX: &str = "docker.io/local/busybox:1";

/// Where programs are looked for in an image of which nobody says it.
const PATH: &str = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";

/// One image: its name, what is in it, and what it runs.
#[derive(Debug)]
pub struct Image {
    name: String,
    layer: Tar,
    entrypoint: Vec<String>,
    arguments: Vec<String>,
    variables: Vec<String>,
}

impl Image {
    /// An empty one. `name` is what pods call it, with its host and tag: `docker.io/local/hotbay:1`.
    pub fn new(name: &str, entrypoint: &[&str]) -> Self {
        let entrypoint = entrypoint.iter().map(|&word| word.to_owned()).collect();
        Self {
            name: name.to_owned(),
            layer: Tar::default(),
            entrypoint,
            arguments: Vec::new(),
            variables: vec![PATH.to_owned()],
        }
    }

    /// An empty one that runs what this Containerfile says, with its variables; the files are put into it here. What it
    /// says beyond that is refused: the image would be another than people build.
    pub fn as_in(name: &str, containerfile: &Path) -> Result<Self, RigError> {
        let text = fs::read_to_string(containerfile);
        let text = text.map_err(RigError::file("read", containerfile))?;
        let mut image = Self::new(name, &[]);
        image.variables.clear();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.split_once(' ') {
                Some(("FROM", "scratch") | ("COPY", ". /")) => {}
                Some(("ENV", variable)) => image.variables.push(variable.to_owned()),
                Some(("ENTRYPOINT", words)) => {
                    let words = serde_json::from_str(words).map_err(io::Error::from);
                    image.entrypoint = words.map_err(RigError::file("take from", containerfile))?;
                }
                Some(_) | None => {
                    let source = io::Error::other(format!("not known here: {line}"));
                    return Err(RigError::file("make an image as in", containerfile)(source));
                }
            }
        }
        Ok(image)
    }

    /// What it is given where a pod gives no arguments.
    pub fn arguments(&mut self, words: &[&str]) {
        self.arguments = words.iter().map(|&word| word.to_owned()).collect();
    }

    /// Adds a file of this machine that can be run, at this path without a slash at its beginning.
    pub fn program(&mut self, path: &str, source: &Path) -> Result<(), RigError> {
        let bytes = fs::read(source).map_err(RigError::file("read", source))?;
        self.layer.file(path, 0o755, &bytes).map_err(RigError::file("put into an image", source))
    }

    pub fn link(&mut self, path: &str, to: &str) -> Result<(), RigError> {
        self.layer.link(path, to).map_err(RigError::file("put into an image", path))
    }

    pub fn folder(&mut self, path: &str) -> Result<(), RigError> {
        self.layer.folder(path).map_err(RigError::file("put into an image", path))
    }

    /// Adds everything below a folder of this machine, as it is.
    pub fn tree(&mut self, folder: &Path) -> Result<(), RigError> {
        self.subtree(folder, "")
    }

    fn subtree(&mut self, folder: &Path, below: &str) -> Result<(), RigError> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut entries = entries.map_err(RigError::file("list", folder))?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let source = entry.path();
            let path = format!("{below}{}", entry.file_name().to_string_lossy());
            let found = entry.metadata().map_err(RigError::file("put into an image", &source))?;
            if found.is_dir() {
                self.folder(&path)?;
                self.subtree(&source, &format!("{path}/"))?;
            } else if found.is_symlink() {
                let to =
                    fs::read_link(&source).map_err(RigError::file("put into an image", &source))?;
                self.link(&path, &to.to_string_lossy())?;
            } else {
                let bytes =
                    fs::read(&source).map_err(RigError::file("put into an image", &source))?;
                let mode = found.permissions().mode() & 0o777;
                self.layer
                    .file(&path, mode, &bytes)
                    .map_err(RigError::file("put into an image", &source))?;
            }
        }
        Ok(())
    }

    /// Writes the archive that `ctr images import` takes.
    pub fn write(self, archive: &Path) -> Result<(), RigError> {
        let failed = || RigError::file("write the image", archive);
        let bytes = self.archive().map_err(failed())?;
        fs::write(archive, bytes).map_err(failed())
    }

    fn archive(self) -> io::Result<Vec<u8>> {
        let layer = self.layer.finish();
        let hash: String =
            digest(&SHA256, &layer).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint, "Cmd": self.arguments,
                "Env": self.variables,
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{hash}")]},
        });
        let manifest = json!([{
            "Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"],
        }]);
        let mut archive = Tar::default();
        archive.file("config.json", 0o644, config.to_string().as_bytes())?;
        archive.file("layer.tar", 0o644, &layer)?;
        archive.file("manifest.json", 0o644, manifest.to_string().as_bytes())?;
        Ok(archive.finish())
    }
}

/// An image with all that busybox can do, to which more can be added.
pub fn busybox(name: &str, entrypoint: &[&str]) -> Result<Image, RigError> {
    let busybox = fetched("bin/busybox")?;
    let listed = Command::new(&busybox).arg("--list").output();
    let listed = listed.map_err(RigError::file("ask for its programs", &busybox))?;
    let mut image = Image::new(name, entrypoint);
    for place in ["bin", "etc", "proc", "root", "sys", "tmp", "var"] {
        image.folder(place)?;
    }
    image.program("bin/busybox", &busybox)?;
    let applets = String::from_utf8_lossy(&listed.stdout).into_owned();
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        image.link(&format!("bin/{applet}"), "busybox")?;
    }
    Ok(image)
}

/// The image of every pod of the rig's own, under both names.
pub(crate) fn write_own(folder: &Path) -> Result<Vec<std::path::PathBuf>, RigError> {
    let names = [
        (PAUSE, "pause.tar", ["/bin/busybox", "sleep", "2147483647"].as_slice()),
        (BUSYBOX, "busybox.tar", &["/bin/sh"]),
    ];
    let mut archives = Vec::new();
    for (name, file, entrypoint) in names {
        let archive = folder.join(file);
        busybox(name, entrypoint)?.write(&archive)?;
        archives.push(archive);
    }
    Ok(archives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_holds_layer_config_and_manifest() {
        let place = tempfile::tempdir().unwrap();
        let source = place.path().join("program");
        fs::write(&source, "#!/bin/sh\n").unwrap();
        let mut image = Image::new("docker.io/local/x:1", &["/bin/x"]);
        image.arguments(&["-v"]);
        image.folder("bin").unwrap();
        image.program("bin/x", &source).unwrap();
        image.link("bin/y", "x").unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join("etc/deep")).unwrap();
        fs::write(tree.join("etc/deep/settings"), "one").unwrap();
        std::os::unix::fs::symlink("deep", tree.join("etc/link")).unwrap();
        image.tree(&tree).unwrap();
        let archive = place.path().join("x.tar");
        image.write(&archive).unwrap();
        let tar = |args: &[&str]| {
            let output = Command::new("tar").current_dir(place.path()).args(args).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(tar(&["-tf", "x.tar"]), "config.json\nlayer.tar\nmanifest.json\n");
        tar(&["-xf", "x.tar"]);
        let listed = tar(&["-tvf", "layer.tar"]);
        assert!(listed.contains("drwxr-xr-x") && listed.contains("-rwxr-xr-x"), "{listed}");
        assert!(listed.contains("bin/y -> x"), "{listed}");
        assert!(listed.contains("-rw-r--r--") && listed.contains("etc/deep/settings"), "{listed}");
        assert!(listed.contains("etc/link -> deep"), "{listed}");
        let config = fs::read_to_string(place.path().join("config.json")).unwrap();
        let sum = Command::new("sha256sum").arg(place.path().join("layer.tar")).output().unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert!(config.contains(sum.split(' ').next().unwrap()), "{config} {sum}");
        assert!(config.contains(r#""Cmd":["-v"]"#), "{config}");
    }

    /// The story: tests ran an image with another PATH than the one that people build, so that a program in a place of
    /// the one alone would not have been missed.
    #[test]
    fn an_image_has_what_its_containerfile_says() {
        let ours = crate::chart::deploy().join("Containerfile");
        let image = Image::as_in("docker.io/local/x:1", &ours).unwrap();
        assert_eq!(image.entrypoint, ["/usr/bin/hotbay"]);
        assert_eq!(image.variables, ["PATH=/usr/sbin:/usr/bin"]);
        let config = String::from_utf8(image.archive().unwrap()).unwrap();
        assert!(config.contains(r#""Env":["PATH=/usr/sbin:/usr/bin"]"#), "{config}");

        let place = tempfile::tempdir().unwrap();
        let other = place.path().join("Containerfile");
        for line in ["FROM debian", "USER 7", "ENTRYPOINT hotbay", "COPY . /srv"] {
            fs::write(&other, format!("FROM scratch\n{line}\n")).unwrap();
            assert!(Image::as_in("docker.io/local/x:1", &other).is_err(), "{line}");
        }
    }
}

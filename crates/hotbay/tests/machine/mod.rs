//! Parts of a machine that fail on request, for root: a small disk that is full or read-only, a drive that hangs.
//! Each is taken apart with its value.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster::{Part, eventually};

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("this test needs {program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A small disk in memory.
pub(crate) struct Tmpfs {
    pub(crate) path: PathBuf,
}

impl Tmpfs {
    pub(crate) fn at(path: PathBuf, size: &str) -> Self {
        std::fs::create_dir(&path).unwrap();
        let options = format!("size={size},mode=700");
        run("mount", &["-t", "tmpfs", "-o", &options, "hotbay-test", path.to_str().unwrap()]);
        Self { path }
    }

    /// Leaves no byte free.
    pub(crate) fn fill(&self) {
        self.fill_but(0);
    }

    /// Leaves so many bytes free.
    pub(crate) fn fill_but(&self, bytes: u64) {
        let mut filler = std::fs::File::create(self.filler()).unwrap();
        while filler.write(&[1; 4096]).is_ok_and(|written| written > 0) {}
        let filled = filler.metadata().unwrap().len();
        filler.set_len(filled - bytes).unwrap();
    }

    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    pub(crate) fn make_read_only(&self, read_only: bool) {
        let options = if read_only { "remount,ro" } else { "remount,rw" };
        // Refused while a file is open for writing, as one is for a moment when a record is being saved.
        eventually("the disk is remounted", || {
            let mut mount = Command::new("mount");
            mount.args(["-o", options]).arg(&self.path).stderr(Stdio::null());
            mount.status().unwrap().success().then_some(())
        });
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // Lazily: whoever still has a file on it is killed by the test right after.
        Command::new("umount").arg("-l").arg(&self.path).status().ok();
    }
}

/// A drive over nbdkit, nbdfuse and a loop device: when nbdkit is stopped, everything on it waits in the kernel.
pub(crate) struct Hanging {
    pub(crate) device: String,
    mount: PathBuf,
    server: Part,
    fuse: Part,
    _dir: tempfile::TempDir,
}

impl Hanging {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nbd.sock");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let start = |program: &str, arguments: &[&str]| {
            let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
            Part::of(child.unwrap_or_else(|error| panic!("this test needs {program}: {error}")))
        };
        let server = start("nbdkit", &["-f", "-U", &text(&socket), "memory", "64M"]);
        eventually("nbdkit listens", || socket.exists().then_some(()));
        let mount = dir.path().join("fuse");
        std::fs::create_dir(&mount).unwrap();
        let file = mount.join("drive");
        let fuse = start("nbdfuse", &[&text(&file), "--unix", &text(&socket)]);
        eventually("nbdfuse shows the drive", || file.exists().then_some(()));
        let device = run("losetup", &["-f", "--show", &text(&file)]);
        Self { device, mount, server, fuse, _dir: dir }
    }

    /// Stopped, reads and writes of the drive hang.
    pub(crate) fn server(&self) -> u32 {
        self.server.pid()
    }

    /// Stopped, every question to the filesystem below the drive hangs too.
    pub(crate) fn filesystem(&self) -> u32 {
        self.fuse.pid()
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        go_on(self.server.pid());
        go_on(self.fuse.pid());
        Command::new("losetup").args(["-d", &self.device]).status().ok();
        Command::new("umount").arg("-l").arg(&self.mount).status().ok();
    }
}

/// A stopped process that goes on when the value is dropped: also when a test fails, before anything is taken apart
/// that would wait for it.
pub(crate) struct Goes(pub(crate) u32);

impl Drop for Goes {
    fn drop(&mut self) {
        go_on(self.0);
    }
}

/// Whether or not the process is still there: nothing may fail while a test is taken apart.
fn go_on(pid: u32) {
    Command::new("kill").args(["-CONT", &pid.to_string()]).stderr(Stdio::null()).status().ok();
}

/// A loop drive that can be pulled and plugged in again: a link that leads to the loop device of the moment. The number
/// of a loop device that was given up may be somebody else's at once, so it is never asked for again.
pub(crate) struct Pluggable {
    pub(crate) place: PathBuf,
    pub(crate) device: Option<String>,
    file: PathBuf,
}

impl Pluggable {
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let file = dir.join(format!("{name}.img"));
        std::fs::File::create_new(&file).unwrap().set_len(64 << 20).unwrap();
        let mut this = Self { place: dir.join(name), device: None, file };
        this.plug();
        this
    }

    /// Gives the path of the new loop device.
    pub(crate) fn plug(&mut self) -> String {
        let device = run("losetup", &["-f", "--show", self.file.to_str().unwrap()]);
        std::os::unix::fs::symlink(&device, &self.place).unwrap();
        self.device = Some(device.clone());
        device
    }

    pub(crate) fn pull(&mut self) {
        std::fs::remove_file(&self.place).unwrap();
        run("losetup", &["-d", &self.device.take().expect("it is plugged in")]);
    }
}

impl Drop for Pluggable {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            Command::new("losetup").args(["-d", device]).status().ok();
        }
    }
}

//! The temporary folder of one run of a tier. Its steps have it as TMPDIR, and nobody else has: so what is in it, is
//! mounted in it or is attached over a file in it was left by them, and is removed when they have ended. A step that
//! was killed, because the tier's time was up or by Ctrl-C, could not do so itself. `leftovers` is the caller.

use std::env;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::mount::{UnmountFlags, unmount};

use crate::leftovers::{bound_loops, mount, mountinfo};
use crate::tier::{Step, Work};

/// The file that only the folder of a rig has; the crate `hotbay-rig` makes it.
const MARK: &str = "hotbay-rig";
/// So deep the folder of a rig may be: some tests have it in a temporary folder of their own.
const DEPTH_MAX: u32 = 2;
/// What was killed ends, and its namespaces are taken apart, on the kernel's own time.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// In the temporary folder of this process. The name is short, because sockets are made in it; and it is one that
    /// nobody has in a container either: the kernel tells of a file there by the same path.
    pub(crate) fn make() -> anyhow::Result<Self> {
        let random = fs::read_to_string("/proc/sys/kernel/random/uuid")
            .context("cannot make up the name of a temporary folder")?;
        let above = env::temp_dir();
        // As the kernel tells of it.
        let above = above
            .canonicalize()
            .with_context(|| format!("cannot find the temporary folder {}", above.display()))?;
        let path = above.join(format!("hotbay-{}", &random[..8]));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self { path })
    }

    /// Has the steps use it. Those that only set up do without: apt has users of its own, who cannot enter it.
    pub(crate) fn give(&self, steps: &mut [Step]) {
        for step in steps {
            match &mut step.work {
                Work::Child(command) | Work::Beside(command) => {
                    command.env("TMPDIR", &self.path);
                }
                Work::Setup(_) | Work::Check(_) | Work::LeftOut(_) => {}
            }
        }
    }

    /// Removes it with all that is left in it, and says what that was. `rig` is the rig's program.
    pub(crate) fn clear(&self, rig: &Path) -> anyhow::Result<()> {
        for _ in 1..TRIES {
            let Err(error) = self.try_clear(rig) else { return Ok(()) };
            println!("{error:#}; trying again in {} s", PAUSE.as_secs());
            sleep(PAUSE);
        }
        self.try_clear(rig)
    }

    fn try_clear(&self, rig: &Path) -> anyhow::Result<()> {
        for place in self.mounts()? {
            let unmounted = unmount(&place, UnmountFlags::DETACH).map_err(anyhow::Error::from);
            tell(&format!("mount {place}"), unmounted);
        }
        for folder in self.rigs() {
            self.keep_logs(&folder);
            let mut down = Command::new(rig);
            down.args(["down", "--dir"]).arg(&folder);
            tell(&format!("rig in {}", folder.display()), run(down));
        }
        for device in self.loops()?.iter().rev() {
            let mut detach = Command::new("losetup");
            detach.args(["--detach", device]);
            tell(&format!("loop device {device}"), run(detach));
        }
        let rigs = self.rigs().into_iter().map(|rig| rig.display().to_string());
        let still: Vec<_> = self.mounts()?.into_iter().chain(rigs).collect();
        // Never into what is mounted: it may be anybody's.
        ensure!(still.is_empty(), "cannot be removed: {}", still.join(", "));
        let rest: Vec<_> = folders(&self.path).iter().map(|it| it.display().to_string()).collect();
        fs::remove_dir_all(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))?;
        rest.iter().for_each(|folder| tell(&format!("folder {folder}"), Ok(())));
        Ok(())
    }

    /// Where something is mounted in here or from here, the innermost first.
    fn mounts(&self) -> anyhow::Result<Vec<String>> {
        Ok(mounts_of(&mountinfo()?, &self.path, &self.loops()?))
    }

    fn loops(&self) -> anyhow::Result<Vec<String>> {
        loops_over(Path::new("/sys/block"), &self.path)
    }

    fn rigs(&self) -> Vec<PathBuf> {
        rigs_in(&self.path, DEPTH_MAX)
    }

    /// They may be all that tells why something took too long.
    fn keep_logs(&self, rig: &Path) {
        let name = rig.strip_prefix(&self.path).unwrap_or(rig).display().to_string();
        let kept = self.path.with_extension("logs");
        let place = kept.join(name.replace('/', "-"));
        let moved = DirBuilder::new().mode(0o700).recursive(true).create(&kept);
        // From a second try on they are there already.
        if moved.and_then(|()| fs::rename(rig.join("logs"), &place)).is_ok() {
            println!("the logs of the rig in {} are kept in {}", rig.display(), place.display());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Succeeds only where it is empty: a plan that nobody has run.
        drop(fs::remove_dir(&self.path));
    }
}

fn tell(what: &str, removed: anyhow::Result<()>) {
    match removed {
        Ok(()) => println!("the tests left this, now it is removed: {what}"),
        Err(error) => println!("the tests left this, and it is not removed: {what}: {error:#}"),
    }
}

fn run(mut command: Command) -> anyhow::Result<()> {
    let program = command.get_program().display().to_string();
    // In a group of its own: a second Ctrl-C must not end who cleans up after the first.
    let output = command.stdin(Stdio::null()).process_group(0).output();
    let output = output.with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim_end());
    Ok(())
}

/// The folders of rigs, down to a depth.
fn rigs_in(folder: &Path, depth: u32) -> Vec<PathBuf> {
    if folder.join(MARK).is_file() {
        return vec![folder.to_owned()];
    }
    if depth == 0 {
        return Vec::new();
    }
    folders(folder).iter().flat_map(|inner| rigs_in(inner, depth - 1)).collect()
}

/// The folders in a folder, and not those that a link leads to.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}

/// The loop devices over files in this folder, and after them those over such loop devices.
fn loops_over(block: &Path, folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut others = bound_loops(block)?;
    let mut ours: Vec<String> = Vec::new();
    // Each round finds at least one, or is the last.
    loop {
        let is_ours = |file: &String| Path::new(file).starts_with(folder) || ours.contains(file);
        let found: Vec<_> =
            others.iter().filter(|(_, file)| is_ours(file)).map(|(name, _)| name.clone()).collect();
        if found.is_empty() {
            return Ok(ours);
        }
        others.retain(|name, _| !found.contains(name));
        ours.extend(found.iter().map(|name| format!("/dev/{name}")));
    }
}

fn mounts_of(mountinfo: &str, folder: &Path, devices: &[String]) -> Vec<String> {
    let place = |line: &str| {
        let (place, source) = mount(line)?;
        // As proc(5) tells.
        let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
        let place =
            escapes.iter().fold(place.to_owned(), |text, (from, to)| text.replace(from, to));
        let is_ours =
            Path::new(&place).starts_with(folder) || devices.iter().any(|device| device == source);
        is_ours.then_some(place)
    };
    mountinfo.lines().rev().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn rigs_are_found_by_their_mark_and_nothing_else_is() {
        let scratch = Scratch::make().unwrap();
        let at = |name: &str| scratch.path.join(name);
        for place in ["a/hotbay-rig", "b/k/hotbay-rig", "c/logs/x", "d/e/f/hotbay-rig"] {
            file(&at(place));
        }
        std::os::unix::fs::symlink(at("a"), at("link")).unwrap();
        let mut found = scratch.rigs();
        found.sort();
        let expected = [at("a"), at("b/k")];
        fs::remove_dir_all(&scratch.path).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn all_of_it_goes_the_logs_stay_and_what_is_beside_it_is_not_touched() {
        let (scratch, other) = (Scratch::make().unwrap(), Scratch::make().unwrap());
        file(&other.path.join("rig/hotbay-rig"));
        file(&scratch.path.join("test/drive.img"));
        file(&scratch.path.join("test/k/hotbay-rig"));
        file(&scratch.path.join("test/k/logs/etcd.log"));
        // Stands in for the rig's program: down --dir FOLDER.
        let rig = other.path.join("rig.sh");
        fs::write(&rig, "#!/bin/sh\n[ \"$1 $2\" = 'down --dir' ] && rm -r \"$3\"\n").unwrap();
        fs::set_permissions(&rig, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let cleared = scratch.clear(&rig);
        let logs = scratch.path.with_extension("logs");
        let seen =
            [&scratch.path, &logs.join("test-k/etcd.log"), &other.path.join("rig/hotbay-rig")]
                .map(|path| path.exists());
        fs::remove_dir_all(&logs).unwrap();
        fs::remove_dir_all(&other.path).unwrap();
        cleared.unwrap();
        assert_eq!(seen, [false, true, true]);
    }

    #[test]
    fn folder_that_no_step_has_used_goes_by_itself() {
        let scratch = Scratch::make().unwrap();
        let path = scratch.path.clone();
        assert!(path.is_dir());
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn steps_have_it_as_their_temporary_folder_and_setups_have_not() {
        let scratch = Scratch::make().unwrap();
        let step = |work: fn(Command) -> Work| Step {
            name: String::new(),
            work: work(Command::new("true")),
        };
        let mut steps = [Work::Setup, Work::Child, Work::Beside].map(step);
        scratch.give(&mut steps);
        let given = steps.map(|step| match step.work {
            Work::Setup(command) | Work::Child(command) | Work::Beside(command) => command
                .get_envs()
                .any(|(name, value)| name == "TMPDIR" && value == Some(scratch.path.as_os_str())),
            Work::Check(_) | Work::LeftOut(_) => false,
        });
        assert_eq!(given, [false, true, true]);
    }

    #[test]
    fn loop_devices_are_ours_by_their_file_or_by_one_that_is_ours() {
        let block = Scratch::make().unwrap();
        let backings = [
            ("loop1", "/dev/loop7"),
            ("loop2", "/tmp/hotbay-12/drive.img"),
            ("loop3", "/dev/loop2"),
            ("loop7", "/tmp/hotbay-1/a/drive.img (deleted)"),
        ];
        for (name, backing) in backings {
            let path = block.path.join(name).join("loop/backing_file");
            file(&path);
            fs::write(path, format!("{backing}\n")).unwrap();
        }
        fs::create_dir(block.path.join("loop9")).unwrap();
        let found = loops_over(&block.path, Path::new("/tmp/hotbay-1"));
        fs::remove_dir_all(&block.path).unwrap();
        assert_eq!(found.unwrap(), ["/dev/loop7", "/dev/loop1"]);
    }

    #[test]
    fn mounts_are_ours_by_place_or_device_the_innermost_first() {
        let mountinfo = "1 0 98:0 / / rw - ext4 /dev/vda rw\n\
             2 1 7:1 / /tmp/hotbay-1/m rw shared:1 - ext4 /dev/loop1 rw\n\
             3 2 0:9 / /tmp/hotbay-1/m/a\\040b rw - tmpfs tmpfs rw\n\
             4 1 7:2 / /tmp/hotbay-12/m rw - ext4 /dev/loop2 rw\n\
             5 1 7:1 / /mnt rw - ext4 /dev/loop1 rw\n";
        let found = mounts_of(mountinfo, Path::new("/tmp/hotbay-1"), &["/dev/loop1".to_owned()]);
        assert_eq!(found, ["/mnt", "/tmp/hotbay-1/m/a b", "/tmp/hotbay-1/m"]);
    }
}

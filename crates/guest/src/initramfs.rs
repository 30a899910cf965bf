//! The guest's root, as a cpio archive ("newc") that the kernel unpacks into memory: made here, so that it holds
//! exactly what is named here. `machine` is the caller.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::GuestError;
use crate::parts::Parts;

const INIT: &str = include_str!("init.sh");

/// Loaded at boot: the drives, the serial port, and the filesystem of the state disk with the checksum it asks for.
const AT_BOOT: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "nvme",
    "crc32c_generic",
    "ext4",
    "loop",
];

/// There for a case to load. Encryption needs the last four.
const ON_REQUEST: &[&str] = &[
    "dm_mod",
    "dm_flakey",
    "dm_delay",
    "md_mod",
    "raid1",
    "scsi_debug",
    "xfs",
    "dm_crypt",
    "ecb",
    "xts",
    "algif_skcipher",
];

/// Programs of this machine that the product or a case calls.
const PROGRAMS: &[&str] = &[
    "blkid",
    "e2fsck",
    "losetup",
    "mkfs.ext4",
    "partx",
    "resize2fs",
    "resizepart",
    "sfdisk",
    "wipefs",
];

/// Programs that only the guest runs, where Debian's packages have them.
const PARTS: &[&str] =
    &["bin/busybox", "bin/udevadm", "sbin/cryptsetup", "sbin/dmsetup", "sbin/lvm", "sbin/mdadm"];

/// Where the libraries of those programs are.
const LIBRARIES: [&str; 2] = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"];

/// What udev is to know of drives: who they are, and that a writer has closed them.
const RULES: &[&str] =
    &["lib/udev/rules.d/60-block.rules", "lib/udev/rules.d/60-persistent-storage.rules"];

/// LVM finds devices and makes their nodes by itself, and keeps no copies of what it did.
const LVM_CONF: &str = "devices { obtain_device_list_from_udev = 0 use_devicesfile = 0 }\n\
                        activation { udev_sync = 0 udev_rules = 0 monitoring = 0 }\n\
                        backup { backup = 0 archive = 0 }\n";

const FOLDERS: &[&str] = &[
    "bin", "dev", "etc", "mnt", "proc", "root", "run", "sbin", "sys", "tmp", "usr", "usr/bin",
    "var", "var/lib",
];

/// Writes the archive. `binary` becomes `/usr/bin/hotbay`, without what only a debugger reads.
pub(crate) fn write(to: &Path, parts: &Parts, binary: &Path) -> Result<(), GuestError> {
    let stripped = to.with_extension("stripped");
    let output = Command::new("strip").arg("-o").arg(&stripped).arg(binary).output();
    let output = output.map_err(|source| GuestError::Start { program: "strip", source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(GuestError::Program { program: "strip", path: binary.to_owned(), said });
    }
    let mut tree = Tree::new(to)?;
    for folder in FOLDERS {
        tree.folder(folder)?;
    }
    tree.text("init", INIT, 0o755)?;
    tree.text("etc/modules", &AT_BOOT.join("\n"), 0o644)?;
    tree.text("etc/machine-id", "6775657374206d616368696e65206964\n", 0o644)?;
    tree.text("etc/lvm/lvm.conf", LVM_CONF, 0o644)?;
    for name in PARTS {
        tree.program(name, &parts.root().join(name), parts.root())?;
    }
    tree.program("usr/bin/hotbay", &stripped, parts.root())?;
    for name in PROGRAMS {
        tree.program(&format!("usr/sbin/{name}"), &on_path(name)?, parts.root())?;
    }
    let modules = parts.modules(&[AT_BOOT, ON_REQUEST].concat())?;
    for name in modules.iter().map(String::as_str).chain(RULES.iter().copied()) {
        tree.file(name, &parts.root().join(name))?;
    }
    tree.finish()?;
    fs::remove_file(&stripped).map_err(GuestError::file("remove", stripped))
}

fn on_path(program: &'static str) -> Result<PathBuf, GuestError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.find(|folder| folder.join(program).is_file());
    found.map(|folder| folder.join(program)).ok_or(GuestError::NoProgram { program })
}

/// An archive that is being written.
struct Tree {
    path: PathBuf,
    file: io::BufWriter<fs::File>,
    /// What is in it already.
    names: BTreeSet<String>,
}

impl Tree {
    fn new(path: &Path) -> Result<Self, GuestError> {
        let file = fs::File::create(path).map_err(GuestError::file("make", path))?;
        Ok(Self { path: path.to_owned(), file: io::BufWriter::new(file), names: BTreeSet::new() })
    }

    /// A program and the libraries that the loader would give it, also from below `parts`.
    fn program(&mut self, name: &str, from: &Path, parts: &Path) -> Result<(), GuestError> {
        self.file(name, from)?;
        for library in libraries(from, parts)? {
            let path = Path::new(&library);
            let inside = path.strip_prefix(parts).or_else(|_| path.strip_prefix("/"));
            self.file(&inside.unwrap_or(path).to_string_lossy(), path)?;
        }
        Ok(())
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), GuestError> {
        if self.names.contains(name) {
            return Ok(());
        }
        let contents = fs::read(from).map_err(GuestError::file("read", from))?;
        let metadata = fs::metadata(from).map_err(GuestError::file("read", from))?;
        self.entry(name, 0o100_000 | metadata.permissions().mode() & 0o777, &contents)
    }

    fn text(&mut self, name: &str, text: &str, mode: u32) -> Result<(), GuestError> {
        self.entry(name, 0o100_000 | mode, text.as_bytes())
    }

    fn folder(&mut self, name: &str) -> Result<(), GuestError> {
        if self.names.contains(name) {
            return Ok(());
        }
        self.entry(name, 0o040_755, &[])
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) -> Result<(), GuestError> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            for (end, _) in folder.match_indices('/') {
                self.folder(&folder[..end])?;
            }
            self.folder(folder)?;
        }
        self.names.insert(name.to_owned());
        let number = self.names.len();
        let written = write_entry(&mut self.file, number, name, mode, contents);
        written.map_err(GuestError::file("write", &self.path))
    }

    fn finish(mut self) -> Result<(), GuestError> {
        let written = write_entry(&mut self.file, 0, "TRAILER!!!", 0, &[]);
        let flushed = written.and_then(|()| self.file.flush());
        flushed.map_err(GuestError::file("write", &self.path))
    }
}

/// One entry: a header of hexadecimal fields, the name, the contents, each filled up to four bytes.
fn write_entry(
    to: &mut impl Write,
    number: usize,
    name: &str,
    mode: u32,
    contents: &[u8],
) -> io::Result<()> {
    let (length, name_length) = (contents.len(), name.len() + 1);
    let links = 1;
    // inode, mode, user, group, links, time, length, device and special device in two numbers each, name, checksum
    write!(
        to,
        "070701{number:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{length:08x}\
         {0:08x}{0:08x}{0:08x}{0:08x}{name_length:08x}{0:08x}{name}\0",
        0
    )?;
    to.write_all(&[0; 3][..fill(110 + name_length)])?;
    to.write_all(contents)?;
    to.write_all(&[0; 3][..fill(length)])
}

fn fill(length: usize) -> usize {
    length.next_multiple_of(4) - length
}

/// The libraries of a program, as absolute paths; none for one that is static.
fn libraries(program: &Path, parts: &Path) -> Result<Vec<String>, GuestError> {
    let folders = LIBRARIES.map(|folder| parts.join(folder).display().to_string()).join(":");
    let output = Command::new("ldd").arg(program).env("LD_LIBRARY_PATH", folders).output();
    let output = output.map_err(|source| GuestError::Start { program: "ldd", source })?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if said.contains("not found") {
        return Err(GuestError::Program { program: "ldd", path: program.to_owned(), said });
    }
    Ok(parse_libraries(&said))
}

/// Reads `NAME => PATH (ADDRESS)`, and `PATH (ADDRESS)` of the loader.
fn parse_libraries(said: &str) -> Vec<String> {
    said.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_what_the_loader_names() {
        let said = "\tlinux-vdso.so.1 (0x7ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f0b)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f0b)\n";
        assert_eq!(
            parse_libraries(said),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert_eq!(parse_libraries("\tnot a dynamic executable\n"), Vec::<String>::new());
    }

    #[test]
    fn entries_are_filled_up_to_four_bytes() {
        let mut archive = Vec::new();
        write_entry(&mut archive, 1, "init", 0o100_755, b"hello").unwrap();
        assert_eq!(archive.len(), 110 + 5 + 1 + 5 + 3);
        assert_eq!(&archive[..14], b"07070100000001");
        assert_eq!(&archive[54..62], b"00000005", "the length of the contents");
        assert_eq!(&archive[110..121], b"init\0\0hello");
    }
}

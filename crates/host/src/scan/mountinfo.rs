//! The mount table of the host, by device number.
//!
//! Read from `/proc/1/mountinfo`, because an agent in a container sees only its own mounts in its own table. The
//! scan asks it which drives carry something, the proof of closing what keeps a drive busy.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use crate::kernel_id::{DeviceNumber, KernelId};

/// Longest table that is read; at some 150 bytes a mount this is over 400,000 mounts.
const MAX_BYTES: u64 = 64 << 20;

/// Where something is that the machine swaps to.
pub(crate) const SWAP: &str = "[swap]";

/// Below these, containers get pieces of a filesystem that is mounted elsewhere: with every start of one.
const CONTAINER_FOLDERS: [&str; 6] = [
    "/run/containerd/",
    "/run/docker/",
    "/var/lib/containerd/",
    "/var/lib/containers/",
    "/var/lib/docker/",
    "/var/lib/kubelet/",
];

/// Where each device is mounted, and which devices swap.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    by_device: HashMap<DeviceNumber, BTreeSet<String>>,
}

impl Mounts {
    /// Reads the host's table, or our own where that of process 1 is not to be had, and the swap table.
    pub(crate) fn read() -> io::Result<Self> {
        let table = read_bounded(Path::new("/proc/1/mountinfo"))
            .or_else(|_| read_bounded(Path::new("/proc/self/mountinfo")))?;
        let mut mounts = Self::parse(&table, device_at);
        // A kernel without swap has no such file.
        if let Ok(swaps) = read_bounded(Path::new("/proc/swaps")) {
            mounts.add_swaps(&swaps, device_at);
        }
        Ok(mounts)
    }

    /// Where a device is mounted; swap is `[swap]`.
    pub(crate) fn of(&self, device: DeviceNumber) -> impl Iterator<Item = &str> {
        self.by_device.get(&device).into_iter().flatten().map(String::as_str)
    }

    /// `device_at` says which block device a path such as `/dev/sda2` is. Lines that are not understood are left
    /// out: one strange mount must not hide the others.
    pub(super) fn parse(table: &[u8], device_at: impl Fn(&str) -> Option<DeviceNumber>) -> Self {
        let mut by_device: HashMap<DeviceNumber, BTreeSet<String>> = HashMap::new();
        let mut sources: HashMap<String, Option<DeviceNumber>> = HashMap::new();
        let mut pieces = Vec::new();
        for line in table.split(|byte| *byte == b'\n') {
            let Some(mount) = Mount::parse(line) else { continue };
            // btrfs and others show a number of their own making; the device is in the source then.
            let device = if mount.device.major != 0 {
                Some(mount.device)
            } else if mount.source.starts_with("/dev/") {
                *sources.entry(mount.source).or_insert_with_key(|source| device_at(source))
            } else {
                None
            };
            let Some(device) = device else { continue };
            if mount.is_piece_for_container {
                pieces.push((device, mount.point));
            } else {
                by_device.entry(device).or_default().insert(mount.point);
            }
        }
        for (device, point) in pieces {
            // All that is left of a mount is still a mount.
            by_device.entry(device).or_insert_with(|| BTreeSet::from([point]));
        }
        Self { by_device }
    }

    pub(super) fn add_swaps(
        &mut self,
        table: &[u8],
        device_at: impl Fn(&str) -> Option<DeviceNumber>,
    ) {
        for line in table.split(|byte| *byte == b'\n').skip(1) {
            let Some(path) = line.split(|byte| *byte == b' ').next().map(unescape) else {
                continue;
            };
            if let Some(device) = device_at(&path) {
                self.by_device.entry(device).or_default().insert(SWAP.into());
            }
        }
    }
}

struct Mount {
    device: DeviceNumber,
    point: String,
    source: String,
    /// A folder or file of a filesystem, bound to where a container finds it.
    is_piece_for_container: bool,
}

impl Mount {
    /// One line: id, parent, `major:minor`, root, mount point, options, optional fields, `-`, type, source, options.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = DeviceNumber::parse(std::str::from_utf8(fields.nth(2)?).ok()?)?;
        let root = fields.next()?;
        let point = unescape(fields.next()?);
        fields.find(|field| *field == b"-")?;
        let source = unescape(fields.nth(1)?);
        let is_piece_for_container =
            root != b"/" && CONTAINER_FOLDERS.iter().any(|folder| point.starts_with(folder));
        Some(Self { device, point, source, is_piece_for_container })
    }
}

/// Undoes the kernel's octal escapes for space, tab, newline, backslash and `#`.
pub(crate) fn unescape(field: &[u8]) -> String {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] if *first == b'\\' => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Only for paths under `/dev`, which is in memory: asking elsewhere could wait for a filesystem.
pub(crate) fn device_at(path: &str) -> Option<DeviceNumber> {
    if !path.starts_with("/dev/") {
        return None;
    }
    match KernelId::of_path(Path::new(path)) {
        Ok(Some(KernelId::Block(number))) => Some(number),
        Ok(_) | Err(_) => None,
    }
}

pub(crate) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut table = Vec::new();
    std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut table)?;
    if table.len() as u64 > MAX_BYTES {
        // Half a table would hide mounts.
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the mount table is too long"));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SDA1: DeviceNumber = DeviceNumber { major: 8, minor: 1 };
    const SDB: DeviceNumber = DeviceNumber { major: 8, minor: 16 };

    fn dev(path: &str) -> Option<DeviceNumber> {
        (path == "/dev/sdb").then_some(SDB)
    }

    fn at(mounts: &Mounts, device: DeviceNumber) -> Vec<&str> {
        mounts.of(device).collect()
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source_with_escapes_undone() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n\
            23 22 8:1 /x /mnt/a\\040b\\011c\\134d rw - ext4 /dev/sda1 rw\n\
            24 22 0:31 /sub /data rw - btrfs /dev/sdb rw\n\
            25 22 0:5 / /proc rw - proc proc rw\n";
        let mounts = Mounts::parse(table, dev);
        assert_eq!(at(&mounts, SDA1), ["/", "/mnt/a b\tc\\d"]);
        assert_eq!(at(&mounts, SDB), ["/data"]);
    }

    #[test]
    fn garbage_hides_nothing_else() {
        let table =
            b"\n \n- - -\n22 1 8:1 / /cut rw\n22 1 x:y / /no rw - ext4 s rw\n\xff\xfe 1 8:1\n\
            23 1 8:1 / /mnt\\04 rw - ext4 /dev/sda1 rw\n\
            24 1 8:1 / /bad\xff\\777 rw - ext4 /dev/sda1 rw\n";
        let mounts = Mounts::parse(table, dev);
        assert_eq!(at(&mounts, SDA1), ["/bad\u{fffd}\\777", "/mnt\\04"]);
    }

    /// On a machine with containers every start of one binds folders of the system drive to other places: they say
    /// nothing about the drive that its own mount does not say.
    #[test]
    fn pieces_for_containers_count_only_where_nothing_else_is_mounted() {
        let pod = "/var/lib/kubelet/pods/1/volume-subpaths/a";
        let table = format!(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            23 22 8:1 /srv/a {pod} rw - ext4 /dev/sda1 rw\n\
            24 22 8:1 /srv/b /mnt/bound rw - ext4 /dev/sda1 rw\n\
            25 22 8:16 /a {pod} rw - ext4 /dev/sdb rw\n"
        );
        let mounts = Mounts::parse(table.as_bytes(), dev);
        assert_eq!(at(&mounts, SDA1), ["/", "/mnt/bound"]);
        assert_eq!(at(&mounts, SDB), [pod]);
        // A whole filesystem is somebody's volume, wherever it is.
        let volume = format!("22 1 8:1 / {pod} rw - ext4 x rw\n23 1 8:1 / /x rw - ext4 x rw\n");
        assert_eq!(at(&Mounts::parse(volume.as_bytes(), dev), SDA1), [pod, "/x"]);
    }

    #[test]
    fn a_table_of_50_000_mounts_is_read_whole() {
        let mut table = String::new();
        for n in 0..50_000 {
            let device = if n % 2 == 0 { "0:31" } else { "8:1" };
            table.push_str(&format!("{n} 1 {device} / /mnt/{n:05} rw - btrfs /dev/sdb rw\n"));
        }
        let asked = std::cell::Cell::new(0);
        let began = std::time::Instant::now();
        let mounts = Mounts::parse(table.as_bytes(), |path| {
            asked.set(asked.get() + 1);
            dev(path)
        });
        assert_eq!(mounts.of(SDA1).count(), 25_000);
        assert_eq!(mounts.of(SDB).count(), 25_000);
        assert_eq!(asked.get(), 1, "each source is looked up once");
        // Far from what it takes; a table that is walked again for every mount would take minutes.
        assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
    }

    #[test]
    fn swap_counts_as_a_mount() {
        let mut mounts = Mounts::default();
        mounts.add_swaps(
            b"Filename\t\t\t\tType\t\tSize\n/dev/sdb                  partition\t1\n/swapfile file 2\n",
            dev,
        );
        assert_eq!(at(&mounts, SDB), ["[swap]"]);
        assert_eq!(mounts.by_device.len(), 1);
    }

    #[test]
    fn the_real_table_has_a_root() {
        let table = read_bounded(Path::new("/proc/self/mountinfo")).unwrap();
        assert!(table.split(|b| *b == b'\n').filter_map(Mount::parse).any(|m| m.point == "/"));
    }
}

//! What the Linux machine and its programs say.

use hotbay_core::discovery::event::{Subsystem, kernel_event, udev_event};
use hotbay_core::discovery::triage;
use hotbay_core::evidence::Evidence;
use hotbay_host::DeviceNumber;
use hotbay_host::scan::Signatures;
use hotbay_host::scan::fuzzing as scan;

use crate::assert_plain;
use crate::bytes::Bytes;

const DEVICE: DeviceNumber = DeviceNumber { major: 8, minor: 16 };
/// Parts the two tables of one input.
const PART: u8 = 0xff;

/// A mount table and a swap table.
pub(crate) fn mountinfo(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == PART).unwrap_or(data.len());
    let (table, swaps) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let alone = scan::mounts(table, swaps, DEVICE);
    // A line that is not understood must not hide the ones after it, nor one that is.
    let known = b"\n1 2 8:16 / /mnt/a\\040b rw - ext4 /dev/sdb rw\n";
    for table in [[table, &known[..]].concat(), [&known[1..], table].concat()] {
        let mounts = scan::mounts(&table, swaps, DEVICE);
        assert!(mounts.iter().any(|point| point == "/mnt/a b"), "the known mount is hidden");
        // A piece for a container counts only where nothing else is mounted.
        let may_go = |point: &str| point.starts_with("/var/lib/") || point.starts_with("/run/");
        let stays = |point: &String| mounts.contains(point) || may_go(point);
        assert!(alone.iter().all(stays), "a mount was lost");
    }
}

pub(crate) fn mountinfo_seeds() -> Vec<Vec<u8>> {
    let mounts = b"22 1 8:16 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n\
        23 22 8:1 /x /mnt/a\\040b\\011c\\134d rw - ext4 /dev/sda1 rw\n\
        24 22 0:31 /sub /data rw - btrfs /dev/sdb rw\n25 22 0:5 / /proc rw - proc proc rw\n";
    let swaps = b"Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n/swap\\040file file 1 0 -3\n";
    vec![mounts.to_vec(), [&mounts[..], &[PART], swaps].concat()]
}

/// A message of the kernel or of udev about a device.
pub(crate) fn uevent(data: &[u8]) {
    for event in [kernel_event(data), udev_event(data)] {
        match event {
            Ok(event) => {
                let is_block = event.subsystem == Subsystem::Block;
                assert!(!is_block || event.number.is_some(), "a block device without a number");
                let _ = (triage(&event), event.disk_of_partition(), event.is_mapper());
            }
            Err(refused) => assert_plain(refused),
        }
    }
}

pub(crate) fn uevent_seeds() -> Vec<Vec<u8>> {
    const PROPERTIES: &[u8] =
        b"ACTION=change\0DEVPATH=/devices/virtual/block/loop0\0SUBSYSTEM=block\0MAJOR=7\0MINOR=0\0\
        DEVNAME=loop0\0DEVTYPE=disk\0DISKSEQ=5\0SEQNUM=1234\0RESIZE=1\0";
    let kernel = [&b"change@/devices/virtual/block/loop0\0"[..], PROPERTIES].concat();
    let length = u32::try_from(PROPERTIES.len()).unwrap_or_default();
    // Header length, where the properties begin, how long they are; then what nobody reads.
    let numbers = [40, 40, length, 0, 0, 0, 0].map(u32::to_ne_bytes).concat();
    let udev = [&b"libudev\0\xfe\xed\xca\xfe"[..], &numbers, PROPERTIES].concat();
    vec![kernel, udev]
}

/// How blkid ended and what it said: nothing but a silent 2 is "nothing found".
pub(crate) fn blkid(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let code = match bytes.pick(5) {
        0 => Some(0),
        1 => Some(2),
        2 => Some(8),
        3 => None,
        _ => Some(i32::from(bytes.byte())),
    };
    let complaint_bytes = usize::from(bytes.byte());
    let stderr = bytes.take(complaint_bytes);
    let stdout = bytes.rest();
    match scan::signatures(code, stdout, stderr) {
        Signatures::Nothing => {
            assert_eq!((code, stdout), (Some(2), &b""[..]), "something was taken for nothing");
            assert!(String::from_utf8_lossy(stderr).trim().is_empty(), "a complaint was not heard");
        }
        Signatures::Found { table, content } => {
            assert_eq!(code, Some(0));
            assert!(table.is_some() || content.is_some());
            table.iter().chain(&content).filter(|text| !text.is_empty()).for_each(assert_plain);
        }
        Signatures::Unclear(why) => assert_plain(why),
    }
}

pub(crate) fn blkid_seeds() -> Vec<Vec<u8>> {
    let said = |choice: u8, stderr: &[u8], stdout: &[u8]| {
        let length = u8::try_from(stderr.len()).unwrap_or(u8::MAX);
        [&[choice, length][..], stderr, stdout].concat()
    };
    vec![
        said(0, b"", b"DEVNAME=/dev/sdb\nPTUUID=1\nPTTYPE=gpt\n"),
        said(0, b"", b"UUID=1\nTYPE=ext4\n"),
        said(1, b"", b""),
        said(1, b"error: /dev/sdb: No such file", b""),
        said(2, b"", b""),
        said(3, b"", b""),
    ]
}

/// Four files of sysfs, each after its length.
pub(crate) fn sysfs(data: &[u8]) {
    let mut bytes = Bytes::new(data);
    let files: [&[u8]; 4] = std::array::from_fn(|_| {
        let length = usize::from(bytes.byte());
        bytes.take(length)
    });
    let evidence = scan::evidence(files[0], files[1], files[2], files[3]);
    for id in evidence.nvme.iter().chain(&evidence.wwn) {
        let digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        assert!(id.chars().all(digit), "{id:?} is not in one spelling");
    }
    for fact in [&evidence.nvme, &evidence.wwn, &evidence.serial].into_iter().flatten() {
        assert!(fact.chars().any(|c| c != '0'), "nothing counts as evidence: {evidence:?}");
    }
    let number = String::from_utf8_lossy(bytes.rest());
    if let Some(parsed) = scan::device_number(&number) {
        assert_eq!(scan::device_number(&parsed.to_string()), Some(parsed));
    }
}

pub(crate) fn sysfs_seeds() -> Vec<Vec<u8>> {
    let files = |files: [&[u8]; 4], number: &str| {
        let mut seed = Vec::new();
        for file in files {
            seed.push(u8::try_from(file.len()).unwrap_or(u8::MAX));
            seed.extend_from_slice(file);
        }
        seed.extend_from_slice(number.as_bytes());
        seed
    };
    vec![
        files(
            [b"36344730-5280-0130-0025-38450000000A\n", b"", b"S4GRNX0R800013  \n", b""],
            "259:0\n",
        ),
        files([b"", b"naa.5000C500A1B2C3D4\n", b"", b"\x00\x80\x00\x0a  ZC1ABCDE\x00\x00"], "8:16"),
        files([b"00 00", b"t10.ATA QEMU", b"00000000\n", b"\x00\x80\x00\xff short"], "8:1:2"),
    ]
}

/// A file of udev's database.
pub(crate) fn udev(data: &[u8]) {
    let (evidence, links) = scan::udev(data, Evidence::default());
    assert!(links.is_sorted() && links.len() <= 64, "{links:?}");
    for link in &links {
        assert_plain(link);
        assert!(!link.contains('/'), "{link:?} leads elsewhere");
    }
    for fact in [&evidence.wwn, &evidence.serial].into_iter().flatten() {
        assert!(fact.chars().any(|c| c != '0'), "nothing counts as evidence: {evidence:?}");
        assert_plain(fact);
    }
    // What sysfs says is never contradicted, and a line that is not understood hides no other.
    let known = Evidence {
        wwn: Some("5000c500a1b2c3d4".to_owned()),
        serial: Some("S1".to_owned()),
        ..Evidence::default()
    };
    let (kept, _) = scan::udev(data, known.clone());
    assert_eq!(kept, known);
    let (_, more) = scan::udev(&[b"S:disk/by-id/!\n", data].concat(), Evidence::default());
    assert!(more.first().is_some_and(|first| first <= &"!".to_owned()), "{more:?}");
}

pub(crate) fn udev_seeds() -> Vec<Vec<u8>> {
    let sata = b"S:disk/by-path/pci-0000:00:17.0-ata-3\nS:disk/by-id/wwn-0x5000c500a1b2c3d4\n\
        L:-100\nI:3451221\nE:ID_VENDOR=ACME\nE:ID_MODEL=ST4000NM0035-1V4\nE:ID_SERIAL_SHORT=ZC1ABCDE\n\
        E:ID_WWN=0x5000c500a1b2c3d4\nG:systemd\nQ:systemd\nV:1\n";
    let nvme = b"S:disk/by-id/nvme-eui.0025384500000a\nE:ID_WWN=eui.0025384500000a\nE:ID_SERIAL_SHORT=000\n";
    vec![sata.to_vec(), nvme.to_vec()]
}

/// A pattern and a name.
pub(crate) fn glob(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (pattern, name) = text.split_once('\n').unwrap_or((&text, ""));
    if let Err(refused) = scan::check_pattern(pattern) {
        assert_plain(refused);
    }
    // The oracle is slow.
    let short = pattern.chars().count() <= 24 && name.chars().count() <= 24;
    let Some(fits) = scan::name_fits(pattern, name) else { return };
    if short && !pattern.contains('[') {
        let (pattern, name): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
        assert_eq!(fits, slowly_fits(&pattern, &name), "{pattern:?} and {name:?}");
    }
}

/// What `*` and `?` mean, said as simply as it can be: row by row over all prefixes.
fn slowly_fits(pattern: &[char], name: &[char]) -> bool {
    let mut fits = vec![false; name.len() + 1];
    fits[0] = true;
    for token in pattern {
        let before = fits.clone();
        for end in 0..=name.len() {
            fits[end] = match token {
                '*' => before[..=end].contains(&true),
                '?' => end > 0 && before[end - 1],
                one => end > 0 && before[end - 1] && name[end - 1] == *one,
            };
        }
    }
    fits[name.len()]
}

pub(crate) fn glob_seeds() -> Vec<Vec<u8>> {
    ["/dev/sd*", "sd*\nsda", "nvme?n1\nnvme0n1", "loop[0-3]\nloop3", "*a*b*\nxxaxxbxx", "[]x]\n]"]
        .map(|seed| seed.as_bytes().to_vec())
        .into()
}

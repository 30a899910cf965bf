//! `hotbay drive inspect` over drives that are files, with labels that the product itself has written.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hotbay_core::ids::{ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::label::change::{Basis, Change};
use hotbay_core::label::extents::{Claim, Extent, Use};
use hotbay_core::label::update::Want;
use hotbay_core::order::Generation;
use hotbay_host::label::{FileSectors, bring_up_to_date, change_extents, refresh_third_copy, told};
use serde_json::{Value, json};

const SIZE_BYTES: u64 = 64 << 20;

const WANT: Want = Want {
    cluster: ClusterId::from_bits(0xc1),
    drive: DriveId::from_bits(0x7f3a_91c0_0000_0000_0000_0000_0000_0001),
    node: NodeId::from_bits(0x0a),
    generation: Generation::from_number(5),
    in_operation: true,
    take_over: false,
};

struct Drive {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Drive {
    fn empty() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive.img");
        File::create_new(&path).unwrap().set_len(SIZE_BYTES).unwrap();
        Self { _dir: dir, path }
    }

    /// With two volumes on it, of which one was deleted.
    fn labelled() -> Self {
        let drive = Self::empty();
        let file = File::options().read(true).write(true).open(&drive.path).unwrap();
        let sectors = FileSectors::new(file, SIZE_BYTES, 512);
        let outcome = bring_up_to_date(&sectors, &WANT, || Ok(()), &|_| ()).unwrap();
        let basis = Basis::of(&outcome.header().unwrap());
        let freed = VolumeId::from_bits(2);
        let changes = [
            Change::Place(extent(1, 2, Some(Claim::new("shop", "data-db-0").unwrap()))),
            Change::Place(extent(2, 4, None)),
            Change::Free { volume: freed },
        ];
        let erase = |_| panic!("nothing is erased");
        for (number, order) in changes.chunks(2).enumerate() {
            let basis = if number == 0 { basis } else { told(&sectors, &WANT).unwrap().basis };
            change_extents(&sectors, &WANT, basis, order, &erase, &|_| ()).unwrap();
        }
        refresh_third_copy(&sectors, WANT.drive, &|_| ()).unwrap();
        drive
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let mut file = File::options().write(true).open(&self.path).unwrap();
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(bytes).unwrap();
    }
}

fn extent(volume: u128, start_mib: u64, claim: Option<Claim>) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: start_mib << 20,
        length_bytes: 2 << 20,
        usage: Use::Used,
        formatted: false,
        name: format!("pvc-{volume}").parse().unwrap(),
        claim,
    }
}

fn inspect(path: &Path, options: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    // No registry is there, and none is asked for.
    command.args(["drive", "inspect"]).arg(path).args(options).env("HOTBAY_API", "/nowhere");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    (output, text)
}

fn object(path: &Path) -> Value {
    let (_, text) = inspect(path, &["-o", "json"]);
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn a_label_is_shown_with_its_extents_and_not_touched() {
    let drive = Drive::labelled();
    let before = std::fs::read(&drive.path).unwrap();
    let (output, text) = inspect(&drive.path, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in [
        "(64M, blocks of 512 bytes) has a label of Hotbay.",
        "drive        7f3a91c0000000000000000000000001",
        "state        in operation, generation 5",
        "copies       sequence 3, sequence 2",
        "third copy   sequence 3",
        "partitions   as they belong to the label",
        "extents      2 of at most 1016: 2.0M used, 2.0M dirty",
        "pvc-1  shop/data-db-0  0     2.0M   2.0M  used",
        "pvc-2  -               0     4.0M   2.0M  dirty",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let shown = object(&drive.path);
    assert_eq!(shown["label"], "Valid");
    assert_eq!(shown["slots"][0], json!({ "state": "Valid", "sequence": 3 }));
    assert_eq!(shown["thirdCopy"]["extents"], shown["extents"]);
    assert_eq!(
        shown["extents"][0],
        json!({
            "volume": "00000000000000000000000000000001", "name": "pvc-1",
            "claim": "shop/data-db-0", "part": 0, "startBytes": 2 << 20,
            "lengthBytes": 2 << 20, "use": "Used", "conflict": false,
        })
    );
    assert!(before == std::fs::read(&drive.path).unwrap(), "it is only read");
}

#[test]
fn what_is_no_label_is_told() {
    let drive = Drive::empty();
    let (output, text) = inspect(&drive.path, &[]);
    assert_eq!(output.status.code(), Some(4), "{text}");
    assert!(text.contains("has no label of Hotbay"), "{text}");

    let drive = Drive::labelled();
    drive.write((1 << 20) + 100, b"x");
    let shown = object(&drive.path);
    assert_eq!(shown["slots"][0]["state"], "Damaged");
    assert_eq!(shown["label"], "Valid", "the other copy counts");
    drive.write((3 << 19) + 4096, b"x");
    let (output, text) = inspect(&drive.path, &[]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("both copies are damaged"), "{text}");
    assert!(text.contains("copies       damaged, damaged"), "{text}");
}

#[test]
fn the_third_copy_tells_all_when_the_others_are_gone() {
    let drive = Drive::labelled();
    let whole = object(&drive.path);
    drive.write(1 << 20, &vec![0; 1 << 20]);
    let (output, text) = inspect(&drive.path, &[]);
    assert_eq!(output.status.code(), Some(4), "it is not a label: {text}");
    for part in [
        "has no label of Hotbay",
        "copies       empty, empty",
        "third copy   sequence 3",
        "can be read. It may be older than the label was, and is not used:",
        "drive        7f3a91c0000000000000000000000001",
        "extents      2 of at most 1016: 2.0M used, 2.0M dirty",
        "pvc-1  shop/data-db-0  0     2.0M   2.0M  used",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let shown = object(&drive.path);
    assert_eq!((&shown["label"], &shown["thirdCopy"]), (&json!("Absent"), &whole["thirdCopy"]));
    assert_eq!(shown["thirdCopy"]["cluster"], whole["cluster"]);
}

#[test]
fn what_cannot_be_read_is_told_with_the_next_step() {
    let (output, _) = inspect(Path::new("/dev/hotbay-has-no-such-device"), &[]);
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("hotbay node scan"), "{said}");
    let (output, _) = inspect(Path::new("/proc"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("neither a block device nor a plain file"), "{said}");
}

//! Names of devices, which are nobody's: what is behind one can be another drive at any time, and a drive can have
//! another name.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cluster::eventually;
use crate::rig::{FIRST_BYTES, MIB, Rig, id, reasons, run};

#[test]
fn another_file_behind_the_same_name_is_another_drive() {
    let rig = Rig::started(1);
    let drive = &rig.loops[0];
    let first = rig.at(&drive.path).unwrap();
    let other = rig.file("other.img");
    File::create_new(&other).unwrap().set_len(FIRST_BYTES).unwrap();
    // As large, and as empty: only the kernel's count of devices tells them apart at once.
    drive.detach();
    drive.attach(&other);
    let second = eventually("another drive is there", || {
        let now = rig.at(&drive.path)?;
        (id(&now) != id(&first) && now["status"]["present"] == true).then_some(now)
    });
    let known = rig.drives();
    assert_eq!(known.len(), 2, "{known:?}");
    let gone = known.iter().find(|drive| id(drive) == id(&first)).unwrap();
    assert_eq!(gone["status"]["present"], false);
    drive.detach();
    drive.attach(&drive.file);
    eventually("the first is there again", || {
        let now = rig.at(&drive.path)?;
        (id(&now) == id(&first) && now["status"]["present"] == true).then_some(())
    });
    let known = rig.drives();
    let gone = known.iter().find(|drive| id(drive) == id(&second)).unwrap();
    assert_eq!((known.len(), &gone["status"]["present"]), (2, &Value::Bool(false)));
}

#[test]
fn drives_that_exchange_their_names_keep_their_records() {
    let rig = Rig::started(2);
    let (one, two) = (&rig.loops[0], &rig.loops[1]);
    rig.cluster.expect(&["drive", "add", &rig.cluster.target(0), "--wait"], 0);
    rig.cluster.expect(&["drive", "remove", &rig.cluster.target(0), "--wait"], 0);
    let before = [one, two].map(|drive| id(&rig.at(&drive.path).unwrap()));
    one.detach();
    two.detach();
    one.attach(&two.file);
    two.attach(&one.file);
    eventually("the names are exchanged", || {
        let now = [two, one].map(|drive| rig.at(&drive.path));
        let is = |(now, before): (Option<Value>, &String)| {
            now.is_some_and(|now| id(&now) == *before && now["status"]["present"] == true)
        };
        now.into_iter().zip(&before).all(is).then_some(())
    });
    assert_eq!(rig.drives().len(), 2, "{:?}", rig.drives());
}

#[test]
fn what_comes_and_goes_at_once_leaves_no_trace() {
    let rig = Rig::started(2);
    let (drive, steady) = (&rig.loops[0], &rig.loops[1]);
    let first = rig.at(&drive.path).unwrap();
    drive.detach();
    for _ in 0..50 {
        drive.attach(&drive.file);
        drive.detach();
    }
    rig.wait(&drive.path, "missing", |status| status["present"] == false);
    // Whatever is still under way ends before this is known twice over.
    for bytes in [FIRST_BYTES + MIB, FIRST_BYTES] {
        steady.resize(bytes);
        rig.wait_size(steady, bytes);
    }
    assert_eq!(rig.at(&drive.path).unwrap()["status"]["present"], false);
    drive.attach(&drive.file);
    let again = rig.wait(&drive.path, "there again", |status| status["present"] == true);
    assert_eq!((id(&again), rig.drives().len()), (id(&first), 2));
}

/// What is on a drive is copied with it: a table's and a filesystem's ids are no identity.
#[test]
fn a_drive_with_a_copy_of_all_that_is_on_another_is_another() {
    let rig = Rig::new(2);
    let (one, two) = (&rig.loops[0], &rig.loops[1]);
    let sfdisk = "sfdisk -q --no-reread --no-tell-kernel";
    run("sh", &["-c", &format!("printf 'label: dos\\n,8M\\n' | {sfdisk} {}", one.node())]);
    run(
        "dd",
        &[&format!("if={}", one.node()), &format!("of={}", two.node()), "bs=1M", "conv=fsync"],
    );
    let id_of_table = |node| run("blkid", &["-p", "-o", "value", "-s", "PTUUID", node]);
    assert_eq!(id_of_table(one.node()), id_of_table(two.node()));
    let mut rig = rig;
    rig.start(&[]);
    let known = rig.drives();
    assert_eq!(known.len(), 2, "{known:?}");
    assert_ne!(id(&known[0]), id(&known[1]));
    for drive in &known {
        assert_eq!(reasons(&drive["status"]), ["Partitioned"], "each by itself: {drive}");
    }
}

/// A device node that is elsewhere, and in its place again when the value is dropped.
struct Elsewhere<'a> {
    node: &'a Path,
    meanwhile: PathBuf,
}

impl<'a> Elsewhere<'a> {
    fn new(node: &'a Path) -> Self {
        let meanwhile = PathBuf::from(format!("{}.elsewhere", node.display()));
        std::fs::rename(node, &meanwhile).unwrap();
        Self { node, meanwhile }
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        std::fs::rename(&self.meanwhile, self.node).ok();
    }
}

/// As in the moment before whoever makes the nodes has made it.
#[test]
fn a_drive_whose_node_comes_late_is_found_when_it_is_there() {
    let mut rig = Rig::new(2);
    let late = rig.loops[0].path.clone();
    let elsewhere = Elsewhere::new(&late);
    rig.cluster.start_registry();
    rig.cluster.start_agent_with(&[]);
    rig.cluster.wait_ready();
    rig.wait(&rig.loops[1].path, "there, without the other", |status| status["present"] == true);
    drop(elsewhere);
    rig.loops[0].says_changed(1);
    rig.wait(&late, "there", |status| status["present"] == true && reasons(status).is_empty());
}

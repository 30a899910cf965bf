//! What needs neither root nor a block device; the rest is in `tests/root_drives`.

use std::fs::File;

use super::*;

fn file() -> (tempfile::NamedTempFile, KernelId) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let id = KernelId::of_path(file.path()).unwrap().unwrap();
    (file, id)
}

fn this_process(found: &processes::Found) -> bool {
    let us = std::process::id();
    found.blockers.iter().any(|b| matches!(b, Blocker::Process { pid, .. } if *pid == us))
}

#[test]
fn a_lease_is_granted_only_if_nobody_else_has_the_file() {
    let (file, id) = file();
    let path = file.into_temp_path();
    assert!(matches!(lease(&path, id), Ok(Lease::Granted)));
    assert!(matches!(lease(&path, id), Ok(Lease::Granted)), "it was not dropped");
    let reader = File::open(&path).unwrap();
    assert!(matches!(lease(&path, id), Ok(Lease::Refused)));
    drop(reader);
    assert!(matches!(lease(&path, id), Ok(Lease::Granted)));
}

#[test]
fn a_lease_on_another_file_proves_nothing() {
    let (_file, id) = file();
    let (other, _) = file();
    assert!(lease(other.path(), id).is_err());
}

#[test]
fn an_open_file_is_found_by_its_inode_even_after_it_was_deleted() {
    let (file, id) = file();
    let path = file.path().to_str().unwrap().to_owned();
    let (file, guard) = file.into_parts();
    assert!(this_process(&processes::find(&Searched::one(id))));
    let deleted = Searched { vanished: Some(path.clone()), ..Searched::default() };
    assert!(!this_process(&processes::find(&deleted)), "it is not deleted yet");
    drop(guard);
    assert!(this_process(&processes::find(&deleted)));
    assert!(this_process(&processes::find(&Searched::one(id))));
    drop(file);
    assert!(!this_process(&processes::find(&deleted)));
}

#[test]
fn a_file_that_is_gone_is_proved_by_what_can_be_seen() {
    let (file, id) = file();
    let path = file.path().to_owned();
    let (open, guard) = file.into_parts();
    drop(guard);
    let prove = |known| prove(&path, DeviceKind::File, &Evidence::default(), known);
    for known in [None, Some(id)] {
        assert!(matches!(prove(known), Proof::Blocked { .. }), "{known:?}");
    }
    drop(open);
    for known in [None, Some(id)] {
        assert_eq!(prove(known), Proof::Proved, "{known:?}");
    }
}

#[test]
fn a_long_list_of_blockers_fits_a_message() {
    let mount = Blocker::Mount { at: "\n".repeat(4000) };
    let Proof::Blocked { by } = bounded(Proof::Blocked { by: vec![mount; 1000] }) else {
        panic!("no longer blocked");
    };
    let text = serde_json::to_vec(&by).unwrap();
    assert!(text.len() < 60 << 10, "{} bytes", text.len());
}

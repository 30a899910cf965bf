//! Looking at a drive changes nothing: it is opened neither for writing, which would make udev look at it again and
//! again, nor as the only one who may, which would keep others from it.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, inotify};
use rustix::io::Errno;

use crate::cluster::eventually;
use crate::rig::{FIRST_BYTES, MIB, Rig, reasons, run};

/// Hears whenever somebody closes a device that he could have written to.
struct Writers(OwnedFd);

impl Writers {
    fn of(rig: &Rig) -> Self {
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let ears = inotify::init(flags).unwrap();
        for drive in &rig.loops {
            inotify::add_watch(&ears, &drive.path, inotify::WatchFlags::CLOSE_WRITE).unwrap();
        }
        Self(ears)
    }

    fn heard(&self) -> usize {
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.0, &mut room);
        let mut heard = 0;
        loop {
            match reader.next() {
                Ok(_) => heard += 1,
                Err(Errno::AGAIN) => return heard,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_look_opens_no_drive_for_writing_and_none_alone() {
    let mut rig = Rig::new(2);
    let writers = Writers::of(&rig);
    File::options().write(true).open(&rig.loops[1].path).unwrap();
    assert_eq!(writers.heard(), 1, "a writer is heard");
    // Whoever wants it alone cannot have it meanwhile.
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let alone = rustix::fs::open(&rig.loops[0].path, flags, Mode::empty()).unwrap();
    rig.start(&[]);
    let drive = &rig.loops[0];
    let is_free = |status: &serde_json::Value| reasons(status).is_empty();
    rig.wait(&drive.path, "free", is_free);
    let before = rig.reports();
    drive.says_changed(100);
    drive.resize(FIRST_BYTES + MIB);
    rig.wait_size(drive, FIRST_BYTES + MIB);
    rig.wait(&drive.path, "free still", is_free);
    assert_eq!(rig.reports() - before, 1);
    drop(alone);
    // Nor does the program that resizes it.
    assert_eq!(writers.heard(), 0, "somebody opened it for writing");
}

#[test]
fn a_drive_that_is_read_only_is_refused_and_stays_as_it_is() {
    let mut rig = Rig::new(1);
    let drive = &rig.loops[0];
    std::fs::write(&drive.file, vec![0; usize::try_from(FIRST_BYTES).unwrap()]).unwrap();
    drive.detach();
    eventually("it is attached for reading alone", || {
        let mut attach = std::process::Command::new("losetup");
        let output = attach.args(["-r", drive.node()]).arg(&drive.file).output().unwrap();
        output.status.success().then_some(())
    });
    let written = || std::fs::metadata(&drive.file).unwrap().modified().unwrap();
    let before = written();
    let path = drive.path.clone();
    let refused = rig.cluster.target(0);
    rig.start(&[]);
    rig.wait(&path, "denied", |status| reasons(status) == ["ReadOnly"]);
    rig.cluster.expect(&["drive", "add", &refused, "--wait"], 5);
    let drive = &rig.loops[0];
    run("sync", &[]);
    assert_eq!(std::fs::metadata(&drive.file).unwrap().modified().unwrap(), before);
    assert!(std::fs::read(&drive.file).unwrap().iter().all(|byte| *byte == 0));
}

//! Children that die, children that are in the way of each other, and what they inherit.

use std::fs::File;
use std::time::Duration;

use hotbay_host::locks::{AgentLock, LockError};
use hotbay_host::worker::{AttachError, Limits, Request, StartError, WorkerError, Workers};
use rustix::process::Signal;

use crate::Test;
use crate::holders::was_killed;
use crate::rig::{
    LIMIT, Other, Rig, attach, attach_of, block_on, is_dead, kill, seen, state_of, until,
};

pub(crate) const TESTS: &[Test] = &[
    ("a_second_writer_is_refused_and_told_who_writes", second_writer),
    ("a_second_agent_is_refused_and_told_which_is_first", second_agent),
    ("a_child_inherits_its_socket_and_nothing_else", inheritance),
    ("children_are_used_again_and_replaced_when_dead", reuse),
    ("more_children_than_allowed_are_refused", limit),
    ("a_program_that_is_no_child_is_reported", no_child),
];

fn second_writer() {
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let drive = seen(&workers, rig.file("a.img").to_str().unwrap()).await;
        let stopping = rig.workers_with(&["drive-worker", "open-proved"]);
        let mut stopped = stopping.start(Request::Attach(attach_of(&drive)), vec![]).unwrap();
        let pid = stopped.pid();
        until("it stops before it writes", || state_of(pid) == Some('T')).await;
        let Err(AttachError::LockedBy { by }) = attach(&workers, attach_of(&drive)).await else {
            panic!("two writers");
        };
        assert_eq!((by.pid, by.command.as_str()), (Some(pid), "hotbay-worker"));
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut stopped).await.is_err());
        kill(pid, Signal::KILL);
        match tokio::time::timeout(LIMIT, &mut stopped).await.unwrap() {
            Err(WorkerError::Died { pid: dead, status }) => {
                assert!(dead == pid && was_killed(status), "{status}");
            }
            other => panic!("{other:?}"),
        }
        attach(&workers, attach_of(&drive)).await.unwrap();
    });
}

fn second_agent() {
    let rig = Rig::new();
    let first = Other::holding("hold-agent-lock", rig.runtime_dir.path().to_str().unwrap());
    let name = "node-a".parse().unwrap();
    match AgentLock::take(&rig.runtime_dir, &name) {
        Err(LockError::LockedBy { by, .. }) => assert_eq!(by.pid, Some(first.pid())),
        other => panic!("{other:?}"),
    }
    drop(first);
    AgentLock::take(&rig.runtime_dir, &name).unwrap();
}

fn inheritance() {
    block_on(async {
        let rig = Rig::new();
        // As if the agent's own parent had left it something open.
        let leaked = File::open("/etc/hostname").or_else(|_| File::open("/etc/passwd")).unwrap();
        rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
        let workers = rig.workers_with(&["drive-worker", "open-locked"]);
        let drive = seen(&workers, rig.file("a.img").to_str().unwrap()).await;
        let running = workers.start(Request::Attach(attach_of(&drive)), vec![]).unwrap();
        let pid = running.pid();
        until("it is at work", || state_of(pid) == Some('T')).await;
        let open: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
            .collect();
        // Socket, null, standard error, and the lock that it took itself.
        assert_eq!(open.len(), 4, "{open:?}");
        assert!(!open.iter().any(|path| path.starts_with("/etc")), "{open:?}");
        kill(pid, Signal::KILL);
        assert!(matches!(running.await, Err(WorkerError::Died { .. })));
    });
}

fn reuse() {
    block_on(async {
        let rig = Rig::new();
        let workers = rig.workers();
        let first = workers.start(Request::Close, vec![]).unwrap();
        let pid = first.pid();
        first.await.unwrap();
        let second = workers.start(Request::Close, vec![]).unwrap();
        assert_eq!(second.pid(), pid, "an idle child is used again");
        second.await.unwrap();
        kill(pid, Signal::KILL);
        until("it is dead", || is_dead(pid)).await;
        let third = workers.start(Request::Close, vec![]).unwrap();
        assert_ne!(third.pid(), pid);
        third.await.unwrap();
    });
}

fn limit() {
    block_on(async {
        let rig = Rig::new();
        let limits = Limits { idle: 1, busy: 1 };
        let workers =
            Workers::new("/proc/self/exe", ["drive-worker"], rig.runtime_dir.clone(), limits);
        let first = workers.start(Request::Close, vec![]).unwrap();
        let file = File::open("/dev/null").unwrap();
        let refused = workers.start(Request::Close, vec![file.into()]).unwrap_err();
        assert!(matches!(refused.why, StartError::TooMany { limit: 1 }));
        assert_eq!(refused.descriptors.len(), 1, "what was not taken comes back");
        first.await.unwrap();
        let mut again = None;
        until("there is room again", || {
            again = workers.start(Request::Close, vec![]).ok();
            again.is_some()
        })
        .await;
        again.unwrap().await.unwrap();
    });
}

fn no_child() {
    block_on(async {
        let rig = Rig::new();
        let new = |program: &str| {
            Workers::new(program, [""; 0], rig.runtime_dir.clone(), Limits::default())
        };
        let missing = new("/nonexistent/program").start(Request::Close, vec![]).unwrap_err();
        assert!(matches!(missing.why, StartError::Spawn { .. }));
        let died = new("true").start(Request::Close, vec![]).unwrap().await;
        assert!(matches!(died, Err(WorkerError::Died { .. })), "{died:?}");
    });
}

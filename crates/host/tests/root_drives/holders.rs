//! The other processes of the tests: each is this program, holds something, and says `ready`.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use hotbay_host::RuntimeDir;
use hotbay_host::locks::AgentLock;
use rustix::process::{Signal, kill_process};

/// Does one of the `hold-...` commands until it is killed.
pub(crate) fn hold(how: &str, path: &str) -> ExitCode {
    match how {
        "hold-for-reading" => {
            let _file = File::open(path).unwrap();
            wait_for_end()
        }
        "hold-for-writing" => {
            let _file = File::options().write(true).open(path).unwrap();
            wait_for_end()
        }
        "hold-in-thread" => {
            let path = path.to_owned();
            let thread = std::thread::spawn(move || {
                leave_the_shared_table();
                let _file = File::open(path).unwrap();
                wait_for_end()
            });
            thread.join().unwrap()
        }
        "hold-agent-lock" => {
            let dir = RuntimeDir::at(path).unwrap();
            let _lock = AgentLock::take(&dir, &"node-a".parse().unwrap()).unwrap();
            wait_for_end()
        }
        other => panic!("{other}"),
    }
}

/// A child of the agent that stops at one step, as by SIGSTOP, until someone lets it go on.
pub(crate) fn worker_that_stops_at(step: &str) -> ExitCode {
    static STEP: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    STEP.set(step.to_owned()).unwrap();
    hotbay_host::worker::worker_main(|reached| {
        if STEP.get().is_some_and(|step| step == reached) {
            kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
        }
    })
}

/// Gives this thread a table of descriptors of its own.
fn leave_the_shared_table() {
    #[expect(unsafe_code, reason = "there is no safe wrapper that works per thread")]
    // SAFETY: the thread goes on with copies of the same descriptors.
    let result = unsafe { libc::unshare(libc::CLONE_FILES) };
    assert_eq!(result, 0);
}

fn wait_for_end() -> ExitCode {
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// Whether a process ended by SIGKILL.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGKILL)
}

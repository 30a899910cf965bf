//! Where tests kill a process, or stop it: at any step that a crash or a stall could fall between.
//!
//! - `HOTBAY_DIE_AT=NAME` and `HOTBAY_DIE_ONCE=FILE`: the process that reaches the step NAME and manages to remove FILE
//!   dies there, as by `kill -9`.
//! - `HOTBAY_STOP=FILE`: the process that reaches the step that FILE names and manages to remove FILE stops there, as
//!   by `kill -STOP`, until somebody lets it go on.
//!
//! Only in builds with debug assertions; a release has none of it.

/// Passes the step called `name`.
pub(crate) fn checkpoint(name: &'static str) {
    #[cfg(debug_assertions)]
    {
        told::die(name);
        told::stop(name);
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
mod told {
    use std::env;
    use std::ffi::OsString;
    use std::fs;
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    pub(super) fn die(name: &'static str) {
        static TOLD: OnceLock<Option<(String, OsString)>> = OnceLock::new();
        let told = TOLD.get_or_init(|| {
            Some((env::var("HOTBAY_DIE_AT").ok()?, env::var_os("HOTBAY_DIE_ONCE")?))
        });
        let Some((at, once)) = told else { return };
        if at == name && fs::remove_file(once).is_ok() {
            send(Signal::KILL);
        }
    }

    pub(super) fn stop(name: &'static str) {
        static TOLD: OnceLock<Option<OsString>> = OnceLock::new();
        let Some(file) = TOLD.get_or_init(|| env::var_os("HOTBAY_STOP")) else { return };
        let is_here = fs::read_to_string(file).is_ok_and(|at| at == name);
        if is_here && fs::remove_file(file).is_ok() {
            send(Signal::STOP);
        }
    }

    /// If the kernel does not obey, the test that waits for it will say so.
    fn send(signal: Signal) {
        kill_process(getpid(), signal).unwrap_or_default();
    }
}

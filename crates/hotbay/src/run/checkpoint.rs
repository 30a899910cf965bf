//! Where tests kill a process: at any step that a crash could fall between.
//!
//! `HOTBAY_DIE_AT=NAME` and `HOTBAY_DIE_ONCE=FILE`: the process that reaches the step NAME and manages to remove FILE
//! dies there, as by `kill -9`. Only in builds with debug assertions; a release has none of it.

/// Passes the step called `name`.
pub(crate) fn checkpoint(name: &'static str) {
    #[cfg(debug_assertions)]
    die_if_told(name);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(debug_assertions)]
fn die_if_told(name: &'static str) {
    use std::sync::OnceLock;

    static TOLD: OnceLock<Option<(String, std::ffi::OsString)>> = OnceLock::new();
    let told = TOLD.get_or_init(|| {
        Some((std::env::var("HOTBAY_DIE_AT").ok()?, std::env::var_os("HOTBAY_DIE_ONCE")?))
    });
    let Some((at, once)) = told else { return };
    if at != name || std::fs::remove_file(once).is_err() {
        return;
    }
    let me = rustix::process::getpid();
    // If the kernel does not obey, the test that waits for it will say so.
    rustix::process::kill_process(me, rustix::process::Signal::KILL).unwrap_or_default();
}

//! Other processes of the machine, as far as we name them to a person.

/// The name of a process as `ps -o comm` shows it; empty once the process is gone.
///
/// Not its command line: that is read through the process's memory, and waits for a process that hangs.
pub(crate) fn command_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|text| text.trim_end().to_owned())
        .unwrap_or_default()
}

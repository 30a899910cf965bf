//! Where log lines go: standard error, as text on a terminal and as JSON elsewhere.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `HOTBAY_LOG` chooses what is logged, such as `debug`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("HOTBAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        let colours = std::env::var_os("NO_COLOR").is_none();
        lines.with_ansi(colours).with_target(false).init();
    } else {
        lines.json().init();
    }
}

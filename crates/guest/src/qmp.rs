//! QEMU's control socket: one command at a time, and the events that come between answers.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::GuestError;
use crate::lines::Lines;

const WHAT: &str = "control socket";
/// How long QEMU may take to begin, on a machine that has much else to do.
const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Most events that are kept for somebody who may ask for them.
const MAX_EVENTS: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Qmp {
    lines: Lines,
    events: Vec<Value>,
}

impl Qmp {
    pub(crate) fn connect(socket: &Path) -> Result<Self, GuestError> {
        let mut lines = Lines::connect(WHAT, socket, START_LIMIT)?;
        lines.next(START_LIMIT)?;
        let mut qmp = Self { lines, events: Vec::new() };
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and gives what it returned.
    pub(crate) fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, GuestError> {
        self.lines.send(&json!({"execute": command, "arguments": arguments}).to_string())?;
        let until = Instant::now() + ANSWER_LIMIT;
        loop {
            let mut said = self.said(until)?;
            if let Some(error) = said.get("error") {
                let why = error["desc"].as_str().unwrap_or_default().to_owned();
                return Err(GuestError::Refused { command: command.to_owned(), why });
            }
            match said.get_mut("return") {
                Some(value) => return Ok(value.take()),
                None => self.keep(said),
            }
        }
    }

    /// Waits for an event, which may have come already since the last one that was asked for.
    pub(crate) fn event(
        &mut self,
        name: &str,
        limit: Duration,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value, GuestError> {
        let wanted = |event: &Value| event["event"] == name && is_it(&event["data"]);
        let until = Instant::now() + limit;
        loop {
            if let Some(at) = self.events.iter().position(wanted) {
                return Ok(self.events.remove(at));
            }
            let said = self.said(until)?;
            self.keep(said);
        }
    }

    fn said(&mut self, until: Instant) -> Result<Value, GuestError> {
        let line = self.lines.next(until.saturating_duration_since(Instant::now()))?;
        serde_json::from_str(&line).map_err(|_| GuestError::Confused { what: WHAT, line })
    }

    fn keep(&mut self, event: Value) {
        if self.events.len() == MAX_EVENTS {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

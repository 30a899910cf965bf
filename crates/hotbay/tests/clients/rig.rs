//! `hotbay up` over plain files, listening for clients on a free port of this machine; stopped with the value.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::cluster::{Part, TestDrive};

pub(crate) struct Up {
    pub(crate) name: String,
    address: String,
    running: Option<Part>,
    drives: Vec<TestDrive>,
    dir: tempfile::TempDir,
}

impl Up {
    /// Runs, with a node that is ready and has two drives.
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let unique = dir.path().file_name().unwrap().to_string_lossy().to_lowercase();
        let name = format!("up{}", unique.replace(|c: char| !c.is_ascii_alphanumeric(), ""));
        let drive = |bay| TestDrive::new(dir.path().join(format!("bay-{bay}.img")), false);
        let drives = (0..2).map(drive).collect();
        // Free now; ports are given out in turn, so that it is not another's at once.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut up = Self { name, address: free.to_string(), running: None, drives, dir };
        up.start_again();
        up
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn spawn(&self) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command
            .arg("up")
            .args(["--name", &self.name])
            .arg("--data-dir")
            .arg(self.path().join("data"));
        command.arg("--listen").arg(self.path().join("api.sock")).args(["--listen", &self.address]);
        for (bay, drive) in self.drives.iter().enumerate() {
            command.arg("--drives").arg(format!("{bay}={}", drive.path.display()));
        }
        let log = std::fs::File::create(self.path().join("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap()
    }

    pub(crate) fn start_again(&mut self) {
        let mut child = self.spawn();
        let output = BufReader::new(child.stdout.take().unwrap());
        self.running = Some(Part::of(child));
        let mut said = Vec::new();
        for line in output.lines() {
            said.push(line.unwrap());
            if said.last().unwrap().contains("hotbay get drives") {
                assert!(said.concat().contains(&format!("clients {}", self.url())), "{said:?}");
                return;
            }
        }
        panic!("it ended: {said:?}\n{}", std::fs::read_to_string(self.path().join("log")).unwrap());
    }

    /// Starts it, which must not go well; gives what it said.
    pub(crate) fn fails_to_start(&self) -> String {
        let output = self.spawn().wait_with_output().unwrap();
        assert!(!output.status.success());
        std::fs::read_to_string(self.path().join("log")).unwrap()
    }

    pub(crate) fn stop(&mut self) {
        assert!(self.running.take().unwrap().stop());
    }

    /// A token, made on the Unix socket.
    pub(crate) fn token(&self, name: &str, may: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(["token", "create", "--client", name, "--may", may]);
        let output = command.env("HOTBAY_API", self.path().join("api.sock")).output().unwrap();
        let aside = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{aside}");
        for words in [format!("HOTBAY_API={}", self.url()), format!("{}/v1/drives", self.url())] {
            assert!(aside.contains(&words), "{aside}");
        }
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// The client, with a token.
    pub(crate) fn hotbay(&self, token: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(arguments).stdin(Stdio::null());
        command.env("HOTBAY_API", self.url()).env("HOTBAY_TOKEN", token);
        command
    }

    /// Runs the client with a token; it must answer with this exit code. Gives what it printed.
    pub(crate) fn expect(&self, token: &str, arguments: &[&str], code: i32) -> String {
        let (exit, text) = ran(&mut self.hotbay(token, arguments));
        assert_eq!(exit, Some(code), "hotbay {arguments:?} printed:\n{text}");
        text
    }

    /// The same on the Unix socket.
    pub(crate) fn expect_local(&self, arguments: &[&str], code: i32) -> String {
        let mut command = self.hotbay("", arguments);
        let (exit, text) = ran(command.env("HOTBAY_API", self.path().join("api.sock")));
        assert_eq!(exit, Some(code), "hotbay {arguments:?} printed:\n{text}");
        text
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if let Some(running) = self.running.take().filter(|_| !std::thread::panicking()) {
            running.stop();
        }
    }
}

/// Runs a command; gives its exit code, and what it printed.
pub(crate) fn ran(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

//! The configuration file, read by the real program.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cluster::{Part, eventually};
use serde_json::Value;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, text: &str) -> PathBuf {
        let path = self.path("hotbay.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        path
    }
}

/// The program with nothing of the environment that could change what it does.
fn hotbay(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    for name in ["HOTBAY_API", "HOTBAY_CONFIG", "HOTBAY_DATA_DIR", "HOTBAY_JOIN"] {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn nothing_is_started_with_a_file_that_cannot_be_understood() {
    let folder = Folder::new();
    let data = folder.path("data");
    let file =
        folder.file(&format!("data-dir = '{}'\n\n[registry]\nlisen = 'x'\n", data.display()));
    let absent = folder.path("absent.toml");
    for command in ["up", "controller", "node"] {
        let output = hotbay(&[command, "--config", text(&file)]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let expected = format!(
            "error: {0}, line 4, column 1: there is no setting \"lisen\" in [registry]\n  nothing was started\n  \
             did you mean listen?\n  when it is put right:  hotbay config check {0}\n",
            file.display()
        );
        assert_eq!(said(&output), expected);
        let output = hotbay(&[command]).env("HOTBAY_CONFIG", &absent).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(said(&output).contains("there is no configuration file"), "{output:?}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = hotbay(&["up", "--config", text(&file)]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("chmod go-w"), "{output:?}");
    assert!(!data.exists());
}

#[test]
fn the_settings_in_effect_are_shown_with_where_they_came_from() {
    let folder = Folder::new();
    let file = folder.file("name = 'from-file'\n[registry]\nlisten = ['/srv/a.sock']\n");
    let shown = |more: &[&str]| {
        let mut command = hotbay(&["config", "check"]);
        command.arg(&file).args(more).env("HOTBAY_DATA_DIR", "/environment");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = shown(&[]);
    let row = |name: &str| table.lines().find(|line| line.starts_with(name)).unwrap();
    let words = |name: &str| row(name).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words("data-dir"), "data-dir /environment environment, HOTBAY_DATA_DIR");
    assert_eq!(words("name"), format!("name from-file {}, line 1", file.display()));
    assert_eq!(words("registry.http"), "registry.http /srv/http.sock default");
    let object: Value = serde_json::from_str(&shown(&["-o", "json"])).unwrap();
    assert_eq!(object["file"], text(&file));
    let setting = |name: &str| {
        let all = object["settings"].as_array().unwrap();
        all.iter().find(|setting| setting["name"] == name).unwrap().clone()
    };
    let listen = serde_json::json!({
        "name": "registry.listen", "value": ["/srv/a.sock"], "from": "file", "line": 3
    });
    assert_eq!(setting("registry.listen"), listen);
    assert_eq!(setting("node.join")["value"], Value::Null);
    assert!(shown(&["-o", "yaml"]).contains("name: registry.listen"));
    let mut cut_short = hotbay(&["config", "check", text(&file)]);
    let output = cut_short.env("HOTBAY_JOIN", "hotbay-join-1,x").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(said(&output).contains("HOTBAY_JOIN in the environment"), "{output:?}");
    let output = hotbay(&["config", "check", "/nonexistent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn rules_are_checked_and_shown() {
    let folder = Folder::new();
    let filters = folder.path("filters.toml");
    let file = folder.file(&format!(
        "[node]\nfilters = '{}'\n[[auto-add]]\nname = 'new-nvme'\nmedia = 'NVMe'\nmin-size = '1TB'\n",
        filters.display()
    ));
    let check = |more: &[&str]| {
        let output = hotbay(&["config", "check", text(&file)]).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout.clone()).unwrap(), said(&output))
    };
    let (code, _, said) = check(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.starts_with("error: cannot read the filter file "), "{said}");
    fs::write(&filters, "[[filter]]\nexclude = { transprot = 'usb' }\n").unwrap();
    fs::set_permissions(&filters, fs::Permissions::from_mode(0o644)).unwrap();
    let (code, _, said) = check(&[]);
    assert_eq!(code, Some(2), "{said}");
    let place = format!("error: {}, line 2, column 13: unknown field", filters.display());
    assert!(said.starts_with(&place), "{said}");
    fs::write(&filters, "[[filter]]\nexclude = { transport = 'usb' }\n").unwrap();
    let (code, shown, said) = check(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(shown.contains("\nauto-add  {"), "{shown}");
    assert!(shown.ends_with("filters.toml: 1 filter rule\n"), "{shown}");
    let object: Value = serde_json::from_str(&check(&["-o", "json"]).1).unwrap();
    let rule = serde_json::json!({ "name": "new-nvme", "media": "NVMe", "min-size": "1TB" });
    assert_eq!(object["autoAdd"], serde_json::json!([rule]));
}

/// `up` runs by its file. What it started is not told otherwise by a file that changes while it runs.
#[test]
fn up_runs_by_its_file_and_its_parts_do_not_read_it_again() {
    let folder = Folder::new();
    let drive = folder.path("drive.img");
    File::create_new(&drive).unwrap().set_len(64 << 20).unwrap();
    let name = format!("test-{}", std::process::id());
    let api = folder.path("api.sock");
    let file = folder.file(&format!(
        "data-dir = '{}'\nname = '{name}'\ndrives = '7={}'\n[registry]\nlisten = '{}'\n",
        folder.path("data").display(),
        drive.display(),
        api.display()
    ));
    let log = File::create(folder.path("log")).unwrap();
    let mut command = hotbay(&["up"]);
    command.env("HOTBAY_CONFIG", &file).stdout(Stdio::null()).stderr(log);
    let up = Part::of(command.spawn().unwrap());
    let bay = || {
        let output =
            hotbay(&["get", "drives", "-o", "json", "--api", text(&api)]).output().unwrap();
        let drives: Value = serde_json::from_slice(&output.stdout).ok()?;
        let status = &drives["items"].as_array()?.first()?["status"];
        (status["node"] == name.as_str()).then(|| status["bay"].as_str().unwrap().to_owned())
    };
    assert_eq!(eventually("the drive of the file is there", bay), "7");
    assert!(folder.path("data/registry").is_dir() && folder.path("data/node").is_dir());
    assert!(folder.path("http.sock").exists());

    // Both parts are started again, beside a file that says nothing good any more.
    fs::write(&file, "drives = 5\n").unwrap();
    for part in ["controller", "node"] {
        let old = child(up.pid(), part);
        cluster::signal(old, "KILL");
        eventually("the part is started again", || {
            find_child(up.pid(), part).filter(|pid| *pid != old)
        });
    }
    assert_eq!(eventually("the drive is there again", bay), "7");
    assert!(up.stop());
}

fn child(parent: u32, part: &str) -> u32 {
    eventually("the part runs", || find_child(parent, part))
}

/// The child of `up` that runs this part.
fn find_child(parent: u32, part: &str) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let runs = |pid: &&str| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').nth(1) == Some(part)
    };
    children.split_whitespace().find(runs)?.parse().ok()
}

//! Filters and rules that add drives, from files, with the real program over drives that are files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use cluster::{Cluster, Part, eventually};
use serde_json::Value;

struct Rig {
    folder: tempfile::TempDir,
    name: String,
    _up: Part,
}

impl Rig {
    /// `hotbay up` over `kept.img` and `left.img`, with a rule that adds every empty file, and filters.
    fn start(filters: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for drive in ["kept.img", "left.img"] {
            File::create_new(path(drive)).unwrap().set_len(64 << 20).unwrap();
        }
        write(path("filters.toml"), filters);
        let name = format!("filtered-{}", std::process::id());
        let text = format!(
            "data-dir = '{0}/data'\nname = '{name}'\ndrives = '{0}/*.img'\n[registry]\nlisten = '{0}/api.sock'\n\
             [node]\nfilters = '{0}/filters.toml'\n[[auto-add]]\nname = 'files'\nmedia = 'File'\nmax-size = '1GB'\n",
            folder.path().display(),
        );
        write(path("hotbay.toml"), &text);
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(["up", "--config"]).arg(path("hotbay.toml")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(path("log")).unwrap());
        let up = Part::of(command.spawn().unwrap());
        Self { folder, name, _up: up }
    }

    fn filters(&self, text: &str) {
        let new = self.folder.path().join("new");
        write(new.clone(), text);
        fs::rename(new, self.folder.path().join("filters.toml")).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(args).arg("--api").arg(self.folder.path().join("api.sock")).output().unwrap()
    }

    fn object(&self, args: &[&str]) -> Option<Value> {
        serde_json::from_slice(&self.run(&[args, &["-o", "json"]].concat()).stdout).ok()
    }

    /// One drive's object, by the name of its file.
    fn drive(&self, file: &str) -> Option<Value> {
        let drives = self.object(&["get", "drives"])?;
        let of_file = |drive: &&Value| drive["status"]["path"].as_str().unwrap().ends_with(file);
        drives["items"].as_array()?.iter().find(of_file).cloned()
    }

    fn conditions(&self) -> Option<Value> {
        Some(self.object(&["get", "nodes", &self.name])?["status"]["conditions"].clone())
    }
}

fn write(path: PathBuf, text: &str) {
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
}

const LEAVE: &str = "[[filter]]\nname = 'not-this'\nexclude = { path = '*/left.img' }\n";

#[test]
fn a_filter_leaves_a_drive_out_until_its_file_says_otherwise() {
    let rig = Rig::start(LEAVE);
    let attached =
        |file: &str| rig.drive(file).filter(|drive| drive["status"]["state"] == "AttachedDevice");
    let kept = eventually("the rule adds the empty drive", || attached("kept.img"));
    assert_eq!(kept["status"]["askedBy"], "auto-add rule files");
    let left = rig.drive("left.img").unwrap();
    assert_eq!(left["status"]["state"], "UnknownDevice");
    assert_eq!(left["status"]["denied"][0]["reason"], "Filtered");
    assert_eq!(left["status"]["denied"][0]["rule"], "not-this");
    let name = left["metadata"]["name"].as_str().unwrap();
    let refused = rig.run(&["drive", "add", name]);
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("is not added: it is filtered out by its node (not-this)"), "{said}");
    let explained = rig.object(&["drive", "explain", name]).unwrap();
    let filter = explained["reasons"].as_array().unwrap().iter().find(|r| r["about"] == "filter");
    assert_eq!(filter.unwrap()["message"], format!("left out by {}: not-this", rig.name));

    // A mistake: the filters of before stay, and the node says what is wrong.
    rig.filters("[[filter]]\nexclude = { pth = 'x' }\n");
    let invalid = eventually("the node complains", || {
        rig.conditions().filter(|conditions| conditions[0]["type"] == "FiltersInvalid")
    });
    let message = invalid[0]["message"].as_str().unwrap();
    assert!(message.contains("filters.toml, line 2, column 13: unknown field `pth`"), "{message}");
    assert!(rig.drive("left.img").unwrap()["status"]["denied"][0]["reason"] == "Filtered");

    // Put right, and without the rule: the drive is as good as any, and the other rule adds it.
    rig.filters("# nothing is left out\n");
    eventually("the drive is added", || attached("left.img"));
    assert_eq!(rig.conditions().unwrap(), serde_json::json!([]));

    // A filter takes nothing out of operation.
    rig.filters("[[filter]]\nname = 'none'\nexclude = {}\n");
    eventually("both are left out now", || {
        let filtered = |file| rig.drive(file).unwrap()["status"]["denied"][0]["rule"] == "none";
        (filtered("kept.img") && filtered("left.img")).then_some(())
    });
    assert!(attached("kept.img").is_some() && attached("left.img").is_some());
}

#[test]
fn what_is_written_to_a_file_is_seen_while_its_size_stays() {
    let cluster = Cluster::started(1, false);
    let write = |byte: u8| {
        let mut file = File::options().write(true).open(&cluster.drives[0].file).unwrap();
        file.write_all(&[byte; 4096]).unwrap();
    };
    let denied = |expected: Value| {
        eventually(&format!("denied for {expected}"), || {
            let drive = cluster.drive(0);
            (drive["status"]["denied"][0]["reason"] == expected).then_some(())
        });
    };
    denied(Value::Null);
    write(7);
    denied(Value::from("NotEmpty"));
    write(0);
    denied(Value::Null);
}

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
    up: Option<Part>,
}

impl Rig {
    /// `hotbay up` over `kept.img` and `left.img`, with a rule that adds every empty file, and filters.
    fn start(filters: &str) -> Self {
        Self::with(filters, "media = 'File'\nmax-size = '1GB'\n")
    }

    /// The same, with another rule.
    fn with(filters: &str, rule: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for drive in ["kept.img", "left.img"] {
            File::create_new(path(drive)).unwrap().set_len(64 << 20).unwrap();
        }
        write(path("filters.toml"), filters);
        let name = format!("filtered-{}", std::process::id());
        let text = format!(
            "data-dir = '{0}/data'\nname = '{name}'\ndrives = '{0}/*.img'\n[registry]\nlisten = '{0}/api.sock'\n\
             [node]\nfilters = '{0}/filters.toml'\nlabels = {{ rack = 'a' }}\n\
             [[auto-add]]\nname = 'files'\n{rule}",
            folder.path().display(),
        );
        write(path("hotbay.toml"), &text);
        let mut rig = Self { folder, name, up: None };
        rig.up();
        rig
    }

    /// Starts it; once more, if it runs already.
    fn up(&mut self) {
        if let Some(running) = self.up.take() {
            assert!(running.stop());
        }
        let path = |name: &str| self.folder.path().join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
        command.args(["up", "--config"]).arg(path("hotbay.toml")).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(File::create(path("log")).unwrap());
        self.up = Some(Part::of(command.spawn().unwrap()));
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

/// What an explanation says about one thing.
fn messages<'a>(explained: &'a Value, about: &str) -> Vec<&'a str> {
    let reasons = explained["reasons"].as_array().unwrap().iter();
    let of_it = reasons.filter(|reason| reason["about"] == about);
    of_it.map(|reason| reason["message"].as_str().unwrap()).collect()
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
    let rule = "rule 1 (not-this): exclude = { path = \"*/left.img\" }";
    assert_eq!(messages(&explained, "filter"), [format!("left out by {}: {rule}", rig.name)]);
    let refused =
        "rule files did not take it: it fits, but it is filtered out by its node (not-this)";
    assert_eq!(messages(&explained, "auto-add"), [refused]);
    let kept = rig.object(&["drive", "explain", kept["metadata"]["name"].as_str().unwrap()]);
    assert_eq!(messages(&kept.unwrap(), "auto-add"), ["rule files took it: it has added it"]);

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

#[test]
fn a_label_makes_the_rules_look_at_the_drives_again() {
    let mut rig = Rig::with("", "node-labels = { rack = 'b' }\nmax-size = '1GB'\n");
    let text = |output: &Output| {
        String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
    };
    let labels =
        |rig: &Rig| Some(rig.object(&["get", "nodes", &rig.name])?["spec"]["labels"].clone());
    eventually("both drives are known", || rig.drive("left.img").and(rig.drive("kept.img")));
    assert_eq!(labels(&rig).unwrap(), serde_json::json!({ "rack": "a" }), "as its file says");
    let name = rig.drive("kept.img").unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    let explained = rig.object(&["drive", "explain", &name]).unwrap();
    let why = "rule files did not take it: its node has the label rack=a, and rack=b is asked for";
    assert_eq!(messages(&explained, "auto-add"), [why]);

    let host = rig.name.clone();
    let label = |rig: &Rig, more: &[&str]| rig.run(&[&["host", "label", &host], more].concat());
    let refused = label(&rig, &["rack=b"]);
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert!(text(&refused).contains("is labelled rack=a already"), "{}", text(&refused));
    let mistaken = label(&rig, &["ra ck=b"]);
    assert_eq!(mistaken.status.code(), Some(2), "{mistaken:?}");
    let absent = rig.run(&["host", "label", "node-x", "rack=b"]);
    assert_eq!(absent.status.code(), Some(4), "{absent:?}");
    let dry = text(&label(&rig, &["rack=b", "--overwrite", "--dry-run"]));
    assert_eq!(dry.matches("a rule would add it").count(), 2, "{dry}");
    assert_eq!(labels(&rig).unwrap(), serde_json::json!({ "rack": "a" }));

    let done = label(&rig, &["rack=b", "zone=z", "--overwrite"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(text(&done).matches("adding, by a rule").count(), 2, "{}", text(&done));
    eventually("both are in operation", || {
        let attached = |file| rig.drive(file).unwrap()["status"]["state"] == "AttachedDevice";
        (attached("kept.img") && attached("left.img")).then_some(())
    });
    assert!(text(&rig.run(&["get", "nodes", "-o", "wide"])).contains("rack=b,zone=z"));
    let described = text(&rig.run(&["describe", "node", &host]));
    assert!(described.contains("\nLabel         rack=b\n"), "{described}");
    assert!(described.contains(": rack=b (was a), zone=z."), "{described}");

    // What a person has said stays, whatever the file says at the next start.
    assert_eq!(label(&rig, &["zone-"]).status.code(), Some(0));
    rig.up();
    let node = || rig.object(&["get", "nodes", &rig.name]);
    eventually("the agent is there again", || {
        node().filter(|node| node["status"]["ready"] == true)
    });
    assert_eq!(labels(&rig).unwrap(), serde_json::json!({ "rack": "b" }));
}

//! The real `hotbay` program against a real registry over its real API; only the agent is made up.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod many;
mod rig;

use std::process::Stdio;

use rig::{BLOCKER, Manner, Rig, finish, hotbay};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

/// Starts a command whose output is read line by line.
fn start(rig: &Rig, args: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = rig.command(args).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Reads until a line holds `text`.
async fn line_with(lines: &mut Lines<BufReader<ChildStdout>>, text: &str) -> String {
    let mut seen = Vec::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains(text) {
            return line;
        }
        seen.push(line);
    }
    panic!("no {text:?} in {seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_shows_every_drive_and_why_one_is_not_in_use() {
    let rig = Rig::start().await;
    let ran = rig.run(&["get", "drives"]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let rows: Vec<Vec<&str>> =
        ran.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["NAME", "NODE", "BAY", "PATH", "MODEL", "SERIAL", "SIZE", "FREE", "MEDIA", "STATE", "WHY"]
    );
    assert_eq!(rows.len(), 4);
    assert!(ran.stdout.lines().any(|line| line.ends_with("system drive (mounted at /, /boot)")));
    let bay_0 = rows.iter().find(|row| row.contains(&"S3X1A9")).unwrap();
    assert_eq!(
        bay_0[1..],
        [
            "node-a",
            "0",
            "/dev/nvme0n1",
            "ACME",
            "NV-2000",
            "S3X1A9",
            "1.8T",
            "-",
            "NVMe",
            "Unknown"
        ]
    );
    assert!(!ran.stdout.contains('\u{1b}'), "colour on a pipe");

    let usable = rig.run(&["get", "drives", "--usable", "-o", "name"]).await;
    assert_eq!(usable.stdout.lines().count(), 2);
    let wide = rig.run(&["get", "-o", "wide", "dr"]).await;
    let titles: Vec<_> = wide.stdout.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(titles[..11], rows[0]);
    let more = ["UID", "GENERATION", "SINCE", "ASKED", "BY", "VENDOR", "FIRMWARE", "TRANSPORT"];
    assert_eq!(titles[11..], more);
    let nodes = rig.run(&["get", "nodes"]).await;
    assert!(nodes.stdout.contains("node-a  Ready  3       0"), "{nodes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_those_of_the_api() {
    let rig = Rig::start().await;
    let list = rig.run(&["get", "drives", "-o", "json"]).await;
    let list: serde_json::Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(list["apiVersion"], "hotbay.dev/v1alpha1");
    assert_eq!(list["kind"], "DriveList");
    assert_eq!(list["items"].as_array().unwrap().len(), 3);

    // However a drive is named, it is the same object, alone.
    let name = rig.name("S3X1A9").await;
    let one = rig.drive(&name).await;
    assert_eq!(one["kind"], "Drive");
    assert_eq!(one["status"]["sizeBytes"], 2_000_398_934_016_u64);
    let id = one["metadata"]["uid"].as_str().unwrap();
    for target in ["node-a:bay-0", "node-a:/dev/nvme0n1", "S3X1A9", id] {
        assert_eq!(rig.drive(target).await, one, "{target}");
    }

    let yaml = rig.run(&["get", "drives", &name, "-o", "yaml"]).await.stdout;
    assert!(yaml.starts_with("apiVersion: hotbay.dev/v1alpha1\nkind: Drive\n"), "{yaml}");
    let read: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(read, one);

    let names = rig.run(&["get", "drives", "S3X1B2", "S3X1A9", "-o", "name"]).await.stdout;
    assert_eq!(names, format!("{}\n{name}\n", rig.name("S3X1B2").await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drive_is_added_and_removed_to_the_end() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    let added = rig.run(&["drive", "add", "node-a:bay-0", "--wait"]).await;
    assert_eq!((added.code, added.stderr.as_str()), (Some(0), ""));
    assert!(added.stdout.contains(&format!("{name} (node-a bay 0, serial S3X1A9): adding\n")));
    assert!(added.stdout.contains(&format!("\n{name} is in operation after ")), "{added:?}");
    let again = rig.run(&["drive", "add", &name]).await;
    assert_eq!(again.code, Some(0));
    assert!(again.stdout.contains("is in operation already; nothing was changed"), "{again:?}");

    // The close is confirmed only after the command has been seen to wait for what is in the way.
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["drive", "remove", "S3X1A9", "--wait"]);
    line_with(&mut lines, &format!("still in use by {BLOCKER}")).await;
    assert_eq!(rig.drive(&name).await["status"]["state"], "ClosingDevice");
    rig.agent(Manner::Obey);
    let last = line_with(&mut lines, "out of operation").await;
    assert!(
        last.starts_with(&format!(
            "{name} is out of operation: closed, and that is proved, after "
        ))
    );
    assert_eq!(finish(child).await.code, Some(0));
    assert_eq!(rig.drive(&name).await["status"]["state"], "DetachedDevice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_is_not_over_says_so_and_exits_with_3() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    assert_eq!(rig.run(&["drive", "add", &name, "--wait"]).await.code, Some(0));
    rig.agent(Manner::Hold);
    let removed = rig.run(&["drive", "remove", &name]).await;
    assert_eq!(removed.code, Some(3));
    assert!(removed.stdout.contains(": closing; "), "{removed:?}");
    assert!(removed.stdout.contains(&format!("hotbay drive remove {name} --wait")));

    let timed_out = rig.run(&["drive", "remove", &name, "--wait", "--timeout", "300ms"]).await;
    assert_eq!(timed_out.code, Some(3));
    assert!(timed_out.stderr.starts_with("error: not out of operation after 0."), "{timed_out:?}");
    assert!(timed_out.stderr.contains(&format!("{name}: still in use by {BLOCKER}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_the_waiting_alone() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["drive", "add", &name, "--wait"]);
    line_with(&mut lines, "still in use by").await;
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.starts_with("Stopped waiting, not the adding.\n"), "{ran:?}");
    assert!(ran.stderr.contains(&format!("hotbay drive add {name} --wait")), "{ran:?}");
    assert_eq!(rig.drive(&name).await["status"]["state"], "AttachingDevice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_does_not_overrule_somebody_who_takes_the_drive_back() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    assert_eq!(rig.run(&["drive", "add", &name, "--wait"]).await.code, Some(0));
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["drive", "remove", &name, "--wait"]);
    line_with(&mut lines, "still in use by").await;
    assert_eq!(rig.run(&["drive", "add", &name]).await.code, Some(0));
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(5));
    assert!(
        ran.stderr.contains("is not being removed any more: it was added meanwhile"),
        "{ran:?}"
    );
    assert_eq!(rig.drive(&name).await["status"]["state"], "AttachingDevice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_outlives_a_registry_that_goes_away_and_comes_back() {
    let mut rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["drive", "add", &name, "--wait"]);
    line_with(&mut lines, "still in use by").await;
    rig.cut();
    line_with(&mut lines, "no registry answers at").await;
    rig.agent(Manner::Obey);
    rig.serve().await;
    line_with(&mut lines, " is in operation after ").await;
    assert_eq!(finish(child).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_not_sent_again_blindly_when_the_registry_comes_back() {
    let mut rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    assert_eq!(rig.run(&["drive", "add", &name, "--wait"]).await.code, Some(0));
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["drive", "remove", &name, "--wait"]);
    line_with(&mut lines, "still in use by").await;
    rig.cut();
    line_with(&mut lines, "no registry answers at").await;
    rig.add_behind_the_scenes(&name).await;
    rig.serve().await;
    let ran = finish(child).await;
    assert_eq!(ran.code, Some(5));
    assert!(ran.stderr.contains("it was added meanwhile, by somebody else"), "{ran:?}");
    assert_eq!(rig.drive(&name).await["spec"]["inOperation"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_exist_is_answered_with_what_may_be_meant() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    let mut wrong = name.clone();
    wrong.push('x');
    let ran = rig.run(&["drive", "add", &wrong]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(4), ""));
    let expected =
        format!("error: no drive \"{wrong}\"\n  nothing was changed\n  did you mean {name}?\n");
    assert_eq!(ran.stderr, expected);
    let ran = rig.run(&["drive", "remove", "nod-a:bay-1"]).await;
    assert!(ran.stderr.contains("did you mean node-a:bay-1?"), "{ran:?}");
    let ran = rig.run(&["host", "add", "nod-a"]).await;
    assert_eq!(ran.code, Some(4));
    assert!(ran.stderr.starts_with("error: no host \"nod-a\"\n"), "{ran:?}");
    assert!(ran.stderr.ends_with("  did you mean node-a?\n"), "{ran:?}");
    let ran = rig.run(&["get", "nodes", "elsewhere"]).await;
    assert_eq!(ran.code, Some(4));
    assert!(ran.stderr.contains("hotbay get nodes"), "{ran:?}");
    assert_eq!(rig.run(&["get", "drives", "S3X1A0", "--watch"]).await.code, Some(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drive_with_something_on_it_is_refused() {
    let rig = Rig::start().await;
    let ran = rig.run(&["drive", "add", "node-a:/dev/sda", "--wait"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(5), ""));
    let name = rig.name("A77Q").await;
    assert_eq!(
        ran.stderr,
        format!(
            "error: {name} (node-a /dev/sda, serial A77Q) is not added: it is the system drive \
             (mounted at /, /boot)\n  nothing was changed\n  \
             see which drives can be added:  hotbay get drives --usable\n"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_targets_each_has_its_line_and_the_worst_counts() {
    let rig = Rig::start().await;
    let ran =
        rig.run(&["drive", "add", "S3X1A9", "nothing-like-it", "A77Q", "S3X1B2", "--wait"]).await;
    assert_eq!(ran.code, Some(4));
    assert_eq!(ran.stdout.matches(" is in operation after ").count(), 2, "{ran:?}");
    assert_eq!(ran.stderr.matches("error: ").count(), 2, "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_is_added_and_removed_with_all_its_drives() {
    let rig = Rig::start().await;
    let added = rig.run(&["host", "add", "node-a", "--wait"]).await;
    assert_eq!(added.code, Some(0));
    assert!(added.stdout.starts_with("node-a: adding 2 drives, 1 left out\n"), "{added:?}");
    assert!(added.stdout.contains("left out: it is the system drive"), "{added:?}");
    assert_eq!(added.stdout.matches(" is in operation after ").count(), 2, "{added:?}");
    rig.agent(Manner::Hold);
    let (child, mut lines) = start(&rig, &["host", "remove", "node-a", "--wait"]);
    line_with(&mut lines, "still in use by").await;
    rig.agent(Manner::Obey);
    line_with(&mut lines, "closed, and that is proved, after ").await;
    line_with(&mut lines, "closed, and that is proved, after ").await;
    assert_eq!(finish(child).await.code, Some(0));
    // Removed with its host, not on its own: the host brings it back.
    let added = rig.run(&["host", "add", "node-a"]).await;
    assert!(added.stdout.starts_with("node-a: adding 2 drives, 1 left out\n"), "{added:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing() {
    let rig = Rig::start().await;
    let before = rig.run(&["get", "drives", "-o", "json"]).await.stdout;
    for args in [
        ["drive", "add", "S3X1A9", "--dry-run"],
        ["host", "add", "node-a", "--dry-run"],
        ["host", "remove", "node-a", "--dry-run"],
    ] {
        let ran = rig.run(&args).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.stdout.ends_with("dry run: nothing was changed\n"), "{ran:?}");
    }
    assert_eq!(rig.run(&["drive", "add", "A77Q", "--dry-run"]).await.code, Some(5));
    assert_eq!(rig.run(&["get", "drives", "-o", "json"]).await.stdout, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_registry_the_socket_and_the_next_step_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("api.sock");
    let path = socket.to_str().unwrap();
    let api = format!("unix:{path}");
    let ran = finish(hotbay(&["--api", &api, "get", "drives"]).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(3));
    let first = format!("error: no registry answers at {path}: there is no such file\n");
    assert!(ran.stderr.starts_with(&first), "{ran:?}");
    assert!(ran.stderr.contains("hotbay demo, or hotbay up"), "{ran:?}");

    // A registry that died leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let ran = finish(hotbay(&["get", "nodes", "--api", path]).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(3));
    assert!(ran.stderr.contains("nobody listens there"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_on_a_pipe_appends_what_changes_and_ends_with_its_reader() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    let (child, mut lines) = start(&rig, &["get", "drives", "--watch"]);
    line_with(&mut lines, "S3X1B2").await;
    assert_eq!(rig.run(&["drive", "add", &name]).await.code, Some(0));
    // Nothing but the drive that changed, and no second title.
    let row = line_with(&mut lines, "Attached").await;
    assert!(row.starts_with(&name), "{row}");
    drop(lines);
    assert_eq!(rig.run(&["drive", "remove", &name, "--wait"]).await.code, Some(0));
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_wrong_usage() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = finish(hotbay(&["completions", shell]).spawn().unwrap()).await;
        assert_eq!(ran.code, Some(0));
        assert!(ran.stdout.contains("hotbay"));
    }
    let mut command = hotbay(&["drive", "add"]);
    let ran = finish(command.stdout(Stdio::null()).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_is_checked_without_a_registry() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let check = ["store", "check", "--data-dir", path];
    let ran = finish(hotbay(&check).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
    let store = hotbay_registry::RedbStore::open(folder.path()).unwrap();
    let ran = finish(hotbay(&check).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    drop(store);
    let ran = finish(hotbay(&check).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.ends_with("sound\n"), "{ran:?}");
}

//! Many drives at once: plans, rules that add drives, and the words for why one cannot be added.

use std::fs;

use hotbay_core::cluster::{AutoAdd, AutoAddRule};
use serde_json::{Value, json};

use crate::rig::{Manner, Rig, finish, hotbay};

/// A plan of everything that can be added, as a file in the rig's folder.
async fn planned(rig: &Rig, options: &[&str]) -> String {
    let ran = rig.run(&[&["drive", "plan"], options].concat()).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    fs::write(rig.folder().join("drives.yaml"), &ran.stdout).unwrap();
    ran.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_lists_what_can_be_added_and_is_carried_out() {
    let rig = Rig::start().await;
    let plan = planned(&rig, &[]).await;
    assert!(plan.starts_with("# Drives to put into operation.\n"), "{plan}");
    assert_eq!(plan.matches("\n    state: s-").count() + plan.matches("\n  state: s-").count(), 2);
    assert!(plan.contains("serial: S3X1A9") && !plan.contains("A77Q"), "{plan}");
    let dry = rig.run(&["drive", "add", "-f", "drives.yaml", "--dry-run"]).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert_eq!(dry.stdout.matches(": would be added\n").count(), 2, "{dry:?}");
    let added = rig.run(&["drive", "add", "-f", "drives.yaml", "--wait"]).await;
    assert_eq!((added.code, added.stderr.as_str()), (Some(0), ""), "{added:?}");
    assert_eq!(added.stdout.matches(" is in operation after ").count(), 2, "{added:?}");
    // The same list once more does no harm.
    let again = rig.run(&["drive", "add", "-f", "drives.yaml"]).await;
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(again.stdout.matches("already; nothing was changed").count(), 2, "{again:?}");
    let nothing = rig.run(&["drive", "plan"]).await;
    assert!(nothing.stdout.ends_with("drives: []\n"), "{nothing:?}");
    assert_eq!(nothing.stderr, "None of 3 drives can be added and is what you ask for.\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_choose() {
    let rig = Rig::start().await;
    let count = async |options: &[&str]| planned(&rig, options).await.matches("- name: ").count();
    assert_eq!(count(&["--node", "node-?", "--media", "NVMe,SSD", "--min-size", "1TB"]).await, 2);
    assert_eq!(count(&["--model", "acme*", "--max-size", "2TB"]).await, 0);
    assert_eq!(count(&["--transport", "usb"]).await, 0);
    assert_eq!(count(&["--all"]).await, 3);
    let ran = rig.run(&["drive", "plan", "--min-size", "huge"]).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("\"huge\" is no size"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_changed_since_is_refused_and_the_others_are_added() {
    let rig = Rig::start().await;
    planned(&rig, &["--all"]).await;
    let (changed, good) = (rig.name("S3X1A9").await, rig.name("S3X1B2").await);
    assert_eq!(rig.run(&["drive", "add", &changed, "--wait"]).await.code, Some(0));
    assert_eq!(rig.run(&["drive", "remove", &changed, "--wait"]).await.code, Some(0));
    for more in ["--dry-run", "--wait"] {
        let ran = rig.run(&["drive", "add", "-f", "drives.yaml", more]).await;
        assert_eq!(ran.code, Some(5), "{ran:?}");
        assert_eq!(ran.stderr.matches("error: ").count(), 2, "{ran:?}");
        let refused = format!(
            "error: {changed} (node-a bay 0, serial S3X1A9) is not added: ChangedSince: it is not as it was when it \
             was planned"
        );
        assert!(ran.stderr.contains(&refused), "{ran:?}");
        assert!(ran.stderr.contains("hotbay drive plan"), "{ran:?}");
        assert!(ran.stderr.contains("it is the system drive"), "{ran:?}");
    }
    assert_eq!(rig.drive(&changed).await["status"]["state"], "DetachedDevice");
    assert_eq!(rig.drive(&good).await["status"]["state"], "AttachedDevice");
    // Planned again, it goes.
    planned(&rig, &[]).await;
    assert_eq!(rig.run(&["drive", "add", "-f", "drives.yaml", "--wait"]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_with_a_mistake_changes_nothing() {
    let rig = Rig::start().await;
    let plan = planned(&rig, &[]).await;
    fs::write(rig.folder().join("drives.yaml"), plan.replace("state: s-", "state: ")).unwrap();
    let ran = rig.run(&["drive", "add", "-f", "drives.yaml"]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.starts_with("error: drives.yaml, line "), "{ran:?}");
    assert!(ran.stderr.contains(": state of d-"), "{ran:?}");
    assert!(ran.stderr.contains("\n  nothing was changed\n"), "{ran:?}");
    assert_eq!(rig.drive("S3X1A9").await["spec"]["inOperation"], false);
    let absent = rig.run(&["drive", "add", "-f", "absent.yaml"]).await;
    assert_eq!(absent.code, Some(2), "{absent:?}");
    let both = rig.run(&["drive", "add", "d-1", "-f", "drives.yaml"]).await;
    assert_eq!(both.code, Some(2), "{both:?}");
    // No registry is needed to tell.
    let mut alone = hotbay(&["drive", "add", "-f", "drives.yaml", "--api", "/nonexistent.sock"]);
    let ran = finish(alone.current_dir(rig.folder()).spawn().unwrap()).await;
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn why_a_drive_can_or_cannot_be_added_is_explained() {
    let rig = Rig::start().await;
    let name = rig.name("S3X1A9").await;
    let ran = rig.run(&["drive", "explain", "S3X1A9"]).await;
    assert_eq!(
        ran.stdout,
        format!(
            "{name} (node-a /dev/nvme0n1) can be added\n  \
               node       -   the agent of node-a is connected\n  \
               present    -   it is on the machine\n  \
               filter     -   node-a has no filters\n  \
               drive      -   nothing on it or about it keeps it from being used\n  \
               operation  -   nobody has asked anything of it\n  \
               auto-add   -   there are no rules that add drives by themselves\n\
             Add it:  hotbay drive add {name} --wait\n"
        )
    );
    let ran = rig.run(&["drive", "explain", "node-a:/dev/sda", "-o", "json"]).await;
    let explained: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(explained["usable"], false);
    let reasons = explained["reasons"].as_array().unwrap();
    let against: Vec<_> = reasons.iter().filter(|reason| reason["against"] == true).collect();
    let message = "it is the system drive (mounted at /, /boot)";
    assert_eq!(against, [&json!({ "about": "drive", "against": true, "message": message })]);
    let ran = rig.run(&["drive", "explain", "nothing-like-it"]).await;
    assert_eq!(ran.code, Some(4), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_adds_new_drives_and_never_what_a_person_removed() {
    let rule = json!({ "name": "new-nvme", "media": "NVMe", "min-size": "1TB", "node": "node-*" });
    let rule: AutoAddRule = serde_json::from_value(rule).unwrap();
    let mut rig = Rig::adding_by([rule].into_iter().collect::<AutoAdd>()).await;
    let state = async |rig: &Rig, serial: &str| rig.drive(serial).await["status"]["state"].clone();
    for serial in ["S3X1A9", "S3X1B2"] {
        let drive = rig.drive(serial).await;
        assert_eq!(drive["spec"]["inOperation"], true);
        assert_eq!(drive["status"]["askedBy"], "auto-add rule new-nvme");
    }
    assert_eq!(rig.drive("A77Q").await["spec"]["inOperation"], false);
    let events = rig.run(&["events"]).await.stdout;
    assert_eq!(events.matches("goes into operation, asked by auto-add rule new-nvme.").count(), 2);

    rig.agent(Manner::Obey);
    assert_eq!(rig.run(&["drive", "remove", "S3X1A9", "--wait"]).await.code, Some(0));
    // The agent registers anew, and reports the drive as empty as ever.
    rig.cut();
    rig.serve().await;
    assert_eq!(state(&rig, "S3X1A9").await, "DetachedDevice");
    let explained = rig.run(&["drive", "explain", "S3X1B2"]).await.stdout;
    assert!(explained.contains("asked by auto-add rule new-nvme"), "{explained}");
}

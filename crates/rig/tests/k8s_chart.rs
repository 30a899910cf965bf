//! What Helm makes of the chart's values. Nothing is installed: that the objects are taken, and work, other tests show.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;

use hotbay_rig::chart::{NAMESPACE, rendered};

/// The objects with these values in a file, as an administrator keeps them.
fn with_values(values: &str) -> String {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("values.yaml");
    fs::write(&file, values).unwrap();
    rendered(NAMESPACE, &["--values", file.to_str().unwrap()]).unwrap()
}

fn assert_has(text: &str, words: &str) {
    assert!(text.contains(words), "no {words:?} in\n{text}");
}

/// The story: Helm reads every number in a file as a fraction. A controller was started with `--node-grace=2.592e+06`,
/// which it did not understand, and a class asked for 5e+06.
#[test]
fn large_numbers_are_written_out() {
    let text = with_values(
        "controller: {nodeGraceSeconds: 2592000}\n\
         storageClasses: [{name: fast, parameters: {many: 5000000, part: 0.5, flag: true, word: '007'}}]\n",
    );
    for words in [
        "- --node-grace=2592000\n",
        "many: \"5000000\"\n",
        "part: \"0.5\"\n",
        "flag: \"true\"\n",
        "word: \"007\"\n",
    ] {
        assert_has(&text, words);
    }
}

#[test]
fn filters_and_rules_reach_the_programs_that_read_them() {
    let place = tempfile::tempdir().unwrap();
    let (filters, config) = (place.path().join("filters.toml"), place.path().join("hotbay.toml"));
    fs::write(&filters, "  # ours\n[[filter]]\nexclude = { transport = \"usb\" }\n").unwrap();
    let set = [
        format!("node.filters={}", filters.display()),
        format!("controller.config={}", config.display()),
    ];
    let render = |rule: &str| {
        fs::write(&config, format!("[[auto-add]]\nname = \"{rule}\"\nmedia = \"NVMe\"\n")).unwrap();
        rendered(NAMESPACE, &["--set-file", &set[0], "--set-file", &set[1]]).unwrap()
    };
    let text = render("new");
    for words in [
        "name: hotbay-filters\n",
        "exclude = { transport = \"usb\" }\n",
        "- --filters=/etc/hotbay/filters.toml\n",
        "configMap: {name: hotbay-filters}\n",
        "name: hotbay-config\n",
        "name = \"new\"\n",
        "- --config=/etc/hotbay/hotbay.toml\n",
        "configMap: {name: hotbay-config}\n",
    ] {
        assert_has(&text, words);
    }
    // Rules are read when a controller starts: others are other pods. Agents read theirs again by themselves.
    let checksum = |text: &str| {
        let mut lines = text.lines().filter(|line| line.trim().starts_with("checksum/"));
        let checksum = lines.next().unwrap().to_owned();
        assert_eq!(lines.next(), None);
        checksum
    };
    assert_ne!(checksum(&text), checksum(&render("other")));

    let without = rendered(NAMESPACE, &[]).unwrap();
    for words in ["/etc/hotbay", "hotbay-filters", "hotbay-config", "checksum/"] {
        assert!(!without.contains(words), "{words}");
    }
}

#[test]
fn what_kubernetes_would_refuse_later_is_refused_at_once() {
    let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
    for value in [
        "node.maxUnavailable=0",
        "node.maxUnavailable=0%",
        "node.maxUnavailable=101%",
        "image.digest=latest",
        "sidecars.attacher.digest=sha256:12",
    ] {
        assert!(rendered(NAMESPACE, &["--set", value]).is_err(), "{value} is taken");
    }
    let text = rendered(
        NAMESPACE,
        &["--set", "node.maxUnavailable=25%", "--set", &format!("image.digest={digest}")],
    );
    assert_has(&text.unwrap(), &format!("image: localhost/hotbay:0.1.0@{digest}\n"));
    let attacher = format!("sidecars.attacher.digest={digest}");
    let text = rendered(NAMESPACE, &["--set", &attacher, "--set", "node.maxUnavailable=1"]);
    let pinned = text.unwrap().matches(&format!("@{digest}\n")).count();
    assert_eq!(pinned, 1, "the attacher alone");
}

/// The story: with SELinux the containers beside the agent may not use the socket and the folders that it has made, and
/// no machine was ever registered.
#[test]
fn containers_beside_the_agent_are_of_its_type() {
    let types = |args: &[&str]| rendered(NAMESPACE, args).unwrap().matches("type: spc_t\n").count();
    assert_eq!(types(&[]), 3, "the init container, the registrar and the probe");
    assert_eq!(types(&["--set", "node.seLinuxOptions=null"]), 0);
    let text = with_values("node: {seLinuxOptions: {type: super_t}}\n");
    assert_eq!(text.matches("type: super_t\n").count(), 3);
}

/// The story: installed in another namespace, the alerts told people to look into `hotbay`, where there was nothing.
#[test]
fn alerts_name_the_namespace_that_it_is_in() {
    let text = rendered("storage", &["--show-only", "templates/alerts.yaml"]).unwrap();
    assert_has(&text, "kubectl -n storage get pods");
    assert_has(&text, "kubectl hotbay -n storage registry adopt");
    assert!(!text.contains("-n hotbay") && !text.contains("kubectl hotbay get"), "{text}");
    let usual = rendered(NAMESPACE, &["--show-only", "templates/alerts.yaml"]).unwrap();
    assert_has(&usual, "kubectl -n hotbay get pods");
    assert_has(&usual, "kubectl hotbay registry adopt");
}

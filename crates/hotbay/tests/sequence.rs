//! The sequence diagrams of drives going in and out of operation, first line to last, with the real program on plain
//! files: no root is needed. The same on loop devices, with kills, is in the tests whose names begin with `root_`.

mod cluster;

use cluster::{Cluster, anyone_has_open, eventually};

#[test]
fn a_drive_goes_into_operation_and_out_again() {
    let cluster = Cluster::started(2, false);
    assert_eq!(cluster.state(0), "UnknownDevice");
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    assert_eq!(cluster.state(0), "AttachedDevice");
    assert_eq!(cluster.state(1), "UnknownDevice");
    assert_eq!(cluster.agent_descriptors(0).len(), 1);
    assert!(!anyone_has_open(&cluster.drives[1].path), "an unknown drive is not held");
    // Adding again is no error and changes nothing.
    let generation = cluster.drive(0)["status"]["goal"]["generation"].clone();
    cluster.expect(&["drive", "add", &cluster.target(0)], 0);
    assert_eq!(cluster.drive(0)["status"]["goal"]["generation"], generation);
    // The first Remove is answered E_TRY_AGAIN, S_OK comes when the close is proved.
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
    assert_eq!(cluster.state(0), "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[0].path));
}

#[test]
fn remove_waits_for_whoever_has_the_drive() {
    let cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let foreign = std::fs::File::open(&cluster.drives[0].path).unwrap();
    cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
    let me = std::process::id().to_string();
    eventually("the process that has it is named", || {
        let text = cluster.expect(&["drive", "remove", &cluster.target(0)], 3);
        text.contains(&me).then_some(())
    });
    assert_eq!(cluster.state(0), "ClosingDevice");
    drop(foreign);
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

#[test]
fn a_host_is_removed_when_every_drive_is_proved_closed() {
    let cluster = Cluster::started(3, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    for bay in 0..3 {
        assert_eq!(cluster.state(bay), "AttachedDevice");
    }
    // Removed on its own, it stays out when the host is added again.
    cluster.expect(&["drive", "remove", &cluster.target(1), "--wait"], 0);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    assert_eq!(cluster.state(1), "DetachedDevice");
    cluster.expect(&["host", "remove", &cluster.name], 3);
    cluster.expect(&["host", "remove", &cluster.name, "--wait"], 0);
    for drive in &cluster.drives {
        assert!(!anyone_has_open(&drive.path));
    }
}

#[test]
fn what_is_not_empty_is_never_written() {
    let mut cluster = Cluster::new(1, false);
    let foreign = vec![0x5a; 4096];
    std::fs::write(&cluster.drives[0].file, &foreign).unwrap();
    let file = std::fs::File::options().write(true).open(&cluster.drives[0].file).unwrap();
    file.set_len(64 << 20).unwrap();
    cluster.start_registry();
    cluster.start_agent();
    cluster.wait_ready();
    let text = cluster.expect(&["drive", "add", &cluster.target(0)], 5);
    assert!(text.contains("not empty"), "{text}");
    assert_eq!(cluster.state(0), "UnknownDevice");
    let now = std::fs::read(&cluster.drives[0].file).unwrap();
    assert!(now[..4096] == foreign[..] && now[4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn the_agent_keeps_its_descriptors_while_the_registry_comes_and_goes() {
    let mut cluster = Cluster::started(2, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    let before = (cluster.agent_descriptors(0), cluster.agent_descriptors(1));
    assert_eq!((before.0.len(), before.1.len()), (1, 1));
    for _ in 0..100 {
        cluster.registry.take().unwrap().kill();
        cluster.start_registry();
    }
    cluster.wait_ready();
    eventually("the drives are confirmed again", || {
        (0..2).all(|bay| cluster.drive(bay)["status"]["waitingFor"].is_null()).then_some(())
    });
    assert_eq!((cluster.agent_descriptors(0), cluster.agent_descriptors(1)), before);
    assert_eq!(cluster.state(0), "AttachedDevice");
}

#[test]
fn an_agent_without_a_registry_opens_what_its_record_allows() {
    let mut cluster = Cluster::started(2, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["drive", "remove", &cluster.target(1), "--wait"], 0);
    cluster.registry.take().unwrap().kill();
    cluster.agent.take().unwrap().kill();
    cluster.start_agent();
    eventually("the drive in operation is open", || {
        (cluster.agent_descriptors(0).len() == 1).then_some(())
    });
    assert!(!anyone_has_open(&cluster.drives[1].path), "a removed drive stays closed");
}

#[test]
fn a_lost_record_is_made_up_for_by_the_labels() {
    let mut cluster = Cluster::started(2, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["drive", "remove", &cluster.target(1), "--wait"], 0);
    cluster.registry.take().unwrap().kill();
    cluster.agent.take().unwrap().kill();
    std::fs::write(cluster.path().join("node/record"), b"garbage").unwrap();
    cluster.start_agent();
    eventually("the label says that it is in operation", || {
        (cluster.agent_descriptors(0).len() == 1).then_some(())
    });
    assert!(!anyone_has_open(&cluster.drives[1].path), "its label says that it is released");
    cluster.start_registry();
    cluster.wait_ready();
    let nodes = cluster.expect(&["get", "nodes", "-o", "json"], 0);
    assert!(nodes.contains("RecordDamaged"), "{nodes}");
}

#[test]
fn a_restored_backup_gives_no_orders() {
    let mut cluster = Cluster::started(1, false);
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    cluster.registry.take().unwrap().stop();
    let store = cluster.path().join("registry/registry.redb");
    let backup = cluster.path().join("backup");
    std::fs::copy(&store, &backup).unwrap();
    for _ in 0..2 {
        cluster.start_registry();
        cluster.wait_ready();
        cluster.registry.take().unwrap().stop();
    }
    std::fs::copy(&backup, &store).unwrap();
    cluster.start_registry();
    eventually("it notices that it went back in time", || {
        let nodes = cluster.client(&["get", "nodes", "-o", "json"]);
        String::from_utf8_lossy(&nodes.stdout).contains("RegistryRewound").then_some(())
    });
    let text = cluster.expect(&["drive", "remove", &cluster.target(0)], 5);
    assert!(text.contains("RegistryRewound"), "{text}");
    assert_eq!(cluster.agent_descriptors(0).len(), 1, "the drive stays as it was");
}

#[test]
fn a_restored_registry_adopts_what_the_node_knows_and_goes_on() {
    let mut cluster = Cluster::started(1, false);
    cluster.registry.take().unwrap().stop();
    let store = cluster.path().join("registry/registry.redb");
    let backup = cluster.path().join("backup");
    std::fs::copy(&store, &backup).unwrap();
    cluster.start_registry();
    cluster.wait_ready();
    cluster.expect(&["drive", "add", &cluster.target(0), "--wait"], 0);
    let held = cluster.agent_descriptors(0);
    cluster.registry.take().unwrap().stop();
    std::fs::copy(&backup, &store).unwrap();
    cluster.start_registry();
    let preview = eventually("the differences are shown", || {
        // Without consent nothing is adopted.
        let output = cluster.client(&["registry", "adopt"]);
        (output.status.code() == Some(2))
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    assert!(preview.contains("generation 1"), "{preview}");
    cluster.expect(&["registry", "adopt", "--yes"], 0);
    cluster.wait_ready();
    cluster.wait_state(0, "AttachedDevice");
    assert_eq!(cluster.drive(0)["status"]["goal"]["generation"], 2, "above what the node saw");
    assert_eq!(cluster.agent_descriptors(0), held, "the drive was never closed");
    cluster.expect(&["drive", "remove", &cluster.target(0), "--wait"], 0);
}

#[test]
fn a_purged_host_is_told_to_close_when_it_returns() {
    let mut cluster = Cluster::started(1, false);
    cluster.expect(&["host", "add", &cluster.name, "--wait"], 0);
    cluster.expect(&["host", "purge", &cluster.name, "--yes"], 5);
    cluster.agent.take().unwrap().kill();
    eventually("the registry notices", || {
        cluster.client(&["host", "purge", &cluster.name, "--yes"]).status.success().then_some(())
    });
    cluster.expect(&["host", "add", &cluster.name], 5);
    cluster.start_agent();
    cluster.wait_state(0, "DetachedDevice");
    assert!(!anyone_has_open(&cluster.drives[0].path));
    cluster.expect(&["host", "add", &cluster.name, "--returned", "--wait"], 0);
    assert_eq!(cluster.state(0), "AttachedDevice");
}

//! Agents that join with the account that a platform gives them: real agents over TLS, a registry in this process.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../cluster/mod.rs"]
mod cluster;
mod follower;
#[path = "../membership/mod.rs"]
mod membership;
mod rig;

use std::fs;
use std::time::Duration;

use cluster::eventually;
use rig::{LIFE, Rig, TOKEN, exchange, free_port, wall_ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_before_its_registry_is_there_and_again_when_it_lost_everything() {
    let mut rig = Rig::new();
    let port = free_port();
    // A name, as services have.
    rig.address = format!("localhost:{port}");
    let name = rig.name.clone();
    rig.start_agent(&["--name", &name]);
    rig.wait_logged("cannot join yet");
    rig.start_registry(&format!("127.0.0.1:{port}"), LIFE).await;
    rig.wait_ready(true);
    rig.client(&["host", "add", &name, "--wait"]).unwrap();
    for asked in [["get", "nodes", "-o", "wide"].as_slice(), &["describe", "node", &name]] {
        let shown = rig.client(asked).unwrap();
        let expected = [env!("CARGO_PKG_VERSION"), "127.0.0.1"];
        assert!(expected.iter().all(|word| shown.contains(word)), "{shown}");
    }

    // With what it has stored it needs no account.
    rig.kill_agent();
    rig.platform.give_out("another", &name);
    rig.start_agent(&[]);
    rig.wait_ready(true);

    // Without, it draws another key, and is the same node all the same.
    rig.kill_agent();
    let before = rig.membership()["certificate_pem"].clone();
    fs::remove_dir_all(rig.path("node")).unwrap();
    rig.platform.give_out(TOKEN, &name);
    rig.start_agent(&["--name", &name]);
    rig.wait_ready(true);
    assert_ne!(rig.membership()["certificate_pem"], before);
    rig.client(&["host", "remove", &name, "--wait"]).unwrap();
    assert!(!rig.logged().contains(TOKEN), "the log has the token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_expired_while_the_node_was_away_is_replaced() {
    let mut rig = Rig::new();
    let address = rig.start_registry("127.0.0.1:0", Duration::from_secs(3)).await;
    rig.address = address.to_string();
    let name = rig.name.clone();
    rig.start_agent(&["--name", &name]);
    rig.wait_ready(true);
    rig.wait_logged("this node has a new certificate");
    rig.kill_agent();
    let not_after_ms = rig.membership()["not_after_ms"].as_u64().unwrap();
    eventually("it expires", || (wall_ms() > not_after_ms).then_some(()));
    // The platform has exchanged the token meanwhile.
    rig.platform.give_out("header.the-next-secret.signature", &name);
    rig.start_agent(&[]);
    rig.wait_logged("has to join again, because its certificate has expired");
    exchange(&rig.path("token"), "header.the-next-secret.signature");
    rig.wait_logged("joined again with the account");
    rig.wait_ready(true);
    assert!(!rig.logged().contains("secret"), "the log has a token");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_told_and_changes_nothing() {
    let mut rig = Rig::new();
    let address = rig.start_registry("127.0.0.1:0", LIFE).await;
    rig.address = address.to_string();
    let name = rig.name.clone();
    rig.start_agent(&["--name", "other"]);
    rig.agent_gives_up(&format!("this account is that of node {name}, not of other"));
    let (token, authority) = (rig.path("token"), rig.path("authority.pem"));
    exchange(&token, "unknown");
    rig.start_agent(&[]);
    rig.agent_gives_up("refused: the platform does not know it");
    exchange(&token, " \n");
    rig.start_agent(&[]);
    rig.agent_gives_up("holds no token of an account");
    fs::remove_file(&token).unwrap();
    rig.start_agent(&[]);
    rig.agent_gives_up("cannot read the token of the account");
    exchange(&token, TOKEN);
    exchange(&authority, "no certificate");
    rig.start_agent(&[]);
    rig.agent_gives_up("holds no certificate of an authority");
    assert!(!rig.path("node/tls/membership").exists());

    // A registry of another authority hears nothing, and once the file is right the agent goes on.
    let other = hotbay_control::AuthorityPems::fresh().unwrap();
    exchange(&authority, &other.certificate);
    rig.start_agent(&[]);
    rig.wait_logged("shows another authority than the one that was told");
    exchange(&authority, &rig.authority.certificate);
    rig.wait_ready(true);

    // The data directory is one node's.
    rig.kill_agent();
    rig.start_agent(&["--name", "other"]);
    rig.agent_gives_up("it cannot become other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purged_node_gets_another_certificate_and_still_waits_for_a_person() {
    let mut rig = Rig::new();
    let address = rig.start_registry("127.0.0.1:0", LIFE).await;
    rig.address = address.to_string();
    let name = rig.name.clone();
    rig.start_agent(&["--name", &name]);
    rig.wait_ready(true);
    rig.client(&["host", "add", &name, "--wait"]).unwrap();
    rig.kill_agent();
    rig.client(&["host", "purge", &name, "--yes"]).unwrap();
    rig.start_agent(&[]);
    rig.wait_logged("joined again with the account");
    rig.wait_ready(true);
    eventually("the drive is closed", || {
        rig.client(&["get", "drives", "-o", "json"])?.contains("DetachedDevice").then_some(())
    });
    assert_eq!(rig.client(&["host", "add", &name]), None, "nobody has said that it is back");
    rig.client(&["host", "add", &name, "--returned", "--wait"]).unwrap();
}

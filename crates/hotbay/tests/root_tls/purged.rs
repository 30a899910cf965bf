//! A host that was purged comes back: its certificate does not count any more, until it has joined with a new token.

use hotbay_api::PROTOCOL;
use hotbay_api::join::RenewRequest;
use hotbay_api::join::joining_client::JoiningClient;
use tonic::{Code, Status};

use crate::cluster::eventually;
use crate::rig::{Agent, Rig};
use crate::strangers::{client, dial, inside, stored};

/// Asks for a new certificate with the one that an agent has stored.
fn renews(rig: &Rig, agent: &Agent) -> Result<(), Status> {
    let config = client(rig, Some(stored(agent)));
    inside(rig.machine(agent.machine), async {
        let channel = dial(config).await.unwrap();
        let renewed = JoiningClient::new(channel).renew(RenewRequest { protocol: PROTOCOL }).await;
        renewed.map(drop)
    })
}

fn expect_kept_out(rig: &Rig, agent: &Agent) {
    let refused = renews(rig, agent).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let words =
        format!("node {} was purged; run `hotbay node --join` with a new token on it", agent.name);
    assert_eq!(refused.message(), words);
    let answer = rig.expect(&["host", "add", &agent.name, "--returned"], 5);
    assert!(answer.contains("its certificate was revoked when it was purged"), "{answer}");
    let described = rig.expect(&["describe", "node", &agent.name], 0);
    assert!(described.contains("CertificateRevoked"), "{described}");
}

#[test]
fn a_purged_node_closes_its_drives_and_comes_back_only_with_a_new_token() {
    let mut rig = Rig::new(1, Vec::new());
    let mut agent = rig.agent("a", "a", 1);
    let (used, unused) = (rig.token(&agent.name, &[]), rig.token(&agent.name, &[]));
    rig.start(&mut agent, &["--join", &used]);
    rig.wait_ready(&agent, true);
    rig.expect(&["host", "add", &agent.name, "--wait"], 0);
    renews(&rig, &agent).unwrap();
    agent.running.take().unwrap().kill();
    rig.wait_ready(&agent, false);
    rig.expect(&["host", "purge", &agent.name, "--yes"], 0);

    // It returns with what it has: it hears nothing but to close.
    rig.start(&mut agent, &["--join", &used]);
    rig.wait_ready(&agent, true);
    eventually("the drive is closed", || {
        let drives = rig.expect(&["get", "drives", "-o", "json"], 0);
        drives.contains("DetachedDevice").then_some(())
    });
    expect_kept_out(&rig, &agent);

    // A token from before the purge is worth nothing either.
    agent.running.take().unwrap().kill();
    rig.wait_ready(&agent, false);
    rig.start(&mut agent, &["--join", &unused]);
    agent.wait_logged("going on without the registry");
    assert!(agent.has_logged("was purged; run `hotbay node --join` with a new token"));
    rig.wait_ready(&agent, true);
    expect_kept_out(&rig, &agent);

    // A registry that was started again remembers.
    rig.registry.take().unwrap().kill();
    rig.start_registry();
    rig.wait_ready(&agent, true);
    expect_kept_out(&rig, &agent);
    agent.running.take().unwrap().kill();

    let token = rig.token(&agent.name, &[]);
    rig.start(&mut agent, &["--join", &token]);
    eventually("the host may be added again", || {
        let output = rig.client(&["host", "add", &agent.name, "--returned", "--wait"]);
        output.status.success().then_some(())
    });
    agent.wait_open();
    renews(&rig, &agent).unwrap();
}

//! etcd goes back in time under controllers that run on: what they remember is of another history.

use std::time::Instant;

use crate::controllers::mounted::{Writer, mount, unmount};
use crate::controllers::{Rig, until, until_true};

/// Seconds. Longer than it takes to restore etcd on a machine that has much else to do, so that the lead does not end
/// by itself.
const LEASE: u64 = 150;

/// The backup names the same leader: the Lease alone would let it go on.
#[test]
fn a_leader_whose_records_go_back_under_it_ends_and_the_next_one_asks_the_agents() {
    let mut rig = Rig::with_lease(2, LEASE);
    rig.start_agent(2, 192 << 20);
    for name in ["kept", "used"] {
        rig.client(&["volume", "create", name, "--size", "32MiB"]);
    }
    let writer = Writer::start(&mount(&rig, "kept"));
    let leader = rig.leader(None);
    let holder = rig.lease()["spec"]["holderIdentity"].clone();
    let backup = rig.path("backup");
    rig.plane.save_snapshot(&backup).unwrap();
    rig.client(&["volume", "create", "later", "--size", "32MiB"]);
    mount(&rig, "used");
    unmount(&rig, "used");

    let began = Instant::now();
    rig.plane.restore_snapshot(&backup).unwrap();
    println!("etcd was restored within {:?}", began.elapsed());
    assert!(!rig.controllers[leader].process.ends(), "it ended as if all was well");
    let log = rig.controllers[leader].log();
    println!("the leader ended {:?} after etcd was stopped", began.elapsed());
    assert!(log.contains("gone back in time"), "{log}");
    // Nobody has to wait until it is over: the one who held it is gone. One that noticed by a record could still give
    // it back, and then the other has it by now, or takes it.
    if rig.lease()["spec"]["holderIdentity"] == holder {
        let lease = ["delete", "lease", "-n", "hotbay", "hotbay-controller"];
        rig.plane.kubectl().run(&lease).unwrap();
    }
    rig.restart(leader);
    until("the node says that it knows more", || {
        rig.restart_ended();
        let nodes = rig.try_client(&["get", "nodes", "-o", "json"])?;
        nodes.contains("RegistryRewound").then_some(()).ok_or(nodes)
    });
    println!("another one asks the agents after {:?}", began.elapsed());
    rig.client(&["registry", "adopt", "--yes"]);
    until_true("both volumes are there, one of them in use", || {
        let volumes = rig.client(&["get", "volumes", "-o", "json"]);
        volumes.contains("\"later\"") && volumes.contains("\"kept\"")
    });
    until("all is well", || rig.try_client(&["status"]));
    mount(&rig, "later");
    writer.end();
    unmount(&rig, "later");
    unmount(&rig, "kept");
}

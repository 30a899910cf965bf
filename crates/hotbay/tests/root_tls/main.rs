//! Agents on other machines: real processes in network namespaces, cables that are cut, and everybody who should not
//! get in.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../cluster/mod.rs"]
mod cluster;
#[path = "../membership/mod.rs"]
mod membership;
mod net;
mod purged;
mod rig;
mod strangers;

use std::fs;
use std::time::Duration;

use cluster::eventually;
use rig::Rig;

#[test]
fn three_machines_join_work_die_and_are_cut_off() {
    let mut rig = Rig::new(3, Vec::new());
    let mut agents: Vec<_> = ["a", "b", "c"]
        .iter()
        .zip(1..)
        .map(|(short, machine)| rig.joined(short, machine))
        .collect();
    let names: Vec<_> = agents.iter().map(|agent| agent.name.clone()).collect();
    let [a, b, c] = [&names[0], &names[1], &names[2]].map(String::as_str);
    rig.expect(&["host", "add", a, b, c, "--wait"], 0);

    // An agent that died comes back with what it has stored, and no token.
    agents[0].running.take().unwrap().kill();
    rig.wait_ready(&agents[0], false);
    rig.start(&mut agents[0], &[]);
    rig.wait_ready(&agents[0], true);

    // So do all of them when the registry died.
    rig.registry.take().unwrap().kill();
    rig.start_registry();
    for agent in &agents {
        rig.wait_ready(agent, true);
    }
    rig.expect(&["host", "remove", a, "--wait"], 0);

    // A cut cable says nothing; the registry notices, and does not promise what it cannot know.
    rig.net.cut(2);
    rig.wait_ready(&agents[1], false);
    let answer = rig.expect(&["host", "remove", b], 3);
    assert!(answer.contains("agent cannot be reached"), "{answer}");
    rig.expect(&["host", "remove", c, "--wait"], 0);
    let answer = rig.expect(&["host", "remove", b], 3);
    assert!(answer.contains("agent cannot be reached"), "{answer}");
    rig.net.mend(2);
    rig.expect(&["host", "remove", b, "--wait"], 0);
}

#[test]
fn a_token_is_for_one_use_one_name_and_a_time() {
    let mut rig = Rig::new(2, Vec::new());
    let (a, b) = (rig.name("a"), rig.name("b"));
    let refused = |rig: &Rig, folder: &str, more: &[&str], words: &str| {
        let mut agent = rig.agent("a", folder, 1);
        rig.start(&mut agent, more);
        assert_eq!(agent.running.take().unwrap().end(), Some(1), "{words}");
        assert!(agent.has_logged(words), "{}", fs::read_to_string(&agent.log).unwrap());
        assert!(!agent.membership().exists());
    };

    let token = rig.token(&a, &[]);
    refused(&rig, "other-name", &["--join", &token, "--name", &b], "is for node");
    let mut agent = rig.agent("a", "a", 1);
    rig.start(&mut agent, &["--join", &token, "--name", &a]);
    rig.wait_ready(&agent, true);
    refused(&rig, "used", &["--join", &token], "was used already");
    refused(&rig, "cut", &["--join", &token[..90]], "cut short or mistyped");

    let short = rig.token(&b, &["--ttl", "1s"]);
    std::thread::sleep(Duration::from_secs(1));
    refused(&rig, "expired", &["--join", &short], "has expired");
    let forgotten = rig.token(&b, &[]);
    rig.registry.take().unwrap().kill();
    rig.start_registry();
    refused(&rig, "forgotten", &["--join", &forgotten], "is not known");

    // With the hash of another authority the agent knows that it talks to a stranger, and tells it no secret.
    let good: hotbay_api::token::JoinToken = rig.token(&b, &[]).parse().unwrap();
    let pinned = hotbay_api::token::JoinToken { authority: [7; 32], ..good.clone() };
    let mut wary = rig.agent("b", "wary", 2);
    rig.start(&mut wary, &["--join", &pinned.to_string()]);
    wary.wait_logged("UnknownIssuer");
    wary.running.take().unwrap().kill();
    rig.start(&mut wary, &["--join", &good.to_string()]);
    rig.wait_ready(&wary, true);

    // Started again with the used token, as a service is, it goes on with what it has.
    agent.running.take().unwrap().kill();
    rig.start(&mut agent, &["--join", &token]);
    agent.wait_logged("the token is not used");
    rig.wait_ready(&agent, true);
    for (arguments, words) in [
        (["token", "create", "Node_A", "--ttl=1h"], "cannot be a node's name"),
        (["token", "create", &a, "--ttl=1000h"], "1 s to 30 days"),
        (["token", "create", &a, "--address=nowhere"], "is not HOST:PORT"),
    ] {
        let answer = rig.expect(&arguments, 2);
        assert!(answer.contains(words), "{answer}");
    }
}

#[test]
fn an_agent_that_dies_while_it_joins_asks_again_with_the_same_token() {
    for step in ["agent-file-written", "agent-file-renamed"] {
        let mut rig = Rig::new(1, Vec::new());
        let once = rig.path().join("die-once");
        fs::write(&once, "").unwrap();
        let mut agent = rig.agent("a", "a", 1);
        let token = rig.token(&agent.name, &[]);
        rig.environment.push(("HOTBAY_DIE_AT", step.to_owned()));
        rig.environment.push(("HOTBAY_DIE_ONCE", once.to_str().unwrap().to_owned()));
        // The first step of that name is in writing the key, the next in writing what the registry answered.
        for _ in 0..2 {
            rig.start(&mut agent, &["--join", &token]);
            assert_eq!(agent.running.take().unwrap().end(), None, "not killed at {step}");
            fs::write(&once, "").unwrap();
        }
        fs::remove_file(&once).unwrap();
        rig.start(&mut agent, &["--join", &token]);
        rig.wait_ready(&agent, true);
    }
}

#[test]
fn a_node_speaks_for_itself_alone() {
    let rig = Rig::new(2, Vec::new());
    let mut agent = rig.joined("a", 1);
    let other = rig.name("b");

    // Two machines under one name: the second is told, and the first goes on.
    let token = rig.token(&agent.name, &[]);
    let mut twin = rig.agent("a", "twin", 2);
    rig.start_apart(&mut twin, &["--join", &token]);
    twin.wait_logged("joined");
    rig.wait_registry_logged("another machine");
    rig.expect(&["host", "add", &agent.name, "--wait"], 0);
    twin.running.take().unwrap().kill();

    // The certificate of one node, and the name of another.
    agent.running.take().unwrap().kill();
    membership::rename(&agent.membership(), &agent.name, &other);
    rig.start(&mut agent, &[]);
    rig.wait_registry_logged(&format!(
        "the certificate of {} does not speak for {other}",
        agent.name
    ));
    agent.wait_logged("NotYourName");
    let names: Vec<_> = rig.nodes().iter().map(|node| node["metadata"]["name"].clone()).collect();
    assert_eq!(names, [agent.name.as_str()], "the name of another left a trace");
}

#[test]
fn certificates_are_renewed_while_everything_runs() {
    let life = ("HOTBAY_TEST_CERTIFICATE_LIFE", "6".to_owned());
    let mut rig = Rig::new(1, vec![life]);
    let mut agent = rig.agent("a", "a", 1);
    let used = rig.token(&agent.name, &[]);
    rig.start(&mut agent, &["--join", &used]);
    rig.wait_ready(&agent, true);
    let certificate = |agent: &rig::Agent| fs::read(agent.membership()).unwrap();
    for _ in 0..2 {
        let before = certificate(&agent);
        eventually("the certificate is renewed", || (certificate(&agent) != before).then_some(()));
    }
    rig.wait_registry_logged("the registry has a new certificate");
    // The first ones have ended by now; what is shown in a new handshake are their successors.
    rig.registry.take().unwrap().kill();
    rig.start_registry();
    rig.wait_ready(&agent, true);
    rig.expect(&["host", "add", &agent.name, "--wait"], 0);

    // One that slept too long is not let in any more, and says what to do; a new token helps.
    agent.running.take().unwrap().kill();
    assert!(strangers::gets_a_session(&rig, &agent));
    std::thread::sleep(Duration::from_secs(7));
    assert!(!strangers::gets_a_session(&rig, &agent));
    rig.wait_registry_logged("refused: invalid peer certificate: certificate expired");
    rig.start(&mut agent, &[]);
    agent.wait_logged("has expired; join again with a new token");
    agent.running.take().unwrap().kill();
    // Not even the token of long ago, left where a service starts it, keeps its drives from being opened.
    rig.start(&mut agent, &["--join", &used]);
    agent.wait_logged("going on without the registry");
    agent.wait_open();
    agent.running.take().unwrap().kill();
    let token = rig.token(&agent.name, &[]);
    rig.start(&mut agent, &["--join", &token]);
    rig.wait_ready(&agent, true);
}

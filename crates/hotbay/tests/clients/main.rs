//! People and programs on other machines, with the real program: `hotbay up` that listens for them, and `hotbay` and
//! curl with a token, over TLS on this machine's own address. Needs no root: the drives are plain files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on may as well end there")]

#[path = "../cluster/mod.rs"]
mod cluster;
mod impostor;
mod rig;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use cluster::eventually;
use hotbay_api::client_token::ClientToken;
use impostor::Impostor;
use rig::Up;
use serde_json::Value;

#[test]
fn with_a_token_everything_works_from_elsewhere() {
    let up = Up::start();
    let (ci, op) = (up.token("ci", "read"), up.token("op", "write"));
    let bay = format!("{}:bay-0", up.name);
    let drives = up.expect(&ci, &["get", "drives", "-o", "json"], 0);
    let drives: Value = serde_json::from_str(&drives).unwrap();
    assert_eq!(drives["items"].as_array().unwrap().len(), 2);
    assert!(up.expect(&ci, &["status"], 0).contains(&format!("answers at {}", up.url())));

    let refused = up.expect(&ci, &["drive", "add", &bay], 5);
    assert!(refused.contains("the token ci may only read"), "{refused}");
    up.expect(&ci, &["drive", "add", &bay, "--dry-run"], 0);
    let refused = up.expect(&ci, &["token", "create", "--client", "more", "--may", "read"], 5);
    assert!(refused.contains("may only read"), "{refused}");

    up.expect(&op, &["drive", "add", &bay, "--wait"], 0);
    let events = up.expect(&ci, &["events"], 0);
    assert!(events.contains("goes into operation, asked by token op (127.0.0.1)"), "{events}");
    let described = up.expect(&ci, &["describe", "drive", &bay], 0);
    assert!(described.contains("token op (127.0.0.1)"), "{described}");
    up.expect(&op, &["host", "add", &up.name, "--wait"], 0);
    up.expect(&op, &["host", "remove", &up.name, "--wait"], 0);
    let adopted = up.expect(&op, &["registry", "adopt", "--yes"], 0);
    assert!(adopted.contains("nothing to adopt"), "{adopted}");
    // With the right to write, tokens are made from elsewhere as well.
    up.expect(&op, &["token", "create", "--client", "more", "--may", "read"], 0);
    let list = up.expect(&ci, &["token", "list"], 0);
    for words in ["ci    read", "more  read", "op    write", "in 90d"] {
        assert!(list.contains(words), "{words}: {list}");
    }
    assert!(!list.contains("hotbay-client-1"), "{list}");
}

#[test]
fn what_a_revoked_token_follows_ends() {
    let up = Up::start();
    let token = up.token("ci", "read");
    let mut following: Vec<_> = [&["events", "--follow"][..], &["get", "nodes", "--watch"]]
        .into_iter()
        .map(|arguments| {
            let mut command = up.hotbay(&token, arguments);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    eventually("both have asked", || {
        let list = up.expect_local(&["token", "list"], 0);
        list.contains("s ago\n").then_some(())
    });
    for child in &mut following {
        // The first line is there: the stream is open.
        let mut output = std::io::BufReader::new(child.stdout.as_mut().unwrap());
        std::io::BufRead::read_line(&mut output, &mut String::new()).unwrap();
    }
    up.expect_local(&["token", "revoke", "ci"], 0);
    for mut child in following {
        let ended = eventually("what was followed ends", || child.try_wait().unwrap());
        assert_eq!(ended.code(), Some(5));
        let said = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert!(said.contains("this token is not known: it was revoked"), "{said}");
    }
    up.expect(&token, &["get", "drives"], 5);
    let missing = up.expect_local(&["token", "revoke", "ci"], 4);
    assert!(missing.contains("no token \"ci\""), "{missing}");
}

#[test]
fn each_thing_that_can_be_wrong_says_what_to_do() {
    let up = Up::start();
    let token = up.token("ci", "read");
    let run = |token: &str, api: &str, more: &[&str]| {
        let mut command = up.hotbay(token, &["get", "drives"]);
        rig::ran(command.args(["--api", api]).args(more))
    };
    let url = up.url();
    let file = up.path().join("token");
    fs::write(&file, format!("{token}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let from_file = ["--token-file", file.to_str().unwrap()];
    let other = ClientToken { authority: [1; 32], ..token.parse().unwrap() }.to_string();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("https://{}", silent.local_addr().unwrap());
    drop(silent);
    let cases: [(&str, &str, &[&str], i32, &str); 9] = [
        ("", &url, &[], 5, "make one, on its machine:  hotbay token create --client NAME"),
        (&token[..80], &url, &[], 5, "cut short or mistyped"),
        ("root", &url, &[], 5, "a client's token begins with"),
        ("", &url, &from_file, 5, "chmod 600"),
        ("", &url, &["--token-file", "/nonexistent"], 5, "cannot read the token file"),
        (&other, &url, &[], 5, "is not the registry that made this token; the token was not sent"),
        (&token, &nobody, &[], 3, "hotbay up --listen HOST:PORT"),
        (&token, "http://127.0.0.1:7444", &[], 2, "https://HOST:PORT"),
        (&token, "https://127.0.0.1", &[], 2, "is not HOST:PORT"),
    ];
    for (token, api, more, code, words) in cases {
        let (exit, text) = run(token, api, more);
        assert_eq!(exit, Some(code), "{api} {more:?}: {text}");
        assert!(text.contains(words), "{words}: {text}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(run("", &url, &from_file).0, Some(0));

    let expired = Impostor::with_expired_certificate();
    let (exit, text) = run(&expired.token(), &expired.url(), &[]);
    assert_eq!(exit, Some(5), "{text}");
    assert!(text.contains("compare the clocks of both machines"), "{text}");
    let plain = Impostor::without_tls();
    let (exit, text) = run(&token, &plain.url(), &[]);
    assert_eq!(exit, Some(1), "{text}");
    assert!(text.contains("does not speak TLS 1.3"), "{text}");
    let command = up.hotbay(&token, &["token", "create", "--client", "x", "--may", "all"]);
    assert_eq!(rig::ran(&mut { command }).0, Some(2));
}

#[test]
fn tokens_outlive_a_restart_and_damage_is_never_taken_for_none() {
    let mut up = Up::start();
    let token = up.token("ci", "read");
    up.stop();
    up.start_again();
    up.expect(&token, &["get", "nodes"], 0);
    up.stop();
    let file = up.path().join("data/registry/tls/client-tokens");
    let good = fs::read(&file).unwrap();
    for damaged in [&good[..good.len() - 1], b""] {
        fs::write(&file, damaged).unwrap();
        let said = up.fails_to_start();
        assert!(said.contains("client-tokens is damaged"), "{said}");
        assert_eq!(fs::read(&file).unwrap(), damaged, "it was changed");
    }
    fs::write(&file, good).unwrap();
    up.start_again();
    up.expect(&token, &["get", "nodes"], 0);
}

/// As the program prints it when it makes a token.
#[test]
fn curl_gets_http_and_json() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("curl is not installed: nothing was tested");
        return;
    }
    let up = Up::start();
    let token = up.token("ci", "read");
    let authority = up.path().join("authority.pem");
    fs::write(&authority, up.expect(&token, &["token", "authority"], 0)).unwrap();
    let curl = |token: Option<&str>, path: &str, more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--max-time", "30"]).stdin(Stdio::null());
        command.args(["--write-out", "\n%{http_code}", "--cacert"]).arg(&authority).args(more);
        if let Some(token) = token {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        let (exit, text) = rig::ran(command.arg(format!("{}{path}", up.url())));
        assert_eq!(exit, Some(0), "{path}: {text}");
        let (body, status) = text.trim_end().rsplit_once('\n').unwrap();
        (status.parse::<u16>().unwrap(), body.to_owned())
    };
    assert_eq!(curl(None, "/healthz", &[]).0, 200);
    assert_eq!(curl(None, "/v1/drives", &[]).0, 401);
    let (status, nodes) = curl(Some(&token), "/v1/nodes", &[]);
    assert_eq!(status, 200);
    assert!(nodes.contains(&up.name), "{nodes}");
    assert_eq!(curl(Some(&token), "/metrics", &[]).0, 200);
    let body = r#"{"actions":[{"type":"REMOVE_HOST","host":"x"}]}"#;
    let (status, refused) = curl(Some(&token), "/v1/actions", &["--data", body]);
    assert_eq!(status, 403);
    assert!(refused.contains("needs the right to write"), "{refused}");
}

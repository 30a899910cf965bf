//! What is not done: each says why, changes nothing, and has its exit code.

use crate::{extents, in_operation, volumes};

#[test]
fn mistakes_are_refused_and_change_nothing() {
    let cluster = in_operation(1);
    let long = "n".repeat(10_000);
    let cases: &[(&[&str], &str)] = &[
        (&["create", "db", "--size", "0"], "a volume has 1 MiB or more"),
        (&["create", "db", "--size", "-5GiB"], "write it like 10GiB"),
        (&["create", "db", "--size", "ten"], "write it like 10GiB"),
        (&["create", "db", "--size", "99999PB"], "write it like 10GiB"),
        (&["create", "db", "--size", "8192PiB"], "give 1 MiB to 8 EiB"),
        (&["create", "db"], "--size"),
        (&["create", "", "--size", "1MiB"], "the name of the volume has 0 bytes"),
        (&["create", &long, "--size", "1MiB"], "the name of the volume has 10000 bytes"),
        (&["create", "a\nb", "--size", "1MiB"], "without control characters"),
        (&["create", "db", "--size", "1MiB", "--param", "skuName=x"], "no parameter \"skuName\""),
        (&["create", "db", "--size", "1MiB", "--param", "medias=HDD"], "did you mean media?"),
        (&["create", "db", "--size", "1MiB", "--param", "media=tape"], "NVMe, SSD, HDD, File"),
        (&["create", "db", "--size", "1MiB", "--param", "x"], "NAME=VALUE is expected"),
        (&["create", "db", "--size", "1MiB", "--spread", "required"], "--group"),
        (
            &["create", "db", "--size", "1MiB", "--media", "HDD", "--param", "media=SSD"],
            "parameter media is given twice, and differently",
        ),
        (&["expand", "db", "--size", "0"], "a volume has 1 MiB or more"),
        (&["annotate", "db", "owner"], "KEY=VALUE sets it"),
        (&["explain", "--size", "0"], "a volume has 1 MiB or more"),
    ];
    for (arguments, words) in cases {
        let said = cluster.expect(&[&["volume"], *arguments].concat(), 2);
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
    assert!(volumes(&cluster).is_empty() && extents(&cluster, 0).is_empty());
    let longest = "n".repeat(128);
    cluster.expect(&["volume", "create", &longest, "--size", "1"], 0);
    assert_eq!(extents(&cluster, 0)[0]["name"], longest.as_str());
    assert_eq!(extents(&cluster, 0)[0]["lengthBytes"], 1 << 20, "rounded up");
}

#[test]
fn what_cannot_be_had_says_why_and_what_to_do() {
    let cluster = in_operation(1);
    let refused = |arguments: &[&str], code: i32, words: &[&str]| {
        let said = cluster.expect(&[&["volume"], arguments].concat(), code);
        for words in words.iter().chain(&["nothing was changed"]) {
            assert!(said.contains(words), "{words:?} in {arguments:?}: {said}");
        }
    };
    cluster.expect(&["volume", "create", "db", "--size", "40MiB"], 0);
    cluster.expect(&["volume", "create", "web", "--size", "5MiB"], 0);
    refused(
        &["create", "big", "--size", "30MiB"],
        5,
        &["error: volume big is not made: no drive takes 30 MiB: 1 drive: no room: ", "explain"],
    );
    refused(&["create", "big", "--size", "1MiB", "--media", "NVMe"], 5, &["NVMe asked for"]);
    refused(&["create", "big", "--size", "1MiB", "--drive", "exclusive"], 5, &["not empty (2"]);
    refused(&["create", "db", "--size", "41MiB"], 5, &["is there already", "it has 40 MiB"]);
    refused(&["create", "db", "--size", "1MiB", "--filesystem", "xfs"], 5, &["other parameters"]);
    let near = cluster.name.replace("test", "tset");
    refused(&["create", "x", "--size", "1MiB", "--node", &near], 4, &["did you mean ", "no node"]);
    refused(&["expand", "db", "--size", "50MiB"], 5, &["room for 0 B behind it"]);
    refused(&["expand", "dbb", "--size", "50MiB"], 4, &["no volume \"dbb\"", "did you mean db?"]);
    refused(&["delete", "wbe", "--yes"], 4, &["no volume \"wbe\"", "did you mean web?"]);
    refused(&["annotate", "x-y-z", "a=b"], 4, &["hotbay get volumes"]);
    refused(&["delete", "db"], 2, &["type db when asked, or give --yes"]);
    let annotation = format!("a={}", "x".repeat(70_000));
    refused(&["annotate", "db", &annotation], 2, &["65536 are allowed"]);
    assert_eq!(extents(&cluster, 0).len(), 2);
    assert_eq!(cluster.client(&["get", "volumes", "nothing"]).status.code(), Some(4));
    assert_eq!(cluster.client(&["describe", "volume", "nothing"]).status.code(), Some(4));
}

#[test]
fn a_cordoned_host_gets_no_new_volumes() {
    let cluster = in_operation(1);
    let host = cluster.name.clone();
    cluster.expect(&["volume", "create", "before", "--size", "1MiB"], 0);
    let said = cluster.expect(&["host", "cordon", &host], 0);
    assert!(said.contains("its drives get no new volumes from now on"), "{said}");
    let said = cluster.expect(&["host", "cordon", &host], 0);
    assert!(said.contains("it is cordoned already; nothing was changed"), "{said}");
    let said = cluster.expect(&["volume", "create", "during", "--size", "1MiB"], 5);
    assert!(said.contains("cordon"), "{said}");
    cluster.expect(&["host", "cordon", "no-such-host"], 4);
    let said = cluster.expect(&["host", "uncordon", &host], 0);
    assert!(said.contains("its drives may get new volumes again"), "{said}");
    cluster.expect(&["volume", "create", "after", "--size", "1MiB"], 0);
}

//! What programs ask of volumes over HTTP: the bodies of `/v1/volumes` and below.

use hotbay_control::fuzzing as control;
use hotbay_core::volume::Wish;

use crate::assert_plain;

/// The smallest volume, and the step of sizes.
const MIB: u64 = 1 << 20;

/// Any body, at both places that take one.
pub(crate) fn bodies(data: &[u8]) {
    match control::new_volume(data) {
        Ok((wish, nodes)) => {
            let Wish { name, size, parameters, .. } = wish;
            assert!((1..=128).contains(&name.as_str().len()), "{name:?}");
            assert_whole(size.bytes);
            // A list of them is looked up one by one, and a name that no node can have is nobody's.
            assert!(nodes.iter().all(|node| node.len() <= data.len()));
            assert!(parameters.keys().all(|key| !key.chars().any(char::is_control)));
        }
        Err(words) => assert_plain(words),
    }
    match control::larger_volume(data) {
        Ok(size) => assert_whole(size.bytes),
        Err(words) => assert_plain(words),
    }
}

fn assert_whole(bytes: u64) {
    assert!(bytes >= MIB && bytes.is_multiple_of(MIB), "{bytes} is no size of a volume");
}

pub(crate) fn body_seeds() -> Vec<Vec<u8>> {
    [
        r#"{"name":"db","sizeBytes":10737418240}"#,
        r#"{"name":"db","sizeBytes":1,"parameters":{"media":"NVMe","erase":"required"},"nodes":["node-a"]}"#,
        r#"{"name":"db","sizeBytes":3145728,"parameters":{"spread":"required","spreadKey":"g","fsType":"xfs"}}"#,
        r#"{"name":"a b","sizeBytes":5,"parameters":{"mkfsOptions":"-m 0 -L x","maxShares":"1"}}"#,
        r#"{"name":"p","sizeBytes":5,"parameters":{"csi.storage.k8s.io/pvc/name":"data-0",
            "csi.storage.k8s.io/pvc/namespace":"shop"}}"#,
        r#"{"name":"db","sizeBytes":5,"parameters":{"drive":"exclusive","ignoreIfInaccessible":"yes"}}"#,
        r#"{"name":"","sizeBytes":0,"parameters":{"medias":"HDD"}}"#,
        r#"{"name":"x\n","sizeBytes":18446744073709551615}"#,
        r#"{"sizeBytes":21474836480}"#,
        r#"{"sizeBytes":-1}"#,
        r#"["db",1]"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

//! Manifests of volumes, held against what they should read like.

use hotbay_core::device::{DeviceKind, LabelSeen, Media, Observed};
use hotbay_core::evidence::Evidence;
use hotbay_core::ids::{ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::label::extents::{Claim, Use};
use hotbay_core::order::Generation;
use hotbay_core::recover::Choice;

use super::*;

fn extent(volume: u128, name: &str, claim: Option<Claim>, usage: Use) -> Extent {
    Extent {
        volume: VolumeId::from_bits(volume),
        part: 0,
        start_bytes: u64::try_from(volume).unwrap() << 30,
        length_bytes: 1 << 30,
        usage,
        formatted: false,
        name: name.parse().unwrap(),
        claim,
    }
}

fn plan() -> Plan {
    let label = LabelSeen {
        cluster: ClusterId::from_bits(0xc1),
        drive: DriveId::from_bits(0xd1),
        node: NodeId::from_bits(0xa1),
        generation: Generation::from_number(3),
        in_operation: true,
        sequence: 8,
    };
    let device = Observed {
        evidence: Evidence { serial: Some("S1".into()), ..Evidence::default() },
        path: "/dev/sdb".into(),
        bay: None,
        kind: DeviceKind::Block,
        media: Media::Ssd,
        size_bytes: 1 << 40,
        block_bytes: 512,
        details: Default::default(),
        label: Some(label),
        denied: Vec::new(),
    };
    let extents = vec![
        extent(1, "pvc-1", Some(Claim::new("shop", "data-0").unwrap()), Use::Used),
        extent(2, "pvc-2", None, Use::Dirty),
        extent(3, "a \"b\"\u{2028}kind: Pod", None, Use::Used),
    ];
    let from_third_copy = false;
    let read = Reading { host: "store-1".into(), device, label, extents, from_third_copy };
    Plan::new(vec![read], &Choice::default()).unwrap()
}

const WHOLE: &str = r#"---
# On drive 000000000000000000000000000000d1, read as "store-1:/dev/sdb".
apiVersion: v1
kind: PersistentVolume
metadata:
  name: "pvc-1"
spec:
  capacity:
    storage: "1073741824"
  accessModes:
    - ReadWriteOnce
  persistentVolumeReclaimPolicy: Retain
  storageClassName: "fast"
  # Block, if the claim asks for a raw device: labels do not tell.
  volumeMode: Filesystem
  claimRef:
    apiVersion: v1
    kind: PersistentVolumeClaim
    namespace: "shop"
    name: "data-0"
  csi:
    driver: csi.hotbay.dev
    volumeHandle: "00000000000000000000000000000001"
  nodeAffinity:
    required:
      nodeSelectorTerms:
        - matchExpressions:
            - key: hotbay.dev/node
              operator: In
              values:
                - "000000000000000000000000000000a1"
"#;

#[test]
fn a_volume_is_told_as_kubernetes_has_it() {
    let text = text(&plan(), Some("fast")).unwrap();
    assert!(text.starts_with(WHOLE), "{text}");
    assert_eq!(text.matches("kind: PersistentVolume\n").count(), 2, "one was deleted: {text}");
}

#[test]
fn every_manifest_is_yaml_and_a_strange_name_stays_a_value() {
    let plan = plan();
    let text = text(&plan, None).unwrap();
    assert_eq!(text, super::text(&plan, None).unwrap());
    let mut names = Vec::new();
    for document in text.split("---\n").filter(|part| !part.is_empty()) {
        let object: serde_json::Value = serde_saphyr::from_str(document).unwrap();
        assert_eq!(object["kind"], "PersistentVolume");
        assert_eq!(object["spec"]["storageClassName"], serde_json::Value::Null);
        names.push(object["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names, ["pvc-1", "hotbay-00000000000000000000000000000003"]);
    assert_eq!(quoted("a\"b\\\u{2028}\n"), r#""a\"b\\\U00002028\U0000000A""#);
}

#[test]
fn a_storage_class_has_a_name_that_kubernetes_takes() {
    for wrong in ["", "Fast", "a b", "a..b", "-a", "a\nb"] {
        assert!(text(&plan(), Some(wrong)).is_err(), "{wrong:?}");
    }
}

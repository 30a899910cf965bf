//! A registry is lost, and rebuilt from the labels on its drives: with the real program, over drives that are files.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cluster;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cluster::{Cluster, eventually};
use hotbay_api::PROTOCOL;
use hotbay_api::volumes::volumes_client::VolumesClient;
use hotbay_api::volumes::{
    AnnotateRequest, AttachRequest, CreateRequest, DetachRequest, VolumeResponse, Wish,
};
use hotbay_core::ids::{ClusterId, DriveId, NodeId, VolumeId};
use hotbay_core::label::change::{Basis, Change};
use hotbay_core::label::extents::{Claim, Extent, Use};
use hotbay_core::label::update::Want;
use hotbay_core::order::Generation;
use hotbay_host::label::{FileSectors, bring_up_to_date, change_extents, refresh_third_copy};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tonic::transport::{Channel, Endpoint, Uri};

const MIB: u64 = 1 << 20;
const DRIVE_BYTES: u64 = 64 * MIB;

/// Calls about volumes, one after the other.
struct Volumes {
    runtime: tokio::runtime::Runtime,
    client: VolumesClient<Channel>,
}

impl Volumes {
    fn of(cluster: &Cluster) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = cluster.api();
        let connector = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://registry");
        let channel = runtime.block_on(endpoint.connect_with_connector(connector)).unwrap();
        Self { runtime, client: VolumesClient::new(channel) }
    }

    fn create(&mut self, name: &str, mib: u64, claim: &str) -> Value {
        let pairs = [("namespace", "shop"), ("name", claim)];
        let pairs =
            pairs.map(|(key, value)| (format!("csi.storage.k8s.io/pvc/{key}"), value.into()));
        let wish = Wish { size_bytes: mib * MIB, parameters: pairs.into(), nodes: Vec::new() };
        let request = CreateRequest { protocol: PROTOCOL, name: name.into(), wish: Some(wish) };
        shown(self.runtime.block_on(self.client.create(request)))
    }

    fn attach(&mut self, volume: &str, node: &str) -> Value {
        let (volume, node) = (volume.into(), node.into());
        let request = AttachRequest { protocol: PROTOCOL, volume, node, read_only: false };
        shown(self.runtime.block_on(self.client.attach(request)))
    }

    fn detach(&mut self, volume: &str) -> Value {
        let (volume, node) = (volume.into(), String::new());
        shown(self.runtime.block_on(self.client.detach(DetachRequest {
            protocol: PROTOCOL,
            volume,
            node,
        })))
    }

    /// As it is.
    fn get(&mut self, volume: &str) -> Value {
        let request = AnnotateRequest {
            protocol: PROTOCOL,
            volume: volume.into(),
            ..AnnotateRequest::default()
        };
        shown(self.runtime.block_on(self.client.annotate(request)))
    }
}

fn shown(answer: Result<tonic::Response<VolumeResponse>, tonic::Status>) -> Value {
    serde_json::from_str(&answer.unwrap().into_inner().volume_json).unwrap()
}

/// Runs `hotbay recover`; gives its exit code and all that it printed.
fn recover(arguments: &[&str], paths: &[&Path]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    command.args(["recover", "--no-config"]).args(arguments).args(paths).stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn inspected(path: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    let output = command.args(["drive", "inspect", "-o", "json"]).arg(path).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes what only its volume may change into each extent of a drive.
fn write_bytes(drive: &Path) {
    let file = File::options().write(true).open(drive).unwrap();
    for extent in inspected(drive)["extents"].as_array().unwrap() {
        let (at, name) = (extent["startBytes"].as_u64().unwrap(), extent["name"].as_str().unwrap());
        let bytes = name.bytes().cycle().take(usize::try_from(MIB).unwrap()).collect::<Vec<_>>();
        file.write_all_at(&bytes, at).unwrap();
    }
}

/// What is behind the labels.
fn contents(drive: &Path) -> Vec<u8> {
    let bytes = std::fs::read(drive).unwrap();
    let last = bytes.len() - 2 * usize::try_from(MIB).unwrap();
    bytes[2 << 20..last].to_vec()
}

/// Asks, makes the store, and does not do so twice; never writes to a drive.
fn rebuild(data_dir: &Path, files: &[PathBuf]) {
    let as_they_were: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let at = data_dir.to_str().unwrap();
    let paths: Vec<_> = files.iter().map(PathBuf::as_path).collect();
    let (code, text) = recover(&["--data-dir", at], &paths);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("1 node, 3 drives, 3 volumes (15M)"), "{text}");
    assert!(text.contains("shop/data-1") && text.contains("released"), "{text}");
    assert!(text.contains("nothing was changed") && !data_dir.exists(), "{text}");
    let (code, text) = recover(&["--data-dir", at, "--yes"], &paths);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("hotbay registry adopt"), "{text}");
    let store = std::fs::read(data_dir.join("registry.redb")).unwrap();
    let (code, text) = recover(&["--data-dir", at, "--yes"], &paths);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    assert!(store == std::fs::read(data_dir.join("registry.redb")).unwrap());
    for (file, was) in files.iter().zip(&as_they_were) {
        assert!(*was == std::fs::read(file).unwrap(), "drives are only read");
    }
}

/// The volumes of a drive have what they had; one that was made since does not count.
fn check_bytes(file: &Path, was: &[u8]) {
    let now = contents(file);
    for extent in inspected(file)["extents"].as_array().unwrap() {
        if extent["name"] == "pvc-after" {
            continue;
        }
        let at = usize::try_from(extent["startBytes"].as_u64().unwrap() - 2 * MIB).unwrap();
        let length = usize::try_from(extent["lengthBytes"].as_u64().unwrap()).unwrap();
        assert!(now[at..at + length] == was[at..at + length], "{extent}");
    }
}

#[test]
fn a_lost_registry_is_rebuilt_and_goes_on_as_before() {
    let mut cluster = Cluster::started(3, false);
    cluster.expect(&["drive", "add", &cluster.target(0), &cluster.target(1), "--wait"], 0);
    cluster.expect(&["drive", "add", &cluster.target(2), "--wait"], 0);
    cluster.expect(&["drive", "remove", &cluster.target(2), "--wait"], 0);
    let mut volumes = Volumes::of(&cluster);
    let names = ["pvc-used", "pvc-idle", "pvc-new"];
    for (number, name) in names.iter().enumerate() {
        volumes.create(name, 4 + number as u64, &format!("data-{number}"));
    }
    volumes.attach("pvc-used", &cluster.name);
    volumes.attach("pvc-idle", &cluster.name);
    volumes.detach("pvc-idle");
    volumes.attach("pvc-idle", &cluster.name);
    volumes.detach("pvc-idle");
    let before: BTreeMap<_, _> = names.iter().map(|name| (name, volumes.get(name))).collect();
    let nodes = cluster.expect(&["get", "nodes", "-o", "json"], 0);
    let drives: Vec<_> = (0..3).map(|bay| cluster.drive(bay)).collect();
    let files: Vec<PathBuf> = cluster.drives.iter().map(|drive| drive.path.clone()).collect();
    files[..2].iter().for_each(|file| write_bytes(file));
    let bytes: Vec<_> = files.iter().map(|file| contents(file)).collect();

    // All is dead, and the records are gone.
    cluster.agent.take().unwrap().kill();
    cluster.registry.take().unwrap().kill();
    let data_dir = cluster.path().join("registry");
    std::fs::remove_dir_all(&data_dir).unwrap();
    rebuild(&data_dir, &files);

    cluster.start_registry();
    cluster.start_agent();
    let adopted = eventually("the node is heard", || {
        let text = cluster.expect(&["registry", "adopt", "--yes"], 0);
        text.contains("Adopted").then_some(text)
    });
    assert!(adopted.contains("volume pvc-idle: has seen use 2 of it"), "{adopted}");
    cluster.wait_ready();
    for bay in 0..2 {
        cluster.wait_state(bay, "AttachedDevice");
        assert_eq!(cluster.agent_descriptors(bay).len(), 1, "bay {bay} is open");
    }
    cluster.wait_state(2, "DetachedDevice");
    for (bay, was) in drives.iter().enumerate() {
        assert_eq!(cluster.drive(bay)["metadata"], was["metadata"], "name and id");
    }
    let now: Value =
        serde_json::from_str(&cluster.expect(&["get", "nodes", "-o", "json"], 0)).unwrap();
    let nodes: Value = serde_json::from_str(&nodes).unwrap();
    assert_eq!(now["items"].as_array().unwrap().len(), 1, "{now}");
    assert_eq!(now["items"][0]["metadata"], nodes["items"][0]["metadata"]);

    let mut volumes = Volumes::of(&cluster);
    for (name, was) in before {
        let is = volumes.get(name);
        assert_eq!(is["metadata"], was["metadata"]);
        assert_eq!(is["spec"]["claim"], was["spec"]["claim"]);
        for key in ["state", "sizeBytes", "drive", "node", "epoch"] {
            assert_eq!(is["status"][key], was["status"][key], "{name}: {key}");
        }
    }
    let used = eventually("the use is confirmed", || {
        let used = volumes.get("pvc-used");
        (used["status"]["attachments"][0]["state"] == "Attached").then_some(used)
    });
    assert_eq!(used["status"]["attachments"][0]["epoch"], 1, "{used}");
    assert_eq!(volumes.attach("pvc-idle", &cluster.name)["status"]["epoch"], 3);
    volumes.create("pvc-after", 4, "data-3");
    files.iter().zip(&bytes).take(2).for_each(|(file, was)| check_bytes(file, was));
}

/// A file with a label of a cluster, and one volume on it.
fn labelled(dir: &Path, cluster: u128, drive: u128) -> PathBuf {
    let path = dir.join(format!("drive-{drive}.img"));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(DRIVE_BYTES).unwrap();
    let sectors = FileSectors::new(file, DRIVE_BYTES, 512);
    let want = Want {
        cluster: ClusterId::from_bits(cluster),
        drive: DriveId::from_bits(drive),
        node: NodeId::from_bits(0xa),
        generation: Generation::from_number(5),
        in_operation: true,
        take_over: false,
    };
    let outcome = bring_up_to_date(&sectors, &want, || Ok(()), &|_| ()).unwrap();
    let extent = Extent {
        volume: VolumeId::from_bits(drive + 100),
        part: 0,
        start_bytes: 2 * MIB,
        length_bytes: 2 * MIB,
        usage: Use::Used,
        formatted: false,
        name: format!("pvc-{drive}").parse().unwrap(),
        claim: Some(Claim::new("shop", &format!("data-{drive}")).unwrap()),
    };
    let basis = Basis::of(&outcome.header().unwrap());
    let erase = |_| panic!("nothing is erased");
    change_extents(&sectors, &want, basis, &[Change::Place(extent)], &erase, &|_| ()).unwrap();
    refresh_third_copy(&sectors, want.drive, &|_| ()).unwrap();
    path
}

#[test]
fn the_third_copy_stands_in_for_a_damaged_label() {
    let dir = tempfile::tempdir().unwrap();
    let path = labelled(dir.path(), 1, 7);
    let file = File::options().write(true).open(&path).unwrap();
    for slot in [MIB, 3 * MIB / 2] {
        file.write_all_at(b"damaged", slot + 100).unwrap();
    }
    let data_dir = dir.path().join("registry");
    let (code, text) = recover(&["--yes", "--data-dir", data_dir.to_str().unwrap()], &[&path]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("its label is damaged in both places. This is its third copy"), "{text}");
    assert!(text.contains("pvc-7"), "{text}");
    let (code, text) = recover(&["--manifests"], &[&path]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("# From the third copy of its label"), "{text}");

    // Without it nothing is left to go by.
    file.write_all_at(b"damaged", 62 * MIB + 100).unwrap();
    let (code, text) = recover(&["--manifests"], &[&path]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("no copy of it can be trusted"), "{text}");
}

#[test]
fn drives_of_two_clusters_are_not_mixed() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (labelled(dir.path(), 1, 7), labelled(dir.path(), 2, 8));
    let data_dir = dir.path().join("registry");
    let at = data_dir.to_str().unwrap();
    let (code, text) = recover(&["--yes", "--data-dir", at], &[&one, &other]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("the drives are of several clusters"), "{text}");
    assert!(
        text.contains("nothing was changed\n  say which one is meant:  --cluster ID"),
        "{text}"
    );
    assert!(!data_dir.exists());
    let meant = "00000000000000000000000000000002";
    let (code, text) = recover(&["--yes", "--data-dir", at, "--cluster", meant], &[&one, &other]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("1 drive with other labels left out"), "{text}");
    let copy = dir.path().join("copy.img");
    std::fs::copy(&one, &copy).unwrap();
    let (code, text) = recover(&["--manifests"], &[&one, &copy]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("one is a copy"), "{text}");
}

#[test]
fn labels_of_other_machines_come_in_files() {
    let dir = tempfile::tempdir().unwrap();
    let (one, other) = (labelled(dir.path(), 1, 7), labelled(dir.path(), 1, 8));
    let file = dir.path().join("other.json");
    let (code, text) = recover(&["--output", file.to_str().unwrap()], &[&other]);
    assert_eq!(code, 0, "{text}");
    let (code, text) = recover(&["--output", file.to_str().unwrap()], &[&other]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("name a file that is not there yet"), "{text}");
    let input = ["--manifests", "--input", file.to_str().unwrap()];
    let (code, together) = recover(&input, &[&one]);
    assert_eq!(code, 0, "{together}");
    assert!(together.contains("pvc-7") && together.contains("pvc-8"), "{together}");
    // What was read twice counts once.
    let (_, again) = recover(&input, &[&one, &other]);
    assert_eq!(again, together);
    let (_, alone) = recover(&["--manifests"], &[&other]);
    let (_, from_file) = recover(&["--no-drives", input[0], input[1], input[2]], &[]);
    assert_eq!(alone, from_file);
    std::fs::write(&file, "{\"format\":1,\"drives\":[{}]}").unwrap();
    let (code, text) = recover(&input, &[&one]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("is not what `hotbay recover --output` writes: missing field"), "{text}");
    std::fs::write(&file, "{\"format\":9}").unwrap();
    assert!(recover(&input, &[&one]).1.contains("is of format 9"));
    let mut relative = Command::new(env!("CARGO_BIN_EXE_hotbay"));
    relative.args(["recover", "--no-config", "--manifests", "drive-8.img"]).current_dir(&dir);
    assert_eq!(String::from_utf8(relative.output().unwrap().stdout).unwrap(), alone);
    let (code, text) = recover(&["--manifests"], &[&dir.path().join("nowhere")]);
    assert_eq!(code, 4, "{text}");
    let empty = dir.path().join("empty.img");
    File::create_new(&empty).unwrap().set_len(DRIVE_BYTES).unwrap();
    let (code, text) = recover(&[], &[&empty]);
    assert_eq!(code, 4, "{text}");
    assert!(text.contains("no drive with a label of Hotbay was found"), "{text}");
}

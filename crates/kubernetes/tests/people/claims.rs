//! What people say on claims, on the server in memory: which claims count, and that none is lost or stops the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hotbay_core::cluster::VolumeRequest;
use hotbay_core::ids::VolumeId;
use hotbay_core::label::extents::Claim;
use hotbay_core::volume::{IGNORE_IF_INACCESSIBLE, Wish};
use hotbay_kubernetes::claims;
use hotbay_kubernetes::client::{Call, Client, Sending, Transport};
use hotbay_registry::StoreHealth;
use http::Method;
use serde_json::{Value, json};

use crate::faults::reply;
use crate::world::{VOLUME, World, wish};

const CLAIMS: &str = "/api/v1/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ID: VolumeId = VolumeId::from_bits(9 << 96);

/// A server that begrudges.
#[derive(Clone)]
struct Grudging {
    client: Client,
    /// Watches are over as soon as they begin.
    hasty: bool,
    watches: Arc<AtomicUsize>,
}

impl Transport for Grudging {
    fn send(&self, call: Call) -> Sending {
        let path = call.uri().to_string();
        if path.starts_with(&format!("{VOLUMES}/forbidden")) {
            return Box::pin(async { Ok(reply(403, &json!({ "message": "not for you" }))) });
        }
        if path.contains("watch=1") {
            self.watches.fetch_add(1, Ordering::Relaxed);
            if self.hasty {
                return Box::pin(async {
                    tokio::task::yield_now().await;
                    Ok(reply(200, &Value::Null))
                });
            }
        }
        self.client.send(call)
    }
}

/// Follows the claims, for as long as the world is there.
fn follow(world: &World, hasty: bool) -> Arc<AtomicUsize> {
    let watches = Arc::<AtomicUsize>::default();
    let server = Grudging { client: world.server.client(), hasty, watches: Arc::clone(&watches) };
    let following = claims::follow(Client::over(server), world.registry.clone());
    world.wait(async { drop(tokio::spawn(following)) });
    watches
}

fn call(world: &World, method: Method, path: &str, body: &Value) {
    let client = world.server.client();
    let answer = world.wait(client.call(method, path, Some(body))).unwrap();
    assert!(answer.code < 300, "{path}: {answer:?}");
}

fn object(name: &str, bound_to: &str, said: Option<&str>) -> Value {
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "annotations": { IGNORE_IF_INACCESSIBLE: said },
        },
        "spec": { "volumeName": bound_to },
    })
}

/// A claim of the namespace `shop`, not yet bound.
fn make(world: &World, name: &str, bound_to: &str, said: &str) {
    call(world, Method::POST, CLAIMS, &object(name, bound_to, Some(said)));
}

fn bind(world: &World, name: &str) {
    let status = json!({ "metadata": {}, "status": { "phase": "Bound" } });
    call(world, Method::PUT, &format!("{CLAIMS}/{name}/status"), &status);
}

fn make_bound(world: &World, name: &str, bound_to: &str, said: &str) {
    make(world, name, bound_to, said);
    bind(world, name);
}

fn said(world: &World, volume: VolumeId) -> Option<String> {
    let look = move |cluster: &hotbay_core::cluster::Cluster| {
        cluster.volume(volume)?.record.annotations.get(IGNORE_IF_INACCESSIBLE).cloned()
    };
    world.wait(world.registry.read(look)).unwrap_or_default()
}

fn until_said(world: &World, volume: VolumeId, word: Option<&str>) {
    world.until(&format!("{word:?}"), || said(world, volume).as_deref() == word);
}

/// A volume that was made for `shop/data-0`.
fn second_volume(world: &World) -> VolumeId {
    let (id, claim) = (VolumeId::from_bits(7 << 96), Claim::new("shop", "data-0").unwrap());
    let wish = Wish { claim: Some(claim), ..wish("pvc-2") };
    world.request(VolumeRequest::Create { id, wish: Box::new(wish) });
    world.until("created", || world.condition("volumes", "pvc-2", "Created") == "True");
    id
}

/// `volumeName` is any text to Kubernetes. Put into a path, one of these ended whoever followed the claims, and the
/// others every round of his, so that no claim after them was heard.
#[test]
fn a_claim_that_names_nonsense_stops_no_other() {
    let world = World::new();
    let bad = ["a b", "x/status", "x?watch=true", "forbidden", "absent", "\u{7}"];
    for (number, name) in bad.into_iter().enumerate() {
        make_bound(&world, &format!("bad-{number}"), name, "yes");
    }
    make_bound(&world, "good", VOLUME, "yes");
    follow(&world, false);
    until_said(&world, ID, Some("yes"));
    // The same, one after the other, in a watch.
    for (number, name) in bad.into_iter().enumerate() {
        make_bound(&world, &format!("worse-{number}"), name, "yes");
    }
    call(&world, Method::PUT, &format!("{CLAIMS}/good"), &object("good", VOLUME, None));
    until_said(&world, ID, None);
}

/// A tenant wrote the name of somebody else's volume into a claim of his own, and had a say in it.
#[test]
fn only_the_claim_that_has_the_volume_counts() {
    let world = World::new();
    let second = second_volume(&world);
    // In a list, and then in a watch.
    make(&world, "unbound", VOLUME, "early");
    make_bound(&world, "other", "pvc-2", "rival");
    follow(&world, false);
    make(&world, "unbound-too", VOLUME, "early");
    make_bound(&world, "other-too", "pvc-2", "rival");
    make(&world, "data-0", "pvc-2", "yes");
    assert_eq!((said(&world, ID), said(&world, second)), (None, None));
    bind(&world, "data-0");
    until_said(&world, second, Some("yes"));
    assert_eq!(said(&world, ID), None);
    bind(&world, "unbound");
    until_said(&world, ID, Some("early"));
    // What others say afterwards is no more than before.
    make_bound(&world, "late", "pvc-2", "rival");
    call(&world, Method::PUT, &format!("{CLAIMS}/unbound"), &object("unbound", VOLUME, Some("no")));
    until_said(&world, ID, Some("no"));
    assert_eq!(said(&world, second).as_deref(), Some("yes"));
}

/// A volume was retained after its claim was deleted, and given to another. What that one said was never heard.
#[test]
fn a_volume_that_was_given_to_another_claim_hears_that_one() {
    let world = World::new();
    let second = second_volume(&world);
    let source = json!({ "driver": "csi.hotbay.dev", "volumeHandle": second.to_string() });
    let heir = json!({ "namespace": "shop", "name": "heir" });
    let volume =
        json!({ "metadata": { "name": "pvc-2" }, "spec": { "csi": source, "claimRef": heir } });
    call(&world, Method::POST, VOLUMES, &volume);
    make_bound(&world, "rival", "pvc-2", "rival");
    follow(&world, false);
    make_bound(&world, "heir", "pvc-2", "yes");
    until_said(&world, second, Some("yes"));
    make_bound(&world, "rival-too", "pvc-2", "rival");
    call(&world, Method::PUT, &format!("{CLAIMS}/heir"), &object("heir", "pvc-2", None));
    until_said(&world, second, None);
}

/// The volume has another name than its PersistentVolume.
#[test]
fn a_volume_that_a_person_named_is_looked_up_and_hears_both_yes_and_no_more() {
    let world = World::new();
    let source = json!({ "driver": "csi.hotbay.dev", "volumeHandle": ID.to_string() });
    let volume = json!({ "metadata": { "name": "by-hand" }, "spec": { "csi": source } });
    call(&world, Method::POST, VOLUMES, &volume);
    follow(&world, false);
    make_bound(&world, "mine", "by-hand", "yes");
    until_said(&world, ID, Some("yes"));
    call(&world, Method::PUT, &format!("{CLAIMS}/mine"), &object("mine", "by-hand", None));
    until_said(&world, ID, None);
}

/// While the registry could not write, a claim was taken for one without a volume. The watch went on behind it, and
/// nobody came back to it for as long as this controller led.
#[test]
fn what_a_claim_says_while_the_store_fails_is_heard_later() {
    let world = World::new();
    follow(&world, false);
    make_bound(&world, "first", VOLUME, "before");
    until_said(&world, ID, Some("before"));
    world.server.set_definitions(false);
    let health = world.registry.store_health();
    world.until("it fails", || *health.borrow() != StoreHealth::Good);
    make_bound(&world, "first", VOLUME, "meanwhile");
    std::thread::sleep(Duration::from_secs(1));
    world.server.set_definitions(true);
    until_said(&world, ID, Some("meanwhile"));
}

/// A server that ends every watch at once was asked for the next as fast as it answered.
#[test]
fn a_watch_that_ends_at_once_is_not_begun_again_without_a_pause() {
    let world = World::with_drives(1);
    let watches = follow(&world, true);
    world.until("it watches", || watches.load(Ordering::Relaxed) > 0);
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    world.until("it watches again", || watches.load(Ordering::Relaxed) > 1);
    let (begun, took) = (watches.load(Ordering::Relaxed), began.elapsed());
    let a_second = begun as f64 / took.as_secs_f64();
    assert!((1.0 / 3.0..10.0).contains(&a_second), "{begun} watches in {took:?}");
}

//! Lists of objects, whole or page by page: what gRPC and HTTP both show.
//!
//! A list is sorted by where things are. A page begins after a place, so that objects that come and go between two
//! pages neither shift the rest nor are shown twice.

use hotbay_core::cluster::{Cluster, Ground};
use hotbay_core::cms::{Code, Target};
use hotbay_registry::Registry;
use serde::Serialize;
use tonic::Status;

use crate::objects;
use crate::patience::patiently;

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) enum Wanted {
    Drives,
    Drive(String),
    Nodes,
    Node(String),
    Volumes,
    Volume(String),
}

/// Which part of a list.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// How many objects at the most; 0: any number.
    pub(crate) limit: usize,
    /// How many bytes of them, about.
    pub(crate) bytes: usize,
    /// Where the page before ended; empty: from the beginning.
    pub(crate) after: String,
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 0, bytes: usize::MAX, after: String::new() }
    }
}

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    /// JSON each.
    pub(crate) objects: Vec<String>,
    /// Where the next page begins; empty: there is none.
    pub(crate) next: String,
}

/// Where an object is in its list: the same for as long as the object is where it is.
type Place = Vec<String>;

/// What is there now, and durable.
pub(crate) async fn list(
    registry: &Registry,
    wanted: Wanted,
    page: Page,
) -> Result<Listed, Status> {
    let reading = registry.read_on(move |cluster| {
        let ground = ground(cluster, &wanted);
        (listed(cluster, wanted, &page), ground)
    });
    patiently(registry, reading).await?
}

/// What the answer rests on: of one object that is there, on that alone.
fn ground(cluster: &Cluster, wanted: &Wanted) -> Ground {
    let one = match wanted {
        Wanted::Drives | Wanted::Nodes | Wanted::Volumes => None,
        Wanted::Drive(name) => {
            let target = Target { host: None, device: name.clone() };
            let known = cluster.newcomer(&target).is_none().then(|| cluster.find(&target).ok());
            known.flatten().map(|id| cluster.ground_of_drive(id))
        }
        Wanted::Node(name) => {
            let known = cluster.nodes().find(|known| known.record.name.as_str() == name);
            known.map(|known| cluster.ground_of_node(known.record.id))
        }
        Wanted::Volume(name) => {
            let known = crate::volumes::find(cluster, name).and_then(|id| cluster.volume(id));
            known.map(|known| cluster.ground_of_volume(known.record.id))
        }
    };
    one.unwrap_or(Ground::Everything)
}

fn listed(cluster: &Cluster, wanted: Wanted, page: &Page) -> Result<Listed, Status> {
    let one = |object: String| Ok(Listed { objects: vec![object], next: String::new() });
    match wanted {
        Wanted::Drives => {
            let known = cluster.drives().map(|known| objects::drive(cluster, known));
            let newcomers = cluster.newcomers().map(|device| objects::newcomer(cluster, device));
            let placed = known.chain(newcomers).map(|drive| {
                let status = &drive.status;
                let bay = status.bay.clone().unwrap_or_default();
                let name = drive.metadata.name.clone();
                (vec![status.node.clone(), bay, status.path.clone(), name], drive)
            });
            paged(placed.collect(), page)
        }
        Wanted::Drive(name) => {
            let target = Target { host: None, device: name };
            if let Some(newcomer) = cluster.newcomer(&target) {
                return one(json(&objects::newcomer(cluster, newcomer)));
            }
            let id = cluster.find(&target).map_err(|unmet| match unmet.code {
                Code::NotFound => Status::not_found(unmet.reason.to_string()),
                _ => Status::invalid_argument(unmet.reason.to_string()),
            })?;
            one(json(&objects::drive(cluster, cluster.drive(id).expect("found"))))
        }
        Wanted::Nodes => {
            let placed = cluster.nodes().map(|known| {
                let place = vec![known.record.name.to_string(), known.record.id.to_string()];
                (place, objects::node(cluster, known))
            });
            paged(placed.collect(), page)
        }
        Wanted::Node(name) => {
            let known = cluster.nodes().find(|known| known.record.name.as_str() == name);
            let known = known.ok_or_else(|| Status::not_found(format!("no host {name:?}")))?;
            one(json(&objects::node(cluster, known)))
        }
        Wanted::Volumes => {
            let known = cluster.volumes_after(None).map(|known| objects::volume(cluster, known));
            let orphans = cluster.orphans();
            let orphans = orphans.map(|(drive, extent)| objects::orphan(cluster, drive, extent));
            let placed = known.chain(orphans).map(|volume| {
                (vec![volume.metadata.name.clone(), volume.metadata.uid.clone()], volume)
            });
            paged(placed.collect(), page)
        }
        Wanted::Volume(name) => {
            let missing = || Status::not_found(format!("no volume {name:?}"));
            let id = crate::volumes::find(cluster, &name).ok_or_else(missing)?;
            if let Some(known) = cluster.volume(id) {
                return one(json(&objects::volume(cluster, known)));
            }
            let mut orphans = cluster.orphans().filter(|(_, extent)| extent.volume == id);
            let (drive, extent) = orphans.next().ok_or_else(missing)?;
            one(json(&objects::orphan(cluster, drive, extent)))
        }
    }
}

fn paged(mut placed: Vec<(Place, impl Serialize)>, page: &Page) -> Result<Listed, Status> {
    placed.sort_by(|(one, _), (other, _)| one.cmp(other));
    let begin = match page.after.as_str() {
        "" => 0,
        token => {
            let after = place_in(token).ok_or_else(|| {
                Status::invalid_argument("this is no place in a list; begin again without it")
            })?;
            placed.partition_point(|(place, _)| *place <= after)
        }
    };
    let (mut objects, mut bytes, mut next) = (Vec::new(), 0, String::new());
    let mut last: Option<&Place> = None;
    for (place, object) in &placed[begin..] {
        let full = objects.len() == page.limit && page.limit > 0;
        if let Some(last) = last.filter(|_| full || bytes >= page.bytes) {
            next = token_of(last);
            break;
        }
        let object = json(object);
        bytes += object.len();
        objects.push(object);
        last = Some(place);
    }
    Ok(Listed { objects, next })
}

fn json(object: &impl Serialize) -> String {
    serde_json::to_string(object).expect("kinds have text keys")
}

/// A place as text that fits into a query.
fn token_of(place: &Place) -> String {
    json(place).bytes().map(|byte| format!("{byte:02x}")).collect()
}

fn place_in(token: &str) -> Option<Place> {
    let digits = token.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.map(byte).collect();
    serde_json::from_slice(&bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(names: &[&str]) -> Vec<(Place, String)> {
        names.iter().map(|name| (vec![(*name).to_owned()], (*name).to_owned())).collect()
    }

    fn page(limit: usize, bytes: usize, after: &str) -> Page {
        Page { limit, bytes, after: after.to_owned() }
    }

    #[test]
    fn pages_follow_one_another_whatever_comes_and_goes() {
        let first = paged(placed(&["d", "a", "c", "b"]), &page(2, usize::MAX, "")).unwrap();
        assert_eq!(first.objects, ["\"a\"", "\"b\""]);
        // The last one that was shown is gone, and another has come before it.
        let next = page(2, usize::MAX, &first.next);
        let second = paged(placed(&["a", "aa", "c", "d"]), &next).unwrap();
        assert_eq!(second.objects, ["\"c\"", "\"d\""]);
        assert_eq!(second.next, "");
    }

    #[test]
    fn a_page_ends_when_it_is_large_and_has_always_something() {
        let small = paged(placed(&["a", "b", "c"]), &page(0, 1, "")).unwrap();
        assert_eq!(small.objects.len(), 1);
        let rest = paged(placed(&["a", "b", "c"]), &page(0, 4, &small.next)).unwrap();
        assert_eq!((rest.objects.len(), rest.next.as_str()), (2, ""));
    }

    #[test]
    fn nonsense_is_no_place() {
        for token in ["x", "5", "zz", "é", "7b7d", &"5b".repeat(1_000)] {
            let refused = paged(placed(&["a"]), &page(1, 1, token)).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{token}");
        }
    }
}

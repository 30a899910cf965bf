//! What people are told about what they did to the objects.

use hotbay_core::cluster::{About, Notice};
use hotbay_core::ids::{DriveId, NodeId, VolumeId};
use hotbay_registry::{Key, Kind};

use crate::resource::Resource;

/// So many things that happened at once are told one by one; the rest in one sentence.
const TOLD_ONE_BY_ONE: usize = 20;

/// A warning about an object.
pub(super) fn warning(reason: &'static str, key: Key, text: String) -> Notice {
    let about = match key.kind {
        Kind::Drive => About::Drive(DriveId::from_bits(key.id)),
        Kind::Node => About::Node(NodeId::from_bits(key.id)),
        Kind::Volume => About::Volume(VolumeId::from_bits(key.id)),
        Kind::Registry | Kind::Attachment => About::Registry,
    };
    Notice { warning: true, reason, about, text, order: None }
}

/// Somebody deleted an object. Deleting it is not how anything is deleted: this says how.
pub(super) fn deleted(key: Key, name: &str) -> Notice {
    let object = format!("{}/{name}", Resource::of(key.kind).plural());
    let instead = match key.kind {
        Kind::Registry => String::new(),
        Kind::Node => format!(
            " To take its drives out of operation:  hotbay host remove {name} ; to give up a machine that is gone:  \
             hotbay host purge {name}"
        ),
        Kind::Drive => format!(" To take the drive out of operation:  hotbay drive remove {name}"),
        Kind::Volume => format!(
            " To delete the volume: delete its claim (DeleteVolume), or  hotbay volume delete {name}"
        ),
        Kind::Attachment => {
            " To take a volume from a node: end the pod (ControllerUnpublishVolume), or  hotbay volume unmount"
                .to_owned()
        }
    };
    let text = format!(
        "The object {object} was deleted and is written again: deleting an object deletes, detaches and forgets \
         nothing.{instead}"
    );
    warning("ObjectDeleted", key, text)
}

/// Somebody changed the status of an object.
pub(super) fn edited(key: Key, name: &str) -> Notice {
    let object = format!("{}/{name}", Resource::of(key.kind).plural());
    let text = format!(
        "The status of {object} was changed by hand and is written again: the leading controller alone writes it. \
         Wishes go into the spec."
    );
    warning("StatusEdited", key, text)
}

/// Somebody annotated a volume in a way that it cannot be.
pub(super) fn not_annotated(key: Key, name: &str, why: &str) -> Notice {
    let object = format!("{}/{name}", Resource::of(key.kind).plural());
    let text = format!(
        "Annotations of {object} are not taken over, and are written again as they were: {why}. See \
         `hotbay volume annotate --help` for what there is."
    );
    warning("AnnotationsRefused", key, text)
}

/// An object holds a record that nobody knows.
pub(super) fn unknown(key: Key, object: &str) -> Notice {
    let text = format!(
        "The object {object} is removed: its record is not known here, and was written late by a controller that led \
         before. Nothing on a drive has changed."
    );
    Notice { about: About::Registry, ..warning("LateObject", key, text) }
}

/// An object holds the record of another one.
pub(super) fn copy(key: Key, object: &str, other: &str) -> Notice {
    let text = format!(
        "The object {object} is left alone: it has the record of {}/{other}. It is of no use and can be deleted; that \
         deletes nothing else.",
        Resource::of(key.kind).plural()
    );
    Notice { about: About::Registry, ..warning("CopiedObject", key, text) }
}

/// An object has a status that nobody wrote, and nothing is known of it.
pub(super) fn strange(object: &str) -> Notice {
    let text = format!(
        "The object {object} is left alone: its status is not what a controller wrote. If it is a wish, delete it and \
         make it again without a status; if it was that of a drive or a volume, what it stood for is learnt again from \
         the drive, and it can be deleted."
    );
    warning("StrangeObject", Key::REGISTRY, text)
}

/// Keeps a few of many.
pub(super) fn bounded(mut notices: Vec<Notice>) -> Vec<Notice> {
    if notices.len() > TOLD_ONE_BY_ONE {
        let more = notices.len() - TOLD_ONE_BY_ONE;
        notices.truncate(TOLD_ONE_BY_ONE);
        let text = format!("The same happened to {more} more objects at the same time.");
        let (reason, about) = ("ManyObjects", About::Registry);
        notices.push(Notice { warning: true, reason, about, text, order: None });
    }
    notices
}

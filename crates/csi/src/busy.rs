//! One call at a time for each volume. Whoever comes second is told to come again: CSI's callers do, with a pause that
//! grows, and nobody queues behind a call that hangs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hotbay_core::ids::VolumeId;

use crate::platform::{Failure, FailureKind};
use crate::request::shown;

/// Most calls that change something at the same time, in one service. The sidecars of a large cluster are set to some
/// hundreds.
const MAX_UNDER_WAY: usize = 4096;

/// What a call changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Volume(VolumeId),
    /// A volume that may not be there yet.
    Name(String),
}

/// The calls under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    under_way: Arc<Mutex<HashMap<Key, &'static str>>>,
}

/// The right to change something, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    busy: Busy,
    key: Key,
}

impl Busy {
    /// Takes the turn, or says who has it.
    pub(crate) fn enter(&self, key: Key, call: &'static str) -> Result<Turn, Failure> {
        let mut under_way = self.lock();
        if let Some(other) = under_way.get(&key) {
            let whose = match &key {
                Key::Volume(id) => id.to_string(),
                Key::Name(name) => shown(name),
            };
            let message =
                format!("{other} of volume {whose} is under way: call again when it has ended");
            return Err(Failure::new(FailureKind::Aborted, message));
        }
        if under_way.len() >= MAX_UNDER_WAY {
            let message =
                format!("{MAX_UNDER_WAY} calls are under way, which is the most: call again later");
            // Not ResourceExhausted, which the provisioner takes for drives without room.
            return Err(Failure::new(FailureKind::Unavailable, message));
        }
        under_way.insert(key.clone(), call);
        drop(under_way);
        Ok(Turn { busy: self.clone(), key })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, &'static str>> {
        // Nothing that can panic runs under it, and every state of it is a good one.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(number: u128) -> Key {
        Key::Volume(VolumeId::from_bits(number))
    }

    #[test]
    fn second_call_is_told_of_the_first_and_others_go_on() {
        let busy = Busy::default();
        let first = busy.enter(volume(1), "DeleteVolume").unwrap();
        let second = busy.enter(volume(1), "ControllerPublishVolume").unwrap_err();
        assert_eq!(second.kind, FailureKind::Aborted);
        assert!(second.message.contains("DeleteVolume"), "{second}");
        let _other = busy.enter(volume(2), "DeleteVolume").unwrap();
        let _named = busy.enter(Key::Name("a".to_owned()), "CreateVolume").unwrap();
        assert!(busy.enter(Key::Name("a".to_owned()), "CreateVolume").is_err());
        drop(first);
        busy.enter(volume(1), "ControllerPublishVolume").unwrap();
    }

    #[test]
    fn there_is_a_limit_and_it_is_not_final() {
        let busy = Busy::default();
        let number = |n: usize| volume(u128::try_from(n).unwrap());
        let turns: Vec<_> =
            (0..MAX_UNDER_WAY).map(|n| busy.enter(number(n), "DeleteVolume").unwrap()).collect();
        let refused = busy.enter(number(MAX_UNDER_WAY), "DeleteVolume").unwrap_err();
        assert!(!refused.kind.is_final(), "{refused:?}");
        drop(turns);
        assert!(busy.lock().is_empty());
    }
}

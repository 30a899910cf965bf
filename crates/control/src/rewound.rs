//! An agent that knows more than the registry: before people are told that the registry went back in time, its store is
//! asked whether this controller leads at all. `sessions` calls this for every registration.
//!
//! A controller that was succeeded without having noticed it hears the same from agents as one whose records were
//! restored from a backup. It writes its own record again, as it is: where another leads by now, or where the store has
//! gone back under it, the store refuses that, and this controller ends.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hotbay_core::cluster::{About, Notice, Refused, RegistrationRefused};
use hotbay_core::ids::{NodeId, NodeName};
use hotbay_registry::{CallError, Key, Registry};

/// Which nodes know more, as far as people were told.
#[derive(Debug, Default)]
pub(crate) struct Rewound {
    told: Mutex<BTreeSet<NodeName>>,
}

impl Rewound {
    /// A node's registration ended like this.
    pub(crate) async fn registered(
        &self,
        registry: &Registry,
        (name, id): (NodeName, Option<NodeId>),
        ended: &Result<(), CallError>,
    ) {
        let differences = match ended {
            Err(CallError::Refused(Refused::Registration(
                RegistrationRefused::RegistryRewound { differences, .. },
            ))) => differences.len(),
            Ok(()) => {
                self.told().remove(&name);
                return;
            }
            Err(_) => return,
        };
        if !self.told().insert(name.clone()) {
            return;
        }
        let known = move |cluster: &hotbay_core::cluster::Cluster| {
            id.filter(|id| cluster.node(*id).is_some()).map_or(About::Registry, About::Node)
        };
        let text = format!(
            "RegistryRewound: node {name} knows newer orders than this registry ({differences} differences), which \
             seems to be a restored backup or a copy. It gets no orders. To see the differences, and to go on from \
             what the nodes know:  hotbay registry adopt"
        );
        let told = match registry.read_around(known).await {
            Ok(about) => {
                let reason = "RegistryRewound";
                let notice = Notice { warning: true, reason, about, text, order: None };
                registry.rewrite(vec![Key::REGISTRY], vec![notice]).await
            }
            Err(error) => Err(error),
        };
        if told.is_err() {
            // The node registers again, and then it is told.
            self.told().remove(&name);
        }
    }

    fn told(&self) -> MutexGuard<'_, BTreeSet<NodeName>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! No history of two nodes lets both attach one drive, whoever takes it over, removes it or gives a node up.

use proptest::prelude::*;

use super::tests::{A, agent, at, done, goes_silent, reports, target};
use crate::agent::{Agent, Event as AgentEvent};
use crate::cluster::testing::{DRIVE, act, lead, register, says};
use crate::cluster::{Cluster, Effects, Records, Reply};
use crate::cms::{Action, TakeOver};
use crate::device::Observed;
use crate::ids::SessionNumber;
use crate::message::Order;
use crate::order::Goal;

/// What a history is made of.
#[derive(Debug, Clone, Copy)]
enum Step {
    Registers { node: usize, has_it: bool },
    Reports { node: usize, has_it: bool },
    GoesSilent { node: usize },
    Add { node: usize },
    Remove { node: usize },
    TakeOver { node: usize },
    Purge { node: usize },
    Confirms { node: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let node = 0..2_usize;
    prop_oneof![
        3 => (node.clone(), any::<bool>()).prop_map(|(node, has_it)| Step::Registers { node, has_it }),
        2 => (node.clone(), any::<bool>()).prop_map(|(node, has_it)| Step::Reports { node, has_it }),
        2 => node.clone().prop_map(|node| Step::GoesSilent { node }),
        2 => node.clone().prop_map(|node| Step::Add { node }),
        1 => node.clone().prop_map(|node| Step::Remove { node }),
        3 => node.clone().prop_map(|node| Step::TakeOver { node }),
        1 => node.clone().prop_map(|node| Step::Purge { node }),
        3 => node.prop_map(|node| Step::Confirms { node }),
    ]
}

/// Two nodes that obey at once, and the session that each has.
struct Two {
    cluster: Cluster,
    agents: [Agent; 2],
    sessions: [Option<SessionNumber>; 2],
    number: u64,
    owed: [Option<Order>; 2],
}

impl Two {
    const NAMES: [&str; 2] = ["node-a", "node-b"];

    fn devices(has_it: bool) -> Vec<Observed> {
        if has_it { vec![at("/dev/sdb")] } else { vec![] }
    }

    /// Gives orders to the agents that they are for.
    fn obey(&mut self, effects: Effects) {
        for (session, order) in effects.orders {
            let node = self.sessions.iter().position(|there| *there == Some(session)).unwrap();
            self.owed[node] = Some(order.clone());
            self.agents[node].step(AgentEvent::Order(order));
        }
        if let Reply::Registered(answer) = effects.reply {
            let node = self.sessions.iter().position(|there| *there == Some(answer.session));
            let node = node.unwrap();
            self.owed[node] = answer.allowed.iter().chain(&answer.unknown).next().cloned();
            self.agents[node].step(AgentEvent::Registered(*answer));
        }
    }

    fn takes(&mut self, step: Step) {
        let named = |node: usize| target(&format!("{}:/dev/sdb", Self::NAMES[node]));
        match step {
            Step::Registers { node, has_it } => {
                self.takes(Step::GoesSilent { node });
                self.number += 1;
                self.agents[node].step(AgentEvent::Devices(Self::devices(has_it)));
                let says = says(&self.agents[node], Self::NAMES[node]);
                let effects = register(&mut self.cluster, self.number, says);
                self.sessions[node] = Some(SessionNumber::from_number(self.number));
                self.obey(effects.expect("nobody is ahead of the registry"));
            }
            Step::Reports { node, has_it } => {
                let Some(session) = self.sessions[node] else { return };
                self.agents[node].step(AgentEvent::Devices(Self::devices(has_it)));
                let effects = reports(&mut self.cluster, session, Self::devices(has_it));
                self.obey(effects);
            }
            Step::GoesSilent { node } => {
                let Some(session) = self.sessions[node].take() else { return };
                self.agents[node].step(AgentEvent::SessionLost);
                goes_silent(&mut self.cluster, session, 0);
            }
            Step::Add { node } => self.asks(Action::AddDevice(named(node))),
            Step::Remove { node } => self.asks(Action::RemoveDevice(named(node))),
            Step::TakeOver { node } => {
                let (target, serial) = (named(node), "S1".to_owned());
                self.asks(Action::TakeOver(TakeOver { target, serial, state: None }));
            }
            Step::Purge { node } => {
                self.asks(Action::PurgeHost { host: Self::NAMES[node].into() });
            }
            Step::Confirms { node } => {
                let Some(session) = self.sessions[node] else { return };
                let Some(order) = self.owed[node].take() else { return };
                // Late answers are refused; that is theirs to check.
                drop(done(&mut self.cluster, session, &order));
            }
        }
    }

    fn asks(&mut self, action: Action) {
        let effects = act(&mut self.cluster, action).0;
        self.obey(effects);
    }

    /// What the agents that are connected were told last.
    fn attach_goals(&self) -> usize {
        let connected = (0..2).filter(|node| self.sessions[*node].is_some());
        let goals = connected.filter_map(|node| self.agents[node].in_force(DRIVE));
        goals.filter(|ordered| ordered.goal == Goal::Attach).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_history_lets_two_nodes_that_are_connected_attach_one_drive(
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let (mut cluster, _) = lead(Records::default(), 1);
        let first = agent(vec![at("/dev/sdb")]);
        let registered = register(&mut cluster, 1, says(&first, "node-a")).unwrap();
        let mut two = Two {
            cluster,
            agents: [first, agent(vec![])],
            sessions: [Some(A), None],
            number: 1,
            owed: [None, None],
        };
        two.obey(registered);
        for (number, step) in steps.iter().enumerate() {
            two.takes(*step);
            prop_assert!(two.attach_goals() <= 1, "after {:?}", &steps[..=number]);
        }
    }
}

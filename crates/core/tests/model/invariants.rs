//! What must hold, numbered as the design numbers it. Some invariants speak of a moment and are noted by the step that
//! breaks them ([`Broken`]); the others are read off a world.

use std::sync::Arc;

use hotbay_core::cluster::{Contact, Drive, State};
use hotbay_core::cms::Code;
use hotbay_core::evidence::Comparison;
use hotbay_core::ids::DriveId;
use hotbay_core::message::{Answer, AnswerResult, Obstacle, Order};
use hotbay_core::order::{Generation, Goal, Ordered};

use crate::world::{ClientReply, Connection, Machine, Site, World, machine_of, slot_of, start_of};

/// A broken invariant that a step noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Broken {
    /// 1: an order older than one already acted upon is carried out, or the same generation with two goals.
    OlderOrder,
    /// 1: an order that was refused for its content is carried out.
    RefusedOrder,
    /// 1: an order is taken from another registry than the one that the agent registered with last.
    ForeignOrder,
    /// 1 and 7: an agent takes orders from a registry that does not know a reign which the agent has served.
    ForeignRegistry,
    /// 1: a confirmation counts that is not from the agent's newest registered start, or that is not true.
    StaleConfirmation,
    /// 3: a removal is answered `S_OK` while the drive is open.
    RemovedWhileOpen,
    /// 4: a volume is placed on a drive that is not attached and confirmed.
    PlacedTooEarly,
}

/// 1. A stale order is never carried out; a stale confirmation never counts.
pub(crate) fn no_stale_order(world: &World) -> bool {
    !matches!(
        world.broken,
        Some(
            Broken::OlderOrder
                | Broken::RefusedOrder
                | Broken::ForeignOrder
                | Broken::ForeignRegistry
                | Broken::StaleConfirmation
        )
    )
}

/// 2. The registry says Attached, the agent is registered, nothing is under way: the drive is open, or the agent has
///    said why not, or the registry still asks it.
pub(crate) fn attached_is_open(world: &World) -> bool {
    world.sites.iter().enumerate().all(|(number, site)| {
        site.cluster.drives().all(|drive| {
            let machine = machine_of(drive.record.id);
            let told = matches!(drive.contact, Contact::Waiting(_) | Contact::Refused(_));
            drive.record.state != State::Attached
                || told
                || site.cluster.owed(drive.record.id).is_some()
                || is_open(world, drive.record.id)
                || !quiet(world, machine)
                || !registered(world, number, machine)
        })
    })
}

/// 3. `S_OK` to Remove: the drive is not open. A drive that the registry says is Detached is not open.
pub(crate) fn removed_is_closed(world: &World) -> bool {
    let true_of = |site: &Site, drive: &Drive| {
        drive.record.state != State::Detached
            || !is_open(world, drive.record.id)
            || behind(world, site, drive.record.id)
    };
    world.broken != Some(Broken::RemovedWhileOpen)
        && world.sites.iter().all(|site| site.cluster.drives().all(|drive| true_of(site, drive)))
}

/// 4. No volume is placed on a drive that is not Attached, confirmed and wanted.
pub(crate) fn volumes_on_attached_drives(world: &World) -> bool {
    world.broken != Some(Broken::PlacedTooEarly)
}

/// 5. A drive with volumes is never closed by an order.
pub(crate) fn drives_with_volumes_stay(world: &World) -> bool {
    let fits = |state: State, volumes: bool| {
        !volumes || matches!(state, State::Attaching | State::Attached)
    };
    world.sites.iter().all(|site| {
        let live = site.cluster.drives().map(|drive| &drive.record);
        live.chain(&site.durable.drives)
            .all(|record| fits(record.state, !record.volumes.is_empty()))
    })
}

/// 7. What a client has been told is not lost with a registry's process.
pub(crate) fn told_is_durable(world: &World) -> bool {
    world.sites.iter().all(|site| {
        site.told.iter().all(|(drive, told)| {
            let durable = site.durable.drives.iter().find(|record| record.id == *drive);
            durable.map_or(Generation::ZERO, |record| record.generation) >= *told
        })
    })
}

/// Nothing that concerns a machine is under way.
fn quiet(world: &World, machine: usize) -> bool {
    let there = &world.machines[machine];
    there.saving.is_none()
        && there.steps.is_empty()
        && world.network.iter().all(|message| message.machine != machine)
        && world.sites.iter().all(|site| site.pending.is_empty())
}

/// Registry and agent agree that the agent is registered, over the same connection.
pub(crate) fn registered(world: &World, site: usize, machine: usize) -> bool {
    let there = &world.machines[machine];
    let here = &world.sites[site];
    let node = here.cluster.node(there.node_id());
    let number = node.and_then(|node| node.session).map(|session| session.number.get());
    let theirs = number.map(|number| Connection { site, reign: here.reign, number });
    theirs.is_some() && there.connection == theirs && world.in_session(machine)
}

pub(crate) fn is_open(world: &World, drive: DriveId) -> bool {
    world.machines[machine_of(drive)].disks[slot_of(drive)].open
}

/// The registry cannot know better than its records, until the machine registers:
/// - The registry has lost a part of its past, or has a rival, and the machine knows of newer things than it does.
/// - The agent has lost its record, and the label still says "in operation": it could not be written at the detach, or
///   was written by an attach that failed.
fn behind(world: &World, site: &Site, drive: DriveId) -> bool {
    let there = &world.machines[machine_of(drive)];
    if there.disks[slot_of(drive)].misled && there.accepted != Some(site.reign) {
        return true;
    }
    if !site.forked {
        return false;
    }
    let registration = there.agent.registration(there.name(), there.machine_id());
    let terms = site.durable.registry.iter().flat_map(|registry| &registry.terms);
    let foreign =
        registration.newest_term.is_some_and(|newest| !terms.clone().any(|t| *t == newest));
    let known = site.durable.drives.iter().find(|record| record.id == drive);
    let ours = known.map_or((Generation::ZERO, Goal::Detach), |record| {
        (record.generation, record.state.goal())
    });
    let theirs = registration.drives.iter().find(|report| report.drive == drive);
    let newest = theirs.and_then(|report| report.newest());
    foreign
        || newest.is_some_and(|theirs| theirs.0 > ours.0 || (theirs.0 == ours.0 && theirs != ours))
}

/// An agent begins to attach, relabel or detach.
pub(crate) fn acts(
    world: &mut World,
    machine: usize,
    drive: DriveId,
    generation: Generation,
    goal: Goal,
) {
    let there = world.machine(machine);
    there.served |= there.accepted.map_or(0, |reign| 1 << reign);
    let disk = there.disk(drive);
    let contradicts =
        |(acted, by): (Generation, Goal)| generation < acted || (generation == acted && goal != by);
    let older = disk.acted.is_some_and(contradicts);
    let refused = disk.refused.is_some_and(|refused| refused.stamp.generation == generation);
    disk.acted = Some((generation, goal));
    if older {
        world.breaks(Broken::OlderOrder);
    } else if refused {
        world.breaks(Broken::RefusedOrder);
    }
}

/// An agent answers. That it cannot write its record, it says without having written it.
pub(crate) fn speaks(machine: &mut Machine, answer: &Answer) {
    if matches!(answer.result, AnswerResult::Waiting(Obstacle::RecordUnwritable { .. })) {
        return;
    }
    machine.served |= machine.accepted.map_or(0, |reign| 1 << reign);
}

/// An order is about to arrive: if the machine takes the drive for another one, it must not come into force.
pub(crate) fn note_refusal(world: &mut World, machine: usize, order: &Order) {
    let there = world.machine(machine);
    let in_force = there.agent.in_force(order.drive);
    let seen = there.agent.record().drives.get(&order.drive).map(|memory| memory.seen);
    // One that is late is refused for its age, which says nothing about what it asks for.
    if seen.is_some_and(|seen| order.ordered.stamp.generation < seen.stamp.generation) {
        return;
    }
    let disk = there.disk(order.drive);
    let wants = |ordered: Ordered| (ordered.goal, ordered.stamp.generation);
    let reached = disk.observed().evidence.compare(&order.evidence) == Comparison::Same;
    if !reached && disk.label.is_some() {
        // Without a record the label says what is wanted.
        let held = disk.label.filter(|label| label.in_operation);
        let by_label = held.map(|label| (Goal::Attach, label.generation));
        if in_force.map(wants).or(by_label) != Some(wants(order.ordered)) {
            disk.refused = Some(order.ordered);
        }
    } else if disk.refused.map(wants) == Some(wants(order.ordered)) {
        disk.refused = None;
    }
}

/// An agent took an order that a registry sent under the given reign.
pub(crate) fn taken(world: &mut World, machine: usize, reign: usize) {
    if world.machines[machine].accepted != Some(reign) {
        world.breaks(Broken::ForeignOrder);
    }
}

/// An agent accepted a registry.
pub(crate) fn accepted(world: &mut World, machine: usize, before: Option<usize>, reign: usize) {
    let must_know = world.machines[machine].served | before.map_or(0, |before| 1 << before);
    if must_know & !world.lineages[reign] != 0 {
        world.breaks(Broken::ForeignRegistry);
    }
}

/// Notes which orders in force the drives have really been brought to.
pub(crate) fn note_completed(world: &mut World, machine: usize) {
    let newest = |site: &Arc<Site>| site.newest_start.get(&machine).copied();
    let heard: Vec<_> = world.sites.iter().filter_map(newest).collect();
    let there = world.machine(machine);
    let starts = there.starts;
    there.completed.retain(|(start, ..)| *start == starts || heard.contains(start));
    for disk in &there.disks {
        if let Some(ordered) = there.agent.in_force(disk.id)
            && disk.open == (ordered.goal == Goal::Attach)
        {
            let generation = ordered.stamp.generation;
            there.completed.insert((starts, disk.id, generation, ordered.goal));
        }
    }
}

/// A registry counted an answer.
pub(crate) fn counted(world: &mut World, site: usize, answer: &Answer) {
    if answer.result != AnswerResult::Done {
        return;
    }
    let machine = machine_of(answer.drive);
    let reign = world.sites[site].reign;
    let there = world.machine(machine);
    let start = start_of(answer.incarnation);
    // From here on the registry builds on it: the agent must never serve a registry that does not know this reign.
    there.served |= 1 << reign;
    let generation = answer.ordered.stamp.generation;
    let real = (start, answer.drive, generation, answer.ordered.goal);
    let newest = world.sites[site].newest_start.get(&machine) == Some(&start);
    let current = world.sites[site].cluster.drive(answer.drive).map(|d| d.record.generation);
    if !newest || current != Some(generation) || !world.machines[machine].completed.contains(&real)
    {
        world.breaks(Broken::StaleConfirmation);
    }
}

/// A volume was placed on a drive.
pub(crate) fn placed(world: &mut World, before: &Drive) {
    let fits = before.record.state == State::Attached
        && before.contact == Contact::Confirmed
        && !before.record.removal_wanted;
    if !fits {
        world.breaks(Broken::PlacedTooEarly);
    }
}

/// A client hears an answer.
pub(crate) fn replied(world: &mut World, site: usize, reply: &ClientReply) {
    let removed = reply.wish == Goal::Detach && reply.code == Code::Ok;
    if removed
        && is_open(world, reply.drive)
        && !behind(world, &world.sites[site].clone(), reply.drive)
    {
        world.breaks(Broken::RemovedWhileOpen);
    }
}

/// The agent starts without a record: of its drives only the labels still tell. The term is kept apart, so that what
/// it has served counts on.
pub(crate) fn record_lost(machine: &mut Machine) {
    machine.accepted_saved = None;
    let record = machine.record.take().unwrap_or_default();
    for disk in &mut machine.disks {
        let in_force = record.drives.get(&disk.id).and_then(|memory| memory.in_force);
        disk.misled |= in_force.is_some_and(|ordered| ordered.goal == Goal::Detach)
            && disk.label.is_some_and(|label| label.in_operation);
        disk.refused = None;
        disk.acted = disk.label.map(|label| {
            let goal = if label.in_operation { Goal::Attach } else { Goal::Detach };
            (label.generation, goal)
        });
    }
}

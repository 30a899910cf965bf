//! Invariant 10: after faults stop, every drive reaches its goal without a person, or the registry says why it cannot.
//!
//! From any world one fair schedule is played: what is under way ends well, what is sent arrives (or all that was
//! under way at the start is lost), agents register, the registry sends again what it owes, the client asks on.

use hotbay_core::cluster::{Contact, State};
use hotbay_core::ids::DriveId;
use hotbay_core::order::Goal;

use crate::bounds::Late;
use crate::invariants::{is_open, registered};
use crate::machine::WorkEnd;
use crate::step::Step;
use crate::world::{Body, World, machine_of, slot_of};

/// Rounds after which a world that has not settled never will.
pub(crate) const ROUNDS: usize = 40;

/// 10. The world settles, whether what is under way arrives or is lost. If it does not: where it ends.
pub(crate) fn unsettled(world: &World) -> Option<World> {
    let mut lossy = world.clone();
    lossy.network.clear();
    play(world.clone()).or_else(|| play(lossy))
}

/// Plays the fair schedule until the world has settled; gives the world that has not.
fn play(mut world: World) -> Option<World> {
    for _ in 0..ROUNDS {
        finish_what_runs(&mut world);
        let drives: Vec<_> = world.drive_ids().collect();
        if drives.iter().all(|drive| settled(&world, *drive)) {
            return None;
        }
        for drive in drives {
            ask_on(&mut world, drive);
        }
    }
    Some(world)
}

/// Ends everything that is under way, and has every agent registered. Each round ends what the one before began.
pub(crate) fn finish_what_runs(world: &mut World) {
    for site in 0..world.sites.len() {
        while !world.sites[site].pending.is_empty() {
            world.batch_durable(site);
        }
    }
    for message in std::mem::take(&mut world.network) {
        world.send((*message).clone());
        world.take(Step::Deliver { message: (*message).clone(), keep: false }, Late::ByConnection);
    }
    for machine in 0..world.machines.len() {
        for drive in world.machines[machine].disks.iter().map(|disk| disk.id).collect::<Vec<_>>() {
            if world.machines[machine].disks[slot_of(drive)].mistaken {
                world.mistake(machine, drive);
            }
            if world.machines[machine].steps.contains_key(&drive) {
                world.work_ends(machine, drive, WorkEnd::Well);
            }
            if world.machines[machine].pauses.contains(&drive) {
                world.pause_over(drive, machine);
            }
        }
        if world.machines[machine].saving.is_some() {
            world.saved(machine);
        }
        for site in 0..world.sites.len() {
            if let Some(session) = world.closed_session(site, machine) {
                world.session_closed(site, session);
            }
        }
        let under_way = !world.sites[0].pending.is_empty() || is_registering(world, machine);
        if !under_way && !registered(world, 0, machine) {
            world.connect(machine, 0);
        }
    }
}

/// A registration over the agent's connection, or the answer to it, is under way.
fn is_registering(world: &World, machine: usize) -> bool {
    world.network.iter().any(|message| {
        world.machines[machine].connection == Some(message.connection)
            && matches!(message.body, Body::Register(_) | Body::Registered(_) | Body::TurnedAway)
    })
}

/// The client asks for its last wish again, and the registry sends again what it owes.
fn ask_on(world: &mut World, drive: DriveId) {
    // The label may have one that the registry has forgotten: it was killed before that was durable.
    let has_volumes = |world: &World| {
        let known = world.sites[0].cluster.drive(drive);
        known.is_some_and(|known| !known.record.volumes.is_empty())
            || !world.machines[machine_of(drive)].disks[slot_of(drive)].extents.is_empty()
    };
    if let Some(wish) = world.wishes.get(&drive).copied() {
        if wish == Goal::Detach && has_volumes(world) {
            world.free(0, drive);
        }
        world.client(0, drive, wish);
    }
    world.resend(0, drive);
}

/// Registry and machine agree on what the client wants, or the registry says that it has gone back in time.
pub(crate) fn settled(world: &World, drive: DriveId) -> bool {
    let site = &world.sites[0];
    let machine = machine_of(drive);
    if site.rewound_for.contains(&machine) {
        return true;
    }
    let Some(known) = site.cluster.drive(drive) else { return false };
    if !registered(world, 0, machine) {
        return false;
    }
    let open = is_open(world, drive);
    let wish = world.wishes.get(&drive).copied();
    match known.record.state {
        State::Attached => {
            wish != Some(Goal::Detach)
                && open
                && (known.contact == Contact::Confirmed)
                && !known.record.removal_wanted
        }
        State::Detached => wish != Some(Goal::Attach) && !open,
        State::Unknown => wish != Some(Goal::Attach) && !open,
        State::Attaching | State::Closing => false,
    }
}

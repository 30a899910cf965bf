//! The worlds where the configurations begin: what leads there is always the same, and would only be played again in
//! front of everything that is to be explored.

use std::sync::Arc;

use hotbay_core::ids::DriveId;
use hotbay_core::message::Order;
use hotbay_core::order::Goal;
use hotbay_core::rules::Rules;

use crate::bounds::Late;
use crate::fair;
use crate::machine::WorkEnd;
use crate::step::Step;
use crate::world::{Body, Message, World, machine_of, slot_of};

/// Where the histories of a configuration begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Start {
    /// The drive is known, and nobody has asked anything of it.
    Known,
    /// The drive is attached.
    Attached,
    /// The drive is attached, and the order for that is under way a second time.
    AttachedOrderLate,
    /// The drive is attached, and for now taken for another one; a backup has been made.
    Mistaken,
    /// The drive has been attached, and the answer is still under way; a backup has been made.
    DoneLate,
    /// A backup was made before anything was asked of the drive. It has been added and removed since, and both
    /// orders are under way.
    OrdersSinceBackup,
    /// A backup was made while the drive was attached; it has been removed since.
    RemovedSinceBackup,
    /// A backup was made while the drive was attached. It has got a volume since, its removal has been asked for, and
    /// that taken back.
    AskedAgainSinceBackup,
    /// A copy of the store runs as a registry of its own and wants the drive detached; its answer to a registration is
    /// under way to the agent, which has turned to the first registry again. There a volume is on the drive.
    Contested,
}

/// One registry, one agent, one drive, as far as `start` says.
pub(crate) fn begin(rules: Rules, start: Start) -> World {
    let mut world = World::new(rules, 1, 1);
    // The first registration makes the drive known.
    for _ in 0..4 {
        fair::finish_what_runs(&mut world);
    }
    let drive = world.drive_ids().next().expect("one drive");
    match start {
        Start::Known => return world,
        Start::DoneLate => {
            done_late(&mut world, drive);
            return world;
        }
        Start::OrdersSinceBackup => {
            world.make_backup();
            for wish in [Goal::Attach, Goal::Detach] {
                world.client(0, drive, wish);
                world.batch_durable(0);
            }
            return world;
        }
        Start::Attached
        | Start::AttachedOrderLate
        | Start::Mistaken
        | Start::RemovedSinceBackup
        | Start::AskedAgainSinceBackup
        | Start::Contested => fulfil(&mut world, drive, Goal::Attach),
    }
    match start {
        Start::Known | Start::DoneLate | Start::OrdersSinceBackup | Start::Attached => {}
        Start::AttachedOrderLate => send_again(&mut world, drive),
        Start::Mistaken => {
            world.mistake(0, drive);
            world.make_backup();
        }
        Start::RemovedSinceBackup => {
            world.make_backup();
            fulfil(&mut world, drive, Goal::Detach);
        }
        Start::AskedAgainSinceBackup => {
            world.make_backup();
            place(&mut world, drive);
            world.client(0, drive, Goal::Detach);
            fulfil(&mut world, drive, Goal::Attach);
        }
        Start::Contested => contested(&mut world, drive),
    }
    world
}

/// Plays on until the client's wish is fulfilled.
fn fulfil(world: &mut World, drive: DriveId, wish: Goal) {
    world.client(0, drive, wish);
    world.wishes.insert(drive, wish);
    for _ in 0..fair::ROUNDS {
        fair::finish_what_runs(world);
        if fair::settled(world, drive) {
            return;
        }
    }
    panic!("{wish} of {drive} is never fulfilled");
}

fn place(world: &mut World, drive: DriveId) {
    assert!(world.place(0, machine_of(drive)), "an attached drive takes a volume");
    fair::finish_what_runs(world);
}

/// Puts the order in force for a drive under way once more, as if its first sending had been doubled.
fn send_again(world: &mut World, drive: DriveId) {
    let machine = machine_of(drive);
    let there = &world.machines[machine];
    let order = Order {
        drive,
        ordered: there.agent.in_force(drive).expect("an order is in force"),
        incarnation: there.incarnation(),
        evidence: there.disks[slot_of(drive)].observed().evidence,
        take_over: false,
        wipe: None,
        given_up: false,
    };
    let connection = there.connection.expect("it came over a connection");
    world.send(Message { connection, machine, body: Body::Order(order) });
}

fn done_late(world: &mut World, drive: DriveId) {
    world.client(0, drive, Goal::Attach);
    world.batch_durable(0);
    deliver_only(world);
    world.saved(0);
    world.work_ends(0, drive, WorkEnd::Well);
    assert!(matches!(world.network[0].body, Body::Answer(_)), "the attach is answered");
    world.make_backup();
}

fn contested(world: &mut World, drive: DriveId) {
    world.start_copy();
    world.batch_durable(1);
    world.client(1, drive, Goal::Detach);
    world.batch_durable(1);
    world.connect(0, 1);
    deliver_only(world);
    let answer = world.network.remove(0);
    assert!(matches!(answer.body, Body::Registered(_)), "the copy takes the registration");
    fulfil(world, drive, Goal::Attach);
    place(world, drive);
    world.send(Arc::unwrap_or_clone(answer));
}

/// Delivers the one message that is under way.
fn deliver_only(world: &mut World) {
    assert_eq!(world.network.len(), 1, "one message is under way");
    let message = (*world.network[0]).clone();
    world.take(Step::Deliver { message, keep: false }, Late::ByConnection);
}

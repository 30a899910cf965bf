//! A store that keeps each record by itself may have any first few of an action's writes when the registry ends. From
//! every such state the same requests, asked again, lead to where they would have led.

use super::*;

/// The life of a volume, with the registry's end after a number of writes.
struct Life {
    world: World,
    /// Writes until the end; none is left when it has come.
    left: usize,
    is_dead: bool,
    has_died: bool,
}

impl Life {
    fn new(left: usize) -> Self {
        Self { world: World::new(&[100, 100]), left, is_dead: false, has_died: false }
    }

    /// Applies an event; of its writes only those are kept that come before the end.
    fn apply(&mut self, event: Event) -> Result<Effects, Refused> {
        let effects = self.world.cluster.apply(event, 0)?;
        let kept = effects.writes.len().min(self.left);
        store(&mut self.world.records, effects.writes[..kept].to_vec());
        self.left -= kept;
        if kept < effects.writes.len() {
            self.is_dead = true;
        } else {
            // Nothing leaves before what it was computed from is kept.
            let orders = effects.volume_orders.iter().map(|(_, order)| order.clone());
            self.world.orders.extend(orders);
        }
        Ok(effects)
    }

    fn settle(&mut self) {
        while let Some(order) = self.world.orders.pop() {
            let event = match order {
                VolumeOrder::Label(order) => {
                    let answer = self.world.carry_out(&order);
                    Event::LabelAnswer { session: SESSION, answer }
                }
                VolumeOrder::Use(order) => Event::UseAnswer {
                    session: SESSION,
                    answer: UseAnswer {
                        volume: order.volume,
                        incarnation: INCARNATION,
                        epoch: order.grant.epoch,
                        granted: order.grant.granted,
                        result: UseResult::Done,
                    },
                },
            };
            drop(self.apply(event));
            self.live_again();
        }
    }

    fn live_again(&mut self) {
        if self.is_dead {
            (self.is_dead, self.has_died, self.left) = (false, true, usize::MAX);
            self.world.restart();
        }
    }

    /// Asks, and asks again if the registry ended before it could answer.
    fn ask(&mut self, request: impl Fn(VolumeId) -> VolumeRequest) -> VolumeId {
        for _ in 0..2 {
            self.world.drawn += 1;
            let request = request(VolumeId::from_bits(self.world.drawn));
            let applied = self.apply(Event::Volume { request, asked_by: "me".into() });
            let died = self.is_dead;
            self.live_again();
            if !died {
                let Reply::Volume(id) = applied.unwrap().reply else { panic!("no volume") };
                self.settle();
                return id;
            }
        }
        panic!("it ended twice")
    }

    fn state(&self, id: VolumeId) -> Option<VolumeState> {
        self.world.state(id)
    }
}

fn wish() -> Box<Wish> {
    let Asked { class, claim } = Asked::parse(&BTreeMap::new()).unwrap();
    Box::new(Wish {
        name: "db".parse().unwrap(),
        size: Size::of(10 * MIB).unwrap(),
        class,
        parameters: BTreeMap::new(),
        nodes: BTreeSet::new(),
        preferred: Vec::new(),
        claim,
    })
}

/// A whole life; says whether the end came in it.
fn live(left: usize) -> bool {
    let mut life = Life::new(left);
    let id = life.ask(|id| VolumeRequest::Create { id, wish: wish() });
    assert_eq!(life.state(id), Some(VolumeState::Created), "ended after {left} writes");
    let on: Vec<_> = life.world.labels.values().flat_map(|told| &told.extents).collect();
    assert_eq!(on.len(), 1, "ended after {left} writes: {on:?}");
    let attach = |drawn: VolumeId| VolumeRequest::Attach {
        id: AttachmentId::from_bits(drawn.to_bits()),
        volume: id,
        node: NODE,
        read_only: false,
    };
    life.ask(attach);
    let attached = &life.world.cluster.volume(id).unwrap().attachments[&NODE];
    assert_eq!(attached.record.state, AttachmentState::Attached, "ended after {left} writes");
    life.ask(|_| VolumeRequest::Annotate {
        volume: id,
        changes: [("a".to_owned(), Some("b".to_owned()))].into(),
    });
    life.ask(|_| VolumeRequest::Expand { volume: id, size: Size::of(20 * MIB).unwrap() });
    assert_eq!(life.world.cluster.volume(id).unwrap().record.size_bytes, 20 * MIB);
    life.ask(|_| VolumeRequest::Detach { volume: id, node: Some(NODE) });
    assert!(life.world.cluster.volume(id).unwrap().attachments.is_empty());
    // The last write may have deleted it already: then there is nothing to ask for.
    if life.state(id).is_some() {
        let request = VolumeRequest::Delete { volume: id };
        drop(life.apply(Event::Volume { request, asked_by: "me".into() }));
        life.live_again();
        if life.state(id).is_some() {
            life.ask(|_| VolumeRequest::Delete { volume: id });
        }
    }
    life.settle();
    assert_eq!(life.state(id), None, "ended after {left} writes");
    let records = &life.world.records;
    assert!(records.volumes.is_empty() && records.attachments.is_empty());
    assert!(life.world.labels.values().all(|told| told.extents.is_empty()));
    assert!(records.drives.iter().all(|drive| drive.volumes.is_empty()));
    life.has_died
}

#[test]
fn a_life_is_finished_from_any_first_part_of_its_writes() {
    let ends = (0..).take_while(|left| live(*left)).count();
    assert!(ends >= 8, "the registry ended at {ends} writes alone");
}

/// A controller that had stalled wrote a volume when another led already, and had made one of that name; then that one
/// ended, before it had removed the late one.
#[test]
fn of_two_volumes_of_one_name_the_one_without_a_place_goes() {
    // Whichever id is the lower one.
    for late in [1, 9_999] {
        let mut world = World::new(&[100]);
        let made = world.create("db", 10, &[]).unwrap();
        world.settle();
        let late = VolumeId::from_bits(late);
        let record = world.records.volumes.iter().find(|record| record.id == made).unwrap();
        let record = VolumeRecord { id: late, state: VolumeState::Pending, ..record.clone() };
        world.records.volumes.push(record);
        world.restart();
        world.settle();
        assert_eq!((world.state(late), world.state(made)), (None, Some(VolumeState::Created)));
        assert_eq!(world.create("db", 10, &[]).unwrap(), made, "asked again");
        let ids: Vec<_> = world.records.volumes.iter().map(|record| record.id).collect();
        assert_eq!(ids, [made]);
    }
}

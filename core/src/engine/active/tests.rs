//! Active messages: handled in order, answered, dropped without a handler; and forged ones.

use crate::port::PacketPieces;
use std::string::ToString as _;
use std::vec;
use std::vec::Vec;

use crate::engine::active::{ActiveMessage, Handlers, NoMemory};
use crate::engine::tests::world::{AMPLE, RequestHandle, World, WorldRoom};
use crate::engine::{CompletionError, Failure, RequestId, StartError, Status};
use crate::port::{PacketPort, PeerId, PortFault};
use crate::shared::tests::fabric::WorldShape;
use crate::shared::tests::fabric::{Fabric, tiny};
use crate::shared::tests::{Rng, contents};
use crate::wire::{Envelope, Kind};

/// Handlers from this number on do not exist.
pub(in crate::engine) const UNHANDLED: u16 = 100;
/// The handler for which no memory is available.
const POOR: u16 = 99;

/// An active message that was handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Handled {
    pub(in crate::engine) from: PeerId,
    pub(in crate::engine) handler: u16,
    pub(in crate::engine) header: Vec<u8>,
    pub(in crate::engine) payload: Vec<u8>,
}

/// Records the arriving messages.
#[derive(Debug, Default)]
pub(in crate::engine) struct Log {
    /// The received part of a message, by sender.
    rooms: Vec<(PeerId, Vec<u8>)>,
    pub(in crate::engine) handled: Vec<Handled>,
    pub(in crate::engine) dropped: Vec<PeerId>,
}

impl Handlers for Log {
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        if message.handler >= UNHANDLED {
            return Ok(None);
        }
        if message.handler == POOR {
            return Err(NoMemory);
        }
        if !self.rooms.iter().any(|(from, _)| *from == message.from) {
            self.rooms.push((message.from, vec![0xee; message.len]));
        }
        let room = self.rooms.iter_mut().find(|(from, _)| *from == message.from);
        Ok(room.map(|(_, room)| &mut room[..]))
    }

    fn run(&mut self, message: &ActiveMessage) {
        let at = self.rooms.iter().position(|(from, _)| *from == message.from).unwrap();
        let (_, room) = self.rooms.swap_remove(at);
        let (header, payload) = room.split_at(message.header_bytes);
        let (header, payload) = (header.to_vec(), payload.to_vec());
        self.handled.push(Handled { from: message.from, handler: message.handler, header, payload });
    }

    fn drop_parts(&mut self, from: PeerId) {
        self.rooms.retain(|(sender, _)| *sender != from);
        self.dropped.push(from);
    }
}

impl World<'_> {
    /// Sends an active message. The header's buffer stays lent forever, because one request has two buffers.
    pub(in crate::engine) fn active(
        &mut self,
        from: PeerId,
        to: PeerId,
        handler: u16,
        header: &[u8],
        payload: &[u8],
    ) -> Result<RequestHandle, StartError> {
        let (_, header) = self.lender.send(from, header.to_vec());
        let (loan, payload) = self.lender.send(from, payload.to_vec());
        let started = self.engine(from).send_active(to, handler, header, payload);
        self.handle(from, loan, started)
    }

    fn handled(&mut self, rank: PeerId) -> Vec<Handled> {
        core::mem::take(&mut self.engine(rank).handlers_mut().handled)
    }
}

#[test]
fn messages_of_every_size_reach_their_handler_whole() {
    for slots in [4, 64] {
        let fabric = Fabric::new(WorldShape { fastbox_slots: slots, ..tiny(2) });
        let mut world = World::new(&fabric, AMPLE);
        let most = world.engine(0).active_bytes();
        for len in (0..600).chain([1023, 1024, 1025, 5000, most]) {
            let header_bytes = len / 3;
            let bytes = contents(len as u64, len);
            let (header, payload) = bytes.split_at(header_bytes);
            let handle = world.active(0, 1, 7, header, payload).unwrap();
            world.settle();
            world.done(handle).0.unwrap();
            let expected =
                Handled { from: 0, handler: 7, header: header.to_vec(), payload: payload.to_vec() };
            assert_eq!(world.handled(1), [expected], "{len} bytes");
        }
        let error = world.active(0, 1, 7, &[0], &vec![0; most]).err();
        assert_eq!(error, Some(StartError::TooLong { len: most + 1, most }));
        world.assert_empty(&[0, 1], "active messages");
    }
}

#[test]
fn messages_are_handled_in_the_order_sent_although_they_wait_for_room() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let mut rng = Rng::new(1);
    let mut handles = vec![];
    let mut sent = vec![];
    for number in 0..200u64 {
        let payload = contents(number, rng.pick(&[0, 8, 40, 150, 240, 700, 1600]));
        handles.push(world.active(0, 1, 1, &number.to_le_bytes(), &payload).unwrap());
        sent.push((number, payload));
        if rng.one_in(8) {
            world.engine(1).progress();
        }
    }
    assert!(handles.iter().any(|handle| handle.id != RequestId::SENT), "no message had to wait");
    world.settle();
    handles.into_iter().for_each(|handle| world.done(handle).0.map(drop).unwrap());
    let got: Vec<_> = world.handled(1).into_iter().map(|it| (it.header, it.payload)).collect();
    let sent: Vec<_> = sent.into_iter().map(|(number, it)| (number.to_le_bytes().to_vec(), it)).collect();
    assert_eq!(got, sent);
    world.assert_empty(&[0, 1], "order");
}

#[test]
fn messages_of_several_packets_of_several_senders_do_not_mix() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, AMPLE);
    let mut handles = vec![];
    for number in 0..20u64 {
        for from in [0, 2] {
            let payload = contents(number + u64::from(from), 3000);
            handles.push(world.active(from, 1, 1, &number.to_le_bytes(), &payload).unwrap());
        }
    }
    world.settle();
    handles.into_iter().for_each(|handle| world.done(handle).0.map(drop).unwrap());
    let handled = world.handled(1);
    for from in [0, 2] {
        let its = handled.iter().filter(|it| it.from == from).zip(0..20u64);
        for (it, number) in its {
            assert_eq!(it.header, number.to_le_bytes());
            assert_eq!(it.payload, contents(number + u64::from(from), 3000));
        }
    }
    assert_eq!(handled.len(), 40);
    world.assert_empty(&[0, 1, 2], "several packets");
}

#[test]
fn part_of_a_message_is_dropped_when_its_sender_fails() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    let handle = world.active(0, 1, 1, b"head", &contents(1, 100_000)).unwrap();
    for _ in 0..3 {
        world.engine(1).progress();
        world.engine(0).progress();
    }
    assert!(world.test(handle).is_none());
    world.engine(1).fail(0, Failure::Died);
    assert_eq!((world.handled(1), &world.engine(1).handlers_mut().dropped[..]), (vec![], &[0][..]));
    world.engine(0).fail(1, Failure::Died);
    let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died });
    assert_eq!(world.done(handle).0, completion_error);
    world.assert_empty(&[0, 1], "after half a message");
}

#[test]
fn parts_that_do_not_make_up_a_message_are_faults() {
    /// Handler, tag and length of a packet.
    type ForgedPacket = (u16, u64, usize);
    let tag = |header: u64, len: u64| header | len << 32;
    let good = tag(8, 600);
    // The number is that of the leading valid packets.
    let cases: [(&[ForgedPacket], usize); 12] = [
        (&[(1, good, 256), (1, good, 256), (1, good, 88), (1, 0, 5)], 4),
        (&[(1, good, 1), (1, good, 255), (1, good, 256), (1, good, 88)], 4),
        (&[(1, tag(8, 256), 256)], 0),
        (&[(1, tag(8, (1 << 20) + 1), 256)], 0),
        (&[(1, tag(601, 600), 256)], 0),
        (&[(1, good, 0)], 0),
        (&[(1, good, 256), (1, 8, 9)], 1),
        (&[(1, good, 256), (2, good, 256)], 1),
        (&[(1, good, 256), (1, tag(9, 600), 256)], 1),
        (&[(1, good, 256), (1, tag(8, 601), 256)], 1),
        (&[(1, good, 256), (1, good, 256), (1, good, 89)], 2),
        (&[(UNHANDLED, good, 256), (UNHANDLED, good, 256), (UNHANDLED, good, 88)], 3),
    ];
    for (packets, fine) in cases {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        for (at, (handler, tag, len)) in packets.iter().enumerate() {
            let envelope = Envelope { kind: Kind::Active, context: *handler, tag: *tag, total: *len as u64 };
            assert_eq!(
                world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(&contents(1, *len))),
                Ok(true)
            );
            world.engine(0).progress();
            let fault = Failure::Fault(PortFault::Protocol { kind: Kind::Active });
            assert_eq!(world.engine(0).failure(1), (at >= fine).then_some(fault), "{packets:?} at {at}");
        }
    }
}

#[test]
fn message_to_self_is_handled_by_progress_and_not_before() {
    let fabric = Fabric::new(tiny(1));
    let mut world = World::new(&fabric, AMPLE);
    let handle = world.active(0, 0, 3, b"head", b"payload").unwrap();
    assert_eq!(world.handled(0), []);
    world.engine(0).progress();
    let status = Status { peer: 0, tag: 0, len: 7, immediate: None };
    assert_eq!(world.done(handle).0, Ok(status));
    assert_eq!(world.handled(0).len(), 1);
}

#[test]
fn message_without_a_handler_is_dropped_and_counted() {
    let fabric = Fabric::new(tiny(2));
    let mut world = World::new(&fabric, AMPLE);
    for to in [0, 1] {
        let handle = world.active(0, to, UNHANDLED, b"a", b"b").unwrap();
        world.settle();
        world.done(handle).0.unwrap();
        assert_eq!(world.engine(to).unhandled(), 1);
        assert_eq!(world.handled(to), []);
    }
    assert_eq!(world.engine(1).failure(0), None);
    world.assert_empty(&[0, 1], "unhandled");
}

#[test]
fn message_for_which_there_is_no_memory_ends_its_connection_and_no_other() {
    for len in [2, 600] {
        let fault = PortFault::Memory { len };
        let fabric = Fabric::new(tiny(3));
        let mut world = World::new(&fabric, AMPLE);
        let handle = world.active(0, 1, POOR, b"a", &vec![1; len - 1]).unwrap();
        world.settle();
        world.done(handle).0.unwrap();
        assert_eq!((world.engine(1).failure(0), world.engine(1).unhandled()), (Some(fault.into()), 0));
        assert_eq!(world.engine(1).failure(2), None);
        assert!(!Failure::from(fault).to_string().contains("rules"));
        // A message to the process itself fails in the call that starts it.
        let handle = world.active(2, 2, POOR, b"a", &vec![1; len - 1]).unwrap();
        world.settle();
        assert_eq!(world.done(handle).0, Err(CompletionError::PeerFailed { peer: 2, failure: fault.into() }));
        assert_eq!(world.engine(2).failure(2), None);
    }
}

#[test]
fn messages_that_wait_end_with_their_receiver() {
    let fabric = Fabric::new(tiny(3));
    let mut world = World::new(&fabric, WorldRoom { requests: 64, ..AMPLE });
    let mut handles = vec![];
    while !handles.iter().any(|handle: &RequestHandle| handle.id != RequestId::SENT) {
        handles.push(world.active(0, 1, 1, &[], &[1; 200]).unwrap());
    }
    world.engine(0).fail(1, Failure::Died);
    let last = handles.pop().unwrap();
    let completion_error = Err(CompletionError::PeerFailed { peer: 1, failure: Failure::Died });
    assert_eq!(world.done(last).0, completion_error);
    assert!(matches!(world.active(0, 1, 1, &[], &[]), Err(StartError::PeerFailed { peer: 1, .. })));
    assert!(matches!(world.active(0, 9, 1, &[], &[]), Err(StartError::Rank { rank: 9, size: 3 })));
    world.active(0, 2, 1, &[], &[]).unwrap();
}

#[test]
fn header_longer_than_its_packet_is_a_fault() {
    for (header, len, good) in
        [(0, 0, true), (8, 8, true), (9, 8, false), (u64::MAX, 200, false), (1 << 31, 0, false)]
    {
        let fabric = Fabric::new(tiny(2));
        let mut world = World::new(&fabric, AMPLE);
        let envelope = Envelope { kind: Kind::Active, context: 1, tag: header, total: len as u64 };
        assert_eq!(
            world.engine(1).port_mut().send(0, &envelope, PacketPieces::Whole(&contents(1, len))),
            Ok(true)
        );
        world.engine(0).progress();
        let fault = Failure::Fault(PortFault::Protocol { kind: Kind::Active });
        assert_eq!(world.engine(0).failure(1), (!good).then_some(fault), "{header} of {len}");
        assert_eq!(world.handled(0).len(), usize::from(good));
    }
}

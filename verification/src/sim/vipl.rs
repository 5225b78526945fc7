//! Two processes with a virtual interface each (`core/src/via`), over the simulated fabric: messages are delayed, bytes
//! are placed in any order, and a process may die.
//!
//! The programs post receives, sends, RDMA writes and RDMA reads of random lists of segments, with and without fences.
//! A model knows the bytes of every message. Each message arrives once, whole, in order, in the oldest receive
//! descriptor. Descriptors end in the order in which they were posted. The memory of a descriptor that has ended is the
//! program's
//! again: the program overwrites it at once. When a descriptor of a write ends, its bytes are in place, if the level or
//! the fabric promises that. When the worlds are left alone, all descriptors end; if one process has died, those of the
//! other one end with an error.

mod areas;
mod link;
mod side;

use std::collections::VecDeque;

use nemesia_core::via::codes::{Reliability, STATUS_ERRORS};
use nemesia_core::via::vi::ViQueue;
use nemesia_core::via::{ViState, ViaDescriptor, ViaOperation, ViaSegment};
use nemesia_verification::rdma::{Conditions, Fabric};

use crate::rng::Rng;
use crate::tally::{Event, Tally};
use crate::trace::Trace;
use crate::violation::{Check, Violation, ensure};
use areas::{Area, HANDLE, SLOT_BYTES, SLOTS, segment};
use side::{ViplSide, pattern};

/// Turns in which a world comes to its end.
const MOST_TURNS: usize = 20_000;
/// Descriptors of a queue.
const MOST_POSTED: usize = 12;
/// Most segments of a descriptor.
const MOST_SEGMENTS: usize = 3;

/// A message that was posted and has not arrived.
#[derive(Debug)]
struct ViplExpected {
    bytes: Vec<u8>,
    immediate: Option<u32>,
    /// The slot of the target, if it is an RDMA write.
    target: Option<usize>,
}

/// A descriptor of a send queue.
#[derive(Debug)]
struct PostedSend {
    number: u64,
    kind: SendKind,
    /// The source, or the sink of a read.
    area: Area,
    slot: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendKind {
    /// The message with this number.
    Message(u64),
    /// To this slot of the other side, with the number of the message if it has immediate data.
    Write(usize, Option<u64>),
    Read,
}

/// What the program of a side has posted.
#[derive(Debug, Default)]
struct ViplProgram {
    sends: VecDeque<PostedSend>,
    /// The numbers and segments of receive descriptors.
    receives: VecDeque<(u64, usize, Vec<ViaSegment>)>,
    next: u64,
    /// Messages that it has sent, receives that it has posted, and messages that have arrived.
    messages: u64,
    posted: u64,
    arrived: u64,
    /// On their way to it.
    expected: VecDeque<ViplExpected>,
}

/// A world.
pub(crate) struct ViplWorld {
    rng: Rng,
    fabric: Fabric,
    sides: [Option<ViplSide>; 2],
    programs: [ViplProgram; 2],
    level: Reliability,
    proves: bool,
    turns: u64,
    tally: Tally,
    trace: Trace,
}

impl ViplWorld {
    pub(crate) fn new(mut rng: Rng, trace: Trace) -> Result<Self, Violation> {
        let mut conditions = rng.pick(&[Conditions::INFINIBAND, Conditions::IWARP]);
        conditions.delay = rng.pick(&[1, 2, 10]);
        conditions.facts.send_depth = rng.pick(&[3, 32]);
        let fabric = Fabric::new(rng.next(), conditions);
        let level = rng.pick(&[Reliability::Delivery, Reliability::Reception]);
        let side = |at| ViplSide::new(fabric.port(), at, level).map_err(Violation);
        let mut sides = [side(0)?, side(1)?];
        side::connect(&fabric, &mut sides).map_err(Violation)?;
        let proves = conditions.facts.write_proves_placement;
        let programs = Default::default();
        let (tally, sides) = (Tally::default(), sides.map(Some));
        Ok(Self { rng, fabric, sides, programs, level, proves, turns: 0, tally, trace })
    }

    /// Makes one random step.
    pub(crate) fn step(&mut self) -> Check {
        let at = self.rng.below(2);
        self.turns += 1;
        match self.rng.below(8) {
            0..2 => self.post_receive(at),
            2 => self.post_message(at),
            3 => self.post_write(at),
            4 => self.post_read(at),
            5 => _ = self.fabric.pass(),
            6 if at == 1 && self.rng.one_in(2000) => self.kill(at),
            _ => return self.drive(at),
        }
        Ok(())
    }

    fn kill(&mut self, at: usize) {
        if self.sides[at].take().is_some() {
            self.tally.count(Event::ViplDeath);
            self.trace.note(self.turns, || format!("{at} dies"));
        }
    }

    /// Cuts a slot, up to `len` bytes of it, into segments.
    fn segments(&mut self, area: Area, slot: usize, len: usize) -> Vec<ViaSegment> {
        let (mut list, mut done) = (Vec::new(), 0);
        while done < len {
            let left = len - done;
            let is_last = list.len() + 1 == MOST_SEGMENTS;
            let part = if is_last { left } else { 1 + self.rng.below(left) };
            list.push(segment(area, slot, done, part));
            done += part;
        }
        list
    }

    fn post(&mut self, at: usize, queue: ViQueue, descriptor: ViaDescriptor, list: &[ViaSegment]) -> bool {
        let Some(side) = &mut self.sides[at] else { return false };
        let program = &mut self.programs[at];
        let segments = list.len() as u16;
        let of = (program.next, HANDLE);
        let is_posted =
            side.vi.post(queue, of, ViaDescriptor { segments, ..descriptor }, list.iter().copied());
        program.next += u64::from(is_posted);
        is_posted
    }

    fn post_receive(&mut self, at: usize) {
        let Some(slot) = self.free(at, Area::Receive) else { return };
        let list = self.segments(Area::Receive, slot, SLOT_BYTES);
        let number = self.programs[at].next;
        if self.post(at, ViQueue::Receive, ViaDescriptor::default(), &list) {
            self.programs[at].receives.push_back((number, slot, list));
            self.programs[at].posted += 1;
        } else {
            self.release(at, Area::Receive, slot);
        }
    }

    fn free(&mut self, at: usize, area: Area) -> Option<usize> {
        self.sides[at].as_mut()?.free[area as usize].pop()
    }

    fn release(&mut self, at: usize, area: Area, slot: usize) {
        if let Some(side) = &mut self.sides[at] {
            side.free[area as usize].push(slot);
        }
    }

    /// Returns whether the other side has a receive descriptor for one more message.
    fn can_message(&self, at: usize) -> bool {
        let has_room = self.programs[at].sends.len() + 2 < MOST_POSTED;
        has_room && self.programs[at].messages < self.programs[1 - at].posted
    }

    fn immediate(&mut self) -> Option<u32> {
        self.rng.one_in(2).then(|| self.rng.next() as u32)
    }

    /// Takes note of a message, and returns its number.
    fn expect(&mut self, at: usize, expected: ViplExpected) -> u64 {
        self.programs[1 - at].expected.push_back(expected);
        self.programs[at].messages += 1;
        self.programs[at].messages - 1
    }

    /// Fills a slot with random bytes.
    fn fill(&mut self, at: usize, area: Area, slot: usize) -> Vec<u8> {
        let len = self.rng.below(SLOT_BYTES + 1);
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.next() as u8).collect();
        if let Some(side) = &self.sides[at] {
            side.write(area, slot, &bytes);
        }
        bytes
    }

    fn post_message(&mut self, at: usize) {
        if !self.can_message(at) {
            return;
        }
        let Some(slot) = self.free(at, Area::Source) else { return };
        let bytes = self.fill(at, Area::Source, slot);
        self.send(at, (Area::Source, slot), bytes, false);
    }

    fn send(&mut self, at: usize, (area, slot): (Area, usize), bytes: Vec<u8>, fence: bool) {
        let list = self.segments(area, slot, bytes.len());
        let (number, immediate) = (self.programs[at].next, self.immediate());
        let descriptor = ViaDescriptor { immediate, fence, ..ViaDescriptor::default() };
        if self.post(at, ViQueue::Send, descriptor, &list) {
            let kind = SendKind::Message(
                self.expect(at, ViplExpected { bytes: bytes.clone(), immediate, target: None }),
            );
            self.programs[at].sends.push_back(PostedSend { number, kind, area, slot, bytes });
            self.tally.count(Event::ViplMessage);
        }
    }

    fn post_write(&mut self, at: usize) {
        let immediate = self.immediate();
        let has_place = immediate.is_none() || self.can_message(at);
        if !has_place || self.programs[at].sends.len() + 2 >= MOST_POSTED {
            return;
        }
        let Some(target) = self.free(1 - at, Area::Target) else { return };
        let Some(slot) = self.free(at, Area::Source) else {
            return self.release(1 - at, Area::Target, target);
        };
        let bytes = self.fill(at, Area::Source, slot);
        let list = self.segments(Area::Source, slot, bytes.len());
        let (number, operation) = (self.programs[at].next, ViaOperation::RdmaWrite);
        let remote = segment(Area::Target, target, 0, 0);
        let descriptor = ViaDescriptor { operation, immediate, remote, ..ViaDescriptor::default() };
        if self.post(at, ViQueue::Send, descriptor, &list) {
            let message = immediate.map(|_| {
                self.expect(at, ViplExpected { bytes: bytes.clone(), immediate, target: Some(target) })
            });
            let kind = SendKind::Write(target, message);
            self.programs[at].sends.push_back(PostedSend { number, kind, area: Area::Source, slot, bytes });
            self.tally.count(Event::ViplWrite);
        }
    }

    /// Posts a read and, now and then, a message behind a fence that sends what was read.
    fn post_read(&mut self, at: usize) {
        if self.programs[at].sends.len() + 3 >= MOST_POSTED {
            return;
        }
        let Some(slot) = self.free(at, Area::Sink) else { return };
        let (source, len) = (self.rng.below(SLOTS), self.rng.below(SLOT_BYTES + 1));
        let list = self.segments(Area::Sink, slot, len);
        let (number, operation) = (self.programs[at].next, ViaOperation::RdmaRead);
        let remote = segment(Area::Constant, source, 0, 0);
        let descriptor = ViaDescriptor { operation, remote, ..ViaDescriptor::default() };
        let bytes = pattern(1 - at, source, len);
        if self.post(at, ViQueue::Send, descriptor, &list) {
            let is_sent_on = self.can_message(at) && self.rng.one_in(2);
            // Without a message behind it, the read alone gives the sink back.
            let kind = SendKind::Read;
            let area = if is_sent_on { Area::Constant } else { Area::Sink };
            let posted = PostedSend { number, kind, area, slot, bytes: bytes.clone() };
            self.programs[at].sends.push_back(posted);
            self.tally.count(Event::ViplRead);
            if is_sent_on {
                self.send(at, (Area::Sink, slot), bytes, true);
                self.tally.count(Event::ViplFenced);
            }
        }
    }

    /// Makes progress on one side, and checks what has ended.
    fn drive(&mut self, at: usize) -> Check {
        let now = self.fabric.pass();
        let Some(side) = &mut self.sides[at] else { return Ok(()) };
        let waited = side.drive(now).map_err(Violation)?;
        self.tally.add_to(Event::ViplNoCredit, waited.into());
        while let Some(entry) = self.sides[at].as_mut().and_then(|side| side.take(ViQueue::Receive)) {
            self.check_receive(at, entry.cookie, (entry.status, entry.length), entry.arrived)?;
        }
        while let Some(entry) = self.sides[at].as_mut().and_then(|side| side.take(ViQueue::Send)) {
            self.check_send(at, entry.cookie, entry.status)?;
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.sides.iter().all(Option::is_some)
    }

    fn check_receive(
        &mut self,
        at: usize,
        number: u64,
        (status, length): (u32, u32),
        arrived: Option<u32>,
    ) -> Check {
        let front = self.programs[at].receives.pop_front();
        let Some((posted, slot, list)) = front.filter(|it| it.0 == number) else {
            return Err(Violation(format!("{at}: receive {number} ends out of order")));
        };
        let _ = posted;
        if status & STATUS_ERRORS != 0 {
            ensure!(!self.is_whole(), "{at}: receive {number} has status {status:#x}");
            return Ok(());
        }
        let Some(expected) = self.programs[at].expected.pop_front() else {
            return Err(Violation(format!("{at}: a message that was not sent")));
        };
        let Some(side) = &self.sides[at] else { return Ok(()) };
        let found = match expected.target {
            Some(target) => side.read(Area::Target, target, expected.bytes.len()),
            None => side.gather(&list, expected.bytes.len()),
        };
        ensure!(arrived == expected.immediate, "{at}: receive {number} has immediate {arrived:?}");
        ensure!(length as usize == expected.bytes.len(), "{at}: receive {number} has length {length}");
        ensure!(found == expected.bytes, "{at}: receive {number} has other bytes than were sent");
        self.programs[at].arrived += 1;
        self.release(at, Area::Receive, slot);
        if let Some(target) = expected.target {
            self.release(at, Area::Target, target);
        }
        Ok(())
    }

    fn check_send(&mut self, at: usize, number: u64, status: u32) -> Check {
        let front = self.programs[at].sends.pop_front();
        let Some(posted) = front.filter(|it| it.number == number) else {
            return Err(Violation(format!("{at}: send {number} ends out of order")));
        };
        if status & STATUS_ERRORS != 0 {
            ensure!(!self.is_whole(), "{at}: send {number} has status {status:#x}");
            return Ok(());
        }
        let message = match posted.kind {
            SendKind::Message(message) => Some(message),
            SendKind::Write(_, message) => message,
            SendKind::Read => None,
        };
        let is_acknowledged = self.level == Reliability::Reception && self.is_whole();
        if let Some(message) = message.filter(|_| is_acknowledged) {
            ensure!(
                self.programs[1 - at].arrived > message,
                "{at}: send {number} ends before its message arrived"
            );
        }
        // With immediate data, the receiver looks at the bytes.
        if let SendKind::Write(target, None) = posted.kind
            && let Some(side) = &self.sides[1 - at]
        {
            let found = side.read(Area::Target, target, posted.bytes.len());
            let is_promised = is_acknowledged || self.proves;
            ensure!(
                !is_promised || found == posted.bytes,
                "{at}: write {number} ends before its bytes are in place"
            );
            // Otherwise the bytes may arrive later.
            if is_promised {
                self.release(1 - at, Area::Target, target);
            }
        }
        let Some(side) = &self.sides[at] else { return Ok(()) };
        if posted.kind == SendKind::Read {
            let found = side.read(Area::Sink, posted.slot, posted.bytes.len());
            ensure!(found == posted.bytes, "{at}: read {number} has other bytes");
        }
        // The memory is the program's again. The sink of a read whose bytes are sent on is the message's.
        if posted.area != Area::Constant {
            side.write(posted.area, posted.slot, &[0xee; SLOT_BYTES]);
            self.release(at, posted.area, posted.slot);
        }
        Ok(())
    }

    /// Leaves the world alone. All descriptors of send queues end, and all messages arrive.
    pub(crate) fn finish(&mut self) -> Check {
        for _ in 0..MOST_TURNS {
            self.drive(0)?;
            self.drive(1)?;
            let is_done = if self.is_whole() {
                self.programs.iter().all(|program| program.sends.is_empty() && program.expected.is_empty())
            } else {
                let program = &self.programs[0];
                let state = self.sides[0].as_ref().map(|side| side.vi.state());
                program.sends.is_empty() && program.receives.is_empty() && state == Some(ViState::Error)
            };
            if is_done {
                return Ok(());
            }
        }
        Err(Violation(format!("the world comes to no end: {:?}", self.programs)))
    }

    pub(crate) fn result(&mut self) -> (Tally, Vec<String>) {
        (std::mem::take(&mut self.tally), self.trace.take())
    }
}

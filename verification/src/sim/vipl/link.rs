//! A connection as `sys/src/via/network` has it: transfers and records in one queue, messages with credits.

use std::collections::VecDeque;

use nemesia_core::port::memory::{
    CompletionSource, Connection, MemoryKey, MemoryPort, PortRegion, PostError, ReceiveQueue, RemoteRange,
    Slice, Work,
};
use nemesia_core::via::ViaSegment;
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::vi::{LendResult, RemoteMemoryKind, RemoteUse, ViaCarrier};
use nemesia_core::wire::vipl::{MOST_VIPL_BYTES, VIPL_HEAD_BYTES, VIPL_RECEIVES, ViplMessage};
use nemesia_verification::rdma::SimPort;

use super::areas::offset_of;
use crate::channel::node::Land;

/// Messages in progress.
const SENDS: u64 = 4;
/// Bytes of the memory of messages.
pub(super) const MESSAGE_MEMORY: u64 = (VIPL_RECEIVES + SENDS) * MOST_VIPL_BYTES as u64;
/// The number of a receive has this bit.
const RECEIVE: u64 = 1 << 63;
/// Operations that may wait before no further descriptor is started.
const SOFT_OPERATIONS: usize = 24;

#[derive(Debug)]
enum SimOperation {
    Write(Slice, RemoteRange),
    Read(Slice, RemoteRange),
    Message(Vec<u8>),
}

/// A connection.
#[derive(Debug)]
pub(super) struct SimLink {
    connection: Connection,
    region: PortRegion,
    message_region: PortRegion,
    pub(super) remote: Option<MemoryKey>,
    waiting: VecDeque<SimOperation>,
    /// For each operation in progress, whether it counts, and the memory of its message.
    posted: VecDeque<(bool, Option<u64>)>,
    free: Vec<u64>,
    begun: u64,
    ended: u64,
    sent: u64,
    taken_there: u64,
    taken: u64,
    reported: u64,
    must_speak: bool,
    must_listen: bool,
    pub(super) is_cut: bool,
}

impl SimLink {
    pub(super) fn new(
        port: &mut SimPort,
        connection: Connection,
        (region, message_region): (PortRegion, PortRegion),
        is_caller: bool,
    ) -> Self {
        let speaks_first = port.facts().active_speaks_first;
        let link = Self {
            connection,
            region,
            message_region,
            remote: None,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            free: (0..SENDS).collect(),
            begun: 0,
            ended: 0,
            sent: 0,
            taken_there: 0,
            taken: 0,
            reported: 0,
            must_speak: is_caller && speaks_first,
            must_listen: !is_caller && speaks_first,
            is_cut: false,
        };
        (0..VIPL_RECEIVES).for_each(|number| link.post_receive(port, number));
        link
    }

    fn slice(&self, number: u64, len: usize) -> Slice {
        Slice { region: self.message_region, offset: number * MOST_VIPL_BYTES as u64, len: len as u32 }
    }

    fn post_receive(&self, port: &mut SimPort, number: u64) {
        let into = [self.slice(number, MOST_VIPL_BYTES)];
        // A connection that is over takes none, and an event reports that.
        let _ = port.receive(ReceiveQueue::Of(self.connection), RECEIVE | number, &into);
    }

    pub(super) fn take_message(&mut self, port: &mut SimPort, memory: &Land, id: u64, len: u32) -> Vec<u8> {
        let number = id & !RECEIVE;
        let mut bytes = vec![0; len as usize];
        let at = number * MOST_VIPL_BYTES as u64;
        assert!(memory.lent(MESSAGE_MEMORY).read(at, &mut bytes), "a message fits");
        self.post_receive(port, number);
        self.taken += 1;
        self.must_listen = false;
        bytes
    }

    pub(super) fn taken_there(&mut self, count: u64) -> Result<(), String> {
        let is_possible = (self.taken_there..=self.sent).contains(&count);
        self.taken_there = count;
        is_possible.then_some(()).ok_or_else(|| "a report of messages that were not sent".into())
    }

    pub(super) fn end_oldest(&mut self) -> u64 {
        if let Some((counts, number)) = self.posted.pop_front() {
            self.ended += u64::from(counts);
            self.free.extend(number);
        }
        self.ended
    }

    fn begin(&mut self, operation: SimOperation) -> bool {
        self.waiting.push_back(operation);
        self.begun += 1;
        true
    }

    fn post_message(
        &mut self,
        port: &mut SimPort,
        memory: &Land,
        (bytes, counts): (&[u8], bool),
    ) -> Result<(), PostError> {
        let number = self.free.pop().ok_or(PostError::QueueFull)?;
        let slice = self.slice(VIPL_RECEIVES + number, bytes.len());
        assert!(memory.lent(MESSAGE_MEMORY).write(slice.offset, bytes), "a message fits");
        let work = Work::new(self.connection, 0);
        let posted = port.send(work, CompletionSource::Gather(&[slice]), None);
        posted.inspect_err(|_| self.free.push(number))?;
        self.posted.push_back((counts, Some(number)));
        self.sent += 1;
        Ok(())
    }

    /// Passes operations to the port. Returns whether a message waits for a receive of the other side.
    pub(super) fn issue(&mut self, port: &mut SimPort, memory: &Land) -> bool {
        if self.must_listen {
            return false;
        }
        let credit = VIPL_RECEIVES - (self.sent - self.taken_there);
        if (self.must_speak || self.taken - self.reported >= VIPL_RECEIVES / 2) && credit > 0 {
            let mut bytes = [0; VIPL_HEAD_BYTES];
            let taken = self.taken;
            let len = ViplMessage::Taken(taken).encode(&mut bytes);
            assert!(len.is_some() && !bytes.is_empty(), "a report is a head");
            if self.post_message(port, memory, (&bytes, false)).is_err() {
                return false;
            }
            (self.must_speak, self.reported) = (false, taken);
        }
        while let Some(operation) = self.waiting.pop_front() {
            let work = Work::new(self.connection, 0);
            let is_message = matches!(operation, SimOperation::Message(_));
            let has_credit = VIPL_RECEIVES - (self.sent - self.taken_there) > 1;
            let result = match &operation {
                SimOperation::Message(_) if !has_credit => Err(PostError::QueueFull),
                SimOperation::Message(bytes) => self.post_message(port, memory, (bytes, true)),
                SimOperation::Write(from, to) => {
                    port.write(work, CompletionSource::Gather(&[*from]), *to, None)
                }
                SimOperation::Read(into, from) => port.read(work, &[*into], *from),
            };
            match result {
                Ok(()) if is_message => {}
                Ok(()) => self.posted.push_back((true, None)),
                Err(_) => {
                    self.waiting.push_front(operation);
                    return is_message && !has_credit;
                }
            }
        }
        false
    }
}

/// What a virtual interface asks of its connection.
pub(super) struct SimCarrier<'a>(pub(super) &'a mut SimLink);

impl SimCarrier<'_> {
    fn local(&self, segment: ViaSegment) -> Option<Slice> {
        offset_of(segment).map(|offset| Slice { region: self.0.region, offset, len: segment.length })
    }

    fn range(&self, segment: ViaSegment) -> Option<RemoteRange> {
        offset_of(segment).zip(self.0.remote).map(|(offset, key)| key.at(offset))
    }
}

impl ViaCarrier for SimCarrier<'_> {
    fn is_local(&mut self, segment: ViaSegment, _: u64) -> bool {
        offset_of(segment).is_some()
    }

    fn remote(&mut self, segment: ViaSegment, purpose: RemoteUse) -> RemoteMemoryKind {
        match (offset_of(segment), purpose) {
            (None, _) => RemoteMemoryKind::Refused,
            (Some(_), RemoteUse::Write) => RemoteMemoryKind::Shadow,
            (Some(_), RemoteUse::Receive | RemoteUse::Read) => RemoteMemoryKind::Direct,
        }
    }

    fn has_room(&mut self) -> bool {
        self.0.waiting.len() < SOFT_OPERATIONS
    }

    fn pending(&mut self) -> Option<u64> {
        (self.0.ended < self.0.begun).then_some(self.0.begun)
    }

    fn write(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let Some((from, to)) = self.local(from).zip(self.range(to)) else { return false };
        self.0.begin(SimOperation::Write(from, to))
    }

    fn read(&mut self, from: ViaSegment, to: ViaSegment) -> bool {
        let Some((from, to)) = self.range(from).zip(self.local(to)) else { return false };
        self.0.begin(SimOperation::Read(to, from))
    }

    fn lend(&mut self, segment: ViaSegment, _: u64) -> LendResult {
        if offset_of(segment).is_some() { LendResult::Done } else { LendResult::Refused }
    }

    fn is_granted(&mut self, segment: ViaSegment, _: u64, _: RemoteUse) -> bool {
        offset_of(segment).is_some()
    }

    fn settle(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn refresh(&mut self, _: ViaSegment) -> bool {
        true
    }

    fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        let encoded = record.encode();
        let message = ViplMessage::Record { code: encoded.code, word: encoded.word, bytes: encoded.bytes() };
        let mut bytes = vec![0; MOST_VIPL_BYTES];
        let Some(len) = message.encode(&mut bytes) else { return false };
        bytes.truncate(len);
        self.0.begin(SimOperation::Message(bytes))
    }

    fn change_region(&mut self, _: u32, _: Option<RegionRights>) {}

    fn cut(&mut self) {
        self.0.is_cut = true;
    }
}

//! One connection between VIs of two machines: its messages and its transfers.
//!
//! A message is sent only if the other process has a receive for it, because on iWARP a connection ends without one,
//! and on InfiniBand it pauses. Each process reports now and then how many messages it has taken
//! ([`nemesia_core::wire::vipl`]). Such a report overtakes the operations that wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nemesia_core::port::memory::{
    Completion, CompletionSource, Connection, ConnectionState, MemoryPort as _, PortRegion, PostError,
    ReceiveQueue, RemoteRange, Slice, Work, WorkOutcome,
};
use nemesia_core::via::ViaError;
use nemesia_core::via::record::ViaRecord;
use nemesia_core::wire::vipl::{MOST_VIPL_BYTES, VIPL_HEAD_BYTES, VIPL_RECEIVES, ViplMessage};

use super::buffers::{MessageBuffers, RECEIVES};
use super::lending::{Lending, RegionSync};
use super::{AnyViaPort, ClosingLink, Network};
use crate::transport::net::Transport;

/// Operations that wait for the port before no further descriptor is started.
const SOFT_OPERATIONS: usize = 256;
/// Operations that can wait: a descriptor of 252 segments for one with 252 segments begins 503 and two messages; some
/// more if they are longer than a transfer of the port.
const MOST_OPERATIONS: usize = SOFT_OPERATIONS + 768;
/// A bit of the number of a receive.
const RECEIVE: u64 = 1 << 63;
/// Messages that are taken before they are reported.
const REPORT_AFTER: u64 = VIPL_RECEIVES / 2;
/// The time for which the last messages of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Something that the port must execute, in order.
#[derive(Debug)]
enum NetworkOperation {
    Write(Slice, RemoteRange),
    Read(Slice, RemoteRange),
    Message(Vec<u8>),
}

/// Returns whether a message is that by which a connection ends.
fn ends_connection(bytes: &[u8]) -> bool {
    let record = match ViplMessage::decode(bytes) {
        Some(ViplMessage::Record { code, word, bytes }) => ViaRecord::decode(code, word, bytes),
        _ => None,
    };
    matches!(record, Some(ViaRecord::Failure { .. } | ViaRecord::Disconnect))
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
enum PostedOperation {
    /// A write or a read, with the local region.
    Transfer(PortRegion),
    /// A message, with the number of its memory.
    Message(Option<usize>),
    /// A report, which is none of the operations that are counted.
    Report(Option<usize>),
}

/// The messages of a connection, counted.
#[derive(Clone, Copy, Debug, Default)]
struct MessageCounts {
    /// Sent, and those of them that the other process has reported as taken.
    sent: u64,
    taken_there: u64,
    /// Taken here, and reported.
    taken: u64,
    reported: u64,
}

impl MessageCounts {
    /// Returns whether the other process has a receive for one more message. Its last one is for a report.
    const fn has_credit(&self, is_report: bool) -> bool {
        self.sent - self.taken_there < VIPL_RECEIVES - if is_report { 0 } else { 1 }
    }

    const fn must_report(&self) -> bool {
        self.taken - self.reported >= REPORT_AFTER
    }
}

/// A connection to the VI of a process on another machine. It ends by [`Network::shut`] or [`Network::close`].
#[derive(Debug)]
pub(in crate::via) struct NetworkLink {
    pub(in crate::via) connection: Connection,
    pub(in crate::via) transport: Transport,
    /// The transport, with the reasons of the choice.
    pub(in crate::via) explanation: String,
    buffers: MessageBuffers,
    pub(super) lending: Lending,
    waiting: VecDeque<NetworkOperation>,
    posted: VecDeque<PostedOperation>,
    /// Operations since the connection: all, and those that have ended.
    begun: u64,
    ended: u64,
    counts: MessageCounts,
    /// Most bytes of one transfer.
    transfer_bytes: u32,
    /// Whether this process must send something at once, and whether it must not send anything yet: the side that
    /// connects speaks first.
    must_speak: bool,
    must_listen: bool,
    /// Whether the other process has announced the end of the connection.
    has_peer_ended: bool,
    /// Completions from the time before a VI had the connection.
    pub(super) early: Vec<Completion>,
    pub(in crate::via) sync: RegionSync,
    /// Whether regions wait for room to be lent, and whether the other process waits for the answer that all are.
    pub(in crate::via) lends_later: bool,
    pub(in crate::via) answers_later: bool,
    /// Whether the connection is over.
    pub(in crate::via) is_cut: bool,
}

impl NetworkLink {
    /// Returns the link of a connection that is being made, with its receives posted.
    pub(super) fn new(
        network: &mut Network,
        connection: Connection,
        is_caller: bool,
    ) -> Result<Self, ViaError> {
        let port = &mut network.port;
        let buffers = MessageBuffers::new(|memory, access| port.register(memory, access).ok());
        let facts = *port.facts();
        let link = Self {
            connection,
            transport: port.transport(),
            explanation: String::new(),
            buffers: buffers.ok_or(ViaError::ErrorResource)?,
            lending: Lending::default(),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            begun: 0,
            ended: 0,
            counts: MessageCounts::default(),
            // A long transfer takes several places of the send queue.
            transfer_bytes: (facts.transfer_bytes / 4).max(facts.message_bytes),
            must_speak: is_caller && facts.active_speaks_first,
            must_listen: !is_caller && facts.active_speaks_first,
            has_peer_ended: false,
            early: Vec::new(),
            sync: RegionSync::Idle,
            lends_later: false,
            answers_later: false,
            is_cut: false,
        };
        if (0..RECEIVES).all(|number| link.post_receive(port, number)) {
            return Ok(link);
        }
        network.close(link);
        Err(ViaError::ErrorResource)
    }

    fn post_receive(&self, port: &mut AnyViaPort, number: usize) -> bool {
        let into = [self.buffers.receive(number)];
        port.receive(ReceiveQueue::Of(self.connection), RECEIVE | number as u64, &into).is_ok()
    }

    /// Returns whether one more descriptor has room.
    pub(in crate::via) fn has_room(&self) -> bool {
        self.waiting.len() < SOFT_OPERATIONS
    }

    /// Returns whether operations wait for the port, or a report does.
    pub(in crate::via) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || self.must_speak || self.counts.must_report()
    }

    /// Returns the number of the last operation, if not all have ended.
    pub(in crate::via) fn pending(&self) -> Option<u64> {
        (self.ended < self.begun).then_some(self.begun)
    }

    /// Returns whether a work request with this local region is in progress.
    pub(in crate::via) fn uses(&self, region: PortRegion) -> bool {
        self.posted.iter().any(|posted| matches!(posted, PostedOperation::Transfer(of) if *of == region))
    }

    fn begin(&mut self, operation: NetworkOperation) -> bool {
        let has_room = self.waiting.len() < MOST_OPERATIONS;
        if has_room {
            self.waiting.push_back(operation);
            self.begun += 1;
        }
        has_room
    }

    /// Begins the transfers of a block, each at most as long as the port permits.
    fn transfer(
        &mut self,
        local: Slice,
        remote: RemoteRange,
        operation: impl Fn(Slice, RemoteRange) -> NetworkOperation,
    ) -> bool {
        let mut done = 0;
        loop {
            let len = (local.len - done).min(self.transfer_bytes);
            let offset = u64::from(done);
            let part = Slice { offset: local.offset + offset, len, ..local };
            let range = RemoteRange { address: remote.address.wrapping_add(offset), ..remote };
            if !self.begin(operation(part, range)) {
                return false;
            }
            done += len;
            if done == local.len {
                return true;
            }
        }
    }

    pub(in crate::via) fn write(&mut self, from: Slice, to: RemoteRange) -> bool {
        self.transfer(from, to, NetworkOperation::Write)
    }

    pub(in crate::via) fn read(&mut self, into: Slice, from: RemoteRange) -> bool {
        self.transfer(into, from, NetworkOperation::Read)
    }

    /// Sends a message. Returns whether there was room.
    pub(in crate::via) fn message(&mut self, message: &ViplMessage<'_>) -> bool {
        let mut bytes = vec![0; MOST_VIPL_BYTES];
        let Some(len) = message.encode(&mut bytes) else { return false };
        bytes.truncate(len);
        self.begin(NetworkOperation::Message(bytes))
    }

    /// Sends a record. Returns whether there was room.
    pub(in crate::via) fn push(&mut self, record: &ViaRecord<'_>) -> bool {
        let encoded = record.encode();
        self.message(&ViplMessage::Record { code: encoded.code, word: encoded.word, bytes: encoded.bytes() })
    }

    /// Passes waiting operations to the port. Returns whether it took any.
    pub(in crate::via) fn issue(&mut self, port: &mut AnyViaPort) -> bool {
        let before = self.posted.len();
        if self.must_listen || !self.report(port) {
            return false;
        }
        while let Some(operation) = self.waiting.pop_front() {
            let result = match &operation {
                NetworkOperation::Message(_) if !self.counts.has_credit(false) => Err(PostError::QueueFull),
                NetworkOperation::Message(bytes) => {
                    self.post_message(port, bytes).map(PostedOperation::Message)
                }
                NetworkOperation::Write(from, to) => {
                    let source = CompletionSource::Gather(std::slice::from_ref(from));
                    let posted = port.write(Work::new(self.connection, 0), source, *to, None);
                    posted.map(|()| PostedOperation::Transfer(from.region))
                }
                NetworkOperation::Read(into, from) => {
                    let posted = port.read(Work::new(self.connection, 0), &[*into], *from);
                    posted.map(|()| PostedOperation::Transfer(into.region))
                }
            };
            match result {
                Ok(posted) => self.posted.push_back(posted),
                Err(error) => {
                    self.waiting.push_front(operation);
                    self.refused(error);
                    break;
                }
            }
        }
        self.posted.len() > before
    }

    /// An event or a failed receive tells that the connection is lost, after the last messages. Other errors: memory
    /// was deregistered before its transfer, or the device has failed.
    fn refused(&mut self, error: PostError) {
        self.is_cut |= !matches!(error, PostError::QueueFull | PostError::NotReady);
    }

    /// Posts a message, for which the other process has a receive. Returns the number of its memory, if it needs any.
    fn post_message(&mut self, port: &mut AnyViaPort, bytes: &[u8]) -> Result<Option<usize>, PostError> {
        let work = Work::new(self.connection, 0);
        let number = if bytes.len() <= port.facts().inline_bytes as usize {
            port.send(work, CompletionSource::Inline(bytes), None)?;
            None
        } else {
            let (number, slice) = self.buffers.fill(bytes).ok_or(PostError::QueueFull)?;
            let result = port.send(work, CompletionSource::Gather(&[slice]), None);
            result.inspect_err(|_| self.buffers.release(number))?;
            Some(number)
        };
        self.counts.sent += 1;
        Ok(number)
    }

    /// Reports the messages that were taken, if that is due. False if the port takes nothing now.
    fn report(&mut self, port: &mut AnyViaPort) -> bool {
        if !self.must_speak && !self.counts.must_report() || !self.counts.has_credit(true) {
            return true;
        }
        let mut bytes = [0; VIPL_HEAD_BYTES];
        let taken = self.counts.taken;
        if ViplMessage::Taken(taken).encode(&mut bytes).is_none() {
            return true;
        }
        match self.post_message(port, &bytes) {
            Ok(number) => {
                self.posted.push_back(PostedOperation::Report(number));
                (self.must_speak, self.counts.reported) = (false, taken);
                true
            }
            Err(error) => {
                self.refused(error);
                false
            }
        }
    }

    /// Takes note that the oldest operation has ended. Returns the number of those that have.
    pub(in crate::via) fn end_oldest(&mut self) -> u64 {
        let posted = self.posted.pop_front();
        if let Some(PostedOperation::Message(Some(number)) | PostedOperation::Report(Some(number))) = posted {
            self.buffers.release(number);
        }
        self.ended += u64::from(!matches!(posted, Some(PostedOperation::Report(_))));
        self.ended
    }

    /// Copies the message that a receive has taken, and posts the receive again. False if there is none. The connection
    /// may be over: its last messages count.
    pub(in crate::via) fn take_message(
        &mut self,
        port: &mut AnyViaPort,
        id: u64,
        len: u32,
        to: &mut Vec<u8>,
    ) -> bool {
        let number = (id & !RECEIVE) as usize;
        let is_taken = self.buffers.message(number, len as usize, to);
        self.must_listen = false;
        if is_taken {
            self.has_peer_ended |= ends_connection(to);
            self.counts.taken += 1;
            self.is_cut |= !self.post_receive(port, number);
        }
        is_taken
    }

    /// Takes note of the messages that the other process has taken. False if it cannot have taken so many.
    pub(in crate::via) fn taken_there(&mut self, count: u64) -> bool {
        let is_possible = (self.counts.taken_there..=self.counts.sent).contains(&count);
        if is_possible {
            self.counts.taken_there = count;
        }
        is_possible
    }

    /// Returns whether a message has arrived before a VI has taken the connection.
    pub(in crate::via) fn has_message(&self) -> bool {
        self.early.iter().any(|completion| matches!(completion.outcome, WorkOutcome::Received { .. }))
    }

    /// Takes the completions from the time before a VI had the connection.
    pub(in crate::via) fn take_early(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.early)
    }

    /// Returns whether nothing is left to send, or nothing can be sent.
    pub(super) fn is_idle(&self, port: &AnyViaPort) -> bool {
        // Where the end of a send does not prove that it has arrived, the other process closes first.
        let has_left =
            self.pending().is_none() && (self.has_peer_ended || port.facts().write_proves_placement);
        has_left || self.is_cut || port.state(self.connection) != ConnectionState::Ready
    }
}

impl Network {
    /// Closes a connection and releases its memory.
    pub(super) fn close(&mut self, mut link: NetworkLink) {
        link.lending.release(&mut *self.port);
        self.port.close(link.connection);
        let region = link.buffers.region;
        self.retire_with(region, Some(link.buffers));
    }

    /// Ends a connection whose VI does not use it any more. The messages that were pushed before leave first, within
    /// [`CLOSE_LIMIT`]; transfers of the program's memory end at once.
    pub(in crate::via) fn shut(&mut self, mut link: NetworkLink) {
        self.owners.remove(&link.connection);
        let before = link.waiting.len();
        let mut is_whole = true;
        link.waiting.retain(|operation| {
            let NetworkOperation::Message(bytes) = operation else {
                is_whole = false;
                return false;
            };
            // Behind a transfer that is left out, only the end of the connection is true.
            is_whole || ends_connection(bytes)
        });
        link.begun -= (before - link.waiting.len()) as u64;
        link.is_cut = false;
        link.issue(&mut self.port);
        self.port.push_out();
        link.lending.release(&mut *self.port);
        if link.posted.iter().any(|posted| matches!(posted, PostedOperation::Transfer(_))) {
            // Only the end of the connection keeps transfers from the memory of the program, which is the program's
            // again.
            return self.close(link);
        }
        self.closing.push(ClosingLink { link, until: Instant::now() + CLOSE_LIMIT });
        self.finish_closing();
    }

    /// Takes a completion of a connection that is being closed. `bytes` has room for a message.
    pub(in crate::via) fn complete_closing(&mut self, completion: &Completion, bytes: &mut Vec<u8>) {
        use nemesia_core::port::memory::WorkOutcome;
        let mut closing = self.closing.iter_mut().map(|closing| &mut closing.link);
        let Some(link) = closing.find(|link| link.connection == completion.connection) else { return };
        match completion.outcome {
            WorkOutcome::Failed(_) => link.is_cut = true,
            WorkOutcome::Done => {
                link.end_oldest();
            }
            WorkOutcome::Received { len, .. } => {
                if link.take_message(&mut self.port, completion.id, len, bytes)
                    && let Some(ViplMessage::Taken(count)) = ViplMessage::decode(bytes)
                {
                    link.is_cut |= !link.taken_there(count);
                }
            }
        }
        link.issue(&mut self.port);
    }
}

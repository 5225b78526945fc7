//! One connection between VIs of two machines: its messages, its transfers, and the regions that each process lent.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use nemesia_core::port::memory::{
    CompletionSource, Connection, ConnectionState, MemoryKey, MemoryPort as _, PortRegion, PostError,
    ReceiveQueue, RegionAccess, RemoteRange, Slice, Work,
};
use nemesia_core::via::memory::{ViaRegion, index_of};
use nemesia_core::via::record::{RegionRights, ViaRecord};
use nemesia_core::via::{ViaError, ViaMemAttributes, ViaSegment};
use nemesia_core::wire::vipl::{LentRegion, MOST_VIPL_BYTES, ViplMessage};

use super::buffers::{MessageBuffers, RECEIVES};
use super::{ClosingLink, Network};
use crate::tcp::TcpPort;
use crate::via::region::RegionMemory;

/// Operations that wait for the port before no further descriptor is started.
const SOFT_OPERATIONS: usize = 256;
/// Operations that can wait: a descriptor of 252 segments for one with 252 segments begins 503 and two messages.
const MOST_OPERATIONS: usize = SOFT_OPERATIONS + 768;
/// Regions that one process may lend to a VI.
const MOST_IMPORTS: usize = 1 << 14;
/// A bit of the number of a receive.
const RECEIVE: u64 = 1 << 63;
/// The time for which the last messages of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// A region of the other process.
#[derive(Debug)]
pub(in crate::via) struct NetworkImport {
    handle: u32,
    region: ViaRegion,
    key: MemoryKey,
}

impl NetworkImport {
    /// Returns the range of the port; `None` if the segment does not lie in the region.
    pub(in crate::via) fn range(&self, segment: ViaSegment) -> Option<RemoteRange> {
        self.region.offset(segment.address, segment.length.into()).map(|offset| self.key.at(offset))
    }

    pub(in crate::via) const fn rights(&self) -> RegionRights {
        RegionRights { write: self.region.attributes.rdma_write, read: self.region.attributes.rdma_read }
    }
}

/// A region of this process that the other one has.
#[derive(Debug)]
struct LentEntry {
    rights: RegionRights,
    access: RegionAccess,
    /// Whether it is lent for messages, too.
    for_receives: bool,
    /// The region of the port, and former ones with fewer rights, whose keys the other process may still use.
    regions: Vec<PortRegion>,
}

/// Something that the port must execute, in order.
#[derive(Debug)]
enum NetworkOperation {
    Write(Slice, RemoteRange),
    Read(Slice, RemoteRange),
    Message(Vec<u8>),
}

impl NetworkOperation {
    /// Returns whether it is the message by which a connection ends.
    fn ends_connection(&self) -> bool {
        let Self::Message(bytes) = self else { return false };
        let record = match ViplMessage::decode(bytes) {
            Some(ViplMessage::Record { code, word, bytes }) => ViaRecord::decode(code, word, bytes),
            _ => None,
        };
        matches!(record, Some(ViaRecord::Failure { .. } | ViaRecord::Disconnect))
    }
}

/// Whether this process knows all regions of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::via) enum RegionSync {
    /// It has not asked.
    Idle,
    /// It waits for the answer.
    Asked,
    /// It waits for an answer that nothing needs any more.
    Unneeded,
    /// It has the answer, which is good for the oldest descriptor.
    Answered,
}

/// An operation in progress.
#[derive(Clone, Copy, Debug)]
enum PostedOperation {
    Write,
    Read,
    /// A message, with the number of its memory.
    Message(Option<usize>),
}

/// A connection to the VI of a process on another machine. It ends by [`Network::shut`] or [`NetworkLink::close`].
#[derive(Debug)]
pub(in crate::via) struct NetworkLink {
    pub(in crate::via) connection: Connection,
    buffers: MessageBuffers,
    imports: Vec<Option<NetworkImport>>,
    lent: HashMap<u32, LentEntry>,
    waiting: VecDeque<NetworkOperation>,
    posted: VecDeque<PostedOperation>,
    /// Operations since the connection: all, and those that have ended.
    begun: u64,
    ended: u64,
    pub(in crate::via) sync: RegionSync,
    /// Whether regions wait for room to be lent, and whether the other process waits for the answer that all are.
    pub(in crate::via) lends_later: bool,
    pub(in crate::via) answers_later: bool,
    /// Whether the connection is over.
    pub(in crate::via) is_cut: bool,
}

/// Deregisters a region of a port whose peers cannot pull: it never has to wait.
pub(in crate::via) fn deregister(port: &mut TcpPort, region: PortRegion) -> bool {
    port.deregister(region).is_ok()
}

impl NetworkLink {
    /// Returns the link of a new connection. Nothing arrives before [`NetworkLink::start`].
    pub(in crate::via) fn new(network: &mut Network, connection: Connection) -> Result<Self, ViaError> {
        let port = &mut network.port;
        let buffers = MessageBuffers::new(|memory, access| port.register(memory, access).ok());
        Ok(Self {
            connection,
            buffers: buffers.ok_or(ViaError::ErrorResource)?,
            imports: Vec::new(),
            lent: HashMap::new(),
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            begun: 0,
            ended: 0,
            sync: RegionSync::Idle,
            lends_later: false,
            answers_later: false,
            is_cut: false,
        })
    }

    /// Posts all receives. The caller takes their completions.
    pub(in crate::via) fn start(&mut self, port: &mut TcpPort) {
        self.is_cut |= !(0..RECEIVES).all(|number| self.post_receive(port, number));
    }

    fn post_receive(&self, port: &mut TcpPort, number: usize) -> bool {
        let into = [self.buffers.receive(number)];
        port.receive(ReceiveQueue::Of(self.connection), RECEIVE | number as u64, &into).is_ok()
    }

    /// Returns whether one more descriptor has room.
    pub(in crate::via) fn has_room(&self) -> bool {
        self.waiting.len() < SOFT_OPERATIONS
    }

    /// Returns whether operations wait for the port.
    pub(in crate::via) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of the last operation, if not all have ended.
    pub(in crate::via) fn pending(&self) -> Option<u64> {
        (self.ended < self.begun).then_some(self.begun)
    }

    fn begin(&mut self, operation: NetworkOperation) -> bool {
        let has_room = self.waiting.len() < MOST_OPERATIONS;
        if has_room {
            self.waiting.push_back(operation);
            self.begun += 1;
        }
        has_room
    }

    pub(in crate::via) fn write(&mut self, from: Slice, to: RemoteRange) -> bool {
        self.begin(NetworkOperation::Write(from, to))
    }

    pub(in crate::via) fn read(&mut self, into: Slice, from: RemoteRange) -> bool {
        self.begin(NetworkOperation::Read(into, from))
    }

    /// Asks the other process whether all its regions have arrived.
    pub(in crate::via) fn ask(&mut self) {
        if self.message(&ViplMessage::Sync) {
            self.sync = RegionSync::Asked;
        }
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
    pub(in crate::via) fn issue(&mut self, port: &mut TcpPort) -> bool {
        let before = self.posted.len();
        while let Some(operation) = self.waiting.front() {
            let work = Work::new(self.connection, 0);
            let (result, posted) = match operation {
                NetworkOperation::Write(from, to) => {
                    (port.write(work, CompletionSource::Gather(&[*from]), *to, None), PostedOperation::Write)
                }
                NetworkOperation::Read(into, from) => {
                    (port.read(work, &[*into], *from), PostedOperation::Read)
                }
                NetworkOperation::Message(bytes) if bytes.len() <= port.facts().inline_bytes as usize => {
                    let source = CompletionSource::Inline(bytes);
                    (port.send(work, source, None), PostedOperation::Message(None))
                }
                NetworkOperation::Message(bytes) => {
                    let Some((number, slice)) = self.buffers.fill(bytes) else { break };
                    let result = port.send(work, CompletionSource::Gather(&[slice]), None);
                    if result.is_err() {
                        self.buffers.release(number);
                    }
                    (result, PostedOperation::Message(Some(number)))
                }
            };
            match result {
                Ok(()) => {
                    self.waiting.pop_front();
                    self.posted.push_back(posted);
                }
                // An event or a failed receive tells that the connection is lost, after the last messages.
                Err(PostError::QueueFull | PostError::NotReady) => break,
                Err(_) => {
                    // Memory was deregistered before its transfer, or the connection is lost.
                    self.is_cut = true;
                    break;
                }
            }
        }
        self.posted.len() > before
    }

    /// Takes note that the oldest operation has ended. Returns the number of those that have.
    pub(in crate::via) fn end_oldest(&mut self) -> u64 {
        if let Some(PostedOperation::Message(Some(number))) = self.posted.pop_front() {
            self.buffers.release(number);
        }
        self.ended += 1;
        self.ended
    }

    /// Copies the message that a receive has taken, and posts the receive again. False if there is none. The connection
    /// may be over: its last messages count.
    pub(in crate::via) fn take_message(
        &mut self,
        port: &mut TcpPort,
        id: u64,
        len: u32,
        to: &mut Vec<u8>,
    ) -> bool {
        let number = (id & !RECEIVE) as usize;
        let is_taken = self.buffers.message(number, len as usize, to);
        self.is_cut |= is_taken && !self.post_receive(port, number);
        is_taken
    }

    /// Returns whether a completion is that of a receive.
    pub(in crate::via) const fn is_receive(id: u64) -> bool {
        id & RECEIVE != 0
    }

    /// Takes a region that the other process lends; `None` if it has too many.
    pub(in crate::via) fn import(&mut self, lent: &LentRegion) -> Option<()> {
        let rights = RegionRights::from_bits(lent.rights)?;
        let attributes = ViaMemAttributes { ptag: 0, rdma_write: rights.write, rdma_read: rights.read };
        let region = ViaRegion { base: lent.base, len: lent.len, attributes };
        let index = index_of(lent.handle);
        if index >= MOST_IMPORTS {
            return None;
        }
        if index >= self.imports.len() {
            self.imports.resize_with(index + 1, || None);
        }
        let key = MemoryKey::from_bytes(&lent.key);
        self.imports[index] = Some(NetworkImport { handle: lent.handle, region, key });
        Some(())
    }

    pub(in crate::via) fn import_of(&self, handle: u32) -> Option<&NetworkImport> {
        self.imports.get(index_of(handle))?.as_ref().filter(|import| import.handle == handle)
    }

    /// Changes the rights of a region of the other process, or removes it.
    pub(in crate::via) fn change_import(&mut self, handle: u32, rights: Option<RegionRights>) {
        let Some(place) = self.imports.get_mut(index_of(handle)) else { return };
        let Some(import) = place.as_mut().filter(|import| import.handle == handle) else { return };
        match rights {
            Some(rights) => {
                import.region.attributes.rdma_write = rights.write;
                import.region.attributes.rdma_read = rights.read;
            }
            None => *place = None,
        }
    }

    /// Lends a region to the other process with these rights, and to be written by messages if it is `for_receives`.
    /// Does nothing if the other process has it so. False if that is not possible now.
    pub(in crate::via) fn lend(
        &mut self,
        network: &mut Network,
        (handle, region): (u32, &ViaRegion),
        memory: &RegionMemory,
        (rights, for_receives): (RegionRights, bool),
    ) -> bool {
        let for_receives = for_receives || self.lent.get(&handle).is_some_and(|had| had.for_receives);
        let access = RegionAccess {
            local_write: true,
            remote_write: rights.write || for_receives,
            remote_read: rights.read,
            remote_atomic: false,
        };
        if let Some(had) = self.lent.get_mut(&handle) {
            had.for_receives = for_receives;
            if had.rights == rights && had.access == access {
                return true;
            }
        }
        if !access.is_remote() {
            // There is nothing to lend; what was lent is only read until now.
            return self.forget(network, handle);
        }
        if !self.has_room() {
            return false;
        }
        // Another right of the peer needs no other region of the port if the port's accesses are the same.
        let same = self.lent.get(&handle).filter(|had| had.access == access);
        let kept = same.and_then(|had| had.regions.last().copied());
        let Some(port_region) = kept.or_else(|| network.register(memory, access)) else { return false };
        let Some(key) = network.port.key(port_region) else { return false };
        let new = || LentEntry { rights, access, for_receives, regions: Vec::new() };
        let entry = self.lent.entry(handle).or_insert_with(new);
        let had = entry.access;
        if had.remote_read && !access.remote_read || had.remote_write && !access.remote_write {
            // A right was withdrawn: accesses that are under way fail.
            entry.regions.drain(..).for_each(|old| _ = deregister(&mut network.port, old));
        }
        (entry.rights, entry.access, entry.for_receives) = (rights, access, for_receives);
        if kept.is_none() {
            entry.regions.push(port_region);
        }
        let (rights, base, len, key) = (rights.bits(), region.base, region.len, key.to_bytes());
        self.message(&ViplMessage::Region(LentRegion { handle, rights, base, len, key }))
    }

    /// Returns whether the other process has this region.
    pub(in crate::via) fn has_lent(&self, handle: u32) -> bool {
        self.lent.contains_key(&handle)
    }

    /// Withdraws a region from the other process.
    pub(in crate::via) fn forget(&mut self, network: &mut Network, handle: u32) -> bool {
        let Some(entry) = self.lent.remove(&handle) else { return true };
        entry.regions.into_iter().for_each(|region| _ = deregister(&mut network.port, region));
        if !self.push(&ViaRecord::RegionGone { handle }) {
            self.is_cut = true;
        }
        true
    }

    /// Withdraws all regions from the other process.
    fn release(&mut self, port: &mut TcpPort) {
        for region in self.lent.drain().flat_map(|(_, entry)| entry.regions) {
            deregister(port, region);
        }
    }

    /// Returns whether nothing is left to send, or nothing can be sent.
    pub(in crate::via) fn is_idle(&self, port: &TcpPort) -> bool {
        self.pending().is_none() || port.state(self.connection) != ConnectionState::Ready
    }

    /// Closes the connection and releases its memory.
    pub(in crate::via) fn close(mut self, port: &mut TcpPort) {
        self.release(port);
        port.close(self.connection);
        if deregister(port, self.buffers.region) {
            // SAFETY: deregistered.
            unsafe { self.buffers.free() };
        }
    }
}

impl Network {
    /// Ends a connection whose VI does not use it any more. The messages that were pushed before leave first, within
    /// [`CLOSE_LIMIT`]; transfers of the program's memory end at once.
    pub(in crate::via) fn shut(&mut self, mut link: NetworkLink) {
        self.owners.remove(&link.connection);
        let before = link.waiting.len();
        let mut is_whole = true;
        link.waiting.retain(|operation| {
            let is_message = matches!(operation, NetworkOperation::Message(_));
            is_whole &= is_message;
            // Behind a transfer that is left out, only the end of the connection is true.
            is_message && (is_whole || operation.ends_connection())
        });
        link.begun -= (before - link.waiting.len()) as u64;
        link.is_cut = false;
        link.issue(&mut self.port);
        self.port.push_out();
        link.release(&mut self.port);
        if !link.posted.iter().all(|posted| matches!(posted, PostedOperation::Message(_))) {
            // Only the end of the connection keeps transfers from the memory of the program, which is the program's
            // again.
            return link.close(&mut self.port);
        }
        self.closing.push(ClosingLink { link, until: Instant::now() + CLOSE_LIMIT });
        self.finish_closing();
    }
}

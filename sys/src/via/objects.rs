//! The objects of the program, each behind a checked handle.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::TcpStream;
use std::time::Instant;

use nemesia_core::via::completion::{CompletionEntry, ViaCompletionQueue};
use nemesia_core::via::record::ViaRecord;
use nemesia_core::via::setup::{SetupFrame, ViaAddress};
use nemesia_core::via::vi::{MIRROR_STORAGE, ViQueue};
use nemesia_core::via::work_queue::WorkEntry;
use nemesia_core::via::{AsyncError, Vi, ViAttributes, ViState, ViaDescriptor, ViaError, ViaSegment};

use super::conduit::{Conduit, Memory};
use super::link::Link;
use super::network::{NetworkLink, PortTicket};

/// Descriptors of a queue for which a new VI has storage; it grows when needed.
const FIRST_DESCRIPTORS: usize = 32;
/// Segments likewise.
const FIRST_SEGMENTS: usize = 64;
/// Records that are read in one go: the lock is free in between.
const MOST_RECORDS: usize = 256;
/// Records that are read after the end of a connection: all that the ring can hold.
const MOST_LAST_RECORDS: usize = 2048;

/// A new connection: inside the machine, or to another one.
#[derive(Debug)]
pub(super) enum NewViLink {
    /// Through shared memory.
    Shared(Box<Link>),
    /// Through a memory port, with the reasons for its choice.
    Network(PortTicket, String),
}

/// The model of a VI over growing storage.
pub(super) type ViModel = Vi<Vec<WorkEntry>, Vec<ViaSegment>>;

/// A pointer that belongs to the program and is only passed back to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserContext(pub(super) *mut c_void);

// SAFETY: the library never accesses what the pointer points to.
unsafe impl Send for UserContext {}

/// A callback of the program, which is called once: with its context, the NIC, the object (a VI or a completion queue
/// entry's VI), and the descriptor or whether the queue is a receive queue.
#[derive(Clone, Copy, Debug)]
pub enum Callback {
    /// For a finished descriptor of a work queue.
    Descriptor(extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void)),
    /// For an entry of a completion queue.
    Completion(extern "C" fn(*mut c_void, *mut c_void, *mut c_void, i32)),
}

/// The handler of errors that no descriptor reports: called with its context and the report.
pub type ErrorHandler = extern "C" fn(*mut c_void, *mut AsyncReport);

/// The report of such an error, as `vipl.h` declares it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AsyncReport {
    /// The NIC.
    pub nic: *mut c_void,
    /// The VI, or null.
    pub vi: *mut c_void,
    /// The completion queue, or null.
    pub completion_queue: *mut c_void,
    /// The descriptor, or null.
    pub descriptor: *mut c_void,
    /// The operation bits of the descriptor.
    pub operation: u64,
    /// What the error is about: 0 NIC, 1 VI, 2 completion queue, 3 descriptor.
    pub resource: i32,
    /// The error.
    pub error: i32,
}

// SAFETY: the pointers are handles and addresses that are only passed to the program.
unsafe impl Send for AsyncReport {}

/// An opened NIC.
#[derive(Debug)]
pub(super) struct NicObject {
    pub(super) name: Vec<u8>,
    pub(super) handler: Option<(UserContext, ErrorHandler)>,
    pub(super) has_names: bool,
}

/// A completion queue.
#[derive(Debug)]
pub(super) struct QueueObject {
    pub(super) nic: u64,
    pub(super) queue: ViaCompletionQueue<Vec<CompletionEntry>>,
    pub(super) notifies: VecDeque<(UserContext, Callback)>,
}

/// A VI.
#[derive(Debug)]
pub(super) struct ViObject {
    pub(super) nic: u64,
    pub(super) model: ViModel,
    pub(super) link: Option<Link>,
    /// The connection, if it goes to another machine.
    pub(super) network: Option<NetworkLink>,
    pub(super) queues: [Option<u64>; 2],
    pub(super) notifies: [VecDeque<(UserContext, Callback)>; 2],
    pub(super) peer: Option<PeerAttempt>,
    pub(super) remote: Option<ViAttributes>,
    pub(super) user: UserContext,
}

impl ViObject {
    pub(super) fn new(nic: u64, attributes: ViAttributes, queues: [Option<u64>; 2]) -> Self {
        let storage =
            || (vec![WorkEntry::default(); FIRST_DESCRIPTORS], vec![ViaSegment::default(); FIRST_SEGMENTS]);
        let mirror = vec![ViaSegment::default(); MIRROR_STORAGE];
        Self {
            nic,
            model: Vi::new(attributes, storage(), storage(), mirror),
            link: None,
            network: None,
            queues,
            notifies: [VecDeque::new(), VecDeque::new()],
            peer: None,
            remote: None,
            user: UserContext(std::ptr::null_mut()),
        }
    }

    /// Executes the records of the other process, if it is one of this machine. `bytes` holds one record at a time.
    #[inline(always)]
    pub(super) fn read_records(&mut self, memory: &Memory, bytes: &mut Vec<u8>) {
        let Some(link) = &mut self.link else { return };
        let attributes = self.model.attributes;
        let most = if link.is_cut { MOST_LAST_RECORDS } else { MOST_RECORDS };
        for _ in 0..most {
            if !link.has_next() {
                return;
            }
            if let Some((code, word)) = link.next_message() {
                let record = ViaRecord::decode_message(code, word, &[]);
                let mut conduit = Conduit::new(link, memory, attributes);
                if record.is_none_or(|record| self.model.arrive(record, &mut conduit).is_err()) {
                    link.is_cut = true;
                    return;
                }
                continue;
            }
            let is_violated = match link.next(bytes) {
                Ok(None) => return,
                Ok(Some(read)) => {
                    let bytes = bytes.get(..read.len).unwrap_or_default();
                    let record = ViaRecord::decode(read.code, read.word, bytes);
                    link.peer_waits |= matches!(record, Some(ViaRecord::Starved { .. }));
                    let mut conduit = Conduit::new(link, memory, attributes);
                    record.is_none_or(|record| self.model.arrive(record, &mut conduit).is_err())
                }
                Err(()) => true,
            };
            if is_violated {
                link.is_cut = true;
                return;
            }
        }
    }

    /// Returns whether there is work apart from reading records.
    #[inline(always)]
    pub(super) fn must_pump(&self) -> bool {
        let Some(link) = &self.link else { return true };
        link.is_cut
            || link.has_taken_wake
            || link.has_changes()
            || link.must_wake()
            || self.model.state() != ViState::Connected
            || self.model.must_pump()
    }

    /// Sends a message of one segment at once to a process of this machine, if nothing comes before it. Returns whether
    /// its descriptor has ended.
    #[inline(always)]
    pub(super) fn send_single(
        &mut self,
        memory: &Memory,
        of: (u64, u32),
        descriptor: &ViaDescriptor,
        segment: ViaSegment,
    ) -> bool {
        let Some(link) = &mut self.link else { return false };
        if link.has_next() || link.has_changes() || link.is_cut {
            return false;
        }
        let attributes = self.model.attributes;
        let is_sent =
            self.model.send_single(of, descriptor, segment, &mut Conduit::new(link, memory, attributes));
        link.wake();
        is_sent
    }

    /// Sends the other process of this machine receive descriptors.
    #[cold]
    pub(super) fn refill(&mut self, memory: &Memory) {
        let Some(link) = &mut self.link else { return };
        let attributes = self.model.attributes;
        self.model.refill(&mut Conduit::new(link, memory, attributes));
        link.wake();
    }

    /// Makes room for a descriptor. False if the queue has as many descriptors as it may have.
    pub(super) fn grow(&mut self, queue: ViQueue, segments: usize, most: usize) -> bool {
        let queue = self.model.queue(queue);
        if queue.has_room(segments) {
            return queue.len() < most;
        }
        let (entries, list) = queue.capacity();
        if queue.len() >= most {
            return false;
        }
        let entries = vec![WorkEntry::default(); (entries * 2).min(most.max(entries))];
        queue.replace(entries, vec![ViaSegment::default(); (list + segments) * 2])
    }
}

/// Returns the index of a queue in pairs of queues.
pub(super) const fn index(queue: ViQueue) -> usize {
    match queue {
        ViQueue::Send => 0,
        ViQueue::Receive => 1,
    }
}

/// A peer-to-peer request of a VI.
#[derive(Clone, Debug)]
pub(super) struct PeerAttempt {
    /// Distinguishes the request from earlier ones of the same VI, whose threads may still run.
    pub(super) number: u64,
    pub(super) local: ViaAddress,
    pub(super) remote: ViaAddress,
    pub(super) deadline: Option<Instant>,
    /// Whether a thread answers the other side, so that this side does not call.
    pub(super) is_answering: bool,
    /// Whether a thread calls the other side now.
    pub(super) is_calling: bool,
    pub(super) result: Option<Result<ViAttributes, ViaError>>,
}

/// A request that the program has not accepted or rejected yet.
#[derive(Debug)]
pub(super) struct Requested {
    pub(super) nic: u64,
    pub(super) stream: TcpStream,
    pub(super) frame: SetupFrame,
}

/// A call that waits for a request.
#[derive(Debug)]
pub(super) struct ConnectWaiter {
    pub(super) number: u64,
    pub(super) local: ViaAddress,
    pub(super) arrived: Option<(TcpStream, SetupFrame)>,
}

/// Returns the report of an error of a VI.
pub(super) fn report(nic: u64, vi: u64, error: AsyncError) -> AsyncReport {
    let null = std::ptr::null_mut();
    AsyncReport {
        nic: pointer(nic),
        vi: pointer(vi),
        completion_queue: null,
        descriptor: null,
        operation: 0,
        resource: 1,
        error: error as i32,
    }
}

/// Returns a handle as the pointer that the program sees; it is never dereferenced.
pub(super) const fn pointer(handle: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(handle as usize)
}

//! Two ports in one thread that place at once and record each operation.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

use core::time::Duration;

use crate::payload::{Gather, LentMemory, RecvBuf, Scatter, SendBuf};
use crate::port::memory::{
    Address, Armed, Completion, CompletionSource, ConnectError, Connection, ConnectionState, Event, Facts,
    MemoryKey, MemoryPort, Offer, PortRegion, PostError, Private, ReceiveQueue, RegionAccess, RegisterError,
    RemoteRange, Slice, Work, WorkOutcome,
};
use crate::rdma_channel::{
    BytePipe, CARD_BYTES, ChunkFill, Design, PastWrite, PipeArrival, PipeError, PipeHost, PipeMemory,
    PipeShape,
};

/// The distance of the addresses of two regions.
const REGION: u64 = 1 << 32;

pub(super) const FACTS: Facts = Facts {
    name: "recording",
    ordered_within_write: true,
    ordered_among_writes: true,
    active_speaks_first: false,
    write_proves_placement: true,
    waits_for_receive: true,
    read_needs_remote_write: false,
    registration_pins: false,
    immediates: false,
    atomics: false,
    atomics_exclude_processor: false,
    inline_bytes: 0,
    message_bytes: 1 << 20,
    transfer_bytes: 1 << 20,
    slices: 1,
    read_slices: 1,
    send_depth: 64,
    receive_depth: 64,
    shared_receive_depth: 0,
    connections: 1,
    regions: 64,
};

/// What a port was asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PipeRecord {
    /// A write of so many bytes.
    Write(u32),
    /// A read of so many bytes.
    Read(u32),
    Send,
}

#[derive(Debug, Default)]
struct Side {
    regions: Vec<Option<LentMemory>>,
    done: VecDeque<Completion>,
    receives: VecDeque<(u64, Slice)>,
}

/// One of the two ports.
#[derive(Debug)]
pub(super) struct PipeTestPort {
    sides: Rc<RefCell<[Side; 2]>>,
    own: usize,
    facts: Facts,
    pub(super) recorded: Vec<PipeRecord>,
    pub(super) queue_is_full: bool,
}

pub(super) const CONNECTION: Connection = Connection { index: 0, generation: 1 };

impl PipeTestPort {
    pub(super) fn two(facts: Facts) -> [Self; 2] {
        let sides = Rc::new(RefCell::new([Side::default(), Side::default()]));
        [0, 1].map(|own| Self {
            sides: Rc::clone(&sides),
            own,
            facts,
            recorded: Vec::new(),
            queue_is_full: false,
        })
    }

    fn copy(&mut self, from: (usize, u64, u64), to: (usize, u64, u64), len: u32) {
        let sides = self.sides.borrow();
        let mut bytes = std::vec![0; len as usize];
        let lent = |(side, region, _): (usize, u64, u64)| sides[side].regions[region as usize].as_ref();
        assert!(lent(from).is_some_and(|it| it.read(from.2, &mut bytes)), "read of {from:?}");
        assert!(lent(to).is_some_and(|it| it.write(to.2, &bytes)), "write of {to:?}");
    }

    fn post(&mut self, what: PipeRecord) -> Result<(), PostError> {
        if self.queue_is_full {
            return Err(PostError::QueueFull);
        }
        self.recorded.push(what);
        Ok(())
    }

    fn report(&self, side: usize, id: u64, outcome: WorkOutcome) {
        let done = Completion { id, connection: CONNECTION, outcome };
        self.sides.borrow_mut()[side].done.push_back(done);
    }
}

fn one(from: CompletionSource<'_>) -> Slice {
    match from {
        CompletionSource::Gather(&[slice]) => slice,
        _ => unreachable!("pipes write one slice"),
    }
}

// SAFETY: it uses only memory that was lent to it, within one call; the memory of tests is never freed before the
// ports.
#[allow(unsafe_code, reason = "a port has obligations")]
unsafe impl MemoryPort for PipeTestPort {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn register(&mut self, memory: LentMemory, _: RegionAccess) -> Result<PortRegion, RegisterError> {
        let regions = &mut self.sides.borrow_mut()[self.own].regions;
        regions.push(Some(memory));
        Ok(PortRegion { index: regions.len() as u32 - 1, generation: 1 })
    }

    fn deregister(&mut self, region: PortRegion) -> Result<(), RegisterError> {
        self.sides.borrow_mut()[self.own].regions[region.index as usize] = None;
        Ok(())
    }

    fn key(&self, region: PortRegion) -> Option<MemoryKey> {
        let len = self.sides.borrow()[self.own].regions[region.index as usize].as_ref()?.len() as u64;
        Some(MemoryKey { address: u64::from(region.index) * REGION, len, key: 5 })
    }

    fn address(&self) -> Option<Address> {
        None
    }

    fn connect(&mut self, _: &Address, _: &Offer) -> Result<Connection, ConnectError> {
        Err(ConnectError::State)
    }

    fn accept(&mut self, _: Connection, _: &Offer) -> Result<(), ConnectError> {
        Err(ConnectError::State)
    }

    fn refuse(&mut self, _: Connection, _: Private) -> Result<(), ConnectError> {
        Err(ConnectError::State)
    }

    fn close(&mut self, _: Connection) {}

    fn state(&self, _: Connection) -> ConnectionState {
        ConnectionState::Ready
    }

    fn write(
        &mut self,
        work: Work,
        from: CompletionSource<'_>,
        to: RemoteRange,
        _: Option<u32>,
    ) -> Result<(), PostError> {
        let slice = one(from);
        self.post(PipeRecord::Write(slice.len))?;
        let to = (1 - self.own, to.address / REGION, to.address % REGION);
        self.copy((self.own, slice.region.index.into(), slice.offset), to, slice.len);
        self.report(self.own, work.id, WorkOutcome::Done);
        Ok(())
    }

    fn read(&mut self, work: Work, into: &[Slice], from: RemoteRange) -> Result<(), PostError> {
        let slice = into[0];
        self.post(PipeRecord::Read(slice.len))?;
        let from = (1 - self.own, from.address / REGION, from.address % REGION);
        self.copy(from, (self.own, slice.region.index.into(), slice.offset), slice.len);
        self.report(self.own, work.id, WorkOutcome::Done);
        Ok(())
    }

    fn send(&mut self, work: Work, from: CompletionSource<'_>, _: Option<u32>) -> Result<(), PostError> {
        let slice = one(from);
        self.post(PipeRecord::Send)?;
        let next = self.sides.borrow_mut()[1 - self.own].receives.pop_front();
        let (id, into) = next.unwrap_or_else(|| unreachable!("a message without a receive"));
        let to = (1 - self.own, into.region.index.into(), into.offset);
        self.copy((self.own, slice.region.index.into(), slice.offset), to, slice.len);
        let outcome = WorkOutcome::Received { len: slice.len, immediate: None, written: false };
        self.report(1 - self.own, id, outcome);
        self.report(self.own, work.id, WorkOutcome::Done);
        Ok(())
    }

    fn fetch_add(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn compare_swap(&mut self, _: Work, _: Slice, _: RemoteRange, _: u64, _: u64) -> Result<(), PostError> {
        Err(PostError::Unsupported)
    }

    fn receive(&mut self, _: ReceiveQueue, id: u64, into: &[Slice]) -> Result<(), PostError> {
        self.sides.borrow_mut()[self.own].receives.push_back((id, into[0]));
        Ok(())
    }

    fn poll(&mut self, into: &mut [Completion]) -> usize {
        match (into.first_mut(), self.sides.borrow_mut()[self.own].done.pop_front()) {
            (Some(to), Some(completion)) => {
                *to = completion;
                1
            }
            _ => 0,
        }
    }

    fn poll_event(&mut self, _: Duration) -> Option<Event> {
        None
    }

    fn arm(&mut self) -> Armed {
        Armed::Poll
    }

    fn descriptor(&self) -> Option<i32> {
        None
    }
}

/// A process with one end of a pipe. It registers the buffers of its lists, which must stay where they are.
#[derive(Debug)]
pub(super) struct TestEnd {
    pub(super) port: PipeTestPort,
    pub(super) pipe: BytePipe,
    /// A view of the inbox.
    pub(super) inbox: LentMemory,
}

struct TestHost<'a>(&'a mut PipeTestPort);

#[allow(unsafe_code, reason = "the tests keep their buffers where they are")]
impl PipeHost for TestHost<'_> {
    type Port = PipeTestPort;

    fn port(&mut self) -> &mut PipeTestPort {
        self.0
    }

    fn expose(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let base = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the tests keep their buffers until they are counted.
        let region =
            self.0.register(unsafe { LentMemory::from_raw(base, len as usize) }, RegionAccess::ALL).ok()?;
        Some((region, self.0.key(region)?))
    }

    fn lend(&mut self, address: u64, len: u32) -> Option<Slice> {
        let (region, _) = self.expose(address, len.into())?;
        Some(Slice { region, offset: 0, len })
    }

    fn admit(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        self.expose(address, len)
    }

    fn source(&mut self, address: u64, len: u64) -> Option<(PortRegion, u64)> {
        self.expose(address, len).map(|(region, _)| (region, 0))
    }

    fn release(&mut self, region: PortRegion) -> bool {
        self.0.deregister(region).is_ok()
    }
}

#[allow(unsafe_code, reason = "the buffers outlive the calls")]
impl TestEnd {
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<usize, PipeError> {
        bytes.as_ptr().expose_provenance();
        // SAFETY: the bytes outlive the call; a test of zero-copy keeps them until they are counted.
        let mut from = Gather::new(unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) });
        self.pipe.put(&mut TestHost(&mut self.port), &mut from)
    }

    pub(super) fn get(&mut self, bytes: &mut [u8]) -> Result<usize, PipeError> {
        bytes.as_mut_ptr().expose_provenance();
        // SAFETY: as above, and exclusive.
        let mut into = Scatter::new(unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), bytes.len()) });
        self.pipe.get(&mut TestHost(&mut self.port), &mut into)
    }

    /// Lets the peer write into a buffer, which stays where it is.
    pub(super) fn admit(&mut self, bytes: &mut [u8]) -> (PortRegion, MemoryKey) {
        let address = bytes.as_mut_ptr().expose_provenance() as u64;
        TestHost(&mut self.port).admit(address, bytes.len() as u64).unwrap()
    }

    /// Writes a buffer, which stays where it is, past the pipe.
    pub(super) fn write_past(&mut self, bytes: &[u8], to: MemoryKey) -> Result<PastWrite, PipeError> {
        let address = bytes.as_ptr().expose_provenance() as u64;
        self.pipe.write_past(&mut TestHost(&mut self.port), (address, bytes.len() as u64), to)
    }

    /// Takes all completions.
    pub(super) fn drain(&mut self) {
        let mut room = [Completion::EMPTY];
        while self.port.poll(&mut room) > 0 {
            assert_eq!(self.pipe.on_completion(&mut self.port, &room[0]), Ok(()));
        }
    }

    /// Returns what was recorded since the last call.
    pub(super) fn recorded(&mut self) -> Vec<PipeRecord> {
        self.drain();
        std::mem::take(&mut self.port.recorded)
    }
}

/// Returns the shape of the tests: 4 chunks of 64 bytes.
pub(super) const fn shape(design: Design) -> PipeShape {
    PipeShape {
        design,
        fill: ChunkFill::TwoFlags,
        ring_bytes: 256,
        chunk_bytes: 64,
        zero_copy_from: 100,
        arrival: PipeArrival::Polled,
    }
}

/// Returns both ends of a pipe.
pub(super) fn ends(shape: PipeShape) -> [TestEnd; 2] {
    let mut connects = true;
    let mut ends = PipeTestPort::two(FACTS).map(|mut port| {
        let [inbox, outbox] = [shape.inbox_bytes(), shape.outbox_bytes()].map(|bytes| {
            let [lent, view] = LentMemory::leaked(bytes as usize);
            let region = port.register(lent, RegionAccess::ALL).unwrap();
            PipeMemory { region, view }
        });
        let inbox_view = port.sides.borrow()[port.own].regions[0].as_ref().map(alias).unwrap();
        let pipe = BytePipe::new(&mut port, (CONNECTION, connects), shape, inbox, outbox).unwrap();
        connects = false;
        TestEnd { port, pipe, inbox: inbox_view }
    });
    let cards: [[u8; CARD_BYTES]; 2] = [0, 1].map(|at| ends[at].pipe.card(&ends[at].port).unwrap());
    assert_eq!((ends[0].pipe.meet(&cards[1]), ends[1].pipe.meet(&cards[0])), (Ok(()), Ok(())));
    ends
}

#[allow(unsafe_code, reason = "leaked memory is never freed")]
fn alias(lent: &LentMemory) -> LentMemory {
    let base = lent.part(0, 0).unwrap().as_ptr();
    // SAFETY: the same leaked memory, of which no reference exists.
    unsafe { LentMemory::from_raw(base, lent.len()) }
}

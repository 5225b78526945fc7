//! The RDMA Channel of paper 1: Liu, Jiang, Wyckoff, Panda, Ashton, Buntinas, Gropp and Toonen, *Design and
//! Implementation of MPICH2 over InfiniBand with RDMA Support*.
//!
//! A [`BytePipe`] is one end of a connection: a first-in-first-out pipe of bytes in each direction over a [memory
//! port](crate::port::memory). [`BytePipe::put`] appends a list of buffers, [`BytePipe::get`] takes bytes into a list.
//! Both return at once, with the number of bytes done. What the callers rely on:
//!
//! - 0 bytes is a normal result, and the caller repeats the call. A put that can do nothing costs a few loads.
//! - Lists may be cut anywhere: a call may end within an entry, and the next call's list begins there.
//! - The bytes that a put counts belong to the caller again. They need not have arrived.
//! - The address of bytes that were not counted may change between calls. The exception are the runs that the
//!   zero-copy design has exposed or is filling, of at least [`PipeShape::zero_copy_from`] bytes. Those count as 0
//!   until the peer has read them.
//!
//! | file | contents |
//! |---|---|
//! | `basic` | section 4.2: data, head and tail in three writes |
//! | `piggyback` | section 4.3: data, size and head in one write, delayed and carried tails |
//! | `pipelined` | section 4.4: copies and writes overlap |
//! | `zero_copy` | section 5: the receiver reads long runs from the sender's buffer |
//! | `push` | section 5, the alternative: the sender writes long runs into a buffer that the receiver has advertised |
//! | `learned` | our own design: the sender measures which of these ways is the fastest for each size |
//! | `past` | section 6: rendezvous by RDMA write, its handshake through the pipe and its data past it |
//! | `direct` | section 3.2: inside a machine, by the structures of [`crate::shared`] |
//! | `pointers` | head and tail with their replicas, as `words` or as `messages`; `arrival` decides |
//! | `chunk` | chunks with flags; `chunk_sender` and `chunk_receiver` are the ends of a ring of them |
//! | `shape` | sizes, layouts, and the card that the ends exchange |
//! | `link` | connection, memory and numbers of work requests |
//! | `error` | why a pipe cannot be opened, or has failed |
//!
//! # Order
//! The paper's designs poll memory for pointers and flags. This proves something only if the port places in order,
//! within a write ([`Facts::ordered_within_write`]) and among writes ([`Facts::ordered_among_writes`]). On other ports
//! the pointers travel as messages, each of which arrives after the writes before it. [`PipeArrival`] has the choice,
//! and [`BytePipe::explain`] gives the reason.
//!
//! [`Facts::ordered_within_write`]: crate::port::memory::Facts::ordered_within_write
//! [`Facts::ordered_among_writes`]: crate::port::memory::Facts::ordered_among_writes
//!
//! # Trust
//! The peer writes into the inbox at any time. Each header, pointer and message is copied, checked against the own
//! positions, and used from the copy. A bad value fails the pipe ([`PipeError::Violated`]) and nothing else. Payload is
//! copied once, with bounds of this process.
#![cfg_attr(not(test), forbid(unsafe_code))]

use crate::payload::{Gather, Scatter};
use crate::port::memory::{
    Completion, Connection, LostError, MemoryKey, MemoryPort, PortRegion, Slice, WorkOutcome,
};

mod arrival;
mod basic;
mod chunk;
mod chunk_receiver;
mod chunk_sender;
pub mod direct;
mod error;
#[cfg(nemesia_injected_fault)]
pub mod fault;
mod learned;
mod link;
mod messages;
mod past;
mod piggyback;
mod pipelined;
mod pointer;
mod pointers;
mod push;
mod run_write;
mod shape;
mod words;
mod zero_copy;

use basic::Basic;
use link::PipeWork;
use messages::PointerMessages;
use past::PastWrites;
use piggyback::Piggyback;
use pipelined::Pipelined;
use pointer::Pointer;
use pointers::Pointers;
use words::PointerWords;
use zero_copy::ZeroCopy;

pub use arrival::PipeArrival;
pub use direct::DirectPipe;
pub use error::PipeError;
use link::PipeLink;
pub use link::PipeMemory;
pub use past::PastWrite;
pub use shape::{CARD_BYTES, ChunkFill, Design, PIPE_VERSION, PipeCard, PipeShape};

/// The most bytes of a put that [`DirectPipe`] sends as one record.
pub const DIRECT_RECORD_BYTES: usize = 232;

/// Checks a position of the peer. A value below `least` is out of date, and `least` is returned.
const fn checked(what: &'static str, found: u64, (least, most): (u64, u64)) -> Result<u64, PipeError> {
    if found > most {
        return Err(PipeError::Violated { what, found, limit: most });
    }
    Ok(if found < least { least } else { found })
}

/// The port of a pipe, and the registration of the caller's buffers for the zero-copy design.
///
/// A host without registrations implements only [`PipeHost::port`]; all runs are copied then. An implementation that
/// registers the caller's memory makes [`LentMemory`](crate::payload::LentMemory) from these addresses, and must have
/// the promise of its own caller that the bytes stay valid: those of a put until they are counted or the put fails,
/// those of a get likewise.
pub trait PipeHost {
    /// The port.
    type Port: MemoryPort;

    /// Returns the port.
    fn port(&mut self) -> &mut Self::Port;

    /// Lets peers read `len` bytes at an address. Returns the region and the key of exactly these bytes; `None` if they
    /// are to be copied instead. [`PipeHost::release`] follows.
    fn expose(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let _ = (address, len);
        None
    }

    /// Lets the port place a read in `len` bytes at an address, as a slice of exactly these bytes; `None` if they are
    /// to be copied instead. [`PipeHost::release`] follows.
    fn lend(&mut self, address: u64, len: u32) -> Option<Slice> {
        let _ = (address, len);
        None
    }

    /// Lets the peer write `len` bytes at an address, past the pipe. Returns the region and the key of exactly these
    /// bytes; `None` if they cannot be registered. [`PipeHost::release`] follows.
    fn admit(&mut self, address: u64, len: u64) -> Option<(PortRegion, MemoryKey)> {
        let _ = (address, len);
        None
    }

    /// Lets the port read `len` bytes at an address, to write them past the pipe. Returns the region and the offset of
    /// these bytes there; `None` if they cannot be registered. [`PipeHost::release`] follows.
    fn source(&mut self, address: u64, len: u64) -> Option<(PortRegion, u64)> {
        let _ = (address, len);
        None
    }

    /// Returns the ticks of a monotonic clock that is cheap to read, in any unit; `None` if there is none. By them the
    /// sender of [`Design::Learned`] learns how long runs move best.
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// Ends the use of a region. Returns `false` if the caller must try again: the bytes are in use until then.
    fn release(&mut self, region: PortRegion) -> bool {
        let _ = region;
        true
    }
}

/// How long runs have moved at one end of a pipe of the zero-copy designs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunCounts {
    /// Runs of puts that were copied through the ring.
    pub copied: u64,
    /// Runs of puts that were exposed to the peer, which reads them.
    pub exposed: u64,
    /// Runs that puts have written into advertised buffers of the peer.
    pub pushed: u64,
    /// Buffers that gets have advertised to the peer.
    pub advertised: u64,
    /// Advertised buffers that were withdrawn, because the peer had put first.
    pub withdrawn: u64,
}

/// The design with its positions.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a pipe has one room, which the core cannot put on a heap")]
enum PipeRoom {
    Basic(Basic),
    Piggyback(Piggyback),
    Pipelined(Pipelined),
    ZeroCopy(ZeroCopy),
}

/// One end of a pipe. Not shared by threads. The caller routes the port's completions of this connection to
/// [`BytePipe::on_completion`].
#[derive(Debug)]
pub struct BytePipe {
    link: PipeLink,
    pointers: Pointers,
    room: PipeRoom,
    past: PastWrites,
    lost: Option<PipeError>,
}

impl BytePipe {
    /// Makes one end of a pipe over a connection that is being made, before this side accepts it. `connects` is whether
    /// this side requested the connection. The inbox is registered with `local_write` and `remote_write`, the outbox
    /// with [`RegionAccess::LOCAL`](crate::port::memory::RegionAccess::LOCAL); [`PipeShape`] has their sizes.
    ///
    /// # Errors
    /// The shape does not suit the port, or the memory the shape.
    pub fn new<P: MemoryPort>(
        port: &mut P,
        (connection, connects): (Connection, bool),
        shape: PipeShape,
        inbox: PipeMemory,
        outbox: PipeMemory,
    ) -> Result<Self, PipeError> {
        let facts = *port.facts();
        shape.check(&facts)?;
        let fits = |memory: &PipeMemory, bytes: u64| {
            let view = &memory.view;
            view.is_writable() && view.len() as u64 >= bytes && view.address().is_multiple_of(8)
        };
        if !fits(&inbox, shape.inbox_bytes()) || !fits(&outbox, shape.outbox_bytes()) {
            return Err(PipeError::Memory);
        }
        let most_bytes = facts.transfer_bytes.min(facts.message_bytes);
        let link = PipeLink { connection, shape, inbox, outbox, peer: None, most_bytes };
        let pointers = match shape.arrival {
            PipeArrival::Polled => Pointers::Words(PointerWords::default()),
            PipeArrival::Announced => Pointers::Messages(PointerMessages::new(port, &link, connects)?),
        };
        let room = match shape.design {
            Design::Basic => PipeRoom::Basic(Basic::default()),
            Design::Piggyback => PipeRoom::Piggyback(Piggyback::default()),
            Design::Pipelined => PipeRoom::Pipelined(Pipelined::default()),
            Design::ZeroCopy | Design::ZeroCopyPush | Design::Learned => {
                PipeRoom::ZeroCopy(ZeroCopy::default())
            }
        };
        Ok(Self { link, pointers, room, past: PastWrites::default(), lost: None })
    }

    /// Returns the card for the peer, as bytes; `None` if the inbox has no key.
    pub fn card<P: MemoryPort>(&self, port: &P) -> Option<[u8; CARD_BYTES]> {
        let inbox = port.key(self.link.inbox.region)?;
        Some(PipeCard { shape: self.link.shape, inbox }.to_bytes())
    }

    /// Takes the peer's card, which is untrusted. Until then a put stages bytes, and nothing is written.
    ///
    /// # Errors
    /// See [`PipeCard::check`].
    pub fn meet(&mut self, card: &[u8]) -> Result<(), PipeError> {
        self.link.peer = Some(PipeCard::check(card, &self.link.shape)?);
        Ok(())
    }

    /// Puts bytes from the beginning of the list. Returns how many; the list of the next call begins after them. Bytes
    /// that the peer read before the connection was lost are still counted.
    ///
    /// # Errors
    /// The pipe has failed; nothing of the list is in use.
    pub fn put<H: PipeHost>(&mut self, host: &mut H, from: &mut Gather) -> Result<usize, PipeError> {
        if let Some(error) = self.lost {
            if let PipeRoom::ZeroCopy(room) = &mut self.room
                && error.is_end()
                && let Some(count) = room.acknowledged(host, (&self.link, &mut self.pointers), from)
            {
                return Ok(count);
            }
            let error = self.reason(error);
            return self.abandon_put(host).map_or(Ok(0), |()| Err(error));
        }
        if !self.pointers.may_speak() {
            return Ok(0);
        }
        let ends = (&self.link, &mut self.pointers);
        let result = match &mut self.room {
            PipeRoom::Basic(room) => room.put(host.port(), ends, from),
            PipeRoom::Piggyback(room) => room.put(host.port(), ends, from),
            PipeRoom::Pipelined(room) => {
                let len = from.buf().len();
                room.put(host.port(), ends, from, (0, len))
            }
            PipeRoom::ZeroCopy(room) => room.put(host, ends, from),
        };
        self.keep(result)
    }

    /// Gets bytes into the list, from its beginning. Returns how many; the list of the next call begins after them.
    /// Bytes that arrived before the connection was lost are still returned.
    ///
    /// # Errors
    /// The pipe has failed, and no further byte can be read; nothing of the list is in use.
    pub fn get<H: PipeHost>(&mut self, host: &mut H, into: &mut Scatter) -> Result<usize, PipeError> {
        let ends = (&self.link, &mut self.pointers);
        let result = match &mut self.room {
            _ if self.lost.is_some_and(|error| !error.is_end()) => Ok(0),
            PipeRoom::Basic(room) => room.get(host.port(), ends, into),
            PipeRoom::Piggyback(room) => room.get(host.port(), ends, into),
            PipeRoom::Pipelined(room) => room.get(host.port(), ends, into),
            PipeRoom::ZeroCopy(room) => room.get(host, ends, into),
        };
        let count = match result {
            Ok(count) => count,
            Err(error) => {
                self.lost = self.lost.or(Some(error));
                0
            }
        };
        match self.lost {
            Some(error) if count == 0 && !into.is_empty() => {
                let error = self.reason(error);
                self.abandon_get(host).map_or(Ok(0), |()| Err(error))
            }
            _ => Ok(count),
        }
    }

    /// Returns whether a get has something to do or to report. It may nevertheless return 0, as for the first chunks of
    /// a put.
    pub fn is_ready(&mut self) -> bool {
        let (link, pointers) = (&self.link, &mut self.pointers);
        self.lost.is_some()
            || match &mut self.room {
                PipeRoom::Basic(room) => room.has_bytes(link, pointers),
                PipeRoom::Piggyback(room) => room.receiver.has_chunk(link, pointers),
                PipeRoom::Pipelined(room) => room.receiver.has_chunk(link, pointers),
                PipeRoom::ZeroCopy(room) => room.has_bytes(link, pointers),
            }
    }

    fn keep(&mut self, result: Result<usize, PipeError>) -> Result<usize, PipeError> {
        if let Err(error) = result {
            self.lost = self.lost.or(Some(error));
            // The next call ends what is in use, and reports the error.
            return Ok(0);
        }
        result
    }

    /// Returns the reason of a failure: the end that the peer has announced, if it is gone.
    fn reason(&mut self, error: PipeError) -> PipeError {
        let has_ended = error.is_end() && self.pointers.theirs(&self.link, Pointer::End) != 0;
        if has_ended { PipeError::Ended } else { error }
    }

    /// Announces that this end puts and gets nothing more, after the bytes that were put. [`BytePipe::push`] posts the
    /// announcement; the connection is closed afterwards.
    pub const fn finish(&mut self) {
        self.pointers.publish(Pointer::End, 1);
    }

    /// Ends the use of the caller's buffers by puts. `None` if they are still in use.
    fn abandon_put<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        match &mut self.room {
            PipeRoom::ZeroCopy(room) => room.abandon_put(host),
            _ => Some(()),
        }
    }

    /// Ends the use of the caller's buffers by gets. `None` if they are still in use.
    fn abandon_get<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        match &mut self.room {
            PipeRoom::ZeroCopy(room) => room.abandon_get(host),
            _ => Some(()),
        }
    }

    /// Writes `buffer`, an address and a length, into a buffer to which the peer has admitted this end. The caller
    /// repeats the call with the same buffers until [`PastWrite::Done`]; the bytes stay as they are until then, or
    /// until an error. Up to eight messages are written at the same time, by calls of their own.
    ///
    /// # Errors
    /// The pipe has failed; the buffer is no longer in use.
    pub fn write_past<H: PipeHost>(
        &mut self,
        host: &mut H,
        buffer: (u64, u64),
        to: MemoryKey,
    ) -> Result<PastWrite, PipeError> {
        if let Some(error) = self.lost {
            let error = self.reason(error);
            return self.past.abandon(host).map_or(Ok(PastWrite::Posted), |()| Err(error));
        }
        // What this end has staged goes first, and where only one end may speak first, not at all yet.
        if !self.pointers.may_speak() || self.link.peer.is_none() {
            return Ok(PastWrite::Waiting);
        }
        match self.past.write(host, &self.link, buffer, to) {
            Err(error) => {
                self.lost = self.lost.or(Some(error));
                Ok(PastWrite::Posted)
            }
            progress => progress,
        }
    }

    /// Takes a completion of this connection.
    ///
    /// # Errors
    /// The peer violated the protocol; put and get then report the same.
    pub fn on_completion<P: MemoryPort>(&mut self, port: &mut P, done: &Completion) -> Result<(), PipeError> {
        let result = self.complete(port, done);
        if let Err(error) = result {
            self.lost = self.lost.or(Some(error));
        }
        result
    }

    fn complete<P: MemoryPort>(&mut self, port: &mut P, done: &Completion) -> Result<(), PipeError> {
        let Some((work, number)) = PipeWork::of(done.id) else { return Ok(()) };
        match (work, done.outcome) {
            (PipeWork::Read, outcome) => {
                if let PipeRoom::ZeroCopy(room) = &mut self.room {
                    room.on_read(outcome == WorkOutcome::Done);
                }
                match outcome {
                    WorkOutcome::Failed(error) => Err(PipeError::Work(error)),
                    _ => Ok(()),
                }
            }
            (_, WorkOutcome::Failed(error)) => Err(PipeError::Work(error)),
            (PipeWork::Data, _) => {
                match &mut self.room {
                    PipeRoom::Basic(room) => room.on_written(number),
                    PipeRoom::Piggyback(room) => room.sender.on_written(number),
                    PipeRoom::Pipelined(room) => room.sender.on_written(number),
                    PipeRoom::ZeroCopy(room) => room.pipe.sender.on_written(number),
                }
                Ok(())
            }
            (PipeWork::Push, _) => {
                if let PipeRoom::ZeroCopy(room) = &mut self.room {
                    room.push.on_written(number);
                }
                Ok(())
            }
            (PipeWork::Past, _) => {
                self.past.on_written(number);
                Ok(())
            }
            (PipeWork::Pointer(group), _) => {
                self.pointers.on_posted(group, number);
                Ok(())
            }
            (PipeWork::Receive, WorkOutcome::Received { len, .. }) => match &mut self.pointers {
                Pointers::Messages(messages) => messages.on_received(port, &self.link, (number, len)),
                Pointers::Words(_) => Ok(()),
            },
            (PipeWork::Receive, WorkOutcome::Done) => Ok(()),
        }
    }

    /// Takes note that the connection has ended.
    pub fn on_lost(&mut self, error: LostError) {
        self.lost = self.lost.or(Some(PipeError::Lost(error)));
    }

    /// Posts what waits for room in the queue. Put and get do the same; a caller that does neither calls this.
    ///
    /// # Errors
    /// The port refused a work request.
    pub fn push<P: MemoryPort>(&mut self, port: &mut P) -> Result<(), PipeError> {
        if !self.pointers.may_speak() {
            return Ok(());
        }
        let (link, pointers) = (&self.link, &mut self.pointers);
        match &mut self.room {
            PipeRoom::Basic(room) => room.push(port, link, pointers),
            PipeRoom::Piggyback(room) => room.sender.post(port, link, pointers),
            PipeRoom::Pipelined(room) => room.sender.post(port, link, pointers),
            PipeRoom::ZeroCopy(room) => room.pipe.sender.post(port, link, pointers),
        }
    }

    /// Returns whether all bytes that were put have left this process: their writes are complete, and the pointers are
    /// published. [`Facts::write_proves_placement`](crate::port::memory::Facts::write_proves_placement) tells whether
    /// the bytes are in the peer's memory then.
    pub fn is_sent(&self) -> bool {
        let sent = match &self.room {
            PipeRoom::Basic(room) => room.is_sent(),
            PipeRoom::Piggyback(room) => room.sender.is_sent(),
            PipeRoom::Pipelined(room) => room.sender.is_sent(),
            PipeRoom::ZeroCopy(room) => room.pipe.sender.is_sent(),
        };
        sent && self.pointers.is_clean()
    }

    /// Returns whether all bytes that were put, and the pointers, are posted to the port. Then they leave without the
    /// peer's progress, other than [`BytePipe::is_sent`] over a port in software, which waits for the peer's answer.
    pub fn is_posted(&self) -> bool {
        let posted = match &self.room {
            PipeRoom::Basic(room) => room.is_posted(),
            PipeRoom::Piggyback(room) => room.sender.is_posted(),
            PipeRoom::Pipelined(room) => room.sender.is_posted(),
            PipeRoom::ZeroCopy(room) => room.pipe.sender.is_posted(),
        };
        posted && self.pointers.is_clean()
    }

    /// Returns why the pipe has failed; `None` if it has not.
    pub const fn failure(&self) -> Option<PipeError> {
        self.lost
    }

    /// Returns the shape.
    pub const fn shape(&self) -> &PipeShape {
        &self.link.shape
    }

    /// Returns the connection.
    pub const fn connection(&self) -> Connection {
        self.link.connection
    }

    /// Returns how long runs have moved; zeros in designs that copy all.
    pub const fn run_counts(&self) -> RunCounts {
        match &self.room {
            PipeRoom::ZeroCopy(room) => room.run_counts(),
            _ => RunCounts { copied: 0, exposed: 0, pushed: 0, advertised: 0, withdrawn: 0 },
        }
    }

    /// Returns how bytes arrive, and why.
    pub const fn explain(&self) -> &'static str {
        self.link.shape.arrival.explain()
    }
}

#[cfg(test)]
mod tests;

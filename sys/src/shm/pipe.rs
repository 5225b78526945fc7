//! A memory port between processes of one machine: software placement over shared memory.
//!
//! A stream is a pair of rings in a segment that both processes have mapped
//! ([`core::shared::ring`](nemesia_core::shared::ring)), and a Unix socket. By the socket the ends connect,
//! signal each other, and detect the other's departure. Bulk data take one of two paths ([`Copying`]): through
//! the rings, in two copies, or directly from one process's memory to the other's by the kernel, in one copy.
//!
//! # Trust
//! As over TCP, the target checks key, rights and bounds of every access, and makes the copy itself. No process
//! ever writes another's memory, so late data never reach it. Bytes that a peer writes into a ring are
//! untrusted input, and its positions are checked. With copies by the kernel, a process reads a payload at the
//! address that the peer sent: an address in the *peer's* memory, which the kernel checks against the peer.
//! Before a process takes such memory back, it disconnects; the reader then discards bytes that it read later.
//! The kernel would make the reader wait for pages that are not there, so their owner writes them into the ring
//! instead.
//! Only processes of one user connect. Such processes can read each other's memory without this library,
//! whatever the keys: keys protect against mistakes there, not against attackers.
//!
//! # Bytes
//! The connecting side makes the segment, and sends it with a packet of four words: `nemesiam`, version 2,
//! address and value of its identity stamp. The other side answers with its own four words, without a
//! segment. The segment holds four positions at multiples of 128 bytes (written and read of the connecting
//! side's ring, then of the other one), two [sleep words](nemesia_core::shared::sleep) from 1024 on at multiples
//! of 128 bytes (of the connecting side, then of the other one), the first ring at 4096, and the second behind it,
//! 256 KiB each. A process that polls finds bytes and room in the rings. One that sleeps announces that in its
//! word. The other one reads that word after each change of a ring, and then sends a packet of one byte, 1, to wake
//! it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use nemesia_core::payload::{GatherList, ScatterList};
use nemesia_core::port::memory::{Address, ConnectError, Origin};
use nemesia_core::port::placement::{ByteStream, PullResult, StreamResult};
use nemesia_core::shared::layout::{Extent, LayoutError};
use nemesia_core::shared::ring::{ByteReader, ByteRing, ByteWriter};
use nemesia_core::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use nemesia_core::sync::{FenceMode, PayloadMut, Word64};

pub use crate::os::allow_any_reader;
use crate::os::{
    self, Access, CopyError, HandoffConnection, HandoffListener, IdentityStamp, PageFetch, PageTable,
    PageUse, RemoteMemory, Segment, SegmentOptions, ShmError, Watch,
};
pub use crate::placement::{Options, PlacementPort};
use crate::placement::{PolledStream, StreamSource, count_call, open, transferred};

/// The magic number of the first packet.
const MAGIC: u64 = u64::from_le_bytes(*b"nemesiam");
/// The version of the format above.
const VERSION: u64 = 2;
/// The bytes of the first packet.
const HELLO_BYTES: usize = 32;
/// The offset of the rings.
const RINGS_AT: usize = 4096;
/// The bytes of a ring.
const RING_BYTES: usize = 256 << 10;
/// The bytes of a segment.
const SEGMENT_BYTES: usize = RINGS_AT + 2 * RING_BYTES;
/// The slack in a segment's size: it may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;
/// The bytes between positions.
const LINE: usize = 128;

/// The offset of the sleep words.
const SLEEP_AT: usize = 1024;

/// Wakes a process that sleeps.
const DOORBELL: u8 = 1;
/// The number of packets received at once.
const PACKETS: usize = 16;
/// The time that the kernel may take to queue a connection.
const BRIEFLY: Duration = Duration::from_millis(1);

/// The first bytes of an address.
const MARK: &[u8; 4] = b"shm1";
/// The bytes of a listener's name.
const NAME_BYTES: usize = 32;

/// The path of bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copying {
    /// Through mapped rings: two copies, always possible.
    Rings,
    /// By the kernel, in one copy, if it permits that (`process_vm_readv(2)`); else through rings.
    Kernel,
}

/// A memory port between processes of one machine.
pub type ShmMemoryPort = PlacementPort<Pipes>;

/// Opens a port that other processes of this user can connect to.
///
/// # Errors
/// Those of the system calls.
pub fn listen(copying: Copying, options: &Options) -> io::Result<ShmMemoryPort> {
    let listener = HandoffListener::bind().map_err(io::Error::other)?;
    let stamp = Box::new(os::random::<8>().map(u64::from_le_bytes).map_err(io::Error::other)?);
    open(Pipes { listener, stamp, copying }, options)
}

/// The factory of pipes.
#[derive(Debug)]
pub struct Pipes {
    listener: HandoffListener,
    /// The identity stamp by which peers recognise this process's memory. It stays at its address as long as
    /// the port lives.
    stamp: Box<u64>,
    copying: Copying,
}

/// One end of a stream.
#[derive(Debug)]
pub struct Pipe {
    ends: Option<Ends>,
    connection: HandoffConnection,
    /// Shows the end of the peer, of whose socket a child may hold a copy.
    pidfd: Option<OwnedFd>,
    /// The system has reported the stream: a packet is there, or the peer is gone.
    is_reported: bool,
    stamp: IdentityStamp,
    copying: Copying,
    memory: Option<RemoteMemory>,
    /// Pages that the peer has offered, and that are not in memory.
    fetch: Option<PageFetch>,
    /// The page table of this process, if it is open.
    own_pages: Option<PageTable>,
    /// The peer is gone, or the connection has ended.
    ended: bool,
    finished: bool,
    /// The last write found the ring full.
    is_blocked: bool,
}

/// Both rings and sleep words, and the segment into which they point. Their type is `'static` because a
/// structure cannot borrow from its own field. Only methods of [`Pipe`], which borrow all three, use them.
/// Dropping them has no effect, so the order of drops does not matter.
#[derive(Debug)]
struct Ends {
    writer: ByteWriter<'static>,
    reader: ByteReader<'static>,
    own_sleep: &'static SleepWord,
    their_sleep: &'static SleepWord,
    segment: Segment,
}

const _: () = assert!(!std::mem::needs_drop::<(ByteWriter<'static>, ByteReader<'static>)>());

impl Pipe {
    fn new(connection: HandoffConnection, stamp: IdentityStamp, copying: Copying) -> Self {
        Self {
            ends: None,
            pidfd: connection.pidfd(),
            connection,
            is_reported: false,
            stamp,
            copying,
            memory: None,
            fetch: None,
            own_pages: None,
            ended: false,
            finished: false,
            is_blocked: false,
        }
    }

    fn say(&self, fd: Option<BorrowedFd<'_>>) -> Result<(), ShmError> {
        let mut bytes = [0; HELLO_BYTES];
        let words = [MAGIC, VERSION, self.stamp.address, self.stamp.value];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        self.connection.send(&bytes, fd.as_slice(), Instant::now())
    }

    /// Receives a pending packet, and returns its first byte. The first packet holds the peer's identity stamp.
    fn packet(&mut self) -> io::Result<Option<u8>> {
        count_call();
        let mut bytes = [0; HELLO_BYTES];
        let fds = usize::from(self.ends.is_none());
        let (len, mut fds) = match self.connection.recv(&mut bytes, fds, Instant::now()) {
            Ok(packet) => packet,
            Err(ShmError::TimedOut { .. }) => return Ok(None),
            Err(ShmError::PeerGone { .. }) => {
                self.ended = true;
                return Ok(None);
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        if len == 1 && self.ends.is_some() {
            return Ok(Some(bytes[0]));
        }
        let mut words = [0; HELLO_BYTES / 8];
        for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_le_bytes(*word);
        }
        let [MAGIC, VERSION, address, value] = words else { return Err(malformed()) };
        if len != HELLO_BYTES || self.memory.is_some() {
            return Err(malformed());
        }
        self.connection.require_same_user().map_err(io::Error::other)?;
        self.memory = RemoteMemory::new(self.connection.peer().pid, IdentityStamp { address, value });
        if self.ends.is_none() {
            let fd = fds.pop().ok_or_else(malformed)?;
            let lengths = SEGMENT_BYTES..=SEGMENT_BYTES + ROUNDING;
            let segment = Segment::attach(fd, Access::ReadWrite, lengths).map_err(io::Error::other)?;
            self.ends = Some(ends(segment, false).map_err(io::Error::other)?);
            self.say(None).map_err(io::Error::other)?;
        }
        Ok(Some(DOORBELL))
    }

    /// Wakes the peer after a change of a ring, if it sleeps. If the packet does not fit, earlier ones are unread, and
    /// wake it. If the peer is gone, the system reports that.
    fn signal(&self) {
        let Some(ends) = &self.ends else { return };
        let waking = ends.their_sleep.must_wake(FenceMode::Symmetric, WakeReason::Other);
        if let Waking::Asleep(_) = waking {
            count_call();
            let _ = self.connection.send(&[DOORBELL], &[], Instant::now());
        }
    }

    /// Copies from the ring.
    fn take(&mut self, into: &mut ScatterList<'_>) -> io::Result<usize> {
        let Some(ends) = &mut self.ends else { return Ok(0) };
        let mut total = 0;
        for part in into.pieces() {
            // SAFETY: `ScatterList` guarantees that its pieces may be written. They are not part of the
            // segment, which only this value has mapped.
            let count = unsafe { ends.reader.read_into(part.base, part.len) };
            let count = count.map_err(|fault| broken(&fault))?;
            total += count;
            if count < part.len {
                break;
            }
        }
        Ok(total)
    }

    /// Reads available bytes; returns 0 at the end.
    fn read_some(&mut self, into: &mut ScatterList<'_>) -> io::Result<usize> {
        loop {
            let count = self.take(into)?;
            if count > 0 {
                self.signal();
                return Ok(count);
            }
            if self.ended || self.finished {
                return Ok(0);
            }
            // Without a report there is no packet, and the peer lives. The ring is looked at once more afterwards: what
            // the peer wrote before it ended is there.
            if !std::mem::take(&mut self.is_reported) && self.ends.is_some() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.take_packets()?;
            self.ended |= self.pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
            if self.ends.is_none() && !self.ended {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Takes the packets that are there, within a limit. What is left in the socket is reported again.
    fn take_packets(&mut self) -> io::Result<()> {
        for _ in 0..PACKETS {
            if self.packet()?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Writes as much as fits.
    fn write_some(&mut self, from: &GatherList<'_>) -> io::Result<usize> {
        self.is_blocked = false;
        if self.ended {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        let Some(ends) = &mut self.ends else { return Err(io::ErrorKind::WouldBlock.into()) };
        let mut total = 0;
        for part in from.pieces() {
            // SAFETY: `GatherList` guarantees that its pieces may be read. They are not part of the segment,
            // which only this value has mapped.
            let count = unsafe { ends.writer.write_from(part.base, part.len) };
            let count = count.map_err(|fault| broken(&fault))?;
            total += count;
            if count < part.len {
                break;
            }
        }
        if total > 0 {
            self.signal();
            return Ok(total);
        }
        self.is_blocked = true;
        Err(io::ErrorKind::WouldBlock.into())
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer's first packet is not one of this version")
}

fn broken(fault: &nemesia_core::shared::ring::RingFault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault.to_string())
}

/// Returns the rings of a segment, for the side that made it or for the other one.
fn ends(segment: Segment, made: bool) -> Result<Ends, LayoutError> {
    // SAFETY: the segment is mapped until it is dropped, and is stored in one value with the pointers resolved
    // in it.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), SEGMENT_BYTES) }?;
    let ring = |number: usize| {
        let word = |at: usize| {
            let word: NonNull<Word64> = extent.resolve((2 * number + at) * LINE, 1)?;
            // SAFETY: resolved, so mapped and aligned; an atomic word, valid whatever the peer writes; it lives
            // as long as the segment.
            Ok(unsafe { word.as_ref() })
        };
        let bytes: NonNull<u8> = extent.resolve(RINGS_AT + number * RING_BYTES, RING_BYTES)?;
        // SAFETY: resolved; mapped for writing; only copied to and from.
        let bytes = unsafe { PayloadMut::from_raw(bytes, RING_BYTES) };
        let want = RING_BYTES as u64;
        ByteRing::new(bytes, word(0)?, word(1)?).ok_or(LayoutError::Extent { have: want, want })
    };
    let sleep = |number: usize| {
        let word: NonNull<SleepWord> = extent.resolve(SLEEP_AT + number * LINE, 1)?;
        // SAFETY: resolved, so mapped and aligned; atomic words, valid whatever the peer writes; they live as long as
        // the segment.
        Ok::<_, LayoutError>(unsafe { word.as_ref() })
    };
    let (first, second) = ((ring(0)?, sleep(0)?), (ring(1)?, sleep(1)?));
    let ((out, own_sleep), (back, their_sleep)) = if made { (first, second) } else { (second, first) };
    Ok(Ends { writer: ByteWriter::new(out), reader: ByteReader::new(back), own_sleep, their_sleep, segment })
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

// SAFETY: only the memory of the lists is copied, during the call. After `withdraw`, and after a drop, the connection
// is gone, and the peer discards what it reads (`HandoffConnection::has_disconnected` in `pull`).
unsafe impl ByteStream for Pipe {
    const IN_MEMORY: bool = true;

    fn is_connected(&mut self) -> Option<Result<(), ConnectError>> {
        Some(Ok(()))
    }

    fn read(&mut self, into: &mut ScatterList<'_>) -> StreamResult {
        transferred(self.read_some(into))
    }

    fn write(&mut self, from: &GatherList<'_>) -> StreamResult {
        transferred(self.write_some(from))
    }

    fn was_reported(&mut self) {
        self.is_reported = true;
    }

    fn is_ready(&mut self) -> bool {
        let Some(ends) = &mut self.ends else { return false };
        // A read or a write reports what is wrong with a position.
        let has_bytes = ends.reader.available(1).map_or(true, |count| count > 0);
        has_bytes || self.is_blocked && ends.writer.room(1).map_or(true, |count| count > 0)
    }

    fn prepare_sleep(&mut self) -> bool {
        if let Some(ends) = &self.ends {
            // The sleep is for the descriptor, so the sequence is not needed.
            let _ = ends.own_sleep.announce(Sleep::Event);
        }
        !self.is_ready()
    }

    fn awake(&mut self) {
        if let Some(ends) = &self.ends {
            ends.own_sleep.unpark(Payer::Sleeper);
        }
    }

    fn wants_writable(&self) -> bool {
        false
    }

    fn can_pull(&mut self) -> bool {
        let Some(memory) = self.memory.as_mut().filter(|_| self.copying == Copying::Kernel) else {
            return false;
        };
        let can = memory.permitted().is_ok();
        if !can {
            // The kernel is not asked again.
            self.copying = Copying::Rings;
        }
        can
    }

    fn may_lend(&mut self, address: u64, len: u32) -> bool {
        let part = std::iter::once((address, len as usize));
        PageTable::look(&mut self.own_pages, std::process::id() as i32, part, PageUse::Read).unwrap_or(false)
    }

    fn pull(&mut self, from: u64, into: &mut ScatterList<'_>) -> PullResult {
        let Some(memory) = &mut self.memory else { return PullResult::Failed };
        self.fetch.take_if(|fetch| fetch.is_over());
        let present = match &self.fetch {
            Some(_) => Err(CopyError::Absent),
            // The owner has looked, too, if it is honest. What left since then is a page of a file.
            None => memory.is_present(from, into.bytes()),
        };
        if present == Err(CopyError::Absent) && !self.connection.has_disconnected() {
            self.fetch = self.fetch.take().or_else(|| memory.fetch(from, into.bytes()));
            return PullResult::Later;
        }
        let mut at = from;
        let is_read = present.is_ok()
            && into.pieces().iter().all(|part| {
                // SAFETY: `ScatterList` guarantees that its pieces may be written.
                let read = unsafe { memory.read_into(at, part.base, part.len) }.is_ok();
                at = at.wrapping_add(part.len as u64);
                read
            });
        if is_read && !self.connection.has_disconnected() { PullResult::Done } else { PullResult::Failed }
    }

    fn withdraw(&mut self) {
        self.connection.disconnect();
    }

    fn origin(&self) -> Option<Origin> {
        // A process of another pid namespace has no number here.
        u32::try_from(self.connection.peer().pid).ok().filter(|pid| *pid > 0).map(Origin::Process)
    }

    fn finish(&mut self) {
        self.finished = true;
    }
}

impl PolledStream for Pipe {
    fn process(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(OwnedFd::as_fd)
    }
}

impl StreamSource for Pipes {
    type Stream = Pipe;

    const NAME: &'static str = "shared memory";

    const PULLS: bool = true;

    fn address(&self) -> Vec<u8> {
        [MARK.as_slice(), self.listener.name().as_bytes()].concat()
    }

    fn connect(&mut self, to: &[u8]) -> Result<Pipe, ConnectError> {
        let name = str::from_utf8(to).map_err(|_| ConnectError::Address)?;
        let connection =
            HandoffConnection::connect(name, Instant::now() + BRIEFLY).map_err(|error| unreached(&error))?;
        connection.require_same_user().map_err(|_| ConnectError::Refused)?;
        let options = SegmentOptions::default();
        let segment =
            Segment::create("nemesia-pipe", SEGMENT_BYTES, &options).map_err(|error| unreached(&error))?;
        let mut pipe = Pipe::new(connection, self.own_stamp(), self.copying);
        let ends = ends(segment, true).map_err(|_| ConnectError::Unreachable)?;
        pipe.say(ends.segment.fd()).map_err(|error| unreached(&error))?;
        pipe.ends = Some(ends);
        Ok(pipe)
    }

    fn accept(&mut self) -> io::Result<Pipe> {
        for _ in 0..PACKETS {
            let connection = self.listener.accept(Instant::now()).map_err(|error| match error {
                ShmError::System { errno, .. } | ShmError::Descriptors { errno, .. } => errno,
                _ => io::ErrorKind::WouldBlock.into(),
            })?;
            // Before any of its packets is received.
            if connection.require_same_user().is_ok() {
                return Ok(Pipe::new(connection, self.own_stamp(), self.copying));
            }
        }
        // The listener stays readable.
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn parse(address: &Address) -> Option<(&[u8], u64)> {
        let rest = address.bytes().strip_prefix(MARK.as_slice())?;
        let (name, token) = rest.split_at_checked(NAME_BYTES)?;
        let is_name = name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let token = token.try_into().ok().filter(|_| is_name)?;
        Some((name, u64::from_le_bytes(token)))
    }
}

impl Pipes {
    fn own_stamp(&self) -> IdentityStamp {
        IdentityStamp { address: (&raw const *self.stamp).expose_provenance() as u64, value: *self.stamp }
    }
}

fn unreached(error: &ShmError) -> ConnectError {
    match error {
        ShmError::NotListening { .. } | ShmError::PeerGone { .. } => ConnectError::NotListening,
        ShmError::TimedOut { .. } => ConnectError::TimedOut,
        ShmError::System { errno, .. }
        | ShmError::Descriptors { errno, .. }
        | ShmError::Reserve { errno, .. } => ConnectError::System(errno.raw_os_error().unwrap_or(libc::EIO)),
        ShmError::Memory { .. } => ConnectError::System(libc::ENOMEM),
        _ => ConnectError::Unreachable,
    }
}

#[cfg(test)]
mod tests;

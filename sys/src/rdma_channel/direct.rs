//! Pipes inside a machine: a segment that both processes have mapped, and a socket that ends with its process.
//!
//! The process of the higher rank makes the segment and sends its descriptor with the first packet. The other process
//! answers. Later the socket shows that the peer is gone. Before, it carries the announcement of an end
//! ([`HandoffConnection::send_goodbye`]), and wakes a peer that has announced a sleep.
//!
//! | word of a first packet, little-endian | value |
//! |---|---|
//! | 0 | `nemesiac` |
//! | 1 | version 2 |
//! | 2 | rank of the sender |
//! | 3 | bytes of the ring of each direction; 0 in an answer refuses |

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use nemesia_core::payload::{Gather, Scatter};
use nemesia_core::port::memory::LostError;
use nemesia_core::rdma_channel::direct::layout::{
    DIRECT_ACK_AT, DIRECT_READ_AT, DIRECT_RING_AT, DIRECT_SLEEP_AT, DIRECT_SLOTS, DIRECT_SLOTS_AT,
    DIRECT_WRITTEN_AT, direct_bytes,
};
use nemesia_core::rdma_channel::{DirectPipe, PipeError};
use nemesia_core::shared::fastbox::{FastboxReceiver, FastboxSender, FastboxSlot};
use nemesia_core::shared::layout::{Extent, LayoutError};
use nemesia_core::shared::ring::{ByteReader, ByteRing, ByteWriter};
use nemesia_core::shared::sleep::{Payer, Sleep, SleepWord, WakeReason, Waking};
use nemesia_core::sync::{FenceMode, PayloadMut, Word64};

use crate::config::Config;
use crate::os::{Access, Departure, HandoffConnection, HandoffListener, Segment, ShmError, Watch};
use crate::transport::hosts::HostAddress;

/// The magic number of a first packet.
const MAGIC: u64 = u64::from_le_bytes(*b"nemesiac");
/// The version of the format above.
const VERSION: u64 = 2;
/// The bytes of a first packet.
const HELLO_BYTES: usize = 32;
/// The slack in a segment's size: it may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;
/// The time within which a first packet must follow its connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The packets taken at once.
const MOST_PACKETS: usize = 64;
/// The calls that find nothing between two looks at the peer's socket.
const LOOK_EVERY: u32 = 1024;

/// One end of a pipe inside a machine.
#[derive(Debug)]
pub(super) struct DirectLink {
    /// Its type is `'static` because a structure cannot borrow from its own field. Only methods of this type, which
    /// borrow the segment as well, use it. Dropping it has no effect, so the order of drops does not matter.
    pipe: DirectPipe<'static>,
    own_sleep: &'static SleepWord,
    their_sleep: &'static SleepWord,
    /// The peer has announced its end.
    has_finished: bool,
    idle: u32,
    connection: HandoffConnection,
    /// Shows the end of the peer, of whose socket a child may hold a copy.
    pidfd: Option<OwnedFd>,
    #[expect(dead_code, reason = "the pipe points into it")]
    segment: Segment,
}

const _: () = assert!(!std::mem::needs_drop::<DirectPipe<'static>>());

impl DirectLink {
    fn new(connection: HandoffConnection, segment: Segment, ring: usize, made: bool) -> Result<Self, String> {
        let text = |error: LayoutError| error.to_string();
        let pipe = pipe(&segment, ring, made).map_err(text)?;
        let (own_sleep, their_sleep) = sleep_words(&segment, ring, made).map_err(text)?;
        Ok(Self {
            pipe,
            own_sleep,
            their_sleep,
            has_finished: false,
            idle: 0,
            pidfd: connection.pidfd(),
            connection,
            segment,
        })
    }

    /// Puts bytes from the beginning of the list.
    #[inline(always)]
    pub(super) fn put(&mut self, from: &mut Gather) -> Result<usize, PipeError> {
        let waits = !self.pipe.is_sent();
        let result = self.pipe.put(from);
        self.after(waits, &result);
        result
    }

    /// Gets bytes into the list, from its beginning.
    #[inline(always)]
    pub(super) fn get(&mut self, into: &mut Scatter) -> Result<usize, PipeError> {
        let waits = !self.pipe.is_sent();
        let result = self.pipe.get(into);
        self.after(waits, &result);
        result
    }

    /// Hands over what waits for that. Returns whether all bytes that were put have left; those of a failed pipe are
    /// lost.
    pub(super) fn push(&mut self) -> bool {
        let waits = !self.pipe.is_sent();
        let has_left = self.pipe.push().unwrap_or(true);
        if waits {
            self.signal();
        }
        has_left
    }

    /// Wakes the peer after a put or get that may have changed something. Now and then, if nothing was done, looks
    /// whether the peer is gone.
    #[inline(always)]
    fn after(&mut self, waits: bool, result: &Result<usize, PipeError>) {
        let is_idle = matches!(result, Ok(0));
        if waits || !is_idle {
            self.signal();
        }
        if is_idle {
            self.count_idle();
        }
    }

    #[inline(always)]
    fn count_idle(&mut self) {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
    }

    #[inline(always)]
    fn signal(&self) {
        if self.their_sleep.is_asleep(FenceMode::Symmetric) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if let Waking::Asleep(_) = self.their_sleep.must_wake(FenceMode::Symmetric, WakeReason::Other) {
            // If its queue is full, unread packets wake it. If it is gone, the next look finds that.
            let _ = self.connection.send_wake();
        }
    }

    /// Returns whether a get has bytes to return, or an error to report.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.pipe.is_ready() {
            return true;
        }
        self.count_idle();
        false
    }

    /// Announces that this process sleeps until one of [`DirectLink::descriptors`] is readable. The caller looks once
    /// more before it sleeps.
    pub(super) fn prepare_sleep(&self) {
        // The sleep is for the descriptors, so the sequence is not needed.
        let _ = self.own_sleep.announce(Sleep::Event);
    }

    /// Ends the announcement, and looks what has woken this process.
    pub(super) fn awake(&mut self) {
        self.own_sleep.unpark(Payer::Sleeper);
        self.take_packets();
        self.look();
    }

    /// Returns the descriptors that become readable when the peer wakes this process or is gone.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.connection.as_fd()), self.pidfd.as_ref().map(OwnedFd::as_fd)].into_iter().flatten()
    }

    /// Explains the pipe.
    pub(super) const fn explain(&self) -> &'static str {
        self.pipe.explain()
    }

    /// Looks whether the peer is gone.
    #[cold]
    pub(super) fn look(&mut self) {
        let has_died = self.pidfd.as_ref().is_some_and(|fd| Watch::has_ended(fd.as_fd()));
        if has_died || self.connection.has_disconnected() {
            self.take_packets();
            match self.has_finished {
                true => self.pipe.on_ended(),
                false => self.pipe.on_lost(LostError::Closed),
            }
        }
    }

    /// Takes the packets that are there, within a limit.
    fn take_packets(&mut self) {
        let mut packet = [0; HELLO_BYTES];
        for _ in 0..MOST_PACKETS {
            let Ok((len, _)) = self.connection.recv(&mut packet, 0, Instant::now()) else { return };
            self.has_finished |= HandoffConnection::departure_in(&packet[..len]) == Some(Departure::Finished);
        }
    }

    /// Announces that this end puts and gets nothing more.
    pub(super) fn finish(&self) {
        // A peer that is gone needs no announcement.
        let _ = self.connection.send_goodbye();
    }
}

/// Returns the first packet of this process.
fn hello(rank: usize, ring: u64) -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC, VERSION, rank as u64, ring]) {
        *to = word.to_le_bytes();
    }
    bytes
}

/// Checks a first packet. Returns the rank and the bytes of the ring.
fn heard(bytes: &[u8; HELLO_BYTES], len: usize) -> Result<(usize, u64), String> {
    let mut words = [0; HELLO_BYTES / 8];
    for (to, word) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *to = u64::from_le_bytes(*word);
    }
    let [MAGIC, VERSION, rank, ring] = words else {
        return Err("its first packet is not one of this version: build both with the same nemesia".into());
    };
    let rank = usize::try_from(rank).ok().filter(|_| len == HELLO_BYTES);
    Ok((rank.ok_or("its first packet is malformed")?, ring))
}

/// A pipe that this process has requested; the peer has not answered.
#[derive(Debug)]
pub(super) struct RequestedLink {
    connection: HandoffConnection,
    segment: Segment,
    ring: usize,
}

impl RequestedLink {
    /// Requests a pipe to the process at this place, of a lower rank.
    pub(super) fn new(
        own: usize,
        to: &HostAddress,
        config: &Config,
        deadline: Instant,
    ) -> Result<Self, String> {
        let ring = config.channel.ring_bytes as usize;
        let text = |error: ShmError| error.to_string();
        let connection = HandoffConnection::connect(&to.name, deadline).map_err(text)?;
        connection.require_same_user().map_err(text)?;
        if !to.is_genuine(&connection) {
            return Err("another process listens at its address".into());
        }
        let options = config.segments.for_foreign_writers();
        let segment = Segment::create("nemesia-channel", 2 * direct_bytes(ring), &options).map_err(text)?;
        let fd = segment.fd();
        let fds: &[BorrowedFd<'_>] = fd.as_slice();
        connection.send(&hello(own, ring as u64), fds, deadline).map_err(text)?;
        Ok(Self { connection, segment, ring })
    }

    /// Waits for the answer of this rank.
    pub(super) fn finish(self, rank: usize, deadline: Instant) -> Result<DirectLink, String> {
        let mut bytes = [0; HELLO_BYTES];
        let (len, _) = self.connection.recv(&mut bytes, 0, deadline).map_err(|error| error.to_string())?;
        match heard(&bytes, len)? {
            (found, ring) if found == rank && ring == self.ring as u64 => {
                DirectLink::new(self.connection, self.segment, self.ring, true)
            }
            (_, 0) => {
                Err("it refuses the pipe: NEMESIA_CHANNEL_RING_BYTES must be the same everywhere".into())
            }
            (found, _) => Err(format!("rank {found} answered in its place")),
        }
    }
}

/// Accepts the next pipe of a higher rank. Returns the rank.
pub(super) fn accept(
    listener: &HandoffListener,
    own: usize,
    places: &[HostAddress],
    config: &Config,
    deadline: Instant,
) -> Result<Option<(usize, DirectLink)>, String> {
    let text = |error: ShmError| error.to_string();
    let connection = listener.accept(deadline).map_err(text)?;
    if connection.require_same_user().is_err() {
        return Ok(None);
    }
    let ring = config.channel.ring_bytes as usize;
    let mut bytes = [0; HELLO_BYTES];
    // A process that connects and sends nothing, or dies, must not keep the others from connecting.
    let patience = deadline.min(Instant::now() + PATIENCE);
    let Ok((len, mut fds)) = connection.recv(&mut bytes, 1, patience) else { return Ok(None) };
    let Ok((rank, wanted)) = heard(&bytes, len) else { return Ok(None) };
    let known = places.get(rank).is_some_and(|place| rank > own && place.is_genuine(&connection));
    let (true, Some(fd)) = (known, fds.pop()) else { return Ok(None) };
    if wanted != ring as u64 {
        connection.send(&hello(own, 0), &[], deadline).map_err(text)?;
        return Err(format!(
            "rank {rank} has rings of {wanted} bytes, this process of {ring}: NEMESIA_CHANNEL_RING_BYTES must be \
             the same everywhere"
        ));
    }
    let bytes = 2 * direct_bytes(ring);
    let segment = Segment::attach(fd, Access::ReadWrite, bytes..=bytes + ROUNDING).map_err(text)?;
    connection.send(&hello(own, wanted), &[], deadline).map_err(text)?;
    Ok(Some((rank, DirectLink::new(connection, segment, ring, false)?)))
}

/// Returns the sleep words of this process and of the other one, for the process that made the segment or for the other
/// one.
fn sleep_words(
    segment: &Segment,
    ring: usize,
    made: bool,
) -> Result<(&'static SleepWord, &'static SleepWord), LayoutError> {
    // SAFETY: the segment is mapped until it is dropped, and is stored in one value with the words.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), 2 * direct_bytes(ring)) }?;
    let word = |at: usize| {
        let word: NonNull<SleepWord> = extent.resolve(at + DIRECT_SLEEP_AT, 1)?;
        // SAFETY: resolved, so mapped and aligned; atomic words, valid whatever the peer writes; they live as long as
        // the segment.
        Ok(unsafe { word.as_ref() })
    };
    let (first, second) = (word(0)?, word(direct_bytes(ring))?);
    Ok(if made { (first, second) } else { (second, first) })
}

/// Returns the end of a pipe in a segment, for the process that made it or for the other one.
fn pipe(segment: &Segment, ring: usize, made: bool) -> Result<DirectPipe<'static>, LayoutError> {
    // SAFETY: the segment is mapped until it is dropped, and is stored in one value with the pipe, which points into
    // it.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), 2 * direct_bytes(ring)) }?;
    let direction = |at: usize| {
        let word = |offset: usize| {
            let word: NonNull<Word64> = extent.resolve(at + offset, 1)?;
            // SAFETY: resolved, so mapped and aligned; an atomic word, valid whatever the peer writes; it lives as
            // long as the segment.
            Ok(unsafe { word.as_ref() })
        };
        let slots: NonNull<FastboxSlot> = extent.resolve(at + DIRECT_SLOTS_AT, DIRECT_SLOTS)?;
        // SAFETY: as for the words: slots consist of atomic words.
        let slots = unsafe { std::slice::from_raw_parts(slots.as_ptr(), DIRECT_SLOTS) };
        let bytes: NonNull<u8> = extent.resolve(at + DIRECT_RING_AT, ring)?;
        // SAFETY: resolved; mapped for writing; only copied to and from.
        let bytes = unsafe { PayloadMut::from_raw(bytes, ring) };
        let want = ring as u64;
        let ring = ByteRing::new(bytes, word(DIRECT_WRITTEN_AT)?, word(DIRECT_READ_AT)?)
            .ok_or(LayoutError::Extent { have: want, want })?;
        let ack = word(DIRECT_ACK_AT)?;
        let sender = (FastboxSender::new(slots, ack), ByteWriter::new(ring));
        Ok((sender, (FastboxReceiver::new(slots, ack), ByteReader::new(ring))))
    };
    let (first, second) = (direction(0)?, direction(direct_bytes(ring))?);
    let (out, back) = if made { (first.0, second.1) } else { (second.0, first.1) };
    Ok(DirectPipe::new(out, back, ring as u64))
}

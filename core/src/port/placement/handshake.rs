//! Streams without a connection: before the request, and after a refusal.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;
use core::time::Duration;

use super::buffers::StageBuffer;
use super::{ByteStream, StreamResult};
use crate::payload::{GatherList, ScatterList};
use crate::wire::placement::{FIXED_BYTES, HANDSHAKE_BYTES, Handshake, HandshakeError};

/// The time limit for an unauthenticated connection to send its request, and for a refused peer to read the
/// refusal.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bytes of a refused peer that are discarded at once.
const DISCARD: usize = 1 << 10;
/// The reads of a stream that is discarded, in one poll.
const READS: usize = 16;

/// Reads available bytes into `bytes`.
pub(super) fn read_some<S: ByteStream>(stream: &mut S, bytes: &mut [u8]) -> StreamResult {
    let mut list = ScatterList::new();
    list.push(bytes);
    stream.read(&mut list)
}

fn write_some<S: ByteStream>(stream: &mut S, bytes: &[u8]) -> StreamResult {
    let mut list = GatherList::new();
    list.push(bytes);
    stream.write(&list)
}

/// A stream that has connected and not sent its request.
#[derive(Debug)]
pub(super) struct UnauthenticatedConnection<S> {
    pub(super) stream: S,
    bytes: [u8; HANDSHAKE_BYTES],
    have: usize,
    deadline: Duration,
}

/// The bytes of an unauthenticated connection.
#[derive(Debug)]
pub(super) enum Heard {
    /// Incomplete.
    Wait,
    /// A complete handshake.
    Handshake(Handshake),
    /// Another version; the answer names ours.
    Version,
    /// Invalid bytes, which get no answer.
    Nonsense,
}

impl<S: ByteStream> UnauthenticatedConnection<S> {
    pub(super) const fn new(stream: S, now: Duration) -> Self {
        let deadline = now.saturating_add(PATIENCE);
        Self { stream, bytes: [0; HANDSHAKE_BYTES], have: 0, deadline }
    }

    /// Returns the time at which it is closed.
    pub(super) const fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn listen(&mut self, now: Duration) -> Heard {
        let Some(room) = self.bytes.get_mut(self.have..) else { return Heard::Nonsense };
        match read_some(&mut self.stream, room) {
            StreamResult::Ended | StreamResult::Failed(_) => return Heard::Nonsense,
            StreamResult::Bytes(count) => self.have += count,
            StreamResult::Blocked if now > self.deadline => return Heard::Nonsense,
            StreamResult::Blocked => return Heard::Wait,
        }
        if self.have >= FIXED_BYTES
            && let Some(fixed) = self.bytes.first_chunk()
        {
            match Handshake::check(fixed) {
                Err(HandshakeError::Version { .. }) => return Heard::Version,
                Err(HandshakeError::Malformed) => return Heard::Nonsense,
                Ok(()) => {}
            }
        }
        if self.have < HANDSHAKE_BYTES {
            return Heard::Wait;
        }
        Handshake::decode(&self.bytes).map_or(Heard::Nonsense, Heard::Handshake)
    }

    /// Sends a last frame, if the stream takes it at once, as a new stream does.
    pub(super) fn answer(&mut self, handshake: &Handshake) {
        // If the frame is lost, the peer sees the end of the stream.
        let _ = write_some(&mut self.stream, &handshake.encode());
        self.stream.finish();
    }
}

/// A stream on which the reason of its end is still sent. Closing it at once, with unread bytes, would discard
/// the sent bytes.
#[derive(Debug)]
pub(super) struct LingeringClose<S, B> {
    pub(super) stream: S,
    rest: StageBuffer<B>,
    finished: bool,
    deadline: Option<Duration>,
}

impl<S: ByteStream, B: BorrowMut<[u8]>> LingeringClose<S, B> {
    pub(super) const fn new(stream: S, rest: StageBuffer<B>) -> Self {
        Self { stream, rest, finished: false, deadline: None }
    }

    /// Makes progress. Returns false when nothing is left to do.
    pub(super) fn go_on(&mut self, now: Duration) -> bool {
        if now > *self.deadline.get_or_insert(now.saturating_add(PATIENCE)) {
            return false;
        }
        if !self.rest.rest().is_empty() {
            match write_some(&mut self.stream, self.rest.rest()) {
                StreamResult::Bytes(count) => self.rest.advance(count),
                StreamResult::Blocked => {}
                StreamResult::Ended | StreamResult::Failed(_) => return false,
            }
        }
        if self.rest.rest().is_empty() && !self.finished {
            self.finished = true;
            self.stream.finish();
        }
        let mut discard = [0; DISCARD];
        for _ in 0..READS {
            match read_some(&mut self.stream, &mut discard) {
                StreamResult::Bytes(_) => {}
                StreamResult::Blocked => break,
                StreamResult::Ended | StreamResult::Failed(_) => return false,
            }
        }
        true
    }
}

//! Streams without a connection: before the request, and after a refusal.

use std::io;
use std::time::Duration;

use nemesia_core::wire::placement::{FIXED_BYTES, HANDSHAKE_BYTES, Handshake, HandshakeError};

use super::Stream;
use super::regions::Vectors;

/// The time limit for an unauthenticated connection to send its request, and for a refused peer to read the
/// refusal.
const PATIENCE: Duration = Duration::from_secs(5);
/// The bytes of a refused peer that are discarded at once.
const DISCARD: usize = 16 << 10;

/// Returns a vector of one part for a system call.
pub(super) fn one(bytes: &mut [u8]) -> Vectors {
    let mut vectors = Vectors::new();
    vectors.push(bytes.as_mut_ptr(), bytes.len());
    vectors
}

/// Reads available bytes into `bytes`; `None` if there are none now.
pub(super) fn read_some<S: Stream>(stream: &mut S, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the vector names a slice that is borrowed until the call is over.
    match unsafe { stream.read(one(bytes).get()) } {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
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

impl<S: Stream> UnauthenticatedConnection<S> {
    pub(super) const fn new(stream: S, now: Duration) -> Self {
        let deadline = now.saturating_add(PATIENCE);
        Self { stream, bytes: [0; HANDSHAKE_BYTES], have: 0, deadline }
    }

    /// Returns the time at which it is closed.
    pub(super) const fn deadline(&self) -> Duration {
        self.deadline
    }

    pub(super) fn listen(&mut self, now: Duration) -> Heard {
        match read_some(&mut self.stream, &mut self.bytes[self.have..]) {
            Ok(Some(0)) | Err(_) => return Heard::Nonsense,
            Ok(Some(count)) => self.have += count,
            Ok(None) if now > self.deadline => return Heard::Nonsense,
            Ok(None) => return Heard::Wait,
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
        let mut bytes = handshake.encode();
        // SAFETY: the vector names an array that lives longer. If the frame is lost, the peer sees the end of
        // the stream.
        let _ = unsafe { self.stream.write(one(&mut bytes).get()) };
        self.stream.finish();
    }
}

/// A stream on which the reason of its end is still sent. Closing it at once, with unread bytes, would discard
/// the sent bytes.
#[derive(Debug)]
pub(super) struct LingeringClose<S> {
    pub(super) stream: S,
    rest: Vec<u8>,
    said: usize,
    finished: bool,
    deadline: Option<Duration>,
}

impl<S: Stream> LingeringClose<S> {
    pub(super) const fn new(stream: S, rest: Vec<u8>, said: usize) -> Self {
        Self { stream, rest, said, finished: false, deadline: None }
    }

    /// Makes progress. Returns false when nothing is left to do.
    pub(super) fn go_on(&mut self, now: Duration) -> bool {
        if now > *self.deadline.get_or_insert(now.saturating_add(PATIENCE)) {
            return false;
        }
        if self.said < self.rest.len() {
            let vectors = one(&mut self.rest[self.said..]);
            // SAFETY: the vector names a part of the buffer that is not touched meanwhile.
            match unsafe { self.stream.write(vectors.get()) } {
                Ok(count) => self.said += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        if self.said == self.rest.len() && !self.finished {
            self.finished = true;
            self.stream.finish();
        }
        let mut discard = [0; DISCARD];
        !matches!(read_some(&mut self.stream, &mut discard), Ok(Some(0)) | Err(_))
    }
}

//! Streams without a connection: before it is asked for, and after it was refused.

use std::io;
use std::time::Duration;

use nemesia_core::wire::placement::{FIXED_BYTES, GREETING_BYTES, Greeting, GreetingError};

use super::Stream;
use super::regions::Vectors;

/// How long a stranger may take to say what it wants, and a refused peer to listen.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much of what a refused peer still says is thrown away at once.
const DISCARD: usize = 16 << 10;

/// One part of memory for a system call.
pub(super) fn one(bytes: &mut [u8]) -> Vectors {
    let mut vectors = Vectors::new();
    vectors.push(bytes.as_mut_ptr(), bytes.len());
    vectors
}

/// Reads what is there into `bytes`; `None` when there is nothing now.
pub(super) fn read_some<S: Stream>(stream: &mut S, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    // SAFETY: the vector is that of a slice which is borrowed until the call is over.
    match unsafe { stream.read(one(bytes).get()) } {
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Who has connected and not said what for.
#[derive(Debug)]
pub(super) struct Stranger<S> {
    pub(super) stream: S,
    bytes: [u8; GREETING_BYTES],
    have: usize,
    deadline: Duration,
}

/// What a stranger said.
#[derive(Debug)]
pub(super) enum Heard {
    /// Not everything yet.
    Wait,
    /// This.
    Greeting(Greeting),
    /// It speaks another version: it is told ours.
    Version,
    /// Nothing that we answer.
    Nonsense,
}

impl<S: Stream> Stranger<S> {
    pub(super) const fn new(stream: S, now: Duration) -> Self {
        let deadline = now.saturating_add(PATIENCE);
        Self { stream, bytes: [0; GREETING_BYTES], have: 0, deadline }
    }

    /// Until when it is listened to.
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
            match Greeting::check(fixed) {
                Err(GreetingError::Version { .. }) => return Heard::Version,
                Err(GreetingError::Malformed) => return Heard::Nonsense,
                Ok(()) => {}
            }
        }
        if self.have < GREETING_BYTES {
            return Heard::Wait;
        }
        Greeting::decode(&self.bytes).map_or(Heard::Nonsense, Heard::Greeting)
    }

    /// Says a last word, if the stream takes it at once, as it does with one that is new.
    pub(super) fn answer(&mut self, greeting: &Greeting) {
        let mut bytes = greeting.encode();
        // SAFETY: the vector is that of an array which lives longer.
        // Who does not hear it sees the stream end.
        let _ = unsafe { self.stream.write(one(&mut bytes).get()) };
        self.stream.finish();
    }
}

/// A stream whose peer is told why it ended. Closing it at once, with bytes unread, would take back what was said.
#[derive(Debug)]
pub(super) struct Farewell<S> {
    pub(super) stream: S,
    rest: Vec<u8>,
    said: usize,
    finished: bool,
    deadline: Option<Duration>,
}

impl<S: Stream> Farewell<S> {
    pub(super) const fn new(stream: S, rest: Vec<u8>, said: usize) -> Self {
        Self { stream, rest, said, finished: false, deadline: None }
    }

    /// Goes on; false when there is nothing left to do.
    pub(super) fn go_on(&mut self, now: Duration) -> bool {
        if now > *self.deadline.get_or_insert(now.saturating_add(PATIENCE)) {
            return false;
        }
        if self.said < self.rest.len() {
            let vectors = one(&mut self.rest[self.said..]);
            // SAFETY: the vector is that of a part of the buffer, which is not touched meanwhile.
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

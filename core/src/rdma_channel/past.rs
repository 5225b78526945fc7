//! Rendezvous by RDMA write beside the pipe (paper 1, section 6, figure 12), as a layer above the five functions has
//! it: the handshake goes through the pipe, the data past it.
//!
//! 1. The sender puts a packet of its own that announces the message.
//! 2. The receiver admits the peer to its buffer ([`PipeHost::admit`]) and puts the key.
//! 3. The sender writes from its buffer into the other ([`BytePipe::write_past`](super::BytePipe::write_past)), and
//!    then puts a packet that ends the message.
//! 4. The receiver gets that packet, ends the admission, and has the message.
//!
//! Several messages may be written at the same time; each one is posted after those before it.
//!
//! What is put after the last write was posted arrives after its bytes: chunks are written on the same connection, and
//! pointers are written or sent there. So no completion is awaited between the data and the last packet.
#![forbid(unsafe_code)]

use super::link::{PipeLink, PipeWork};
use super::run_write::RunWrite;
use super::{PipeError, PipeHost};
use crate::port::memory::MemoryKey;

/// The state of a write past the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PastWrite {
    /// The buffer cannot be registered, or the peer's is too short: send the message through the pipe.
    Refused,
    /// A part waits for room in the queue, or all of it for earlier writes: call again. Nothing may be put that must
    /// follow the data.
    Waiting,
    /// All of it is posted: what is put from now on arrives after it. The buffer is in use: call again.
    Posted,
    /// The buffer belongs to the caller again.
    Done,
}

/// A write that has begun.
#[derive(Clone, Copy, Debug)]
struct BegunWrite {
    /// The buffer, as the caller names it in each call.
    buffer: (u64, u64),
    run: RunWrite,
}

/// The most messages that are written at the same time. The writes of a window follow one another on the wire only if
/// no write waits for the completion of the one before.
const MOST_WRITES: usize = 8;

/// The writes past a pipe, at one end.
#[derive(Debug, Default)]
pub(super) struct PastWrites {
    begun: [Option<BegunWrite>; MOST_WRITES],
    /// The bytes of all writes that were begun.
    bytes: u64,
}

impl PastWrites {
    /// Begins or continues to write `buffer`, an address and a length, to the peer's buffer.
    pub(super) fn write<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        buffer: (u64, u64),
        to: MemoryKey,
    ) -> Result<PastWrite, PipeError> {
        let is_this = |it: &BegunWrite| it.buffer == buffer && it.run.to == to;
        let at = match self.begun.iter().position(|it| it.as_ref().is_some_and(is_this)) {
            Some(at) => at,
            None => match self.begin(host, buffer, to) {
                Ok(at) => at,
                Err(progress) => return Ok(progress),
            },
        };
        let Some(write) = &mut self.begun[at] else { return Ok(PastWrite::Waiting) };
        if !write.run.post(host.port(), link, PipeWork::Past)? {
            return Ok(PastWrite::Waiting);
        }
        if !write.run.is_written() || !write.run.release(host) {
            return Ok(PastWrite::Posted);
        }
        self.begun[at] = None;
        Ok(PastWrite::Done)
    }

    /// Begins a write. Returns its place, or the reason why it does not begin now.
    fn begin<H: PipeHost>(
        &mut self,
        host: &mut H,
        buffer: (u64, u64),
        to: MemoryKey,
    ) -> Result<usize, PastWrite> {
        let (_, len) = buffer;
        if len == 0 || to.len < len || to.address.checked_add(to.len).is_none() {
            return Err(PastWrite::Refused);
        }
        // Completions are counted in the order in which work was posted, so one write is posted after the other.
        let is_posted = self.begun.iter().flatten().all(|it| it.run.is_posted());
        let free = self.begun.iter().position(Option::is_none);
        let at = free.filter(|_| is_posted).ok_or(PastWrite::Waiting)?;
        let run = RunWrite::begin(host, buffer, to, self.bytes).ok_or(PastWrite::Refused)?;
        self.bytes += len;
        self.begun[at] = Some(BegunWrite { buffer, run });
        Ok(at)
    }

    /// Takes note that the port no longer uses the bytes of all writes before a position.
    pub(super) fn on_written(&mut self, position: u64) {
        self.begun.iter_mut().flatten().for_each(|write| write.run.on_written(position));
    }

    /// Ends the use of the buffers after the connection was lost. `None` if one is still in use.
    pub(super) fn abandon<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        for write in &mut self.begun {
            if write.is_some_and(|it| !it.run.release(host)) {
                return None;
            }
            *write = None;
        }
        Some(())
    }
}

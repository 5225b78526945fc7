//! Rendezvous by RDMA write beside the pipe (paper 1, section 6, figure 12), as a layer above the five functions has
//! it: the handshake goes through the pipe, the data past it.
//!
//! 1. The sender puts a packet of its own that announces the message.
//! 2. The receiver admits the peer to its buffer ([`PipeHost::admit`]) and puts the key.
//! 3. The sender writes from its buffer into the other ([`BytePipe::write_past`](super::BytePipe::write_past)), and
//!    then puts a packet that ends the message.
//! 4. The receiver gets that packet, ends the admission, and has the message.
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
    /// A part waits for room in the queue: call again. Nothing may be put that must follow the data.
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

/// The writes past a pipe, at one end: one at a time.
#[derive(Debug, Default)]
pub(super) struct PastWrites {
    begun: Option<BegunWrite>,
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
        let (_, len) = buffer;
        if self.begun.is_none() {
            if len == 0 || to.len < len || to.address.checked_add(to.len).is_none() {
                return Ok(PastWrite::Refused);
            }
            let Some(run) = RunWrite::begin(host, buffer, to) else { return Ok(PastWrite::Refused) };
            self.begun = Some(BegunWrite { buffer, run });
        }
        let Some(write) = self.begun.as_mut().filter(|it| it.buffer == buffer && it.run.to == to) else {
            // Another message is being written.
            return Ok(PastWrite::Waiting);
        };
        if !write.run.post(host.port(), link, PipeWork::Past)? {
            return Ok(PastWrite::Waiting);
        }
        if !write.run.is_written() || !write.run.release(host) {
            return Ok(PastWrite::Posted);
        }
        self.begun = None;
        Ok(PastWrite::Done)
    }

    /// Takes note that the port no longer uses the first bytes of the buffer.
    pub(super) const fn on_written(&mut self, position: u64) {
        if let Some(write) = &mut self.begun {
            write.run.on_written(position);
        }
    }

    /// Ends the use of the buffer after the connection was lost. `None` if it is still in use.
    pub(super) fn abandon<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        if self.begun.is_some_and(|write| !write.run.release(host)) {
            return None;
        }
        self.begun = None;
        Some(())
    }
}

//! The push alternative of the zero-copy design (paper 1, section 5): where a get comes before its put, the receiver
//! advertises its buffer, and the sender writes into it instead of exposing its own.
//!
//! 1. A get whose list continues with a long run, and for which nothing has arrived, lets the peer write there. It puts
//!    an advertisement into the pipe of the other direction: the position in the stream at which the buffer begins, and
//!    its key.
//! 2. A put of a long run at exactly this position writes into the buffer. The chunk [`ChunkKind::Pushed`] with the
//!    number of bytes follows on the same connection, so it arrives after them. No acknowledgement is needed: the bytes
//!    belong to the sender's caller again when the port no longer reads them.
//! 3. If anything else arrives at this position, the put came first. The receiver withdraws the buffer before it copies
//!    into it. The sender has passed the position, so it never uses the advertisement.
//!
//! Neither end waits for the other: a put that finds no advertisement exposes its buffer ([`super::zero_copy`]). One
//! buffer is advertised at a time, and a buffer that was withdrawn is not advertised again.
#![forbid(unsafe_code)]

use super::chunk::ChunkKind;
use super::chunk_receiver::OpenChunk;
#[cfg(nemesia_injected_fault)]
use super::fault::{PipeFault, injected};
use super::link::{PipeLink, PipeWork};
use super::pipelined::Pipelined;
use super::pointers::Pointers;
use super::run_write::RunWrite;
use super::shape::RING_AT;
use super::{PipeError, PipeHost};
use crate::port::memory::{KEY_BYTES, MemoryKey, PortRegion};

/// Bytes of an advertisement: position and key.
const ADVERTISEMENT_BYTES: usize = 8 + KEY_BYTES;

/// A buffer of the receiver: the position in the stream of its first byte, and its key.
#[derive(Clone, Copy, Debug)]
struct Advertisement {
    position: u64,
    key: MemoryKey,
}

impl Advertisement {
    fn to_bytes(self) -> [u8; ADVERTISEMENT_BYTES] {
        let mut bytes = [0; ADVERTISEMENT_BYTES];
        let (position, key) = bytes.split_at_mut(8);
        position.copy_from_slice(&self.position.to_le_bytes());
        key.copy_from_slice(&self.key.to_bytes());
        bytes
    }

    /// Decodes an advertisement of the peer. `most` is the position up to which this end has put.
    fn from_bytes(bytes: &[u8; ADVERTISEMENT_BYTES], most: u64) -> Result<Self, PipeError> {
        let Some((position, key)) = bytes.split_first_chunk::<8>() else { return Err(PipeError::Memory) };
        let position = u64::from_le_bytes(*position);
        let key = MemoryKey::from_bytes(key.first_chunk().ok_or(PipeError::Memory)?);
        if position > most {
            let what = "position of an advertised buffer";
            return Err(PipeError::Violated { what, found: position, limit: most });
        }
        if key.len == 0 || key.address.checked_add(key.len).is_none() {
            let (found, limit) = (key.len, u64::MAX - key.address);
            return Err(PipeError::Violated { what: "length of an advertised buffer", found, limit });
        }
        Ok(Self { position, key })
    }
}

/// Copies the payload of a chunk, which must have exactly this length.
fn payload<const N: usize>(link: &PipeLink, chunk: OpenChunk) -> Result<[u8; N], PipeError> {
    let mut bytes = [0; N];
    if chunk.len as usize != N {
        let (found, limit) = (chunk.len.into(), N as u64);
        return Err(PipeError::Violated { what: "length of a special packet", found, limit });
    }
    if link.inbox.view.read(RING_AT + chunk.payload, &mut bytes) { Ok(bytes) } else { Err(PipeError::Memory) }
}

/// A run of the caller's that is being written into the peer's buffer.
#[derive(Clone, Copy, Debug)]
struct PushWrite {
    run: RunWrite,
    announced: bool,
}

/// The sender's end.
#[derive(Debug, Default)]
pub(super) struct PushSender {
    /// The last buffer that the peer has advertised.
    offer: Option<Advertisement>,
    write: Option<PushWrite>,
    pushed: u64,
}

impl PushSender {
    /// Takes an advertisement out of a chunk. `put` is the position up to which this end has put.
    pub(super) fn learn(&mut self, link: &PipeLink, chunk: OpenChunk, put: u64) -> Result<(), PipeError> {
        let bytes = payload(link, chunk)?;
        self.offer = Some(Advertisement::from_bytes(&bytes, put)?);
        Ok(())
    }

    /// Returns the number of runs that were written.
    pub(super) const fn count(&self) -> u64 {
        self.pushed
    }

    /// Returns whether a run is being written.
    pub(super) const fn is_writing(&self) -> bool {
        self.write.is_some()
    }

    /// Begins to write a run at the position up to which this end has put, if the peer has advertised a buffer for it.
    /// Returns how many bytes of the run will be written.
    pub(super) fn begin<H: PipeHost>(
        &mut self,
        host: &mut H,
        put: u64,
        (address, len): (u64, usize),
    ) -> Option<u64> {
        let offer = self.offer.take()?;
        let is_due = offer.position == put;
        #[cfg(nemesia_injected_fault)]
        let is_due = is_due || injected(PipeFault::PushStale);
        if !is_due {
            return None;
        }
        let len = offer.key.len.min(len as u64);
        // If the run cannot be registered, the caller goes on as without the advertisement.
        let run = RunWrite::begin(host, (address, len), offer.key, 0)?;
        self.write = Some(PushWrite { run, announced: false });
        Some(len)
    }

    /// Goes on to write. Returns the number of bytes written once the run belongs to the caller again.
    pub(super) fn go_on<H: PipeHost>(
        &mut self,
        host: &mut H,
        (link, pointers): (&PipeLink, &mut Pointers),
        chunks: &mut Pipelined,
    ) -> Result<Option<u64>, PipeError> {
        let Some(write) = &mut self.write else { return Ok(None) };
        let is_posted = write.run.post(host.port(), link, PipeWork::Push)?;
        let is_read = write.run.is_written();
        #[cfg(nemesia_injected_fault)]
        let is_read = is_read || is_posted && injected(PipeFault::CountPushed);
        #[cfg(nemesia_injected_fault)]
        let is_posted = is_posted || injected(PipeFault::AnnounceUnpushed);
        if is_posted && !write.announced {
            if chunks.sender.room(link, pointers, 1)? == 0 {
                // The peer may have sent its tail with a chunk that no get has looked at.
                chunks.sender.on_tail(chunks.receiver.look(link, pointers)?)?;
            }
            if chunks.sender.room(link, pointers, 1)? > 0 {
                let tail = chunks.receiver.carry_tail();
                chunks.sender.stage_bytes(link, tail, (ChunkKind::Pushed, &write.run.len.to_le_bytes()))?;
                write.announced = true;
            }
        }
        if !write.announced || !is_read || !write.run.release(host) {
            return Ok(None);
        }
        let len = write.run.len;
        self.write = None;
        self.pushed += 1;
        Ok(Some(len))
    }

    /// Takes note that the port no longer reads the first bytes of the run.
    pub(super) const fn on_written(&mut self, position: u64) {
        if let Some(write) = &mut self.write {
            write.run.on_written(position);
        }
    }

    /// Ends the use of the run after the connection was lost. `None` if it is still in use.
    pub(super) fn abandon<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        if self.write.is_some_and(|write| !write.run.release(host)) {
            return None;
        }
        self.write = None;
        Some(())
    }
}

/// The buffer of the caller that is advertised.
#[derive(Clone, Copy, Debug)]
struct LentBuffer {
    region: PortRegion,
    /// The position in the stream at which it begins.
    position: u64,
    address: u64,
    len: u64,
}

/// The receiver's end.
#[derive(Debug, Default)]
pub(super) struct PushReceiver {
    lent: Option<LentBuffer>,
    /// Bytes of the last announcement that the caller has not been given.
    left: Option<u64>,
    /// Nothing is advertised before this position: the peer puts first there.
    not_before: u64,
    advertised: u64,
    withdrawn: u64,
}

impl PushReceiver {
    /// Returns the number of buffers that were advertised, and of those that were withdrawn.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.advertised, self.withdrawn)
    }

    /// Returns whether a buffer is advertised.
    pub(super) const fn has_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Returns whether the next long run may be advertised. `got` is the position up to which this end has got.
    pub(super) const fn may_advertise(&self, got: u64) -> bool {
        self.lent.is_none() && got >= self.not_before
    }

    /// Advertises a run at the position up to which this end has got. The caller has found room for a chunk.
    pub(super) fn advertise<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        chunks: &mut Pipelined,
        (got, address, len): (u64, u64, usize),
    ) -> Result<(), PipeError> {
        let len = len as u64;
        let Some((region, key)) = host.admit(address, len) else {
            // It cannot be registered, and need not be tried again.
            self.not_before = got + len;
            return Ok(());
        };
        self.lent = Some(LentBuffer { region, position: got, address, len });
        self.advertised += 1;
        let bytes = Advertisement { position: got, key }.to_bytes();
        let tail = chunks.receiver.carry_tail();
        chunks.sender.stage_bytes(link, tail, (ChunkKind::Advertised, &bytes))
    }

    /// Takes the bytes that the peer has written, which a chunk announces. `run` is the address and the length of the
    /// run with which the caller's list continues. Returns how many bytes, and whether the chunk is over, or `None` if
    /// the port still uses the buffer.
    pub(super) fn take<H: PipeHost>(
        &mut self,
        host: &mut H,
        link: &PipeLink,
        chunk: OpenChunk,
        run: (u64, usize),
    ) -> Result<Option<(usize, bool)>, PipeError> {
        // The peer can change the chunk: its number is read once.
        let count = match self.left {
            Some(left) => left,
            None => u64::from_le_bytes(payload(link, chunk)?),
        };
        let most = self.lent.map_or(0, |lent| lent.len);
        let Some(lent) = self.lent.filter(|_| count > 0 && count <= most) else {
            return Err(PipeError::Violated { what: "bytes pushed", found: count, limit: most });
        };
        let (address, found) = run;
        if address != lent.address || found == 0 {
            return Err(PipeError::List { found: 0, needed: count as usize });
        }
        // A list may have the buffer in parts.
        let given = count.min(found as u64);
        if given < count {
            self.left = Some(count - given);
            let (address, len) = (lent.address + given, lent.len - given);
            self.lent = Some(LentBuffer { position: lent.position + given, address, len, ..lent });
            return Ok(Some((given as usize, false)));
        }
        if !host.release(lent.region) {
            return Ok(None);
        }
        (self.lent, self.left) = (None, None);
        Ok(Some((given as usize, true)))
    }

    /// Withdraws the buffer, because the peer has put something else at its position. `None` if the port still uses it.
    pub(super) fn withdraw<H: PipeHost>(&mut self, host: &mut H) -> Option<()> {
        let Some(lent) = self.lent else { return Some(()) };
        if !host.release(lent.region) {
            return None;
        }
        self.lent = None;
        self.not_before = lent.position + lent.len;
        self.withdrawn += 1;
        Some(())
    }
}

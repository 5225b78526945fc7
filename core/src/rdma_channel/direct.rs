//! The pipe inside a machine: put and get on shared memory (paper 1, section 3.2, figure 3), by the structures of
//! [`crate::shared`].
//!
//! The paper's ring has its bytes in one place and its head in another, so a short put moves two cache lines. Here a
//! short put is a record of a [fastbox](crate::shared::fastbox): bytes and proof of arrival share a cache line, and no
//! staging buffer is needed. Longer puts go through a [byte ring](crate::shared::ring). A record announces the bytes of
//! the ring, so both paths together are one stream.
//!
//! | context of a record | tag | payload |
//! |---|---|---|
//! | 0 | 0 | the next bytes of the stream |
//! | 1 | the number of bytes in the ring that are next in the stream | none |
//!
//! The sequence number of a record is its number in the direction, from 0. Records are announced after the bytes of the
//! ring were published, so a receiver that sees the record finds the bytes.
//!
//! Everything that the peer writes is checked: positions by the structures, records here. Payload is copied with bounds
//! of this process.
#![cfg_attr(not(test), forbid(unsafe_code))]

use super::{DIRECT_RECORD_BYTES, PipeError};
use crate::payload::{Gather, Scatter};
use crate::port::memory::LostError;
use crate::shared::fastbox::{FastboxReceiver, FastboxSender};
use crate::shared::ring::{ByteReader, ByteWriter};
use crate::wire::{Envelope, Kind};

pub mod layout;

/// The context of records with bytes.
const BYTES: u16 = 0;
/// The context of records that announce bytes in the ring.
const RUN: u16 = 1;
/// The most bytes that one record announces: the receiver copies one run while the sender fills the next.
const RUN_BYTES: usize = 16 << 10;
/// The least free bytes of the ring for which a run is made, unless the rest of the list is shorter.
const LEAST_RUN: usize = 4 << 10;

/// One end of a pipe between two processes that have mapped the same memory. Not shared by threads.
#[derive(Debug)]
pub struct DirectPipe<'a> {
    sender: FastboxSender<'a>,
    writer: ByteWriter<'a>,
    receiver: FastboxReceiver<'a>,
    reader: ByteReader<'a>,
    /// Records that were sent, and records that were read.
    sent: u64,
    seen: u64,
    /// Bytes in the ring that no record has announced yet.
    unannounced: u64,
    /// Bytes of the record at the head that were read.
    at: usize,
    /// Announced bytes of the ring that were not read.
    run: u64,
    ring_bytes: u64,
    lost: Option<PipeError>,
}

impl<'a> DirectPipe<'a> {
    /// Makes one end out of the fastbox and the ring of each direction, none of which has been used. `ring_bytes` is
    /// the size of each ring.
    pub const fn new(
        (sender, writer): (FastboxSender<'a>, ByteWriter<'a>),
        (receiver, reader): (FastboxReceiver<'a>, ByteReader<'a>),
        ring_bytes: u64,
    ) -> Self {
        Self {
            sender,
            writer,
            receiver,
            reader,
            sent: 0,
            seen: 0,
            unannounced: 0,
            at: 0,
            run: 0,
            ring_bytes,
            lost: None,
        }
    }

    /// Puts bytes from the beginning of the list. Returns how many; the list of the next call begins after them.
    ///
    /// # Errors
    /// The pipe has failed.
    #[inline]
    pub fn put(&mut self, from: &mut Gather) -> Result<usize, PipeError> {
        let len = from.buf().len();
        if len <= DIRECT_RECORD_BYTES && self.unannounced == 0 && self.lost.is_none() {
            let mut bytes = [0; DIRECT_RECORD_BYTES];
            let result = match from.buf().whole(0, len) {
                _ if len == 0 => return Ok(0),
                Some(bytes) => self.record(BYTES, 0, bytes),
                None => {
                    from.read(0, &mut bytes[..len]);
                    self.record(BYTES, 0, &bytes[..len])
                }
            };
            return self.keep(result).map(|done| if done { len } else { 0 });
        }
        self.put_long(from)
    }

    #[inline(never)]
    fn put_long(&mut self, from: &mut Gather) -> Result<usize, PipeError> {
        let (mut done, len) = (0, from.buf().len());
        while self.push()? && done < len {
            let count = self.fill(from, (done, len - done));
            let count = self.keep(count)?;
            if count == 0 {
                break;
            }
            done += count;
        }
        Ok(done)
    }

    /// Copies the next run into the ring.
    fn fill(&mut self, from: &mut Gather, (at, len): (usize, usize)) -> Result<usize, PipeError> {
        let len = len.min(RUN_BYTES);
        let room = self.writer.room(len)?;
        if room < len.min(LEAST_RUN) {
            return Ok(0);
        }
        let (mut done, mut result) = (0, Ok(()));
        from.each(at, len.min(room), |_, part| match self.writer.write(part) {
            Ok(count) => done += count,
            Err(fault) => result = Err(fault),
        });
        self.unannounced += done as u64;
        result?;
        Ok(done)
    }

    /// Announces the bytes in the ring. Returns whether no byte waits for its announcement. Put and get do the same; a
    /// caller that does neither calls this.
    ///
    /// # Errors
    /// The pipe has failed.
    pub fn push(&mut self) -> Result<bool, PipeError> {
        if let Some(error) = self.lost {
            return Err(error);
        }
        if self.unannounced > 0 {
            let result = self.record(RUN, self.unannounced, &[]);
            if self.keep(result)? {
                self.unannounced = 0;
            }
        }
        Ok(self.unannounced == 0)
    }

    #[inline]
    fn record(&mut self, context: u16, tag: u64, payload: &[u8]) -> Result<bool, PipeError> {
        let envelope = Envelope { kind: Kind::Eager, context, tag, total: payload.len() as u64 };
        let is_sent = self.sender.push(self.sent, &envelope, payload)?;
        self.sent += u64::from(is_sent);
        Ok(is_sent)
    }

    /// Gets bytes into the list, from its beginning. Returns how many; the list of the next call begins after them.
    /// Bytes that arrived before the connection was lost are still returned.
    ///
    /// # Errors
    /// The pipe has failed, and no further byte can be read.
    #[inline]
    pub fn get(&mut self, into: &mut Scatter) -> Result<usize, PipeError> {
        let (mut done, len) = (0, into.len());
        if self.unannounced > 0 && self.lost.is_none() {
            self.push()?;
        }
        while done < len && !self.is_broken() {
            let count = if self.run > 0 { self.read_run(into, done) } else { self.read_record(into, done) };
            match count {
                Ok(Some(count)) => done += count,
                Ok(None) => break,
                Err(error) => self.lost = Some(error),
            }
        }
        match self.lost {
            Some(error) if done == 0 && len > 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Returns whether a get has bytes to return, or an error to report.
    pub fn is_ready(&self) -> bool {
        self.run > 0 || self.receiver.has_next() || self.lost.is_some()
    }

    /// Returns whether the peer violated the protocol, so that nothing more can be read.
    const fn is_broken(&self) -> bool {
        matches!(self.lost, Some(error) if !error.is_end())
    }

    /// Reads from the record at the head. `None` if there is none.
    #[inline]
    fn read_record(&mut self, into: &mut Scatter, done: usize) -> Result<Option<usize>, PipeError> {
        let mut due = self.receiver.due(self.seen);
        if due.is_none() && self.receiver.has_next() {
            // It came after the first look, or it is not the one that is due.
            due = self.receiver.due(self.seen);
            if due.is_none() {
                return Err(PipeError::Violated { what: "number of a record", found: 0, limit: self.seen });
            }
        }
        let Some(packet) = due else { return Ok(None) };
        if packet.envelope.context != BYTES {
            return self.begin_run(packet.envelope.context, packet.envelope.tag).map(|()| Some(0));
        }
        // The peer may have changed the record since a part of it was read.
        let Some(left) = packet.len.checked_sub(self.at).filter(|left| *left > 0) else {
            let (found, limit) = (packet.len as u64, self.at as u64);
            return Err(PipeError::Violated { what: "length of a record", found, limit });
        };
        let count = left.min(into.len() - done);
        let (receiver, at) = (&self.receiver, self.at);
        into.each(done, count, |before, part| receiver.read(packet.len, at + before, part));
        self.at += count;
        if self.at == packet.len {
            self.release(packet.len);
        }
        Ok(Some(count))
    }

    fn begin_run(&mut self, context: u16, bytes: u64) -> Result<(), PipeError> {
        if context != RUN {
            return Err(PipeError::Violated { what: "kind of a record", found: context.into(), limit: 1 });
        }
        if bytes == 0 || bytes > self.ring_bytes {
            return Err(PipeError::Violated {
                what: "length of a run",
                found: bytes,
                limit: self.ring_bytes,
            });
        }
        self.run = bytes;
        self.release(0);
        Ok(())
    }

    /// Reads announced bytes of the ring.
    fn read_run(&mut self, into: &mut Scatter, done: usize) -> Result<Option<usize>, PipeError> {
        let want = (into.len() - done).min(self.run as usize);
        let (mut count, mut result) = (0, Ok(()));
        into.each(done, want, |_, part| match self.reader.read(part) {
            Ok(read) => count += read,
            Err(fault) => result = Err(fault),
        });
        result?;
        if count < want {
            // The bytes were published before their record.
            let (found, limit) = (count as u64, want as u64);
            return Err(PipeError::Violated { what: "announced bytes in the ring", found, limit });
        }
        self.run -= count as u64;
        Ok(Some(count))
    }

    #[inline]
    fn release(&mut self, len: usize) {
        self.at = 0;
        self.seen += 1;
        self.receiver.advance(len);
    }

    #[inline]
    fn keep<T>(&mut self, result: Result<T, PipeError>) -> Result<T, PipeError> {
        if let Err(error) = &result {
            self.lost = self.lost.or(Some(*error));
        }
        result
    }

    /// Takes note that the peer is gone.
    pub fn on_lost(&mut self, error: LostError) {
        self.lost = self.lost.or(Some(PipeError::Lost(error)));
    }

    /// Takes note that the peer has ended its end in good order.
    pub fn on_ended(&mut self) {
        self.lost = self.lost.or(Some(PipeError::Ended));
    }

    /// Returns whether all bytes that were put are visible to the peer.
    pub const fn is_sent(&self) -> bool {
        self.unannounced == 0
    }

    /// Returns how bytes arrive, and why.
    pub const fn explain(&self) -> &'static str {
        "both processes have mapped the memory: a short put is one record of a cache line, a longer one goes through \
         a ring that a record announces"
    }
}

#[cfg(test)]
mod tests;

//! The piggyback design (paper 1, section 4.3): data, size and head travel in one write; the tail travels with the
//! traffic of the other direction, and alone only when free space becomes short.
//!
//! A put copies all of its chunks before it writes the first, and a get reads a put when all of its chunks have
//! arrived. The pipelined design removes both delays.
#![forbid(unsafe_code)]

use super::PipeError;
use super::chunk_receiver::ChunkReceiver;
use super::chunk_sender::ChunkSender;
use super::link::PipeLink;
use super::pointers::Pointers;
use crate::payload::{Gather, Scatter};
use crate::port::memory::MemoryPort;

/// Both directions of a pipe of the piggyback design, at one end.
#[derive(Debug, Default)]
pub(super) struct Piggyback {
    pub(super) sender: ChunkSender,
    pub(super) receiver: ChunkReceiver,
}

impl Piggyback {
    /// Puts the list's bytes from its beginning. Returns how many.
    pub(super) fn put<P: MemoryPort>(
        &mut self,
        port: &mut P,
        (link, pointers): (&PipeLink, &mut Pointers),
        from: &mut Gather,
    ) -> Result<usize, PipeError> {
        let (mut done, len) = (0, from.buf().len());
        let mut room = self.sender.room(link, pointers, len)?;
        if room == 0 {
            // The tail may have come with a chunk.
            self.sender.on_tail(self.receiver.look(link, pointers)?)?;
            room = self.sender.room(link, pointers, len)?;
        }
        while done < len && room > 0 {
            let header = (self.receiver.carry_tail(), room > 1);
            done += self.sender.stage(link, header, from, (done, len - done))?;
            room -= 1;
        }
        if done > 0 || !self.sender.is_posted() || !pointers.is_clean() {
            self.sender.post(port, link, pointers)?;
        }
        Ok(done)
    }

    /// Gets bytes into the list, from its beginning. Returns how many.
    pub(super) fn get<P: MemoryPort>(
        &mut self,
        port: &mut P,
        (link, pointers): (&PipeLink, &mut Pointers),
        into: &mut Scatter,
    ) -> Result<usize, PipeError> {
        self.sender.on_tail(self.receiver.look(link, pointers)?)?;
        let (mut done, len) = (0, into.len());
        while done < len && self.receiver.open(link, true)?.is_some() {
            done += self.receiver.copy(link, into, done);
        }
        self.receiver.publish_tail(link, pointers);
        if !pointers.is_clean() || !self.sender.is_posted() {
            self.sender.post(port, link, pointers)?;
        }
        Ok(done)
    }
}

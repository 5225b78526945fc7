//! The pipelined design (paper 1, section 4.4): the piggyback design, but the write of each chunk is posted as soon as
//! the chunk is copied, and the receiver copies each chunk as soon as it has arrived. So the port moves one chunk while
//! the processors at both ends copy others. The chunk size balances the stages.
#![forbid(unsafe_code)]

use super::PipeError;
use super::chunk_receiver::ChunkReceiver;
use super::chunk_sender::ChunkSender;
use super::link::PipeLink;
use super::pointers::Pointers;
use crate::payload::{Gather, Scatter};
use crate::port::memory::MemoryPort;

/// Both directions of a pipe of the pipelined design, at one end.
#[derive(Debug, Default)]
pub(super) struct Pipelined {
    pub(super) sender: ChunkSender,
    pub(super) receiver: ChunkReceiver,
}

impl Pipelined {
    /// Puts `len` bytes of the list from `at` on. Returns how many.
    pub(super) fn put<P: MemoryPort>(
        &mut self,
        port: &mut P,
        (link, pointers): (&PipeLink, &mut Pointers),
        from: &mut Gather,
        (at, len): (usize, usize),
    ) -> Result<usize, PipeError> {
        if self.sender.room(link, pointers, 1)? == 0 {
            // The tail may have come with a chunk.
            self.sender.on_tail(self.receiver.look(link, pointers)?)?;
        }
        let mut done = 0;
        while done < len && self.sender.room(link, pointers, 1)? > 0 {
            let header = (self.receiver.carry_tail(), false);
            done += self.sender.stage(link, header, from, (at + done, len - done))?;
            // The port writes this chunk while the next one is copied.
            self.sender.post(port, link, pointers)?;
        }
        if !self.sender.is_posted() || !pointers.is_clean() {
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
        let (mut done, len) = (0, into.len());
        loop {
            // Chunks that arrive during a copy are found after it.
            self.sender.on_tail(self.receiver.look(link, pointers)?)?;
            if done == len || self.receiver.open(link, false)?.is_none() {
                break;
            }
            done += self.receiver.copy(link, into, done);
            self.receiver.publish_tail(link, pointers);
            if !pointers.is_clean() {
                pointers.push(port, link)?;
            }
        }
        if !pointers.is_clean() || !self.sender.is_posted() {
            self.sender.post(port, link, pointers)?;
        }
        Ok(done)
    }
}

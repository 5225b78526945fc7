//! Sends that cannot leave at once: injected messages, whose bytes are copied, and what follows them.
//!
//! The first such message waits as an operation of the endpoint. Those that follow are kept (`kept.rs`) until it has
//! left. They are then sent as messages that leave at once, which costs less than an operation for each.
//!
//! MPIs take an injected message for sent, and may make no progress for a long time. So an injection waits a little for
//! the messages before it, as long as the peer takes some: a sender does not run far ahead of its receiver.

use std::time::{Duration, Instant};

use nemesia::{Endpoint, PeerStage, Segment};

use super::collect::Batch;
use super::kept::{KeptBody, KeptMessage};
use super::operations::Operation;
use super::{Around, DELIVERED, Port, SEND, Sending};
use crate::entries::Entry;
use crate::failure::Failure;
use crate::object::Errno;

/// How often an injection makes progress before its message is kept: less than 100 us.
const ROUNDS: u32 = 256;
/// How long the first injection for a peer waits for the connection.
const CALL: Duration = Duration::from_millis(100);
/// How long all injections of an endpoint wait for connections that are not made.
const ALL_CALLS: Duration = Duration::from_secs(1);
/// What a copy takes beside its bytes, if it has an operation.
const RECORD: usize = 256;

impl Port {
    /// Sends a message now, or keeps a copy that leaves with later progress. -FI_EAGAIN: there is no room for another
    /// copy.
    #[cold]
    pub(super) fn inject(
        &mut self,
        rank: usize,
        bytes: &[u8],
        it: &Sending,
        around: &mut Around<'_>,
    ) -> Result<(), Errno> {
        self.await_connection(rank, around)?;
        self.await_kept(rank, around);
        let is_first = !self.kept.has(rank);
        let is_plain = it.data.is_none() && it.flags & DELIVERED == 0;
        if is_first
            && is_plain
            && bytes.len() <= self.endpoint.inject_bytes()
            && self.endpoint.in_context(it.kind.context()).inject(rank, it.tag, bytes)?
        {
            self.report_sent(it, bytes.len(), around);
            return Ok(());
        }
        if it.is_silent && (!is_first || self.kept.is_waiting(rank)) {
            let is_kept = self.kept.push(rank, it, KeptBody::Bytes(bytes));
            return if is_kept { Ok(()) } else { Err(Errno::AGAIN) };
        }
        let mut operation = self.sending(it);
        operation.keep_copy(bytes.into());
        if !it.is_silent {
            self.take_room(rank, bytes.len(), &mut operation)?;
            return self.start_send(rank, (std::ptr::null(), bytes.len()), it, operation);
        }
        operation.set_followed(rank);
        self.start_send(rank, (std::ptr::null(), bytes.len()), it, operation)?;
        self.kept.set_waiting(rank, true);
        Ok(())
    }

    /// Makes progress, if the application has room for completions of peers' writes.
    pub(super) fn advance(&mut self, around: &mut Around<'_>) {
        if !self.is_flooded(around.queues) {
            self.endpoint.progress();
        }
    }

    /// Takes room for the copy that an operation has.
    pub(super) fn take_room(
        &mut self,
        rank: usize,
        len: usize,
        operation: &mut Operation,
    ) -> Result<(), Errno> {
        if !self.kept.take(rank, len + RECORD) {
            return Err(Errno::AGAIN);
        }
        operation.set_room(rank, len + RECORD);
        Ok(())
    }

    /// Gives back what the copy of an operation has taken.
    pub(super) fn give_room_back(&mut self, operation: &Operation) {
        if let Some((rank, bytes)) = operation.room() {
            self.kept.give_back(rank, bytes);
        }
    }

    /// Waits a little until there is a connection to a peer, or it fails.
    fn await_connection(&mut self, rank: usize, around: &mut Around<'_>) -> Result<(), Errno> {
        if self.is_reached(rank)? || self.kept.is_silent(rank) {
            return Ok(());
        }
        let (start, limit) = (Instant::now(), CALL.min(ALL_CALLS.saturating_sub(self.waited)));
        while !self.is_reached(rank)? {
            let waited = start.elapsed();
            if waited >= limit || self.is_flooded(around.queues) {
                self.waited += waited;
                self.kept.set_silent(rank, true);
                break;
            }
            self.pause(Duration::from_millis(1));
            self.collect(&mut Batch::default(), around);
        }
        Ok(())
    }

    /// Returns whether there is a connection to a peer, or it is this endpoint.
    fn is_reached(&self, rank: usize) -> Result<bool, Errno> {
        let Some(peer) = self.endpoint.peer_of(rank) else { return Ok(true) };
        // A peer that is lost fails the operation.
        let stage = self.endpoint.stage_of(peer)?;
        Ok(!matches!(stage, PeerStage::Calling(_) | PeerStage::Answering(_)))
    }

    /// Makes progress until no injected message for a peer waits, as long as the peer takes some now and then.
    fn await_kept(&mut self, rank: usize, around: &mut Around<'_>) {
        let rounds = if self.kept.is_silent(rank) { 1 } else { ROUNDS };
        let mut batch = Batch::default();
        for _ in 0..rounds {
            if !self.kept.is_waiting(rank) && !self.kept.has(rank) {
                return;
            }
            self.collect(&mut batch, around);
        }
        self.kept.set_silent(rank, true);
    }

    /// Gives back what an operation that has ended has taken, and sends the messages that have waited for its end.
    #[cold]
    pub(super) fn settle(&mut self, operation: &Operation, error: Option<Failure>, around: &mut Around<'_>) {
        self.give_room_back(operation);
        let Some(rank) = operation.followed() else { return };
        self.kept.set_waiting(rank, false);
        match error {
            None => {
                self.kept.set_silent(rank, false);
                self.send_kept(rank, around);
            }
            Some(error) => while self.fail_kept(rank, error, around) {},
        }
    }

    /// Tries again to send messages that could not become operations.
    pub(super) fn attend_kept(&mut self, around: &mut Around<'_>) {
        for rank in self.kept.take_stalled() {
            self.send_kept(rank, around);
        }
    }

    /// Sends the messages that are kept for a peer, until one must wait in the endpoint. Its end leads here again.
    fn send_kept(&mut self, rank: usize, around: &mut Around<'_>) {
        while let Some(KeptMessage { it, body }) = self.kept.first(rank) {
            if let KeptBody::Bytes(bytes) = body {
                let len = bytes.len();
                if it.flags & DELIVERED == 0 && sends_now(&mut self.endpoint, rank, bytes, &it) {
                    self.kept.pop(rank);
                    self.report_sent(&it, len, around);
                    continue;
                }
            }
            match self.start_kept(rank) {
                Ok(true) => return self.kept.set_waiting(rank, true),
                Ok(false) => {}
                Err(Errno::AGAIN) => return self.kept.set_stalled(rank),
                Err(error) => _ = self.fail_kept(rank, error.into(), around),
            }
        }
    }

    /// Makes the oldest message that is kept for a peer an operation of the endpoint. Returns whether the messages
    /// after it must wait for its end.
    fn start_kept(&mut self, rank: usize) -> Result<bool, Errno> {
        let Some(KeptMessage { it, body }) = self.kept.first(rank) else { return Ok(false) };
        let is_copied = match body {
            KeptBody::Bytes(bytes) => {
                let mut operation = self.sending(&it);
                operation.keep_copy(bytes.into());
                operation.set_followed(rank);
                let number = self.operations.insert(operation);
                let started = self.start_number(number, rank, (std::ptr::null(), 0), &it);
                started.inspect_err(|_| drop(self.operations.remove(number)))?;
                true
            }
            KeptBody::Operation(number) => {
                self.start_number(number, rank, (std::ptr::null(), 0), &it)?;
                false
            }
        };
        self.kept.pop(rank);
        Ok(is_copied)
    }

    /// Ends the oldest message that is kept for a peer with an error. False: there is none.
    fn fail_kept(&mut self, rank: usize, error: Failure, around: &mut Around<'_>) -> bool {
        let Some(KeptMessage { it, body }) = self.kept.first(rank) else { return false };
        let operation = match body {
            KeptBody::Bytes(_) => Some(self.sending(&it)),
            KeptBody::Operation(number) => self.operations.remove(number),
        };
        self.kept.pop(rank);
        let Some(operation) = operation else { return true };
        self.give_room_back(&operation);
        if !self.counters.is_empty() {
            self.count(SEND, false);
        }
        let (context, flags, error) = (operation.context, operation.flags, Some((error, 0)));
        self.write(&Entry { context, flags, source: u64::MAX, error, ..Entry::default() }, true, around);
        true
    }

    /// Keeps a send behind the messages that are kept for its peer.
    pub(super) fn keep_send(
        &mut self,
        rank: usize,
        (base, len): (*const u8, usize),
        it: &Sending,
        mut operation: Operation,
    ) -> Result<(), Errno> {
        if operation.list().is_empty() && operation.copy().is_none() {
            operation.keep_list([Segment { base: base.cast_mut(), len }].into());
        }
        let number = self.operations.insert(operation);
        if self.kept.push(rank, it, KeptBody::Operation(number)) {
            return Ok(());
        }
        if let Some(operation) = self.operations.remove(number) {
            self.give_room_back(&operation);
        }
        Err(Errno::NO_MEMORY)
    }

    /// Makes all messages that are kept operations of the endpoint, which sends them when it is closed.
    pub(super) fn start_all_kept(&mut self) {
        for rank in 0..self.kept.ranks() {
            // One that cannot be started is lost, as one that does not leave in time.
            while self.kept.has(rank) && self.start_kept(rank).is_ok() {}
        }
    }
}

/// Sends a message if it can leave at once. False: nothing was sent. The end of the message must not be that of its
/// receive (FI_DELIVERY_COMPLETE).
#[inline(always)]
pub(super) fn sends_now(endpoint: &mut Endpoint, rank: usize, bytes: &[u8], it: &Sending) -> bool {
    let context = endpoint.in_context(it.kind.context());
    match it.data {
        None => context.send_now(rank, it.tag, bytes),
        Some(data) => context.send_immediate_now(rank, it.tag, bytes, data),
    }
}

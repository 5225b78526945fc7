//! Completions of the device.

use std::collections::{HashMap, VecDeque};

use nemesia_core::port::memory::{Completion, Connection, LostError, WorkError, WorkOutcome};
use rdma_core_sys as raw;

use super::link::VerbsLinks;
use super::tag::{Queue, WorkTag};
use super::{SharedDevice, VerbsPort};
use crate::cm::CmStage;
use crate::verbs::code::{lost_error, work_error};
use crate::verbs::completion::{BATCH, Polled};

impl VerbsPort {
    #[inline]
    pub(super) fn poll_queue(&mut self, into: &mut [Completion]) -> usize {
        let mut count = self.hand_out(into);
        while count < into.len() {
            let taken = self.take(into.len() - count);
            if !self.answered.is_empty() {
                self.release_answered();
            }
            if !self.suspects.is_empty() {
                self.end_suspects();
            }
            count += self.hand_out(&mut into[count..]);
            if taken == 0 {
                break;
            }
        }
        count
    }

    /// Returns completions that were read from the queue before.
    #[inline]
    fn hand_out(&mut self, into: &mut [Completion]) -> usize {
        let mut count = 0;
        while count < into.len() {
            let Some(completion) = self.pending.pop_front() else { break };
            if let Some(link) = self.links.get_mut(completion.connection) {
                link.unpolled = link.unpolled.saturating_sub(1);
            }
            into[count] = completion;
            count += 1;
        }
        count
    }

    /// Takes completions from the device and keeps them for the caller. Returns their number.
    #[inline]
    fn take(&mut self, most: usize) -> usize {
        let Self { queue, links, shared, by_pair, pending, suspects, answered, .. } = self;
        let mut taking = Taking { links, shared, by_pair, pending, suspects, answered };
        match queue.poll(most, |polled| taking.translate(&polled)) {
            Ok(count) => count,
            Err(error) => {
                self.fail_port(error.code().unsigned_abs());
                0
            }
        }
    }

    /// Ends the connections with a failed work request.
    pub(super) fn end_suspects(&mut self) {
        // Device and connection manager may have reported the reason.
        self.hear_device();
        self.hear_manager();
        self.hear_datagrams();
        for index in std::mem::take(&mut self.suspects) {
            let Some((connection, link)) = self.links.at(index) else { continue };
            // A connection that is being made belongs to the manager: the manager or the deadline decides its
            // outcome.
            if link.stage == CmStage::Ready {
                let cause = link.cause.unwrap_or(LostError::Closed);
                self.lose(connection, cause);
            }
        }
    }

    /// Takes all completions and keeps them for the caller.
    pub(super) fn sweep(&mut self) {
        // All requests in progress fit the queue, and no new ones can be posted meanwhile.
        for _ in 0..=self.queue.entries() as usize / BATCH {
            if self.take(BATCH) == 0 {
                break;
            }
        }
    }

    /// Destroys the queue pair of a connection. Unreported requests are flushed.
    pub(super) fn destroy_pair(&mut self, connection: Connection) {
        // Reported completions come first: some devices forget them with the queue pair.
        self.sweep();
        let Some(link) = self.links.get_mut(connection) else { return };
        if let Some(pair) = link.pair.take() {
            let number = pair.number();
            drop(pair);
            // A receive of the shared queue may have completed in between.
            self.sweep();
            self.by_pair.remove(&number);
        }
        let Some(link) = self.links.get_mut(connection) else { return };
        link.early.clear();
        link.held.clear();
        let (unpolled, pending) = (&mut link.unpolled, &mut self.pending);
        let mut keep = |id, outcome| {
            *unpolled += 1;
            pending.push_back(Completion { id, connection, outcome });
        };
        link.sends.flush(&mut keep);
        link.receives.flush(keep);
    }
}

/// The state that translates completions.
struct Taking<'a> {
    links: &'a mut VerbsLinks,
    shared: &'a mut Option<SharedDevice>,
    by_pair: &'a HashMap<u32, u32>,
    pending: &'a mut VecDeque<Completion>,
    suspects: &'a mut Vec<u32>,
    answered: &'a mut Vec<u32>,
}

impl Taking<'_> {
    /// Translates a completion of the device for the caller; `None` if its connection or request has ended.
    #[inline]
    fn translate(&mut self, polled: &Polled) {
        let tag = WorkTag::decode(polled.id);
        let failed = (polled.status != raw::IBV_WC_SUCCESS).then(|| work_error(polled.status));
        let outcome = match (failed, tag.queue) {
            (Some(error), _) => WorkOutcome::Failed(error),
            (None, Queue::Send | Queue::Probe) => WorkOutcome::Done,
            (None, Queue::Receive | Queue::Shared) => received(polled),
        };
        let pending = &mut *self.pending;
        let found = match tag.queue {
            Queue::Shared => {
                let Some(id) = self.shared.as_mut().and_then(|shared| shared.posted.take(tag.sequence))
                else {
                    return;
                };
                let link = self.by_pair.get(&polled.pair).and_then(|index| self.links.at(*index));
                // The connection may be gone; its receive has come back all the same.
                let connection =
                    link.as_ref().map_or(Completion::EMPTY.connection, |(connection, _)| *connection);
                pending.push_back(Completion { id, connection, outcome });
                link.map(|(connection, link)| {
                    link.unpolled += 1;
                    (connection, link)
                })
            }
            Queue::Probe => {
                let mut link = self.links.tagged(tag);
                if let Some((_, link)) = &mut link {
                    link.probed = false;
                }
                link
            }
            Queue::Send | Queue::Receive => {
                let Some((connection, link)) = self.links.tagged(tag) else { return };
                let ring = if tag.queue == Queue::Send { &mut link.sends } else { &mut link.receives };
                let unpolled = &mut link.unpolled;
                let is_here = ring.complete(tag.sequence, outcome, |id, outcome| {
                    *unpolled += 1;
                    pending.push_back(Completion { id, connection, outcome });
                });
                if is_here && !link.held.is_empty() {
                    self.answered.push(connection.index);
                }
                is_here.then_some((connection, link))
            }
        };
        if let (Some(error), Some((connection, link))) = (failed, found) {
            if error != WorkError::Flushed {
                link.cause.get_or_insert(lost_error(error));
            }
            self.suspects.push(connection.index);
        }
    }
}

#[inline]
fn received(polled: &Polled) -> WorkOutcome {
    let written = polled.opcode == raw::IBV_WC_RECV_RDMA_WITH_IMM;
    WorkOutcome::Received { len: polled.len, immediate: polled.immediate, written }
}

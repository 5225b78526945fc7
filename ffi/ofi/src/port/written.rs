//! Writes with data, which the target reports in a completion of its own.
//!
//! A put of Nemesia carries no data. When the target has executed a write, the origin sends the data in an active
//! message. The write is complete when this message has left.
//!
//! The target makes no progress while so many of these completions wait to be read that a peer could fill its memory.
//! Then peers are held back, as a completion queue that is full holds them back (FI_RM_ENABLED).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nemesia::{Endpoint, Error};

use super::{Around, DATA, Port};
use crate::bindings as fi;
use crate::entries::{Entry, Queue};
use crate::object::Errno;
use crate::table::Table;

/// The number of the handler.
const HANDLER: u16 = 0;
/// So many completions of peers' writes may wait to be read before this process makes no more progress, or as many as
/// the application has asked for with its queue.
pub(crate) const LEAST_ROOM: usize = 16384;
/// How the target reports a write.
const FLAGS: u64 = fi::FI_RMA as u64 | fi::FI_REMOTE_WRITE as u64 | DATA;

/// The data of writes of peers, which the application has not read.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    is_filled: AtomicBool,
    written: Mutex<Vec<Written>>,
}

/// A write of a peer.
#[derive(Clone, Copy, Debug)]
struct Written {
    from: usize,
    data: u64,
    len: u64,
}

impl Inbox {
    /// Makes the inbox of an endpoint.
    pub(super) fn of(endpoint: &mut Endpoint) -> Arc<Self> {
        let inbox = Arc::<Self>::default();
        let filled = Arc::clone(&inbox);
        endpoint.set_handler(HANDLER, move |message| {
            // A message of another length is none of ours.
            let Ok(header) = <[u8; 16]>::try_from(message.header()) else { return };
            let [data, len] = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|i| header[at + i])));
            let mut written = filled.written.lock().unwrap_or_else(PoisonError::into_inner);
            written.push(Written { from: message.from(), data, len });
            filled.is_filled.store(true, Ordering::Relaxed);
        });
        inbox
    }

    /// Returns whether there is something. The handler runs on the endpoint's thread.
    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Relaxed)
    }

    fn take(&self) -> Vec<Written> {
        self.is_filled.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.written.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Port {
    /// Reports the writes of peers that came with data, and sends the data of own writes that could not leave before.
    #[inline]
    pub(super) fn attend_written(&mut self, around: &mut Around<'_>) {
        if self.inbox.is_filled() {
            self.report_written(around);
        }
        if !self.unsent.is_empty() {
            for number in std::mem::take(&mut self.unsent) {
                self.send_notice(number, around);
            }
        }
    }

    #[cold]
    fn report_written(&mut self, around: &mut Around<'_>) {
        for Written { from, data, len } in self.inbox.take() {
            let source = self.source_of(from, around);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            self.count(fi::FI_REMOTE_WRITE.into(), true);
            let Some(bound) = self.receive_queue else { continue };
            let Some(queue) = around.queues.get(bound.queue) else { continue };
            queue.entries.push_back(Entry { flags: FLAGS, len, data, source, ..Entry::default() });
            queue.written += 1;
            self.has_written = true;
        }
    }

    /// Returns whether the application must read completions before there may be more.
    #[inline]
    pub(super) fn is_flooded(&self, queues: &mut Table<Queue>) -> bool {
        let bound = self.receive_queue.filter(|_| self.has_written);
        bound
            .and_then(|bound| queues.get(bound.queue))
            .is_some_and(|queue| queue.written >= queue.most_written)
    }

    /// Sends the data of a write that the target has executed.
    pub(super) fn send_notice(&mut self, number: u64, around: &mut Around<'_>) {
        let Some(operation) = self.operations.get(number) else { return };
        let Some(notice) = operation.take_notice() else { return };
        let header: Box<[u8]> = [notice.data.to_le_bytes(), notice.len.to_le_bytes()].concat().into();
        let bytes = operation.keep_copy(header);
        let sent = if self.endpoint.peer_of(notice.rank) == notice.peer {
            let endpoint = self.endpoint.with_completion(number);
            // SAFETY: the operation keeps the bytes until the completion was taken.
            unsafe { endpoint.isend_active(notice.rank, HANDLER, bytes, &[]) }.map(|_| ())
        } else {
            Err(Error::Cancelled)
        };
        let Some(operation) = self.operations.get(number) else { return };
        match sent {
            Ok(()) => {}
            Err(Error::Requests { .. }) => {
                operation.keep_notice(notice);
                self.unsent.push_back(number);
            }
            Err(Error::Cancelled) => self.end_part(number, Some(Errno::ENDED.into()), around),
            Err(error) => {
                let failure = self.failure_of(number, &Err(error), around);
                self.end_part(number, failure, around);
            }
        }
    }
}

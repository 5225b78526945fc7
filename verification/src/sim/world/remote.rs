//! Regions, operations on them, and active messages.

use std::collections::BTreeMap;

use nemesia_core::engine::StartError;
use nemesia_core::engine::active::{ActiveMessage, Handlers, NoMemory};
use nemesia_core::engine::rma::{Access, Addressing, CompleteAt, RegionId, RemoteKey, Target};
pub(crate) use nemesia_core::engine::rma::{Comparison, Datatype, Reduction, combine, swap};
use nemesia_core::payload::{Exposed, RecvBuf, SendBuf};

use super::{RequestHandle, World, WorldPort};
use crate::desk::ReplyDesk;
use crate::memory::{Loan, Place};
use crate::shape::{HANDLERS, region_bytes};

/// An active message that was handled.
#[derive(Clone, Debug)]
pub(crate) struct Handled {
    pub(crate) from: u32,
    pub(crate) handler: u16,
    pub(crate) header: usize,
    pub(crate) bytes: Vec<u8>,
}

/// Handles active messages by recording them.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// The messages by sender.
    rooms: BTreeMap<u32, Vec<u8>>,
    handled: Vec<Handled>,
    replies: ReplyDesk,
}

impl Handlers for Desk {
    fn room(&mut self, message: &ActiveMessage) -> Result<Option<&mut [u8]>, NoMemory> {
        if message.handler >= HANDLERS {
            return Ok(None);
        }
        let room = self.rooms.entry(message.from).or_default();
        room.resize(message.len, 0);
        Ok(Some(room))
    }

    fn run(&mut self, message: &ActiveMessage) {
        let ActiveMessage { from, handler, header_bytes: header, len } = *message;
        let mut bytes = self.rooms.remove(&from).unwrap_or_default();
        bytes.truncate(len);
        self.handled.push(Handled { from, handler, header, bytes });
        self.replies.answer(from);
    }

    fn drop_parts(&mut self, from: u32) {
        self.rooms.remove(&from);
    }
}

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Put {
        notify: bool,
    },
    Get,
    Accumulate(Datatype, Reduction),
    Fetch(Datatype, Reduction, u64),
    /// The expected and the new value.
    CompareSwap(Datatype, Comparison, [u64; 2]),
    /// An array of operands whose former values come back.
    FetchAccumulate(Datatype, Reduction),
    Flush,
    /// A message for a handler, with a header of so many bytes.
    Active {
        handler: u16,
        header: usize,
    },
}

impl Verb {
    /// Returns whether only its origin sees its effect and its time.
    pub(crate) const fn concerns_one_origin(self) -> bool {
        matches!(self, Verb::Put { notify: false } | Verb::Get | Verb::Flush | Verb::Active { .. })
    }

    /// Returns whether it is an active message with a handler.
    pub(crate) fn is_handled(self) -> bool {
        matches!(self, Verb::Active { handler, .. } if handler < HANDLERS)
    }
}

/// The target, the size and the kind of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) to: u32,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) key: u64,
    pub(crate) verb: Verb,
    /// Whether a put or an accumulate is complete only when it is executed.
    pub(crate) delivered: bool,
}

/// The region that a rank exposes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exposure {
    id: RegionId,
    key: RemoteKey,
    loan: Loan,
}

impl<P: WorldPort> World<P> {
    /// Exposes memory of a rank to the others.
    pub(super) fn expose(&mut self, rank: u32) -> Option<Exposure> {
        let len = region_bytes(self.engines.len() as u32);
        let (loan, place) = self.fabric().memory.lend_region(rank, len);
        let Place::Run(base) = place else { unreachable!("a region is one run") };
        // SAFETY: the memory is lent until the engine is gone; it is read only between calls of the engines.
        let memory = unsafe { Exposed::from_raw(base, len) };
        // Some ranks are addressed by offset, the others by address.
        let addressing = if rank.is_multiple_of(2) { Addressing::Offset } else { Addressing::Address };
        let engine = self.engine(rank);
        let id = engine.expose(memory, Access::ReadWrite, u64::from(rank) + 77, addressing).ok()?;
        Some(Exposure { id, key: engine.remote_key(id)?, loan })
    }

    /// Starts an operation on another rank's region, or sends an active message.
    pub(crate) fn start(&mut self, rank: u32, order: &Order) -> Result<RequestHandle, StartError> {
        let Order { to, offset, len, key, verb, delivered } = *order;
        let complete = if delivered { CompleteAt::Target } else { CompleteAt::Origin };
        let region = self.exposed[to as usize].key;
        let target = Target { key: &region, offset: region.base + offset as u64 };
        let (loan, started) = match verb {
            Verb::Put { .. } | Verb::Accumulate(..) => {
                let (loan, buf) = self.outgoing(rank, key, len, &[]);
                let engine = self.engine(rank);
                let started = match verb {
                    Verb::Accumulate(datatype, reduction) => {
                        engine.accumulate(&target, (datatype, reduction), buf, complete)
                    }
                    _ => engine.put(&target, buf, verb == Verb::Put { notify: true }, complete),
                };
                (loan, started)
            }
            Verb::FetchAccumulate(datatype, reduction) => {
                // The operands, and in another segment behind them the room for the former values.
                let (loan, [operands, room]) = self.parts(rank, key, 2 * len, len);
                let room = std::ptr::with_exposed_provenance_mut(room.address() as usize);
                // SAFETY: lent until the loan ends, and nothing else uses it.
                let mut old = unsafe { RecvBuf::from_raw(room, len) };
                let engine = self.engine(rank);
                (loan, engine.fetch_accumulate(&target, datatype, reduction, operands, &mut old))
            }
            Verb::Active { handler, header } => {
                let (loan, [front, back]) = self.parts(rank, key, len, header);
                (loan, self.engine(rank).send_active(to, handler, front, back))
            }
            Verb::Get | Verb::Fetch(..) | Verb::CompareSwap(..) | Verb::Flush => {
                let (loan, mut buf) = self.room_in(rank, len, &[]);
                let engine = self.engine(rank);
                let started = match verb {
                    Verb::Fetch(datatype, reduction, operand) => {
                        engine.fetch(&target, datatype, reduction, operand, &mut buf)
                    }
                    Verb::CompareSwap(datatype, comparison, values) => {
                        engine.compare_swap(&target, (datatype, comparison), values, &mut buf)
                    }
                    Verb::Flush => engine.flush(to),
                    _ => engine.get(&target, &mut buf),
                };
                (loan, started)
            }
        };
        self.handle(rank, loan, started)
    }

    /// Returns a buffer in two separate segments, the first `first` bytes long.
    fn parts(&mut self, rank: u32, key: u64, len: usize, first: usize) -> (Loan, [SendBuf; 2]) {
        let (loan, place) = self.fabric().memory.lend_message(rank, key, len, &[first]);
        let Place::List(list, 2) = place else { unreachable!("one cut makes two runs") };
        let part = |at: usize| {
            // SAFETY: there are two segments, which live, with what they name, until the loan ends.
            let run = unsafe { list.add(at).read() };
            // SAFETY: the same.
            unsafe { SendBuf::from_raw(run.base, run.len) }
        };
        (loan, [part(0), part(1)])
    }

    pub(crate) fn fence(&mut self, rank: u32, to: u32) -> Result<(), StartError> {
        self.engine(rank).fence(to)
    }

    pub(crate) fn is_unflushed(&mut self, rank: u32, to: u32) -> bool {
        self.engine(rank).is_unflushed(to)
    }

    /// A rank is about to leave.
    pub(crate) fn settle_accounts(&mut self, rank: u32) {
        self.engine(rank).settle_accounts();
    }

    pub(crate) fn await_notifications(&mut self, rank: u32, count: u64) -> Result<RequestHandle, StartError> {
        let Exposure { id, .. } = self.exposed[rank as usize];
        let (loan, _) = self.fabric().memory.lend_room(rank, 0, &[]);
        let started = self.engine(rank).await_notifications(id, count);
        self.handle(rank, loan, started)
    }

    /// Returns the active messages that a rank has handled since the last query.
    pub(crate) fn handled(&mut self, rank: u32) -> Vec<Handled> {
        std::mem::take(&mut self.engine(rank).handlers_mut().handled)
    }

    /// The places for the replies of a rank's handlers.
    pub(crate) fn replies(&mut self, rank: u32) -> &mut ReplyDesk {
        &mut self.engine(rank).handlers_mut().replies
    }

    pub(crate) fn unhandled(&mut self, rank: u32) -> u64 {
        self.engine(rank).unhandled()
    }

    /// Returns the contents of a rank's region, and its notifications.
    pub(crate) fn region(&mut self, rank: u32) -> (Vec<u8>, Option<u64>) {
        let Exposure { id, loan, .. } = self.exposed[rank as usize];
        let notified = self.engine(rank).notifications(id);
        (self.fabric().memory.copy(loan), notified)
    }
}

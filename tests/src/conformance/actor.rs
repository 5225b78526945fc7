//! The interface between the scripts of the suite and a world: one rank, and what it can do.

use std::future::Future;
use std::pin::Pin;

use nemesia_core::engine::rma::{Access, Comparison, CompleteAt, Datatype, Reduction, Refusal, RemoteKey};
use nemesia_core::engine::{Failure, SendOptions, Status};
use nemesia_core::matching::Pattern;

use super::buffer::Buffer;
use crate::memory_port::Verdict;

/// The script of a rank, under way.
pub type Script<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// The bytes of a remote key.
pub type KeyBytes = [u8; 32];

/// How memory is exposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExposureKind {
    /// Peers may map it, where the world can. Its key is random.
    Mapped,
    /// Peers use it in packets. Its key is random.
    Packets,
    /// Peers use it in packets, by address. Its key is random.
    ByAddress,
    /// Peers use it in packets. This is its key.
    Chosen(u64),
}

/// An operation of an actor that is under way or complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OperationId(pub(super) u64);

/// A message that a matched probe has removed from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(pub(super) u64);

/// A region of an actor that peers may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExposureId(pub(super) usize);

/// The reason why an operation could not start, or did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The peer has failed.
    PeerFailed {
        /// Its rank.
        peer: u32,
        /// The reason.
        failure: Failure,
    },
    /// The message was longer than its buffer.
    Truncated {
        /// Sender, tag, and the bytes received.
        status: Status,
        /// The bytes of the message.
        message: u64,
    },
    /// The receive was withdrawn.
    Cancelled,
    /// One-sided operations were refused.
    Refused {
        /// The reason for the first.
        refusal: Refusal,
        /// Their number.
        count: u64,
    },
    /// Any other error, in words.
    Other(String),
}

/// The result of an operation.
pub type Ended = Result<Status, Trouble>;

/// A one-sided operation.
#[derive(Clone, Copy, Debug)]
pub enum RemoteVerb {
    /// Writes the buffer.
    Put {
        /// Whether the target counts a notification.
        notify: bool,
        /// When it is complete.
        complete: CompleteAt,
    },
    /// Fills the buffer.
    Get,
    /// Combines the operands in the buffer into the values.
    Accumulate(Datatype, Reduction, CompleteAt),
    /// Combines one operand into one value, and returns the old value in the buffer.
    Fetch(Datatype, Reduction, u64),
    /// Combines the operands in the buffer into the values, and returns the old values.
    FetchAccumulate(Datatype, Reduction),
    /// Replaces a value if the comparison of the first of these with it holds by the second, and returns the old
    /// value in the buffer.
    CompareSwap(Datatype, Comparison, [u64; 2]),
}

/// An active message that a handler has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandledMessage {
    /// The sender.
    pub from: u32,
    /// The number of the handler.
    pub handler: u16,
    /// The header.
    pub header: Vec<u8>,
    /// The payload.
    pub payload: Vec<u8>,
}

/// What a world can do besides exchanging messages. What it cannot do is reported as a skip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// A rank can die, and the others notice.
    pub deaths: bool,
    /// A rank that has closed its endpoint is distinguished from one that died ([`Failure::Finished`]).
    pub endings: bool,
    /// A rank that died is started again.
    pub restarts: bool,
}

/// The numbers of the handlers that every actor has.
pub const HANDLERS: u16 = 3;

/// One rank of a world. Calls never wait; [`Actor::turn`] lets the other ranks act.
///
/// An operation owns its buffer until it is complete, so scripts need no unsafe code.
pub trait Actor {
    /// Returns the rank.
    fn rank(&self) -> u32;

    /// Returns the number of ranks.
    fn size(&self) -> u32;

    /// Returns what the world can do.
    fn abilities(&self) -> Abilities;

    /// Makes progress once.
    fn progress(&mut self);

    /// Makes progress, and lets other ranks act.
    fn turn(&mut self) -> impl Future<Output = ()>;

    /// Starts a send of a message in one run or in a list.
    ///
    /// # Errors
    /// Nothing was started.
    fn send_with(
        &mut self,
        to: u32,
        context: u16,
        tag: u64,
        message: Buffer,
        options: SendOptions,
    ) -> Result<OperationId, Trouble>;

    /// Starts a send without immediate data; see [`Actor::send_with`].
    ///
    /// # Errors
    /// Nothing was started.
    fn send(
        &mut self,
        to: u32,
        context: u16,
        tag: u64,
        message: Buffer,
        synchronous: bool,
    ) -> Result<OperationId, Trouble> {
        self.send_with(to, context, tag, message, SendOptions { immediate: None, synchronous })
    }

    /// Starts a receive.
    ///
    /// # Errors
    /// Nothing was started.
    fn receive(&mut self, pattern: Pattern, room: Buffer) -> Result<OperationId, Trouble>;

    /// Returns the result and the buffer of a complete operation, once.
    fn test(&mut self, operation: OperationId) -> Option<(Ended, Buffer)>;

    /// Withdraws a receive. Returns whether no message had matched it.
    fn cancel(&mut self, operation: OperationId) -> bool;

    /// Returns the first message in the queue that matches.
    fn probe(&mut self, pattern: &Pattern) -> Option<Status>;

    /// Removes the first message that matches from the queue.
    ///
    /// # Errors
    /// Nothing was removed.
    fn claim(&mut self, pattern: &Pattern) -> Result<Option<(ClaimId, Status)>, Trouble>;

    /// Receives a message that was removed from the queue, into one run.
    ///
    /// # Errors
    /// The claim is not valid.
    fn receive_claimed(&mut self, claim: ClaimId, room: Buffer) -> Result<OperationId, Trouble>;

    /// Exposes new zeroed memory.
    ///
    /// # Errors
    /// No region could be made.
    fn expose(&mut self, len: usize, access: Access, kind: ExposureKind) -> Result<ExposureId, Trouble>;

    /// Ends an exposure.
    ///
    /// # Errors
    /// There is no such region.
    fn unexpose(&mut self, region: ExposureId) -> Result<(), Trouble>;

    /// Returns the key of a region.
    ///
    /// # Errors
    /// There is no such region.
    fn key(&mut self, region: ExposureId) -> Result<KeyBytes, Trouble>;

    /// Returns the bytes of a region from `at` on.
    ///
    /// # Errors
    /// They do not lie in a region.
    fn look(&mut self, region: ExposureId, at: usize, len: usize) -> Result<Vec<u8>, Trouble>;

    /// Returns the number of notifications that a region has had.
    ///
    /// # Errors
    /// There is no such region.
    fn notifications(&mut self, region: ExposureId) -> Result<u64, Trouble>;

    /// Starts a one-sided operation at an offset from the first byte of the region of this key.
    ///
    /// # Errors
    /// Nothing was started.
    fn remote(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        verb: RemoteVerb,
        buffer: Buffer,
    ) -> Result<OperationId, Trouble>;

    /// Starts a flush of the one-sided operations with a rank.
    ///
    /// # Errors
    /// Nothing was started.
    fn flush(&mut self, rank: u32) -> Result<OperationId, Trouble>;

    /// Orders later one-sided operations with a rank after earlier ones.
    ///
    /// # Errors
    /// The rank has failed.
    fn fence(&mut self, rank: u32) -> Result<(), Trouble>;

    /// Starts an active message.
    ///
    /// # Errors
    /// Nothing was started.
    fn send_active(
        &mut self,
        to: u32,
        handler: u16,
        header: Buffer,
        payload: Buffer,
    ) -> Result<OperationId, Trouble>;

    /// Returns the most bytes of an active message.
    fn active_bytes(&self) -> usize;

    /// Returns the active messages that have arrived since the last call.
    fn handled(&mut self) -> Vec<HandledMessage>;

    /// Returns why a rank has failed, if it has.
    fn failure(&self, rank: u32) -> Option<Failure>;

    /// Acknowledges the failures so far.
    fn acknowledge(&mut self);

    /// Returns how often this rank was started again.
    fn incarnation(&self) -> u64 {
        0
    }

    /// Readmits a rank that was started again. Returns false if its new process has not come yet.
    ///
    /// # Errors
    /// The rank cannot be readmitted.
    fn readmit(&mut self, rank: u32) -> Result<bool, Trouble> {
        Err(Trouble::Other(format!("rank {rank} cannot come back in this world")))
    }

    /// Ends this rank as a crash of its process does. Never returns.
    fn die(&mut self) -> impl Future<Output = Verdict>;

    /// Closes this rank in order.
    fn close(self) -> impl Future<Output = Verdict>;
}

//! Transfers between the buffers of two processes.

use nemesia_core::port::Exposure;
use nemesia_core::wire::rendezvous::Descriptor;

use super::node::Land;

/// How the bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferKind {
    Get,
    /// The report is a packet.
    Put,
    /// The last put is the report.
    PutNotify,
}

/// A buffer of one side of a transfer.
#[derive(Debug)]
pub(super) struct TransferSide {
    pub(super) rank: usize,
    pub(super) land: Land,
    /// Whether the process uses the buffer for something else again, or is gone.
    pub(super) is_over: bool,
}

/// A transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) tag: u64,
    pub(super) kind: TransferKind,
    pub(super) sender: TransferSide,
    pub(super) receiver: TransferSide,
    pub(super) bytes: Vec<u8>,
    pub(super) described: Descriptor,
    pub(super) exposure: Option<Exposure>,
    /// Whether the access has begun, and has ended.
    pub(super) begun: bool,
    pub(super) ended: bool,
    /// The bytes of the puts before the last one, which is not sent yet.
    pub(super) halfway: Option<usize>,
    /// The accesses under way.
    pub(super) under_way: u32,
    /// Whether the report has been sent.
    pub(super) reported: bool,
}

/// A buffer that its owner has got back, and its present content.
#[derive(Debug)]
pub(super) struct ReturnedBuffer {
    pub(super) rank: usize,
    pub(super) land: Land,
    pub(super) bytes: Vec<u8>,
}

/// The accesses of a world.
#[derive(Debug, Default)]
pub(super) struct WorldAccesses {
    pub(super) transfers: Vec<Transfer>,
    pub(super) returned: Vec<ReturnedBuffer>,
    pub(super) begun: u64,
    /// The processes that have sent a wrong report, to whom, and of which transfer.
    pub(super) liars: Vec<(usize, usize, u64)>,
}

impl Transfer {
    /// Returns the bytes of the puts before the last one, of a transfer whose last put is the report.
    pub(super) const fn half(&self) -> usize {
        self.bytes.len() / 2
    }

    pub(super) fn sides(&mut self) -> [&mut TransferSide; 2] {
        [&mut self.sender, &mut self.receiver]
    }

    pub(super) fn is_between(&self, one: usize, other: usize) -> bool {
        let ranks = (self.sender.rank, self.receiver.rank);
        ranks == (one, other) || ranks == (other, one)
    }

    /// The process that begins the access, and the other one, which has exposed its buffer.
    pub(super) const fn ranks(&self) -> (usize, usize) {
        match self.kind {
            TransferKind::Get => (self.receiver.rank, self.sender.rank),
            TransferKind::Put | TransferKind::PutNotify => (self.sender.rank, self.receiver.rank),
        }
    }
}

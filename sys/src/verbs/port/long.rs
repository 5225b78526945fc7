//! Writes and reads that are longer than one work request of the device.
//!
//! They are posted as several requests, one behind the other. A queue pair executes them in order: when the
//! last has completed, all have. A failed one ends the queue pair, and with it the requests behind it. The
//! [`Ring`](super::ring::Ring) records which requests belong together, and reports them once.
//!
//! Soft `RoCE` gets reads one by one (as if each had a fence, see [`held`](super::held)). During a read of 8
//! MiB, rxe receives no sign that the peer is alive. If several are in progress and the processor is busy, rxe
//! fails the last of them (`rxe_completer`, Linux 6.1: only an acknowledgement resets the count of retries, and
//! none arrives in the middle of an answer).

use nemesia_core::port::memory::{Facts, LostError, PostError, Work, WorkError, WorkOutcome};
use rdma_core_sys as raw;

use super::VerbsPort;
use super::regions::VerbsParts;
use super::ring::PostedWork;
use crate::cm::CmStage;

/// The position of a work request in its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The whole operation.
    Whole,
    /// A part that is followed by another.
    More,
    /// The last part.
    Last,
}

impl Share {
    /// Returns whether the device must report it. The last part of a quiet operation is reported to us: it
    /// frees the places of all parts.
    #[inline]
    pub(super) const fn is_signalled(self, quiet: bool) -> bool {
        match self {
            Self::Whole => !quiet,
            Self::More => false,
            Self::Last => true,
        }
    }
}

impl VerbsPort {
    /// Posts an operation that is longer than one work request.
    #[cold]
    pub(super) fn post_long(
        &mut self,
        work: Work,
        wr: &raw::ibv_send_wr,
        parts: &VerbsParts,
    ) -> Result<(), PostError> {
        let Facts { message_bytes: most, transfer_bytes, send_depth, .. } = self.facts;
        let is_message = matches!(wr.opcode, raw::IBV_WR_SEND | raw::IBV_WR_SEND_WITH_IMM);
        let limit = if is_message { most } else { transfer_bytes };
        if parts.len > u64::from(limit) {
            return Err(PostError::Length { limit });
        }
        let link = self.links.get(work.connection).ok_or(PostError::NotReady)?;
        let count = parts.len.div_ceil(u64::from(most));
        if link.stage == CmStage::Ready && link.sends.len() as u64 + count > u64::from(send_depth) {
            return Err(PostError::QueueFull);
        }
        let one_by_one = self.holding.long_reads && wr.opcode == raw::IBV_WR_RDMA_READ;
        let mut done = 0;
        for mut share in parts.shares(most) {
            let (next, kind) =
                (done + share.len, if done + share.len < parts.len { Share::More } else { Share::Last });
            // Requests behind the first are behind everything for which the first has waited.
            let one = Work { fence: one_by_one || (work.fence && done == 0), ..work };
            match self.post_one(one, &mut part_of(*wr, done, kind), share.get(), kind) {
                Ok(()) => done = next,
                Err(error) if done == 0 => return Err(error),
                Err(error) => {
                    self.break_off(work, error);
                    break;
                }
            }
        }
        self.regions.count();
        Ok(())
    }

    /// Ends the connection: the device has accepted a part of an operation and refuses the next one, and an
    /// accepted part cannot be withdrawn.
    fn break_off(&mut self, work: Work, error: PostError) {
        let code =
            if let PostError::System(code) = error { code.unsigned_abs() } else { libc::ENOMEM as u32 };
        let number = self.regions.next();
        let Some(link) = self.links.get_mut(work.connection) else { return };
        link.cause.get_or_insert(LostError::Unknown(code));
        link.sends.push(PostedWork {
            id: work.id,
            quiet: work.quiet,
            signalled: true,
            answered: false,
            more: false,
            number,
            outcome: Some(WorkOutcome::Failed(WorkError::Unknown(code))),
        });
        self.suspects.push(work.connection.index);
    }
}

/// Returns the work request for the part of an operation that begins at byte `from`. The last part has the
/// immediate.
fn part_of(mut wr: raw::ibv_send_wr, from: u64, kind: Share) -> raw::ibv_send_wr {
    if kind == Share::More && wr.opcode == raw::IBV_WR_RDMA_WRITE_WITH_IMM {
        wr.opcode = raw::IBV_WR_RDMA_WRITE;
    }
    // SAFETY: for writes and reads, this member of the union was filled, with plain numbers.
    let rdma = unsafe { &mut wr.wr.rdma };
    rdma.remote_addr = rdma.remote_addr.wrapping_add(from);
    wr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_behind_each_other_and_the_last_has_the_immediate() {
        // SAFETY: zeros are a value of every field.
        let mut wr: raw::ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.opcode = raw::IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.wr.rdma.remote_addr = u64::MAX - 9;
        wr.wr.rdma.rkey = 77;
        for (from, kind, opcode) in [
            (0, Share::More, raw::IBV_WR_RDMA_WRITE),
            (8, Share::More, raw::IBV_WR_RDMA_WRITE),
            (16, Share::Last, raw::IBV_WR_RDMA_WRITE_WITH_IMM),
        ] {
            let part = part_of(wr, from, kind);
            // SAFETY: filled above.
            let rdma = unsafe { part.wr.rdma };
            assert_eq!((part.opcode, rdma.rkey), (opcode, 77));
            assert_eq!(rdma.remote_addr, (u64::MAX - 9).wrapping_add(from));
        }
        wr.opcode = raw::IBV_WR_RDMA_READ;
        assert_eq!(part_of(wr, 8, Share::More).opcode, raw::IBV_WR_RDMA_READ);
    }

    #[test]
    fn the_device_reports_the_last_part_also_of_a_quiet_operation() {
        for quiet in [false, true] {
            let all = [Share::Whole, Share::More, Share::Last].map(|share| share.is_signalled(quiet));
            assert_eq!(all, [!quiet, false, true]);
        }
    }
}

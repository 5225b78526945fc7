//! Processes that leave in good order: each peer receives all packets that were sent before, and then the reason.

use nemesia_core::port::memory::MemoryPort as _;
use nemesia_core::wire::channel::{ChannelRefusal, CloseReason};

use super::fabric::ChannelFabric;
use super::world::ChannelWorld;
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

impl<F: ChannelFabric> ChannelWorld<F> {
    /// Lets a process leave, instead of a death. It sends no new packets.
    pub(super) fn begin_to_leave(&mut self, rank: usize) {
        let is_leaving = self.lives[rank].leaving.is_some();
        if self.deaths == 0 || self.nodes[rank].is_none() || is_leaving || !self.is_settled(rank) {
            return;
        }
        self.deaths -= 1;
        let reason = self.rng.pick(&[CloseReason::Finished, CloseReason::Dropped]);
        self.lives[rank].leaving = Some((reason, self.rng.one_in(2)));
        self.trace.note(self.now.as_micros() as u64, || format!("rank {rank} begins to leave: {reason:?}"));
        self.pairs[rank].iter_mut().for_each(|pair| pair.backlog.clear());
    }

    /// Continues to leave. A process is gone at once when it has told all peers, or only when all know.
    pub(super) fn leave(&mut self, rank: usize) -> Check {
        let Some((reason, is_hasty)) = self.lives[rank].leaving else { return Ok(()) };
        let refusal = match reason {
            CloseReason::Finished => ChannelRefusal::Finished,
            CloseReason::Dropped => ChannelRefusal::Dropped,
        };
        let (mut told, mut known) = (true, true);
        for peer in (0..self.ranks()).filter(|peer| *peer != rank) {
            let asked =
                self.pairs[peer][rank].asked.iter().chain(&self.pairs[rank][peer].asked).any(|it| *it);
            let peer_knows =
                self.nodes[peer].as_ref().is_none_or(|it| it.channel.report(rank as u32).rails == 0);
            let Some(node) = &mut self.nodes[rank] else { return Ok(()) };
            node.channel.refuse_caller(peer as u32, refusal);
            let report = node.channel.report(peer as u32);
            known &= peer_knows;
            if self.pairs[rank][peer].told {
                told &= !node.channel.is_sending(peer as u32);
                continue;
            }
            if report.rails == 0 || report.ready < report.rails {
                // A connection that is being made becomes ready or fails.
                told &= report.rails == 0 && !asked;
                continue;
            }
            let sent = node.channel.send_close(peer as u32, reason);
            let sent =
                sent.map_err(|fault| Violation(format!("rank {rank} cannot leave {peer}: {fault}")))?;
            told &= sent && !node.channel.is_sending(peer as u32);
            if sent {
                self.pairs[rank][peer].told = true;
                let theirs = &mut self.pairs[peer][rank];
                (theirs.parting, theirs.has_left) = (Some(reason), false);
            }
        }
        if told && (is_hasty || known) {
            self.trace.note(self.now.as_micros() as u64, || format!("rank {rank} has left"));
            // On other fabrics a completion does not show that a packet has arrived.
            let proves =
                self.nodes[rank].as_ref().is_some_and(|it| it.channel.port().facts().write_proves_placement)
                    && self.config.rails == 1;
            for peer in (0..self.ranks()).filter(|peer| *peer != rank) {
                self.pairs[peer][rank].has_left =
                    proves && self.pairs[rank][peer].told && !self.died[peer][rank];
            }
            self.end(rank);
        }
        Ok(())
    }

    /// Checks that a process has announced that it leaves, and that everything before has arrived.
    pub(super) fn learns_of_leave(&mut self, rank: usize, from: usize, reason: CloseReason) -> Check {
        let announced = self.pairs[rank][from].parting;
        ensure!(
            announced == Some(reason),
            "rank {rank}: {from} leaves {reason:?}, and announced {announced:?}"
        );
        let missing = self.pairs[from][rank].flying.len();
        ensure!(missing == 0, "rank {rank} learns that {from} leaves, and lacks {missing} packets of it");
        self.tally.count(Event::ChannelLeft);
        Ok(())
    }

    /// Returns whether a peer has learned that this process leaves, and has disconnected.
    pub(super) fn has_parted(&self, rank: usize, from: usize) -> bool {
        self.pairs[rank][from].told && self.pairs[from][rank].parting.is_none()
    }

    /// Returns the first process that does not come to leave, if any.
    pub(super) fn lingering(&self) -> Option<usize> {
        self.lives.iter().position(|life| life.leaving.is_some())
    }
}

//! Restarted processes that wait until their peers accept them.

use nemesia_core::port::channel::{Introduction, JoinError};

use super::fabric::ChannelFabric;
use super::world::ChannelWorld;
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};

impl<F: ChannelFabric> ChannelWorld<F> {
    /// From the time when a first process is connected with all others, it accepts only what it was asked to accept.
    pub(super) fn hold_when_complete(&mut self, rank: usize) {
        let Some(node) = self.nodes[rank].as_mut().filter(|_| self.holds && !self.lives[rank].holds) else {
            return;
        };
        let rails = self.config.rails;
        let is_ready = |peer: usize| peer == rank || node.channel.report(peer as u32).ready == rails;
        if (0..self.lives.len()).all(is_ready) {
            node.channel.hold_requests();
            self.lives[rank].holds = true;
        }
    }

    /// Accepts the processes that wait.
    pub(super) fn accept(&mut self, rank: usize) -> Check {
        let (now, ranks) = (self.now, self.ranks());
        if self.lives[rank].leaving.is_some() {
            return Ok(());
        }
        for peer in (0..ranks).filter(|peer| *peer != rank) {
            let Some(node) = &mut self.nodes[rank] else { return Ok(()) };
            let Some(incarnation) = node.channel.caller(peer as u32) else { continue };
            let number = self.rng.next();
            match node.channel.accept_caller(peer as u32, number, now) {
                Ok(()) => {
                    self.tally.count(Event::ChannelAccepted);
                    self.trace
                        .note(now.as_micros() as u64, || format!("rank {rank} accepts {peer}.{incarnation}"));
                    self.pairs[rank][peer].accepted = Some(number);
                }
                Err(JoinError::Buffers { .. } | JoinError::Connect(_)) => {}
                Err(error) => return Err(Violation(format!("rank {rank} can't accept {peer}: {error}"))),
            }
        }
        Ok(())
    }

    /// Checks which process a new connection leads to, and that both sides want it.
    pub(super) fn check_introduction(
        &mut self,
        rank: usize,
        peer: usize,
        introduction: Option<Introduction>,
    ) -> Check {
        let Some(Introduction { incarnation, agreements }) = introduction else {
            return Err(Violation(format!(
                "rank {rank} is connected with {peer}, which has not said who it is"
            )));
        };
        let lives = self.nodes[peer].is_some();
        let present = self.lives[peer].incarnation;
        ensure!(
            incarnation <= present,
            "rank {rank} is connected with {peer}.{incarnation}, which does not exist yet"
        );
        if !lives || incarnation != present || !self.holds {
            return Ok(());
        }
        let was_asked = self.lives[peer].turn > self.lives[rank].turn;
        if was_asked && self.lives[rank].holds && incarnation > 0 {
            ensure!(self.pairs[rank][peer].accepted.is_some(), "rank {rank} has not accepted {peer}");
        }
        if !was_asked && let Some(number) = self.pairs[peer][rank].accepted {
            ensure!(number == agreements, "rank {peer} has sent {number} to {rank}, not {agreements}");
        }
        Ok(())
    }
}

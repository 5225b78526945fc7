//! A world that is left alone: everything that can happen happens, and then nothing is missing.

use nemesia_core::port::PacketPort as _;

use super::fabric::ChannelFabric;
use super::world::ChannelWorld;
use crate::violation::{Check, Violation, ensure};

/// The number of rounds after which everything must have arrived and nothing happens any more.
const TURNS: usize = 20_000;
/// The number of consecutive quiet rounds that count as rest. Recalled receives are still given up after all
/// packets have arrived.
const QUIET: usize = 40;

impl<F: ChannelFabric> ChannelWorld<F> {
    /// Lets the world come to rest: no new packets, no deaths.
    pub(crate) fn come_to_rest(&mut self) -> Check {
        let mut quiet = 0;
        for _ in 0..TURNS {
            self.turn()?;
            quiet = if self.unrest().is_none() { quiet + 1 } else { 0 };
            if quiet == QUIET {
                return Ok(());
            }
        }
        let what = self.unrest().unwrap_or_default();
        Err(Violation(format!("left alone, and for ever {what}")))
    }

    fn turn(&mut self) -> Check {
        self.now = self.fabric.pass();
        for rank in 0..self.ranks() {
            self.events(rank)?;
            self.dial(rank)?;
            while self.poll_once(rank)? {}
            (0..self.ranks()).for_each(|to| self.push(rank, to));
            self.lend(rank)?;
            self.go_on_with_transfers(rank)?;
            self.accept(rank)?;
            self.leave(rank)?;
        }
        Ok(())
    }

    /// Returns the first unmet condition of rest, if any.
    fn unrest(&self) -> Option<String> {
        if let Some(rank) = self.lingering() {
            return Some(format!("rank {rank} cannot leave"));
        }
        if self.has_transfers() {
            return Some(format!("transfers are under way: {}", self.first_transfer()));
        }
        for (rank, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let (count, free) = node.channel.buffers();
            let mut posted = 0;
            for peer in 0..self.ranks() {
                if self.died[rank][peer] {
                    return Some(format!("rank {rank} does not know that {peer} is gone"));
                }
                let report = node.channel.report(peer as u32);
                posted += report.receives;
                if report.waiting > 0 {
                    return Some(format!("packets of {peer} wait at {rank}"));
                }
                let lives = peer != rank && self.nodes[peer].is_some();
                let wanted = if lives { self.config.rails } else { 0 };
                if (report.rails, report.ready) != (wanted, wanted) {
                    return Some(format!("rank {rank} has connections to {peer}: {report:?}"));
                }
                if lives && let Some(what) = self.unrest_between(rank, peer) {
                    return Some(what);
                }
            }
            if free + posted != count {
                return Some(format!("rank {rank} has {count} buffers, {free} free and {posted} posted"));
            }
        }
        None
    }

    fn unrest_between(&self, from: usize, to: usize) -> Option<String> {
        let [sender, receiver] = [from, to].map(|rank| self.nodes[rank].as_ref());
        let (sender, receiver, pair) = (sender?, receiver?, &self.pairs[from][to]);
        let (backlog, flying) = (pair.backlog.len(), pair.flying.len());
        if backlog + flying > 0 {
            let both = [sender.channel.report(to as u32), receiver.channel.report(from as u32)];
            return Some(format!(
                "{backlog} packets of {from} wait to be sent to {to}, {flying} are on their way: {both:?}"
            ));
        }
        let granted = receiver.channel.granted(from as u32);
        if granted != pair.granted {
            return Some(format!(
                "rank {to} knows of {granted} units of {}, granted by {from}",
                pair.granted
            ));
        }
        let receives = receiver.channel.report(from as u32).receives;
        let credits = sender.channel.report(to as u32).credits;
        let written = sender.channel.report(to as u32);
        if written.in_ring >= self.config.fast.slots.div_ceil(2) {
            return Some(format!("rank {to} does not report the slots that {from} has used: {written:?}"));
        }
        // Less than half is not returned; of three, one is.
        if 2 * credits < receives || credits > receives {
            return Some(format!("rank {from} has {credits} credits for {receives} receives of {to}"));
        }
        None
    }

    /// Disconnects every pair, and checks that every buffer comes back.
    pub(crate) fn finish(&mut self) -> Check {
        self.come_to_rest()?;
        let nodes: Vec<_> = self.nodes.iter_mut().filter_map(Option::take).collect();
        nodes.iter().for_each(|node| self.fold(node));
        let ranks = self.ranks() as u32;
        let mut nodes = nodes;
        for node in &mut nodes {
            (0..ranks).for_each(|peer| node.channel.close(peer));
        }
        for _ in 0..TURNS {
            self.now = self.fabric.pass();
            for node in &mut nodes {
                while node.channel.poll_event(self.now).is_some() {}
                let polled = node.channel.poll();
                let silent = !matches!(polled, nemesia_core::port::Polled::Packet(_));
                ensure!(silent, "a packet comes from a peer that was let go of: {polled:?}");
            }
            let back = |(count, free)| count == free;
            if nodes.iter().all(|node| back(node.channel.buffers())) {
                return self.check_returned();
            }
        }
        Err(Violation("connections are closed, and buffers are missing".into()))
    }
}

//! Liveness: a world that is left alone comes to rest, and everything that can be complete is complete.
//!
//! A rank that finds nothing to do sleeps until another rank does something visible to it, as a process does.
//! An engine that reports no work while there is work is therefore detected.

use nemesia_verification::oracle::{MessageEnd as Expected, Waiting};

use crate::simulation::{Arrival, Message, Rank, Simulation};
use crate::tally::Event;
use crate::violation::{Check, ensure};
use crate::world::{Pattern, Source, WorldPort};

/// The number of rounds after which a world counts as restless for ever.
const RESTLESS: usize = 200_000;
/// The number of rounds without any effect, over the longest delay, after which a world is at rest.
const STILL: usize = 4;

impl<P: WorldPort> Simulation<P> {
    /// Lets every rank make progress until nothing happens any more. Then whatever can be complete must be.
    pub(crate) fn come_to_rest(&mut self) -> Check {
        self.all_learn()?;
        self.all_readmit()?;
        self.note(|| "the world is left alone".into());
        self.world.fabric().calm = true;
        self.ranks.iter_mut().for_each(|rank| rank.asleep = false);
        let mut still = 0;
        for turn in 0.. {
            ensure!(turn < RESTLESS, "the world does not come to rest:{}", self.unfinished());
            let before = self.world.fabric().activity;
            self.turn()?;
            let mut fabric = self.world.fabric();
            if fabric.activity != before {
                still = 0;
                fabric.now += 1;
            } else if still < STILL {
                still += 1;
                fabric.now += fabric.horizon();
            } else {
                fabric.calm = false;
                break;
            }
        }
        self.check_rest()
    }

    fn turn(&mut self) -> Check {
        for rank in self.alive() {
            self.connect_wanted(rank)?;
            if self.rank(rank).asleep && !self.world.fabric().is_woken(rank) {
                continue;
            }
            if !P::WAKES {
                self.world.sweep(rank);
            }
            self.rank(rank).asleep = !self.progress(rank)? && P::WAKES;
            self.settle_call(rank, true)?;
        }
        // A rank may have died of an earlier decision.
        self.all_learn()
    }

    /// Checks what must be complete in a world at rest.
    fn check_rest(&mut self) -> Check {
        let alive = self.alive();
        for &rank in &alive {
            for at in 0..self.ranks[rank as usize].receives.len() {
                let number = self.ranks[rank as usize].receives[at].number;
                let message_end = self.ranks[rank as usize].oracle.message_end(number);
                ensure!(
                    message_end == Expected::Posted,
                    "receive {number} of rank {rank} is {message_end:?}, and does not end:{}",
                    self.unfinished()
                );
            }
            for at in 0..self.ranks[rank as usize].sends.len() {
                let send = &self.ranks[rank as usize].sends[at];
                let (to, number) = (send.to, send.number);
                let Message { matched, arrival, .. } = self.sent[rank as usize][to as usize][number];
                let moved = matched || arrival == Arrival::Whole;
                ensure!(
                    !moved,
                    "rank {to} has message {number} of rank {rank}, whose send does not end:{}",
                    self.unfinished()
                );
            }
            let exposed = self.world.fabric().exposures(rank);
            let Rank { sends, receives, .. } = &self.ranks[rank as usize];
            let requests = sends.len() + receives.len();
            ensure!(
                exposed <= requests,
                "rank {rank} exposes {exposed} buffers, and has {requests} requests"
            );
            for &peer in &alive {
                self.check_head(peer, rank)?;
            }
            self.check_reserves(rank)?;
        }
        self.check_remote_rest()
    }

    /// Checks the first message under way between two ranks: it must arrive if a receive asks for it and no
    /// other message is before it. If nothing waits at its destination, it must arrive in any case, also from
    /// that rank itself.
    fn check_head(&mut self, from: u32, to: u32) -> Check {
        let Some(name) = self.outstanding(from, to).next() else { return Ok(()) };
        self.count(Event::Held);
        let Message { is, .. } = *self.message(to, name);
        let Rank { oracle, claims, .. } = &self.ranks[to as usize];
        let head = Waiting { name, context: is.context, tag: is.tag };
        let mut before = oracle.waiting().iter().map(|waiting| waiting.name);
        let first =
            !before.any(|name| name.source == from) && !claims.iter().any(|(_, name)| name.source == from);
        let wanted = first && oracle.awaits(&head).is_some();
        let roomy = oracle.waiting().is_empty() && claims.is_empty();
        ensure!(
            !wanted && !roomy,
            "{is:?} of rank {from} does not reach rank {to}, where {}:{}",
            if wanted { "a receive asks for it" } else { "there is all the room" },
            self.unfinished()
        );
        Ok(())
    }

    /// Receives everything that was sent between living ranks, and checks that nothing is left. In some
    /// worlds each rank leaves as soon as it has no more work, as programs do at their end.
    pub(crate) fn finish(&mut self) -> Check {
        self.come_to_rest()?;
        self.cancel_all()?;
        let leave = self.rng.one_in(2);
        let largest = self.shape.largest;
        for turn in 0.. {
            ensure!(turn < RESTLESS, "not everything is received in the end:{}", self.unfinished());
            for rank in self.alive() {
                if self.rank(rank).any_failed {
                    self.acknowledge(rank);
                }
                if !self.rank(rank).claims.is_empty() {
                    self.receive_claim(rank, 0, largest)?;
                }
                self.settle_call(rank, true)?;
                for context in 0..self.shape.contexts {
                    if self.rank(rank).gone.is_some() {
                        break;
                    }
                    if !self.rank(rank).oracle.listens_in(context) && !self.is_received(rank, context) {
                        let any = Pattern { source: Source::Any, context, tag: 0, ignore: u64::MAX };
                        self.receive(rank, any, largest)?;
                        self.settle_call(rank, true)?;
                    }
                }
            }
            self.world.fabric().now += 1;
            self.ranks.iter_mut().for_each(|rank| rank.asleep = false);
            self.turn()?;
            let alive = self.alive();
            let done = alive.iter().all(|&rank| self.has_done(rank));
            for &rank in alive.iter().filter(|_| leave) {
                if self.has_done(rank) && !self.world.sends_pending(rank) {
                    self.one_finishes(rank)?;
                }
            }
            // The last rank's messages may not have been taken.
            if done && self.alive() == alive {
                break;
            }
        }
        self.cancel_all()?;
        self.come_to_rest()?;
        self.check_empty()?;
        self.check_counters()?;
        for rank in self.alive() {
            self.measure_pool(rank)?;
        }
        self.check_empty()
    }

    fn cancel_all(&mut self) -> Check {
        for rank in self.alive() {
            for at in 0..self.rank(rank).receives.len() {
                self.cancel_one(rank, at)?;
            }
            self.cancel_awaits(rank)?;
            self.settle_call(rank, true)?;
        }
        Ok(())
    }

    /// Returns whether every message of this context from a living rank has arrived at a rank and met its
    /// receive.
    fn is_received(&self, rank: u32, context: u16) -> bool {
        let waits =
            self.ranks[rank as usize].oracle.waiting().iter().any(|waiting| waiting.context == context);
        !waits
            && self.alive().into_iter().all(|from| {
                let sent = &self.sent[from as usize][rank as usize];
                self.outstanding(from, rank).all(|name| sent[name.number].is.context != context)
            })
    }

    /// Returns whether a rank has sent and received everything.
    fn has_done(&self, rank: u32) -> bool {
        let Rank { sends, receives, claims, oracle, .. } = &self.ranks[rank as usize];
        let posted = |number| oracle.message_end(number) == Expected::Posted;
        sends.is_empty()
            && claims.is_empty()
            && receives.iter().all(|receive| posted(receive.number))
            && (0..self.shape.contexts).all(|context| self.is_received(rank, context))
            && self.remotes.is_idle(rank, &self.alive())
    }

    /// Checks that nothing is left: no request, no message, no cell, no buffer, no credit.
    fn check_empty(&mut self) -> Check {
        for rank in self.alive() {
            let Rank { sends, receives, .. } = self.rank(rank);
            ensure!(
                receives.is_empty() && sends.is_empty(),
                "rank {rank} has requests left:{}",
                self.unfinished()
            );
            let stored = self.world.stored(rank);
            ensure!(stored == 0, "rank {rank} stores {stored} messages in the end");
            ensure!(!self.world.sends_pending(rank), "rank {rank} reports pending sends");
            let free = self.world.free_cells(rank);
            let lent = self.world.fabric().memory.count(rank);
            let cells = self.shape.conditions.cells;
            ensure!(free == cells, "{free} of {cells} cells of rank {rank} are free in the end");
            ensure!(lent == 0, "{lent} buffers of rank {rank} are lent in the end");
        }
        Ok(())
    }

    /// Lists the incomplete requests, the stored messages and the claimed messages of the living ranks, one on each
    /// line.
    fn unfinished(&self) -> String {
        let mut lines = Vec::new();
        for rank in self.alive() {
            let Rank { sends, receives, oracle, claims, .. } = &self.ranks[rank as usize];
            for send in sends {
                let message = &self.sent[rank as usize][send.to as usize][send.number];
                lines.push(format!("rank {rank} sends number {}: {message:?}", send.number));
            }
            for receive in receives {
                lines.push(format!(
                    "rank {rank} receives: {:?}, {receive:?}",
                    oracle.message_end(receive.number)
                ));
            }
            for waiting in oracle.waiting() {
                lines.push(format!("rank {rank} stores {waiting:?}"));
            }
            for (_, name) in claims {
                lines.push(format!("rank {rank} has claimed {name:?}"));
            }
        }
        lines.truncate(40);
        lines.iter().map(|line| format!("\n    {line}")).collect()
    }
}

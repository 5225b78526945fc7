//! The operations of a rank, and their consequences for the oracle.

use nemesia_verification::oracle::{MessageEnd as Expected, Waiting};

use crate::bug::Slip;
use crate::shape::Shape;
use crate::simulation::{Arrival, Message, Rank, Receive, Report, Sending, Simulation};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};
use crate::world::{BypassCall, Outgoing, Pattern, RequestHandle, Source, StartError, Step, WorldPort};

impl<P: WorldPort> Simulation<P> {
    fn length(&mut self) -> usize {
        let Shape { usual, largest, conditions, terms, .. } = self.shape;
        let (packet, eager) = (conditions.packet_bytes, terms.eager_bytes);
        let len = match self.rng.below(8) {
            0..2 => self.rng.pick(&[
                0,
                1,
                8,
                8,
                8,
                16,
                48,
                49,
                63,
                64,
                65,
                224,
                225,
                packet - 32,
                packet,
                packet + 1,
            ]),
            2 => eager + self.rng.below(2),
            3..5 => self.rng.below(50),
            _ => self.rng.below(usual + 1),
        };
        if self.rng.one_in(self.shape.long) {
            largest / 2 + self.rng.below(largest / 2 + 1)
        } else {
            len.min(largest)
        }
    }

    /// Returns room for a message: any, enough for most, or enough for all.
    fn room(&mut self) -> usize {
        match self.rng.below(8) {
            0..4 => self.length(),
            4 if self.rng.one_in(1 + self.shape.largest / 100_000) => self.shape.largest,
            _ => self.shape.usual,
        }
    }

    fn pattern(&mut self, rank: u32) -> Pattern {
        let oracle = &self.ranks[rank as usize].oracle;
        let waiting = oracle.waiting();
        if !waiting.is_empty() && self.rng.one_in(2) {
            // A message that is present.
            let Waiting { name, context, tag } = waiting[self.rng.below(waiting.len())];
            return Pattern { source: Source::Rank(name.source), context, tag, ignore: 0 };
        }
        let peer = self.rng.below(self.shape.conditions.ranks as usize) as u32;
        let source = if self.rng.one_in(3) { Source::Any } else { Source::Rank(peer) };
        if self.rng.one_in(3)
            && let Some(name) = self.outstanding(peer, rank).next()
        {
            // A message that is still to come.
            let Outgoing { context, tag, .. } = self.message(rank, name).is;
            return Pattern { source, context, tag, ignore: 0 };
        }
        let ignore = self.rng.pick(&[0, 0, 1, 2, u64::MAX]) << self.shape.shift;
        let (context, tag) = (self.context(), self.tag());
        Pattern { source, context, tag, ignore }
    }

    /// Returns a pattern that matches one of the next messages of another rank, if there are any.
    fn pattern_to_come(&mut self, rank: u32) -> Option<Pattern> {
        let ranks = self.shape.conditions.ranks;
        let senders =
            (0..ranks).filter(|&from| from != rank && self.outstanding(from, rank).next().is_some());
        let senders: Vec<u32> = senders.collect();
        if senders.is_empty() {
            return None;
        }
        let from = self.rng.pick(&senders);
        let at = self.rng.pick(&[0, 0, 0, 1, 2]).min(self.outstanding(from, rank).count() - 1);
        let name = self.outstanding(from, rank).nth(at)?;
        let Outgoing { context, tag, .. } = self.message(rank, name).is;
        let ignore = self.rng.pick(&[0, 0, 0, 1 << self.shape.shift, u64::MAX]);
        let is_named = ignore == 0 || self.rng.one_in(2);
        let source = if is_named { Source::Rank(from) } else { Source::Any };
        Some(Pattern { source, context, tag: tag ^ (ignore & self.rng.next()), ignore })
    }

    fn context(&mut self) -> u16 {
        self.rng.below(self.shape.contexts.into()) as u16
    }

    fn tag(&mut self) -> u64 {
        (self.rng.below(self.shape.tags) as u64) << self.shape.shift
    }

    pub(crate) fn send(&mut self, from: u32, synchronous: bool) -> Check {
        // At most half of the requests: receives need some, or nothing moves.
        let many = self.shape.many.min(self.world.request_capacity(from) / 2);
        let ranks = self.shape.conditions.ranks as usize;
        let mut to = self.rng.below(ranks) as u32;
        if to == from && self.rng.one_in(2) {
            to = self.rng.below(ranks) as u32;
        }
        let oversubscription = self.rank(to).oracle.waiting().len();
        if self.rank(from).sends.len() >= many || oversubscription > self.shape.many {
            return self.receive_any(from);
        }
        let message = Outgoing {
            to,
            context: self.context(),
            tag: self.tag(),
            key: self.rng.next(),
            len: self.length(),
            immediate: if self.rng.one_in(3) { Some(self.rng.next()) } else { None },
            synchronous,
        };
        self.send_message(from, message)
    }

    pub(crate) fn send_message(&mut self, from: u32, message: Outgoing) -> Check {
        let to = message.to;
        let sent = &mut self.sent[from as usize][to as usize];
        let number = sent.len();
        // Recorded before it is sent: it may leave, and its sender die, in the same call.
        sent.push(Message {
            is: message,
            arrival: Arrival::Not,
            along: false,
            matched: false,
            sent: false,
            received: false,
            units: 0,
        });
        let started = self.world.send(from, &message);
        self.note(|| format!("rank {from} sends number {number}, {message:?}: {}", reported(&started)));
        if self.world.fabric().is_dead(from) {
            return Ok(());
        }
        let knows = self.rank(from).reported[to as usize].failure();
        match started {
            Ok(handle) => {
                ensure!(knows.is_none(), "rank {from} sends to rank {to}, which is gone");
                if handle.is_kept() && self.world.fabric().slips(Slip::ReuseBuffer) {
                    self.world.fabric().memory.spoil(handle.loan);
                }
                self.rank(from).sends.push(Sending { handle, to, number });
                return Ok(());
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                ensure!(
                    peer == to && knows == Some(failure),
                    "rank {from} can't send to rank {to}, as {peer} is gone ({failure})"
                );
            }
            Err(error) => self.refused(from, &error)?,
        }
        self.sent[from as usize][to as usize].pop();
        Ok(())
    }

    /// Checks that a request was refused for want of a slot and for no other reason.
    pub(crate) fn refused(&mut self, rank: u32, error: &StartError) -> Check {
        let StartError::Requests { capacity } = *error else {
            return Err(Violation(format!("rank {rank} is refused a request: {error}")));
        };
        self.count(Event::NoSlot);
        let (least, most) = self.remotes.sides[rank as usize].slots();
        let slots = self.rank(rank).slots();
        ensure!(
            (slots + least..=slots + most).contains(&capacity),
            "rank {rank} has {slots} requests and {least} operations, and no more of {capacity} are free"
        );
        Ok(())
    }

    pub(crate) fn receive_any(&mut self, rank: u32) -> Check {
        if self.rank(rank).receives.len() >= self.shape.many {
            return self.progress(rank).map(drop);
        }
        let pattern = self.pattern(rank);
        let room = match self.rank(rank).oracle.find(&pattern) {
            // One byte too few, enough, or one byte more.
            Some(name) if self.rng.one_in(2) => {
                (self.message(rank, name).is.len + self.rng.below(3)).saturating_sub(1)
            }
            _ => self.room(),
        };
        self.receive(rank, pattern, room)
    }

    pub(crate) fn receive(&mut self, rank: u32, pattern: Pattern, room: usize) -> Check {
        let found = self.rank(rank).oracle.find(&pattern);
        let lost = match pattern.source {
            Source::Any => self.rank(rank).any_failed,
            Source::Rank(peer) => matches!(self.rank(rank).reported[peer as usize], Report::Failed(_)),
        };
        let started = self.world.receive(rank, pattern, room);
        self.note(|| format!("rank {rank} receives {pattern:?} into {room} bytes: {}", reported(&started)));
        match started {
            Ok(handle) => {
                ensure!(found.is_some() || !lost, "rank {rank} posts {pattern:?}, which no rank can match");
                let number = self.rank(rank).oracle.post(pattern);
                if let Some(name) = found {
                    self.message(rank, name).matched = true;
                    self.count(Event::Unexpected);
                }
                self.remember(rank, handle, number, room);
                Ok(())
            }
            Err(StartError::PeerFailed { peer, failure }) => {
                ensure!(lost && found.is_none(), "rank {rank} is refused {pattern:?}, as {peer} is gone");
                let knows = self.rank(rank).reported[peer as usize].failure();
                ensure!(
                    knows == Some(failure),
                    "rank {rank} reports the wrong failure of rank {peer}: {failure}"
                );
                Ok(())
            }
            Err(error) => self.refused(rank, &error),
        }
    }

    /// Records a receive that is under way.
    fn remember(&mut self, rank: u32, handle: RequestHandle, number: usize, room: usize) {
        let loan = handle.loan;
        self.rank(rank).receives.push(Receive { handle: Some(handle), loan, number, room, outcome: None });
    }

    /// Makes progress once. Returns whether there was something to do.
    pub(crate) fn progress(&mut self, rank: u32) -> Result<bool, Violation> {
        self.world.fabric().is_woken(rank);
        // Only single steps show whether a message to itself or one of another rank was first.
        let whole = !self.awaits_itself(rank) && self.rng.one_in(2);
        let done = self.world.progress(rank, whole);
        ensure!(done.failed.is_none(), "rank {rank} reports that rank {:?} failed: {:?}", done.failed, {
            let peer = done.failed.unwrap_or_default();
            self.world.failure(rank, peer)
        });
        Ok(done.packets > 0)
    }

    pub(crate) fn cancel(&mut self, rank: u32) -> Check {
        let count = self.rank(rank).receives.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.below(count);
        self.cancel_one(rank, at)
    }

    pub(crate) fn cancel_one(&mut self, rank: u32, at: usize) -> Check {
        let Receive { handle: Some(handle), number, outcome: None, .. } = self.rank(rank).receives[at] else {
            return Ok(());
        };
        let before = self.rank(rank).oracle.message_end(number);
        let withdrawn = self.rank(rank).oracle.withdraw(number);
        let cancelled = self.world.cancel(handle);
        self.note(|| format!("rank {rank} cancels receive {number}: {cancelled}"));
        ensure!(cancelled == withdrawn, "rank {rank} cancels a receive that is {before:?}: {cancelled}");
        Ok(())
    }

    pub(crate) fn acknowledge(&mut self, rank: u32) {
        self.world.acknowledge(rank);
        self.rank(rank).any_failed = false;
        self.rank(rank).blamed.fill(false);
    }

    pub(crate) fn probe(&mut self, rank: u32) -> Check {
        let pattern = self.pattern(rank);
        let found = self.world.probe(rank, &pattern);
        let expected = self.rank(rank).oracle.find(&pattern);
        self.check_probed(rank, &pattern, found, expected)
    }

    pub(crate) fn claim(&mut self, rank: u32) -> Check {
        if self.rank(rank).claims.len() >= self.shape.many / 2 {
            return Ok(());
        }
        let pattern = self.pattern(rank);
        let expected = self.rank(rank).oracle.find(&pattern);
        match self.world.claim(rank, &pattern) {
            Ok(claimed) => {
                self.note(|| format!("rank {rank} claims {expected:?} by {pattern:?}"));
                self.check_probed(rank, &pattern, claimed.map(|(_, status)| status), expected)?;
                if let (Some((claim, _)), Some(name)) = (claimed, expected) {
                    self.rank(rank).oracle.forget(name);
                    self.rank(rank).claims.push((claim, name));
                }
                Ok(())
            }
            Err(error) => self.refused(rank, &error),
        }
    }

    pub(crate) fn receive_claimed(&mut self, rank: u32) -> Check {
        let count = self.rank(rank).claims.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.below(count);
        let room = self.room();
        self.receive_claim(rank, at, room)
    }

    pub(crate) fn receive_claim(&mut self, rank: u32, at: usize, room: usize) -> Check {
        let (claim, name) = self.rank(rank).claims.remove(at);
        let received = self.world.receive_claimed(rank, claim, room);
        self.note(|| format!("rank {rank} receives the claimed {name:?} into {room} bytes"));
        match received {
            Ok(handle) => {
                self.message(rank, name).matched = true;
                let number = self.rank(rank).oracle.matched(name);
                self.remember(rank, handle, number, room);
                Ok(())
            }
            Err(message_end) => {
                Err(Violation(format!("rank {rank} can't receive the claimed {name:?}: {message_end}")))
            }
        }
    }

    /// Receives in a blocking way for a few rounds, and posts the receive only if necessary.
    pub(crate) fn bypass(&mut self, rank: u32) -> Check {
        let to_come = if self.rng.one_in(4) { None } else { self.pattern_to_come(rank) };
        let pattern = to_come.unwrap_or_else(|| self.pattern(rank));
        let room = self.room();
        for _ in 0..=self.rng.below(6) {
            if self.rank(rank).gone.is_some() {
                return Ok(());
            }
            if !self.world.can_bypass(rank, &pattern) {
                // Another receive or message may be before it: one is waited for, received or withdrawn.
                return match self.rank(rank).oracle.waiting().is_empty() && self.rng.one_in(2) {
                    true => self.cancel(rank),
                    false => self.receive_any(rank),
                };
            }
            let Rank { oracle, .. } = self.rank(rank);
            let waits = oracle.find(&pattern);
            ensure!(waits.is_none(), "rank {rank} may pass by {waits:?} with {pattern:?}");
            let beside = oracle.posted() > 0;
            let number = oracle.post(pattern);
            let look = self.rng.pick(&[
                BypassCall::Short,
                BypassCall::Packet,
                BypassCall::Next,
                BypassCall::Step,
                BypassCall::Step,
            ]);
            let step = self.world.bypass(rank, &pattern, room, look);
            self.note(|| format!("rank {rank} waits for {pattern:?}, {room} bytes: {step:?}"));
            if self.world.fabric().is_dead(rank) {
                return Ok(());
            }
            self.hear(rank)?;
            let (handle, loan, outcome) = match step {
                Step::Not => {
                    self.undo(rank, number);
                    self.meanwhile(rank)?;
                    continue;
                }
                Step::Done(outcome, loan) => {
                    self.count(if beside { Event::BypassBeside } else { Event::Bypass });
                    self.count(match look {
                        BypassCall::Short => Event::BypassShort,
                        BypassCall::Packet => Event::BypassPacket,
                        BypassCall::Next => Event::BypassNext,
                        BypassCall::Step => Event::BypassStep,
                    });
                    (None, loan, Some(outcome))
                }
                Step::Posted(handle) => (Some(handle), handle.loan, None),
            };
            self.rank(rank).receives.push(Receive { handle, loan, number, room, outcome });
            return Ok(());
        }
        Ok(())
    }

    /// Lets another rank go on while this one blocks.
    fn meanwhile(&mut self, rank: u32) -> Check {
        self.settle_call(rank, false)?;
        let alive = self.alive();
        if alive == [rank] || alive.is_empty() {
            return Ok(());
        }
        let other = self.rng.pick(&alive);
        self.send(other, false)?;
        self.settle_call(other, false)?;
        self.world.fabric().now += 1;
        Ok(())
    }

    /// Removes a receive that was not posted after all.
    fn undo(&mut self, rank: u32, number: usize) {
        let oracle = &mut self.rank(rank).oracle;
        if let Expected::Matched(name) = oracle.message_end(number) {
            let message = self.message(rank, name);
            message.matched = false;
            let waiting = Waiting { name, context: message.is.context, tag: message.is.tag };
            self.rank(rank).oracle.undo(number, waiting);
        } else {
            oracle.withdraw(number);
        }
    }
}

/// Describes the result of a start in a word or two.
fn reported(started: &Result<RequestHandle, StartError>) -> String {
    match started {
        Ok(handle) if handle.is_kept() => "under way".into(),
        Ok(_) => "done".into(),
        Err(error) => error.to_string(),
    }
}

//! Checks after every call: order of matching, contents, and which requests may be complete or must be.

use nemesia_core::wire::{Envelope, Kind};
use nemesia_verification::oracle::{MessageEnd as Expected, Name, Waiting};

use crate::fabric::Taken;
use crate::memory::{BLANK, first_difference};
use crate::port::{is_matched, is_offer, is_remote};
use crate::simulation::{Arrival, Message, Rank, Receive, Report, Sending, Simulation};
use crate::tally::Event;
use crate::violation::{Check, Violation, ensure};
use crate::world::{CompletionError, Failure, Outcome, Pattern, Status, Truncation, WorldPort};

/// Whether a request is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueCheck {
    Never,
    Perhaps,
    Now,
}

impl<P: WorldPort> Simulation<P> {
    /// Reports to the oracle what a rank has taken since the last call. Checks that it was sent, and that the
    /// engine keeps what it must keep.
    pub(crate) fn listen(&mut self, rank: u32) -> Check {
        self.hear(rank)?;
        self.hear_itself(rank);
        self.check_handled(rank)?;
        let stored = self.world.stored(rank);
        let waiting = self.kept(rank);
        ensure!(
            stored == waiting,
            "rank {rank} stores {stored} unexpected messages, and {waiting} have come"
        );
        self.check_ceiling(rank)
    }

    /// Reports the arrivals from other ranks.
    pub(crate) fn hear(&mut self, rank: u32) -> Check {
        self.world.fabric().check()?;
        let taken = std::mem::take(&mut self.world.fabric().taken[rank as usize]);
        for packet in taken {
            if is_remote(packet.envelope.kind) {
                self.execute(packet.peer, rank, packet.len)?;
            }
            if packet.is_unasked_part() {
                self.take_part(rank, &packet)?;
            }
            if !is_matched(packet.envelope.kind) {
                continue;
            }
            let number = self.rank(rank).arrived[packet.peer as usize];
            let name = Name { source: packet.peer, number };
            let known = self.sent[packet.peer as usize][rank as usize].len();
            ensure!(
                number < known,
                "rank {rank} takes message {number} of rank {}, which sent {known}",
                packet.peer
            );
            self.check_first(rank, name, &packet)?;
            let arrival = match packet.rts {
                Some(rts) if rts.is_unasked => Arrival::Unasked(rts.total),
                _ if is_offer(packet.envelope.kind) => Arrival::Offered,
                _ => Arrival::Whole,
            };
            if matches!(arrival, Arrival::Unasked(_)) {
                let former = self.rank(rank).unasked[packet.peer as usize].replace(name);
                ensure!(former.is_none(), "{name:?} to {rank} begins before {former:?} has come");
            }
            self.arrive(rank, name, arrival, packet.paid_bytes(), packet.is_along());
        }
        Ok(())
    }

    /// Reports a part of a message whose bytes follow unasked.
    fn take_part(&mut self, rank: u32, packet: &Taken) -> Check {
        let name = self.rank(rank).unasked[packet.peer as usize];
        let Some(name) = name else {
            return Err(Violation(format!("rank {rank} takes {packet:?}, which belongs to no message")));
        };
        self.count(Event::Unasked);
        let Message { arrival, matched, .. } = self.message(rank, name);
        let Arrival::Unasked(left) = *arrival else {
            return Err(Violation(format!("rank {rank} takes {packet:?} of {name:?}, which is {arrival:?}")));
        };
        let left = left.saturating_sub(packet.len as u64);
        *arrival = if left > 0 { Arrival::Unasked(left) } else { Arrival::Whole };
        if !*matched {
            self.count(Event::UnaskedStored);
        }
        if left == 0 {
            self.rank(rank).unasked[packet.peer as usize] = None;
        }
        Ok(())
    }

    /// Checks the first packet of a message: it describes the message, and announces it if it must.
    fn check_first(&mut self, rank: u32, name: Name, packet: &Taken) -> Check {
        let Message { is, sent, .. } = *self.message(rank, name);
        let Envelope { kind, context, tag, .. } = packet.envelope;
        ensure!(
            (context, tag, packet.total()) == (is.context, is.tag, is.len as u64),
            "{name:?} to {rank} is {is:?}, but arrives as {packet:?}"
        );
        let preferred = P::preferred(&self.shape.conditions, name.source);
        let is_long = is.len > self.shape.terms.eager_bytes.max(preferred);
        ensure!(!is_long || kind == Kind::Rts, "{name:?} to {rank}, {is:?}, is not announced: {kind:?}");
        let is_unasked = packet.rts.is_some_and(|rts| rts.is_unasked);
        ensure!(
            !is.synchronous || is_offer(kind) && !is_unasked,
            "{name:?} to {rank} is synchronous, but its sender waits for no answer: {kind:?}"
        );
        ensure!(
            !is_offer(kind) || !sent || is_unasked,
            "the send of {name:?} to {rank} was complete before it was answered"
        );
        Ok(())
    }

    /// Returns the number of messages that wait at a rank or were taken out of its queue by a matched probe.
    fn kept(&self, rank: u32) -> usize {
        let Rank { oracle, .. } = &self.ranks[rank as usize];
        oracle.waiting().len() + self.claims_kept(rank).count()
    }

    fn waiting(&mut self, rank: u32, name: Name) -> Waiting {
        let Message { is, .. } = self.message(rank, name);
        Waiting { name, context: is.context, tag: is.tag }
    }

    fn arrive(&mut self, rank: u32, name: Name, arrival: Arrival, len: usize, along: bool) {
        self.charge(rank, name, arrival, len);
        let waiting = self.waiting(rank, name);
        self.rank(rank).arrived[name.source as usize] += 1;
        let receive = self.rank(rank).oracle.arrive(waiting);
        let message = self.message(rank, name);
        message.arrival = arrival;
        message.along = along;
        message.matched = receive.is_some();
        if receive.is_some() {
            self.count(Event::Expected);
        }
    }

    /// Returns the next message of a rank to itself that has not arrived because there was no room for it.
    fn next_own(&self, rank: u32) -> Option<Name> {
        let number = self.ranks[rank as usize].arrived[rank as usize];
        let known = self.sent[rank as usize][rank as usize].len();
        (number < known).then_some(Name { source: rank, number })
    }

    pub(crate) fn awaits_itself(&self, rank: u32) -> bool {
        self.next_own(rank).is_some()
    }

    /// Reports messages of a rank to itself. They pass no fabric: they have arrived if they are stored, or if
    /// their receive is complete.
    fn hear_itself(&mut self, rank: u32) {
        while let Some(name) = self.next_own(rank) {
            let waiting = self.waiting(rank, name);
            let came = match self.rank(rank).oracle.awaits(&waiting) {
                Some(number) => self.look(rank, number),
                None => self.world.stored(rank) > self.kept(rank),
            };
            if !came {
                return;
            }
            self.note(|| format!("{name:?} has come"));
            self.count(Event::Own);
            self.arrive(rank, name, Arrival::Own, 0, false);
        }
    }

    /// Returns whether a receive is complete; if it is, stores its outcome.
    fn look(&mut self, rank: u32, number: usize) -> bool {
        let Self { world, ranks, .. } = self;
        let receives = &mut ranks[rank as usize].receives;
        let Some(receive) = receives.iter_mut().find(|receive| receive.number == number) else {
            return false;
        };
        if let (Some(handle), None) = (receive.handle, receive.outcome) {
            receive.outcome = world.test(handle);
        }
        receive.outcome.is_some()
    }

    /// Checks all or some requests of a rank: each is complete exactly when it must be.
    pub(crate) fn complete(&mut self, rank: u32, all: bool) -> Check {
        for mut receive in std::mem::take(&mut self.rank(rank).receives) {
            if !all && self.rng.one_in(4) {
                self.rank(rank).receives.push(receive);
                continue;
            }
            if let (Some(handle), None) = (receive.handle, receive.outcome) {
                receive.outcome =
                    if self.rng.one_in(2) { self.world.try_finish(handle) } else { self.world.test(handle) };
                // The rank may have died in this call; then it reports nothing.
                if self.world.fabric().is_dead(rank) {
                    return Ok(());
                }
                self.hear(rank)?;
            }
            let due = self.receive_is_due(rank, receive.number);
            let (number, message_end) = (receive.number, self.rank(rank).oracle.message_end(receive.number));
            let complete = receive.outcome.is_some();
            ensure!(
                due != DueCheck::Never || !complete,
                "receive {number} of rank {rank} is complete, but {message_end:?}"
            );
            ensure!(
                due != DueCheck::Now || complete,
                "receive {number} of rank {rank} is not complete, but {message_end:?}"
            );
            match receive.outcome {
                Some(outcome) => self.check_receive(rank, &receive, message_end, outcome)?,
                None => self.rank(rank).receives.push(receive),
            }
        }
        for send in std::mem::take(&mut self.rank(rank).sends) {
            if !all && self.rng.one_in(4) {
                self.rank(rank).sends.push(send);
                continue;
            }
            match self.world.test(send.handle) {
                Some(outcome) => self.check_send(rank, &send, outcome)?,
                None => {
                    let reported = self.rank(rank).reported[send.to as usize];
                    let waits = matches!(reported, Report::Failed(_));
                    ensure!(!waits, "rank {rank} waits to send {send:?} to a rank that is gone");
                    self.rank(rank).sends.push(send);
                }
            }
        }
        Ok(())
    }

    fn receive_is_due(&mut self, rank: u32, number: usize) -> DueCheck {
        let Expected::Matched(name) = self.rank(rank).oracle.message_end(number) else {
            let posted = self.rank(rank).oracle.message_end(number) == Expected::Posted;
            return if posted { DueCheck::Never } else { DueCheck::Now };
        };
        let gone = self.is_past(rank, name);
        match self.message(rank, name).arrival {
            Arrival::Whole | Arrival::Own => DueCheck::Now,
            arrival if arrival.is_announced() && gone => DueCheck::Now,
            Arrival::Offered => DueCheck::Perhaps,
            Arrival::Unasked(_) | Arrival::Not => DueCheck::Never,
        }
    }

    fn check_send(&mut self, rank: u32, send: &Sending, outcome: Outcome) -> Check {
        let Sending { handle, to, number } = *send;
        self.world.fabric().memory.end(handle.loan, |_| ())?;
        let reported = self.rank(rank).reported[to as usize].failure();
        // The results of the call in which a rank died are unknown.
        let known = self.rank(to).gone.is_none();
        self.note(|| format!("rank {rank} has sent number {number} to {to}: {outcome:?}"));
        let message = self.message(to, Name { source: rank, number });
        let is = message.is;
        match outcome {
            Ok(status) => {
                message.sent = true;
                let right = Status { peer: to, tag: is.tag, len: is.len, immediate: None };
                ensure!(!handle.is_kept() || status == right, "rank {rank} has sent {is:?}: {status:?}");
                let early = !message.matched && (is.synchronous || message.arrival == Arrival::Offered);
                ensure!(
                    !(known && early),
                    "rank {rank} has sent message {number}, {is:?}, but no receive has matched it"
                );
                Ok(())
            }
            Err(message_end) => {
                self.count(Event::PeerFailed);
                let known = reported.map(|failure| CompletionError::PeerFailed { peer: to, failure });
                ensure!(known == Some(message_end), "rank {rank} could not send {is:?}: {message_end}");
                let Rank { hasty, .. } = self.rank(rank);
                let lost = hasty[to as usize] || reported != Some(Failure::Finished);
                let received = self.message(to, Name { source: rank, number }).received;
                ensure!(
                    lost || !received,
                    "rank {rank} could not send {is:?} to rank {to}, which has received it and finished"
                );
                Ok(())
            }
        }
    }

    fn check_receive(
        &mut self,
        rank: u32,
        receive: &Receive,
        message_end: Expected,
        outcome: Outcome,
    ) -> Check {
        let Receive { loan, number, room, .. } = *receive;
        self.note(|| format!("receive {number} of rank {rank} is complete: {outcome:?}"));
        let name = match message_end {
            Expected::Matched(name) => name,
            Expected::Withdrawn => {
                self.count(Event::Cancelled);
                self.world.fabric().memory.end(loan, |_| ())?;
                ensure!(
                    outcome == Err(CompletionError::Cancelled),
                    "a receive of rank {rank} was withdrawn: {outcome:?}"
                );
                return Ok(());
            }
            Expected::Failed | Expected::Posted => {
                self.world.fabric().memory.end(loan, |_| ())?;
                return self.check_failed(rank, outcome);
            }
        };
        let Message { is, arrival, along, .. } = *self.message(rank, name);
        // A message that arrived whole with its announcement outlives its sender. It does not outlive the
        // readmission of the sender, because the new process could not learn that it was received.
        let lost = self.is_past(rank, name) && !along || self.is_of_another(rank, name);
        if arrival.is_announced() && lost && matches!(outcome, Err(CompletionError::PeerFailed { .. })) {
            self.world.fabric().memory.end(loan, |_| ())?;
            return self.check_failed(rank, outcome);
        }
        let len = is.len.min(room);
        let status = Status { peer: name.source, tag: is.tag, len, immediate: is.immediate };
        let truncated = Truncation { status, message: is.len as u64 };
        self.message(rank, name).received = true;
        if len < is.len {
            self.count(Event::Truncated);
        }
        let right = if len < is.len { Err(CompletionError::Truncated(truncated)) } else { Ok(status) };
        ensure!(
            outcome == right,
            "receive {number} of rank {rank} must get {name:?}, {right:?}, but it got {outcome:?}"
        );
        let (wrong, beyond) = self.world.fabric().memory.end(loan, |bytes| {
            let beyond = bytes[len..].iter().position(|&byte| byte != BLANK);
            (first_difference(is.key, &bytes[..len]), beyond)
        })?;
        ensure!(
            wrong.is_none(),
            "byte {} of {len} of {name:?} is wrong in receive {number} of rank {rank}",
            wrong.unwrap_or_default()
        );
        ensure!(beyond.is_none(), "more than the {len} bytes of {name:?} was written at rank {rank}");
        Ok(())
    }

    fn check_failed(&mut self, rank: u32, outcome: Outcome) -> Check {
        let Err(CompletionError::PeerFailed { peer, failure }) = outcome else {
            return Err(Violation(format!("rank {rank} has no receive, but receives {outcome:?}")));
        };
        self.count(Event::PeerFailed);
        ensure!(
            self.knows_failure(rank, peer, failure),
            "rank {rank} reports the wrong failure of rank {peer}: {failure}"
        );
        Ok(())
    }

    /// Checks that a probe found the message that a receive would take.
    pub(crate) fn check_probed(
        &mut self,
        rank: u32,
        pattern: &Pattern,
        found: Option<Status>,
        expected: Option<Name>,
    ) -> Check {
        if found.is_some() {
            self.count(Event::Probe);
        }
        let right = expected.map(|name| {
            let Message { is, .. } = self.message(rank, name);
            Status { peer: name.source, tag: is.tag, len: is.len, immediate: is.immediate }
        });
        ensure!(found == right, "rank {rank} probes for {pattern:?}: {found:?}, but {right:?} waits");
        Ok(())
    }
}

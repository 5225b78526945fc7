//! Compares arrivals and completions with the oracle.

use super::{Sending, SimulatedReceive, SimulatedSend, Simulation};
use crate::engine::tests::oracle::{MessageEnd as Expected, Name};
use crate::engine::{CompletionError, Outcome, RequestId, Status, Truncation};
use crate::port::PeerId;
use crate::wire::prefix::EagerPrefix;
use crate::wire::{Envelope, Kind};

impl Simulation<'_> {
    /// Checks that no operation between surviving ranks is in progress: the counters of both ends and the
    /// oracle agree.
    pub(super) fn check_counters(&mut self, alive: &[PeerId]) {
        let what = std::format!("seed {}", self.seed);
        for (&from, &to) in alive.iter().flat_map(|from| alive.iter().map(move |to| (from, to))) {
            let sent = self.world.engine(from).peer_counters(to).unwrap();
            let received = self.world.engine(to).peer_counters(from).unwrap();
            let messages = &self.sent[from as usize][to as usize];
            assert_eq!(sent.eager_sent + sent.rts_sent, messages.len() as u64, "{what}");
            let found = received.matched_posted + received.matched_bypass + received.unexpected;
            assert_eq!(found, messages.len() as u64, "{what}");
            let announced = messages.iter().filter(|sent| sent.rendezvous).count() as u64;
            assert!(from == to || sent.rts_sent >= announced + sent.credit_demoted, "{what}: {sent:?}");
            for (left, came) in [
                (sent.eager_sent, received.eager_received),
                (sent.eager_sent_bytes, received.eager_received_bytes),
                (sent.rts_sent_bytes, received.rts_received_bytes),
                (sent.cts_sent, received.cts_received),
                (sent.data_sent, received.data_received),
                (sent.data_sent_bytes, received.data_received_bytes),
                (sent.fin_sent, received.fin_received),
                (sent.fastbox_sent, received.fastbox_received),
                (sent.fastbox_sent_bytes, received.fastbox_received_bytes),
                (sent.cell_sent, received.cell_received),
                (sent.cell_sent_bytes, received.cell_received_bytes),
                (sent.credit_spent, received.credit_used),
            ] {
                assert_eq!(left, came, "{what}: {sent:?} {received:?}");
            }
        }
    }

    /// Reports the arrivals at a rank to the oracle, and checks that they are the messages sent, in order.
    pub(super) fn listen(&mut self, rank: PeerId) {
        let seed = self.seed;
        for seen in core::mem::take(&mut self.world.engine(rank).port_mut().seen) {
            let announced = match seen.envelope.kind {
                Kind::Eager | Kind::EagerImmediate => false,
                Kind::Rts | Kind::EagerAcknowledged | Kind::EagerBoth => true,
                Kind::Cts | Kind::Data | Kind::Fin => continue,
                kind => panic!("seed {seed}: {kind:?}"),
            };
            let Envelope { context, tag, .. } = seen.envelope;
            let name = self.oracles[rank as usize].arrive(seen.peer, context, tag, announced);
            let is_answered = announced && seen.envelope.kind.is_eager();
            if is_answered || seen.rts.is_some_and(|rts| (seen.len - rts.bytes()) as u64 == rts.total) {
                self.oracles[rank as usize].came_along(name);
            }
            let sent = &self.sent[seen.peer as usize][rank as usize][name.number];
            let whole = seen.len - EagerPrefix::bytes_of(seen.envelope.kind);
            let len = seen.rts.map_or(whole as u64, |rts| rts.total);
            let envelope = (context, tag, len);
            assert_eq!(envelope, (sent.context, sent.tag, sent.bytes.len() as u64), "seed {seed}: overtaken");
            let is_offer = seen.envelope.kind == Kind::Rts;
            assert!(is_offer || !sent.rendezvous, "seed {seed}: sent without an announcement");
            assert!(announced || !sent.synchronous, "seed {seed}: sent without a request for an answer");
            assert!(
                !announced || !sent.complete,
                "seed {seed}: {name:?} was complete but was only announced"
            );
        }
        let sent = self.sent[rank as usize][rank as usize].len() - self.pending_to_self(rank);
        for number in self.oracles[rank as usize].arrived(rank)..sent {
            let SimulatedSend { context, tag, .. } = self.sent[rank as usize][rank as usize][number];
            self.oracles[rank as usize].arrive(rank, context, tag, false);
        }
        let probed = self.probed.iter().filter(|probed| probed.rank == rank).count();
        let stored = self.world.engine(rank).unexpected_messages();
        let waiting = self.oracles[rank as usize].waiting() + probed;
        assert_eq!(stored, waiting, "seed {seed}: unexpected messages of {rank}");
    }

    /// Checks that every request completes exactly when the oracle expects it, with the right outcome.
    pub(super) fn complete(&mut self) {
        let gone = self.gone.clone();
        let running = move |rank: PeerId| gone[rank as usize].is_none();
        for receive in core::mem::take(&mut self.receives) {
            if !running(receive.handle.rank) {
                continue;
            }
            let outcome = match self.rng.one_in(2) {
                true => self.world.try_finish(receive.handle),
                false => self.world.test(receive.handle),
            };
            // The engine may have taken its message only now.
            self.listen(receive.handle.rank);
            let oracle = &self.oracles[receive.handle.rank as usize];
            let expected = oracle.receives[receive.number];
            // For an announced message only the end of the run can decide.
            let due = match expected {
                Expected::Posted => Some(false),
                Expected::Matched(name) if oracle.is_over(name) => Some(true),
                Expected::Matched(name) => (!oracle.is_announced(name)).then_some(true),
                Expected::Withdrawn | Expected::Failed => Some(true),
            };
            let right = due.is_none_or(|due| outcome.is_some() == due);
            assert!(right, "seed {}: {receive:?} is {expected:?}, and {outcome:?}", self.seed);
            match outcome {
                Some((outcome, bytes)) => self.check(&receive, expected, outcome, &bytes),
                None => self.receives.push(receive),
            }
        }
        for send in core::mem::take(&mut self.sends) {
            let from = send.handle.rank;
            if !running(from) {
                continue;
            }
            let reported = self.reported[from as usize][send.to as usize];
            match self.world.test(send.handle) {
                None => {
                    let waits = reported.is_some() && !self.draining;
                    assert!(!waits, "seed {}: {send:?} waits for a failed rank", self.seed);
                    self.sends.push(send);
                }
                Some((Ok(status), _)) => {
                    if send.handle.id != RequestId::SENT {
                        assert_eq!((status.peer, status.tag, status.len), (send.to, send.tag, send.len));
                    }
                    self.check_sent(from, &send);
                }
                Some((Err(completion_error), _)) => {
                    let failed =
                        reported.map(|failure| CompletionError::PeerFailed { peer: send.to, failure });
                    assert_eq!(Some(completion_error), failed, "seed {}", self.seed);
                }
            }
        }
    }

    /// Checks that a send may be complete.
    fn check_sent(&mut self, from: PeerId, send: &Sending) {
        let sent = &mut self.sent[from as usize][send.to as usize][send.number];
        let oracle = &self.oracles[send.to as usize];
        let name = Name { source: from, number: send.number };
        sent.complete = true;
        let must_be_matched = sent.rendezvous || sent.synchronous || oracle.is_announced(name);
        assert!(!must_be_matched || oracle.is_matched(name), "seed {}: {send:?} is complete", self.seed);
    }

    fn check(&self, receive: &SimulatedReceive, expected: Expected, outcome: Outcome, bytes: &[u8]) {
        let (rank, seed) = (receive.handle.rank as usize, self.seed);
        let name = match expected {
            Expected::Matched(name) => match outcome {
                Err(CompletionError::PeerFailed { peer, failure }) => {
                    assert!(self.oracles[rank].may_be_lost(name), "seed {seed}: {name:?} had arrived");
                    return assert_eq!(
                        (name.source, self.reported[rank][peer as usize]),
                        (peer, Some(failure))
                    );
                }
                _ => name,
            },
            Expected::Withdrawn => {
                return assert_eq!(outcome, Err(CompletionError::Cancelled), "seed {seed}");
            }
            Expected::Failed => {
                let Err(CompletionError::PeerFailed { peer, failure }) = outcome else {
                    panic!("seed {seed}: {outcome:?}");
                };
                return assert_eq!(self.reported[rank][peer as usize], Some(failure), "seed {seed}");
            }
            Expected::Posted => unreachable!("checked by the caller"),
        };
        let Name { source, number } = name;
        let sent = &self.sent[source as usize][rank][number];
        let len = sent.bytes.len().min(receive.room);
        let status = Status { peer: source, tag: sent.tag, len, immediate: sent.immediate };
        let message = sent.bytes.len() as u64;
        let right = if len < sent.bytes.len() {
            Err(CompletionError::Truncated(Truncation { status, message }))
        } else {
            Ok(status)
        };
        assert_eq!(outcome, right, "seed {seed}");
        assert_eq!(bytes[..len], sent.bytes[..len], "seed {seed}: contents of {name:?} at {rank}");
        assert!(
            bytes[len..].iter().all(|&byte| byte == 0xee),
            "seed {seed}: bytes beyond the message were written"
        );
    }
}

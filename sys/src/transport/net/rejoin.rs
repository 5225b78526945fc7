//! Ranks that were started again, over the network.
//!
//! A restarted process requests a connection with each rank that joined before it, and goes on. The request is *held*
//! there until the rank is readmitted, and then accepted. Meanwhile the connection of the request shows each side that
//! the other lives. A request that fails for a passing reason is repeated. If the reason does not show whether the
//! other process lives, the launcher is asked.
//!
//! The acceptance has the incarnation of the accepting process and the number of agreements so far. A request has the
//! incarnation of the restarted process, which the launcher must confirm.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nemesia_core::port::channel::{ChannelEvent, JoinError};
use nemesia_core::port::memory::{Address, ConnectError, MemoryPort as _};
use nemesia_core::port::{PacketPort as _, PeerId};
use nemesia_core::wire::channel::{ChannelRefusal, CloseReason};

use super::connect::RETRY_AFTER;
use super::{NetPort, with};
use crate::os::Departure;

/// A living rank that a restarted process reaches over the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteMember {
    pub(crate) rank: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) address: Address,
}

/// The state of a request to be readmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallStage {
    /// It is sent from this time on.
    Due(Instant),
    Requested,
    /// It has failed, and the connection is not closed yet.
    Closing,
}

/// A rank that has not readmitted this process yet.
#[derive(Debug)]
struct AwaitedRank {
    rank: PeerId,
    incarnation: u64,
    stage: CallStage,
}

/// What has become of a connection with a restarted process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NetAnswer {
    /// The rank has readmitted this process.
    Met {
        /// The incarnation of the rank.
        incarnation: u64,
        /// The number of agreements so far.
        agreements: u64,
    },
    /// The request of this process failed and is repeated. The rank may be gone, if this is no longer its incarnation.
    Unsure {
        /// The incarnation of the rank that this process has called.
        incarnation: u64,
    },
    /// The rank is gone or refuses; the text has the reason for a refusal.
    Gone(Departure, Option<String>),
}

/// The restart state of the port.
#[derive(Debug, Default)]
pub(super) struct NetRejoin {
    awaited: Vec<AwaitedRank>,
    /// Ranks that were readmitted and are not connected yet.
    admitted: Vec<PeerId>,
    /// Callers that the launcher has confirmed, with their incarnations.
    confirmed: Vec<(PeerId, u64)>,
    answers: VecDeque<(PeerId, NetAnswer)>,
}

impl NetPort {
    /// Accepts no connections from now on, except those that are readmitted.
    pub(crate) fn hold_requests(&mut self) {
        with!(&mut self.any, it => it.channel.hold_requests());
    }

    /// Returns the address at which this process is reached.
    pub(crate) fn address(&self) -> Option<Address> {
        with!(&self.any, it => it.channel.port().address())
    }

    /// Requests to be readmitted by a rank, and repeats the request as long as that can help. An answer follows:
    /// [`NetPort::next_answer`].
    pub(crate) fn call(&mut self, member: &RemoteMember) {
        let RemoteMember { rank, incarnation, address } = *member;
        if let Some(place) = self.addresses.get_mut(rank as usize) {
            *place = Some(address);
            let stage = CallStage::Due(Instant::now());
            self.rejoin.awaited.push(AwaitedRank { rank, incarnation, stage });
        }
    }

    /// Returns whether the answer of this rank is awaited, or was not taken yet ([`NetPort::next_answer`]).
    pub(crate) fn awaits(&self, rank: PeerId) -> bool {
        let NetRejoin { awaited, answers, .. } = &self.rejoin;
        awaited.iter().any(|awaited| awaited.rank == rank) || answers.iter().any(|(other, _)| *other == rank)
    }

    /// Returns whether any answer is awaited, or was not taken yet. An answer that was not taken has a number of
    /// agreements that the endpoint does not know.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.rejoin.awaited.is_empty() || !self.rejoin.answers.is_empty()
    }

    /// Returns the next answer, and its rank.
    pub(crate) fn next_answer(&mut self) -> Option<(PeerId, NetAnswer)> {
        self.rejoin.answers.pop_front()
    }

    /// Stops calling a rank that is gone.
    pub(crate) fn stop_calling(&mut self, rank: PeerId) {
        self.rejoin.awaited.retain(|awaited| awaited.rank != rank);
        self.close(rank);
    }

    /// Returns the ranks whose processes request to be readmitted and can be, in rising order, with the incarnations
    /// that they claim and whether the launcher has confirmed them.
    pub(crate) fn callers(&self) -> Vec<(PeerId, u64, bool)> {
        let caller = |rank| {
            let incarnation = with!(&self.any, it => it.channel.caller(rank))?;
            Some((rank, incarnation, self.rejoin.confirmed.contains(&(rank, incarnation))))
        };
        (0..self.ranks()).filter_map(caller).collect()
    }

    /// Records that the launcher has started this incarnation of a rank.
    pub(crate) fn confirm(&mut self, rank: PeerId, incarnation: u64) {
        self.rejoin.confirmed.retain(|(other, _)| *other != rank);
        self.rejoin.confirmed.push((rank, incarnation));
    }

    /// Refuses the request of a process that the launcher has not started.
    pub(crate) fn dismiss(&mut self, rank: PeerId) {
        with!(&mut self.any, it => it.channel.refuse_caller(rank, ChannelRefusal::NotAMember));
    }

    /// Refuses all requests, because this process leaves.
    pub(super) fn dismiss_all(&mut self, reason: CloseReason) {
        let refusal = match reason {
            CloseReason::Finished => ChannelRefusal::Finished,
            CloseReason::Dropped => ChannelRefusal::Dropped,
        };
        for rank in 0..self.ranks() {
            with!(&mut self.any, it => it.channel.refuse_caller(rank, refusal));
        }
    }

    /// Accepts the request of a rank that the launcher has confirmed, and sends it the number of agreements so far.
    /// Returns its incarnation; `None` if there is no such request any more, or no room for the connection yet.
    pub(crate) fn admit(&mut self, rank: PeerId, agreements: u64) -> Option<u64> {
        let now = self.now();
        let (_, incarnation, _) =
            self.callers().into_iter().find(|(other, _, confirmed)| *other == rank && *confirmed)?;
        with!(&mut self.any, it => it.channel.accept_caller(rank, agreements, now)).ok()?;
        self.rejoin.confirmed.retain(|(other, _)| *other != rank);
        self.rejoin.admitted.push(rank);
        Some(incarnation)
    }

    /// Processes the events of connections after the world was opened.
    pub(super) fn attend(&mut self, events: &[ChannelEvent]) {
        for event in events {
            match *event {
                ChannelEvent::Up { peer, rail: 0 } => self.came_up(peer),
                ChannelEvent::Failed { peer, rail: 0, error, refusal } => {
                    self.failed_to_open(peer, error, refusal);
                }
                ChannelEvent::Closed { peer, rail: 0 } => {
                    if let Some(awaited) = self.awaited(peer)
                        && awaited.stage == CallStage::Closing
                    {
                        awaited.stage = CallStage::Due(Instant::now() + RETRY_AFTER);
                    }
                }
                // Further connections are not awaited (`streams.rs`).
                _ => {}
            }
        }
        if !self.rejoin.awaited.is_empty() && !self.origin.is_elsewhere() {
            self.call_all();
        }
    }

    fn awaited(&mut self, rank: PeerId) -> Option<&mut AwaitedRank> {
        self.rejoin.awaited.iter_mut().find(|awaited| awaited.rank == rank)
    }

    fn came_up(&mut self, rank: PeerId) {
        self.rejoin.admitted.retain(|other| *other != rank);
        let Some(at) = self.rejoin.awaited.iter().position(|awaited| awaited.rank == rank) else { return };
        let AwaitedRank { incarnation, .. } = self.rejoin.awaited.remove(at);
        let answer = match with!(&self.any, it => it.channel.introduction(rank)) {
            Some(said) if said.incarnation == incarnation => {
                NetAnswer::Met { incarnation, agreements: said.agreements }
            }
            said => {
                self.close(rank);
                let said = said.map(|said| said.incarnation);
                let problem = format!("incarnation {said:?} answers instead of {incarnation}");
                NetAnswer::Gone(Departure::Died, Some(problem))
            }
        };
        self.rejoin.answers.push_back((rank, answer));
    }

    fn failed_to_open(&mut self, rank: PeerId, error: ConnectError, refusal: Option<ChannelRefusal>) {
        if let Some(at) = self.rejoin.admitted.iter().position(|other| *other == rank) {
            self.rejoin.admitted.remove(at);
            self.rejoin.answers.push_back((rank, NetAnswer::Gone(Departure::Died, None)));
        }
        let Some(awaited) = self.awaited(rank) else { return };
        awaited.stage = CallStage::Closing;
        let incarnation = awaited.incarnation;
        let gone = |departure| Some(NetAnswer::Gone(departure, None));
        use ChannelRefusal::{Buffers, Claimed, Exists, Unproven};
        let answer = match (refusal, error) {
            (Some(Exists | Buffers | Claimed | Unproven), _) => None,
            (Some(ChannelRefusal::Finished), _) => gone(Departure::Finished),
            (Some(ChannelRefusal::Dropped), _) => gone(Departure::Dropped),
            (Some(refusal), _) => {
                Some(NetAnswer::Gone(Departure::Died, Some(format!("it refused the connection: {refusal}"))))
            }
            (None, ConnectError::NotListening) => gone(Departure::Died),
            (None, ConnectError::Refused | ConnectError::Unreachable | ConnectError::TimedOut) => {
                Some(NetAnswer::Unsure { incarnation })
            }
            (None, error) => Some(NetAnswer::Gone(Departure::Died, Some(error.to_string()))),
        };
        if matches!(answer, Some(NetAnswer::Gone(..))) {
            self.rejoin.awaited.retain(|awaited| awaited.rank != rank);
        }
        self.rejoin.answers.extend(answer.map(|answer| (rank, answer)));
    }

    /// Sends the requests that are due.
    fn call_all(&mut self) {
        let now = Instant::now();
        let is_due = |awaited: &AwaitedRank| matches!(awaited.stage, CallStage::Due(at) if now >= at);
        let due = self.rejoin.awaited.iter().filter(|awaited| is_due(awaited)).map(|awaited| awaited.rank);
        for rank in due.collect::<Vec<_>>() {
            let Some(address) = self.addresses.get(rank as usize).copied().flatten() else { continue };
            // The process may readmit this one at any time.
            let called = with!(&mut self.any, it => it.channel.connect(rank, 0, &address, Duration::MAX));
            match called {
                Ok(()) => self.await_in(rank, CallStage::Requested),
                Err(JoinError::Connect(error)) => {
                    self.failed_to_open(rank, error, None);
                    // There is no connection to be closed.
                    self.await_in(rank, CallStage::Due(now + RETRY_AFTER));
                }
                Err(_) => self.await_in(rank, CallStage::Due(now + RETRY_AFTER)),
            }
        }
    }

    fn await_in(&mut self, rank: PeerId, stage: CallStage) {
        if let Some(awaited) = self.awaited(rank) {
            awaited.stage = stage;
        }
    }
}

//! A barrier among the ranks that take part in agreements (all except those that were agreed to be gone), or among a
//! list of members.
//!
//! It is a dissemination barrier. In round `k`, each of `n` members sends one message to the member 2^k places on and
//! receives one from the member 2^k places back. After ceil(log2 n) rounds, each member has received a message that
//! depends on every other member.
//!
//! Every living member finishes all rounds, even after it has found that another member is gone. Each of its later
//! messages names the member that is gone. So no member waits for one that has left early, and no message of one
//! barrier remains for the next.
//!
//! A message has 4 bytes, little-endian: the member that is gone, or 2^32 - 1 if its sender knows of none. A rank of a
//! world is named by its rank, and a peer of a group by its position in the group. In worlds the tag is the number of
//! the round. In groups of peers it is, in bits 0 to 7, the number of the round, in bits 8 to 62 those of the number of
//! the call, which is the same in all of its processes, and 1 in bit 63. A process that receives another tag with this
//! bit disconnects from the sender: the two make different calls.

use std::mem::ManuallyDrop;

use nemesia_core::engine::Failure;
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::PortFault;
use nemesia_core::wire::Kind;

use super::members::{CallGroup, CallMembers};
use crate::endpoint::reserved::{BARRIER_CONTEXT, GROUP_TAG};
use crate::endpoint::{Endpoint, Mode, Request, Status};
use crate::error::Error;

/// The content of a message if its sender knows of no member that is gone.
const COMPLETE: u32 = u32::MAX;

type BarrierBytes = Box<[u8; 4]>;

/// The next step of the caller.
pub(in crate::endpoint) enum BarrierStep {
    /// The caller waits for this request and passes its result to `barrier_waited`.
    Wait(Request),
    /// The barrier has ended with this result.
    Leave(Result<(), Error>),
}

/// A barrier that this process has entered, and the buffers that the engine uses for it.
#[derive(Debug)]
pub(in crate::endpoint) struct Barrier {
    members: CallMembers,
    round: u32,
    /// Whether the message of this round was sent.
    sent: bool,
    receive: Option<(Request, BarrierBytes)>,
    /// The sends, and the positions of their receivers.
    sends: Vec<(Request, BarrierBytes, usize)>,
    broken: Option<Broken>,
    /// Why the member that this process has found gone cannot be connected with, if that is its failure.
    reason: Option<Box<str>>,
}

/// The member that is gone, by its name.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// This process has found it.
    Seen { name: usize, failure: Failure },
    /// Another member has reported it.
    Heard { name: usize, from: usize },
}

impl Barrier {
    /// Returns the positions to send to and to receive from in this round; `None` after the last round.
    fn partners(&self) -> Option<(usize, usize)> {
        partners(self.round, self.members.len(), self.members.own())
    }

    fn next_round(&mut self) {
        self.round += 1;
        self.sent = false;
    }

    fn break_off(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    fn message(&self) -> BarrierBytes {
        let gone = self
            .broken
            .map_or(COMPLETE, |(Broken::Seen { name, .. } | Broken::Heard { name, .. })| name as u32);
        Box::new(gone.to_le_bytes())
    }

    /// Returns the tag of the messages of this round, and the bits that receives ignore.
    fn tag(&self) -> (u64, u64) {
        match self.members.number() {
            Some(number) => (GROUP_TAG | number << 8 | u64::from(self.round), !GROUP_TAG),
            None => (u64::from(self.round), 0),
        }
    }

    fn outcome(&mut self) -> Result<(), Error> {
        let is_group = matches!(self.members.group(), CallGroup::Peers(_));
        match self.broken {
            None => Ok(()),
            Some(Broken::Heard { name: place, from: by }) if is_group => Err(Error::MemberLost { place, by }),
            Some(Broken::Seen { name: place, failure }) if is_group => {
                Err(Error::MemberFailed { place, failure, reason: self.reason.take() })
            }
            Some(Broken::Heard { name: rank, from: by }) => Err(Error::BarrierBroken { rank, by }),
            Some(Broken::Seen { name: rank, failure }) => {
                Err(Error::PeerFailed { rank, failure, reason: self.reason.take() })
            }
        }
    }
}

/// Returns the positions to which the member at `own` sends in this round, and from which it receives. `None` after the
/// last round.
fn partners(round: u32, count: usize, own: usize) -> Option<(usize, usize)> {
    let distance = 1_usize.checked_shl(round).filter(|distance| *distance < count)?;
    Some(((own + distance) % count, (own + count - distance) % count))
}

/// Returns the positions with which a member exchanges messages.
fn all_partners(count: usize, own: usize) -> Vec<usize> {
    (0..).map_while(|round| partners(round, count, own)).flat_map(|(to, from)| [to, from]).collect()
}

/// # Barrier
///
/// A barrier returns when every rank has entered it. Before [`Endpoint::close`] it makes sure that no rank still needs
/// this one.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// endpoint.barrier()?;
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Waits until every rank has called this function. Collective: all ranks call it, in the same order as
    /// [`Endpoint::agree`] and [`Endpoint::shrink`].
    ///
    /// Each rank sends ceil(log2 n) messages. A rank takes no part once the others have agreed that it is gone
    /// ([`Endpoint::agree`]). Messages that were sent before the barrier need not have arrived after it. One-sided
    /// operations are complete only after a flush.
    ///
    /// # How to end a program
    /// Call `barrier`, then [`Endpoint::close`]. After the barrier, no rank waits any longer for a message that this
    /// rank had to send before it. So no rank finds that this one has gone too early. `close` waits until all pending
    /// sends have left this process, and then notifies the peers that this rank has finished. If it returns
    /// [`Error::Held`] or [`Error::Timeout`], some sends have not left within the configured time, and are lost.
    ///
    /// # Errors
    /// [`Error::PeerFailed`] if a rank is gone, and [`Error::BarrierBroken`] if another rank has found that. Call
    /// [`Endpoint::shrink`] in both cases; the next barrier is among the survivors. If the rank that is gone had
    /// entered the barrier, some ranks may have left it without an error. [`Error::Excluded`] if the others have agreed
    /// that this process is gone. After any other error the barrier is still under way, and the next call continues it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.barrier_of(&CallGroup::World)
    }

    /// Waits until every member of this group has called this function.
    pub(super) fn barrier_of(&mut self, group: &CallGroup) -> Result<(), Error> {
        loop {
            match self.barrier_step(group)? {
                BarrierStep::Leave(outcome) => return outcome,
                BarrierStep::Wait(request) => {
                    let outcome = self.wait(request);
                    self.barrier_waited(outcome)?;
                }
            }
        }
    }

    /// Advances the barrier among this group until it has to wait for a request.
    pub(in crate::endpoint) fn barrier_step(&mut self, group: &CallGroup) -> Result<BarrierStep, Error> {
        self.check_origin()?;
        let barrier = match self.agreements.barrier.take_if(|barrier| barrier.members.group().is_same(group))
        {
            Some(barrier) => barrier,
            None if self.agreements.barrier.is_some() => return Err(Error::AgreementUnderWay),
            None => self.enter_barrier(group)?,
        };
        // The engine uses the barrier's buffers, so they must outlive a panic.
        let mut barrier = ManuallyDrop::new(barrier);
        let step = self.advance_barrier(&mut barrier);
        let barrier = ManuallyDrop::into_inner(barrier);
        if !matches!(step, Ok(BarrierStep::Leave(_))) {
            self.agreements.barrier = Some(barrier);
        }
        step
    }

    fn enter_barrier(&mut self, group: &CallGroup) -> Result<Barrier, Error> {
        let living = |endpoint: &Self| endpoint.agreements.members(endpoint.size());
        let members = self.enter_call(group, living, all_partners)?;
        let (receive, sends, broken, reason) = (None, Vec::new(), None, None);
        Ok(Barrier { members, round: 0, sent: false, receive, sends, broken, reason })
    }

    fn advance_barrier(&mut self, barrier: &mut Barrier) -> Result<BarrierStep, Error> {
        while let Some((to, from)) = barrier.partners() {
            if !barrier.sent {
                self.send_of_barrier(to, barrier)?;
                barrier.sent = true;
            }
            if barrier.receive.is_none() {
                self.receive_of_barrier(from, barrier)?;
            }
            match &barrier.receive {
                Some((request, _)) => return Ok(BarrierStep::Wait(*request)),
                None => barrier.next_round(),
            }
        }
        if let Some((request, ..)) = barrier.sends.last() {
            return Ok(BarrierStep::Wait(*request));
        }
        Ok(BarrierStep::Leave(barrier.outcome()))
    }

    fn send_of_barrier(&mut self, at: usize, barrier: &mut Barrier) -> Result<(), Error> {
        let to = match self.partner(barrier, at) {
            Ok(to) => to,
            Err(gone) => return self.lose_partner(barrier, at, gone),
        };
        let (bytes, (tag, _)) = (barrier.message(), barrier.tag());
        // SAFETY: the bytes are on the heap and stay unchanged in `barrier.sends` until the request is complete. The
        // endpoint owns these, and drops its engine first.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        match self.start(to, BARRIER_CONTEXT, tag, buf, Mode::Standard) {
            Ok(request) if request.is_complete() => {}
            Ok(request) => barrier.sends.push((request, bytes, at)),
            Err(error) => self.lose_partner(barrier, at, error)?,
        }
        Ok(())
    }

    fn receive_of_barrier(&mut self, at: usize, barrier: &mut Barrier) -> Result<(), Error> {
        let from = match self.partner(barrier, at) {
            Ok(from) => from,
            Err(gone) => return self.lose_partner(barrier, at, gone),
        };
        let mut bytes = BarrierBytes::default();
        // SAFETY: as for a send: the bytes are on the heap and unused until the request is complete or the engine is
        // gone.
        let buf = unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), bytes.len()) };
        let (source, (tag, ignore)) = (CoreSource::Rank(from as u32), barrier.tag());
        match self.post(Pattern { source, context: BARRIER_CONTEXT, tag, ignore }, buf) {
            Ok(request) => barrier.receive = Some((request, bytes)),
            Err(error) => self.lose_partner(barrier, at, error)?,
        }
        Ok(())
    }

    /// Returns the number of a partner.
    ///
    /// # Errors
    /// The partner is gone, and its number may be that of another peer.
    fn partner(&self, barrier: &Barrier, at: usize) -> Result<usize, Error> {
        self.number_of(&barrier.members, at).ok_or_else(|| {
            let failure = self.failure_of(&barrier.members, at).unwrap_or(Failure::Finished);
            Error::PeerFailed { rank: barrier.members.name(at), failure, reason: None }
        })
    }

    /// Records that a partner is gone, and why it cannot be connected with. Any other error is returned.
    fn lose_partner(&mut self, barrier: &mut Barrier, at: usize, error: Error) -> Result<(), Error> {
        let Error::PeerFailed { failure, reason, .. } = error else { return Err(error) };
        if barrier.broken.is_none() && failure == Failure::Unreachable {
            let kept = || self.unreached.get(&self.number_of(&barrier.members, at)?).cloned();
            barrier.reason = reason.or_else(kept);
        }
        barrier.break_off(Broken::Seen { name: barrier.members.name(at), failure });
        self.part_with(&barrier.members, at);
        Ok(())
    }

    /// Processes the result of the request that [`BarrierStep::Wait`] named.
    pub(in crate::endpoint) fn barrier_waited(
        &mut self,
        outcome: Result<Status, Error>,
    ) -> Result<(), Error> {
        if matches!(outcome, Err(Error::Unexpected { .. } | Error::Timeout(_))) {
            return outcome.map(drop);
        }
        let Some(barrier) = self.agreements.barrier.take() else { return Err(Error::Stale) };
        // As in a step.
        let mut barrier = ManuallyDrop::new(barrier);
        let processed = match barrier.receive.take() {
            Some((_, bytes)) => self.received_in_barrier(&mut barrier, outcome, *bytes),
            None => self.sent_in_barrier(&mut barrier, outcome),
        };
        self.agreements.barrier = Some(ManuallyDrop::into_inner(barrier));
        processed
    }

    fn sent_in_barrier(
        &mut self,
        barrier: &mut Barrier,
        outcome: Result<Status, Error>,
    ) -> Result<(), Error> {
        let Some((.., at)) = barrier.sends.pop() else { return Err(Error::Stale) };
        match outcome {
            Ok(_) => {}
            Err(error) => self.lose_partner(barrier, at, error)?,
        }
        Ok(())
    }

    fn received_in_barrier(
        &mut self,
        barrier: &mut Barrier,
        outcome: Result<Status, Error>,
        bytes: [u8; 4],
    ) -> Result<(), Error> {
        let (Some((_, at)), (tag, _)) = (barrier.partners(), barrier.tag()) else { return Err(Error::Stale) };
        barrier.next_round();
        let names = match barrier.members.group() {
            CallGroup::Peers(group) => group.size(),
            CallGroup::World | CallGroup::Ranks(_) => self.size(),
        };
        match outcome {
            Ok(status) => {
                let gone = u32::from_le_bytes(bytes);
                let is_valid = status.len == bytes.len() && (gone == COMPLETE || (gone as usize) < names);
                if !is_valid || status.tag != tag {
                    self.violated(barrier, at)?;
                } else if gone != COMPLETE {
                    let from = barrier.members.name(at);
                    barrier.break_off(Broken::Heard { name: gone as usize, from });
                }
            }
            Err(Error::Truncated(_)) => self.violated(barrier, at)?,
            Err(error) => self.lose_partner(barrier, at, error)?,
        }
        Ok(())
    }

    /// Fails a partner whose message is not one of this barrier.
    fn violated(&mut self, barrier: &mut Barrier, at: usize) -> Result<(), Error> {
        let fault = PortFault::Protocol { kind: Kind::Eager };
        if let Some(number) = self.number_of(&barrier.members, at) {
            self.fault(number as u32, fault);
        }
        let (rank, failure) = (barrier.members.name(at), Failure::Fault(fault));
        self.lose_partner(barrier, at, Error::PeerFailed { rank, failure, reason: None })
    }
}

#[cfg(test)]
mod tests;

//! A barrier among the ranks that take part in agreements: all except those that were agreed to be gone.
//!
//! It is a dissemination barrier. In round `k`, each of `n` ranks sends one message to the rank 2^k places on and
//! receives one from the rank 2^k places back. After ceil(log2 n) rounds, each rank has received a message that depends
//! on every other rank.
//!
//! Every living rank finishes all rounds, even after it has found that another rank is gone. Each of its later messages
//! names the rank that is gone. So no rank waits for one that has left early, and no message of one barrier remains for
//! the next.

use std::mem::ManuallyDrop;

use nemesia_core::agreement;
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::PortFault;
use nemesia_core::wire::Kind;

use crate::endpoint::{Endpoint, Mode, Request, Status};
use crate::error::Error;

/// The matching context of the barrier's messages. Their tags are the numbers of the rounds.
pub(in crate::endpoint) const CONTEXT: u16 = 65534;
/// The content of a message if its sender knows of no rank that is gone.
const COMPLETE: u32 = u32::MAX;

type BarrierBytes = Box<[u8; 4]>;

/// Checks that the caller may use a context.
///
/// # Errors
/// [`Error::Context`] if the context is reserved for barriers or agreements.
#[inline(always)]
pub(in crate::endpoint) fn free_context(context: u16) -> Result<u16, Error> {
    const { assert!(CONTEXT + 1 == agreement::CONTEXT && agreement::CONTEXT == u16::MAX) };
    if context >= CONTEXT { Err(Error::Context) } else { Ok(context) }
}

/// The next step of the caller.
pub(in crate::endpoint) enum BarrierStep {
    /// The caller waits for this request and passes its result to `barrier_waited`.
    Wait(Request),
    /// The barrier has ended with this result.
    Leave(Result<(), Error>),
}

/// A barrier that this rank has entered, and the buffers that the engine uses for it.
#[derive(Debug)]
pub(in crate::endpoint) struct Barrier {
    /// The list that the caller gave; `None` for all ranks that take part.
    group: Option<Vec<usize>>,
    /// The ranks that take part, in rising order, and the index of this rank among them.
    ranks: Vec<usize>,
    place: usize,
    round: u32,
    /// Whether the message of this round was sent.
    sent: bool,
    receive: Option<(Request, BarrierBytes)>,
    sends: Vec<(Request, BarrierBytes)>,
    broken: Option<Broken>,
}

/// The rank that is gone.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// This process has found it.
    Seen { rank: usize },
    /// Another rank has reported it.
    Heard { rank: usize, from: usize },
}

impl Barrier {
    fn distance(&self) -> Option<usize> {
        1_usize.checked_shl(self.round).filter(|distance| *distance < self.ranks.len())
    }

    /// Returns the rank to send to and the rank to receive from in this round; `None` after the last round.
    fn partners(&self) -> Option<(usize, usize)> {
        let (distance, count) = (self.distance()?, self.ranks.len());
        let (to, from) = ((self.place + distance) % count, (self.place + count - distance) % count);
        Some((self.ranks[to], self.ranks[from]))
    }

    fn next_round(&mut self) {
        self.round += 1;
        self.sent = false;
    }

    fn lose(&mut self, broken: Broken) {
        self.broken.get_or_insert(broken);
    }

    fn message(&self) -> BarrierBytes {
        let gone =
            self.broken.map_or(COMPLETE, |(Broken::Seen { rank } | Broken::Heard { rank, .. })| rank as u32);
        Box::new(gone.to_le_bytes())
    }
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
        loop {
            match self.barrier_step(None)? {
                BarrierStep::Leave(outcome) => return outcome,
                BarrierStep::Wait(request) => {
                    let outcome = self.wait(request);
                    self.barrier_waited(outcome)?;
                }
            }
        }
    }

    /// Advances the barrier among these ranks until it has to wait for a request.
    pub(in crate::endpoint) fn barrier_step(
        &mut self,
        members: Option<&[usize]>,
    ) -> Result<BarrierStep, Error> {
        self.check_origin()?;
        self.check_world()?;
        let barrier = match self.agreements.barrier.take_if(|barrier| barrier.group.as_deref() == members) {
            Some(barrier) => barrier,
            None if self.agreements.barrier.is_some() => return Err(Error::AgreementUnderWay),
            None => self.enter_barrier(members)?,
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

    fn enter_barrier(&mut self, group: Option<&[usize]>) -> Result<Barrier, Error> {
        let ranks = match group {
            Some(members) => members.to_vec(),
            None => self.agreements.members(self.size())?,
        };
        let group = group.map(<[usize]>::to_vec);
        let place = ranks.binary_search(&self.rank()).map_err(|_| Error::Excluded)?;
        let (receive, sends, broken) = (None, Vec::new(), None);
        Ok(Barrier { group, ranks, place, round: 0, sent: false, receive, sends, broken })
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
        if let Some((request, _)) = barrier.sends.last() {
            return Ok(BarrierStep::Wait(*request));
        }
        Ok(BarrierStep::Leave(match barrier.broken {
            None => Ok(()),
            Some(Broken::Heard { rank, from }) => Err(Error::BarrierBroken { rank, by: from }),
            Some(Broken::Seen { rank }) => match self.failure(rank) {
                Some(failure) => Err(Error::PeerFailed { rank, failure }),
                None => Err(Error::BarrierBroken { rank, by: self.rank() }),
            },
        }))
    }

    fn send_of_barrier(&mut self, to: usize, barrier: &mut Barrier) -> Result<(), Error> {
        let bytes = barrier.message();
        // SAFETY: the bytes are on the heap and stay unchanged in `barrier.sends` until the request is complete. The
        // endpoint owns these, and drops its engine first.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
        match self.start(to, CONTEXT, u64::from(barrier.round), buf, Mode::Standard) {
            Ok(request) if request.is_complete() => {}
            Ok(request) => barrier.sends.push((request, bytes)),
            Err(Error::PeerFailed { rank, .. }) => barrier.lose(Broken::Seen { rank }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn receive_of_barrier(&mut self, from: usize, barrier: &mut Barrier) -> Result<(), Error> {
        let mut bytes = BarrierBytes::default();
        // SAFETY: as for a send: the bytes are on the heap and unused until the request is complete or the engine is
        // gone.
        let buf = unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), bytes.len()) };
        let (source, tag) = (CoreSource::Rank(from as u32), u64::from(barrier.round));
        match self.post(Pattern { source, context: CONTEXT, tag, ignore: 0 }, buf) {
            Ok(request) => barrier.receive = Some((request, bytes)),
            Err(Error::PeerFailed { rank, .. }) => barrier.lose(Broken::Seen { rank }),
            Err(error) => return Err(error),
        }
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
        let size = self.size();
        let Some(barrier) = &mut self.agreements.barrier else { return Err(Error::Stale) };
        let Some((_, bytes)) = barrier.receive.take() else {
            barrier.sends.pop();
            return match outcome {
                Err(Error::PeerFailed { rank, .. }) => {
                    barrier.lose(Broken::Seen { rank });
                    Ok(())
                }
                outcome => outcome.map(drop),
            };
        };
        let from = barrier.partners().map_or(0, |(_, from)| from);
        barrier.next_round();
        match outcome {
            Ok(status) => {
                let gone = u32::from_le_bytes(*bytes);
                if status.len != bytes.len() || (gone != COMPLETE && gone as usize >= size) {
                    self.violated(from);
                } else if gone != COMPLETE {
                    barrier.lose(Broken::Heard { rank: gone as usize, from });
                }
            }
            Err(Error::Truncated(_)) => self.violated(from),
            Err(Error::PeerFailed { rank, .. }) => barrier.lose(Broken::Seen { rank }),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Fails a peer whose message is not one of a barrier.
    fn violated(&mut self, from: usize) {
        self.fault(from as u32, PortFault::Protocol { kind: Kind::Eager });
        if let Some(barrier) = &mut self.agreements.barrier {
            barrier.lose(Broken::Seen { rank: from });
        }
    }
}

#[cfg(test)]
mod tests;

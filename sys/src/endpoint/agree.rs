//! Going on without those that are gone: agreement among the living, and their ranking. The algorithm, and what it
//! relies on, is [`nemesia_core::agreement`]; here its messages travel, as any others, in a matching context of their
//! own.
//!
//! Agreements are counted, and each message says the number of its agreement. A process that was started again is told
//! by those that readmit it how many there were. One that lies about that can make the joining process take part in an
//! agreement that is not due, and nothing else: who hears of another number than its own breaks off with who said it,
//! by a fault that names it, and nobody waits for ever. What can't be, and what is far ahead of what two others say, is
//! not believed in the first place.

use nemesia_core::agreement::{Agreement, CONTEXT, Step, message_bytes, words};
use nemesia_core::engine::Failure;
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::PortFault;
use nemesia_core::wire::Kind;

use super::barrier::Barrier;
use super::{Endpoint, Mode, Request};
use crate::error::Error;
use crate::events;

/// More agreements than there can have been: one a microsecond, for years.
const MOST: u64 = 1 << 48;
/// How far one may be ahead of what two others say.
const AHEAD: u64 = 1 << 10;

/// What the living have agreed on: the same in each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The AND of the flags of all that took part, the living among them.
    pub flags: u64,
    /// The ranks that are gone, in rising order. A rank that has gone since is not among them.
    pub gone: Vec<usize>,
}

/// Survivors, numbered anew in the order of their ranks in the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    world: Vec<usize>,
    rank: usize,
}

impl Ranking {
    /// Our number among them, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many they are.
    pub fn size(&self) -> usize {
        self.world.len()
    }

    /// The rank in the world of a survivor.
    pub fn to_world(&self, rank: usize) -> Option<usize> {
        self.world.get(rank).copied()
    }

    /// The number of a rank of the world, if it is a survivor.
    pub fn from_world(&self, rank: usize) -> Option<usize> {
        self.world.binary_search(&rank).ok()
    }

    /// Their ranks in the world, in rising order.
    pub fn world(&self) -> &[usize] {
        &self.world
    }
}

/// The agreements of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Agreements {
    /// Number of the next.
    next: u64,
    /// What those that readmitted us said of that.
    said: Vec<(usize, u64)>,
    ongoing: Option<Ongoing>,
    /// The barrier under way, which holds buffers that the engine uses.
    pub(super) barrier: Option<Barrier>,
    /// Who was agreed to be gone: takes no part in later ones.
    gone: Vec<usize>,
    /// The others have agreed that we are.
    excluded: bool,
}

impl Agreements {
    /// The ranks of a world of `size` that were not agreed to be gone, rising.
    ///
    /// # Errors
    /// [`Error::Excluded`]: this process was.
    pub(super) fn members(&self, size: usize) -> Result<Vec<usize>, Error> {
        if self.excluded {
            return Err(Error::Excluded);
        }
        Ok((0..size).filter(|rank| !self.gone.contains(rank)).collect())
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.ongoing.is_some()
    }

    /// Number of the next, as far as is known.
    pub(super) fn number(&self) -> u64 {
        let said = (0..self.said.len()).filter(|at| self.is_credible(*at)).map(|at| self.said[at].1);
        said.fold(self.next, u64::max)
    }

    /// A rank says that others have come so far without this process.
    pub(super) fn hear(&mut self, rank: usize, number: u64) {
        self.said.push((rank, number));
    }

    /// Whether it can be so. Who readmitted us earlier than others says less, and who has come back itself, and does
    /// not know yet, says 0.
    fn is_credible(&self, at: usize) -> bool {
        let number = self.said[at].1;
        let others = self.said.iter().enumerate().filter(|(other, (_, said))| *other != at && *said > 0);
        let (count, most) =
            others.fold((0, 0), |(count, most), (_, (_, said))| (count + 1, said.max(&most).to_owned()));
        number <= MOST && (count < 2 || number.saturating_sub(most) <= AHEAD)
    }

    /// All have said it: that is the number. Returns those that are not believed, and what they said.
    fn settle(&mut self) -> Vec<(usize, u64)> {
        self.next = self.number();
        let liars =
            (0..self.said.len()).filter(|at| !self.is_credible(*at)).map(|at| self.said[at]).collect();
        self.said.clear();
        liars
    }

    /// A rank takes part again. Whether it had not.
    pub(super) fn readmit(&mut self, rank: usize) -> bool {
        let at = self.gone.iter().position(|gone| *gone == rank);
        at.map(|at| self.gone.remove(at)).is_some()
    }
}

/// An agreement under way, and the buffers that the engine uses for it.
#[derive(Debug)]
struct Ongoing {
    part: Agreement<Vec<u64>>,
    receive: Option<(Request, Vec<u8>)>,
    sends: Vec<(Request, Vec<u8>)>,
}

/// An agreement that goes on. If it is broken off, by an error or by a panic, the endpoint keeps it: the engine uses
/// its buffers, and the next call goes on with it.
struct Kept<'a> {
    endpoint: &'a mut Endpoint,
    ongoing: Option<Ongoing>,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if self.ongoing.is_some() {
            self.endpoint.agreements.ongoing = self.ongoing.take();
        }
    }
}

impl Endpoint {
    /// The ranks that this process does not know to be gone, itself included: local knowledge, which can differ from
    /// that of others. [`Endpoint::shrink`] has them agree.
    pub fn survivors(&self) -> Vec<usize> {
        (0..self.size()).filter(|&rank| self.failure(rank).is_none()).collect()
    }

    /// Agrees with all living ranks on the AND of everyone's flags and on who is gone, whoever dies meanwhile (as
    /// `MPI_Comm_agree` of ULFM). Collective: every rank that lives calls this and [`Endpoint::shrink`] in the same
    /// order.
    ///
    /// Waits as a receive does; other traffic goes on. A rank that has finished counts as gone. Messages already sent
    /// by those that are gone can still be received, and receives from any source report a failure until
    /// [`Endpoint::acknowledge_failures`], as ever.
    ///
    /// # Errors
    /// [`Error::Excluded`]: the others have agreed that this process is gone, as one of them broke off with it. Any
    /// other error leaves the agreement under way: calling again goes on with it, and the flags of the first call
    /// count.
    pub fn agree(&mut self, flags: u64) -> Result<Agreed, Error> {
        self.check_origin()?;
        if self.agreements.excluded {
            return Err(Error::Excluded);
        }
        // Which is the next, those know that were there.
        self.await_answers()?;
        for (rank, number) in self.agreements.settle() {
            self.fault(rank as u32, PortFault::Agreement { number, due: self.agreements.next });
        }
        let ongoing = self.agreements.ongoing.take().unwrap_or_else(|| self.begin(flags));
        let mut kept = Kept { endpoint: self, ongoing: Some(ongoing) };
        if let Some(ongoing) = &mut kept.ongoing {
            kept.endpoint.drive(ongoing)?;
        }
        let ended = kept.ongoing.take();
        drop(kept);
        ended.map_or(Err(Error::Stale), |ongoing| self.end(&ongoing))
    }

    /// Agrees with all living ranks on who they are: the same list in each, even if more die meanwhile (as
    /// `MPI_Comm_shrink` of ULFM). One that dies after it was agreed on stands in the list.
    ///
    /// # Errors
    /// See [`Endpoint::agree`].
    pub fn shrink(&mut self) -> Result<Ranking, Error> {
        let gone = self.agree(u64::MAX)?.gone;
        let world: Vec<usize> = (0..self.size()).filter(|rank| gone.binary_search(rank).is_err()).collect();
        let rank = world.binary_search(&self.rank()).map_err(|_| Error::Excluded)?;
        Ok(Ranking { world, rank })
    }

    fn begin(&self, flags: u64) -> Ongoing {
        let (rank, size) = (self.engine.rank(), self.engine.size());
        let set = || vec![0; words(size)];
        let mut part = Agreement::new(rank, size, flags, (set(), set()));
        let gone = |&other: &usize| self.failure(other).is_some() || self.agreements.gone.contains(&other);
        for other in (0..self.size()).filter(gone) {
            part.begin_without(other as u32);
        }
        Ongoing { part, receive: None, sends: Vec::new() }
    }

    /// Goes on until there is a decision, and every message of ours has left.
    fn drive(&mut self, ongoing: &mut Ongoing) -> Result<(), Error> {
        loop {
            match ongoing.part.step() {
                Step::Send(to) => {
                    self.tell(to, ongoing)?;
                    ongoing.part.sent();
                }
                Step::Receive(from) => self.hear(from, ongoing)?,
                Step::Done => break,
            }
        }
        while let Some((request, _)) = ongoing.sends.last() {
            match self.wait(*request) {
                Ok(_) | Err(Error::PeerFailed { .. }) => drop(ongoing.sends.pop()),
                Err(error) => return Err(error),
            }
        }
        self.forget_lost(&ongoing.part)
    }

    fn tell(&mut self, to: u32, ongoing: &mut Ongoing) -> Result<(), Error> {
        let mut bytes = vec![0; message_bytes(self.engine.size())];
        let len = ongoing.part.message(&mut bytes);
        // SAFETY: the bytes are on the heap and stay untouched in `ongoing.sends` until the request is complete; the
        // endpoint holds that, and drops its engine first.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), len) };
        match self.start(to as usize, CONTEXT, self.agreements.next, buf, Mode::Standard) {
            Ok(request) if request.is_complete() => Ok(()),
            Ok(request) => {
                ongoing.sends.push((request, bytes));
                Ok(())
            }
            // Receiving will tell.
            Err(Error::PeerFailed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn hear(&mut self, from: u32, ongoing: &mut Ongoing) -> Result<(), Error> {
        if ongoing.receive.is_none() {
            match self.post_from(from, message_bytes(self.engine.size())) {
                Ok(posted) => ongoing.receive = Some(posted),
                Err(Error::PeerFailed { .. }) => {
                    ongoing.part.failed();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        let Some((request, _)) = &ongoing.receive else { return Ok(()) };
        let outcome = self.wait(*request);
        if matches!(outcome, Err(Error::Unexpected { .. } | Error::Timeout(_))) {
            return outcome.map(drop);
        }
        let heard = ongoing.receive.take();
        let bytes = heard.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let due = self.agreements.next;
        match outcome {
            Ok(status) if status.tag != due => {
                self.fault(from, PortFault::Agreement { number: status.tag, due });
                ongoing.part.failed();
            }
            Ok(status) if ongoing.part.received(bytes.get(..status.len).unwrap_or(&[])).is_ok() => {}
            Err(Error::PeerFailed { .. }) => ongoing.part.failed(),
            Ok(_) | Err(Error::Truncated(_)) => {
                self.fault(from, PortFault::Protocol { kind: Kind::Eager });
                ongoing.part.failed();
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// It broke the rules: to us it is gone, and it learns that at once, for it waits for us.
    pub(super) fn fault(&mut self, rank: u32, fault: PortFault) {
        self.engine.fail(rank, Failure::Fault(fault));
        self.disconnect();
    }

    /// Posts a receive for the next message of an agreement from a rank. Of which it is, is looked at when it is there.
    fn post_from(&mut self, from: u32, len: usize) -> Result<(Request, Vec<u8>), Error> {
        let (source, tag, ignore) = (CoreSource::Rank(from), 0, u64::MAX);
        let mut bytes = vec![0; len];
        // SAFETY: as for a send: on the heap, and untouched until the request is complete or the engine is gone.
        let buf = unsafe { RecvBuf::from_raw(bytes.as_mut_ptr(), len) };
        let request = self.post(Pattern { source, context: CONTEXT, tag, ignore }, buf)?;
        Ok((request, bytes))
    }

    fn end(&mut self, ongoing: &Ongoing) -> Result<Agreed, Error> {
        if let Some((request, _)) = &ongoing.receive {
            self.release(*request);
        }
        let part = &ongoing.part;
        let Some(decision) = part.decision() else { return Err(Error::Stale) };
        self.agreements.next += 1;
        self.agreements.excluded = decision.excluded;
        if decision.excluded {
            return Err(Error::Excluded);
        }
        let gone: Vec<usize> = (0..self.size()).filter(|&rank| part.is_gone(rank as u32)).collect();
        self.agreements.gone.clone_from(&gone);
        Ok(Agreed { flags: decision.flags, gone })
    }

    /// Lets those that broke the rules notice that they are lost to us: they would wait for us, and others for them.
    pub(super) fn disconnect(&mut self) {
        for rank in 0..self.size() {
            if let Some(failure @ Failure::Fault(_)) = self.failure(rank)
                && self.waiter.release(rank)
            {
                events::failed(rank, failure);
            }
        }
    }

    /// What those that died have said last must not stay among the unexpected messages.
    fn forget_lost(&mut self, part: &Agreement<Vec<u64>>) -> Result<(), Error> {
        for rank in (0..self.engine.size()).filter(|&rank| part.is_lost(rank)) {
            while self.failure(rank as usize).is_some() {
                match self.post_from(rank, message_bytes(self.engine.size())) {
                    // A message that was stored: complete at once.
                    Ok((request, _bytes)) => drop(self.finish(request)),
                    Err(Error::PeerFailed { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

//! Agreement among the living ranks, and their ranking. The algorithm and its assumptions are in
//! [`nemesia_core::agreement`]. Its messages are ordinary messages in a matching context of their own.
//!
//! Agreements are counted, and each message has the number of its agreement. A process that was started again learns
//! this number from the ranks that readmit it. A rank that lies about the number can only make the joining process take
//! part in an agreement that is not due. A process that receives a message with another number than its own disconnects
//! from the sender, with a fault that names it. So no process waits forever. Impossible numbers are ignored, as are
//! numbers far above those that two other ranks sent.
//!
//! Agreements among a list of ranks have a number that is made of the list. Those among a group of peers have one that
//! is made of the group and of the count of its collective calls.

use nemesia_core::agreement::{Agreement, CONTEXT, Step, message_bytes, words};
use nemesia_core::engine::Failure;
use nemesia_core::matching::{Pattern, Source as CoreSource};
use nemesia_core::payload::{RecvBuf, SendBuf};
use nemesia_core::port::PortFault;
use nemesia_core::wire::Kind;

use super::barrier::Barrier;
use super::members::{CallGroup, CallMembers};
use crate::endpoint::reserved::GROUP_TAG;
use crate::endpoint::{Endpoint, Mode, Request};
use crate::error::Error;
use crate::events;

/// A number above the count of agreements that is possible: one in each microsecond, for years.
const MOST: u64 = 1 << 48;
/// The largest permitted difference to the numbers that two other ranks sent.
const AHEAD: u64 = 1 << 10;

/// The result of an agreement. It is the same in each living rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The AND of the flags of all ranks that took part. All living ranks did.
    pub flags: u64,
    /// The ranks that are gone, in rising order; in an agreement among peers, their positions in the group. A process
    /// that has died since is not among them.
    pub gone: Vec<usize>,
}

/// The survivors, numbered from 0 in the order of their ranks in the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranking {
    world: Vec<usize>,
    rank: usize,
}

impl Ranking {
    /// Returns the ranking of the members that are not gone.
    ///
    /// # Errors
    /// [`Error::Excluded`] if this process is none of them.
    pub(super) fn of(
        members: impl Iterator<Item = usize>,
        gone: &[usize],
        rank: usize,
    ) -> Result<Self, Error> {
        let world: Vec<usize> = members.filter(|rank| gone.binary_search(rank).is_err()).collect();
        let rank = world.binary_search(&rank).map_err(|_| Error::Excluded)?;
        Ok(Self { world, rank })
    }

    /// Returns the number of this process among the survivors.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of survivors.
    pub fn size(&self) -> usize {
        self.world.len()
    }

    /// Returns the rank in the world of a survivor.
    pub fn to_world(&self, rank: usize) -> Option<usize> {
        self.world.get(rank).copied()
    }

    /// Returns the number of a rank of the world, if it is a survivor.
    pub fn from_world(&self, rank: usize) -> Option<usize> {
        self.world.binary_search(&rank).ok()
    }

    /// Returns the survivors' ranks in the world, in rising order.
    pub fn world(&self) -> &[usize] {
        &self.world
    }
}

/// The agreements of an endpoint.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Agreements {
    /// The number of the next agreement.
    next: u64,
    /// The numbers that the ranks sent that readmitted this process.
    said: Vec<(usize, u64)>,
    ongoing: Option<Ongoing>,
    /// The barrier under way. It owns buffers that the engine uses.
    pub(in crate::endpoint) barrier: Option<Barrier>,
    /// The ranks that were agreed to be gone. They take no part in later agreements.
    gone: Vec<usize>,
    /// Whether the other ranks have agreed that this process is gone.
    excluded: bool,
}

impl Agreements {
    /// Returns the ranks of a world of `size` that were not agreed to be gone, in rising order.
    ///
    /// # Errors
    /// [`Error::Excluded`] if this process was agreed to be gone.
    pub(in crate::endpoint) fn members(&self, size: usize) -> Result<Vec<usize>, Error> {
        if self.excluded {
            return Err(Error::Excluded);
        }
        Ok((0..size).filter(|rank| !self.gone.contains(rank)).collect())
    }

    pub(in crate::endpoint) fn is_under_way(&self) -> bool {
        self.ongoing.is_some()
    }

    /// Returns the number of the next agreement, as far as it is known.
    pub(in crate::endpoint) fn number(&self) -> u64 {
        let said = (0..self.said.len()).filter(|at| self.is_credible(*at)).map(|at| self.said[at].1);
        said.fold(self.next, u64::max)
    }

    /// Records the number of agreements that a rank reports.
    pub(in crate::endpoint) fn hear(&mut self, rank: usize, number: u64) {
        self.said.push((rank, number));
    }

    /// Returns whether a number is possible. A rank that readmitted this process earlier sends a smaller number. A rank
    /// that has itself come back, and does not know the number yet, sends 0.
    fn is_credible(&self, at: usize) -> bool {
        let number = self.said[at].1;
        let others = self.said.iter().enumerate().filter(|(other, (_, said))| *other != at && *said > 0);
        let (count, most) =
            others.fold((0, 0), |(count, most), (_, (_, said))| (count + 1, said.max(&most).to_owned()));
        number <= MOST && (count < 2 || number.saturating_sub(most) <= AHEAD)
    }

    /// Settles the number after all ranks have sent theirs. Returns the ranks whose numbers were ignored, and these
    /// numbers.
    fn settle(&mut self) -> Vec<(usize, u64)> {
        self.next = self.number();
        let liars =
            (0..self.said.len()).filter(|at| !self.is_credible(*at)).map(|at| self.said[at]).collect();
        self.said.clear();
        liars
    }

    /// Lets a rank take part again. Returns whether it did not.
    pub(in crate::endpoint) fn readmit(&mut self, rank: usize) -> bool {
        let at = self.gone.iter().position(|gone| *gone == rank);
        at.map(|at| self.gone.remove(at)).is_some()
    }
}

/// An agreement under way, and the buffers that the engine uses for it.
#[derive(Debug)]
struct Ongoing {
    members: CallMembers,
    /// The tag of its messages.
    tag: u64,
    part: Agreement<Vec<u64>>,
    receive: Option<(Request, Vec<u8>)>,
    sends: Vec<(Request, Vec<u8>)>,
}

impl Ongoing {
    fn message_bytes(&self) -> usize {
        message_bytes(self.members.len() as u32)
    }
}

/// Returns the tag of the messages of agreements among these ranks. It differs from every number of an agreement of all
/// ranks, and almost surely from the tag of another list (FNV-1a).
fn tag_of(members: &[usize]) -> u64 {
    let mix = |hash: u64, member: &usize| (hash ^ *member as u64).wrapping_mul(0x0100_0000_01b3);
    GROUP_TAG | members.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// An agreement in progress. After an error or a panic the endpoint keeps it, because the engine uses its buffers. The
/// next call continues it.
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

/// # Agreement and survivors
///
/// An agreement gives the same result to all living ranks, even if ranks die meanwhile. After a failure, `shrink`
/// numbers the survivors anew.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// let agreed = endpoint.agree(0b10 | endpoint.rank() as u64)?;
/// assert_eq!((agreed.flags, agreed.gone.len()), (0b10, 0));
/// let ranking = endpoint.shrink()?;
/// assert_eq!(ranking.to_world(ranking.rank()), Some(endpoint.rank()));
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns the ranks that are not gone as far as this process knows, itself included. Other processes may know
    /// otherwise; [`Endpoint::shrink`] makes all of them agree.
    pub fn survivors(&self) -> Vec<usize> {
        (0..self.size()).filter(|&rank| self.failure(rank).is_none()).collect()
    }

    /// Agrees with all living ranks on the AND of all flags and on the ranks that are gone (`MPI_Comm_agree` of ULFM).
    ///
    /// Collective: every living rank calls this function and [`Endpoint::shrink`] in the same order. Ranks may die
    /// during the agreement. A rank that has finished counts as gone. This function waits as a receive does, and other
    /// traffic continues. Messages that ranks sent before they were gone can still be received. Receives from any
    /// source report a failure until [`Endpoint::acknowledge_failures`].
    ///
    /// # Errors
    /// [`Error::Excluded`] if the others have agreed that this process is gone, because one of them disconnected from
    /// it. After any other error the agreement is still under way. The next call continues it, with the flags of the
    /// first call.
    pub fn agree(&mut self, flags: u64) -> Result<Agreed, Error> {
        self.agree_of(&CallGroup::World, flags)
    }

    /// As [`Endpoint::agree`], of this group.
    pub(super) fn agree_of(&mut self, group: &CallGroup, flags: u64) -> Result<Agreed, Error> {
        self.check_origin()?;
        if self.agreements.ongoing.as_ref().is_some_and(|ongoing| !ongoing.members.group().is_same(group)) {
            return Err(Error::AgreementUnderWay);
        }
        match group {
            CallGroup::Peers(_) => {}
            CallGroup::Ranks(members) => self.await_answers_of(members)?,
            CallGroup::World if self.agreements.excluded => return Err(Error::Excluded),
            CallGroup::World => {
                // The ranks that took part in earlier agreements know the number of the next one.
                self.await_answers()?;
                for (rank, number) in self.agreements.settle() {
                    self.fault(rank as u32, PortFault::Agreement { number, due: self.agreements.next });
                }
            }
        }
        let ongoing = match self.agreements.ongoing.take() {
            Some(ongoing) => ongoing,
            None => self.begin(group, flags)?,
        };
        let mut kept = Kept { endpoint: self, ongoing: Some(ongoing) };
        if let Some(ongoing) = &mut kept.ongoing {
            kept.endpoint.drive(ongoing)?;
        }
        let ended = kept.ongoing.take();
        drop(kept);
        ended.map_or(Err(Error::Stale), |ongoing| self.end(&ongoing))
    }

    /// Agrees with all living ranks on the list of living ranks (`MPI_Comm_shrink` of ULFM).
    ///
    /// Every rank gets the same list, even if more ranks die during the call. A rank that dies after the agreement is
    /// in the list.
    ///
    /// # Errors
    /// As for [`Endpoint::agree`].
    pub fn shrink(&mut self) -> Result<Ranking, Error> {
        let gone = self.agree(u64::MAX)?.gone;
        Ranking::of(0..self.size(), &gone, self.rank())
    }

    fn begin(&mut self, group: &CallGroup, flags: u64) -> Result<Ongoing, Error> {
        let all = |endpoint: &Self| Ok((0..endpoint.size()).collect());
        let members = self.enter_call(group, all, |count, _| (0..count).collect())?;
        let tag = match (group, members.number()) {
            (CallGroup::Ranks(ranks), _) => tag_of(ranks),
            (_, Some(number)) => GROUP_TAG | number,
            _ => self.agreements.next,
        };
        let (size, own) = (members.len() as u32, members.own());
        let set = || vec![0; words(size)];
        let mut part = Agreement::new(own as u32, size, flags, (set(), set()));
        for at in (0..members.len()).filter(|at| *at != own) {
            let was_agreed = members.rank(at).is_some_and(|rank| self.agreements.gone.contains(&rank));
            if was_agreed || self.failure_of(&members, at).is_some() {
                part.begin_without(at as u32);
                self.part_with(&members, at);
            }
        }
        Ok(Ongoing { members, tag, part, receive: None, sends: Vec::new() })
    }

    /// Continues until there is a decision and every message of this process has left.
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
        self.forget_lost(ongoing)
    }

    fn tell(&mut self, to: u32, ongoing: &mut Ongoing) -> Result<(), Error> {
        // If the member is gone, the receive from it reports that.
        let Some(to) = self.number_of(&ongoing.members, to as usize) else { return Ok(()) };
        let mut bytes = vec![0; ongoing.message_bytes()];
        let len = ongoing.part.message(&mut bytes);
        // SAFETY: the bytes are on the heap and stay unchanged in `ongoing.sends` until the request is complete. The
        // endpoint owns these, and drops its engine first.
        let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), len) };
        match self.start(to, CONTEXT, ongoing.tag, buf, Mode::Standard) {
            Ok(request) if request.is_complete() => Ok(()),
            Ok(request) => {
                ongoing.sends.push((request, bytes));
                Ok(())
            }
            Err(Error::PeerFailed { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn hear(&mut self, from: u32, ongoing: &mut Ongoing) -> Result<(), Error> {
        let at = from as usize;
        if ongoing.receive.is_none() {
            let Some(number) = self.number_of(&ongoing.members, at) else {
                self.lose_member(ongoing, at);
                return Ok(());
            };
            match self.post_from(number as u32, ongoing.message_bytes()) {
                Ok(posted) => ongoing.receive = Some(posted),
                Err(Error::PeerFailed { .. }) => {
                    self.lose_member(ongoing, at);
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
        let due = ongoing.tag;
        let fault = match outcome {
            Ok(status) if status.tag != due => Some(PortFault::Agreement { number: status.tag, due }),
            Ok(status) if ongoing.part.received(bytes.get(..status.len).unwrap_or(&[])).is_ok() => {
                return Ok(());
            }
            Err(Error::PeerFailed { .. }) => None,
            Ok(_) | Err(Error::Truncated(_)) => Some(PortFault::Protocol { kind: Kind::Eager }),
            Err(error) => return Err(error),
        };
        if let Some((fault, number)) = fault.zip(self.number_of(&ongoing.members, at)) {
            self.fault(number as u32, fault);
        }
        self.lose_member(ongoing, at);
        Ok(())
    }

    /// Records that the member of the receive under way is gone.
    fn lose_member(&mut self, ongoing: &mut Ongoing, at: usize) {
        ongoing.part.failed();
        self.part_with(&ongoing.members, at);
    }

    /// Fails a rank that violated the protocol. The rank waits for this process, so it has to learn of the end at once.
    pub(in crate::endpoint) fn fault(&mut self, rank: u32, fault: PortFault) {
        self.engine.fail(rank, Failure::Fault(fault));
        self.disconnect_faulty();
    }

    /// Posts a receive for the next message of an agreement from a rank. The number of the agreement is checked when
    /// the message is there.
    fn post_from(&mut self, from: u32, len: usize) -> Result<(Request, Vec<u8>), Error> {
        let (source, tag, ignore) = (CoreSource::Rank(from), 0, u64::MAX);
        let mut bytes = vec![0; len];
        // SAFETY: as for a send: the bytes are on the heap and unused until the request is complete or the engine is
        // gone.
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
        let is_gone = |at: &usize| part.is_gone(*at as u32);
        let gone: Vec<usize> =
            (0..ongoing.members.len()).filter(is_gone).map(|at| ongoing.members.name(at)).collect();
        if matches!(ongoing.members.group(), CallGroup::World) {
            self.agreements.next += 1;
            self.agreements.excluded = decision.excluded;
            if !decision.excluded {
                self.agreements.gone.clone_from(&gone);
            }
        }
        if decision.excluded {
            return Err(Error::Excluded);
        }
        Ok(Agreed { flags: decision.flags, gone })
    }

    /// Disconnects from ranks that violated the protocol. Otherwise they would wait for this process, and others for
    /// them.
    pub(in crate::endpoint) fn disconnect_faulty(&mut self) {
        for rank in 0..self.numbers() {
            if let Some(failure @ Failure::Fault(_)) = self.failure(rank)
                && !self.engine.writes_late(rank as u32)
                && self.waiter.release(rank)
            {
                events::failed(rank, failure);
            }
        }
    }

    /// Receives the last messages of ranks that died, so that they do not stay among the unexpected messages.
    fn forget_lost(&mut self, ongoing: &Ongoing) -> Result<(), Error> {
        let lost = |at: &usize| ongoing.part.is_lost(*at as u32);
        for at in (0..ongoing.members.len()).filter(lost) {
            while let Some(number) = self.number_of(&ongoing.members, at)
                && self.failure(number).is_some()
            {
                match self.post_from(number as u32, ongoing.message_bytes()) {
                    // The receive of a stored message is complete at once.
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

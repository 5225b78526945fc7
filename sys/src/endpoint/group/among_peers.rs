//! Barriers and agreements among a group of peers of an endpoint that has an address.

use super::agree::Agreed;
use super::members::CallGroup;
use crate::endpoint::Endpoint;
use crate::endpoint::peers::PeerGroup;
use crate::error::Error;

/// An endpoint for collective calls among a group of peers. All processes of the group, and no others, make the same
/// call with the same group.
#[derive(Debug)]
pub struct AmongPeers<'a> {
    pub(super) endpoint: &'a mut Endpoint,
    pub(super) group: PeerGroup,
    call: CallGroup,
}

/// # Calls among peers
///
/// ```
/// use nemesia::{Config, Endpoint, testing};
///
/// # let threads = nemesia::bootstrap::threads(3).into_iter().map(|mut exchange| std::thread::spawn(move || {
/// let mut endpoint = Endpoint::alone(&Config::default())?;
/// let group = endpoint.group_with(&mut exchange)?;
/// let mut all = endpoint.among_peers(&group)?;
/// all.barrier()?;
/// assert_eq!(all.agree(0b11)?.flags, 0b11);
/// assert_eq!(all.shrink()?, group);
/// endpoint.close()
/// # }));
/// # for thread in threads.collect::<Vec<_>>() { thread.join().expect("a thread")?; }
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Returns this endpoint for collective calls among a group of peers, this process included. All processes of the
    /// group make the same calls with the same addresses in the same order. The value is not kept by the library, and
    /// can be made anew for each call. After [`Endpoint::meet`], [`PeerGroup::followed_by`] makes one group of two.
    ///
    /// Two processes that are both in several groups make their calls in the same order. A process that receives a
    /// message of another call than its own disconnects from the sender, with a fault that names it. Other processes
    /// need not know of the calls.
    ///
    /// A call connects with the members that it needs: a barrier with about 2 log2 n of them, an agreement with all. It
    /// keeps these connections. A member counts as gone from the start if it was released, or if its connection has
    /// ended. A call loses a member whose connection ends meanwhile, also if the member connects again.
    ///
    /// When a call loses a member, or finds that it is gone, this process disconnects from it and refuses its calls
    /// until [`Endpoint::connect`] or [`Endpoint::group`] is called with its address. So a member that lives, but could
    /// not be reached, does not wait for this process. Each such address takes 64 bytes, at most 65,536 are kept.
    ///
    /// # Errors
    /// [`Error::Members`] if this process is not in the group, or if a process is there twice.
    pub fn among_peers(&mut self, group: &PeerGroup) -> Result<AmongPeers<'_>, Error> {
        let call = self.check_group(group)?;
        Ok(AmongPeers { endpoint: self, group: group.clone(), call })
    }

    /// Checks a group for a collective call.
    pub(in crate::endpoint) fn check_group(&self, group: &PeerGroup) -> Result<CallGroup, Error> {
        self.address()?;
        if group.place().is_none() || !group.is_distinct() {
            return Err(Error::Members);
        }
        Ok(CallGroup::Peers(group.clone()))
    }
}

impl AmongPeers<'_> {
    /// As [`Endpoint::barrier`], among the members of the group. A member that is gone ends it with an error. Call it
    /// before [`Endpoint::close`], so that no member still needs this process.
    ///
    /// # Errors
    /// [`Error::MemberFailed`] if a member is gone, and [`Error::MemberLost`] if another member has found that: call
    /// [`AmongPeers::shrink`], and go on among the survivors. [`Error::NoPeer`] and [`Error::Unpaid`] as for
    /// [`Endpoint::rank_of`]: this process has not entered the barrier. [`Error::AgreementUnderWay`] if a barrier of
    /// another group is not finished. After any other error the barrier is under way, and the next call continues it.
    pub fn barrier(&mut self) -> Result<(), Error> {
        self.endpoint.barrier_of(&self.call)
    }

    /// As [`Endpoint::agree`], among the members of the group. [`Agreed::gone`] has the positions in the group of those
    /// that are gone, in rising order.
    ///
    /// # Errors
    /// [`Error::Excluded`] if the others have agreed that this process is gone, because one of them has lost it.
    /// [`Error::NoPeer`] and [`Error::Unpaid`] as for [`Endpoint::rank_of`]: the agreement has not begun.
    /// [`Error::AgreementUnderWay`] if an agreement of another group is not finished. After any other error the
    /// agreement is under way, and the next call continues it, with the flags of the first call.
    pub fn agree(&mut self, flags: u64) -> Result<Agreed, Error> {
        self.endpoint.agree_of(&self.call, flags)
    }

    /// Agrees with all living members on the survivors, and returns their group, in the order of this one.
    ///
    /// # Errors
    /// As for [`AmongPeers::agree`].
    pub fn shrink(&mut self) -> Result<PeerGroup, Error> {
        let gone = self.agree(u64::MAX)?.gone;
        Ok(self.group.without(&gone))
    }
}

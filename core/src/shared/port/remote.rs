//! Access to the memory of peers, and the sender-assisted copy.
//!
//! Bytes that lie in memory that their owner has allocated for its peers are copied in user space, through a mapping
//! ([`Host::get_mapped`]). Other bytes, and those of a peer whose memory cannot be mapped, are copied by the kernel.

use core::borrow::BorrowMut;

use super::{Condition, Host, Link, ShmPort};
use crate::payload::{ReceiveList, ReceiveRange, ReceiveRanges, SendRange, SendRuns};
use crate::port::{
    AccessError, Accessed, AccessedRanges, AssistedCopy, Exposure, NextChunk, Part, PeerId, RemoteAccess,
    RemoteRun, SharedCopy, describe_runs,
};
use crate::shared::assist::AssistReceiver;
use crate::shared::pool::CellRecord;
use crate::shared::sleep::WakeReason;
use crate::sync::Word64;
use crate::wire::mappable::MappableBytes;
use crate::wire::rendezvous::Descriptor;

/// Most closed links of which a port keeps a share that the peer may be writing. The receives of others end when their
/// peers are dead, or have left.
pub(super) const MOST_KEPT: usize = 8;

/// The share of a closed link, and its peer.
pub(super) type KeptShare<'a> = (PeerId, AssistReceiver<'a>);

// SAFETY: an access ends before `get` returns. Peers only read by what `expose` describes: an address, and memory
// that the owner has lent them.
unsafe impl<'a, H, L, R> RemoteAccess for ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    fn can_get(&self, peer: PeerId) -> bool {
        self.host.can_pull(peer)
    }

    fn is_accessible(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        (descriptor.is_readable() && self.host.can_pull(peer)) || self.is_mappable(peer, descriptor)
    }

    fn is_mappable(&self, peer: PeerId, descriptor: &Descriptor) -> bool {
        descriptor.mappable().is_some_and(|bytes| self.host.can_map(peer, &bytes))
    }

    fn expose(&mut self, _: PeerId, range: SendRange) -> (Descriptor, Option<Exposure>) {
        let mappable = self.host.mappable(range.address(), range.len());
        let descriptor = mappable.and_then(|bytes| Descriptor::of_mappable(&bytes));
        (descriptor.unwrap_or_else(|| Descriptor::of_address(range.address())), None)
    }

    fn expose_list(&mut self, _: PeerId, runs: &SendRuns) -> (Descriptor, Option<Exposure>) {
        (describe_runs(runs, &mut self.lists), None)
    }

    fn get_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveRanges,
        operation: u64,
    ) -> AccessedRanges {
        if !from.is_list() && (to.count() == 1 || from.mappable().is_some()) {
            return AccessedRanges::each(to, at, |at, range| self.get(peer, from, at, range, operation));
        }
        let len = to.len() as u64;
        // SAFETY: the port may use the ranges during this call.
        let mut to = unsafe { to.as_list() };
        let copied = match self.pull_ranges(peer, from, at, &mut to) {
            Ok(()) if self.has_ended(peer) => Err(AccessError::Refused),
            copied => copied,
        };
        let begun = if copied.is_ok() { len } else { 0 };
        let last = copied.map_or_else(Accessed::Failed, |()| Accessed::Done);
        AccessedRanges { last, under_way: 0, begun }
    }

    fn get(&mut self, peer: PeerId, from: &Descriptor, at: u64, to: ReceiveRange, _: u64) -> Accessed {
        let Some(address) = from.address().and_then(|address| address.checked_add(at)) else {
            return Accessed::Failed(AccessError::Range);
        };
        // SAFETY: the port may use the range during this call.
        let to = unsafe { to.as_mut_slice() };
        if let Some(bytes) = from.mappable()
            && self.host.get_mapped(peer, &bytes, at, to)
            && !self.has_ended(peer)
        {
            return Accessed::Done;
        }
        match self.host.pull(peer, address, to) {
            Ok(()) if self.has_ended(peer) => Accessed::Failed(AccessError::Refused),
            Ok(()) => Accessed::Done,
            Err(error) => Accessed::Failed(error),
        }
    }
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Returns whether a peer that may live has ended the connection. What was read of its buffers just now then does
    /// not count, because the peer may have been using them for something else.
    #[inline]
    fn has_ended(&self, peer: PeerId) -> bool {
        let link = self.links.borrow().get(peer as usize).and_then(Option::as_ref);
        link.is_none_or(|link| link.ends.cells.end_mark().has_ended())
    }

    /// Copies bytes of a peer's buffer or list, from `at` on.
    fn pull_ranges(
        &mut self,
        peer: PeerId,
        from: &Descriptor,
        at: u64,
        to: &mut ReceiveList<'_>,
    ) -> Result<(), AccessError> {
        let Self { runs, host, .. } = self;
        let len = to.len() as u64;
        if !from.is_list() {
            let address = from.address().and_then(|address| address.checked_add(at));
            let run = RemoteRun { address: address.ok_or(AccessError::Range)?, len };
            return host.pull_runs(peer, core::iter::once(run), to);
        }
        runs.hold(peer, from, |table, to| host.pull(peer, table, to))?;
        let part = runs.part(at, len).ok_or(AccessError::List)?;
        host.pull_runs(peer, part, to)
    }

    /// Returns the place of the share of a closed link.
    pub(super) fn kept_place(&mut self, peer: PeerId) -> Option<&mut Option<KeptShare<'a>>> {
        self.kept.iter_mut().find(|place| place.as_ref().is_some_and(|(writer, _)| *writer == peer))
    }

    /// Returns the description of a receive buffer, if it lies in memory that peers may map for writing.
    fn lent(&self, assist: &AssistedCopy) -> Option<MappableBytes> {
        let len = usize::try_from(assist.end).ok()?;
        self.host.mappable(assist.address, len).filter(|bytes| bytes.writable)
    }
}

impl<'a, H, L, R> SharedCopy for ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    fn is_lent(&self, _: PeerId, assist: &AssistedCopy) -> bool {
        self.lent(assist).is_some()
    }

    fn open_assist(&mut self, peer: PeerId, assist: &AssistedCopy) -> bool {
        let pieces = self.config.pieces;
        let writable = self.lent(assist);
        let words = writable.and_then(|bytes| bytes.to_words()).unwrap_or_default();
        self.link(peer).is_some_and(|link| {
            for (to, word) in link.ends.grant.buffer.iter().zip(&words[1..]) {
                to.store_relaxed(*word);
            }
            // Opening the share publishes the words.
            link.ends.assist.open(assist, pieces);
            true
        })
    }

    fn next_chunk(&mut self, peer: PeerId) -> NextChunk {
        if let Some(link) = self.link(peer) {
            return link.ends.assist.next_chunk();
        }
        // Without a place for the share, it is not known whether the peer has left it.
        let kept = self.kept_place(peer).and_then(Option::as_mut);
        kept.map_or(NextChunk::Wait, |(_, share)| share.next_chunk())
    }

    fn close_assist(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.ends.assist.close();
        }
    }

    fn keep_assist(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.traffic.conditions.set(Condition::KeepsShare, true);
        }
    }

    fn find_assist(&mut self, peer: PeerId) -> Option<AssistedCopy> {
        self.link(peer)?.ends.assist_sender.find()
    }

    fn join_assist(&mut self, peer: PeerId, end: u64) -> Option<Part> {
        let pieces = self.config.pieces;
        self.link(peer)?.ends.assist_sender.join(end, pieces)
    }

    fn next_part(&mut self, peer: PeerId) -> Option<Part> {
        self.link(peer)?.ends.assist_sender.claim()
    }

    fn end_part(&mut self, peer: PeerId, part: Part, written: bool) {
        if let Some(link) = self.link(peer) {
            link.ends.assist_sender.finish(part, written);
            // The receiver may sleep until this process has left the share.
            self.wake(peer, WakeReason::Other);
        }
    }

    fn push(&mut self, peer: PeerId, address: u64, from: &[u8]) -> bool {
        // The receiver does not change these words as long as this process has joined its share.
        let buffer = self.link(peer).and_then(|link| {
            let [key, place, extent] = link.ends.granted.buffer.each_ref().map(Word64::load_relaxed);
            MappableBytes::from_words([link.ends.assist_sender.address(), key, place, extent])
        });
        if let Some(bytes) = buffer.filter(|bytes| bytes.writable)
            && let Some(at) = address.checked_sub(bytes.address)
            && self.host.put_mapped(peer, &bytes, at, from)
        {
            return true;
        }
        self.host.push(peer, address, from)
    }
}

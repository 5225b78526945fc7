//! The end of a link with a peer that lives, and the cells that it holds.
//!
//! Messages that this process has sent before the end may lie in cells that the peer has not read. When this process
//! disconnects, it leaves them to the peer for a while ([`ShmPort::leave_cells`]): the link is closed, but the port
//! still collects the cells that the peer returns. Then, or if the port needs the cells before, it takes back those
//! that are left ([`EndMark`]). Any other end takes them back at once.

use core::borrow::BorrowMut;

use super::pace::CELL_MASK;
use super::{Condition, Host, Link, ShmPort};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::PeerId;
use crate::shared::end_mark::EndMark;
use crate::shared::pool::{CellRecord, ReturnReceiver, ReuseOrder};

/// Most closed links whose cells a port leaves to their peers.
pub(super) const MOST_LEFT: usize = 8;

/// What is left of a closed link while its peer may read cells.
#[derive(Debug)]
pub(super) struct LeftCells<'a> {
    peer: PeerId,
    /// The cells that the peer holds.
    lent: u16,
    given_back: ReturnReceiver<'a>,
    /// Those of this process and of the peer.
    end_marks: [EndMark<'a>; 2],
}

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Makes the coming close of the link with this peer leave it the cells that it holds, until it has returned them,
    /// closes its own link, or [`ShmPort::take_back_cells`] is called. The segments of both sides must stay mapped
    /// until then ([`ShmPort::has_left_cells`]), and the number has no other link.
    #[cold]
    pub fn leave_cells(&mut self, peer: PeerId) {
        if let Some(link) = self.link(peer) {
            link.traffic.conditions.set(Condition::LeavesCells, true);
        }
    }

    /// Returns whether a closed link with this peer has left it cells.
    pub fn has_left_cells(&self, peer: PeerId) -> bool {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::FreeLeftNumber) {
            return false;
        }
        self.left.iter().flatten().any(|left| left.peer == peer)
    }

    /// Takes back the cells that a closed link has left to this peer.
    #[cold]
    pub fn take_back_cells(&mut self, peer: PeerId) {
        let is_it = |it: &Option<LeftCells<'_>>| it.as_ref().is_some_and(|left| left.peer == peer);
        if let Some(at) = self.left.iter().position(is_it) {
            self.take_back_at(at);
        }
    }

    /// Collects the cells that peers have returned whose links are closed.
    #[cold]
    pub fn collect_left_cells(&mut self) {
        for at in 0..MOST_LEFT {
            let Some(left) = &mut self.left[at] else { continue };
            let mut is_over = left.end_marks[1].has_read();
            while left.lent > 0
                && let Some(entry) = left.given_back.pop()
            {
                let cell = entry & CELL_MASK;
                left.lent -= 1;
                if self.pool.give_back(cell, left.peer, ReuseOrder::First).is_err() {
                    // A peer that returns what it does not hold loses all. It could return such cells without end.
                    is_over = true;
                    break;
                }
            }
            if left.lent == 0 || is_over {
                self.take_back_at(at);
            }
        }
    }

    /// Takes back the cells of all closed links, because none is free. Returns whether there were any.
    #[cold]
    #[inline(never)]
    pub(super) fn take_back_left(&mut self) -> bool {
        let before = self.pool.free();
        self.collect_left_cells();
        if self.pool.free() == before {
            (0..MOST_LEFT).for_each(|at| self.take_back_at(at));
        }
        self.pool.free() > before
    }

    /// Tells all peers that the buffers that were offered to them are this process's own again. Call this when all
    /// requests end, before their buffers are used again.
    #[cold]
    pub fn end_offers(&self) {
        for link in self.links.borrow().iter().flatten() {
            end(link.ends.end_mark);
        }
    }

    /// Ends a link that has left the table.
    pub(super) fn end_link(&mut self, peer: PeerId, link: Link<'a>) {
        let Link { ends, traffic } = link;
        // The owner's buffers are used again when its requests have failed, after this call.
        end(ends.end_mark);
        end_reading(ends.end_mark);
        let kept = self.kept.iter_mut().find(|place| place.is_none());
        if let Some(place) = kept.filter(|_| traffic.conditions.has(Condition::KeepsShare)) {
            *place = Some((peer, ends.assist));
        }
        let place = self.left.iter_mut().find(|place| place.is_none());
        match place {
            Some(place) if traffic.conditions.has(Condition::LeavesCells) && traffic.lent > 0 => {
                let end_marks = [ends.end_mark, ends.cells.end_mark()];
                *place = Some(LeftCells { peer, lent: traffic.lent, given_back: ends.given_back, end_marks });
                self.collect_left_cells();
            }
            _ => self.take_back(peer, ends.end_mark),
        }
    }

    fn take_back_at(&mut self, at: usize) {
        if let Some(left) = self.left[at].take() {
            self.take_back(left.peer, left.end_marks[0]);
        }
    }

    fn take_back(&mut self, peer: PeerId, mine: EndMark<'a>) {
        // First of all: the peer must not take for its own what the cells hold next.
        withdraw(mine);
        self.pool.reclaim(peer);
        self.pool.forget(peer);
    }
}

fn end(mine: EndMark<'_>) {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::ForgetEnd) {
        return;
    }
    mine.end();
}

fn end_reading(mine: EndMark<'_>) {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::ForgetEndOfReading) {
        return;
    }
    mine.end_reading();
}

fn withdraw(mine: EndMark<'_>) {
    #[cfg(nemesia_injected_fault)]
    if injected(InjectedFault::RefillUnmarked) {
        return;
    }
    mine.withdraw();
}

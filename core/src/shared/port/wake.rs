//! Waking: who is told by the kernel that something has come.

use core::borrow::BorrowMut;

use super::{Host, Link, ShmPort};
use crate::port::PeerId;
use crate::shared::pool::CellRecord;
use crate::shared::sleep::{News, Waking};
use crate::wire::{Envelope, Kind};

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// After something was published for a peer: wakes it if it sleeps and that is what it sleeps for.
    #[inline(always)]
    pub(super) fn wake(&mut self, peer: PeerId, news: News) {
        let fences = self.config.fences;
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return;
        };
        match link.ends.sleep.must_wake(fences, news) {
            Waking::Awake => {}
            Waking::Counted => (link.traffic.counted, self.counted) = (true, true),
            Waking::Asleep(how) => {
                link.traffic.wakes += 1;
                self.host.wake(peer, link.ends.sleep, how);
            }
        }
    }

    /// Whether peers sleep on although they were sent something, because they lack more ([`News::Message`]), as far as we
    /// know.
    pub fn has_counted(&self) -> bool {
        self.counted
    }

    /// Wakes these peers. To be called by whoever can't go on: what it lacks, room or credit, they may give once they have
    /// looked.
    #[cold]
    pub fn wake_counted(&mut self) {
        self.counted = false;
        for peer in 0..self.peers() {
            if self.link(peer).is_some_and(|link| core::mem::take(&mut link.traffic.counted)) {
                self.wake(peer, News::Other);
            }
        }
    }
}

/// What a packet is to a receiver that sleeps.
#[inline(always)]
pub(super) fn news(envelope: &Envelope) -> News {
    // Every other kind wants an answer, or is one.
    if envelope.kind == Kind::Eager { News::Message } else { News::Other }
}

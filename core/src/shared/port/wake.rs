//! Waking sleeping peers through the kernel.

use core::borrow::BorrowMut;

use super::{Condition, Host, Link, ShmPort};
use crate::port::PeerId;
use crate::shared::pool::CellRecord;
use crate::shared::sleep::{WakeReason, Waking};
use crate::wire::{Envelope, Kind};

impl<'a, H, L, R> ShmPort<'a, H, L, R>
where
    H: Host,
    L: BorrowMut<[Option<Link<'a>>]>,
    R: BorrowMut<[CellRecord]>,
{
    /// Wakes a peer, after something was published for it, if it sleeps and the wake reason suffices.
    #[inline(always)]
    pub(super) fn wake(&mut self, peer: PeerId, wake_reason: WakeReason) {
        let fences = self.config.fences;
        let Some(link) = self.links.borrow_mut().get_mut(peer as usize).and_then(Option::as_mut) else {
            return;
        };
        match link.ends.sleep.must_wake(fences, wake_reason) {
            Waking::Awake => {}
            Waking::Counted => {
                link.traffic.conditions.set(Condition::Counted, true);
                self.counted = true;
            }
            Waking::Asleep(how) => {
                link.traffic.wakes += 1;
                self.host.wake(peer, link.ends.sleep, how);
            }
        }
    }

    /// Wakes a peer to which this packet was sent.
    #[cold]
    #[inline(never)]
    pub(super) fn wake_for(&mut self, peer: PeerId, envelope: &Envelope) {
        self.wake(peer, wake_reason(envelope));
    }

    /// Returns whether peers probably sleep although messages were sent to them, because they need more
    /// ([`WakeReason::Message`]).
    pub fn has_counted(&self) -> bool {
        self.counted
    }

    /// Wakes these peers. A process that cannot continue must call this function: the peers may release the
    /// space or credit that the process needs when they run.
    #[cold]
    pub fn wake_counted(&mut self) {
        self.counted = false;
        for peer in 0..self.peers() {
            let Some(link) = self.link(peer) else { continue };
            let was_counted = link.traffic.conditions.has(Condition::Counted);
            link.traffic.conditions.set(Condition::Counted, false);
            if was_counted {
                self.wake(peer, WakeReason::Other);
            }
        }
    }
}

/// Returns the wake reason that a packet is for a sleeping receiver.
#[inline(always)]
pub(super) fn wake_reason(envelope: &Envelope) -> WakeReason {
    // Every other kind needs an answer, or is an answer.
    let is_message = matches!(envelope.kind, Kind::Eager | Kind::EagerImmediate);
    if is_message { WakeReason::Message } else { WakeReason::Other }
}

//! What the head of a stored message says.
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

use crate::store::{Store, Stored, UnitMemory};
use crate::wire::Kind;
use crate::wire::rendezvous::{MOST_RTS_BYTES, Rts};

/// Returns the RTS of a stored message; `None` if the message is of another kind. The RTS was validated on arrival.
pub(super) fn stored_rts<M, H>(store: &Store<M, H>, id: u32, stored: &Stored) -> Option<Rts>
where
    M: UnitMemory,
    H: BorrowMut<[u32]>,
{
    if stored.kind != Kind::Rts {
        return None;
    }
    let mut head = [0; MOST_RTS_BYTES];
    let len = store.read(id, 0, &mut head);
    Rts::decode(&head[..len], stored.len)
}

/// Returns whether the sender of a stored message waits for an answer, or still has bytes of it.
pub(super) fn needs_sender<M, H>(store: &Store<M, H>, id: u32, stored: &Stored) -> bool
where
    M: UnitMemory,
    H: BorrowMut<[u32]>,
{
    let is_whole = |rts: Rts| rts.is_unasked && rts.arrived(stored.len) == rts.total;
    stored.kind.is_answered() && !stored_rts(store, id, stored).is_some_and(is_whole)
}

//! Models of the end of a connection whose two processes live.

use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::port::Stores;
use nemesia_core::sync::{Edge, Word64};

use super::Model;
use super::cells::{CellMemory, LEN, RECEIVER};
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, bytes};

/// An owner takes a cell back that its former peer may be reading.
pub(super) const WITHDRAWN: Model = Model {
    name: "ends/withdrawn",
    structure: "end mark",
    property: "what is read of a cell that was filled again for another peer does not count",
    edges: &[Edge::Withdrawal],
    injected_faults: &[InjectedFault::LookBeforeReading],
    run: withdrawn,
};

/// A peer ends a connection, and its former peer takes back the cells that it held.
pub(super) const READ: Model = Model {
    name: "ends/read",
    structure: "end mark, pool",
    property: "cells of a peer that reads no more are filled again after its last reading",
    edges: &[Edge::CellReturn],
    injected_faults: &[InjectedFault::ReturnBeforeRead],
    run: read,
};

/// The words of the first message and of the next one. A reading process may find both, so these are words of their
/// own: bytes of a cell would be a race here, which this protocol permits.
const FIRST: u64 = 1;
const NEXT: u64 = 2;

fn withdrawn(run: &Run) {
    let early = run.injected_faults(InjectedFault::LookBeforeReading);
    run.explore(3, move || {
        let (word, cell) = (Word64::new(0), [FIRST, FIRST].map(Word64::new));
        let mark = EndMark::new(&word);
        let owner = || {
            mark.withdraw();
            cell.iter().for_each(|word| word.store_relaxed(NEXT));
        };
        let peer = || {
            let before = mark.is_withdrawn();
            let read = [cell[0].load_relaxed(), cell[1].load_relaxed()];
            let is_withdrawn = if early { before } else { mark.is_withdrawn() };
            assert!(is_withdrawn || read == [FIRST; 2], "{read:?} counts");
            assert!(is_withdrawn || !before, "the mark is never reset");
        };
        both(owner, peer);
        assert!(mark.is_withdrawn() && !mark.has_read());
    });
}

fn read(run: &Run) {
    let early = run.injected_faults(InjectedFault::ReturnBeforeRead);
    run.explore(3, move || {
        let memory = CellMemory::new(1, 2);
        let word = Word64::new(0);
        let mark = EndMark::new(&word);
        let (mut owner, receiver) = (memory.owner(), memory.receiver());
        owner.writing = Stores::Cached;
        assert!(owner.send(None));
        let owning = || {
            if mark.has_read() {
                owner.pool.reclaim(RECEIVER.into());
                assert!(owner.send(None), "the cell is free");
            }
        };
        let reading = || {
            if early {
                mark.end_reading();
            }
            // The peer holds the cell for ever.
            let mut read = vec![0; LEN];
            assert!(receiver.cells.read(0, 0, &mut read));
            assert_eq!(read, bytes(1, LEN), "it was filled again");
            if !early {
                mark.end_reading();
            }
        };
        both(owning, reading);
        assert!(mark.has_read() && !mark.is_withdrawn());
    });
}

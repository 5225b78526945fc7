//! Models of the end of a connection whose two processes live.

use nemesia_core::shared::end_mark::EndMark;
use nemesia_core::shared::life;
use nemesia_core::shared::port::Stores;
use nemesia_core::sync::{Edge, Word32, Word64, withdrawal_fence};

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

/// An owner ends a connection while its peer may be reading one of its buffers.
pub(super) const ENDED: Model = Model {
    name: "ends/ended",
    structure: "end mark",
    property: "what is read of a buffer that its owner uses again does not count",
    edges: &[Edge::Withdrawal],
    injected_faults: &[InjectedFault::LookBeforeReading],
    run: ended,
};

/// A process ends, or executes another program, while its peer may be reading its memory. The kernel is its side here.
pub(super) const DIED: Model = Model {
    name: "ends/died",
    structure: "life mark",
    property: "what is read of the memory that follows does not count",
    edges: &[Edge::Withdrawal],
    injected_faults: &[InjectedFault::LookBeforeReading],
    run: died,
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
    taken_back(run, |mark| mark.withdraw(), |mark| mark.is_withdrawn());
}

fn ended(run: &Run) {
    taken_back(run, |mark| mark.end(), |mark| mark.has_ended());
}

fn died(run: &Run) {
    const HOLDER: u32 = 7;
    let early = run.injected_faults(InjectedFault::LookBeforeReading);
    run.explore(3, move || {
        let (word, memory) = (Word32::new(HOLDER), [FIRST, FIRST].map(Word64::new));
        let kernel = || {
            word.store_relaxed(HOLDER | life::OWNER_DIED);
            withdrawal_fence();
            memory.iter().for_each(|word| word.store_relaxed(NEXT));
        };
        let peer = || {
            let Some(holder) = life::holder_of(&word) else { return };
            let before = life::is_held_by(&word, holder);
            let read = [memory[0].load_relaxed(), memory[1].load_relaxed()];
            let lives = if early { before } else { life::is_held_by(&word, holder) };
            assert!(!lives || read == [FIRST; 2], "{read:?} counts");
        };
        both(kernel, peer);
        assert!(life::holder_of(&word).is_none() && !life::is_held_by(&word, HOLDER));
    });
}

/// An owner takes memory back, and its peer looks whether it has.
fn taken_back(run: &Run, take: fn(EndMark<'_>), look: fn(EndMark<'_>) -> bool) {
    let early = run.injected_faults(InjectedFault::LookBeforeReading);
    run.explore(3, move || {
        let (word, cell) = (Word64::new(0), [FIRST, FIRST].map(Word64::new));
        let mark = EndMark::new(&word);
        let owner = || {
            take(mark);
            cell.iter().for_each(|word| word.store_relaxed(NEXT));
        };
        let peer = || {
            let before = look(mark);
            let read = [cell[0].load_relaxed(), cell[1].load_relaxed()];
            let is_taken = if early { before } else { look(mark) };
            assert!(is_taken || read == [FIRST; 2], "{read:?} counts");
            assert!(is_taken || !before, "the mark is never reset");
        };
        both(owner, peer);
        assert!(look(mark) && !mark.has_read());
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

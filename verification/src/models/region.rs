//! Models of atomic operations on values in exposed memory.

use nemesia_core::sync::model::leave_undrained;
use nemesia_core::sync::{Edge, PayloadMut, PayloadWord, Word64};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Run, both, payload, three};

/// A process that sees a changed value also sees what was put before the change.
pub(super) const HANDED_OVER: Model = Model {
    name: "region/handed-over",
    structure: "atomic operation on exposed memory",
    property: "a put before an atomic operation is visible to a thread whose atomic operation follows it",
    edges: &[Edge::Region],
    injected_faults: &[],
    run: handed_over,
};

/// A process that sees the last word of a write also sees the bytes before it.
pub(super) const LAST_WORD: Model = Model {
    name: "region/last-word",
    structure: "write to exposed memory",
    property: "a thread that sees the last word of a write sees all of it, also where another one copies it on",
    edges: &[Edge::Region],
    injected_faults: &[],
    run: last_word,
};

/// Several processes operate on one value.
pub(super) const COUNTED: Model = Model {
    name: "region/counted",
    structure: "atomic operation on exposed memory",
    property: "no operation is lost, and no two see the same value",
    edges: &[],
    injected_faults: &[],
    run: counted,
};

/// The same for data that was put by non-temporal stores, which a Release does not order.
pub(super) const NON_TEMPORAL: Model = Model {
    name: "region/non-temporal",
    structure: "copy past the caches, and an atomic operation",
    property: "the same for a put with non-temporal stores",
    edges: &[Edge::Region],
    injected_faults: &[InjectedFault::Undrained],
    run: non_temporal,
};

fn non_temporal(run: &Run) {
    leave_undrained(run.injected_faults(InjectedFault::Undrained));
    run.explore(2, move || {
        let (bytes, value) = (payload(3), Word64::new(0));
        let origin = || {
            assert!(PayloadMut::from_cells(&bytes).write_non_temporal(0, &[7; 3]));
            value.update_acq_rel(Edge::Region, |old| old + 1);
        };
        let reader = || {
            if value.update_acq_rel(Edge::Region, |old| old) == 1 {
                let mut seen = [0; 3];
                assert!(PayloadMut::from_cells(&bytes).as_read().read(0, &mut seen));
                assert_eq!(seen, [7; 3], "the value is here, and the bytes are not");
            }
        };
        both(origin, reader);
    });
}

fn handed_over(run: &Run) {
    run.explore(2, move || {
        let (bytes, value) = (PayloadWord::new(0), Word64::new(0));
        let origin = || {
            bytes.set(7);
            value.update_acq_rel(Edge::Region, |old| old + 1);
        };
        let reader = || {
            // An atomic read is an update that changes nothing.
            if value.update_acq_rel(Edge::Region, |old| old) == 1 {
                assert_eq!(bytes.get(), 7, "the value is here, and the bytes are not");
            }
        };
        both(origin, reader);
    });
}

fn last_word(run: &Run) {
    run.explore(2, move || {
        let (bytes, word) = (PayloadWord::new(0), Word64::new(0));
        let (copied, copied_word) = (PayloadWord::new(0), Word64::new(0));
        let writer = || {
            bytes.set(7);
            word.store_release(7, Edge::Region);
        };
        // The owner copies a shadow to the memory of the program: the last word is read first and written last.
        let owner = || {
            let last = word.load_acquire(Edge::Region);
            if last == 7 {
                copied.set(bytes.get());
                copied_word.store_release(last, Edge::Region);
            }
        };
        let reader = || {
            if copied_word.load_acquire(Edge::Region) == 7 {
                assert_eq!(copied.get(), 7, "the last word is here, and the bytes are not");
            }
        };
        three(writer, owner, reader);
    });
}

fn counted(run: &Run) {
    run.explore(3, move || {
        let value = Word64::new(0);
        let add = || value.update_acq_rel(Edge::Region, |old| old + 1);
        let (one, two, three) = three(add, add, add);
        let mut seen = [one, two, three];
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
        assert_eq!(value.load_relaxed(), 3);
    });
}

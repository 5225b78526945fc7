//! Models of reports of released memory, which any thread may make.

use nemesia_core::regcache::Range;
use nemesia_core::regcache::releases::{Released, Releases, SeenReleases};
use nemesia_core::sync::{Edge, Word64};

use super::Model;
use crate::mutant::InjectedFault;
use crate::stage::{Extent, Run, both, three};

/// One thread reports a range, then takes its pages away.
pub(super) const REPORTED: Model = Model {
    name: "releases/reported",
    structure: "ring of released ranges (1 slot; 2 in a long run)",
    property: "a reader that knows that pages are gone has their range, or one that covers it; slots are used again",
    edges: &[Edge::ReleaseReported, Edge::ReleaseReused],
    injected_faults: &[InjectedFault::ReportLate],
    run: reported,
};

/// Two threads report at once.
pub(super) const TWO_REPORT: Model = Model {
    name: "releases/two-tell",
    structure: "ring of released ranges (1 slot)",
    property: "two threads that want one slot both keep their ranges",
    edges: &[],
    injected_faults: &[],
    run: two_report,
};

/// The ranges that one thread reports, in this order.
const RANGES: [Range; 3] =
    [Range { start: 10, end: 20 }, Range { start: 30, end: 40 }, Range { start: 50, end: 60 }];

/// Notes which of these ranges were reported to the reader.
fn listen<const N: usize>(releases: &Releases<N>, seen: &mut SeenReleases, known: &mut [bool; 3]) {
    // Each iteration brings the reader up to date, and the other threads report a few times only: the loop
    // ends.
    while let Some(released) = releases.next(seen) {
        for (range, known) in RANGES.iter().zip(known.iter_mut()) {
            *known |= match released {
                Released::Range(reported) => reported.contains(range),
                Released::All => true,
            };
        }
    }
}

fn reported(run: &Run) {
    let late = run.injected_faults(InjectedFault::ReportLate);
    one_reports::<1>(run, late);
    if run.extent == Extent::Long {
        one_reports::<2>(run, late);
    }
}

fn one_reports<const N: usize>(run: &Run, late: bool) {
    run.explore(2, move || {
        let (releases, gone) = (Releases::<N>::new(), Word64::new(0));
        let mut seen = releases.now();
        let mut known = [false; 3];
        let program = || {
            for (number, range) in (1..).zip(RANGES) {
                if !late {
                    releases.report(range);
                }
                // The kernel's lock: the next owner of the addresses knows that they were released.
                gone.store_release(number, Edge::Lock);
                if late {
                    releases.report(range);
                }
            }
        };
        let reader = || {
            // Listens at some point in between.
            listen(&releases, &mut seen, &mut known);
            let gone = gone.load_acquire(Edge::Lock) as usize;
            listen(&releases, &mut seen, &mut known);
            assert!(known[..gone].iter().all(|&known| known), "{gone} are gone, known are {known:?}");
        };
        both(program, reader);
    });
}

fn two_report(run: &Run) {
    run.explore(2, move || {
        let (releases, gone) = (Releases::<1>::new(), [Word64::new(0), Word64::new(0)]);
        let mut seen = releases.now();
        let mut known = [false; 3];
        let reports = |number: usize| {
            releases.report(RANGES[number]);
            gone[number].store_release(1, Edge::Lock);
        };
        let reader = || {
            listen(&releases, &mut seen, &mut known);
            let gone = [0, 1].map(|number: usize| gone[number].load_acquire(Edge::Lock));
            listen(&releases, &mut seen, &mut known);
            for (number, gone) in gone.into_iter().enumerate() {
                assert!(gone == 0 || known[number], "range {number} is gone and not known");
            }
        };
        three(|| reports(0), || reports(1), reader);
    });
}

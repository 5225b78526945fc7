//! Model of the segment header.

use nemesia_core::shared::layout::{Geometry, Identity, LayoutError, SegmentHeader, SegmentKind};
use nemesia_core::sync::Edge;

use super::Model;
use crate::stage::{Run, three};

/// A reader sees a complete header or none.
pub(super) const READY: Model = Model {
    name: "header/ready",
    structure: "segment header",
    property: "a reader that finds the header ready finds every field; before, it is not ready, never wrong",
    edges: &[Edge::SegmentReady],
    injected_faults: &[],
    run: ready,
};

/// The size in bytes that the header declares for the segment.
const TOTAL: u64 = 8192;

fn ready(run: &Run) {
    let geometry = Geometry { cells: 4, cell_bytes: 256, fastbox_slots: 4 };
    let identity = Identity { kind: SegmentKind::Own, geometry, number: 1, epoch: 77 };
    run.explore(3, move || {
        let header = SegmentHeader::empty();
        let look = || match header.check(&identity, TOTAL) {
            Ok(()) | Err(LayoutError::NotReady) => {}
            Err(error) => panic!("a header that is ready is wrong: {error}"),
        };
        three(|| header.publish(&identity, TOTAL), look, look);
        assert_eq!(header.check(&identity, TOTAL), Ok(()));
    });
}

//! Geometry, layouts, segment headers, extents.

use proptest::prelude::*;

use super::fabric::{FabricRegion, tiny};
use super::{cases, portion};
use crate::shared::assist::AssistLine;
use crate::shared::fastbox::FastboxSlot;
use crate::shared::layout::{
    CELL_OFFSET, Extent, Geometry, HEADER_PAGE, Identity, LINE, LayoutError, Line, MAGIC, MAX_PEERS,
    MAX_QUEUES, SegmentHeader, SegmentKind, queue_of, queue_peers,
};
use crate::shared::pool::CellHeader;
use crate::sync::Word64;
use crate::wire::LAYOUT_VERSION;

fn geometry() -> impl Strategy<Value = Geometry> {
    (2..=12u32, 4..=(1u32 << 18), 2..=12u32).prop_map(|(cells, lines, slots)| Geometry {
        cells: 1 << cells,
        cell_bytes: lines * 64,
        fastbox_slots: 1 << slots,
    })
}

/// Checks that all parts are aligned and follow one another without overlap, from `first` up to the end.
fn assert_disjoint(first: usize, parts: &[(usize, usize, usize)], total: usize) {
    let mut end = first;
    for &(start, bytes, align) in parts {
        assert!(start >= end && start.is_multiple_of(align), "{start} after {end}, aligned to {align}");
        end = start + bytes;
    }
    assert!(end <= total && total.is_multiple_of(HEADER_PAGE) && total - end < HEADER_PAGE);
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn parts_of_the_segments_are_disjoint_and_aligned(g in geometry(), queue in 0..MAX_QUEUES) {
        g.validate().unwrap();
        let (own, link, inbox) = (g.own(), g.link(), g.inbox(queue));
        let cells = g.cells as usize;
        assert!(g.return_bytes() >= cells * 4 && g.return_bytes().is_multiple_of(LINE));
        assert_disjoint(HEADER_PAGE, &[
            (own.headers, cells * size_of::<CellHeader>(), LINE),
            (own.payload, cells * g.cell_bytes as usize, LINE),
        ], own.total);
        assert_eq!(own.payload % HEADER_PAGE, CELL_OFFSET);
        assert_disjoint(size_of::<SegmentHeader>(), &[
            (link.ack, size_of::<Line>(), LINE),
            (link.assist_line, size_of::<AssistLine>(), LINE),
            (link.returns, g.return_bytes(), LINE),
            (link.fastbox, g.fastbox_slots as usize * size_of::<FastboxSlot>(), LINE),
        ], link.total);
        assert!(inbox.count.is_power_of_two() && inbox.count >= queue_peers(queue) as usize * cells);
        assert_disjoint(size_of::<SegmentHeader>(), &[
            (inbox.tail, LINE, LINE),
            (inbox.sleep, LINE, LINE),
            (inbox.entries, inbox.count * size_of::<Word64>(), 8),
        ], inbox.total);
    }

    #[test]
    fn only_documented_geometries_are_valid(
        cells in edge(4096), cell_bytes in edge(1 << 24), fastbox_slots in edge(4096),
    ) {
        let g = Geometry { cells, cell_bytes, fastbox_slots };
        let power = |value: u32| (2..=12).any(|shift| value == 1 << shift);
        let wrong = if !power(cells) {
            Some("cells")
        } else if !(256..=16_777_216).contains(&cell_bytes) || cell_bytes % 64 != 0 {
            Some("cell_bytes")
        } else if !power(fastbox_slots) {
            Some("fastbox_slots")
        } else {
            None
        };
        let found = match g.validate() {
            Ok(()) => None,
            Err(LayoutError::Geometry { field, .. }) => Some(field),
            Err(other) => panic!("{other}"),
        };
        prop_assert_eq!(found, wrong);
    }

    #[test]
    fn extent_resolves_only_ranges_within_it(
        offset: usize, count: usize, small in 0..9000usize, few in 0..200usize,
    ) {
        let region = FabricRegion::new(8192);
        let extent = region.extent();
        for (offset, count) in [(offset, count), (small, few), (offset, few), (small, count)] {
            let end = (count as u128) * 64 + offset as u128;
            let good = offset % 64 == 0 && end <= 8192;
            prop_assert_eq!(extent.resolve::<Line>(offset, count).is_ok(), good, "{} {}", offset, count);
        }
    }
}

/// Returns values near the ends of the range 1..=most, and powers of two.
fn edge(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => (2..=12u32).prop_map(|shift| 1 << shift),
        2 => (8..=24u32).prop_map(|shift| 1 << shift),
        1 => (0..=4u32).prop_map(move |below| most - below),
        1 => (0..=4u32).prop_map(move |above| most + above),
        1 => 0..=5u32,
        1 => 250..=330u32,
        1 => any::<u32>(),
    ]
}

#[test]
fn largest_geometry_has_a_layout() {
    let g = Geometry { cells: 4096, cell_bytes: 1 << 24, fastbox_slots: 4096 };
    g.validate().unwrap();
    assert_eq!(g.inbox(MAX_QUEUES - 1).count, 1 << 23);
    assert!(g.own().total > 1 << 36);
}

#[test]
fn every_number_has_one_queue_with_room_for_all_of_its_cells() {
    let mut served = [0; MAX_QUEUES];
    (0..MAX_PEERS).for_each(|number| served[queue_of(number)] += 1);
    for (queue, served) in served.into_iter().enumerate() {
        assert_eq!(served, queue_peers(queue), "queue {queue}");
    }
    assert_eq!((queue_of(0), queue_of(7), queue_of(8), queue_of(15), queue_of(16)), (0, 0, 1, 1, 2));
}

#[test]
fn declared_bytes_per_peer_cover_a_further_peer() {
    let g = tiny(1).geometry();
    for peers in [8, 9, 16, 17, 100, MAX_PEERS] {
        let queues = (0..=queue_of(peers - 1)).map(|queue| g.inbox(queue).total).sum::<usize>();
        let bytes = peers as usize * g.link().total + queues;
        assert!(bytes <= peers as usize * g.bytes_per_peer() + MAX_QUEUES * HEADER_PAGE, "{peers} peers");
    }
}

#[test]
fn segment_that_was_published_checks_and_one_that_was_not_does_not() {
    let header = SegmentHeader::empty();
    let identity = Identity { kind: SegmentKind::Own, geometry: tiny(3).geometry(), number: 2, epoch: 77 };
    assert_eq!(header.check(&identity, 4096), Err(LayoutError::NotReady));
    header.publish(&identity, 4096);
    assert_eq!(header.check(&identity, 4096), Ok(()));
}

/// Offset, length and name of each field of the header.
const FIELDS: [(usize, usize, &str); 8] = [
    (0, 8, "magic"),
    (8, 8, "total"),
    (20, 4, "kind"),
    (24, 4, "number"),
    (28, 4, "cells"),
    (32, 4, "cell_bytes"),
    (36, 4, "fastbox_slots"),
    (48, 8, "epoch"),
];

fn published(region: &FabricRegion) -> (&SegmentHeader, Identity) {
    let header = &region.view::<SegmentHeader>(0, 1)[0];
    let identity = Identity { kind: SegmentKind::Inbox, geometry: tiny(3).geometry(), number: 2, epoch: 77 };
    header.publish(&identity, 8192);
    (header, identity)
}

#[test]
fn each_field_that_differs_is_named() {
    for (offset, bytes, name) in FIELDS {
        for bit in 0..bytes * 8 {
            let region = FabricRegion::new(4096);
            let (header, identity) = published(&region);
            let word = region.word(offset);
            word.store_relaxed(word.load_relaxed() ^ 1 << (bit + offset % 8 * 8));
            match header.check(&identity, 8192) {
                Err(LayoutError::Header { field, found, expected }) => {
                    assert_eq!((field, found ^ expected), (name, 1 << bit));
                }
                other => panic!("{name}, bit {bit}: {other:?}"),
            }
        }
    }
}

#[test]
fn other_version_is_refused_before_any_other_field_is_used() {
    let region = FabricRegion::new(4096);
    let (header, identity) = published(&region);
    let word = region.word(16);
    word.store_relaxed(word.load_relaxed() + 1);
    region.word(24).store_relaxed(0);
    let version = LayoutError::Version { found: LAYOUT_VERSION + 1, ours: LAYOUT_VERSION };
    assert_eq!(header.check(&identity, 1), Err(version));
    region.word(0).store_relaxed(!MAGIC);
    assert!(matches!(header.check(&identity, 1), Err(LayoutError::Header { field: "magic", .. })));
}

#[test]
fn header_of_random_words_never_panics() {
    let mut rng = super::Rng::new(3);
    let region = FabricRegion::new(4096);
    let (header, identity) = published(&region);
    for _ in 0..portion(20_000) {
        region.corrupt(&mut rng, 0, 64);
        let _ = header.check(&identity, 8192);
    }
}

#[test]
fn extent_that_is_small_or_misaligned_is_refused() {
    let region = FabricRegion::new(4096);
    let base = region.extent().resolve::<u8>(0, 0).unwrap();
    let make = |at: usize, len: usize, want: usize| {
        // SAFETY: within the region; nothing is resolved from it.
        unsafe { Extent::new(base.add(at), len, want) }.is_ok()
    };
    assert!(make(0, 4096, 4096) && make(0, 4096, 0));
    assert!(!make(0, 4096, 4097) && !make(64, 1024, 1024) && !make(8, 0, 0));
}

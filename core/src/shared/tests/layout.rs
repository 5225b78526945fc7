//! Geometry, layouts, segment headers, extents.

use proptest::prelude::*;

use super::fabric::{FabricRegion, tiny};
use super::{cases, portion};
use crate::shared::fastbox::FastboxSlot;
use crate::shared::layout::{
    Extent, Geometry, HEADER_PAGE, Identity, LINE, LayoutError, Line, MAGIC, SegmentHeader, SegmentKind,
};
use crate::shared::pool::CellHeader;
use crate::sync::Word64;
use crate::wire::LAYOUT_VERSION;

fn geometry() -> impl Strategy<Value = Geometry> {
    (1..=4096u32, 2..=12u32, 4..=(1u32 << 18), 2..=12u32).prop_map(|(peers, cells, lines, slots)| Geometry {
        peers,
        cells: 1 << cells,
        cell_bytes: lines * 64,
        fastbox_slots: 1 << slots,
    })
}

/// Checks that all parts are aligned and follow one another without overlap, up to the end.
fn assert_disjoint(parts: &[(usize, usize, usize)], total: usize) {
    let mut end = HEADER_PAGE;
    for &(start, bytes, align) in parts {
        assert!(start >= end && start.is_multiple_of(align), "{start} after {end}, aligned to {align}");
        end = start + bytes;
    }
    assert!(end <= total && total.is_multiple_of(HEADER_PAGE) && total - end < HEADER_PAGE);
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn parts_of_the_segments_are_disjoint_and_aligned(g in geometry()) {
        g.validate().unwrap();
        let (own, inbox) = (g.own(), g.inbox());
        let (peers, cells) = (g.peers as usize, g.cells as usize);
        assert!(g.return_bytes() >= cells * 4 && g.return_bytes().is_multiple_of(LINE));
        assert_disjoint(&[
            (own.acks, peers * size_of::<Line>(), LINE),
            (own.returns, peers * g.return_bytes(), LINE),
            (own.fastboxes, peers * g.fastbox_slots as usize * size_of::<FastboxSlot>(), LINE),
            (own.headers, cells * size_of::<CellHeader>(), LINE),
            (own.payload, cells * g.cell_bytes as usize, HEADER_PAGE),
        ], own.total);
        let entries = g.queue_entries() as usize;
        assert!(entries.is_power_of_two() && entries >= peers * cells);
        assert_disjoint(&[
            (inbox.tail, LINE, LINE),
            (inbox.sleep, LINE, LINE),
            (inbox.entries, entries * size_of::<Word64>(), 8),
        ], inbox.total);
    }

    #[test]
    fn only_documented_geometries_are_valid(
        peers in edge(4096), cells in edge(4096), cell_bytes in edge(1 << 24), fastbox_slots in edge(4096),
    ) {
        let g = Geometry { peers, cells, cell_bytes, fastbox_slots };
        let power = |value: u32| (2..=12).any(|shift| value == 1 << shift);
        let wrong = if !(1..=4096).contains(&peers) {
            Some("number of processes")
        } else if !power(cells) {
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
    let g = Geometry { peers: 4096, cells: 4096, cell_bytes: 1 << 24, fastbox_slots: 4096 };
    g.validate().unwrap();
    assert_eq!(g.queue_entries(), 1 << 24);
    assert!(g.own().total > 1 << 36 && g.inbox().total > 1 << 27);
}

#[test]
fn declared_bytes_per_peer_cover_a_further_peer() {
    let per_peer = tiny(64).bytes_per_peer();
    let bytes = |peers| tiny(peers).own().total + tiny(peers).inbox().total;
    assert!(bytes(128) - bytes(64) <= 64 * per_peer + 2 * HEADER_PAGE);
}

#[test]
fn segment_that_was_published_checks_and_one_that_was_not_does_not() {
    let header = SegmentHeader::empty();
    let identity = Identity { kind: SegmentKind::Own, geometry: tiny(3), rank: 2, epoch: 77 };
    assert_eq!(header.check(&identity, 4096), Err(LayoutError::NotReady));
    header.publish(&identity, 4096);
    assert_eq!(header.check(&identity, 4096), Ok(()));
}

/// Offset, length and name of each field of the header.
const FIELDS: [(usize, usize, &str); 9] = [
    (0, 8, "magic"),
    (8, 8, "total"),
    (20, 4, "kind"),
    (24, 4, "number of processes"),
    (28, 4, "cells"),
    (32, 4, "cell_bytes"),
    (36, 4, "fastbox_slots"),
    (40, 4, "rank"),
    (48, 8, "epoch"),
];

fn published(region: &FabricRegion) -> (&SegmentHeader, Identity) {
    let header = &region.view::<SegmentHeader>(0, 1)[0];
    let identity = Identity { kind: SegmentKind::Inbox, geometry: tiny(3), rank: 2, epoch: 77 };
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

//! Addresses in mapped segments: checked ranges, and views of them. [`super::views`] says why the views may be
//! `'static`.

use std::ptr::NonNull;

use nemesia_core::shared::layout::{Extent, LayoutError, SegmentHeader};

use crate::os::Segment;

pub(super) fn extent(segment: &Segment, want: usize) -> Result<Extent, LayoutError> {
    // SAFETY: the segment is mapped readable until it is dropped; the pointers resolved here are stored
    // together with it (see `views`).
    unsafe { Extent::new(segment.as_ptr(), segment.len(), want) }
}

/// Returns `count` values at an offset. `T` is one of the core's types of shared words.
///
/// # Safety
/// `T` consists of atomic words only, so that any bytes are valid and other processes may write them; the segment
/// stays mapped while the view is used.
pub(super) unsafe fn view<T>(
    extent: &Extent,
    offset: usize,
    count: usize,
) -> Result<&'static [T], LayoutError> {
    let base: NonNull<T> = extent.resolve(offset, count)?;
    // SAFETY: `resolve` checked extent and alignment; the caller vouches for type and lifetime.
    Ok(unsafe { std::slice::from_raw_parts(base.as_ptr(), count) })
}

/// Returns the header of a segment.
pub(super) fn header(segment: &Segment) -> Result<&SegmentHeader, LayoutError> {
    let extent = extent(segment, size_of::<SegmentHeader>())?;
    // SAFETY: a header is atomic words; the result borrows the segment, so it is mapped.
    Ok(unsafe { &view::<SegmentHeader>(&extent, 0, 1)?[0] })
}

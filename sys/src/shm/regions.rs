//! The memory that peers have allocated for others, mapped into this process on first use.
//!
//! Mapping never waits. A region that cannot be mapped is remembered with the reason, so that the attempt is not
//! repeated.

mod known;

use std::os::fd::AsRawFd;

use nemesia_core::shared::layout::{Extent, LayoutError};
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::wire::mappable::MappableBytes;
use nemesia_core::wire::rma::{Access, RemoteKey, SHARED_BYTES};

use self::known::KnownRegions;
use crate::os::borrow::open_foreign;
use crate::os::{self, AttachLimits, Segment, SegmentBacking};

/// The slack in a segment's size, which may be rounded up to huge pages.
const ROUNDING: usize = 1 << 30;
const UNEXPOSED: &str = "it was unexposed";

/// The fields of a key, or of a message's description, that identify a region of a peer. A peer wrote them, and they
/// may be forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRegion {
    /// The owner's rank, which is one of this world.
    peer: u32,
    /// The number of the owner's descriptor, plus one; 0 if the region cannot be mapped.
    share: u32,
    key: u64,
    len: u64,
    writable: bool,
}

impl PeerRegion {
    #[inline]
    pub(crate) fn of_key(key: &RemoteKey) -> Self {
        let RemoteKey { rank, share, key, len, access, .. } = *key;
        Self { peer: rank, share, key, len, writable: access != Access::Read }
    }

    pub(super) const fn of_bytes(peer: u32, bytes: &MappableBytes) -> Self {
        let MappableBytes { key, len, share, writable, .. } = *bytes;
        Self { peer, share, key, len, writable }
    }
}

/// A mapped region of a peer. The window points into the segment, so it is dropped first.
#[derive(Debug)]
struct Mapped {
    window: SharedWindow<'static>,
    segment: Segment,
    /// Whether peers can take pages out of the region and so have them charged to this process.
    punchable: bool,
}

/// The regions of peers that this process has used.
#[derive(Debug)]
pub(crate) struct MappedRegions {
    known: KnownRegions,
    backing: SegmentBacking,
}

impl MappedRegions {
    /// Returns an empty table. `backing` is the kind of this world's segments.
    pub(super) fn new(backing: SegmentBacking) -> Self {
        Self { known: KnownRegions::default(), backing }
    }

    /// Returns the window of a region, and maps the region if it was not mapped; or the reason why there is none.
    /// `pid` returns the number of the owner's process.
    ///
    /// # Errors
    /// The reason, for the user.
    #[inline]
    pub(crate) fn window(
        &mut self,
        region: &PeerRegion,
        pid: impl FnOnce() -> Option<i32>,
    ) -> Result<&SharedWindow<'static>, String> {
        if !self.known.mapped(region).is_some_and(|mapped| mapped.window.is_open(region.key)) {
            self.find_window(region, pid)?;
        }
        self.known.mapped(region).map(|mapped| &mapped.window).ok_or_else(|| UNEXPOSED.into())
    }

    /// Returns whether an earlier attempt has not failed.
    pub(super) fn may_map(&self, region: &PeerRegion) -> bool {
        self.known.refused(region).is_none()
    }

    /// Unmaps all regions of a peer that is gone.
    pub(crate) fn forget(&mut self, peer: u32) {
        self.known.forget(peer);
    }

    /// Leaves the mappings to the parent, in a forked child.
    pub(super) fn leave_to_parent(&mut self) {
        std::mem::forget(std::mem::take(&mut self.known));
    }

    /// Returns the number of mappings and of refusals that are remembered.
    #[cfg(test)]
    pub(crate) fn known(&self) -> (usize, usize) {
        self.known.count()
    }

    #[cold]
    fn find_window(&mut self, region: &PeerRegion, pid: impl FnOnce() -> Option<i32>) -> Result<(), String> {
        if let Some(why) = self.known.refused(region) {
            return Err(why.clone());
        }
        // The region was unexposed. Its owner refuses operations that come in packets.
        if self.known.unmap(region) {
            return Err(UNEXPOSED.into());
        }
        let mapped = match self.map(region, pid()) {
            Ok(mapped) if !mapped.window.is_open(region.key) => {
                Err("it was unexposed, or the key is not its key".into())
            }
            mapped => mapped,
        };
        let refused = mapped.as_ref().err().cloned();
        self.known.remember(region, mapped);
        refused.map_or(Ok(()), Err)
    }

    fn map(&self, region: &PeerRegion, pid: Option<i32>) -> Result<Mapped, String> {
        let Some(descriptor) = region.share.checked_sub(1) else {
            return Err("its owner has not allocated it with nemesia".into());
        };
        let pid = pid.filter(|pid| *pid > 0).ok_or("its owner's process can't be named from here")?;
        let writable = region.writable;
        let access = if writable { os::Access::ReadWrite } else { os::Access::ReadOnly };
        let len = usize::try_from(region.len).ok().filter(|len| *len <= isize::MAX as usize / 2);
        let len = len.ok_or("it is longer than memory can be")?;
        let allow_unsealed = writable && self.backing == SegmentBacking::DevShm;
        let lengths = SHARED_BYTES + len..=SHARED_BYTES + len + ROUNDING;
        let limits = AttachLimits { lengths, allow_unsealed, keeps_pages: !writable };
        let fd = open_foreign(pid, descriptor).map_err(|error| error.to_string())?;
        let segment = Segment::attach(fd, access, limits).map_err(|error| error.to_string())?;
        if writable {
            os::limits::require_to_bear(pid, self.punchable_bytes() + segment.len() as u64)?;
        }
        let window = window_of(&segment, len, writable).map_err(|error| error.to_string())?;
        Ok(Mapped { window, segment, punchable: writable })
    }

    /// Returns the number of bytes that peers could have charged to this process: those of mapped regions from
    /// which peers can take pages.
    fn punchable_bytes(&self) -> u64 {
        let mapped = self.known.all_mapped().filter(|mapped| mapped.punchable);
        mapped.map(|mapped| mapped.segment.len() as u64).sum()
    }
}

/// Returns the window of the region in a segment.
///
/// # Errors
/// The segment is too short.
pub(crate) fn window_of(
    segment: &Segment,
    len: usize,
    writable: bool,
) -> Result<SharedWindow<'static>, LayoutError> {
    // SAFETY: the segment is mapped until it is dropped, and all callers drop it after the window.
    let extent = unsafe { Extent::new(segment.as_ptr(), segment.len(), SHARED_BYTES + len) }?;
    // SAFETY: as above. It is mapped for writing if the caller requested this. Peers use it only by copies and
    // atomics.
    unsafe { SharedWindow::new(&extent, len, writable) }
}

/// Returns the number by which peers open the segment, if the kernel enforces the access: a forged key must not
/// permit more. 0 if peers cannot map it.
pub(crate) fn share_of(segment: &Segment, access: Access) -> u32 {
    let enforced = match access {
        Access::ReadWrite => true,
        Access::Read => segment.write_sealed(),
        Access::Write => false,
    };
    let number = segment.fd().filter(|_| enforced).map(|fd| fd.as_raw_fd().cast_unsigned());
    number.map_or(0, |number| number + 1)
}

//! Regions: memory of this process that its peers may use, and the keys of regions.

use std::os::fd::AsRawFd;

use nemesia_core::engine::rma::{self, RegionId};
use nemesia_core::payload::Exposed;
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::slab::Slot;
use nemesia_core::wire::rma::SHARED_BYTES;

use super::direct::window_of;
use super::{Access, Endpoint, Refusal};
use crate::error::Error;
use crate::os::{Segment, random};

/// Bytes of a [`RemoteKey`].
pub const KEY_BYTES: usize = nemesia_core::wire::rma::KEY_BYTES;
/// Most regions of an endpoint.
const MOST_REGIONS: usize = 1 << 20;

/// Memory of this process that its peers may use, by value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region(pub(super) RegionId);

impl Region {
    /// As one number, for C.
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// The inverse of [`Region::to_bits`]. Any number is safe: one that names no region gives [`Error::Region`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(RegionId::from_bits(bits))
    }
}

/// What a process needs to use a region of another. Plain bytes that travel by any means, a message for instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey(pub(super) rma::RemoteKey);

impl RemoteKey {
    /// As bytes.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0.to_bytes()
    }

    /// The inverse of [`RemoteKey::to_bytes`]; `None` for bytes that are none of this version. A key that was tampered
    /// with is refused by the region's owner.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        rma::RemoteKey::from_bytes(bytes).map(Self)
    }

    /// Whose region it is.
    pub fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// Bytes of the region.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

/// Memory that the endpoint has allocated, and the region that it is. The window points into the segment, so it is
/// dropped first.
#[derive(Debug)]
pub(super) struct Allocation {
    region: Region,
    window: SharedWindow<'static>,
    segment: Segment,
    len: usize,
}

impl Endpoint {
    /// Allocates zeroed memory that peers may use, until [`Endpoint::unexpose`]. Peers of this machine map it, where
    /// the kernel lets them and keeps `access` in force ([`Endpoint::path`]), and use it without this process's taking
    /// part. It is used here by
    /// [`Endpoint::read_region`] and [`Endpoint::write_region`], or through its address.
    ///
    /// With [`Access::Read`] and [`Access::Write`] no other process can take pages out of the memory. With
    /// [`Access::ReadWrite`] any process that may use the region directly can: a page that was taken out reads as
    /// zeroes, here and there, and is allocated again by the process that touches it first. Such a region is therefore
    /// never on huge pages. A peer whose memory is limited by a cgroup maps it only if it could bear the whole region,
    /// or is in the owner's cgroup.
    ///
    /// # Errors
    /// What the operating system says; nothing is exposed.
    pub fn allocate(&mut self, len: usize, access: Access) -> Result<Region, Error> {
        self.check_origin()?;
        let bytes = len.checked_add(SHARED_BYTES).ok_or(Error::Regions { most: MOST_REGIONS })?;
        const NAME: &str = "nemesia-region";
        let options = &self.config.segments;
        let segment = match access {
            Access::ReadWrite => Segment::create(NAME, bytes, &options.for_foreign_writers())?,
            // Nobody writes it by mapping it. A region for reading that can't be sealed is used in packets; one for
            // writing always is.
            Access::Read | Access::Write => Segment::create_sealed(NAME, bytes, options)?,
        };
        segment.seal_seals()?;
        let window = window_of(&segment, len, true)?;
        let key = u64::from_le_bytes(random()?);
        self.make_region_room()?;
        // SAFETY: in the mapping, behind its first page.
        let base = unsafe { segment.as_ptr().add(SHARED_BYTES) };
        // SAFETY: mapped readable and writable, and kept until the region is unexposed or the engine is gone;
        // references to it are made by nobody.
        let memory = unsafe { Exposed::from_shared(base.as_ptr(), len) };
        let region = self.engine.expose(memory, access, key).map(Region);
        let region = region.ok_or(Error::Regions { most: MOST_REGIONS })?;
        window.set_key(key);
        self.allocations.push(Allocation { region, window, segment, len });
        Ok(region)
    }

    /// Lets peers use `len` bytes at `base`, until [`Endpoint::unexpose`] or the endpoint is dropped. The key that
    /// opens them is new each time.
    ///
    /// # Errors
    /// See [`Error`]; nothing is exposed.
    ///
    /// # Safety
    /// Until then: the bytes are initialised and readable, and writable if `access` lets peers write; no reference to
    /// them is alive while a function of this endpoint runs; other threads use them meanwhile only by atomic
    /// operations.
    pub unsafe fn expose(&mut self, base: *mut u8, len: usize, access: Access) -> Result<Region, Error> {
        self.check_origin()?;
        let key = u64::from_le_bytes(random()?);
        self.make_region_room()?;
        // SAFETY: the caller's promise.
        let memory = unsafe { Exposed::from_raw(base, len) };
        self.engine.expose(memory, access, key).map(Region).ok_or(Error::Regions { most: MOST_REGIONS })
    }

    /// What others need to use a region.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn remote_key(&mut self, region: Region) -> Result<RemoteKey, Error> {
        let mut key = self.engine.remote_key(region.0).ok_or(Error::Region)?;
        if let Some(Allocation { segment, .. }) = self.allocation(region) {
            // Only what the kernel keeps in force is shared: a forged key must not give more.
            let kept = match key.access {
                Access::ReadWrite => true,
                Access::Read => segment.write_sealed(),
                Access::Write => false,
            };
            let number = segment.fd().filter(|_| kept).map(|fd| fd.as_raw_fd().cast_unsigned());
            key.share = number.map_or(0, |number| number + 1);
        }
        Ok(RemoteKey(key))
    }

    /// Takes a region back: operations on it are refused from now on. Memory that was allocated is freed.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn unexpose(&mut self, region: Region) -> Result<(), Error> {
        self.check_origin()?;
        if !self.engine.unexpose(region.0) {
            return Err(Error::Region);
        }
        if let Some(at) = self.allocations.iter().position(|allocation| allocation.region == region) {
            // Those who have mapped it see that, and ask us.
            self.allocations.swap_remove(at).window.set_key(0);
        }
        Ok(())
    }

    /// Address and length of memory that was allocated; valid until the region is unexposed or the endpoint is dropped.
    /// What is promised to [`Endpoint::expose`] holds for who uses it.
    pub fn region_memory(&self, region: Region) -> Option<(*mut u8, usize)> {
        let found = self.allocation(region)?;
        Some((found.segment.as_ptr().as_ptr().wrapping_add(SHARED_BYTES), found.len))
    }

    /// Copies bytes out of a region, from `at`.
    ///
    /// # Errors
    /// [`Error::Region`], or [`Error::Refused`] when they are not all in it.
    pub fn read_region(&mut self, region: Region, at: usize, to: &mut [u8]) -> Result<(), Error> {
        self.check_origin()?;
        let rank = self.rank();
        let memory = self.engine.region_memory(region.0).ok_or(Error::Region)?;
        let bounds = Error::Refused { rank, refusal: Refusal::Bounds, count: 1 };
        memory.read(at, to).then_some(()).ok_or(bounds)
    }

    /// Copies bytes into a region that was allocated, or into which peers may put, from `at`.
    ///
    /// # Errors
    /// [`Error::Region`], or [`Error::Refused`] when they do not all fit, or the memory may be read-only.
    pub fn write_region(&mut self, region: Region, at: usize, from: &[u8]) -> Result<(), Error> {
        self.check_origin()?;
        let rank = self.rank();
        let refused = |refusal| Error::Refused { rank, refusal, count: 1 };
        let writable = self.remote_key(region)?.0.access.allows(Access::Write);
        if !writable && self.allocation(region).is_none() {
            return Err(refused(Refusal::Access));
        }
        let mut memory = self.engine.region_memory(region.0).ok_or(Error::Region)?;
        memory.write(at, from).then_some(()).ok_or(refused(Refusal::Bounds))
    }

    /// Puts with notification that are done in a region, since it was exposed.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn notifications(&mut self, region: Region) -> Result<u64, Error> {
        self.engine.notifications(region.0).ok_or(Error::Region)
    }
}

impl Endpoint {
    fn make_region_room(&mut self) -> Result<(), Error> {
        let (capacity, used) = self.engine.region_count();
        if used == capacity && capacity < MOST_REGIONS {
            self.engine.regions_mut().resize_with((2 * capacity).max(8), Slot::default);
        }
        Ok(())
    }

    fn allocation(&self, region: Region) -> Option<&Allocation> {
        self.allocations.iter().find(|allocation| allocation.region == region)
    }
}

//! Regions: memory of this process that its peers may use, and the keys of regions.

use std::os::fd::AsRawFd;

use nemesia_core::engine::rma::{self, RegionId};
use nemesia_core::payload::Exposed;
use nemesia_core::shared::window::SharedWindow;
use nemesia_core::wire::rma::SHARED_BYTES;

use super::direct::window_of;
use super::{Access, Endpoint, Refusal};
use crate::error::Error;
use crate::os::{Segment, random};

/// The number of bytes of a [`RemoteKey`].
pub const KEY_BYTES: usize = nemesia_core::wire::rma::KEY_BYTES;
/// The largest number of regions of an endpoint.
const MOST_REGIONS: usize = 1 << 20;

/// A region, by value: memory of this process that its peers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region(pub(super) RegionId);

impl Region {
    /// Returns the region as one number, for C.
    pub const fn to_bits(self) -> u64 {
        self.0.to_bits()
    }

    /// Returns the region that [`Region::to_bits`] made into this number. Any number is safe: if it names no
    /// region, calls return [`Error::Region`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(RegionId::from_bits(bits))
    }
}

/// The key that a process needs to use a region of another process. It is plain bytes and travels by any means,
/// for instance in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey(pub(super) rma::RemoteKey);

impl RemoteKey {
    /// Returns the key as bytes.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0.to_bytes()
    }

    /// Returns the key that these bytes are, or `None` if they are no key of this version. The region's owner
    /// refuses a forged key.
    pub fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        rma::RemoteKey::from_bytes(bytes).map(Self)
    }

    /// Returns the rank that owns the region.
    pub fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// Returns the number of bytes of the region.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

/// A region that the endpoint allocated, and its memory. The window points into the segment, so it is dropped
/// first.
#[derive(Debug)]
pub(super) struct Allocation {
    region: Region,
    window: SharedWindow<'static>,
    segment: Segment,
    len: usize,
}

/// # Regions
///
/// A region is memory of this process that its peers may use by one-sided operations. Its key is plain bytes: a
/// peer that has the key can use the region, within its access.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Access, RemoteKey};
///
/// let region = endpoint.allocate(4096, Access::ReadWrite)?;
/// endpoint.write_region(region, 0, b"nemesia!")?;
/// let bytes = endpoint.remote_key(region)?.to_bytes();
/// assert_eq!(RemoteKey::from_bytes(&bytes).map(|key| key.len()), Some(4096));
/// endpoint.unexpose(region)?;
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Allocates zeroed memory as a region that peers may use until [`Endpoint::unexpose`].
    ///
    /// Peers of this machine map the region if the kernel permits it and enforces `access`
    /// ([`Endpoint::path`]). They then use it without any progress of this process. This process uses the
    /// region by [`Endpoint::read_region`] and [`Endpoint::write_region`], or through its address
    /// ([`Endpoint::region_memory`]).
    ///
    /// With [`Access::Read`] and [`Access::Write`] no other process can take pages out of the memory. With
    /// [`Access::ReadWrite`], any process that may use the region directly can do so. A page that was taken out
    /// reads as zeroes in all processes, and the first process that touches it allocates it again. Such a
    /// region is therefore never on huge pages. If a cgroup limits a peer's memory, the peer maps the region in
    /// two cases only: the limit has room for the whole region, or the owner is in the same cgroup.
    ///
    /// # Errors
    /// The error of the operating system; nothing is exposed.
    pub fn allocate(&mut self, len: usize, access: Access) -> Result<Region, Error> {
        self.check_origin()?;
        let bytes = len.checked_add(SHARED_BYTES).ok_or(Error::Regions { most: MOST_REGIONS })?;
        const NAME: &str = "nemesia-region";
        let options = &self.config.segments;
        let segment = match access {
            Access::ReadWrite => Segment::create(NAME, bytes, &options.for_foreign_writers())?,
            // No peer writes such a region by mapping it. A read-only region that the kernel cannot seal is
            // used in packets; a write-only region always is.
            Access::Read | Access::Write => Segment::create_sealed(NAME, bytes, options)?,
        };
        segment.seal_seals()?;
        let window = window_of(&segment, len, true)?;
        let key = u64::from_le_bytes(random()?);
        self.make_region_room()?;
        // SAFETY: the address is inside the mapping, after its first page.
        let base = unsafe { segment.as_ptr().add(SHARED_BYTES) };
        // SAFETY: the memory is mapped readable and writable, and kept until the region is unexposed or the
        // engine is gone. This crate makes no reference to it.
        let memory = unsafe { Exposed::from_shared(base.as_ptr(), len) };
        let region = self.engine.expose(memory, access, key).map(Region);
        let region = region.ok_or(Error::Regions { most: MOST_REGIONS })?;
        window.set_key(key);
        self.allocations.push(Allocation { region, window, segment, len });
        Ok(region)
    }

    /// Exposes `len` bytes at `base` to peers, until [`Endpoint::unexpose`] or until the endpoint is dropped.
    /// Each call makes a new key.
    ///
    /// Peers use this memory in packets, which this process executes when it makes progress.
    ///
    /// # Errors
    /// See [`Error`]; nothing is exposed.
    ///
    /// # Safety
    /// Until then, the bytes are initialised and readable, and writable if `access` permits peers to write. No
    /// reference to them is alive while a function of this endpoint runs. Other threads use them only by atomic
    /// operations.
    pub unsafe fn expose(&mut self, base: *mut u8, len: usize, access: Access) -> Result<Region, Error> {
        self.check_origin()?;
        let key = u64::from_le_bytes(random()?);
        self.make_region_room()?;
        // SAFETY: the caller's promise.
        let memory = unsafe { Exposed::from_raw(base, len) };
        self.engine.expose(memory, access, key).map(Region).ok_or(Error::Regions { most: MOST_REGIONS })
    }

    /// Returns the key that other processes need to use a region.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn remote_key(&mut self, region: Region) -> Result<RemoteKey, Error> {
        let mut key = self.engine.remote_key(region.0).ok_or(Error::Region)?;
        if let Some(Allocation { segment, .. }) = self.allocation(region) {
            // The key names the descriptor only if the kernel enforces the access: a forged key must not permit
            // more.
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

    /// Unexposes a region. From now on operations on it are refused. Memory that was allocated is freed.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn unexpose(&mut self, region: Region) -> Result<(), Error> {
        self.check_origin()?;
        if !self.engine.unexpose(region.0) {
            return Err(Error::Region);
        }
        if let Some(at) = self.allocations.iter().position(|allocation| allocation.region == region) {
            // Peers that have mapped the region see that its key is gone, and send packets, which this process
            // refuses.
            self.allocations.swap_remove(at).window.set_key(0);
        }
        Ok(())
    }

    /// Returns the address and the length of a region that was allocated.
    ///
    /// They are valid until the region is unexposed or the endpoint is dropped. Code that uses the address
    /// keeps the promises of [`Endpoint::expose`].
    pub fn region_memory(&self, region: Region) -> Option<(*mut u8, usize)> {
        let found = self.allocation(region)?;
        Some((found.segment.as_ptr().as_ptr().wrapping_add(SHARED_BYTES), found.len))
    }

    /// Copies bytes out of a region, from offset `at`.
    ///
    /// # Errors
    /// [`Error::Region`], or [`Error::Refused`] if the region ends before the last byte.
    pub fn read_region(&mut self, region: Region, at: usize, to: &mut [u8]) -> Result<(), Error> {
        self.check_origin()?;
        let rank = self.rank();
        let memory = self.engine.region_memory(region.0).ok_or(Error::Region)?;
        let bounds = Error::Refused { rank, refusal: Refusal::Bounds, count: 1 };
        memory.read(at, to).then_some(()).ok_or(bounds)
    }

    /// Copies bytes into a region that was allocated or that peers may write, at offset `at`.
    ///
    /// # Errors
    /// [`Error::Region`], or [`Error::Refused`] if the bytes do not all fit or the memory may be read-only.
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

    /// Returns the number of puts with notification that were completed in a region since it was exposed.
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
            self.engine.grow_regions(capacity.max(8));
        }
        Ok(())
    }

    fn allocation(&self, region: Region) -> Option<&Allocation> {
        self.allocations.iter().find(|allocation| allocation.region == region)
    }
}

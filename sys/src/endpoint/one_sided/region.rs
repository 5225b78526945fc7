//! Regions: memory of this process that its peers may use, and the keys of regions.

use std::time::Duration;

use nemesia_core::engine::rma::{self, Addressing, ExposeError, RegionId};
use nemesia_core::payload::Exposed;

use crate::endpoint::buffer::Allocation;
use crate::endpoint::wait::{Awaited, Wait};
use crate::endpoint::{Access, Endpoint, Refusal};
use crate::error::Error;
use crate::os::random;

/// The number of bytes of a [`RemoteKey`].
pub const KEY_BYTES: usize = nemesia_core::wire::rma::KEY_BYTES;
/// The time within which ranks on other machines must stop to access a region that is unexposed.
const WITHDRAWAL: Duration = Duration::from_secs(1);
/// The largest number of regions of an endpoint.
const MOST_REGIONS: usize = 1 << 20;

/// A region, by value: memory of this process that its peers may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region(pub(in crate::endpoint) RegionId);

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

/// A region of another process: its owner's rank, and its key of 64 bits. They are all that an operation needs
/// ([`RemoteKey::new`]).
///
/// The owner's own value ([`Endpoint::remote_key`]) also has the length and the access of the region. With them,
/// operations that the owner would refuse are refused at once, and allocated regions can be mapped
/// ([`Endpoint::path`]). All but the rank are plain bytes, which travel by any means, for instance in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteKey(pub(in crate::endpoint) rma::RemoteKey);

impl RemoteKey {
    /// Returns the region that a rank exposes with this key now. Nothing else is known of it, so only its owner
    /// checks the operations on it.
    ///
    /// The key is one that the owner has chosen ([`ExposeOptions::key`]), or was got by [`RemoteKey::key`].
    pub fn new(rank: usize, key: u64) -> Self {
        Self(rma::RemoteKey::new(u32::try_from(rank).unwrap_or(u32::MAX), key))
    }

    /// Returns all but the rank as bytes.
    pub fn to_bytes(&self) -> [u8; KEY_BYTES] {
        self.0.to_bytes()
    }

    /// Returns the region of a rank that these bytes describe, or `None` if they are no key of this version. The
    /// region's owner refuses a forged key.
    pub fn from_bytes(rank: usize, bytes: &[u8; KEY_BYTES]) -> Option<Self> {
        rma::RemoteKey::from_bytes(u32::try_from(rank).unwrap_or(u32::MAX), bytes).map(Self)
    }

    /// Returns the key of 64 bits.
    pub fn key(&self) -> u64 {
        self.0.key
    }

    /// Returns the offset of the region's first byte: its address if the region is exposed by address, else 0.
    pub fn base(&self) -> u64 {
        self.0.base
    }

    /// Returns the rank that owns the region.
    pub fn rank(&self) -> usize {
        self.0.rank as usize
    }

    /// Returns the number of bytes of the region; [`u64::MAX`] if it is not known.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Returns whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }
}

/// The choices of a process that exposes memory ([`Endpoint::expose_as`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExposeOptions {
    /// The key of the region. It may be any number that no other region of this process has now.
    ///
    /// A chosen key names the region that is exposed with it now: once the region is unexposed and another one is
    /// exposed with the same key, operations of peers go to the other one. `None` chooses a random key, which is new
    /// for each region and therefore never names a later one. Peers that were not given it cannot guess it.
    pub key: Option<u64>,
    /// Whether peers name the bytes of the region by their offset from the first byte, or by their address in the
    /// memory of this process.
    pub addressing: Addressing,
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
/// assert_eq!(RemoteKey::from_bytes(0, &bytes).map(|key| key.len()), Some(4096));
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
    /// The region may also hold messages. Peers copy messages sent from it through their mapping. If it is
    /// [`Access::ReadWrite`], a sender that waits also writes through its mapping part of a large message that is
    /// received into the region. For memory that safe code uses as a slice, see [`Endpoint::allocate_buffer`].
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
        self.make_region_room()?;
        let allocation = self.new_allocation(len, access)?;
        // SAFETY: the memory is mapped readable and writable, and kept until the region is unexposed or the
        // engine is gone. This crate makes no reference to it.
        let memory = unsafe { Exposed::from_shared(allocation.base().as_ptr(), len) };
        let region = self.engine.expose(memory, access, allocation.key(), Addressing::Offset);
        let region = region.map(Region).map_err(unexposed)?;
        self.allocations.push((region, allocation));
        Ok(region)
    }

    /// Exposes `len` bytes at `base` to peers, until [`Endpoint::unexpose`] or until the endpoint is dropped.
    /// Each call makes a new random key, and peers name the bytes by their offset: the defaults of
    /// [`ExposeOptions`].
    ///
    /// Peers use this memory in packets, which this process executes when it makes progress.
    ///
    /// # Errors
    /// See [`Error`]; nothing is exposed.
    ///
    /// # Safety
    /// Until then, the bytes are initialised and readable, and writable if `access` permits peers to write. No
    /// reference to them is alive while a function of this endpoint runs. Other threads use them only by atomic
    /// operations. With [`Config::net_direct_bytes`](crate::Config::net_direct_bytes) peers use them at any time: no
    /// reference to them is alive until then, and other accesses than those by this endpoint are atomic.
    #[inline]
    pub unsafe fn expose(&mut self, base: *mut u8, len: usize, access: Access) -> Result<Region, Error> {
        // SAFETY: the caller's promise.
        unsafe { self.expose_as(base, len, access, ExposeOptions::default()) }
    }

    /// Exposes memory as [`Endpoint::expose`] does, with a key that the caller chooses, or by address.
    ///
    /// # Errors
    /// See [`Error`]; nothing is exposed. [`Error::KeyInUse`] if another region of this process has the key.
    ///
    /// # Safety
    /// As for [`Endpoint::expose`].
    pub unsafe fn expose_as(
        &mut self,
        base: *mut u8,
        len: usize,
        access: Access,
        options: ExposeOptions,
    ) -> Result<Region, Error> {
        self.check_origin()?;
        let key = match options.key {
            Some(key) => key,
            None => self.new_key()?,
        };
        self.make_region_room()?;
        // SAFETY: the caller's promise.
        let memory = unsafe { Exposed::from_raw(base, len) };
        self.engine.expose(memory, access, key, options.addressing).map(Region).map_err(unexposed)
    }

    /// Returns the key that other processes need to use a region.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn remote_key(&mut self, region: Region) -> Result<RemoteKey, Error> {
        let mut key = self.engine.remote_key(region.0).ok_or(Error::Region)?;
        if let Some(allocation) = self.allocation(region) {
            key.share = allocation.share(key.access);
        }
        Ok(RemoteKey(key))
    }

    /// Unexposes a region. From now on operations on it are refused. Memory that was allocated is freed, and its
    /// address is void. If messages from or into this memory are under way, they complete, and the memory is freed
    /// after that.
    ///
    /// If ranks on other machines access the region directly ([`Config::net_direct_bytes`](crate::Config)), the call
    /// makes progress until each has confirmed that it has stopped, for at most one second. The connection of a rank
    /// that has not, and that accesses the memory nevertheless, ends.
    ///
    /// # Errors
    /// [`Error::Region`].
    pub fn unexpose(&mut self, region: Region) -> Result<(), Error> {
        self.check_origin()?;
        if !self.engine.unexpose(region.0) {
            return Err(Error::Region);
        }
        self.withdraw_region(region);
        if let Some(at) = self.allocations.iter().position(|(known, _)| *known == region) {
            let (_, allocation) = self.allocations.swap_remove(at);
            self.retire(allocation);
        }
        Ok(())
    }

    /// Waits until no rank accesses an unexposed region directly.
    fn withdraw_region(&mut self, region: Region) {
        let (mut wait, mut force) = (Wait::new(Some(WITHDRAWAL)), false);
        // Each turn with `force` that does not succeed ends the connection with a rank, so the loop ends.
        while !self.engine.withdraw(region.0, force) {
            let packets = self.engine.progress().packets;
            force = force || self.pause(&mut wait, packets, Awaited::Other).is_err();
        }
    }

    /// Returns the address and the length of a region that was allocated.
    ///
    /// They are valid until the region is unexposed or the endpoint is dropped. Code that uses the address
    /// keeps the promises of [`Endpoint::expose`].
    pub fn region_memory(&self, region: Region) -> Option<(*mut u8, usize)> {
        let found = self.allocation(region)?;
        Some((found.base().as_ptr(), found.len()))
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
    /// Returns a random key that no region has, and that is not 0.
    pub(in crate::endpoint) fn new_key(&mut self) -> Result<u64, Error> {
        loop {
            let key = u64::from_le_bytes(random()?);
            if key != 0 && !self.engine.is_exposed(key) {
                return Ok(key);
            }
        }
    }

    fn make_region_room(&mut self) -> Result<(), Error> {
        let (capacity, used) = self.engine.region_count();
        if used == capacity && capacity < MOST_REGIONS {
            self.engine.grow_regions(capacity.max(8));
        }
        Ok(())
    }

    fn allocation(&self, region: Region) -> Option<&Allocation> {
        self.allocations.iter().find(|(known, _)| *known == region).map(|(_, allocation)| allocation)
    }
}

const fn unexposed(error: ExposeError) -> Error {
    match error {
        ExposeError::Full { .. } => Error::Regions { most: MOST_REGIONS },
        ExposeError::Key { key } => Error::KeyInUse { key },
    }
}

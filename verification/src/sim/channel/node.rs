//! One process: a channel, and the memory that it was lent.

use std::ptr::NonNull;

use nemesia_core::payload::LentMemory;
use nemesia_core::port::channel::{
    Channel, ChannelBuffer, ChannelPeer, Config, ExactRegistrations, LendError, OpenError, Parts,
};
use nemesia_core::port::memory::{MemoryPort, RegionAccess, RegisterError};
use nemesia_verification::storage::ChannelVectors;

/// The largest number of pieces of memory that one process lends.
const SLABS: usize = 12;
/// The largest number of buffers in all pieces together.
const BUFFERS: usize = 512;

/// The bytes of a page: engines end accesses at multiples of it.
pub(super) const PAGE: usize = 4096;

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "used through pointers")] [u8; PAGE]);

/// Memory that only raw pointers refer to. It begins at a chosen place within a page, and not where the allocator
/// happens to put it: a seed that is repeated finds the same place.
#[derive(Debug)]
pub(crate) struct Land {
    pages: NonNull<Page>,
    count: usize,
    /// The bytes of the first page before the memory.
    offset: usize,
}

impl Land {
    /// Returns memory of zeroes at the beginning of a page.
    pub(crate) fn new(bytes: u64) -> Self {
        Self::within_page(bytes, 0)
    }

    /// Returns memory of zeroes that begins so many bytes behind the beginning of a page.
    pub(super) fn within_page(bytes: u64, offset: usize) -> Self {
        let count = (offset + bytes as usize).div_ceil(PAGE);
        let pages = vec![Page([0; PAGE]); count].into_boxed_slice();
        Self { pages: NonNull::from(Box::leak(pages)).cast(), count, offset }
    }

    /// Returns a view of the first bytes.
    pub(crate) fn lent(&self, len: u64) -> LentMemory {
        // SAFETY: allocated with at least that length, and initialised; freed after the port is dropped. No
        // reference to the memory exists.
        unsafe { LentMemory::from_raw(self.base().as_ptr(), len as usize) }
    }
}

impl Land {
    /// Returns the address of the first byte.
    pub(super) const fn base(&self) -> NonNull<u8> {
        // SAFETY: the pages are more bytes than the offset, or as many.
        unsafe { self.pages.cast::<u8>().add(self.offset) }
    }

    /// Fills the beginning.
    pub(super) fn write(&self, bytes: &[u8]) {
        assert!(self.lent(bytes.len() as u64).write(0, bytes), "the memory has that length");
    }

    /// Returns the first bytes.
    pub(super) fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert!(self.lent(len as u64).read(0, &mut bytes), "the memory has that length");
        bytes
    }
}

impl Drop for Land {
    fn drop(&mut self) {
        // SAFETY: leaked by `within_page` with this length; the port that it was lent to is gone.
        drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(self.pages, self.count).as_ptr()) });
    }
}

/// A process. Its channel is dropped before its memory.
#[derive(Debug)]
pub(crate) struct Node<M: MemoryPort> {
    pub(crate) channel: Channel<M, ChannelVectors>,
    land: Vec<Land>,
}

impl<M: MemoryPort> Node<M> {
    /// Makes a process. `tokens` holds the token that it shows to each peer.
    pub(crate) fn new(
        port: M,
        config: Config,
        tokens: impl Iterator<Item = u64>,
        window: usize,
    ) -> Result<Self, OpenError> {
        let peers = tokens.filter_map(|token| ChannelPeer::new(vec![None; window], token)).collect();
        let parts = Parts {
            peers,
            buffers: vec![ChannelBuffer::default(); BUFFERS],
            slabs: std::iter::repeat_with(|| None).take(SLABS).collect(),
            accesses: Vec::new(),
            registrations: ExactRegistrations::new(),
        };
        let mut new = Self { channel: Channel::new(port, config, parts)?, land: Vec::new() };
        let bytes = config.fast.bytes();
        if bytes > 0 {
            let land = Land::new(bytes);
            // The memory suffices, and none was lent before.
            let _ = new.channel.lend_rings(land.lent(bytes));
            new.land.push(land);
        }
        Ok(new)
    }

    /// Returns the channel, and the memory that must outlive it.
    pub(super) fn into_parts(self) -> (Channel<M, ChannelVectors>, Vec<Land>) {
        (self.channel, self.land)
    }

    /// Lends memory for `buffers` buffers. Returns false if the memory cannot be registered now, or if no more
    /// is accepted.
    pub(crate) fn lend(&mut self, buffers: u64) -> Result<bool, String> {
        if self.land.len() > SLABS {
            return Ok(false);
        }
        let bytes = buffers * self.channel.buffer_bytes();
        let land = Land::new(bytes);
        let region = match self.channel.port_mut().register(land.lent(bytes), RegionAccess::LOCAL) {
            Ok(region) => region,
            Err(RegisterError::Pinned { .. } | RegisterError::Full { .. }) => return Ok(false),
            Err(error) => return Err(error.to_string()),
        };
        let lent = self.channel.lend(region, land.lent(bytes));
        self.land.push(land);
        match lent {
            Ok(_) | Err(LendError::Full) => Ok(true),
            Err(error) => Err(error.to_string()),
        }
    }
}

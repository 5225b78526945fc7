//! Settings of messages inside a machine.

use nemesia_core::shared::assist::Pieces;
use nemesia_core::shared::fastbox;
use nemesia_core::shared::layout::{Geometry, LayoutError};
use nemesia_core::shared::port::Stores;

use super::{Config, FASTBOX_BYTES, Origin, SingleCopy};
use crate::os::numa::last_cache_bytes;

/// The most bytes of a message that is sent at once inside a machine by default, in several cells if need be.
const LOCAL_EAGER_BYTES: usize = 256 << 10;

impl Config {
    /// Sets the number of cells in each process's pool: a power of two, 4 to 4096.
    #[must_use]
    pub fn cells(self, cells: u32) -> Self {
        self.with(["NEMESIA_CELLS"], |config| config.cells = cells)
    }

    /// Sets the payload bytes of a cell: a multiple of 64, 256 to 16 MiB.
    #[must_use]
    pub fn cell_bytes(self, bytes: u32) -> Self {
        self.with(["NEMESIA_CELL_BYTES"], |config| config.cell_bytes = bytes)
    }

    /// Sets the slots of each fastbox, of 32 bytes: a power of two, 4 to 4096.
    #[must_use]
    pub fn fastbox_slots(self, slots: u32) -> Self {
        self.with(["NEMESIA_FASTBOX_SLOTS"], |config| config.fastbox_slots = slots)
    }

    /// Sets the largest message that goes through a fastbox, in bytes.
    #[must_use]
    pub fn fastbox_limit(self, bytes: usize) -> Self {
        self.with(["NEMESIA_FASTBOX_LIMIT"], |config| config.fastbox_limit = Some(bytes))
    }

    /// Sets the largest message, in bytes, that is sent eagerly, at most a cell. A larger one moves when a receive has
    /// matched it.
    #[must_use]
    pub fn eager_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_EAGER_BYTES"], |config| config.eager_bytes = bytes)
    }

    /// Sets the room that each peer is granted ahead of its messages, in bytes; it is less if there is less room.
    #[must_use]
    pub fn credit_bytes(self, bytes: usize) -> Self {
        self.with(["NEMESIA_CREDIT_BYTES"], |config| config.credit_bytes = bytes.clamp(4096, 1 << 30))
    }

    /// Sets whether large messages move in a single copy. All processes should agree.
    #[must_use]
    pub fn single_copy(self, single_copy: SingleCopy) -> Self {
        self.with(["NEMESIA_SINGLE_COPY"], |config| config.single_copy = single_copy)
    }

    /// Sets the smallest message, in bytes, for a sender-assisted copy: a sender that waits copies a part, so that both
    /// processors copy; `None` means never. It applies only to messages that move in a single copy. Default: 1 MiB. The
    /// sender's copy by the kernel is nearly twice as slow as the receiver's, so that up to
    /// 512 KiB the receiver is as fast alone.
    #[must_use]
    pub fn assist_bytes(self, bytes: Option<u64>) -> Self {
        self.with(["NEMESIA_ASSIST_BYTES"], |config| config.assist_bytes = bytes)
    }

    /// Sets the least and the most bytes that this process copies at once in a sender-assisted copy: 4096 to 1 GiB. The
    /// peers may have other values.
    #[must_use]
    pub fn assist_pieces(self, least: u64, most: u64) -> Self {
        let names = ["NEMESIA_ASSIST_LEAST", "NEMESIA_ASSIST_MOST"];
        self.with(names, |config| {
            config.assist_pieces = [least, most].map(|bytes| bytes.clamp(4096, 1 << 30));
        })
    }

    /// Sets the bytes of a message that this process reads from a peer's memory before it serves others: 4096 to 1 GiB.
    #[must_use]
    pub fn pull_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_PULL_BYTES"], |config| config.pull_bytes = bytes.clamp(4096, 1 << 30))
    }

    /// Sets the average length in bytes of a list's segments from which on a message is read into them one by one
    /// instead of streamed.
    #[must_use]
    pub fn run_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_RUN_BYTES"], |config| config.run_bytes = bytes)
    }

    /// Sets the smallest message, put or get, in bytes, that this process copies with non-temporal stores (if the
    /// processor has them) out of cells or to and from mapped memory; `u64::MAX` means never. The default is half the
    /// size of the last cache. Copies by the kernel are not affected.
    #[must_use]
    pub fn non_temporal_bytes(self, bytes: u64) -> Self {
        self.with(["NEMESIA_NON_TEMPORAL_BYTES"], |config| config.non_temporal_bytes = Some(bytes))
    }

    /// Sets how this process fills cells for messages of 256 bytes and more: with plain stores; with write prefetch,
    /// which takes the lines of the next cell back from the receiver's core while there is nothing else to do; with
    /// non-temporal stores (if the processor has them). `None` selects the stores that it measures to be fastest for
    /// each peer and size.
    #[must_use]
    pub fn cell_stores(self, stores: Option<Stores>) -> Self {
        self.with(["NEMESIA_CELL_STORES"], |config| config.cell_stores = stores)
    }

    /// Returns the sizes on which two processes must agree before they share memory.
    ///
    /// # Errors
    /// The first size that is out of range.
    pub fn geometry(&self) -> Result<Geometry, LayoutError> {
        let Self { cells, cell_bytes, fastbox_slots, .. } = *self;
        let geometry = Geometry { cells, cell_bytes, fastbox_slots };
        geometry.validate()?;
        Ok(geometry)
    }

    /// Returns the largest message that is sent at once inside a machine, if more than NEMESIA_EAGER_BYTES: as far as
    /// one cell holds it, if single copies are preferred. A message that no receive expects is copied a third time.
    /// Inside a machine that costs less than RTS and CTS.
    pub(crate) fn local_eager_bytes(&self) -> usize {
        let most = match self.single_copy {
            SingleCopy::Prefer | SingleCopy::Require => self.cell_bytes as usize,
            SingleCopy::Auto | SingleCopy::Off => LOCAL_EAGER_BYTES,
        };
        self.unless_eager_is_set(most)
    }

    /// Returns the eager bytes that a port prefers; 0 if NEMESIA_EAGER_BYTES is set, which then counts alone.
    pub(super) fn unless_eager_is_set<T: Default>(&self, preferred: T) -> T {
        if self.origin("NEMESIA_EAGER_BYTES") == Origin::Default { preferred } else { T::default() }
    }

    /// Returns the largest message that goes through a fastbox, in bytes.
    pub fn fastbox_bytes(&self) -> usize {
        self.fastbox_limit.unwrap_or(FASTBOX_BYTES).min(self.most_fastbox_bytes())
    }

    /// Returns the smallest message that is copied with non-temporal stores; `u64::MAX` means never.
    pub(crate) fn non_temporal_from(&self) -> u64 {
        // The source must find room in the cache as well as the destination. With 32 MiB of cache, streams of 4 MiB
        // were a quarter slower with non-temporal stores, of 8 MiB level, of 16, 32 and 64 MiB 19, 8 and 3 % faster.
        self.non_temporal_bytes.unwrap_or_else(|| last_cache_bytes().map_or(u64::MAX, |bytes| bytes / 2))
    }

    pub(crate) fn pieces(&self) -> Pieces {
        let [least, most] = self.assist_pieces.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        Pieces::new(least, most)
    }

    pub(super) fn most_fastbox_bytes(&self) -> usize {
        // `geometry` refuses fewer, but this may be called before.
        fastbox::max_payload(self.fastbox_slots.max(4) as usize)
    }
}

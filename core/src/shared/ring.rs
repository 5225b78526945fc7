//! Single-producer, single-consumer rings: byte rings, and record rings on top of them.
//!
//! [`ByteWriter`] and [`ByteReader`] are the FIFO byte pipe of paper 1's RDMA Channel: a non-blocking put or
//! get moves the bytes that fit and returns their number. [`RecordWriter`] and [`RecordReader`] keep message
//! boundaries: each record is a length word and its bytes, and becomes visible as a whole.
//!
//! Positions count bytes since the start and never wrap in 64 bits. Each side caches the other's last
//! position and reads it again only when the ring looks full or empty (paper 4's shadow head).

use crate::sync::{Edge, PayloadMut, Word64};

/// A position or record length that violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The other side's position is out of range.
    #[error("ring position {found} is outside {low}..={high}")]
    Position {
        /// The position that the other side wrote.
        found: u64,
        /// The smallest valid position.
        low: u64,
        /// The largest valid position.
        high: u64,
    },
    /// A record's length exceeds the published bytes.
    #[error("ring record claims {claimed} bytes, {published} are published")]
    Record {
        /// The length that the record claims.
        claimed: u64,
        /// The number of published bytes.
        published: u64,
    },
}

/// The shared parts of a ring.
#[derive(Clone, Copy, Debug)]
pub struct ByteRing<'a> {
    bytes: PayloadMut<'a>,
    written: &'a Word64,
    read: &'a Word64,
}

impl<'a> ByteRing<'a> {
    /// Returns a ring over zeroed positions. `None` unless the size is a power of two of at least 8 bytes.
    pub fn new(bytes: PayloadMut<'a>, written: &'a Word64, read: &'a Word64) -> Option<Self> {
        let size = bytes.len();
        (size.is_power_of_two() && size >= 8).then_some(Self { bytes, written, read })
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Splits `len` bytes at `position` into the part before the ring's end and the part after it.
    fn split(&self, position: u64, len: usize) -> (usize, usize) {
        let at = (position & (self.size() - 1)) as usize;
        (at, len.min(self.bytes.len() - at))
    }

    fn put(&self, position: u64, from: &[u8]) {
        let (at, first) = self.split(position, from.len());
        // This cannot fail: `at + first` is at most the size, and callers never pass more than the size.
        let fits = self.bytes.write(at, &from[..first]) && self.bytes.write(0, &from[first..]);
        debug_assert!(fits);
    }

    fn get(&self, position: u64, to: &mut [u8]) {
        let (at, first) = self.split(position, to.len());
        let (head, rest) = to.split_at_mut(first);
        let fits = self.bytes.as_read().read(at, head) && self.bytes.as_read().read(0, rest);
        debug_assert!(fits);
    }
}

/// The writing end of a byte ring.
#[derive(Debug)]
pub struct ByteWriter<'a> {
    ring: ByteRing<'a>,
    written: u64,
    read: u64,
}

impl<'a> ByteWriter<'a> {
    /// Returns a writer at the start of the ring.
    pub const fn new(ring: ByteRing<'a>) -> Self {
        Self { ring, written: 0, read: 0 }
    }

    /// Returns the number of bytes that fit now. The reader's position is read only if `want` bytes do not
    /// fit by its cached value.
    ///
    /// # Errors
    /// The reader wrote an invalid position.
    pub fn room(&mut self, want: usize) -> Result<usize, RingFault> {
        let size = self.ring.size();
        if size - (self.written - self.read) < want as u64 {
            let found = self.ring.read.load_acquire(Edge::RingRelease);
            if found < self.read || found > self.written {
                return Err(RingFault::Position { found, low: self.read, high: self.written });
            }
            self.read = found;
        }
        Ok((size - (self.written - self.read)) as usize)
    }

    /// Appends as many of the bytes as fit and returns their number; 0 if the ring is full.
    ///
    /// # Errors
    /// As [`ByteWriter::room`].
    pub fn write(&mut self, from: &[u8]) -> Result<usize, RingFault> {
        let count = self.room(from.len())?.min(from.len());
        if count > 0 {
            self.ring.put(self.written, &from[..count]);
            self.publish(count as u64);
        }
        Ok(count)
    }

    /// As [`ByteWriter::write`], of `len` bytes that threads of this process may use meanwhile: no reference to them is
    /// made.
    ///
    /// # Errors
    /// As [`ByteWriter::room`].
    ///
    /// # Safety
    /// The bytes are initialised and mapped readable, and no part of the ring.
    #[cfg(not(nemesia_loom))]
    pub unsafe fn write_from(&mut self, from: *const u8, len: usize) -> Result<usize, RingFault> {
        let count = self.room(len)?.min(len);
        if count > 0 {
            let (at, first) = self.ring.split(self.written, count);
            let bytes = &self.ring.bytes;
            // SAFETY: parts of the caller's bytes, of which it promises the rest.
            let fits = unsafe {
                bytes.write_from(at, from, first) && bytes.write_from(0, from.add(first), count - first)
            };
            debug_assert!(fits);
            self.publish(count as u64);
        }
        Ok(count)
    }

    fn publish(&mut self, count: u64) {
        self.written += count;
        self.ring.written.store_release(self.written, Edge::RingPublish);
    }
}

/// The reading end of a byte ring.
#[derive(Debug)]
pub struct ByteReader<'a> {
    ring: ByteRing<'a>,
    read: u64,
    written: u64,
}

impl<'a> ByteReader<'a> {
    /// Returns a reader at the start of the ring.
    pub const fn new(ring: ByteRing<'a>) -> Self {
        Self { ring, read: 0, written: 0 }
    }

    /// Returns the number of readable bytes. The writer's position is read only if its cached value shows
    /// fewer than `want` bytes.
    ///
    /// # Errors
    /// The writer wrote an invalid position.
    pub fn available(&mut self, want: usize) -> Result<usize, RingFault> {
        if self.written - self.read < want as u64 {
            let found = self.ring.written.load_acquire(Edge::RingPublish);
            let high = self.read + self.ring.size();
            if found < self.written || found > high {
                return Err(RingFault::Position { found, low: self.written, high });
            }
            self.written = found;
        }
        Ok((self.written - self.read) as usize)
    }

    /// Reads up to `to.len()` bytes and returns their number; 0 if the ring is empty.
    ///
    /// # Errors
    /// As [`ByteReader::available`].
    pub fn read(&mut self, to: &mut [u8]) -> Result<usize, RingFault> {
        let count = self.available(to.len())?.min(to.len());
        if count > 0 {
            self.ring.get(self.read, &mut to[..count]);
            self.release(count as u64);
        }
        Ok(count)
    }

    /// As [`ByteReader::read`], to `len` bytes that threads of this process may use meanwhile: no reference to them is
    /// made.
    ///
    /// # Errors
    /// As [`ByteReader::available`].
    ///
    /// # Safety
    /// The bytes are mapped writable, and may be written; they are no part of the ring.
    #[cfg(not(nemesia_loom))]
    pub unsafe fn read_into(&mut self, to: *mut u8, len: usize) -> Result<usize, RingFault> {
        let count = self.available(len)?.min(len);
        if count > 0 {
            let (at, first) = self.ring.split(self.read, count);
            let bytes = self.ring.bytes.as_read();
            // SAFETY: parts of the caller's bytes, of which it promises the rest.
            let fits =
                unsafe { bytes.read_into(at, to, first) && bytes.read_into(0, to.add(first), count - first) };
            debug_assert!(fits);
            self.release(count as u64);
        }
        Ok(count)
    }

    fn release(&mut self, count: u64) {
        self.read += count;
        self.ring.read.store_release(self.read, Edge::RingRelease);
    }
}

/// Bytes of a record's length word.
const LENGTH: usize = 4;

/// The writing end of a record ring.
#[derive(Debug)]
pub struct RecordWriter<'a>(ByteWriter<'a>);

impl<'a> RecordWriter<'a> {
    /// Returns a writer at the start of the ring.
    pub const fn new(ring: ByteRing<'a>) -> Self {
        Self(ByteWriter::new(ring))
    }

    /// Returns the largest record that the ring can hold, in bytes.
    pub fn max_record(&self) -> usize {
        (self.0.ring.bytes.len() - LENGTH).min(u32::MAX as usize)
    }

    /// Appends a whole record. Returns `false` if it does not fit now (or never does: see
    /// [`RecordWriter::max_record`]).
    ///
    /// # Errors
    /// The reader wrote an invalid position.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, RingFault> {
        if record.len() > self.max_record() {
            return Ok(false);
        }
        let whole = LENGTH + record.len();
        if self.0.room(whole)? < whole {
            return Ok(false);
        }
        let writer = &mut self.0;
        writer.ring.put(writer.written, &(record.len() as u32).to_le_bytes());
        writer.ring.put(writer.written + LENGTH as u64, record);
        writer.publish(whole as u64);
        Ok(true)
    }
}

/// The reading end of a record ring.
#[derive(Debug)]
pub struct RecordReader<'a>(ByteReader<'a>);

impl<'a> RecordReader<'a> {
    /// Returns a reader at the start of the ring.
    pub const fn new(ring: ByteRing<'a>) -> Self {
        Self(ByteReader::new(ring))
    }

    /// Takes the next record. Copies as much as `to` holds and returns the whole length of the record; `None`
    /// if there is no record.
    ///
    /// # Errors
    /// The writer wrote an invalid position, or a length beyond the published bytes.
    pub fn pop(&mut self, to: &mut [u8]) -> Result<Option<usize>, RingFault> {
        let reader = &mut self.0;
        let published = reader.available(LENGTH)?;
        if published == 0 {
            return Ok(None);
        }
        let mut length = [0; LENGTH];
        if published >= LENGTH {
            reader.ring.get(reader.read, &mut length);
        }
        let claimed = u64::from(u32::from_le_bytes(length)) + LENGTH as u64;
        if claimed > published as u64 {
            return Err(RingFault::Record { claimed, published: published as u64 });
        }
        let len = claimed as usize - LENGTH;
        let copied = len.min(to.len());
        reader.ring.get(reader.read + LENGTH as u64, &mut to[..copied]);
        reader.release(claimed);
        Ok(Some(len))
    }
}

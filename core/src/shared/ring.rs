//! Single-producer, single-consumer rings: bytes, and records on top of them.
//!
//! [`ByteWriter`] and [`ByteReader`] are the FIFO byte pipe that the RDMA Channel of paper 1 asks for: a
//! non-blocking put or get moves what fits and says how much. [`RecordWriter`] and [`RecordReader`] keep
//! message boundaries: each record is one length word and its bytes, and becomes visible whole.
//!
//! Positions count bytes since the start and never wrap in 64 bits. Each side keeps the other's last position
//! and reads it again only when the ring looks full or empty (paper 4's shadow head).

use crate::sync::{Edge, PayloadMut, Word64};

/// A position that an honest peer never writes, or a record that does not lie in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingFault {
    /// The other side's position is impossible.
    #[error("ring position {found} is outside {low}..={high}")]
    Position {
        /// What it wrote.
        found: u64,
        /// The least that it may be.
        low: u64,
        /// The most that it may be.
        high: u64,
    },
    /// A record's length does not fit into what was published.
    #[error("ring record claims {claimed} bytes, {published} are published")]
    Record {
        /// The claim.
        claimed: u64,
        /// What is there.
        published: u64,
    },
}

/// The shared parts of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a> {
    bytes: PayloadMut<'a>,
    written: &'a Word64,
    read: &'a Word64,
}

impl<'a> Ring<'a> {
    /// A ring over zeroed positions. `None` unless the size is a power of two of at least 8 bytes.
    pub fn new(bytes: PayloadMut<'a>, written: &'a Word64, read: &'a Word64) -> Option<Self> {
        let size = bytes.len();
        (size.is_power_of_two() && size >= 8).then_some(Self { bytes, written, read })
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Splits `len` bytes at `position` into the part before the ring's end and the part after.
    fn split(&self, position: u64, len: usize) -> (usize, usize) {
        let at = (position & (self.size() - 1)) as usize;
        (at, len.min(self.bytes.len() - at))
    }

    fn put(&self, position: u64, from: &[u8]) {
        let (at, first) = self.split(position, from.len());
        // Cannot fail: `at + first` is at most the size, and callers never pass more than the size.
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
    ring: Ring<'a>,
    written: u64,
    read: u64,
}

impl<'a> ByteWriter<'a> {
    /// A writer at the start.
    pub const fn new(ring: Ring<'a>) -> Self {
        Self { ring, written: 0, read: 0 }
    }

    /// Bytes that fit now; looks at the reader's position only if `want` do not fit by what is known.
    ///
    /// # Errors
    /// The reader wrote an impossible position.
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

    /// Appends as many of the bytes as fit and returns how many; 0 is normal when the ring is full.
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

    /// As [`ByteWriter::write`], of `len` bytes that threads of this process may use meanwhile: no reference to them is made.
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
    ring: Ring<'a>,
    read: u64,
    written: u64,
}

impl<'a> ByteReader<'a> {
    /// A reader at the start.
    pub const fn new(ring: Ring<'a>) -> Self {
        Self { ring, read: 0, written: 0 }
    }

    /// Bytes that can be read now; looks at the writer's position only if fewer than `want` are known.
    ///
    /// # Errors
    /// The writer wrote an impossible position.
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

    /// Takes up to `to.len()` bytes and returns how many; 0 is normal when the ring is empty.
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

    /// As [`ByteReader::read`], to `len` bytes that threads of this process may use meanwhile: no reference to them is made.
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
    /// A writer at the start.
    pub const fn new(ring: Ring<'a>) -> Self {
        Self(ByteWriter::new(ring))
    }

    /// The largest record that the ring ever takes, in bytes.
    pub fn max_record(&self) -> usize {
        (self.0.ring.bytes.len() - LENGTH).min(u32::MAX as usize)
    }

    /// Appends a whole record; false when it does not fit now (or ever: see [`RecordWriter::max_record`]).
    ///
    /// # Errors
    /// The reader wrote an impossible position.
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
    /// A reader at the start.
    pub const fn new(ring: Ring<'a>) -> Self {
        Self(ByteReader::new(ring))
    }

    /// Takes the next record: copies as much as `to` holds and returns the record's whole length, or `None`
    /// when there is none.
    ///
    /// # Errors
    /// The writer wrote an impossible position, or a length beyond what it published.
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

//! Safe one-sided operations on borrowed buffers and typed values. Each waits until it is complete.

use nemesia_core::engine::rma::{Comparison, CompleteAt, Datatype, Reduction, Refusal};

use crate::endpoint::{Endpoint, Region, RemoteKey, Request};
use crate::error::Error;

/// The number of operations between two progress steps.
const PROGRESS_EVERY: u32 = 16;

mod sealed {
    pub trait Sealed {}
}

/// A type whose values atomic operations combine: the integers of 8 to 64 bits, `f32` and `f64`.
pub trait Value: Copy + sealed::Sealed {
    /// The datatype.
    const DATATYPE: Datatype;
    /// Returns the value as bits.
    fn to_bits(self) -> u64;
    /// Returns the value of these bits. Bits beyond the size of the type are ignored.
    fn from_bits(bits: u64) -> Self;
}

macro_rules! value {
    ($type:ty, $datatype:ident, $to:expr, $from:expr) => {
        impl sealed::Sealed for $type {}
        impl Value for $type {
            const DATATYPE: Datatype = Datatype::$datatype;

            fn to_bits(self) -> u64 {
                $to(self)
            }

            fn from_bits(bits: u64) -> Self {
                $from(bits)
            }
        }
    };
}

value!(i8, I8, |it: i8| u64::from(it.cast_unsigned()), |bits| (bits as u8).cast_signed());
value!(u8, U8, u64::from, |bits| bits as u8);
value!(i16, I16, |it: i16| u64::from(it.cast_unsigned()), |bits| (bits as u16).cast_signed());
value!(u16, U16, u64::from, |bits| bits as u16);
value!(i32, I32, |it: i32| u64::from(it.cast_unsigned()), |bits| (bits as u32).cast_signed());
value!(u32, U32, u64::from, |bits| bits as u32);
value!(i64, I64, i64::cast_unsigned, u64::cast_signed);
value!(u64, U64, |it| it, |bits| bits);
value!(f32, F32, |it: f32| u64::from(it.to_bits()), |bits| f32::from_bits(bits as u32));
value!(f64, F64, f64::to_bits, f64::from_bits);

/// # One-sided operations
///
/// Put, get and atomic operations work on a region of another process, by its key. A get and a fetch are
/// complete when they return; a put and an accumulate are complete after a flush.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Access, KEY_BYTES, RemoteKey, Source, Tag};
///
/// if endpoint.rank() == 0 {
///     let mut bytes = [0; KEY_BYTES];
///     endpoint.recv(Source::Rank(1), Tag::Exactly(1), &mut bytes)?;
///     let key = RemoteKey::from_bytes(1, &bytes).expect("a key of this version");
///     endpoint.put(&key, 0, b"nemesia!")?;
///     assert_eq!(endpoint.fetch_add(&key, 8, 5_u64)?, 0);
///     endpoint.flush(1)?;
///     endpoint.barrier()?;
/// } else {
///     let region = endpoint.allocate(16, Access::ReadWrite)?;
///     let key = endpoint.remote_key(region)?;
///     endpoint.send(0, 1, &key.to_bytes())?;
///     endpoint.barrier()?;
///     let mut bytes = [0; 16];
///     endpoint.read_region(region, 0, &mut bytes)?;
///     assert_eq!(&bytes[..9], b"nemesia!\x05");
/// }
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Writes bytes into a region of another process, at `offset`, and waits until they have left the buffer.
    ///
    /// The bytes are in the region after a flush.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Refused`] if the key shows that the target would refuse the put. A refusal that
    /// only the target can decide is reported by the flush.
    #[inline]
    pub fn put(&mut self, key: &RemoteKey, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.put_as(key, offset, bytes, false, CompleteAt::Origin)
    }

    /// Writes bytes as [`Endpoint::put`] does. When they are in the region, its count of notifications grows by
    /// one.
    ///
    /// # Errors
    /// As for [`Endpoint::put`].
    #[inline]
    pub fn put_notify(&mut self, key: &RemoteKey, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.put_as(key, offset, bytes, true, CompleteAt::Origin)
    }

    /// Writes bytes as [`Endpoint::put`] does, with a choice of the moment for which it waits.
    ///
    /// With [`CompleteAt::Target`] the bytes are in the region on return. No flush is needed, and a refusal is an error
    /// of this call. If the region is mapped here, this costs nothing; else it costs an answer of the owner, which
    /// must make progress. If `notify` is set, the region's count of notifications grows by one when the bytes are
    /// there.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn put_as(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        bytes: &[u8],
        notify: bool,
        complete: CompleteAt,
    ) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until this function returns, and `finish` returns only when the engine
        // has finished with them.
        let request = unsafe { self.iput(key, offset, bytes.as_ptr(), bytes.len(), notify, complete) }?;
        self.finish_at(request)
    }

    /// Reads bytes of a region of another process, from `offset`.
    ///
    /// # Errors
    /// See [`Error`]. After an error the content of the buffer is unspecified.
    #[inline]
    pub fn get(&mut self, key: &RemoteKey, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the buffer is borrowed until this function returns, and `finish` returns only when the engine
        // has finished with it.
        let request = unsafe { self.iget(key, offset, buf.as_mut_ptr(), buf.len()) }?;
        self.finish_at(request)
    }

    /// Combines an array of operands into an array of values of another process, atomically for each value.
    ///
    /// This function waits until the operands have left the buffer. The values are combined after a flush.
    ///
    /// # Errors
    /// As for [`Endpoint::put`].
    pub fn accumulate<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operands: &[T],
    ) -> Result<(), Error> {
        let (base, len) = (operands.as_ptr().cast(), size_of_val(operands));
        let what = (T::DATATYPE, reduction);
        // SAFETY: as for a put. The values are numbers, which are bytes without padding.
        let request = unsafe { self.iaccumulate(key, offset, what, base, len, CompleteAt::Origin) }?;
        self.finish_at(request)
    }

    /// Combines an operand into one value of another process, atomically, and returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn fetch<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operand: T,
    ) -> Result<T, Error> {
        let mut old = [0; 8];
        let (what, base) = ((T::DATATYPE, reduction), old.as_mut_ptr());
        // SAFETY: the buffer is as long as any value, and `finish` returns only when the engine has finished
        // with it.
        let request = unsafe { self.ifetch(key, offset, what, operand.to_bits(), base) }?;
        self.finish_at(request)?;
        Ok(T::from_bits(u64::from_le_bytes(old)))
    }

    /// Combines an array of operands into an array of values of another process, atomically for each value.
    /// `old` receives the previous values.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Refused`] if `operands` and `old` differ in length. With [`Reduction::Nothing`],
    /// `operands` may be empty. After an error the content of `old` is unspecified.
    pub fn fetch_accumulate<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operands: &[T],
        old: &mut [T],
    ) -> Result<(), Error> {
        let none = reduction == Reduction::Nothing && operands.is_empty();
        if operands.len() != old.len() && !none {
            return Err(Error::Refused { rank: key.rank(), refusal: Refusal::Bounds, count: 1 });
        }
        let from = if none { core::ptr::null() } else { operands.as_ptr().cast() };
        let (into, len, what) = (old.as_mut_ptr().cast(), size_of_val(old), (T::DATATYPE, reduction));
        // SAFETY: both are borrowed until this function returns, and `finish` returns only when the engine has
        // finished with them. Numbers are bytes without padding, and any bytes are a number.
        let request = unsafe { self.ifetch_accumulate(key, offset, what, from, into, len) }?;
        self.finish_at(request)
    }

    /// Adds to one value of another process, atomically, and returns the previous value. Integers wrap.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn fetch_add<T: Value>(&mut self, key: &RemoteKey, offset: u64, operand: T) -> Result<T, Error> {
        self.fetch(key, offset, Reduction::Sum, operand)
    }

    /// Replaces one value of another process, atomically, and returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn swap<T: Value>(&mut self, key: &RemoteKey, offset: u64, value: T) -> Result<T, Error> {
        self.fetch(key, offset, Reduction::Replace, value)
    }

    /// Replaces one value of another process by `value` if its bits are those of `expected`, atomically.
    /// Returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    #[inline]
    pub fn compare_swap<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        expected: T,
        value: T,
    ) -> Result<T, Error> {
        self.swap_if(key, offset, Comparison::Equal, expected, value)
    }

    /// Replaces one value of another process by `value` if the comparison of `expected` with it holds, atomically.
    /// For example, [`Comparison::Less`] replaces a value that is greater than `expected`;
    /// [`Comparison::Masked`] replaces the bits that are set in `expected`. Returns the previous value.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn swap_if<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        comparison: Comparison,
        expected: T,
        value: T,
    ) -> Result<T, Error> {
        let mut old = [0; 8];
        let (bits, base) = ([expected.to_bits(), value.to_bits()], old.as_mut_ptr());
        // SAFETY: as for a fetch.
        let request = unsafe { self.icompare_swap(key, offset, (T::DATATYPE, comparison), bits, base) }?;
        self.finish_at(request)?;
        Ok(T::from_bits(u64::from_le_bytes(old)))
    }

    /// Waits until all operations on a rank's regions are completed there.
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Refused`] if puts or accumulates were refused since the last flush; it has their
    /// number and the reason of the first.
    pub fn flush(&mut self, rank: usize) -> Result<(), Error> {
        let request = self.iflush(rank)?;
        self.finish_quickly(request)
    }

    /// Flushes every rank on whose regions there were operations, and waits for all of them.
    ///
    /// # Errors
    /// The first error of a flush.
    pub fn flush_all(&mut self) -> Result<(), Error> {
        let (open, mut result) = self.iflush_all();
        for request in open {
            result = result.and(self.finish_quickly(request));
        }
        result
    }

    /// Waits until a region of this process has had `count` notifications since it was exposed.
    ///
    /// # Errors
    /// See [`Error`]. As a receive from any source, it fails when a peer fails.
    pub fn wait_notified(&mut self, region: Region, count: u64) -> Result<(), Error> {
        let request = self.inotified(region, count)?;
        self.finish(request).map(drop)
    }

    /// Waits for an operation, with progress now and then. A caller may repeat an operation that completes at
    /// once until another process releases a lock, for instance. That process may need this one to make
    /// progress.
    #[inline]
    fn finish_at(&mut self, request: Request) -> Result<(), Error> {
        if self.is_progress_due_beside() {
            self.progress_beside(request);
        }
        self.finish_quickly(request)
    }

    /// Counts an operation, and returns whether progress is due beside it.
    #[inline]
    pub(in crate::endpoint) fn is_progress_due_beside(&mut self) -> bool {
        self.operations = self.operations.wrapping_add(1);
        self.operations.is_multiple_of(PROGRESS_EVERY)
    }

    #[inline]
    fn finish_quickly(&mut self, request: Request) -> Result<(), Error> {
        if request.is_complete() {
            return Ok(());
        }
        self.finish(request).map(drop)
    }
}

//! One-sided operations and active messages of a shared endpoint: the calls that wait. Calls that do not wait are
//! those of the locked endpoint.

use super::{LockedEndpoint, SharedEndpoint};
use crate::endpoint::{
    Comparison, CompleteAt, Endpoint, Incoming, Reduction, Refusal, Region, RemoteKey, Request, Value,
};
use crate::error::Error;

/// # One-sided operations and active messages of several threads
///
/// Each method is that of [`Endpoint`] of the same name, and may be called by any number of threads. The operations
/// of one thread keep their order. Those of different threads have none, as long as the threads do not order them
/// themselves. A flush covers the operations that all threads have started before.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Access, RemoteKey};
///
/// let (rank, peer) = (endpoint.rank(), 1 - endpoint.rank());
/// let region = endpoint.allocate(64, Access::ReadWrite)?;
/// let key = endpoint.remote_key(region)?.to_bytes();
/// let mut bytes = [0; nemesia::KEY_BYTES];
/// endpoint.send(peer, 1, &key)?;
/// endpoint.recv(nemesia::Source::Rank(peer), nemesia::Tag::Exactly(1), &mut bytes)?;
/// let key = RemoteKey::from_bytes(peer, &bytes).expect("a key of this version");
/// let endpoint = endpoint.into_shared();
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| endpoint.fetch_add(&key, 0, 1_u64).expect("the peer is there"));
///     }
/// });
/// assert_eq!(endpoint.fetch_add(&key, 0, 0_u64)?, 4);
/// endpoint.barrier()?;
/// endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl SharedEndpoint {
    /// Writes bytes into a region; see [`Endpoint::put`].
    ///
    /// # Errors
    /// As for that method.
    pub fn put(&self, key: &RemoteKey, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.put_as(key, offset, bytes, false, CompleteAt::Origin)
    }

    /// Writes bytes into a region and counts a notification; see [`Endpoint::put_notify`].
    ///
    /// # Errors
    /// As for that method.
    pub fn put_notify(&self, key: &RemoteKey, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.put_as(key, offset, bytes, true, CompleteAt::Origin)
    }

    /// Writes bytes into a region, with a choice of the moment for which it waits; see [`Endpoint::put_as`].
    ///
    /// # Errors
    /// As for that method.
    pub fn put_as(
        &self,
        key: &RemoteKey,
        offset: u64,
        bytes: &[u8],
        notify: bool,
        complete: CompleteAt,
    ) -> Result<(), Error> {
        let (base, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes are borrowed until `operate` returns.
        self.operate(|endpoint| unsafe { endpoint.iput(key, offset, base, len, notify, complete) })
    }

    /// Reads bytes of a region; see [`Endpoint::get`].
    ///
    /// # Errors
    /// As for that method.
    pub fn get(&self, key: &RemoteKey, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: the buffer is borrowed until `operate` returns.
        self.operate(|endpoint| unsafe { endpoint.iget(key, offset, base, len) })
    }

    /// Combines an array of operands into an array of values; see [`Endpoint::accumulate`].
    ///
    /// # Errors
    /// As for that method.
    pub fn accumulate<T: Value>(
        &self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operands: &[T],
    ) -> Result<(), Error> {
        let (base, len, what) = (operands.as_ptr().cast(), size_of_val(operands), (T::DATATYPE, reduction));
        // SAFETY: as for a put. The values are numbers, which are bytes without padding.
        self.operate(|it| unsafe { it.iaccumulate(key, offset, what, base, len, CompleteAt::Origin) })
    }

    /// Combines an operand into one value and returns the previous value; see [`Endpoint::fetch`].
    ///
    /// # Errors
    /// As for that method.
    pub fn fetch<T: Value>(
        &self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operand: T,
    ) -> Result<T, Error> {
        let mut old = [0; 8];
        let (what, bits, base) = ((T::DATATYPE, reduction), operand.to_bits(), old.as_mut_ptr());
        // SAFETY: the buffer is as long as any value, and lives until `operate` returns.
        self.operate(|endpoint| unsafe { endpoint.ifetch(key, offset, what, bits, base) })?;
        Ok(T::from_bits(u64::from_le_bytes(old)))
    }

    /// Combines an array of operands into an array of values; `old` receives the previous values. See
    /// [`Endpoint::fetch_accumulate`].
    ///
    /// # Errors
    /// As for that method.
    pub fn fetch_accumulate<T: Value>(
        &self,
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
        // SAFETY: both are borrowed until `operate` returns. Numbers are bytes without padding, and any bytes are a
        // number.
        self.operate(|endpoint| unsafe { endpoint.ifetch_accumulate(key, offset, what, from, into, len) })
    }

    /// Adds to one value and returns the previous value; see [`Endpoint::fetch_add`].
    ///
    /// # Errors
    /// As for that method.
    pub fn fetch_add<T: Value>(&self, key: &RemoteKey, offset: u64, operand: T) -> Result<T, Error> {
        self.fetch(key, offset, Reduction::Sum, operand)
    }

    /// Replaces one value and returns the previous value; see [`Endpoint::swap`].
    ///
    /// # Errors
    /// As for that method.
    pub fn swap<T: Value>(&self, key: &RemoteKey, offset: u64, value: T) -> Result<T, Error> {
        self.fetch(key, offset, Reduction::Replace, value)
    }

    /// Replaces one value if it is the expected one; see [`Endpoint::compare_swap`].
    ///
    /// # Errors
    /// As for that method.
    pub fn compare_swap<T: Value>(
        &self,
        key: &RemoteKey,
        offset: u64,
        expected: T,
        value: T,
    ) -> Result<T, Error> {
        self.swap_if(key, offset, Comparison::Equal, expected, value)
    }

    /// Replaces one value if a comparison holds; see [`Endpoint::swap_if`].
    ///
    /// # Errors
    /// As for that method.
    pub fn swap_if<T: Value>(
        &self,
        key: &RemoteKey,
        offset: u64,
        comparison: Comparison,
        expected: T,
        value: T,
    ) -> Result<T, Error> {
        let mut old = [0; 8];
        let (bits, base) = ([expected.to_bits(), value.to_bits()], old.as_mut_ptr());
        let what = (T::DATATYPE, comparison);
        // SAFETY: as for a fetch.
        self.operate(|endpoint| unsafe { endpoint.icompare_swap(key, offset, what, bits, base) })?;
        Ok(T::from_bits(u64::from_le_bytes(old)))
    }

    /// Waits until all operations on a rank's regions are completed there, those of other threads included; see
    /// [`Endpoint::flush`]. Of several threads that flush, one gets the refusals.
    ///
    /// # Errors
    /// As for that method.
    pub fn flush(&self, rank: usize) -> Result<(), Error> {
        self.operate(|endpoint| endpoint.iflush(rank))
    }

    /// Flushes every rank on whose regions there were operations; see [`Endpoint::flush_all`].
    ///
    /// # Errors
    /// As for that method.
    pub fn flush_all(&self) -> Result<(), Error> {
        let (open, started) = self.with(|endpoint| endpoint.iflush_all())?;
        open.into_iter().map(|request| self.finish(request).map(drop)).fold(started, Result::and)
    }

    /// Waits until a region of this process has had `count` notifications; see [`Endpoint::wait_notified`].
    ///
    /// # Errors
    /// As for that method.
    pub fn wait_notified(&self, region: Region, count: u64) -> Result<(), Error> {
        self.operate(|endpoint| endpoint.inotified(region, count))
    }

    /// Sends an active message and waits until both buffers can be reused; see [`Endpoint::send_active`].
    ///
    /// # Errors
    /// As for that method.
    pub fn send_active(&self, to: usize, handler: u16, header: &[u8], payload: &[u8]) -> Result<(), Error> {
        // SAFETY: both are borrowed until `operate` returns.
        self.operate(|endpoint| unsafe { endpoint.isend_active(to, handler, header, payload) })
    }

    /// Registers the handler of active messages with a number; see [`Endpoint::set_handler`]. Any thread that makes
    /// progress runs it, one thread at a time, with the lock held: it must not use the endpoint.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn set_handler(
        &self,
        number: u16,
        handler: impl FnMut(&mut Incoming<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        self.with(|endpoint| endpoint.set_handler(number, handler))
    }

    /// Starts an operation, and waits for it without the lock. Progress is made now and then, as for
    /// [`Endpoint`]: a thread may repeat an operation until another process does something.
    fn operate(
        &self,
        start: impl FnOnce(&mut LockedEndpoint<'_>) -> Result<Request, Error>,
    ) -> Result<(), Error> {
        let request = self.with(|endpoint| {
            // Before the operation starts, because a panic of a handler must not end a call whose buffer is lent.
            if endpoint.0.is_progress_due_beside() {
                Endpoint::progress(endpoint.0);
            }
            start(endpoint)
        })??;
        if request.is_complete() {
            return Ok(());
        }
        self.finish(request).map(drop)
    }
}

//! One-sided operations for runtimes, which keep the buffers themselves. The safe operations are in
//! `one_sided/blocking.rs`.

use nemesia_core::engine::RequestId;
use nemesia_core::engine::rma::{self, Comparison, CompleteAt, Datatype, Reduction, Target};
use nemesia_core::payload::{RecvBuf, SendBuf};

use crate::endpoint::{Endpoint, Region, RemoteKey, Request};
use crate::error::Error;

/// # Non-blocking one-sided operations
///
/// These functions start a one-sided operation and return a request, for runtimes that keep the buffers alive
/// themselves. [`Scope::iput`](crate::Scope::iput) and its neighbours are the safe alternatives.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::Access;
///
/// let region = endpoint.allocate(8, Access::ReadWrite)?;
/// let key = endpoint.remote_key(region)?;
/// let mut buf = [1; 8];
/// // SAFETY: the buffer lives, unused, until `wait` returns.
/// let request = unsafe { endpoint.iget(&key, 0, buf.as_mut_ptr(), buf.len()) }?;
/// endpoint.wait(request)?;
/// assert_eq!(buf, [0; 8]);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Starts a wait until a region has had `count` notifications since it was exposed. As a receive from any
    /// source, it fails when a peer fails, and it can be cancelled.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn inotified(&mut self, region: Region, count: u64) -> Result<Request, Error> {
        self.check_origin()?;
        loop {
            match self.engine.await_notifications(region.0, count) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    /// Starts a put of `len` bytes at `base`. It is complete when the bytes have left the buffer, or, with
    /// [`CompleteAt::Target`], when they are in the region; the request then reports a refusal of the owner.
    ///
    /// If `notify` is set, the region's count of notifications grows by one when the bytes are there.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent. [`Error::Refused`] if the key shows that the target would refuse the
    /// put.
    ///
    /// # Safety
    /// The bytes stay readable and unchanged until the request is complete or the endpoint is dropped.
    #[inline]
    pub unsafe fn iput(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        base: *const u8,
        len: usize,
        notify: bool,
        complete: CompleteAt,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let mut buf = unsafe { SendBuf::from_raw(base, len) };
        if self.put_directly(key, offset, buf.part(0, len))? {
            if !notify {
                return Ok(Request(RequestId::SENT));
            }
            // The bytes are there before the packet that carries the notification.
            // SAFETY: the packet has no bytes.
            buf = unsafe { SendBuf::from_raw(base, 0) };
        }
        loop {
            // SAFETY: the caller's promise covers each attempt, since a failed attempt has not kept the buffer.
            let buf = unsafe { buf.again() };
            match self.engine.put(&Target { key: &key.0, offset }, buf, notify, complete) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts a get of `len` bytes into `base`. It is complete when the bytes are in the buffer.
    ///
    /// # Errors
    /// As for [`Endpoint::iput`].
    ///
    /// # Safety
    /// The bytes are initialised, and no reference to them is used until the request is complete or the
    /// endpoint is dropped.
    #[inline]
    pub unsafe fn iget(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        base: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let mut buf = unsafe { RecvBuf::from_raw(base, len) };
        if self.get_directly(key, offset, buf.part(0, len))? {
            return Ok(Request(RequestId::SENT));
        }
        loop {
            match self.engine.get(&Target { key: &key.0, offset }, &mut buf) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts to combine `len` bytes of operands at `base` into values, atomically for each. It is complete
    /// when the operands have left the buffer, or, with [`CompleteAt::Target`], when the values are changed.
    ///
    /// # Errors
    /// As for [`Endpoint::iput`].
    ///
    /// # Safety
    /// As for [`Endpoint::iput`].
    pub unsafe fn iaccumulate(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        base: *const u8,
        len: usize,
        complete: CompleteAt,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let buf = unsafe { SendBuf::from_raw(base, len) };
        if self.accumulate_directly(key, offset, (datatype, reduction), buf.part(0, len))? {
            return Ok(Request(RequestId::SENT));
        }
        loop {
            // SAFETY: the caller's promise covers each attempt, since a failed attempt has not kept the buffer.
            let buf = unsafe { buf.again() };
            match self.engine.accumulate(
                &Target { key: &key.0, offset },
                (datatype, reduction),
                buf,
                complete,
            ) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts to combine an operand, given as bits, into one value. It is complete when the previous value is
    /// at `old`, in the bytes of its type.
    ///
    /// # Errors
    /// As for [`Endpoint::iput`].
    ///
    /// # Safety
    /// As for [`Endpoint::iget`], for the bytes of the type at `old`.
    pub unsafe fn ifetch(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        operand: u64,
        old: *mut u8,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let mut old = unsafe { RecvBuf::from_raw(old, datatype.bytes()) };
        let change = |value| rma::combine(datatype, reduction, value, operand);
        if let Some(value) = self.change_directly(key, offset, (datatype, reduction), change)? {
            return Ok(returned(&mut old, value));
        }
        loop {
            match self.engine.fetch(&Target { key: &key.0, offset }, datatype, reduction, operand, &mut old) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts to combine `len` bytes of operands at `operands` into values, atomically for each (MPI's
    /// get-accumulate). It is complete when the previous values are at `old`, as many bytes.
    ///
    /// [`Reduction::Nothing`] reads no operands; the pointer may then be null.
    ///
    /// # Errors
    /// As for [`Endpoint::iput`]. If a part is refused, other parts may have been executed.
    ///
    /// # Safety
    /// As for [`Endpoint::iput`] for the operands, and as for [`Endpoint::iget`] for the bytes at `old`. The
    /// two do not overlap.
    pub unsafe fn ifetch_accumulate(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, reduction): (Datatype, Reduction),
        operands: *const u8,
        old: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        // They are not read, so they may overlap the previous values.
        let count = if reduction == Reduction::Nothing { 0 } else { len };
        // SAFETY: the caller's promise.
        let (from, mut into) = unsafe { (SendBuf::from_raw(operands, count), RecvBuf::from_raw(old, len)) };
        let what = (datatype, reduction);
        if self.exchange_directly(key, offset, what, from.part(0, count), into.part(0, len))? {
            return Ok(Request(RequestId::SENT));
        }
        loop {
            let target = Target { key: &key.0, offset };
            // SAFETY: the caller's promise covers each attempt, since a failed attempt has not kept the buffer.
            let from = unsafe { from.again() };
            match self.engine.fetch_accumulate(&target, datatype, reduction, from, &mut into) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts to replace one value by the second of `values` if the comparison of the first with it holds. It is
    /// complete when the previous value is at `old`, in the bytes of its type.
    ///
    /// # Errors
    /// As for [`Endpoint::iput`].
    ///
    /// # Safety
    /// As for [`Endpoint::iget`], for the bytes of the type at `old`.
    pub unsafe fn icompare_swap(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        (datatype, comparison): (Datatype, Comparison),
        values: [u64; 2],
        old: *mut u8,
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise.
        let mut old = unsafe { RecvBuf::from_raw(old, datatype.bytes()) };
        let change = |old| rma::swap(datatype, comparison, old, values);
        // Where the comparison is undefined, the engine refuses it.
        if datatype.allows_comparison(comparison)
            && let Some(value) = self.change_directly(key, offset, (datatype, Reduction::Replace), change)?
        {
            return Ok(returned(&mut old, value));
        }
        loop {
            let target = Target { key: &key.0, offset };
            match self.engine.compare_swap(&target, (datatype, comparison), values, &mut old) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_remote_room(key, error)?,
            }
        }
    }

    /// Starts a flush. It is complete when all earlier operations on the rank's regions are completed there.
    ///
    /// It fails with [`Error::Refused`] if puts or accumulates were refused since the last flush.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn iflush(&mut self, rank: usize) -> Result<Request, Error> {
        self.check_origin()?;
        let to = u32::try_from(rank).unwrap_or(u32::MAX);
        loop {
            match self.engine.flush(to) {
                Ok(id) => return Ok(Request(id)),
                Err(error) => self.make_room(error)?,
            }
        }
    }

    /// Starts a flush of every rank on whose regions there were operations. Returns the requests and the first
    /// error.
    pub fn iflush_all(&mut self) -> (Vec<Request>, Result<(), Error>) {
        let mut open = Vec::new();
        let mut result = self.check_origin();
        for rank in 0..self.numbers() {
            if self.engine.is_unflushed(rank as u32) {
                match self.iflush(rank) {
                    Ok(request) => open.push(request),
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        (open, result)
    }

    /// Orders operations on the rank's regions: later ones are executed there after all earlier ones.
    ///
    /// Without a fence this holds as well, except for a get. A get may see the bytes that a later operation
    /// writes.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn fence(&mut self, rank: usize) -> Result<(), Error> {
        self.check_origin()?;
        let to = u32::try_from(rank).unwrap_or(u32::MAX);
        loop {
            match self.engine.fence(to) {
                Ok(()) => break,
                Err(error) => self.make_room(error)?,
            }
        }
        if self.engine.is_unflushed(to) {
            self.direct.bar(to);
        }
        Ok(())
    }
}

/// Stores the previous value, and returns the request of an operation that is complete.
fn returned(old: &mut RecvBuf, value: u64) -> Request {
    let len = old.len();
    old.part(0, len).copy_from_slice(&value.to_le_bytes()[..len]);
    Request(RequestId::SENT)
}

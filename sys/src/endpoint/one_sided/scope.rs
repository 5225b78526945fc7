//! Safe non-blocking one-sided operations, in a [`Scope`].

use crate::endpoint::{CompleteAt, Pending, Reduction, Refusal, RemoteKey, Scope, Value};
use crate::error::Error;

impl<'env> Scope<'_, 'env> {
    /// Starts a put; see [`Endpoint::iput`](crate::Endpoint::iput).
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn iput(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        bytes: &'env [u8],
        complete: CompleteAt,
    ) -> Result<Pending, Error> {
        // SAFETY: as for `ScopeContext::isend`.
        let request =
            unsafe { self.endpoint.iput(key, offset, bytes.as_ptr(), bytes.len(), false, complete) }?;
        Ok(self.keep(request))
    }

    /// Starts a get; see [`Endpoint::iget`](crate::Endpoint::iget).
    ///
    /// # Errors
    /// See [`Error`]; nothing was requested.
    pub fn iget(&mut self, key: &RemoteKey, offset: u64, buf: &'env mut [u8]) -> Result<Pending, Error> {
        // SAFETY: as for `ScopeContext::irecv`.
        let request = unsafe { self.endpoint.iget(key, offset, buf.as_mut_ptr(), buf.len()) }?;
        Ok(self.keep(request))
    }

    /// Starts to combine operands into values; see [`Endpoint::iaccumulate`](crate::Endpoint::iaccumulate).
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn iaccumulate<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operands: &'env [T],
        complete: CompleteAt,
    ) -> Result<Pending, Error> {
        let (what, base) = ((T::DATATYPE, reduction), operands.as_ptr().cast());
        // SAFETY: as for `ScopeContext::isend`. The values are numbers, which are bytes without padding.
        let request =
            unsafe { self.endpoint.iaccumulate(key, offset, what, base, size_of_val(operands), complete) }?;
        Ok(self.keep(request))
    }

    /// Starts to combine an operand into one value. `old` receives the previous value. See
    /// [`Endpoint::ifetch`](crate::Endpoint::ifetch).
    ///
    /// # Errors
    /// See [`Error`]; nothing was requested.
    pub fn ifetch<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operand: T,
        old: &'env mut T,
    ) -> Result<Pending, Error> {
        let (what, base) = ((T::DATATYPE, reduction), (&raw mut *old).cast());
        // SAFETY: as for `ScopeContext::irecv`. Any bytes are a number.
        let request = unsafe { self.endpoint.ifetch(key, offset, what, operand.to_bits(), base) }?;
        Ok(self.keep(request))
    }

    /// Starts to combine operands into values. `old` receives the previous values. See
    /// [`Endpoint::fetch_accumulate`](crate::Endpoint::fetch_accumulate).
    ///
    /// # Errors
    /// See [`Error`]; nothing was requested. [`Error::Refused`] if `operands` and `old` differ in length.
    pub fn ifetch_accumulate<T: Value>(
        &mut self,
        key: &RemoteKey,
        offset: u64,
        reduction: Reduction,
        operands: &'env [T],
        old: &'env mut [T],
    ) -> Result<Pending, Error> {
        if operands.len() != old.len() {
            return Err(Error::Refused { rank: key.rank(), refusal: Refusal::Bounds, count: 1 });
        }
        let (from, into) = (operands.as_ptr().cast(), old.as_mut_ptr().cast());
        let (what, len) = ((T::DATATYPE, reduction), size_of_val(operands));
        // SAFETY: as for `ScopeContext::isend` and `irecv`. Numbers are bytes without padding, and any bytes are a
        // number.
        let request = unsafe { self.endpoint.ifetch_accumulate(key, offset, what, from, into, len) }?;
        Ok(self.keep(request))
    }
}

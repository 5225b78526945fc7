//! Safe non-blocking operations on borrowed buffers. As with `std::thread::scope`, the scope ends only after
//! all its operations have ended.

use std::marker::PhantomData;

use crate::endpoint::{Context, Endpoint, Message, Request, Source, Status, Tag};
use crate::error::Error;

/// An operation that a [`Scope`] has started. It names no operation of another scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The place in [`Scope::open`]; meaningless if the operation was complete at its start.
    at: usize,
    /// The number of the operation in its scope.
    number: u64,
    request: Request,
}

/// A buffer that an operation of a [`Scope`] uses. [`Scope::reclaim`] returns it for another operation.
#[derive(Debug)]
#[must_use = "`reclaim` returns the buffer before the scope ends"]
pub struct ScopeLoan<'env> {
    pending: Pending,
    base: *mut u8,
    len: usize,
    /// The address of the endpoint of its scope. While that scope lives, no other scope has this endpoint.
    home: usize,
    buffer: PhantomData<&'env mut [u8]>,
}

/// Starts operations on buffers that outlive the scope.
#[derive(Debug)]
pub struct Scope<'scope, 'env> {
    pub(in crate::endpoint) endpoint: &'scope mut Endpoint,
    /// The operations under way. Their places are used again.
    open: Vec<Option<Pending>>,
    free: Vec<usize>,
    started: u64,
    /// Buffers are borrowed for all of `'env`. The type is invariant, as `std::thread::Scope` is.
    buffers: PhantomData<&'scope mut &'env ()>,
}

/// # Scopes
///
/// A scope starts non-blocking operations on borrowed buffers and needs no `unsafe`. It ends when all its
/// operations have ended, as `std::thread::scope` does with threads.
///
/// ```
/// # nemesia::testing::world(2, |mut endpoint| {
/// use nemesia::{Source, Tag};
///
/// let (me, peer) = (endpoint.rank(), 1 - endpoint.rank());
/// let (outgoing, mut incoming) = ([me as u8; 100], [0; 100]);
/// endpoint.scope(|scope| {
///     scope.irecv(Source::Rank(peer), Tag::Exactly(1), &mut incoming)?;
///     scope.isend(peer, 1, &outgoing)?;
///     Ok(())
/// })?;
/// assert_eq!(incoming, [peer as u8; 100]);
/// # endpoint.barrier()?;
/// # endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Runs `work` with a [`Scope`] that starts operations on borrowed buffers, and returns when all of them
    /// are complete.
    ///
    /// At the end, this function waits for the operations that `work` did not wait for. If `work` panics or a
    /// wait ends early, this function withdraws posted receives and waits for transfers under way before it
    /// returns.
    ///
    /// # Errors
    /// The first error of an operation.
    pub fn scope<'env, R>(
        &mut self,
        work: impl for<'scope> FnOnce(&mut Scope<'scope, 'env>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (open, free) = (Vec::new(), Vec::new());
        let mut scope = Scope { endpoint: self, open, free, started: 0, buffers: PhantomData };
        let result = work(&mut scope)?;
        scope.wait_all()?;
        Ok(result)
    }
}

/// A [`Scope`] in one matching context; see [`Context`].
#[derive(Debug)]
pub struct ScopeContext<'a, 'scope, 'env> {
    scope: &'a mut Scope<'scope, 'env>,
    id: u16,
}

impl<'scope, 'env> ScopeContext<'_, 'scope, 'env> {
    /// Starts a send.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend(self, to: usize, tag: u64, bytes: &'env [u8]) -> Result<Pending, Error> {
        // SAFETY: the bytes are borrowed for 'env, which outlives the scope, and the scope does not end before
        // the operation does (see `Drop`).
        self.start(|context| unsafe { context.isend(to, tag, bytes.as_ptr(), bytes.len()) })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecv(self, from: Source, tag: Tag, buf: &'env mut [u8]) -> Result<Pending, Error> {
        // SAFETY: the buffer is borrowed exclusively for 'env, which outlives the scope, and the scope does not
        // end before the operation does (see `Drop`).
        self.start(|context| unsafe { context.irecv(from, tag, buf.as_mut_ptr(), buf.len()) })
    }

    /// Looks for a message and leaves it in the queue; see [`Endpoint::iprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::iprobe`].
    pub fn iprobe(mut self, from: Source, tag: Tag) -> Result<Option<Status>, Error> {
        self.context().iprobe(from, tag)
    }

    /// Waits for a message and leaves it in the queue; see [`Endpoint::probe`].
    ///
    /// # Errors
    /// As for [`Endpoint::probe`].
    pub fn probe(mut self, from: Source, tag: Tag) -> Result<Status, Error> {
        self.context().probe(from, tag)
    }

    /// Looks for a message and takes it out of the queue; see [`Endpoint::improbe`].
    ///
    /// # Errors
    /// As for [`Endpoint::improbe`].
    pub fn improbe(mut self, from: Source, tag: Tag) -> Result<Option<Message>, Error> {
        self.context().improbe(from, tag)
    }

    /// Waits for a message and takes it out of the queue; see [`Endpoint::mprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`].
    pub fn mprobe(mut self, from: Source, tag: Tag) -> Result<Message, Error> {
        self.context().mprobe(from, tag)
    }

    const fn context(&mut self) -> Context<'_> {
        self.scope.endpoint.in_context(self.id)
    }

    fn start(mut self, start: impl FnOnce(Context<'_>) -> Result<Request, Error>) -> Result<Pending, Error> {
        let request = start(self.context())?;
        Ok(self.scope.keep(request))
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Returns this scope in a matching context, for one operation or one probe.
    pub const fn in_context(&mut self, context: u16) -> ScopeContext<'_, 'scope, 'env> {
        ScopeContext { scope: self, id: context }
    }

    /// Starts a send.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend(&mut self, to: usize, tag: u64, bytes: &'env [u8]) -> Result<Pending, Error> {
        self.in_context(0).isend(to, tag, bytes)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecv(&mut self, from: Source, tag: Tag, buf: &'env mut [u8]) -> Result<Pending, Error> {
        self.in_context(0).irecv(from, tag, buf)
    }

    /// Starts the receive of a message that a probe took out.
    ///
    /// # Errors
    /// See [`Endpoint::imrecv`].
    pub fn imrecv(&mut self, message: Message, buf: &'env mut [u8]) -> Result<Pending, Error> {
        // SAFETY: as for `ScopeContext::irecv`.
        let request = unsafe { self.endpoint.imrecv(message, buf.as_mut_ptr(), buf.len()) }?;
        Ok(self.keep(request))
    }

    /// Starts an active message.
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend_active(
        &mut self,
        to: usize,
        handler: u16,
        header: &'env [u8],
        payload: &'env [u8],
    ) -> Result<Pending, Error> {
        // SAFETY: both are borrowed for 'env, which outlives the scope, and the scope does not end before the
        // operation does (see `Drop`).
        let request = unsafe { self.endpoint.isend_active(to, handler, header, payload) }?;
        Ok(self.keep(request))
    }

    /// Starts a send of a buffer that the scope returns when it is free again; see [`Scope::reclaim`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was sent.
    pub fn isend_loan(&mut self, to: usize, tag: u64, buf: &'env mut [u8]) -> Result<ScopeLoan<'env>, Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: the buffer is borrowed exclusively for 'env. It is not used before the operation has ended:
        // only `reclaim` returns it, and the scope does not end earlier.
        let request = unsafe { self.endpoint.isend(to, tag, base, len) }?;
        Ok(self.lend(request, base, len))
    }

    /// Posts a receive into a buffer that the scope returns when the message is there; see [`Scope::reclaim`].
    ///
    /// # Errors
    /// See [`Error`]; nothing was posted.
    pub fn irecv_loan(
        &mut self,
        from: Source,
        tag: Tag,
        buf: &'env mut [u8],
    ) -> Result<ScopeLoan<'env>, Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: as for `isend_loan`.
        let request = unsafe { self.endpoint.irecv(from, tag, base, len) }?;
        Ok(self.lend(request, base, len))
    }

    fn lend(&mut self, request: Request, base: *mut u8, len: usize) -> ScopeLoan<'env> {
        let home = std::ptr::from_ref(&*self.endpoint).addr();
        ScopeLoan { pending: self.keep(request), base, len, home, buffer: PhantomData }
    }

    /// Waits for one operation and returns its buffer, which can be used again in the same scope.
    ///
    /// ```
    /// # nemesia::testing::world(2, |mut endpoint| {
    /// use nemesia::{Source, Tag};
    ///
    /// let peer = 1 - endpoint.rank();
    /// let mut buffer = [0; 8];
    /// endpoint.scope(|scope| {
    ///     let mut free = &mut buffer[..];
    ///     for trip in 0..3 {
    ///         free.fill(trip);
    ///         let sent = scope.isend_loan(peer, 1, free)?;
    ///         (_, free) = scope.reclaim(sent)?;
    ///         let received = scope.irecv_loan(Source::Rank(peer), Tag::Exactly(1), free)?;
    ///         (_, free) = scope.reclaim(received)?;
    ///         assert_eq!(free, [trip; 8]);
    ///     }
    ///     Ok(())
    /// })?;
    /// # endpoint.barrier()?;
    /// # endpoint.close()
    /// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
    /// # Ok::<(), nemesia::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`Endpoint::wait`]; [`Error::Stale`] for a loan of another scope. The buffer is then free when the scope
    /// of the loan ends.
    #[expect(clippy::needless_pass_by_value, reason = "the loan ends, so that its buffer has one owner")]
    pub fn reclaim(&mut self, loan: ScopeLoan<'env>) -> Result<(Status, &'env mut [u8]), Error> {
        let ScopeLoan { pending, base, len, home, .. } = loan;
        if home != std::ptr::from_ref(&*self.endpoint).addr() {
            return Err(Error::Stale);
        }
        let status = self.wait(pending)?;
        // SAFETY: the buffer was borrowed exclusively for 'env. The loan was its only name, and is gone. Its operation
        // has ended: it is the one waited for, or its scope has ended, because a scope that lives has the only
        // endpoint at its address.
        Ok((status, unsafe { std::slice::from_raw_parts_mut(base, len) }))
    }

    /// Refuses the name of an operation that has ended or belongs to another scope. Taken for an operation of
    /// this scope, it would release that operation's buffer too early. An operation that was complete at its start uses
    /// no buffer.
    fn check(&self, pending: Pending) -> Result<(), Error> {
        match self.open.get(pending.at) {
            _ if pending.request.is_complete() => Ok(()),
            Some(Some(open)) if *open == pending => Ok(()),
            _ => Err(Error::Stale),
        }
    }

    pub(in crate::endpoint) fn keep(&mut self, request: Request) -> Pending {
        if request.is_complete() {
            return Pending { at: usize::MAX, number: 0, request };
        }
        self.started += 1;
        let at = self.free.pop().unwrap_or(self.open.len());
        let pending = Pending { at, number: self.started, request };
        match self.open.get_mut(at) {
            Some(place) => *place = Some(pending),
            None => self.open.push(Some(pending)),
        }
        pending
    }

    /// Returns the number of places for operations under way.
    #[cfg(test)]
    pub(in crate::endpoint) const fn places(&self) -> usize {
        self.open.len()
    }

    /// Waits for one operation.
    ///
    /// # Errors
    /// See [`Endpoint::wait`].
    pub fn wait(&mut self, pending: Pending) -> Result<Status, Error> {
        self.check(pending)?;
        let outcome = self.endpoint.wait(pending.request);
        self.forget_after(pending, &outcome);
        outcome
    }

    /// Forgets an operation after a wait for it, unless it is still under way.
    fn forget_after(&mut self, pending: Pending, outcome: &Result<Status, Error>) {
        if !matches!(outcome, Err(Error::Unexpected { .. } | Error::Timeout(_))) {
            self.forget(pending);
        }
    }

    fn forget(&mut self, pending: Pending) {
        if self.open.get_mut(pending.at).is_some_and(|place| place.take().is_some()) {
            self.free.push(pending.at);
        }
    }

    /// Returns the result of one operation if it is complete. The operation then no longer exists.
    ///
    /// # Errors
    /// See [`Endpoint::test`].
    pub fn test(&mut self, pending: Pending) -> Result<Option<Status>, Error> {
        self.check(pending)?;
        let outcome = self.endpoint.test(pending.request);
        if !matches!(outcome, Ok(None)) {
            self.forget(pending);
        }
        outcome
    }

    /// Waits for every operation that `work` has not waited for yet.
    ///
    /// # Errors
    /// The first error of an operation. The operations after it are completed at the end of the scope.
    pub fn wait_all(&mut self) -> Result<(), Error> {
        let mut all: Vec<Pending> = self.open.iter().copied().flatten().collect();
        all.sort_unstable_by_key(|pending| pending.number);
        let mut rest = &all[..];
        while let Some((pending, later)) = rest.split_first() {
            let others = |at: usize| later.get(at).map(|next| next.request);
            let outcome = self.endpoint.wait_before(pending.request, &others, None);
            self.forget_after(*pending, &outcome);
            outcome?;
            rest = later;
        }
        Ok(())
    }
}

impl Drop for Scope<'_, '_> {
    fn drop(&mut self) {
        for pending in self.open.drain(..).flatten() {
            self.endpoint.release(pending.request);
        }
    }
}

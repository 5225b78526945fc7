//! One endpoint for all threads of a process.
//!
//! A lock is around the endpoint, and held for the length of a call that does not block. Of the threads that wait for
//! requests one drives: it polls, yields and sleeps as the owner of an endpoint does (`wait.rs`), without the lock
//! while others want it or it sleeps. The others sleep until they are served, or have to drive. The protocol is that of
//! [`nemesia_core::threads`], where it is modelled.

mod locked;
#[cfg(all(test, nemesia_race))]
mod race;

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::Progress;
use nemesia_core::matching::Pattern;
use nemesia_core::sync::{Word32, spin_hint};
use nemesia_core::threads::{Bits, EventCount, Lock, Park, WaiterList, WaiterSlot};

use super::barrier::BarrierStep;
use super::wait::{Awaited, Wait, WaitStage, give_way};
use super::{Endpoint, Message, Request, Source, Status, Tag, pattern};
use crate::error::Error;
use crate::os::{ProcessOrigin, futex_wait, futex_wait_bits, futex_wake, futex_wake_bits};
pub use locked::LockedEndpoint;

/// An endpoint that any number of threads use at the same time; each clone is the same endpoint.
///
/// A call that does not block takes a lock, for which it competes with those of other threads. Threads that wait do not
/// poll beside each other: one does, and wakes those that it has something for. Which of them takes a message that
/// several receives match is decided by the order in which these were posted. A request is waited for by one thread;
/// any thread may. Handlers of active messages run with the lock held, in whatever thread makes progress: they must not
/// use the endpoint.
///
/// An endpoint for each thread is faster, and one that a single thread owns fastest.
#[derive(Clone)]
pub struct SharedEndpoint(Arc<SharedState>);

struct SharedState {
    lock: Lock,
    event_count: EventCount,
    rank: usize,
    size: usize,
    /// Asked before the lock is taken: in a forked child a thread that does not exist there may hold it.
    origin: Arc<ProcessOrigin>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached through a `Guard` only, which holds the lock; what is in it may move between threads.
unsafe impl Sync for SharedState where Inner: Send {}

/// What the lock guards.
struct Inner {
    endpoint: Endpoint,
    /// The threads that wait.
    waiters: WaiterList<Vec<Option<WaiterSlot<WaiterEntry>>>>,
    /// The driver sleeps.
    parked: bool,
    /// Those to be woken when the lock is free.
    served: Bits,
}

/// What a thread waits for, and gets.
struct WaiterEntry {
    ask: Ask,
    answer: Option<Result<SharedAnswer, Error>>,
}

/// What a thread can wait for.
#[derive(Clone, Copy)]
enum Ask {
    Request(Request),
    /// A message that this would receive, left where it is.
    Probe(Pattern),
    /// A message that this would receive, taken out.
    Take(Pattern),
}

enum SharedAnswer {
    Status(Status),
    Message(Message),
}

impl Ask {
    fn awaited(&self) -> Awaited<'static> {
        match self {
            Self::Request(request) => Awaited::Shared(*request),
            Self::Probe(pattern) | Self::Take(pattern) => Awaited::Message(pattern.source),
        }
    }

    /// What has come of it, if anything.
    fn poll(&self, endpoint: &mut Endpoint) -> Option<Result<SharedAnswer, Error>> {
        match self {
            Self::Request(request) => {
                endpoint.outcome(*request).map(|outcome| outcome.map(SharedAnswer::Status))
            }
            Self::Probe(pattern) => {
                endpoint.find_once(pattern).transpose().map(|found| found.map(SharedAnswer::Status))
            }
            Self::Take(pattern) => {
                endpoint.take_once(pattern).transpose().map(|found| found.map(SharedAnswer::Message))
            }
        }
    }
}

impl Endpoint {
    /// Lets all threads of this process use the endpoint.
    pub fn into_shared(self) -> SharedEndpoint {
        let (rank, size, origin) = (self.rank(), self.size(), Arc::clone(&self.origin));
        let inner =
            Inner { endpoint: self, waiters: WaiterList::new(Vec::new()), parked: false, served: Bits::NONE };
        SharedEndpoint(Arc::new(SharedState {
            lock: Lock::default(),
            event_count: EventCount::default(),
            rank,
            size,
            origin,
            inner: UnsafeCell::new(inner),
        }))
    }
}

impl SharedEndpoint {
    /// Calls methods of the endpoint that do not block, with the lock held. Those that do keep all other threads out
    /// until they return: start the operation here and wait for it by [`SharedEndpoint::wait`], or use
    /// [`SharedEndpoint::run`].
    ///
    /// # Errors
    /// [`Error::Forked`]; `work` was not called.
    pub fn with<T>(&self, work: impl FnOnce(&mut LockedEndpoint<'_>) -> T) -> Result<T, Error> {
        // SAFETY: `LockedEndpoint` lends nothing that could be swapped.
        unsafe { self.with_endpoint(|endpoint| work(&mut LockedEndpoint(endpoint))) }
    }

    /// As [`SharedEndpoint::with`], for callers that need the endpoint itself.
    ///
    /// # Errors
    /// [`Error::Forked`]; `work` was not called.
    ///
    /// # Safety
    /// `work` leaves this very endpoint where it is: it does not swap, replace or take it (`std::mem`), as other
    /// threads may have lent buffers to it, and wait.
    pub unsafe fn with_endpoint<T>(&self, work: impl FnOnce(&mut Endpoint) -> T) -> Result<T, Error> {
        let mut inner = self.0.lock()?;
        let result = work(&mut inner.endpoint);
        // A message to ourselves, or a receive that was withdrawn, may be what another thread waits for.
        self.0.serve(&mut inner);
        Ok(result)
    }

    /// Starts an operation with the lock held, and waits for it without. Returns or unwinds only when the operation is
    /// done with its buffers, whatever comes of it: they may be borrowed for as long as this runs.
    ///
    /// # Errors
    /// What `start` says, or what comes of the operation.
    pub fn run(
        &self,
        start: impl FnOnce(&mut LockedEndpoint<'_>) -> Result<Request, Error>,
    ) -> Result<Status, Error> {
        self.finish(self.with(start)??)
    }

    /// Our rank, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Processes in the world.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// As [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until `run` returns.
        self.run(|endpoint| unsafe { endpoint.isend(to, tag, bytes.as_ptr(), bytes.len()) }).map(drop)
    }

    /// As [`Endpoint::recv`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv(&self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: the buffer is borrowed until `run` returns.
        self.run(|endpoint| unsafe { endpoint.irecv(from, tag, base, len) })
    }

    /// As [`Endpoint::test`].
    ///
    /// # Errors
    /// See [`Error`]; after an error the request is gone as well.
    pub fn test(&self, request: Request) -> Result<Option<Status>, Error> {
        self.with(|endpoint| endpoint.test(request))?
    }

    /// As [`Endpoint::wait`].
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`] leaves the request as it is: it can be waited for again.
    pub fn wait(&self, request: Request) -> Result<Status, Error> {
        self.0.wait(Ask::Request(request), None).and_then(SharedAnswer::status)
    }

    /// As [`Endpoint::wait_timeout`].
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the request as it is: it can be waited for again.
    pub fn wait_timeout(&self, request: Request, limit: Duration) -> Result<Status, Error> {
        self.0.wait(Ask::Request(request), Some(limit)).and_then(SharedAnswer::status)
    }

    /// As [`Endpoint::probe`] in a matching context, for at most so long if there is a limit.
    ///
    /// # Errors
    /// As there; [`Error::Timeout`].
    pub fn probe(
        &self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.0.wait(Ask::Probe(pattern(from, context, tag)?), limit).and_then(SharedAnswer::status)
    }

    /// As [`Endpoint::mprobe`] in a matching context, for at most so long if there is a limit.
    ///
    /// # Errors
    /// As there; [`Error::Timeout`].
    pub fn mprobe(
        &self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Message, Error> {
        self.0.wait(Ask::Take(pattern(from, context, tag)?), limit).and_then(SharedAnswer::message)
    }

    /// As [`Endpoint::barrier`]. One thread of each rank calls it; the other threads go on meanwhile.
    ///
    /// # Errors
    /// See there.
    pub fn barrier(&self) -> Result<(), Error> {
        loop {
            // SAFETY: a step of the barrier leaves the endpoint where it is.
            let step = unsafe { self.with_endpoint(Endpoint::barrier_step) }?;
            match step? {
                BarrierStep::Leave(outcome) => return outcome,
                BarrierStep::Wait(request) => {
                    let outcome = self.wait(request);
                    // SAFETY: as above.
                    unsafe { self.with_endpoint(|endpoint| endpoint.barrier_waited(outcome)) }??;
                }
            }
        }
    }

    /// As [`Endpoint::close`], for the last of all clones. The others only lose theirs.
    ///
    /// # Errors
    /// See there.
    pub fn close(self) -> Result<(), Error> {
        self.0.check_origin()?;
        let shared = Arc::clone(&self.0);
        drop(self);
        Arc::into_inner(shared).map_or(Ok(()), |shared| shared.inner.into_inner().endpoint.close())
    }

    /// Waits for a request that borrows the caller's buffer: returns or unwinds only when the engine has done with the
    /// buffer.
    fn finish(&self, request: Request) -> Result<Status, Error> {
        let borrowed = SharedBorrow { endpoint: self, request };
        let outcome = loop {
            match self.wait(request) {
                // Withdrawn, or, when it could not be, under way: then it ends, or its peer does.
                Err(error @ Error::Unexpected { .. }) if self.withdraw(request) => {
                    // Only frees the slot.
                    let _ = self.test(request);
                    break Err(error);
                }
                Err(Error::Unexpected { .. }) => {}
                done => break done,
            }
        };
        std::mem::forget(borrowed);
        outcome
    }

    fn withdraw(&self, request: Request) -> bool {
        self.with(|endpoint| endpoint.cancel(request)).unwrap_or(false)
    }

    /// As [`Endpoint::release`].
    #[cold]
    fn release(&self, request: Request) {
        let mut first = None;
        loop {
            let waited = catch_unwind(AssertUnwindSafe(|| {
                self.withdraw(request);
                self.wait(request)
            }));
            match waited {
                // A full store does not matter here: the buffer may not go before the transfer has ended.
                Ok(Err(Error::Unexpected { .. })) => {}
                Ok(_) => break,
                Err(panic) if first.is_none() => first = Some(panic),
                // Dropping what a panic carries may panic again.
                Err(panic) => std::mem::forget(panic),
            }
        }
        if let (Some(panic), Ok(mut inner)) = (first, self.0.lock()) {
            inner.endpoint.engine.handlers_mut().keep_panic(panic);
        }
    }
}

/// A request that uses a buffer of the caller's while a thread waits for it; dropped only if a panic ends the wait.
struct SharedBorrow<'a> {
    endpoint: &'a SharedEndpoint,
    request: Request,
}

impl Drop for SharedBorrow<'_> {
    fn drop(&mut self) {
        self.endpoint.release(self.request);
    }
}

impl Drop for SharedEndpoint {
    fn drop(&mut self) {
        if self.0.origin.is_elsewhere() {
            // A thread that does not exist in this forked child may have been changing it: nobody drops it here.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl SharedAnswer {
    /// To a request or a probe.
    fn status(self) -> Result<Status, Error> {
        match self {
            Self::Status(status) => Ok(status),
            Self::Message(message) => Ok(message.status()),
        }
    }

    /// To a matched probe.
    fn message(self) -> Result<Message, Error> {
        match self {
            Self::Message(message) => Ok(message),
            // Not asked for.
            Self::Status(_) => Err(Error::Stale),
        }
    }
}

impl std::fmt::Debug for SharedEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SharedState { rank, size, .. } = &*self.0;
        f.debug_struct("SharedEndpoint").field("rank", rank).field("size", size).finish_non_exhaustive()
    }
}

impl SharedState {
    /// # Errors
    /// [`Error::Forked`].
    fn check_origin(&self) -> Result<(), Error> {
        if self.origin.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }

    /// # Errors
    /// [`Error::Forked`].
    fn lock(&self) -> Result<Guard<'_>, Error> {
        self.check_origin()?;
        self.lock.acquire(&Futex);
        Ok(Guard(self))
    }

    fn wait(&self, ask: Ask, limit: Option<Duration>) -> Result<SharedAnswer, Error> {
        let mut inner = self.lock()?;
        if let Some(answer) = ask.poll(&mut inner.endpoint) {
            return answer;
        }
        let mut place = WaiterPlace::take(inner, ask);
        let mut wait = Wait::new(limit);
        loop {
            if let Some(answer) = place.answer() {
                return answer;
            }
            let turn = match place.drives() {
                true => self.drive(&mut place, &mut wait),
                false => self.listen(&mut place, &mut wait),
            };
            if let Err(error) = turn {
                // Unless it has been served since.
                return place.answer().unwrap_or(Err(error));
            }
        }
    }

    /// One turn of the driver.
    fn drive(&self, place: &mut WaiterPlace<'_>, wait: &mut Wait) -> Result<(), Error> {
        let WaiterPlace { inner, ask, .. } = place;
        let done = inner.endpoint.engine.step();
        if done != Progress::default() {
            self.serve(inner);
        }
        if inner.endpoint.keep_polling(wait, done.packets) {
            if self.lock.is_wanted() {
                inner.unlocked(|| {});
            } else if done.packets == 0 {
                spin_hint();
            }
            return Ok(());
        }
        let stage = inner.endpoint.stage(wait, ask.awaited());
        self.serve(inner);
        match stage? {
            WaitStage::Poll => {}
            WaitStage::Yield => {
                let took = inner.unlocked(give_way);
                inner.endpoint.learn_yield(wait, took);
            }
            WaitStage::Sleep(parker) => {
                inner.parked = true;
                let slept = inner.unlocked(|| parker.sleep());
                inner.parked = false;
                inner.endpoint.unpark(wait, slept);
                if !slept.woken {
                    self.refuse_held(inner);
                }
            }
        }
        Ok(())
    }

    /// One turn of a thread that does not drive: sleeps until it is served, or drives.
    fn listen(&self, place: &mut WaiterPlace<'_>, wait: &mut Wait) -> Result<(), Error> {
        let (since, bits) = (self.event_count.listen(), Bits::of(place.slot));
        wait.check(Instant::now())?;
        let left = wait.left(Instant::now());
        place
            .inner
            .unlocked(|| futex_wait_bits(self.event_count.word().as_futex(), since, bits.mask(), left));
        Ok(())
    }

    /// After requests may have been completed: tells those who wait for them.
    fn serve(&self, inner: &mut Inner) {
        let Inner { endpoint, waiters, .. } = inner;
        if waiters.count() == 0 {
            return;
        }
        let served = waiters.serve(|entry| {
            entry.answer = entry.ask.poll(endpoint);
            entry.answer.is_some()
        });
        self.ring(inner, served);
    }

    /// After nobody had anything for us during a whole sleep: what can't come because its sender is held back is not
    /// waited for any longer.
    fn refuse_held(&self, inner: &mut Inner) {
        let Inner { endpoint, waiters, .. } = inner;
        let served = waiters.serve(|entry| {
            entry.answer = endpoint.held_back(entry.ask.awaited()).map(Err);
            entry.answer.is_some()
        });
        self.ring(inner, served);
    }

    fn ring(&self, inner: &mut Inner, (bits, driver): (Bits, bool)) {
        if bits != Bits::NONE {
            self.event_count.ring();
            inner.served = inner.served.and(bits);
        }
        if driver && inner.parked {
            inner.endpoint.notify();
        }
    }
}

/// The lock, held.
struct Guard<'a>(&'a SharedState);

impl Guard<'_> {
    /// Gives the lock to those who wait for it, does this, and takes the lock again.
    fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        struct Retake<'a>(&'a SharedState);
        impl Drop for Retake<'_> {
            fn drop(&mut self) {
                self.0.lock.acquire(&Futex);
            }
        }
        let served = std::mem::take(&mut self.served);
        self.0.lock.hand_over(&Futex);
        let _retake = Retake(self.0);
        wake(self.0, served);
        work()
    }
}

impl Deref for Guard<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        // SAFETY: this guard holds the lock, so nobody else has a reference; and lends it out for its own borrow.
        unsafe { &*self.0.inner.get() }
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        // SAFETY: this guard holds the lock, so nobody else has a reference; and lends it out for its own borrow.
        unsafe { &mut *self.0.inner.get() }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let served = std::mem::take(&mut self.served);
        self.0.lock.release(&Futex);
        wake(self.0, served);
    }
}

/// Wakes threads that the bell was rung for; without the lock, for which they will ask.
fn wake(shared: &SharedState, served: Bits) {
    if served != Bits::NONE {
        futex_wake_bits(shared.event_count.word().as_futex(), served.mask());
    }
}

/// The seat of a thread that waits. Given up in whatever way the wait ends, so that others drive.
struct WaiterPlace<'a> {
    inner: Guard<'a>,
    ask: Ask,
    slot: usize,
}

impl<'a> WaiterPlace<'a> {
    fn take(mut inner: Guard<'a>, ask: Ask) -> Self {
        let mut entry = WaiterEntry { ask, answer: None };
        let slot = loop {
            match inner.waiters.join(entry) {
                Ok(slot) => break slot,
                Err(refused) => {
                    entry = refused;
                    inner.waiters.slots_mut().push(None);
                }
            }
        };
        Self { inner, ask, slot }
    }

    fn drives(&mut self) -> bool {
        self.inner.waiters.drives(self.slot)
    }

    fn answer(&mut self) -> Option<Result<SharedAnswer, Error>> {
        self.inner.waiters.entry(self.slot)?.answer.take()
    }
}

impl Drop for WaiterPlace<'_> {
    fn drop(&mut self) {
        let (_, next) = self.inner.waiters.leave(self.slot);
        let shared = self.inner.0;
        shared.ring(&mut self.inner, (next, false));
    }
}

/// Threads sleep for the lock by the futex call.
struct Futex;

impl Park for Futex {
    fn park(&self, word: &Word32, expected: u32) {
        futex_wait(word.as_futex(), expected, None);
    }

    fn unpark(&self, word: &Word32) {
        futex_wake(word.as_futex(), 1);
    }

    fn unpark_all(&self, word: &Word32) {
        futex_wake(word.as_futex(), u32::MAX);
    }
}

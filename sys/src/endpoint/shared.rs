//! One endpoint for all threads of a process.
//!
//! A lock protects the endpoint. A thread holds it during a call that does not block. One of the threads that wait for
//! requests is the driver: it polls, yields and sleeps as the owner of an endpoint does (`wait.rs`). It releases the
//! lock while other threads want it, and while it sleeps. The other threads sleep until they are served or have to
//! drive. The protocol is that of [`nemesia_core::threads`], where it is modelled.
//!
//! | file | contents |
//! |---|---|
//! | `shared.rs` | the shared endpoint and its waits |
//! | `shared/guard.rs` | the lock, held; the slots of the threads that wait |
//! | `shared/locked.rs` | the endpoint during a call that holds the lock |
//! | `shared/many.rs` | waits for the completion queue, for any of many requests, and until anything happens |
//! | `shared/one_sided.rs` | one-sided operations and active messages that wait |
//! | `shared/race.rs` | a deliberate race, for `tests/sanitize` |

mod guard;
mod locked;
mod many;
mod one_sided;
#[cfg(all(test, nemesia_race))]
mod race;
#[cfg(test)]
pub(super) mod tests;

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nemesia_core::engine::Progress;
use nemesia_core::matching::Pattern;
use nemesia_core::sync::spin_hint;
use nemesia_core::threads::{Bits, EventCount, Lock, WaiterList, WaiterSlot};

use super::group::{BarrierStep, CallGroup, checked};
use super::wait::{Awaited, Wait, WaitStage, give_way, until_ended};
use super::{Endpoint, Message, PeerGroup, Request, Source, Status, Tag, pattern};
use crate::error::Error;
use crate::os::{ProcessOrigin, futex_wait_bits};
use guard::{Futex, Guard, WaiterPlace};
pub use locked::LockedEndpoint;

/// An endpoint that any number of threads use at the same time. Each clone is the same endpoint.
///
/// A call that does not block takes a lock, for which all threads compete. Of the threads that wait, only one polls,
/// and it wakes the others when their operations are complete. If several receives match a message, the one that was
/// posted first gets it. Any thread may wait for a request, but only one thread per request. Handlers of active
/// messages run with the lock held, in the thread that makes progress. They must not use the endpoint.
///
/// One endpoint for each thread is faster. An endpoint that a single thread owns is fastest.
#[derive(Clone)]
pub struct SharedEndpoint(Arc<SharedState>);

struct SharedState {
    lock: Lock,
    event_count: EventCount,
    rank: usize,
    size: usize,
    /// The process that opened the endpoint. It is checked before the lock is taken: in a forked child, a thread that
    /// does not exist there may hold the lock.
    origin: Arc<ProcessOrigin>,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through a `Guard`, which holds the lock, and its content may move between threads.
unsafe impl Sync for SharedState where Inner: Send {}

/// The state that the lock protects.
struct Inner {
    endpoint: Endpoint,
    /// The threads that wait.
    waiters: WaiterList<Vec<Option<WaiterSlot<WaiterEntry>>>>,
    /// Whether the driver sleeps.
    parked: bool,
    /// The threads to wake when the lock is free.
    served: Bits,
}

/// The operation that a thread waits for, and its result.
struct WaiterEntry {
    ask: Ask,
    answer: Option<Result<SharedAnswer, Error>>,
}

/// The operations that a thread can wait for.
#[derive(Clone, Copy)]
enum Ask {
    Request(Request),
    /// A message that such a receive would receive. It stays in the queue.
    Probe(Pattern),
    /// A message that such a receive would receive. It is taken out of the queue.
    Take(Pattern),
    /// An entry of the completion queue. It stays there.
    Completions,
    /// Any event after this many.
    Change(u64),
}

enum SharedAnswer {
    Status(Status),
    Message(Message),
    /// There is something to look at.
    Ready,
}

impl Ask {
    fn awaited(&self) -> Awaited<'static> {
        match self {
            Self::Request(request) => Awaited::Shared(*request),
            Self::Probe(pattern) | Self::Take(pattern) => Awaited::Message(pattern.source),
            Self::Completions => Awaited::Completions,
            Self::Change(_) => Awaited::Other,
        }
    }

    /// Returns the result if there is one.
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
            Self::Completions => endpoint.has_completions().then_some(Ok(SharedAnswer::Ready)),
            Self::Change(seen) => (endpoint.waiter.changes != *seen).then_some(Ok(SharedAnswer::Ready)),
        }
    }
}

/// # Several threads
///
/// An endpoint belongs to one thread at a time; a [`SharedEndpoint`] is one that any number of threads use. Each clone
/// is the same endpoint, and the last clone closes it.
///
/// ```
/// # nemesia::testing::world(2, |endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let endpoint = endpoint.into_shared();
/// std::thread::scope(|scope| {
///     for tag in 0..4 {
///         let endpoint = endpoint.clone();
///         scope.spawn(move || {
///             endpoint.send(peer, tag, b"nemesia!").expect("the peer is there");
///             endpoint.recv(Source::Rank(peer), Tag::Exactly(tag), &mut [0; 8]).expect("a message")
///         });
///     }
/// });
/// endpoint.barrier()?;
/// endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Converts the endpoint into one that all threads of this process can use.
    pub fn into_shared(mut self) -> SharedEndpoint {
        self.share_calls();
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
    /// Calls methods of the endpoint that do not block, with the lock held.
    ///
    /// Methods that block keep all other threads out until they return. Start the operation here instead, and wait for
    /// it by [`SharedEndpoint::wait`]; or use [`SharedEndpoint::run`].
    ///
    /// # Errors
    /// [`Error::Forked`]; `work` was not called.
    pub fn with<T>(&self, work: impl FnOnce(&mut LockedEndpoint<'_>) -> T) -> Result<T, Error> {
        // SAFETY: `LockedEndpoint` lends nothing that could be swapped.
        unsafe { self.with_endpoint(|endpoint| work(&mut LockedEndpoint(endpoint))) }
    }

    /// Calls `work` as [`SharedEndpoint::with`] does, for callers that need the endpoint itself.
    ///
    /// # Errors
    /// [`Error::Forked`]; `work` was not called.
    ///
    /// # Safety
    /// `work` leaves this very endpoint where it is: it does not swap, replace or take it (`std::mem`). Other threads
    /// that wait may have lent buffers to it.
    pub unsafe fn with_endpoint<T>(&self, work: impl FnOnce(&mut Endpoint) -> T) -> Result<T, Error> {
        let mut inner = self.0.lock()?;
        let result = work(&mut inner.endpoint);
        // A message to this process itself, or a withdrawn receive, may complete the wait of another thread.
        inner.endpoint.waiter.changes += 1;
        self.0.serve(&mut inner);
        if inner.endpoint.is_yield_due() {
            let took = inner.unlocked(give_way);
            inner.endpoint.learn_call_yield(took);
        }
        Ok(result)
    }

    /// Starts an operation with the lock held, and waits for it without the lock.
    ///
    /// This function returns or unwinds only when the operation has finished with its buffers, whatever the result. The
    /// buffers may be borrowed until then.
    ///
    /// # Errors
    /// The error of `start` or of the operation.
    pub fn run(
        &self,
        start: impl FnOnce(&mut LockedEndpoint<'_>) -> Result<Request, Error>,
    ) -> Result<Status, Error> {
        self.finish(self.with(start)??)
    }

    /// Returns the rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Returns the number of processes in the world. Of an endpoint that was opened alone: the number of places for
    /// peers when it became a shared one; there may be more by now.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// Sends a message and waits; see [`Endpoint::send`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn send(&self, to: usize, tag: u64, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the bytes are borrowed until `run` returns.
        self.run(|endpoint| unsafe { endpoint.isend(to, tag, bytes.as_ptr(), bytes.len()) }).map(drop)
    }

    /// Receives a message and waits for it; see [`Endpoint::recv`].
    ///
    /// # Errors
    /// See [`Error`].
    pub fn recv(&self, from: Source, tag: Tag, buf: &mut [u8]) -> Result<Status, Error> {
        let (base, len) = (buf.as_mut_ptr(), buf.len());
        // SAFETY: the buffer is borrowed until `run` returns.
        self.run(|endpoint| unsafe { endpoint.irecv(from, tag, base, len) })
    }

    /// Returns the result of a request if it is complete; see [`Endpoint::test`].
    ///
    /// # Errors
    /// See [`Error`]. After an error the request no longer exists.
    pub fn test(&self, request: Request) -> Result<Option<Status>, Error> {
        self.with(|endpoint| endpoint.test(request))?
    }

    /// Waits until a request is complete; see [`Endpoint::wait`].
    ///
    /// # Errors
    /// See [`Error`]. [`Error::Unexpected`] leaves the request as it is; the caller can wait for it again.
    pub fn wait(&self, request: Request) -> Result<Status, Error> {
        self.0.wait(Ask::Request(request), None).and_then(SharedAnswer::status)
    }

    /// Waits until a request is complete, for at most `limit`; see [`Endpoint::wait_timeout`].
    ///
    /// # Errors
    /// [`Error::Timeout`] leaves the request as it is; the caller can wait for it again.
    pub fn wait_timeout(&self, request: Request, limit: Duration) -> Result<Status, Error> {
        self.0.wait(Ask::Request(request), Some(limit)).and_then(SharedAnswer::status)
    }

    /// Waits for a message of a matching context, for at most `limit`, and leaves it in the queue; see
    /// [`Endpoint::probe`].
    ///
    /// # Errors
    /// As for [`Endpoint::probe`]; [`Error::Timeout`].
    pub fn probe(
        &self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.0.wait(Ask::Probe(pattern(from, context, tag)?), limit).and_then(SharedAnswer::status)
    }

    /// Waits for a message of a matching context, for at most `limit`, and takes it out of the queue; see
    /// [`Endpoint::mprobe`].
    ///
    /// # Errors
    /// As for [`Endpoint::mprobe`]; [`Error::Timeout`].
    pub fn mprobe(
        &self,
        context: u16,
        from: Source,
        tag: Tag,
        limit: Option<Duration>,
    ) -> Result<Message, Error> {
        self.0.wait(Ask::Take(pattern(from, context, tag)?), limit).and_then(SharedAnswer::message)
    }

    /// Waits until every rank has entered the barrier; see [`Endpoint::barrier`]. One thread of each rank calls this,
    /// and the other threads continue meanwhile.
    ///
    /// # Errors
    /// As for [`Endpoint::barrier`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.barrier_of(&CallGroup::World)
    }

    /// As [`Among::barrier`](super::Among::barrier), among these ranks. One thread calls it; the others can go on using
    /// the endpoint.
    ///
    /// # Errors
    /// As for [`Endpoint::among`] and [`Among::barrier`](super::Among::barrier).
    pub fn barrier_among(&self, members: &[usize]) -> Result<(), Error> {
        self.barrier_of(&checked(members, (self.0.rank, self.0.size))?)
    }

    /// As [`AmongPeers::barrier`](super::AmongPeers::barrier), among this group. One thread calls it; the others can go
    /// on using the endpoint.
    ///
    /// # Errors
    /// As for [`Endpoint::among_peers`] and [`AmongPeers::barrier`](super::AmongPeers::barrier).
    pub fn barrier_among_peers(&self, group: &PeerGroup) -> Result<(), Error> {
        // SAFETY: the check leaves the endpoint where it is.
        let call = unsafe { self.with_endpoint(|endpoint| endpoint.check_group(group)) }??;
        self.barrier_of(&call)
    }

    fn barrier_of(&self, group: &CallGroup) -> Result<(), Error> {
        loop {
            // SAFETY: a step of the barrier leaves the endpoint where it is.
            let step = unsafe { self.with_endpoint(|endpoint| endpoint.barrier_step(group)) }?;
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

    /// Closes the endpoint if this is its last clone; see [`Endpoint::close`]. Otherwise it only drops the clone. If
    /// the last clone is dropped without this call, the peers see a failure, also if other clones were closed: let each
    /// thread close its clone, or join the threads first.
    ///
    /// # Errors
    /// As for [`Endpoint::close`].
    pub fn close(self) -> Result<(), Error> {
        self.0.check_origin()?;
        let shared = Arc::clone(&self.0);
        drop(self);
        Arc::into_inner(shared).map_or(Ok(()), |shared| shared.inner.into_inner().endpoint.close())
    }

    /// Waits for a request that borrows the caller's buffer. It returns or unwinds only when the engine has finished
    /// with the buffer.
    fn finish(&self, request: Request) -> Result<Status, Error> {
        let borrowed = SharedBorrow { endpoint: self, request };
        let outcome = loop {
            match self.wait(request) {
                // The receive was withdrawn. If it could not be, it is under way, and ends at the latest with its peer.
                Err(error @ Error::Unexpected { .. }) if self.withdraw(request) => {
                    // This only frees the slot.
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
        self.with(|endpoint| endpoint.0.engine.cancel_receive(request.0)).unwrap_or(false)
    }

    /// Ends a request whose buffer returns to its owner at once; see [`Endpoint::release`].
    #[cold]
    fn release(&self, request: Request) {
        let panic = until_ended(|| {
            self.withdraw(request);
            self.wait(request)
        });
        if let (Some(panic), Ok(mut inner)) = (panic, self.0.lock()) {
            inner.endpoint.engine.handlers_mut().keep_panic(panic);
        }
    }
}

/// A request that uses a buffer of the caller's while a thread waits for it. It is dropped only if a panic ends the
/// wait.
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
            // A thread that does not exist in this forked child may have been changing the state, so it must not be
            // dropped here.
            std::mem::forget(Arc::clone(&self.0));
        }
    }
}

impl SharedAnswer {
    /// Returns the answer to a request or a probe.
    fn status(self) -> Result<Status, Error> {
        match self {
            Self::Status(status) => Ok(status),
            Self::Message(message) => Ok(message.status()),
            // A request or a probe is never answered by this.
            Self::Ready => Err(Error::Stale),
        }
    }

    /// Returns the answer to a matched probe.
    fn message(self) -> Result<Message, Error> {
        match self {
            Self::Message(message) => Ok(message),
            // A matched probe is never answered by a status.
            Self::Status(_) | Self::Ready => Err(Error::Stale),
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
    /// Fails in a forked child.
    ///
    /// # Errors
    /// [`Error::Forked`].
    fn check_origin(&self) -> Result<(), Error> {
        if self.origin.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Takes the lock.
    ///
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
        if limit == Some(Duration::ZERO) {
            inner.endpoint.advance_once();
            self.serve(&mut inner);
            let answer = ask.poll(&mut inner.endpoint);
            return answer.unwrap_or(Err(Error::Timeout(Duration::ZERO)));
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
                // The operation may have been completed since then.
                return place.answer().unwrap_or(Err(error));
            }
        }
    }

    /// Polls, yields or sleeps once, as the driver.
    fn drive(&self, place: &mut WaiterPlace<'_>, wait: &mut Wait) -> Result<(), Error> {
        let WaiterPlace { inner, ask, .. } = place;
        let done = inner.endpoint.engine.step();
        if done != Progress::default() {
            inner.endpoint.waiter.changes += 1;
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

    /// Sleeps once, as a thread that does not drive, until it is served or has to drive.
    fn listen(&self, place: &mut WaiterPlace<'_>, wait: &mut Wait) -> Result<(), Error> {
        let (since, bits) = (self.event_count.listen(), Bits::of(place.slot));
        wait.check(Instant::now())?;
        let left = wait.left(Instant::now());
        place
            .inner
            .unlocked(|| futex_wait_bits(self.event_count.word().as_futex(), since, bits.mask(), left));
        Ok(())
    }

    /// Passes the results of completed operations to the threads that wait for them.
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

    /// Fails the waits whose message cannot come because its sender is held back. It is called after a whole sleep
    /// without a wake-up.
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

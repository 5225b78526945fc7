//! The slots of operations under way: buffers, results and wakers.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use nemesia_core::payload::{RecvBuf, SendBuf};

use crate::endpoint::wait::Awaited;
use crate::endpoint::{Arm, Endpoint, Mode, Request, Source, Status, Tag, free_context, pattern};
use crate::error::Error;

/// The endpoint and its operations under way.
///
/// The endpoint is the first field and is dropped first. So a buffer in a slot outlives every use by the engine: the
/// slot is removed when the operation has ended, or after the endpoint.
#[derive(Debug)]
pub(super) struct AsyncState {
    /// `None` once it was closed.
    endpoint: Option<Endpoint>,
    slots: Vec<Option<AsyncSlot>>,
    /// The slots that are free.
    free: Vec<usize>,
    /// The driver that waits for the descriptor.
    driver: Option<Waker>,
    /// Whether an operation has started since the driver has last made progress.
    changed: bool,
}

/// An operation under way.
///
/// The engine has the address of the bytes. A `Vec` may move meanwhile: unlike a `Box`, it does not assert by a move
/// that nothing else points to its bytes, and no reference to them is made before the operation has ended. This is what
/// Miri checks as well. The bytes themselves stay where they are.
#[derive(Debug)]
struct AsyncSlot {
    request: Request,
    buf: Vec<u8>,
    outcome: Option<Result<Status, Error>>,
    waker: Option<Waker>,
    /// Its future was dropped.
    is_abandoned: bool,
}

/// The result of a poll of a slot.
pub(super) enum SlotPoll {
    Done(Result<Status, Error>, Vec<u8>),
    /// With an earlier waker, to be dropped without the lock.
    Pending(Option<Waker>),
}

/// What a slot held, to be dropped without the lock.
#[derive(Debug)]
pub(super) struct SlotRemains {
    _slot: Option<AsyncSlot>,
    _waker: Option<Waker>,
}

impl AsyncState {
    pub(super) const fn new(endpoint: Endpoint) -> Self {
        Self { endpoint: Some(endpoint), slots: Vec::new(), free: Vec::new(), driver: None, changed: false }
    }

    /// Returns the endpoint, unless it was closed.
    pub(super) const fn endpoint(&mut self) -> Option<&mut Endpoint> {
        self.endpoint.as_mut()
    }

    /// Starts a send and returns its slot.
    pub(super) fn send(
        &mut self,
        (to, context, tag): (usize, u16, u64),
        bytes: Vec<u8>,
    ) -> Result<usize, (Error, Vec<u8>)> {
        self.start(bytes, |endpoint, bytes| {
            let context = free_context(context)?;
            // SAFETY: the slot keeps the bytes, unchanged, until the request has ended or the endpoint is dropped.
            let buf = unsafe { SendBuf::from_raw(bytes.as_ptr(), bytes.len()) };
            endpoint.start(to, context, tag, buf, Mode::Standard)
        })
    }

    /// Posts a receive and returns its slot.
    pub(super) fn recv(
        &mut self,
        (from, context, tag): (Source, u16, Tag),
        buf: Vec<u8>,
    ) -> Result<usize, (Error, Vec<u8>)> {
        self.start(buf, |endpoint, buf| {
            let pattern = pattern(from, context, tag)?;
            // SAFETY: the slot keeps the bytes, and no reference to them is made, until the request has ended or the
            // endpoint is dropped.
            let buf = unsafe { RecvBuf::from_raw(buf.as_mut_ptr(), buf.len()) };
            endpoint.post(pattern, buf)
        })
    }

    fn start(
        &mut self,
        mut buf: Vec<u8>,
        start: impl FnOnce(&mut Endpoint, &mut Vec<u8>) -> Result<Request, Error>,
    ) -> Result<usize, (Error, Vec<u8>)> {
        // Nothing between the start and the slot may panic: the slot exists before.
        let at = self.free.pop().unwrap_or(self.slots.len());
        if at == self.slots.len() {
            self.slots.push(None);
            self.free.reserve(self.slots.len());
        }
        let Some(endpoint) = &mut self.endpoint else {
            self.free.push(at);
            return Err((Error::Stale, buf));
        };
        match start(endpoint, &mut buf) {
            Ok(request) => {
                let slot = AsyncSlot { request, buf, outcome: None, waker: None, is_abandoned: false };
                if let Some(place) = self.slots.get_mut(at) {
                    *place = Some(slot);
                }
                self.look(at);
                Ok(at)
            }
            Err(error) => {
                self.free.push(at);
                Err((error, buf))
            }
        }
    }

    /// Notes the outcome of a slot's operation, if it has ended.
    fn look(&mut self, at: usize) -> Option<&mut AsyncSlot> {
        let slot = self.slots.get_mut(at)?.as_mut()?;
        if let (None, Some(endpoint)) = (&slot.outcome, &mut self.endpoint) {
            slot.outcome = match slot.request.is_complete() {
                true => Some(Ok(Status { rank: endpoint.rank(), tag: 0, len: 0, immediate: None })),
                false => endpoint.outcome(slot.request),
            };
        }
        Some(slot)
    }

    fn remove(&mut self, at: usize) -> Option<AsyncSlot> {
        let slot = self.slots.get_mut(at)?.take();
        self.free.extend(slot.as_ref().map(|_| at));
        slot
    }

    /// Returns the result of an operation, or registers the task to wake.
    pub(super) fn poll(&mut self, at: usize, waker: Waker) -> SlotPoll {
        match self.look(at) {
            Some(slot) if slot.outcome.is_none() => SlotPoll::Pending(slot.waker.replace(waker)),
            _ => match self.remove(at) {
                Some(AsyncSlot { outcome: Some(outcome), buf, .. }) => SlotPoll::Done(outcome, buf),
                // Not reached: a future's slot exists, and has an outcome here.
                _ => SlotPoll::Done(Err(Error::Stale), Vec::new()),
            },
        }
    }

    /// Leaves an operation whose future is dropped: withdraws it, or keeps its buffer until it has ended.
    pub(super) fn abandon(&mut self, at: usize) -> SlotRemains {
        if let (Some(Some(slot)), Some(endpoint)) = (self.slots.get_mut(at), &mut self.endpoint)
            && slot.outcome.is_none()
        {
            endpoint.cancel(slot.request);
        }
        let waker = self.look(at).and_then(|slot| {
            slot.is_abandoned = true;
            slot.waker.take()
        });
        let is_over = self.look(at).is_some_and(|slot| slot.outcome.is_some());
        SlotRemains { _slot: if is_over { self.remove(at) } else { None }, _waker: waker }
    }

    /// Notes every outcome, and frees the slots of abandoned operations that have ended. Returns the tasks to wake.
    fn serve(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for at in 0..self.slots.len() {
            let Some(slot) = self.look(at).filter(|slot| slot.outcome.is_some()) else { continue };
            wakers.extend(slot.waker.take());
            if slot.is_abandoned {
                self.remove(at);
            }
        }
        wakers
    }

    /// Returns the number of operations whose buffers are kept.
    #[cfg(test)]
    pub(super) fn used_slots(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Makes progress and arms the descriptor. Returns the tasks to wake, and whether the driver may wait; `None` if
    /// the endpoint is closed.
    pub(super) fn turn(&mut self) -> (Option<Arm>, Vec<Waker>) {
        self.changed = false;
        let arm = self.endpoint.as_mut().map(Endpoint::arm);
        let wakers = self.serve();
        if let (false, Some(endpoint)) = (wakers.is_empty(), &mut self.endpoint) {
            endpoint.disarm();
            return (Some(Arm::Busy), wakers);
        }
        (arm, wakers)
    }

    /// Ends the operations that cannot succeed because unexpected messages have reached their limit, after a wait in
    /// which nothing happened. Returns the tasks to wake.
    pub(super) fn refuse_held(&mut self) -> Vec<Waker> {
        let Self { endpoint: Some(endpoint), slots, .. } = self else { return Vec::new() };
        let mut wakers = Vec::new();
        for slot in slots.iter_mut().flatten().filter(|slot| slot.outcome.is_none()) {
            if let Some(error) = endpoint.held_back(Awaited::Request(slot.request))
                && endpoint.withdraw(slot.request)
            {
                // This only frees the request.
                let _ = endpoint.outcome(slot.request);
                slot.outcome = Some(Err(error));
                wakers.extend(slot.waker.take());
            }
        }
        wakers
    }

    /// Registers the driver to wake when an operation starts. Returns whether one has started since its last turn, and
    /// an earlier waker, to be dropped without the lock.
    pub(super) fn await_change(&mut self, waker: Waker) -> (bool, Option<Waker>) {
        let earlier = self.driver.replace(waker);
        (self.changed || self.endpoint.is_none(), earlier)
    }

    /// Returns the driver, which has to make progress: an operation has started or was withdrawn.
    pub(super) const fn take_driver(&mut self) -> Option<Waker> {
        self.changed = true;
        self.driver.take()
    }

    pub(super) fn event_fd(&mut self) -> Result<OwnedFd, Error> {
        let endpoint = self.endpoint.as_mut().ok_or(Error::Stale)?;
        let fd = endpoint.event_fd()?.try_clone_to_owned();
        fd.map_err(|error| crate::os::ShmError::system("duplicating the event descriptor", error).into())
    }

    /// Closes the endpoint. Returns the tasks to wake, and the panic of a handler that unwound.
    pub(super) fn close(&mut self) -> (std::thread::Result<Result<(), Error>>, Vec<Waker>) {
        let endpoint = self.endpoint.take().ok_or(Error::Stale);
        // The buffers stay in their slots until the sends have left. After a panic the endpoint is dropped as well.
        let closed = catch_unwind(AssertUnwindSafe(|| endpoint.and_then(Endpoint::close)));
        (closed, self.end())
    }

    /// Ends every operation and returns the endpoint, and the tasks to wake.
    pub(super) fn withdraw_all(&mut self) -> (Result<Endpoint, Error>, Vec<Waker>) {
        for at in 0..self.slots.len() {
            self.look(at);
            if let (Some(Some(slot)), Some(endpoint)) = (self.slots.get_mut(at), &mut self.endpoint)
                && slot.outcome.is_none()
            {
                endpoint.release(slot.request);
                slot.outcome = Some(Err(Error::Cancelled));
            }
        }
        (self.endpoint.take().ok_or(Error::Stale), self.end())
    }

    /// Ends all operations, which the engine no longer has.
    fn end(&mut self) -> Vec<Waker> {
        let mut wakers: Vec<_> = self.driver.take().into_iter().collect();
        for slot in self.slots.iter_mut().flatten() {
            slot.outcome.get_or_insert(Err(Error::Cancelled));
            wakers.extend(slot.waker.take());
        }
        wakers
    }
}

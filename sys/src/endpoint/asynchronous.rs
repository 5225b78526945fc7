//! Futures: operations that own their buffers, for any executor.
//!
//! An operation starts when its function is called, and its future returns the buffer. The buffer lies in a slot of the
//! endpoint until the operation has ended, whether the future still exists or not: a future that is dropped or leaked
//! frees no memory that the engine uses. Messages move while a driver runs: [`AsyncEndpoint::drive`] in an executor
//! that waits for descriptors, [`AsyncEndpoint::run`] in a thread, or [`AsyncEndpoint::block_on`], an executor itself.
//!
//! | file | contents |
//! |---|---|
//! | `asynchronous.rs` | the endpoint, and the start of operations |
//! | `asynchronous/state.rs` | the slots: buffers, results and wakers |
//! | `asynchronous/drive.rs` | the drivers |

mod drive;
mod state;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};

use super::{Endpoint, LockedEndpoint, Source, Status, Tag};
use crate::error::Error;
use crate::os::ProcessOrigin;
use state::{AsyncState, SlotPoll};

/// An endpoint whose operations are futures. Each clone is the same endpoint.
///
/// The futures work in any executor, of one thread or of several, and take and return buffers, so no lifetime ties them
/// to a scope. If a future is dropped, a receive that no message has matched is withdrawn. Every other operation goes
/// on, and the endpoint keeps its buffer until its end.
///
/// Handlers of active messages run in the driver. They must not use the endpoint.
///
/// The endpoint ends with [`AsyncEndpoint::close`]. If the last clone and the last future are dropped instead, the
/// peers see a failure.
#[derive(Clone, Debug)]
pub struct AsyncEndpoint {
    shared: AsyncShared,
    context: u16,
}

/// The state that the clones and the futures share.
#[derive(Clone, Debug)]
struct AsyncShared {
    state: Arc<Mutex<AsyncState>>,
    /// The process that opened the endpoint. It is checked before the lock is taken: in a forked child, a thread that
    /// does not exist there may hold the lock.
    origin: Arc<ProcessOrigin>,
}

impl AsyncShared {
    /// Takes the lock, and runs `work`. Whatever `work` returns is dropped without the lock: the drop of a waker may
    /// drop a task, and with it futures of this endpoint, which take the lock.
    fn locked<T>(&self, work: impl FnOnce(&mut AsyncState) -> T) -> Result<T, Error> {
        if self.origin.is_elsewhere() {
            return Err(Error::Forked);
        }
        let mut state: MutexGuard<'_, _> = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(work(&mut state))
    }
}

impl Drop for AsyncShared {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // A thread that does not exist in this forked child may have been changing the state, so it must not be
            // dropped here.
            std::mem::forget(Arc::clone(&self.state));
        }
    }
}

/// # Futures
///
/// An endpoint whose operations are futures, for any executor and without `unsafe`. The operations own their buffers.
///
/// ```
/// # nemesia::testing::world(2, |endpoint| {
/// use nemesia::{Source, Tag};
///
/// let peer = 1 - endpoint.rank();
/// let endpoint = endpoint.into_async();
/// let buf = endpoint.block_on(async {
///     let incoming = endpoint.recv(Source::Rank(peer), Tag::Exactly(7), vec![0; 8]);
///     endpoint.send(peer, 7, b"nemesia!".to_vec()).await.0?;
///     let (received, buf) = incoming.await;
///     assert_eq!(received?.len, 8);
///     Ok::<_, nemesia::Error>(buf)
/// })??;
/// assert_eq!(buf, b"nemesia!");
/// endpoint.close()
/// # })?.into_iter().collect::<Result<(), nemesia::Error>>()?;
/// # Ok::<(), nemesia::Error>(())
/// ```
impl Endpoint {
    /// Converts the endpoint into one whose operations are futures.
    pub fn into_async(self) -> AsyncEndpoint {
        let origin = Arc::clone(&self.origin);
        let state = Arc::new(Mutex::new(AsyncState::new(self)));
        AsyncEndpoint { shared: AsyncShared { state, origin }, context: 0 }
    }
}

impl AsyncEndpoint {
    /// Returns the same endpoint, whose sends and receives are in a matching context; see [`Endpoint::in_context`].
    #[must_use]
    pub fn in_context(&self, context: u16) -> Self {
        Self { shared: self.shared.clone(), context }
    }

    /// Starts a send. The future returns the buffer when it is free again.
    ///
    /// If the future is dropped, the message is sent all the same.
    pub fn send(&self, to: usize, tag: u64, bytes: Vec<u8>) -> AsyncTransfer {
        self.start(bytes, |state, bytes| state.send((to, self.context, tag), bytes))
    }

    /// Posts a receive into the bytes that `buf` has (its length, not its capacity). The future returns the buffer,
    /// and the status with the number of bytes received.
    ///
    /// Receives match in the order in which this function is called. If the future is dropped before a message has
    /// matched, the receive is withdrawn. Otherwise the message is received and lost.
    pub fn recv(&self, from: Source, tag: Tag, buf: Vec<u8>) -> AsyncTransfer {
        self.start(buf, |state, buf| state.recv((from, self.context, tag), buf))
    }

    fn start(
        &self,
        buf: Vec<u8>,
        start: impl FnOnce(&mut AsyncState, Vec<u8>) -> Result<usize, (Error, Vec<u8>)>,
    ) -> AsyncTransfer {
        let mut buf = Some(buf);
        let started = self.shared.locked(|state| {
            let started = start(state, buf.take().unwrap_or_default());
            (started, state.take_driver())
        });
        let stage = match started {
            Ok((Ok(slot), driver)) => {
                driver.into_iter().for_each(Waker::wake);
                TransferStage::Started(slot)
            }
            Ok((Err(refusal), _)) => TransferStage::Refused(refusal),
            Err(error) => TransferStage::Refused((error, buf.take().unwrap_or_default())),
        };
        AsyncTransfer { shared: self.shared.clone(), stage }
    }

    /// Calls methods of the endpoint that do not block; see [`SharedEndpoint::with`](super::SharedEndpoint::with).
    /// Methods that block keep all other users of the endpoint out until they return.
    ///
    /// # Errors
    /// [`Error::Forked`], or [`Error::Stale`] after [`AsyncEndpoint::close`]; `work` was not called.
    pub fn with<T>(&self, work: impl FnOnce(&mut LockedEndpoint<'_>) -> T) -> Result<T, Error> {
        let (done, driver) = self.shared.locked(|state| {
            let done = work(&mut LockedEndpoint(state.endpoint().ok_or(Error::Stale)?));
            Ok::<_, Error>((done, state.take_driver()))
        })??;
        driver.into_iter().for_each(Waker::wake);
        Ok(done)
    }

    /// Returns a descriptor for [`AsyncEndpoint::drive`]: a duplicate of [`Endpoint::event_fd`].
    ///
    /// # Errors
    /// The process has no free descriptor, or the endpoint is closed.
    pub fn event_fd(&self) -> Result<OwnedFd, Error> {
        self.shared.locked(AsyncState::event_fd)?
    }

    /// Closes the endpoint; see [`Endpoint::close`]. Operations under way that are no sends end with
    /// [`Error::Cancelled`]. Drivers return. Other clones stay, and their calls return [`Error::Stale`]. All this holds
    /// also if a handler panics meanwhile, and this call with it.
    ///
    /// # Errors
    /// As for [`Endpoint::close`]; [`Error::Stale`] if the endpoint was closed before.
    pub fn close(self) -> Result<(), Error> {
        let (closed, wakers) = self.shared.locked(AsyncState::close)?;
        wakers.into_iter().for_each(Waker::wake);
        closed.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Returns the endpoint for blocking use. Receives under way are withdrawn; this call waits for other operations
    /// under way. The futures of both return [`Error::Cancelled`]. Drivers return.
    ///
    /// # Errors
    /// [`Error::Forked`], or [`Error::Stale`] if the endpoint was closed before.
    pub fn into_endpoint(self) -> Result<Endpoint, Error> {
        let (endpoint, wakers) = self.shared.locked(AsyncState::withdraw_all)?;
        wakers.into_iter().for_each(Waker::wake);
        endpoint
    }
}

/// An operation under way, as a future: it returns the result and the buffer.
///
/// The operation has started when this value exists. It makes progress only while a driver runs.
#[derive(Debug)]
#[must_use = "if it is dropped, a receive is withdrawn, and the buffer is lost"]
pub struct AsyncTransfer {
    shared: AsyncShared,
    stage: TransferStage,
}

#[derive(Debug)]
enum TransferStage {
    /// In this slot.
    Started(usize),
    /// The start has failed.
    Refused((Error, Vec<u8>)),
    /// The result was returned.
    Over,
}

impl Future for AsyncTransfer {
    type Output = (Result<Status, Error>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let slot = match std::mem::replace(&mut self.stage, TransferStage::Over) {
            TransferStage::Started(slot) => slot,
            TransferStage::Refused((error, buf)) => return Poll::Ready((Err(error), buf)),
            TransferStage::Over => return Poll::Ready((Err(Error::Stale), Vec::new())),
        };
        let waker = task.waker().clone();
        match self.shared.locked(|state| state.poll(slot, waker)) {
            Err(error) => Poll::Ready((Err(error), Vec::new())),
            Ok(SlotPoll::Done(outcome, buf)) => Poll::Ready((outcome, buf)),
            Ok(SlotPoll::Pending(_earlier)) => {
                self.stage = TransferStage::Started(slot);
                Poll::Pending
            }
        }
    }
}

impl Drop for AsyncTransfer {
    fn drop(&mut self) {
        if let TransferStage::Started(slot) = self.stage {
            // In a forked child the slot stays, as everything of the endpoint. What the slot held is dropped here.
            let _ = self.shared.locked(|state| state.abandon(slot));
        }
    }
}

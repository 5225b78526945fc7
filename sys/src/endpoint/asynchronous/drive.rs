//! The drivers: they make progress, sleep until there is something to do, and wake the tasks whose operations have
//! ended.

use std::future::{Future, poll_fn};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::{AsyncEndpoint, AsyncShared};
use crate::endpoint::Arm;
use crate::error::Error;
use crate::os::descriptor::pair;
use crate::os::{ShmError, wait_any};

/// The time after which a wait is over in any case; the endpoint's clock ticks earlier.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl AsyncShared {
    /// Makes progress and wakes tasks. `None` if the endpoint is closed.
    fn turn(&self) -> Result<Option<Arm>, Error> {
        let (arm, wakers) = self.locked(super::AsyncState::turn)?;
        wakers.into_iter().for_each(Waker::wake);
        Ok(arm)
    }

    /// Ends the operations that cannot succeed. Returns whether there were any.
    fn refuse_held(&self) -> Result<bool, Error> {
        let wakers = self.locked(super::AsyncState::refuse_held)?;
        let any = !wakers.is_empty();
        wakers.into_iter().for_each(Waker::wake);
        Ok(any)
    }

    /// Registers a driver before its sleep. Returns whether it has to make progress first.
    fn await_change(&self, waker: &Waker) -> Result<bool, Error> {
        let (changed, _earlier) = self.locked(|state| state.await_change(waker.clone()))?;
        Ok(changed)
    }
}

impl AsyncEndpoint {
    /// Moves messages, and wakes the tasks whose operations have ended, until the endpoint is closed. One driver has
    /// to run while futures are awaited, in a task of its own or beside them.
    ///
    /// `readable` returns a future that waits until the descriptor of [`AsyncEndpoint::event_fd`] is readable.
    /// `examples/tokio.rs` does that with tokio. For other executors there is [`AsyncEndpoint::run`].
    ///
    /// # Errors
    /// That of `readable`, and [`Error::Forked`].
    pub async fn drive<F>(&self, mut readable: impl FnMut() -> F) -> Result<(), Error>
    where
        F: Future<Output = io::Result<()>>,
    {
        // Whether the last turn came after a wait for the descriptor.
        let mut has_waited = false;
        loop {
            match self.shared.turn()? {
                None => return Ok(()),
                // Other tasks run between two turns.
                Some(Arm::Busy) => {
                    has_waited = false;
                    yield_once().await;
                }
                Some(Arm::Armed) if has_waited && self.shared.refuse_held()? => has_waited = false,
                Some(Arm::Armed) => {
                    let mut readable = pin!(readable());
                    let waited = poll_fn(|task| match self.shared.await_change(task.waker()) {
                        Err(error) => Poll::Ready(Err(error)),
                        Ok(true) => Poll::Ready(Ok(false)),
                        Ok(false) => {
                            readable.as_mut().poll(task).map(|end| end.map(|()| true).map_err(waiting))
                        }
                    });
                    has_waited = waited.await?;
                }
            }
        }
    }

    /// Drives the endpoint in this thread until it is closed, for executors that do not wait for descriptors.
    ///
    /// # Errors
    /// As for [`AsyncEndpoint::block_on`].
    pub fn run(&self) -> Result<(), Error> {
        let is_closed = || self.shared.locked(|state| state.endpoint().is_none());
        self.block_on(poll_fn(|_| match is_closed() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error)),
        }))?
    }

    /// Runs a future in this thread, and drives the endpoint meanwhile. The future may await other things as well:
    /// their wakers end the sleep of this thread.
    ///
    /// # Errors
    /// [`Error::Forked`], or the process has no free descriptor. The future is then dropped.
    pub fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        // A closed endpoint has none.
        let fd = match self.event_fd() {
            Err(Error::Stale) => None,
            fd => Some(fd?),
        };
        let (woken, bell) = pair().map_err(waiting)?;
        woken.set_nonblocking(true).map_err(waiting)?;
        bell.set_nonblocking(true).map_err(waiting)?;
        let thread = Arc::new(ThreadWaker { is_woken: AtomicBool::new(true), bell });
        let waker = Waker::from(Arc::clone(&thread));
        let mut task = TaskContext::from_waker(&waker);
        let mut future = pin!(future);
        let mut has_waited = false;
        loop {
            if thread.is_woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut task)
            {
                return Ok(output);
            }
            let arm = self.shared.turn()?;
            let is_idle = arm != Some(Arm::Busy) && !thread.is_woken.load(Ordering::Acquire);
            if !is_idle || (has_waited && arm.is_some() && self.shared.refuse_held()?) {
                has_waited = false;
                continue;
            }
            // A closed endpoint changes no more: the future waits for something else.
            if self.shared.await_change(&waker)? && arm.is_some() {
                continue;
            }
            let fds = arm.and(fd.as_ref()).map_or([woken.as_fd(); 2], |fd| [woken.as_fd(), fd.as_fd()]);
            wait_any(&fds, Instant::now() + LONGEST_WAIT).map_err(waiting)?;
            has_waited = true;
            // The bytes only end the sleep.
            while (&woken).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        }
    }
}

/// Wakes the thread of [`AsyncEndpoint::block_on`].
struct ThreadWaker {
    is_woken: AtomicBool,
    bell: UnixStream,
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_woken.swap(true, Ordering::AcqRel) {
            // If there is no room, enough bytes wait already.
            let _ = (&self.bell).write(&[0]);
        }
    }
}

/// Lets other tasks run.
pub(super) async fn yield_once() {
    let mut is_first = true;
    poll_fn(|task| {
        if std::mem::take(&mut is_first) {
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

fn waiting(error: io::Error) -> Error {
    ShmError::system("waiting for the event descriptor", error).into()
}

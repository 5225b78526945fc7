//! Waits for requests: the loops of blocking calls, and the end of requests whose caller gives up or unwinds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use nemesia_core::engine::Bypass;
use nemesia_core::matching::Pattern;
use nemesia_core::payload::RecvBuf;
use nemesia_core::spin::SpinAction;
use nemesia_core::sync::spin_hint;
use nemesia_core::trace::Recorder as _;

use super::{Awaited, Wait};
use crate::endpoint::active::Panic;
use crate::endpoint::{Endpoint, Request, Status, status};
use crate::error::Error;

/// The number of polls of the likeliest place between two full polls of a blocking receive.
const GLANCES: u32 = 4;

/// The time in which a peer that was not stopped has ended a copy of its part of a message, and the interval at which a
/// process that waits for longer looks.
const COPY_ENDS_IN: Duration = Duration::from_millis(100);
const COPY_LOOKED_AT: Duration = Duration::from_millis(1);

/// A request that uses a buffer of the caller's while code runs that may panic: the handler of an active
/// message, or a subscriber of `tracing`. It is dropped only if that code panics, and forgotten otherwise.
struct BorrowedRequest<'a> {
    endpoint: &'a mut Endpoint,
    request: Request,
}

impl Drop for BorrowedRequest<'_> {
    fn drop(&mut self) {
        self.endpoint.release(self.request);
    }
}

/// Calls `end`, which withdraws a request and waits for it, until the request has ended. Never unwinds; returns
/// the first panic.
pub(in crate::endpoint) fn until_ended(mut end: impl FnMut() -> Result<Status, Error>) -> Option<Panic> {
    let mut first = None;
    loop {
        match catch_unwind(AssertUnwindSafe(&mut end)) {
            // A full store does not matter here: the buffer must stay until the transfer has ended.
            Ok(Err(Error::Unexpected { .. })) => {}
            Ok(_) => return first,
            Err(panic) if first.is_none() => first = Some(panic),
            // The drop of a panic's payload may panic again.
            Err(panic) => std::mem::forget(panic),
        }
    }
}

impl Endpoint {
    /// Continues a blocking receive that is not posted, from the result of its first poll. Posts the receive
    /// when spinning does not help.
    ///
    /// The engine uses the buffer only while this function runs.
    #[inline(never)]
    pub(in crate::endpoint) fn recv_bypass(
        &mut self,
        pattern: &Pattern,
        buf: RecvBuf,
        step: Bypass,
    ) -> Result<Status, Error> {
        self.engine.trace_mut().enter("recv", buf.len() as u64);
        let received = self.recv_bypass_now(pattern, buf, step);
        self.engine.trace_mut().leave(true);
        received
    }

    #[inline(always)]
    fn recv_bypass_now(
        &mut self,
        pattern: &Pattern,
        mut buf: RecvBuf,
        mut step: Bypass,
    ) -> Result<Status, Error> {
        let mut wait = Wait::new(None);
        loop {
            let packets = match step {
                Bypass::Done(outcome) => {
                    return outcome.map(status).map_err(|error| self.error_of(error));
                }
                Bypass::Posted(id) => return self.finish_after(Request(id), wait),
                Bypass::Post => break,
                Bypass::Busy if !self.engine.can_bypass(pattern) => break,
                Bypass::Busy => 1,
                Bypass::Idle => 0,
            };
            if !self.keep_polling(&mut wait, packets) {
                // A poll may have stored the message that this call waits for. The receive is posted before a
                // sleep.
                let next = self.rest(&mut wait)?;
                // Pending work gets its turn, however many packets come.
                if self.engine.has_work() && self.engine.progress().packets > 0 {
                    wait.renew();
                } else {
                    match next {
                        SpinAction::Sleep => break,
                        SpinAction::Yield => self.give_way(&mut wait),
                        SpinAction::Poll => {}
                    }
                }
                // Whether the sender is held back is known for posted receives.
                if !self.engine.can_bypass(pattern) || wait.was_checked() {
                    break;
                }
            }
            if packets == 0 && self.waiter.spin_policy.polls() > GLANCES && self.engine.expects_next() {
                for _ in 0..GLANCES {
                    self.engine.pause();
                    if let Some(outcome) = self.engine.receive_next(pattern, &mut buf) {
                        return outcome.map(status).map_err(|error| self.error_of(error));
                    }
                    if self.engine.has_next() {
                        break;
                    }
                }
                wait.polls += GLANCES;
            }
            step = self.engine.receive_step(pattern, &mut buf);
        }
        let request = self.post(*pattern, buf)?;
        self.finish_after(request, wait)
    }

    /// Continues a wait for a request.
    #[inline]
    pub(in crate::endpoint) fn go_on(
        &mut self,
        request: Request,
        wait: &mut Wait,
        awaited: Awaited<'_>,
    ) -> Result<Status, Error> {
        self.engine.trace_mut().enter("wait", 0);
        let outcome = self.go_on_now(request, wait, awaited);
        self.engine.trace_mut().leave(true);
        outcome
    }

    #[inline(always)]
    fn go_on_now(
        &mut self,
        request: Request,
        wait: &mut Wait,
        awaited: Awaited<'_>,
    ) -> Result<Status, Error> {
        loop {
            if let Some(outcome) = self.outcome(request) {
                return outcome;
            }
            let packets = self.engine.step().packets;
            if packets == 0 && self.waiter.spin_policy.polls() > GLANCES && !self.engine.has_work() {
                self.glance(wait);
            }
            self.pause(wait, packets, awaited)?;
        }
    }

    /// Polls the most likely place some times, which costs less than whole polls.
    #[inline(always)]
    fn glance(&mut self, wait: &mut Wait) {
        if !self.engine.expects_next() {
            return;
        }
        for _ in 0..GLANCES {
            if self.engine.has_next() {
                return;
            }
            self.engine.pause();
            wait.polls += 1;
        }
    }

    /// Waits for a request that borrows the caller's buffer. It returns or unwinds only when the engine has
    /// finished with the buffer.
    pub(in crate::endpoint) fn finish(&mut self, request: Request) -> Result<Status, Error> {
        self.finish_after(request, Wait::new(None))
    }

    /// Waits as [`Endpoint::finish`] does, and continues an earlier wait.
    fn finish_after(&mut self, request: Request, mut wait: Wait) -> Result<Status, Error> {
        let borrowed = BorrowedRequest { endpoint: self, request };
        let endpoint = &mut *borrowed.endpoint;
        let outcome = loop {
            match endpoint.go_on(request, &mut wait, Awaited::Request(request)) {
                // The request was withdrawn. If it could not be, it is under way, and ends at the latest with
                // its peer.
                Err(error @ Error::Unexpected { .. }) if endpoint.withdraw(request) => {
                    // This only frees the slot.
                    let _ = endpoint.outcome(request);
                    break Err(error);
                }
                Err(Error::Unexpected { .. }) => {}
                done => break done,
            }
        };
        std::mem::forget(borrowed);
        outcome
    }

    /// Makes progress while a request borrows the caller's buffer. It unwinds only when the engine has finished
    /// with the buffer.
    pub(in crate::endpoint) fn progress_beside(&mut self, request: Request) {
        let borrowed = BorrowedRequest { endpoint: self, request };
        borrowed.endpoint.advance();
        std::mem::forget(borrowed);
    }

    /// Ends a request whose buffer returns to its owner at once: withdraws it, or waits for the transfer that
    /// is under way. It never unwinds; the next call that makes progress raises the panic.
    #[cold]
    pub(in crate::endpoint) fn release(&mut self, request: Request) {
        let panic = until_ended(|| {
            self.withdraw(request);
            self.wait(request)
        });
        if let Some(panic) = panic {
            self.engine.handlers_mut().keep_panic(panic);
        }
    }

    /// Withdraws a request for which there is no room: a receive, or a message to this process itself. No
    /// receive can match such a message while this thread waits.
    pub(in crate::endpoint) fn withdraw(&mut self, request: Request) -> bool {
        self.engine.cancel_receive(request.0) || self.engine.withdraw_own_send(request.0)
    }

    /// Waits until every pending send has left or its peer is gone.
    pub(in crate::endpoint) fn flush_sends(&mut self) -> Result<(), Error> {
        let mut wait = Wait::new(Some(self.patience()));
        while self.engine.sends_pending()
            || self.engine.handlers_mut().wants_attention()
            || self.engine.port().remote().is_some_and(|net| net.has_unsent())
        {
            let packets = self.engine.progress().packets;
            match self.pause(&mut wait, packets, Awaited::Other) {
                Err(Error::Timeout(limit)) => return Err(self.unsent(limit)),
                paused => paused?,
            }
        }
        Ok(())
    }

    /// Returns why sends have not left within this time.
    #[cold]
    fn unsent(&mut self, limit: Duration) -> Error {
        match self.engine.holding_peer() {
            Some(rank) => Error::Held { rank: rank as usize, limit },
            None => Error::Timeout(limit),
        }
    }

    /// Waits until no peer copies into a buffer of this process. The buffer then belongs to its owner again. A
    /// peer finishes such a copy within microseconds, or it is dead. A peer that is stopped in the middle is waited
    /// for without a limit: the memory of the buffer can't be taken from it.
    pub(in crate::endpoint) fn end_assists(&mut self) {
        let mut wait = || self.wait_for_copies(None, |endpoint| endpoint.engine.end_assists());
        // A panic of a subscriber of `tracing` does not end the wait. The drop of its payload may panic again.
        while catch_unwind(AssertUnwindSafe(&mut wait)).map_err(std::mem::forget).is_err() {}
    }

    /// As [`Endpoint::end_assists`], for one peer and for at most [`COPY_ENDS_IN`]. Returns whether the peer copies
    /// nothing, or is dead.
    pub(in crate::endpoint) fn end_assist(&mut self, peer: u32) -> bool {
        self.wait_for_copies(Some(COPY_ENDS_IN), |endpoint| endpoint.engine.end_assist(peer))
    }

    /// Returns whether that has come within the limit.
    fn wait_for_copies(
        &mut self,
        limit: Option<Duration>,
        mut have_ended: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        let mut wait = Wait::new(limit);
        while !have_ended(self) {
            spin_hint();
            if !self.keep_polling(&mut wait, 0) {
                match self.rest(&mut wait) {
                    Ok(SpinAction::Poll) => {}
                    Ok(SpinAction::Yield) => self.give_way(&mut wait),
                    // A peer that ends its copy wakes no thread that waits for that.
                    Ok(_) => std::thread::sleep(COPY_LOOKED_AT),
                    Err(_) => return false,
                }
            }
        }
        true
    }
}

//! Progress and waiting: spin briefly, then sleep until a peer wakes us; and notice the peers that die.
//!
//! Whoever waits polls in a loop of its own, and calls `Endpoint::pause` between two polls; everything else is there:
//!
//! | what the last poll found | what happens before the next |
//! |---|---|
//! | packets | nothing; the wait begins anew |
//! | nothing | a hint to the processor |
//! | nothing, a few times | others may have the core; how many times, and when that is given up: `wait/pace.rs` |
//! | nothing, for long | a look at the peers' lives, if the last is 10 ms ago; then sleep, until a peer wakes us or for 50 ms |
//! | nothing, and a peer had woken us | all cells are looked through, as the entry that should name one is lost |
//! | anything, for 32 times | a look at the clock: deadlines pass and peers die however much traffic there is |

mod liveness;
mod park;
mod spin;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use nemesia_core::engine::{Bypass, Progress};
use nemesia_core::matching::{Pattern, Source};
use nemesia_core::payload::RecvBuf;
use nemesia_core::shared::sleep::Sleep as Way;
use nemesia_core::sync::spin_hint;
use nemesia_core::trace::Recorder as _;

use super::{Endpoint, Request, Status, status};
use crate::error::Error;
use crate::events;
use crate::os::futex_wake;
pub(super) use park::{Parker, Slept, Waiter};
pub(super) use spin::give_way;
use spin::{FailedPolls, Next};

/// Polls and packets between two looks at the clock, however much traffic there is.
const CLOCK_EVERY: u32 = 32;
/// Glances at the likeliest place between two full polls of a blocking receive.
const GLANCES: u32 = 4;
/// Time between two looks at the peers' lives.
pub(super) const LIVENESS_EVERY: Duration = Duration::from_millis(10);
/// Most requests that are looked through to see how many messages a sleeper lacks.
const MOST_LACKED: usize = 256;
/// Longest sleep. A peer's death, or a wake-up that a hostile peer suppressed, is noticed after this.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// One wait: what was found so far, and how long it may take.
#[derive(Debug)]
pub(super) struct Wait {
    /// Polls in vain: since something came, or since the core was last given away.
    polls: u32,
    /// Whether something came since the last `rest`.
    came: bool,
    /// What was tried since something came.
    failed_polls: FailedPolls,
    /// How the last sleep ended, if nothing came since.
    slept: Option<Sleep>,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// Somebody woke us.
    Woken,
    /// Nobody did.
    Failed,
}

/// What is waited for.
#[derive(Clone, Copy)]
pub(super) enum Awaited<'a> {
    Request(Request),
    /// The same, while other threads go on.
    Shared(Request),
    /// This one, and after it the others.
    All(Request, Others<'a>),
    /// A message from there.
    Message(Source),
    /// Something that does not depend on the room for messages here.
    Other,
}

/// A request that uses a buffer of the caller's, while something runs that may panic: the handler of an active message,
/// or a subscriber of `tracing`. Dropped only if it does; otherwise forgotten.
struct BorrowedRequest<'a> {
    endpoint: &'a mut Endpoint,
    request: Request,
}

impl Drop for BorrowedRequest<'_> {
    fn drop(&mut self) {
        self.endpoint.release(self.request);
    }
}

/// Requests by numbers from 0 on; `None` after the last.
pub(super) type Others<'a> = &'a dyn Fn(usize) -> Option<Request>;

/// What is to be done between two polls.
pub(super) enum WaitStage {
    Poll,
    /// Others may have the core: [`spin::give_way`].
    Yield,
    /// It is time for this sleep, and then for [`Endpoint::unpark`].
    Sleep(Parker),
}

/// How long a wait may take.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Never,
    /// So long, from the first look at the clock on.
    For(Duration),
    /// Until then, which was so long.
    Until(Instant, Duration),
}

impl Wait {
    /// A wait without end, or for at most so long.
    pub(super) const fn new(limit: Option<Duration>) -> Self {
        let limit = match limit {
            Some(limit) => Limit::For(limit),
            None => Limit::Never,
        };
        Self { polls: 0, came: false, failed_polls: FailedPolls::NONE, slept: None, limit }
    }

    /// Something came.
    #[inline(always)]
    fn renew(&mut self) {
        (self.polls, self.came) = (0, true);
    }

    /// Fails when the limit has passed.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Error> {
        if let Limit::For(limit) = self.limit {
            // A time beyond the clock's end never comes.
            self.limit = now.checked_add(limit).map_or(Limit::Never, |end| Limit::Until(end, limit));
        }
        match self.limit {
            Limit::Until(end, limit) if now >= end => Err(Error::Timeout(limit)),
            _ => Ok(()),
        }
    }

    /// The time left; `None` without a limit.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        match self.limit {
            Limit::Never => None,
            Limit::For(limit) => Some(limit),
            Limit::Until(end, _) => Some(end.saturating_duration_since(now)),
        }
    }
}

impl Endpoint {
    /// Delivers what has come and sends what is pending; bounded work, never blocks. Returns the packets moved.
    ///
    /// From time to time it asks the kernel whether the peers live.
    #[inline]
    pub fn progress(&mut self) -> usize {
        if self.is_forked() {
            return 0;
        }
        let packets = self.engine.progress().packets;
        if self.is_clock_due(packets) {
            self.look_at_clock();
        }
        packets
    }

    /// Counts a call that did without a poll; whether it is time for one.
    #[inline(always)]
    pub(super) const fn is_progress_due(&mut self) -> bool {
        self.turns += 1;
        self.turns >= CLOCK_EVERY
    }

    /// Counts a poll that found so many packets; whether it is time to look at the clock. Traffic with one peer must
    /// not hide the death of another, nor the passing of a deadline.
    #[inline(always)]
    fn is_clock_due(&mut self, packets: usize) -> bool {
        self.turns += packets.max(1) as u32;
        if self.engine.handlers_mut().wants_attention() {
            self.attend_handlers();
        }
        self.turns >= CLOCK_EVERY
    }

    /// Tells the time, and looks at the peers' lives if it is time for that; and whether that may have changed
    /// anything.
    #[inline(never)]
    fn look_at_clock(&mut self) -> (Instant, bool) {
        self.turns = 0;
        self.wake_counted();
        self.waiter.take_back_request();
        let now = Instant::now();
        let due = now.duration_since(self.liveness_checked) >= LIVENESS_EVERY;
        if due {
            self.liveness_checked = now;
        }
        (now, due && self.check_liveness())
    }

    /// Goes on with a blocking receive that is not posted, from what its first poll found; posts it when spinning does
    /// not help.
    ///
    /// The buffer is the engine's only as long as this runs.
    #[inline(never)]
    pub(super) fn recv_bypass(
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
                Bypass::Done(outcome) => return outcome.map(status).map_err(Error::from),
                Bypass::Posted(id) => return self.finish_after(Request(id), wait),
                Bypass::Post => break,
                Bypass::Busy if !self.engine.can_bypass(pattern) => break,
                Bypass::Busy => 1,
                Bypass::Idle => 0,
            };
            if !self.keep_polling(&mut wait, packets) {
                // A look may have stored the message that this waits for. Before a sleep the receive is posted.
                match self.rest(&mut wait)? {
                    Next::Sleep => break,
                    Next::Yield => self.give_way(&mut wait),
                    Next::Poll => {}
                }
                if !self.engine.can_bypass(pattern) {
                    break;
                }
            }
            if packets == 0 && self.waiter.spin_policy.polls() > GLANCES {
                for _ in 0..GLANCES {
                    self.engine.pause();
                    if let Some(outcome) = self.engine.receive_next(pattern, &mut buf) {
                        return outcome.map(status).map_err(Error::from);
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

    /// Goes on with a wait for a request.
    #[inline]
    pub(super) fn go_on(
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
            self.pause(wait, packets, awaited)?;
        }
    }

    /// Waits for a request that borrows the caller's buffer: returns or unwinds only when the engine has done with the
    /// buffer.
    pub(super) fn finish(&mut self, request: Request) -> Result<Status, Error> {
        self.finish_after(request, Wait::new(None))
    }

    /// As [`Endpoint::finish`], after a wait that has begun already.
    fn finish_after(&mut self, request: Request, mut wait: Wait) -> Result<Status, Error> {
        let borrowed = BorrowedRequest { endpoint: self, request };
        let endpoint = &mut *borrowed.endpoint;
        let outcome = loop {
            match endpoint.go_on(request, &mut wait, Awaited::Request(request)) {
                // Withdrawn, or, when it could not be, under way: then it ends, or its peer does.
                Err(error @ Error::Unexpected { .. }) if endpoint.withdraw(request) => {
                    // Only frees the slot.
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

    /// Makes progress while a request borrows the caller's buffer: unwinds only when the engine has done with the
    /// buffer.
    pub(super) fn progress_beside(&mut self, request: Request) {
        let borrowed = BorrowedRequest { endpoint: self, request };
        borrowed.endpoint.progress();
        std::mem::forget(borrowed);
    }

    /// Ends a request whose buffer goes back to its owner at once: withdraws it, or waits for the transfer that is
    /// under way. Never unwinds: a panic is raised by the next call that makes progress.
    #[cold]
    pub(super) fn release(&mut self, request: Request) {
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
        if let Some(panic) = first {
            self.engine.handlers_mut().keep_panic(panic);
        }
    }

    /// Withdraws a request for which there is no room: a receive, or a message to ourselves that nobody can receive as
    /// long as we wait.
    pub(super) fn withdraw(&mut self, request: Request) -> bool {
        self.cancel(request) || self.engine.withdraw_own_send(request.0)
    }

    /// Waits until every pending send has left, or its peer is gone.
    pub(super) fn flush_sends(&mut self) -> Result<(), Error> {
        let mut wait = Wait::new(Some(self.patience()));
        while self.engine.sends_pending() || self.engine.handlers_mut().wants_attention() {
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
        Ok(())
    }

    /// Waits until no peer is about to copy into a buffer of ours: it becomes its owner's. A peer that copies is done
    /// after some microseconds, or gone. One that says that it copies, and goes on to say so, is not believed for ever.
    pub(super) fn end_assists(&mut self) {
        let mut wait = Wait::new(Some(self.patience()));
        while !self.engine.end_assists() {
            spin_hint();
            if !self.keep_polling(&mut wait, 0) {
                // There is no use in sleeping.
                match self.rest(&mut wait) {
                    Ok(Next::Yield) => self.give_way(&mut wait),
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        }
    }

    /// How long peers are waited for at the end.
    fn patience(&self) -> Duration {
        Duration::from_secs(self.config.timeout_seconds.into())
    }

    /// Between two polls, of which the last one found so many packets: spins, looks about, or sleeps. Whether it is
    /// for something whose sender may be held back.
    #[inline(always)]
    pub(super) fn pause(
        &mut self,
        wait: &mut Wait,
        packets: usize,
        awaited: Awaited<'_>,
    ) -> Result<(), Error> {
        if self.keep_polling(wait, packets) {
            if packets == 0 {
                spin_hint();
            }
            return Ok(());
        }
        self.pause_long(wait, awaited)
    }

    /// Counts a poll that found so many packets; false when it is time for more than another one.
    #[inline(always)]
    pub(super) fn keep_polling(&mut self, wait: &mut Wait, packets: usize) -> bool {
        if packets > 0 {
            wait.renew();
        } else {
            wait.polls += 1;
        }
        !self.is_clock_due(packets) && wait.polls < self.waiter.spin_policy.polls()
    }

    /// What else is due when polling alone will not do: a look at the clock; and what to do when enough polls were in
    /// vain.
    #[inline(never)]
    fn rest(&mut self, wait: &mut Wait) -> Result<Next, Error> {
        if std::mem::take(&mut wait.came) {
            (wait.failed_polls, wait.slept) = (FailedPolls::NONE, None);
        }
        if self.turns >= CLOCK_EVERY {
            let (now, changed) = self.look_at_clock();
            self.waiter.spin_policy.learn_time(&mut wait.failed_polls, now);
            wait.check(now)?;
            if changed {
                return Ok(Next::Poll);
            }
        }
        if wait.polls < self.waiter.spin_policy.polls() {
            return Ok(Next::Poll);
        }
        Ok(self.waiter.spin_policy.rest(&mut wait.failed_polls, std::mem::take(&mut wait.polls)))
    }

    #[cold]
    #[inline(never)]
    fn pause_long(&mut self, wait: &mut Wait, awaited: Awaited<'_>) -> Result<(), Error> {
        match self.stage(wait, awaited)? {
            WaitStage::Poll => {}
            WaitStage::Yield => self.give_way(wait),
            WaitStage::Sleep(parker) => {
                self.engine.trace_mut().enter("sleep", 0);
                let slept = parker.sleep();
                self.engine.trace_mut().leave(true);
                self.unpark(wait, slept);
            }
        }
        Ok(())
    }

    /// What is to be done before the next poll, when polling alone will not do.
    pub(super) fn stage(&mut self, wait: &mut Wait, awaited: Awaited<'_>) -> Result<WaitStage, Error> {
        // A handler may have forked.
        self.check_origin()?;
        let next = self.rest(wait)?;
        // What is pending has its turn, however many packets come.
        if self.engine.has_work() && self.engine.progress().packets > 0 {
            wait.renew();
            return Ok(WaitStage::Poll);
        }
        match next {
            Next::Poll => return Ok(WaitStage::Poll),
            Next::Yield => return Ok(WaitStage::Yield),
            Next::Sleep => {}
        }
        let now = Instant::now();
        wait.check(now)?;
        // Many short sleeps need not be paid for by as many looks.
        if now.duration_since(self.liveness_checked) >= LIVENESS_EVERY {
            self.liveness_checked = now;
            if self.check_liveness() {
                return Ok(WaitStage::Poll);
            }
        }
        let slept = wait.slept.take();
        if slept == Some(Sleep::Woken) {
            // The entry in our inbox may be lost; the cells are the truth.
            self.engine.port_mut().sweep_all();
            return Ok(WaitStage::Poll);
        }
        if slept == Some(Sleep::Failed)
            && let Some(error) = self.held_back(awaited)
        {
            return Err(error);
        }
        let lacks = self.lacks(awaited);
        Ok(self.prepare(wait, lacks).map_or(WaitStage::Poll, WaitStage::Sleep))
    }

    /// Lets others have the core.
    fn give_way(&mut self, wait: &mut Wait) {
        let took = give_way();
        self.learn_yield(wait, took);
    }

    /// After a yield of this length.
    pub(super) fn learn_yield(&mut self, wait: &mut Wait, took: Duration) {
        self.waiter.counters.yields += 1;
        self.waiter.spin_policy.learn_yield(&mut wait.failed_polls, took);
    }

    /// Why something is not to be waited for now, if it may be held back for want of room.
    pub(super) fn held_back(&self, awaited: Awaited<'_>) -> Option<Error> {
        let held = match awaited {
            Awaited::Request(request) | Awaited::All(request, _) => {
                self.engine.may_be_held(request.0) || self.engine.is_own_send_held(request.0)
            }
            Awaited::Shared(request) => self.engine.may_be_held(request.0),
            Awaited::Message(source) => self.engine.may_source_be_held(source),
            Awaited::Other => false,
        };
        held.then(|| self.ceiling())
    }

    /// Ends the sleep of another thread of this process.
    pub(super) fn notify(&self) {
        self.waiter.sleep.notify();
        futex_wake(self.waiter.sleep.futex(), u32::MAX);
    }

    /// How many messages have to come at least before there is something to do.
    fn lacks(&self, awaited: Awaited<'_>) -> u32 {
        let Awaited::All(request, others) = awaited else { return 1 };
        let others = (0..MOST_LACKED).map_while(others);
        let lacked = std::iter::once(request).chain(others).filter(|it| self.engine.is_posted(it.0));
        lacked.count() as u32
    }

    /// Wakes those who sleep on although we have sent them something, if we can't go on before they do.
    pub(super) fn wake_counted(&mut self) {
        if self.engine.port_mut().has_counted() && self.engine.sends_pending() {
            self.engine.port_mut().wake_counted();
        }
    }

    /// Says that we sleep, and for how many messages; `None` when there is something to do by now.
    fn prepare(&mut self, wait: &Wait, lacks: u32) -> Option<Parker> {
        self.wake_counted();
        let sequence = self.waiter.announce(Way::Futex, lacks);
        if self.engine.progress() != Progress::default() {
            self.waiter.unpark();
            return None;
        }
        Some(Parker::new(self.waiter.sleep.clone(), sequence, self.longest_sleep(wait)))
    }

    /// Until the peers' lives are to be looked at again, or the wait ends.
    fn longest_sleep(&self, wait: &Wait) -> Duration {
        let now = Instant::now();
        let longest = LONGEST_SLEEP.saturating_sub(now.duration_since(self.liveness_checked));
        wait.left(now).map_or(longest, |left| left.min(longest))
    }

    /// After a sleep.
    pub(super) fn unpark(&mut self, wait: &mut Wait, slept: Slept) {
        self.waiter.unpark_after(slept);
        events::slept(slept.took, slept.woken);
        self.waiter.spin_policy.learn_sleep(&mut wait.failed_polls, slept.took, slept.woken);
        if !slept.woken {
            // Perhaps somebody saw to it that nobody could wake us.
            self.engine.port_mut().sweep_all();
        }
        wait.slept = Some(if slept.woken { Sleep::Woken } else { Sleep::Failed });
    }
}

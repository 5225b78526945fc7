//! Progress and waiting: an endpoint spins briefly, then sleeps until a peer wakes it, and notices peers that die.
//!
//! Each blocking call polls in a loop of its own, and calls `Endpoint::pause` between two polls. All other actions are
//! in `pause`:
//!
//! | result of the last poll | action before the next poll |
//! |---|---|
//! | packets | none; the wait begins anew |
//! | nothing | a hint to the processor |
//! | nothing, a few times | a yield of the core; `nemesia_core::spin` decides how often, and when to stop |
//! | nothing, for long | a liveness check if one is due (10 ms); then a sleep of at most 50 ms |
//! | nothing, after a wake-up | a scan of all cells, because the entry that should name one is lost |
//! | anything, 32 times | the clock is read: deadlines pass and peers die even during heavy traffic |
//!
//! Calls that never wait, such as `test`, yield the core as well if there are more processes than cores:
//! `wait/nonblocking.rs`.
//!
//! | file | contents |
//! |---|---|
//! | `wait.rs` | one wait: its time limit, and the action between two polls |
//! | `wait/blocking.rs` | the loops of blocking calls, and the end of requests whose caller unwinds |
//! | `wait/nonblocking.rs` | calls that poll and never wait |
//! | `wait/liveness.rs` | liveness checks |
//! | `wait/park.rs` | the owner's side of the sleep word, and the cost of its fences |
//! | `wait/event.rs` | event loops: a descriptor that becomes readable |

mod blocking;
mod event;
mod liveness;
mod nonblocking;
mod park;

use std::time::{Duration, Instant};

use nemesia_core::engine::Progress;
use nemesia_core::matching::Source;
use nemesia_core::shared::sleep::Sleep as Way;
use nemesia_core::spin::{FailedPolls, SpinAction};
use nemesia_core::sync::spin_hint;
use nemesia_core::trace::Recorder as _;

use super::{Endpoint, Request};
use crate::error::Error;
use crate::events;
use crate::os::futex_wake;
pub(super) use blocking::until_ended;
pub use event::Arm;
pub(super) use park::{Parker, Slept, Waiter, give_way};

/// The number of polls and packets after which the clock is read, even during heavy traffic.
const CLOCK_EVERY: u32 = 32;
/// The time between two liveness checks.
pub(super) const LIVENESS_EVERY: Duration = Duration::from_millis(10);
/// The largest number of requests that are scanned to count the messages that a sleeper lacks.
const MOST_LACKED: usize = 256;
/// The number of liveness checks in a row at which a sender is held back before a wait without sleeps ends.
const HELD_CHECKS: u8 = 5;
/// The longest sleep. A peer's death, or a wake-up that a hostile peer suppressed, is noticed after this time.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// One wait: the results so far, and its time limit.
#[derive(Debug)]
pub(super) struct Wait {
    /// The failed polls since something came, or since the core was last yielded.
    polls: u32,
    /// Whether something came since the last `rest`.
    came: bool,
    /// The polls and yields since something came.
    failed_polls: FailedPolls,
    /// The end of the last sleep, if nothing came since.
    slept: Option<Sleep>,
    /// Whether something came, and a liveness check was made, since `stage` looked.
    busy: bool,
    checked: bool,
    /// The liveness checks in a row at which the awaited message's sender was held back.
    held: u8,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// A peer or another thread woke this one.
    Woken,
    /// The time limit of the sleep passed.
    Failed,
}

/// The event that a wait is for.
#[derive(Clone, Copy)]
pub(super) enum Awaited<'a> {
    Request(Request),
    /// A request, while other threads continue.
    Shared(Request),
    /// A request, and after it the others.
    All(Request, Others<'a>),
    /// Any one of these requests.
    Any(Others<'a>),
    /// An entry of the completion queue.
    Completions,
    /// A message from this source.
    Message(Source),
    /// An event that does not depend on the room for messages.
    Other,
}

/// Requests by number from 0; `None` after the last.
pub(super) type Others<'a> = &'a dyn Fn(usize) -> Option<Request>;

/// The action between two polls.
pub(super) enum WaitStage {
    Poll,
    /// A yield of the core: [`give_way`].
    Yield,
    /// This sleep, and then [`Endpoint::unpark`].
    Sleep(Parker),
}

/// The time limit of a wait.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Never,
    /// A time from the first reading of the clock.
    For(Duration),
    /// An end, and the time that it was from the beginning.
    Until(Instant, Duration),
}

impl Wait {
    /// Makes a wait without limit, or for at most `limit`.
    pub(super) const fn new(limit: Option<Duration>) -> Self {
        let limit = match limit {
            Some(limit) => Limit::For(limit),
            None => Limit::Never,
        };
        Self {
            polls: 0,
            came: false,
            failed_polls: FailedPolls::NONE,
            slept: None,
            busy: false,
            checked: false,
            held: 0,
            limit,
        }
    }

    /// Begins the wait anew, because something came.
    #[inline(always)]
    fn renew(&mut self) {
        (self.polls, self.came) = (0, true);
    }

    /// Fails if the limit has passed.
    pub(super) fn check(&mut self, now: Instant) -> Result<(), Error> {
        if let Limit::For(limit) = self.limit {
            // A time beyond the end of the clock never comes.
            self.limit = now.checked_add(limit).map_or(Limit::Never, |end| Limit::Until(end, limit));
        }
        match self.limit {
            Limit::Until(end, limit) if now >= end => Err(Error::Timeout(limit)),
            _ => Ok(()),
        }
    }

    /// Returns whether a liveness check was made that `stage` has not looked at.
    const fn was_checked(&self) -> bool {
        self.checked
    }

    /// Returns the time left; `None` without a limit.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        match self.limit {
            Limit::Never => None,
            Limit::For(limit) => Some(limit),
            Limit::Until(end, _) => Some(end.saturating_duration_since(now)),
        }
    }
}

impl Endpoint {
    /// Counts a call that made no poll. Returns whether a poll is due.
    #[inline(always)]
    pub(super) const fn is_progress_due(&mut self) -> bool {
        self.turns += 1;
        self.turns >= CLOCK_EVERY
    }

    /// Counts a poll that found so many packets. Returns whether the clock has to be read. Traffic with one peer must
    /// not hide the death of another, nor a deadline that has passed.
    #[inline(always)]
    pub(super) fn is_clock_due(&mut self, packets: usize) -> bool {
        self.turns += packets.max(1) as u32;
        if self.engine.handlers_mut().wants_attention() {
            self.attend_handlers();
        }
        self.turns >= CLOCK_EVERY
    }

    /// Reads the clock, and makes a liveness check if one is due. Returns the time and whether the check may have
    /// changed anything.
    #[inline(never)]
    pub(super) fn look_at_clock(&mut self) -> (Instant, bool) {
        self.turns = 0;
        self.wake_counted();
        self.waiter.take_back_request();
        let now = Instant::now();
        self.advance_net();
        let due = now.duration_since(self.liveness_checked) >= LIVENESS_EVERY;
        if due {
            self.liveness_checked = now;
        }
        let connected = self.is_calling() && self.attend_calls();
        (now, (due && self.check_liveness()) | connected)
    }

    /// Returns how long the end of the endpoint waits for peers.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.config.timeout_seconds.into())
    }

    /// Spins, checks or sleeps between two polls, of which the last found `packets` packets. `awaited` shows whether
    /// the awaited event's sender may be held back.
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

    /// Counts a poll that found `packets` packets. Returns false if more than another poll is due.
    #[inline(always)]
    pub(super) fn keep_polling(&mut self, wait: &mut Wait, packets: usize) -> bool {
        if packets > 0 {
            wait.renew();
        } else {
            wait.polls += 1;
        }
        !self.is_clock_due(packets) && wait.polls < self.waiter.spin_policy.polls()
    }

    /// Reads the clock if this is due, and decides what to do after enough failed polls.
    #[inline(never)]
    fn rest(&mut self, wait: &mut Wait) -> Result<SpinAction, Error> {
        if std::mem::take(&mut wait.came) {
            wait.busy = true;
            (wait.failed_polls, wait.slept) = (FailedPolls::NONE, None);
        }
        if self.turns >= CLOCK_EVERY {
            let checked = self.liveness_checked;
            let (now, changed) = self.look_at_clock();
            wait.checked |= checked != self.liveness_checked;
            let time = self.waiter.since_start(now);
            self.waiter.spin_policy.learn_time(&mut wait.failed_polls, time);
            wait.check(now)?;
            if changed {
                return Ok(SpinAction::Poll);
            }
        }
        if wait.polls < self.waiter.spin_policy.polls() {
            return Ok(SpinAction::Poll);
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

    /// Returns the action before the next poll, when polls alone do not suffice.
    pub(super) fn stage(&mut self, wait: &mut Wait, awaited: Awaited<'_>) -> Result<WaitStage, Error> {
        // A handler may have forked.
        self.check_origin()?;
        let next = self.rest(wait)?;
        if std::mem::take(&mut wait.checked)
            && let Some(error) = self.held_without_sleep(wait, awaited)
        {
            return Err(error);
        }
        // Pending sends get their turn, however many packets come.
        if self.engine.has_work() && self.engine.progress().packets > 0 {
            self.waiter.changes += 1;
            wait.renew();
            return Ok(WaitStage::Poll);
        }
        match next {
            SpinAction::Poll => return Ok(WaitStage::Poll),
            SpinAction::Yield => return Ok(WaitStage::Yield),
            SpinAction::Sleep => {}
        }
        let now = Instant::now();
        wait.check(now)?;
        // Many short sleeps must not cause as many checks.
        if now.duration_since(self.liveness_checked) >= LIVENESS_EVERY {
            self.liveness_checked = now;
            if self.check_liveness() {
                return Ok(WaitStage::Poll);
            }
        }
        let slept = wait.slept.take();
        if slept == Some(Sleep::Woken) {
            // The entry in the inbox may be lost. The cells are reliable.
            self.engine.port_mut().local_mut().sweep_all();
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

    /// Yields the core.
    fn give_way(&mut self, wait: &mut Wait) {
        let took = give_way();
        self.learn_yield(wait, took);
    }

    /// Records a yield of this length.
    pub(super) fn learn_yield(&mut self, wait: &mut Wait, took: Duration) {
        self.waiter.counters.yields += 1;
        self.waiter.spin_policy.learn_yield(&mut wait.failed_polls, took);
    }

    /// Returns why a wait has to fail, if its message may be held back for want of room.
    pub(super) fn held_back(&self, awaited: Awaited<'_>) -> Option<Error> {
        // The limit comes first: see `grow_unexpected`.
        let held = self.engine.growth_units() == 0
            && match awaited {
                Awaited::Request(request) | Awaited::All(request, _) => self.is_held_back(request),
                Awaited::Any(requests) => (0..).map_while(requests).all(|request| self.is_held_back(request)),
                Awaited::Completions => self.engine.are_completions_held(),
                Awaited::Shared(request) => self.engine.may_be_held(request.0),
                Awaited::Message(source) => self.engine.may_source_be_held(source),
                Awaited::Other => false,
            };
        held.then(|| self.ceiling())
    }

    /// Returns whether a request cannot complete before stored messages are received.
    fn is_held_back(&self, request: Request) -> bool {
        self.engine.may_be_held(request.0) || self.engine.is_own_send_held(request.0)
    }

    /// Returns why a wait that does not sleep has to fail: it only polls, or other traffic keeps it awake.
    fn held_without_sleep(&self, wait: &mut Wait, awaited: Awaited<'_>) -> Option<Error> {
        let busy = std::mem::take(&mut wait.busy);
        // Other traffic may free room.
        let error = if busy && self.engine.may_be_regranted() { None } else { self.held_back(awaited) };
        wait.held = if error.is_some() { wait.held.saturating_add(1) } else { 0 };
        error.filter(|_| wait.held > HELD_CHECKS)
    }

    /// Ends the sleep of another thread of this process.
    pub(super) fn notify(&self) {
        self.waiter.sleep.notify();
        futex_wake(self.waiter.sleep.futex(), u32::MAX);
        self.waiter.watch.notify();
    }

    /// Returns how many messages have to come at least before there is something to do.
    fn lacks(&self, awaited: Awaited<'_>) -> u32 {
        let Awaited::All(request, others) = awaited else { return 1 };
        let others = (0..MOST_LACKED).map_while(others);
        let lacked = std::iter::once(request).chain(others).filter(|it| self.engine.is_posted(it.0));
        lacked.count() as u32
    }

    /// Wakes peers that wait for more messages than they have got from this process, if this process cannot continue
    /// before they do.
    pub(super) fn wake_counted(&mut self) {
        if self.engine.port_mut().local_mut().has_counted() && self.engine.sends_pending() {
            self.engine.port_mut().local_mut().wake_counted();
        }
    }

    /// Announces a sleep, and the number of messages that it lacks. Returns `None` if there is something to do by now.
    fn prepare(&mut self, wait: &Wait, lacks: u32) -> Option<Parker> {
        // A rank that was named for the first time is called before this process sleeps.
        if self.engine.has_wanted() && self.attend_calls() {
            return None;
        }
        self.wake_counted();
        // A packet of a socket wakes this process too.
        let has_sockets = self.engine.port().remote().is_some() || self.expects_calls();
        let (how, events) = if has_sockets {
            (Way::Event, Some(self.waiter.watch.prepare_sleep()))
        } else {
            (Way::Futex, None)
        };
        let sequence = self.waiter.announce(how, lacks);
        // Armed first: what comes later wakes this process, and what has come is found by the polls.
        self.advance_net();
        let is_idle = self.arm_net();
        if self.engine.progress() != Progress::default() || !is_idle {
            self.waiter.changes += 1;
            self.waiter.unpark();
            return None;
        }
        Some(Parker::new(self.waiter.sleep.clone(), sequence, events, self.longest_sleep(wait)))
    }

    /// Returns the time until the next liveness check or the end of the wait.
    fn longest_sleep(&self, wait: &Wait) -> Duration {
        let now = Instant::now();
        let longest = LONGEST_SLEEP.saturating_sub(now.duration_since(self.liveness_checked));
        wait.left(now).map_or(longest, |left| left.min(longest))
    }

    /// Ends a sleep.
    pub(super) fn unpark(&mut self, wait: &mut Wait, slept: Slept) {
        self.waiter.unpark_after(slept);
        if slept.by_event {
            // The set stays readable until its events are taken.
            self.liveness_checked = Instant::now();
            self.check_liveness();
        }
        events::slept(slept.took, slept.woken);
        self.waiter.spin_policy.learn_sleep(&mut wait.failed_polls, slept.took, slept.woken);
        if !slept.woken {
            // A hostile peer may have suppressed the wake-up.
            self.engine.port_mut().local_mut().sweep_all();
        }
        wait.slept = Some(if slept.woken { Sleep::Woken } else { Sleep::Failed });
    }
}

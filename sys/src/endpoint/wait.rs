//! Progress and waiting: spin briefly, then sleep until a peer wakes us; and notice the peers that die.
//!
//! Whoever waits polls in a loop of its own, and calls `Endpoint::pause` between two polls; everything else is there:
//!
//! | what the last poll found | what happens before the next |
//! |---|---|
//! | packets | nothing; the wait begins anew |
//! | nothing | a hint to the processor |
//! | nothing, a few times | others may have the core; how many times, and when that is given up: `wait/pace.rs` |
//! | nothing, for long | a look at the peers' lives; then sleep, until a peer wakes us or for 50 ms |
//! | nothing, and a peer had woken us | all cells are looked through, as the entry that should name one is lost |
//! | anything, for 32 times | a look at the clock: deadlines pass and peers die however much traffic there is |

mod pace;

use std::time::{Duration, Instant};

use nemesia_core::engine::{Bypass, Failure, Progress};
use nemesia_core::matching::{Pattern, Source};
use nemesia_core::payload::RecvBuf;
use nemesia_core::shared::sleep::{self, SleepWord};
use nemesia_core::sync::spin_hint;

use super::{Endpoint, Request, Status, status};
use crate::config::Config;
use crate::error::Error;
use crate::os::{Departure, HeavyFence, WaitResult, Watch, futex_wait};
use pace::{Next, Pace, Vain};

/// Polls and packets between two looks at the clock, however much traffic there is.
const CLOCK_EVERY: u32 = 32;
/// Glances at the likeliest place between two full polls of a blocking receive.
const GLANCES: u32 = 4;
/// Time between two looks at the peers' lives.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often the last messages of a peer that is gone are looked for, a turn of the engine each time. It can't have left
/// more than its cells and its fastbox hold; one that only pretends to be gone could go on for ever.
const DRAIN_TURNS: u32 = 256;
/// Longest sleep. A peer's death, or a wake-up that a hostile peer suppressed, is noticed after this.
pub(super) const LONGEST_SLEEP: Duration = Duration::from_millis(50);

/// What waiting needs of the operating system.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) sleep: &'static SleepWord,
    pub(super) watch: Watch,
    pub(super) fence: HeavyFence,
    pace: Pace,
}

impl Waiter {
    pub(super) fn new(
        config: &Config,
        crowded: bool,
        sleep: &'static SleepWord,
        watch: Watch,
        fence: HeavyFence,
    ) -> Self {
        Self { sleep, watch, fence, pace: Pace::new(crowded, config.spin) }
    }

    /// The process of a peer, if it can be named.
    pub(super) fn pid(&self, peer: usize) -> Option<i32> {
        self.watch.pid(peer)
    }

    /// Closes the connection to a peer, if it is open: the peer sees our end.
    pub(super) fn let_go(&mut self, peer: usize) {
        drop(self.watch.remove(peer));
    }

    pub(super) fn say_goodbye(&self) {
        self.watch.send_goodbyes();
    }
}

/// One wait: what was found so far, and how long it may take.
#[derive(Debug)]
pub(super) struct Wait {
    /// Polls in vain: since something came, or since the core was last given away.
    polls: u32,
    /// Whether something came since the last `rest`.
    came: bool,
    /// What was tried since something came.
    vain: Vain,
    /// How the last sleep ended, if nothing came since.
    slept: Option<Sleep>,
    limit: Limit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// Somebody woke us.
    Woken,
    /// Nobody did.
    InVain,
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Awaited {
    Request(Request),
    /// A message from there.
    Message(Source),
    /// Something that does not depend on the room for messages here.
    Other,
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
        Self { polls: 0, came: false, vain: Vain::NONE, slept: None, limit }
    }

    /// Something came.
    #[inline(always)]
    fn renew(&mut self) {
        (self.polls, self.came) = (0, true);
    }

    /// Fails when the limit has passed.
    fn check(&mut self, now: Instant) -> Result<(), Error> {
        if let Limit::For(limit) = self.limit {
            // A time beyond the clock's end never comes.
            self.limit = now.checked_add(limit).map_or(Limit::Never, |end| Limit::Until(end, limit));
        }
        match self.limit {
            Limit::Until(end, limit) if now >= end => Err(Error::Timeout(limit)),
            _ => Ok(()),
        }
    }

    /// How long a sleep may be.
    fn longest_sleep(&self, now: Instant) -> Duration {
        match self.limit {
            Limit::Until(end, _) => LONGEST_SLEEP.min(end.saturating_duration_since(now)),
            _ => LONGEST_SLEEP,
        }
    }
}

impl Endpoint {
    /// Delivers what has come and sends what is pending; bounded work, never blocks. Returns the packets moved.
    ///
    /// From time to time it asks the kernel whether the peers live.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let packets = self.engine.progress().packets;
        if self.is_clock_due(packets) {
            self.look_at_clock();
        }
        packets
    }

    /// Counts a poll that found so many packets; whether it is time to look at the clock. Traffic with one peer must not
    /// hide the death of another, nor the passing of a deadline.
    #[inline(always)]
    fn is_clock_due(&mut self, packets: usize) -> bool {
        self.turns += packets.max(1) as u32;
        if self.engine.handlers_mut().has_replies() {
            self.send_replies();
        }
        self.turns >= CLOCK_EVERY
    }

    /// Looks at the peers' lives if it is time.
    #[inline(never)]
    fn look_at_clock(&mut self) -> Instant {
        self.turns = 0;
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOK_EVERY {
            self.looked = now;
            self.look();
        }
        now
    }

    /// Goes on with a blocking receive that is not posted, from what its first poll found; posts it when spinning does
    /// not help.
    ///
    /// The buffer is the engine's only as long as this runs.
    #[inline(never)]
    pub(super) fn recv_bypass(
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
                if self.rest(&mut wait)? == Next::Sleep || !self.engine.can_bypass(pattern) {
                    break;
                }
            }
            if packets == 0 && self.waiter.pace.polls() > GLANCES {
                for _ in 0..GLANCES {
                    spin_hint();
                    if let Some(outcome) = self.engine.receive_next(pattern, &mut buf) {
                        return outcome.map(status).map_err(Error::from);
                    }
                }
                wait.polls += GLANCES;
            }
            step = self.engine.receive_step(pattern, &mut buf);
        }
        let request = self.post(*pattern, buf)?;
        self.finish_after(request, wait)
    }

    /// Waits until a request is complete, or for at most so long.
    #[inline]
    pub(super) fn wait_limited(
        &mut self,
        request: Request,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        self.go_on(request, &mut Wait::new(limit))
    }

    /// Goes on with a wait for a request.
    #[inline]
    fn go_on(&mut self, request: Request, wait: &mut Wait) -> Result<Status, Error> {
        loop {
            if let Some(outcome) = self.outcome(request) {
                return outcome;
            }
            let packets = self.engine.step().packets;
            self.pause(wait, packets, Awaited::Request(request))?;
        }
    }

    /// Waits for a request that borrows the caller's buffer: returns only when the engine has done with the buffer.
    pub(super) fn finish(&mut self, request: Request) -> Result<Status, Error> {
        self.finish_after(request, Wait::new(None))
    }

    /// As [`Endpoint::finish`], after a wait that has begun already.
    fn finish_after(&mut self, request: Request, mut wait: Wait) -> Result<Status, Error> {
        loop {
            match self.go_on(request, &mut wait) {
                // Withdrawn, or, when it could not be, under way: then it ends, or its peer does.
                Err(error @ Error::Unexpected { .. }) if self.cancel(request) => {
                    // Only frees the slot.
                    let _ = self.outcome(request);
                    return Err(error);
                }
                Err(Error::Unexpected { .. }) => {}
                done => return done,
            }
        }
    }

    /// Waits until every pending send has left, or its peer is gone.
    pub(super) fn flush_sends(&mut self) -> Result<(), Error> {
        let limit = Duration::from_secs(self.config.timeout_seconds.into());
        let mut wait = Wait::new(Some(limit));
        while self.engine.sends_pending() || self.engine.handlers_mut().has_replies() {
            let packets = self.engine.progress().packets;
            self.pause(&mut wait, packets, Awaited::Other)?;
        }
        Ok(())
    }

    /// Waits until no peer is about to copy into a buffer of ours: it becomes its owner's. A peer that copies is done
    /// after some microseconds, or gone.
    pub(super) fn end_shares(&mut self) {
        let mut wait = Wait::new(None);
        while !self.engine.end_shares() {
            spin_hint();
            if !self.keep_polling(&mut wait, 0) {
                // Without a limit it does not fail, and there is no use in sleeping.
                let _ = self.rest(&mut wait);
            }
        }
    }

    /// Between two polls, of which the last one found so many packets: spins, looks about, or sleeps. Whether it is
    /// for something whose sender may be held back.
    #[inline(always)]
    pub(super) fn pause(&mut self, wait: &mut Wait, packets: usize, awaited: Awaited) -> Result<(), Error> {
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
    fn keep_polling(&mut self, wait: &mut Wait, packets: usize) -> bool {
        if packets > 0 {
            wait.renew();
        } else {
            wait.polls += 1;
        }
        !self.is_clock_due(packets) && wait.polls < self.waiter.pace.polls()
    }

    /// What else is due when polling alone will not do: a look at the clock; and when enough polls were in vain, others
    /// may have the core.
    #[inline(never)]
    fn rest(&mut self, wait: &mut Wait) -> Result<Next, Error> {
        if std::mem::take(&mut wait.came) {
            (wait.vain, wait.slept) = (Vain::NONE, None);
        }
        if self.turns >= CLOCK_EVERY {
            let now = self.look_at_clock();
            self.waiter.pace.learn_time(&mut wait.vain, now);
            wait.check(now)?;
        }
        if wait.polls < self.waiter.pace.polls() {
            return Ok(Next::Poll);
        }
        Ok(self.waiter.pace.rest(&mut wait.vain, std::mem::take(&mut wait.polls)))
    }

    #[cold]
    #[inline(never)]
    fn pause_long(&mut self, wait: &mut Wait, awaited: Awaited) -> Result<(), Error> {
        let next = self.rest(wait)?;
        // What is pending has its turn, however many packets come.
        if self.engine.has_work() && self.engine.progress().packets > 0 {
            wait.renew();
            return Ok(());
        }
        if next == Next::Poll {
            return Ok(());
        }
        wait.check(Instant::now())?;
        if self.look() {
            return Ok(());
        }
        match wait.slept.take() {
            Some(Sleep::InVain) if self.may_be_held(awaited) => {
                return Err(self.ceiling());
            }
            // The entry in our inbox may be lost; the cells are the truth.
            Some(Sleep::Woken) => self.engine.port_mut().sweep_all(),
            _ => wait.slept = self.sleep(wait),
        }
        Ok(())
    }

    /// Whether what is waited for may be held back for want of room.
    fn may_be_held(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Request(request) => self.engine.may_be_held(request.0),
            Awaited::Message(source) => self.engine.may_source_be_held(source),
            Awaited::Other => false,
        }
    }

    /// Sleeps until a peer wakes us; `None` when there was something to do by then.
    fn sleep(&mut self, wait: &mut Wait) -> Option<Sleep> {
        let word = self.waiter.sleep;
        let sequence = word.announce(sleep::Sleep::Futex);
        // Whatever we were told of the others' fences: a waker without one counts on ours. A failure costs at most the
        // bounded sleep below.
        let _ = self.waiter.fence.issue();
        let mut slept = None;
        if self.engine.progress() == Progress::default() {
            let begun = Instant::now();
            let result = futex_wait(word.futex(), sequence, Some(wait.longest_sleep(begun)));
            let woken = result != WaitResult::TimedOut;
            self.waiter.pace.learn_sleep(&mut wait.vain, begun.elapsed(), woken);
            if !woken {
                // Perhaps somebody saw to it that nobody could wake us.
                self.engine.port_mut().sweep_all();
            }
            slept = Some(if woken { Sleep::Woken } else { Sleep::InVain });
        }
        word.rise();
        slept
    }

    /// Asks the kernel which peers are gone, and lets go of those from whom nothing more can come. Whether that may have
    /// changed anything.
    #[cold]
    pub(super) fn look(&mut self) -> bool {
        self.discard_dropped();
        self.hang_up();
        if let Ok(departed) = self.waiter.watch.poll() {
            self.leaving.extend(departed.map(|(rank, departure)| (rank, departure, 0)));
        }
        if self.leaving.is_empty() {
            return false;
        }
        for (rank, departure, turns) in std::mem::take(&mut self.leaving) {
            let peer = rank as u32;
            let failure = match departure {
                Departure::Died => Failure::Died,
                Departure::Finished => Failure::Finished,
            };
            self.engine.depart(peer, failure);
            // What it sent before is still in its segment: take it first.
            if turns < DRAIN_TURNS && self.engine.failure(peer).is_none() && !self.engine.drain(peer) {
                self.leaving.push((rank, departure, turns + 1));
                continue;
            }
            self.engine.fail(peer, failure);
            self.direct.forget(peer);
        }
        true
    }
}

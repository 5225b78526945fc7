//! Progress and waiting: spin briefly, then sleep until a peer wakes us; and notice the peers that die.

use std::time::{Duration, Instant};

use nemesia_core::engine::{Bypass, Failure};
use nemesia_core::matching::Pattern;
use nemesia_core::payload::RecvBuf;
use nemesia_core::shared::sleep::SleepWord;
use nemesia_core::sync::spin_hint;

use super::{Endpoint, Request, Status, status};
use crate::config::Config;
use crate::error::Error;
use crate::os::{Departure, HeavyFence, WaitResult, Watch, futex_wait};

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
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// Polls before sleeping when each process can have a core: the peer is at work on another one.
const SPIN_ALONE: u32 = 20_000;
/// Polls before sleeping when there are more processes than cores: the peer needs the core.
const SPIN_CROWDED: u32 = 64;

/// What waiting needs of the operating system.
#[derive(Debug)]
pub(super) struct Waiter {
    sleep: &'static SleepWord,
    watch: Watch,
    fence: HeavyFence,
    pub(super) spin: u32,
}

impl Waiter {
    pub(super) fn new(
        config: &Config,
        crowded: bool,
        sleep: &'static SleepWord,
        watch: Watch,
        fence: HeavyFence,
    ) -> Self {
        let by_load = if crowded { SPIN_CROWDED } else { SPIN_ALONE };
        Self { sleep, watch, fence, spin: config.spin.unwrap_or(by_load) }
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

impl Endpoint {
    /// Delivers what has come and sends what is pending; bounded work, never blocks. Returns the packets moved.
    ///
    /// From time to time it asks the kernel whether the peers live.
    #[inline]
    pub fn progress(&mut self) -> usize {
        let packets = self.engine.progress().packets;
        self.count_turn(packets);
        packets
    }

    /// Counts a poll that found so many packets; true when it was time to look at the peers' lives. Traffic with one
    /// peer must not hide the death of another, nor the passing of a deadline.
    #[inline]
    pub(super) fn count_turn(&mut self, packets: usize) -> bool {
        self.turns += packets.max(1) as u32;
        if self.engine.handlers_mut().has_replies() {
            self.send_replies();
        }
        self.turns >= CLOCK_EVERY && self.count_time()
    }

    /// Looks if it is time.
    #[inline(never)]
    fn count_time(&mut self) -> bool {
        self.turns = 0;
        let now = Instant::now();
        let due = now.duration_since(self.looked) >= LOOK_EVERY;
        if due {
            self.looked = now;
            self.look();
        }
        due
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
        let mut spins = 0;
        while spins < self.waiter.spin && !self.count_turn(1) {
            match step {
                Bypass::Done(outcome) => return outcome.map(status).map_err(Error::from),
                Bypass::Posted(id) => return self.finish(Request(id)),
                Bypass::Busy if self.engine.can_bypass(pattern) => spins = 0,
                Bypass::Idle if !self.engine.sends_pending() => {
                    for _ in 0..GLANCES {
                        spin_hint();
                        if let Some(outcome) = self.engine.receive_next(pattern, &mut buf) {
                            return outcome.map(status).map_err(Error::from);
                        }
                    }
                    spins += 1 + GLANCES;
                }
                Bypass::Busy | Bypass::Idle | Bypass::Post => break,
            }
            step = self.engine.receive_step(pattern, &mut buf);
        }
        match step {
            Bypass::Done(outcome) => outcome.map(status).map_err(Error::from),
            Bypass::Posted(id) => self.finish(Request(id)),
            Bypass::Busy | Bypass::Idle | Bypass::Post => {
                let request = self.post(*pattern, buf)?;
                self.finish(request)
            }
        }
    }

    #[inline]
    pub(super) fn wait_deadline(
        &mut self,
        request: Request,
        limit: Option<Duration>,
    ) -> Result<Status, Error> {
        let mut spins = 0;
        loop {
            if let Some(outcome) = self.outcome(request) {
                return outcome;
            }
            let idle = self.engine.step().packets == 0;
            spins = if idle { spins + 1 } else { 0 };
            if self.count_turn(1) || spins >= self.waiter.spin {
                return self.wait_long(request, limit, spins);
            }
            if idle {
                spin_hint();
            }
        }
    }

    /// The slow half of waiting, which sleeps when spinning does not help, and looks at the clock.
    #[cold]
    fn wait_long(
        &mut self,
        request: Request,
        limit: Option<Duration>,
        mut spins: u32,
    ) -> Result<Status, Error> {
        // A time beyond the clock's end never comes.
        let deadline = limit.and_then(|limit| Some((Instant::now().checked_add(limit)?, limit)));
        // Whether nobody had anything for us during a whole sleep.
        let mut in_vain = false;
        // Whether somebody woke us, and nothing was found since.
        let mut misled = false;
        loop {
            let packets = self.engine.progress().packets;
            if let Some(outcome) = self.outcome(request) {
                return outcome;
            }
            let expired = || deadline.filter(|(deadline, _)| Instant::now() >= *deadline);
            if self.count_turn(packets)
                && let Some((_, limit)) = expired()
            {
                return Err(Error::Timeout(limit));
            }
            if packets > 0 {
                (spins, in_vain, misled) = (0, false, false);
                continue;
            }
            spins += 1;
            if spins < self.waiter.spin {
                spin_hint();
                continue;
            }
            spins = 0;
            self.look();
            if in_vain && self.engine.may_be_held(request.0) {
                return Err(self.ceiling());
            }
            if let Some((_, limit)) = expired() {
                return Err(Error::Timeout(limit));
            }
            if std::mem::take(&mut misled) {
                // The entry in our inbox may be lost; the cells are the truth.
                self.engine.port_mut().sweep_all();
                continue;
            }
            misled = self.sleep(deadline.map(|(deadline, _)| deadline));
            in_vain = !misled;
        }
    }

    /// Sleeps until a peer wakes us, unless there is work by now. False when nobody did.
    pub(super) fn sleep(&mut self, deadline: Option<Instant>) -> bool {
        let mut woken = true;
        let word = self.waiter.sleep;
        let sequence = word.announce();
        // Whatever we were told of the others' fences: a waker without one counts on ours. A failure costs at most the
        // bounded sleep below.
        let _ = self.waiter.fence.issue();
        if self.engine.progress().packets == 0 {
            let left =
                deadline.map_or(LONGEST_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            woken = futex_wait(word.futex(), sequence, Some(left.min(LONGEST_SLEEP))) != WaitResult::TimedOut;
            if !woken {
                // Perhaps somebody saw to it that nobody could wake us.
                self.engine.port_mut().sweep_all();
            }
        }
        word.rise();
        woken
    }

    /// Asks the kernel which peers are gone, and lets go of those from whom nothing more can come.
    #[cold]
    pub(super) fn look(&mut self) {
        self.discard_dropped();
        self.hang_up();
        if let Ok(departed) = self.waiter.watch.poll() {
            self.leaving.extend(departed.map(|(rank, departure)| (rank, departure, 0)));
        }
        if self.leaving.is_empty() {
            return;
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
    }

    /// Waits until no peer is about to copy into a buffer of ours: it becomes its owner's. A peer that copies is done
    /// after some microseconds, or gone.
    pub(super) fn end_shares(&mut self) {
        while !self.engine.end_shares() {
            spin_hint();
            self.count_turn(1);
        }
    }

    /// Waits until every pending send has left, or its peer is gone.
    pub(super) fn flush_sends(&mut self) -> Result<(), Error> {
        let limit = Duration::from_secs(self.config.timeout_seconds.into());
        let deadline = Instant::now() + limit;
        let mut spins = 0;
        while self.engine.sends_pending() || self.engine.handlers_mut().has_replies() {
            let packets = self.engine.progress().packets;
            if self.count_turn(packets) && Instant::now() >= deadline {
                return Err(Error::Timeout(limit));
            }
            if packets > 0 {
                spins = 0;
                continue;
            }
            spin_hint();
            spins += 1;
            if spins >= self.waiter.spin {
                spins = 0;
                self.look();
                if Instant::now() >= deadline {
                    return Err(Error::Timeout(limit));
                }
                self.sleep(Some(deadline));
            }
        }
        Ok(())
    }
}

//! Events: of the connection manager, of the device, and of time.

use std::time::Duration;

use nemesia_core::port::memory::{ConnectError, Event, LostError, Private};
use rdma_core_sys as raw;

use super::{SetUp, VerbsPort};
use crate::cm::CmStage;
use crate::verbs::code::pair_error;
use crate::verbs::device::AsyncEvent;

/// The shortest and the longest interval at which kernel and device are queried for events. A query costs system calls.
const MOST_OFTEN: Duration = Duration::from_micros(50);
const LEAST_OFTEN: Duration = Duration::from_millis(1);
/// The number of calls with one and the same time after which they are queried nevertheless.
const MOST_CALLS: u32 = 1024;
/// How long the device's port may be down before it counts as failed: cables are moved, and links retrained.
const PATIENCE: Duration = Duration::from_secs(1);

/// When kernel and device are queried next. The interval doubles while they report nothing, so that a step of a
/// connection's set-up is noticed after at most twice its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queries {
    last: Duration,
    interval: Duration,
    /// The time at the last call, and the number of calls with it.
    seen: (Duration, u32),
}

impl Queries {
    /// The first call makes a query.
    pub(super) const fn new() -> Self {
        Self { last: Duration::ZERO, interval: MOST_OFTEN, seen: (Duration::ZERO, MOST_CALLS) }
    }

    /// Returns whether a query is due: after the interval, or after so many calls while time stands still.
    fn are_due(&mut self, now: Duration) -> bool {
        let (seen, calls) = &mut self.seen;
        if now != *seen {
            (*seen, *calls) = (now, 0);
        }
        *calls += 1;
        let due = now >= self.last + self.interval || *calls > MOST_CALLS;
        if due {
            (self.last, *calls) = (now, 0);
            self.interval = (2 * self.interval).min(LEAST_OFTEN);
        }
        due
    }

    /// Makes queries frequent again, because something was reported, or is expected soon.
    pub(super) const fn hasten(&mut self) {
        self.interval = MOST_OFTEN;
    }
}

impl VerbsPort {
    pub(super) fn next_event(&mut self, now: Duration) -> Option<Event> {
        self.now = self.now.max(now);
        if self.events.is_empty() && self.queries.are_due(self.now) {
            self.hear_device();
            if !self.suspects.is_empty() {
                self.end_suspects();
            }
            self.hear_manager();
            self.hear_datagrams();
            self.look_at_time();
            self.probe_idle();
        }
        self.events.pop_front().or_else(|| self.next_closed())
    }

    /// Waits for the next step of a connection that is being made, until this time at the latest.
    pub(super) fn expect_by(&mut self, deadline: Duration) {
        self.alarm = self.alarm.min(deadline);
        self.queries.hasten();
    }

    /// Returns a closed connection whose completions were all polled.
    fn next_closed(&mut self) -> Option<Event> {
        if self.closing == 0 {
            return None;
        }
        let done = self.links.which(|link| link.closing && link.unpolled == 0);
        let connection = *done.first()?;
        self.links.remove(connection);
        self.closing -= 1;
        Some(Event::Closed { connection })
    }

    fn look_at_time(&mut self) {
        let now = self.now;
        if self.alarm <= now {
            for connection in self.links.which(|link| link.is_unready() && link.deadline <= now) {
                self.fail_link(connection, ConnectError::TimedOut, Private::EMPTY);
            }
            self.alarm = Duration::MAX;
            let alarm = &mut self.alarm;
            self.links
                .each(|_, link| *alarm = if link.is_unready() { link.deadline.min(*alarm) } else { *alarm });
        }
        if let SetUp::Manager(manager) = &mut self.set_up {
            manager.leaving.retain(|(_, _, until)| *until > now);
        }
        if let Some((since, code)) = self.down
            && now >= since + PATIENCE
        {
            self.fail_port(code);
        }
    }

    /// Handles the events of the device.
    pub(super) fn hear_device(&mut self) {
        if self.failed {
            return;
        }
        for _ in 0..32 {
            let Some(event) = self.device.next_event() else { return };
            self.queries.hasten();
            match event {
                AsyncEvent::Pair { number, code } => {
                    let Some(cause) = pair_error(code) else { continue };
                    let index = self.by_pair.get(&number).copied();
                    if let Some((_, link)) = index.and_then(|index| self.links.at(index)) {
                        link.cause.get_or_insert(cause);
                        self.suspects.extend(index);
                    }
                }
                AsyncEvent::Port { port, code } if port == u32::from(self.selection.port) => match code {
                    raw::IBV_EVENT_PORT_ERR => self.down = self.down.or(Some((self.now, code))),
                    raw::IBV_EVENT_PORT_ACTIVE => self.down = None,
                    _ => {}
                },
                AsyncEvent::Device { code } => return self.fail_port(code),
                AsyncEvent::Port { .. } | AsyncEvent::Other { .. } => {}
            }
        }
    }

    /// Ends the port. Identifiers are freed at once, because the kernel waits for that, and for the port to be
    /// dropped, before it releases a device.
    pub(super) fn fail_port(&mut self, code: u32) {
        if std::mem::replace(&mut self.failed, true) {
            return;
        }
        for connection in self.links.which(|link| link.stage != CmStage::Over) {
            // A connection that is not up yet fails.
            self.lose(connection, LostError::Port);
        }
        self.links.each(|_, link| link.id = None);
        if let SetUp::Manager(manager) = &mut self.set_up {
            manager.leaving.clear();
            manager.listener = None;
        }
        self.events.push_back(Event::PortFailed { code });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of queries in so many calls, between which this time passes.
    fn count(queries: &mut Queries, now: &mut Duration, calls: u32, step: Duration) -> usize {
        let mut made = 0;
        for _ in 0..calls {
            *now += step;
            made += usize::from(queries.are_due(*now));
        }
        made
    }

    #[test]
    fn queries_become_rare_while_nothing_happens_and_frequent_again_when_something_does() {
        let (mut queries, mut now) = (Queries::new(), Duration::ZERO);
        let step = Duration::from_micros(1);
        assert!((5..15).contains(&count(&mut queries, &mut now, 10_000, step)), "from 50 us to 1 ms");
        assert_eq!(count(&mut queries, &mut now, 100_000, step), 100);
        queries.hasten();
        assert_eq!(count(&mut queries, &mut now, 50, step), 1);
    }

    #[test]
    fn time_that_stands_still_is_no_reason_to_wait_for_ever() {
        let (mut queries, mut now) = (Queries::new(), Duration::ZERO);
        assert_eq!(count(&mut queries, &mut now, 1, Duration::ZERO), 1, "the first call");
        assert_eq!(count(&mut queries, &mut now, 4 * (MOST_CALLS + 1), Duration::ZERO), 4);
    }
}

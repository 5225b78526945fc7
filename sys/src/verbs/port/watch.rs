//! Events: of the connection manager, of the device, and of time.

use std::time::Duration;

use nemesia_core::port::memory::{ConnectError, Event, LostError, Private};
use rdma_core_sys as raw;

use super::{SetUp, VerbsPort};
use crate::cm::CmStage;
use crate::verbs::code::pair_error;
use crate::verbs::device::AsyncEvent;

/// The interval at which kernel and device are queried for events, which are rare.
const RARELY: Duration = Duration::from_micros(50);
/// How long the device's port may be down before it counts as failed: cables are moved, and links retrained.
const PATIENCE: Duration = Duration::from_secs(1);

impl VerbsPort {
    pub(super) fn next_event(&mut self, now: Duration) -> Option<Event> {
        self.now = self.now.max(now);
        if self.events.is_empty() && self.is_time_to_ask() {
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

    /// Returns whether to query. A query costs system calls, so it happens every [`RARELY`], or every so many
    /// calls if time stands still.
    fn is_time_to_ask(&mut self) -> bool {
        let (last, skipped) = &mut self.heard;
        if self.now < *last + RARELY && *skipped < 64 {
            *skipped += 1;
            return false;
        }
        (*last, *skipped) = (self.now, 0);
        true
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
            match self.device.next_event() {
                None => return,
                Some(AsyncEvent::Pair { number, code }) => {
                    let Some(cause) = pair_error(code) else { continue };
                    let index = self.by_pair.get(&number).copied();
                    if let Some((_, link)) = index.and_then(|index| self.links.at(index)) {
                        link.cause.get_or_insert(cause);
                        self.suspects.extend(index);
                    }
                }
                Some(AsyncEvent::Port { port, code }) if port == u32::from(self.selection.port) => match code
                {
                    raw::IBV_EVENT_PORT_ERR => self.down = self.down.or(Some((self.now, code))),
                    raw::IBV_EVENT_PORT_ACTIVE => self.down = None,
                    _ => {}
                },
                Some(AsyncEvent::Device { code }) => return self.fail_port(code),
                Some(AsyncEvent::Port { .. } | AsyncEvent::Other { .. }) => {}
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

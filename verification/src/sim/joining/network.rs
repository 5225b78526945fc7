//! A simulated network that loses, repeats, delays and reorders datagrams.

use std::collections::BTreeMap;
use std::time::Duration;

use nemesia_core::joining::{JOIN_BYTES, JoinKind, JoinMessage, JoinPlace};

use crate::rng::Rng;
use crate::tally::{Event, Tally};

/// The network loses at most so many equal datagrams in a row.
const MOST_LOST: u8 = 6;
/// The longest delay of a datagram that is late, in milliseconds.
const LATE: usize = 5000;
/// One datagram in so many is late.
const LATE_ONE_IN: usize = 60;
/// One request or confirmation in so many is followed by a forged datagram.
const FORGED_ONE_IN: usize = 20;

/// The network.
#[derive(Debug)]
pub(super) struct JoinNetwork {
    rng: Rng,
    /// The share of datagrams that are lost, in percent.
    loss: usize,
    /// One datagram in so many is repeated; 0: none.
    repeats: usize,
    /// The longest delay of most datagrams, in microseconds.
    delay: usize,
    /// How many equal datagrams were lost in a row.
    lost: BTreeMap<(u8, u64, u64), u8>,
    /// The datagrams on their way, by the time of arrival and a serial number.
    flights: BTreeMap<(Duration, u64), (JoinPlace, [u8; JOIN_BYTES])>,
    sent: u64,
}

impl JoinNetwork {
    pub(super) fn new(mut rng: Rng) -> Self {
        let (loss, repeats) = (rng.pick(&[0, 5, 15, 30]), rng.pick(&[0, 4, 20]));
        let delay = rng.pick(&[10, 1000, 8000, 60_000]);
        let (lost, flights) = (BTreeMap::new(), BTreeMap::new());
        Self { rng, loss, repeats, delay, lost, flights, sent: 0 }
    }

    /// Sends a datagram to a place.
    pub(super) fn send(&mut self, now: Duration, to: JoinPlace, message: &JoinMessage, tally: &mut Tally) {
        if self.loses(message) {
            tally.count(Event::JoinDropped);
        } else {
            self.fly(now, to, message);
        }
        if self.rng.one_in(self.repeats) {
            tally.count(Event::JoinRepeated);
            self.fly(now, to, message);
        }
        if let Some(forged) = self.forge(message) {
            tally.count(Event::JoinForged);
            self.fly(now, to, &forged);
        }
    }

    /// Returns a forged datagram to the destination of this datagram. The receiver must not act on it.
    fn forge(&mut self, message: &JoinMessage) -> Option<JoinMessage> {
        if !matches!(message.kind, JoinKind::Request | JoinKind::Confirm) || !self.rng.one_in(FORGED_ONE_IN) {
            return None;
        }
        if message.kind == JoinKind::Request {
            // The other port knows the number of the sender, and not that of the receiver.
            let kinds = [JoinKind::Accept, JoinKind::Confirm, JoinKind::Refuse, JoinKind::Ended];
            return Some(JoinMessage { kind: self.rng.pick(&kinds), ..*message });
        }
        let kinds = [JoinKind::Accept, JoinKind::Confirm, JoinKind::Refuse, JoinKind::End];
        Some(JoinMessage { kind: self.rng.pick(&kinds), from: self.rng.next().max(1), ..*message })
    }

    fn loses(&mut self, message: &JoinMessage) -> bool {
        let lost = self.lost.entry((message.kind as u8, message.to, message.from)).or_default();
        let is_lost = self.rng.below(100) < self.loss && *lost < MOST_LOST;
        *lost = if is_lost { *lost + 1 } else { 0 };
        is_lost
    }

    fn fly(&mut self, now: Duration, to: JoinPlace, message: &JoinMessage) {
        let delay = if self.rng.one_in(LATE_ONE_IN) {
            Duration::from_millis(self.rng.below(LATE) as u64)
        } else {
            Duration::from_micros(self.rng.below(self.delay) as u64)
        };
        self.sent += 1;
        self.flights.insert((now + delay, self.sent), (to, message.to_bytes()));
    }

    /// Returns when the next datagram arrives.
    pub(super) fn next(&self) -> Duration {
        self.flights.first_key_value().map_or(Duration::MAX, |((at, _), _)| *at)
    }

    /// Returns the next datagram, and the place to which it was sent.
    pub(super) fn arrive(&mut self) -> Option<(JoinPlace, [u8; JOIN_BYTES])> {
        self.flights.pop_first().map(|(_, flight)| flight)
    }
}

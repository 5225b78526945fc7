//! Peers that take as many receives as they can.

use core::time::Duration;

use super::script::{TestChannel, ask, channel, enter, hello, packet, settle};
use super::{ChannelEvent, OWN};
use crate::flow::posted::{FIRST, LEAST, Stamp};
use crate::port::memory::Connection;
use crate::port::{PacketPort as _, PeerId, Polled};
use crate::wire::channel::{ChannelRefusal, HEADER_BYTES, Header};

/// Number of rails, and of other ranks.
const OTHERS: u32 = 3;

/// The other end of a connection.
struct GreedySender {
    peer: PeerId,
    connection: Connection,
    /// Number of packets sent, and of those with content.
    sent: u32,
    numbered: u32,
}

impl GreedySender {
    fn enter(channel: &mut TestChannel, peer: PeerId) -> Self {
        Self { peer, connection: enter(channel, &hello(peer, 0)), sent: 0, numbered: 0 }
    }

    /// Returns the last report that the sender received, and the number of packets sent to it.
    fn heard(&self, channel: &TestChannel) -> (Stamp, u32) {
        let mine = channel.port().sent.iter().filter(|(of, ..)| *of == self.connection);
        let mut heard = (Stamp { posted: FIRST.wrapping_add(LEAST), target: LEAST }, 0);
        for (_, _, bytes) in mine {
            let header = Header::decode(bytes.first_chunk::<HEADER_BYTES>().unwrap()).unwrap();
            heard = (header.stamp, heard.1 + 1);
        }
        heard
    }

    fn credits(&self, channel: &TestChannel) -> u32 {
        self.heard(channel).0.posted.wrapping_sub(FIRST.wrapping_add(self.sent))
    }

    /// Sends as many packets as the credits allow, and lets the channel take them. The first packet arrives
    /// last, so that none is taken and returned before all have arrived.
    fn burst(&mut self, channel: &mut TestChannel) {
        let (_, posted) = self.heard(channel);
        let count = self.credits(channel).saturating_sub(1);
        for at in 0..count {
            let number = self.numbered + (at + 1) % count;
            channel.port_mut().arrive(self.connection, &packet(number, posted, b"more"));
        }
        (self.sent, self.numbered) = (self.sent + count, self.numbered + count);
        loop {
            match channel.poll() {
                Polled::Packet(arrival) => channel.release(arrival),
                Polled::Idle => return,
                Polled::Fault(fault) => panic!("{fault}"),
            }
        }
    }

    /// Returns the credits that were recalled.
    fn give_up(&mut self, channel: &mut TestChannel) {
        while self.credits(channel) > self.heard(channel).0.target {
            let (_, posted) = self.heard(channel);
            let stamp = Stamp { posted: FIRST.wrapping_add(LEAST + posted), target: LEAST };
            let bytes = Header { packet: None, stamp, units: 0, waited: false, slots: 0 }.encode();
            channel.port_mut().arrive(self.connection, &bytes);
            self.sent += 1;
            settle(channel);
        }
    }

    fn receives(&self, channel: &TestChannel) -> u32 {
        channel.report(self.peer).receives
    }
}

/// Returns a channel with `buffers` buffers, and one peer that has taken all that it can get.
fn with_hog(buffers: u32) -> (TestChannel, GreedySender) {
    let mut channel = channel(OTHERS as usize + 1, 1, buffers as usize);
    let mut hog = GreedySender::enter(&mut channel, 0);
    (0..50).for_each(|_| hog.burst(&mut channel));
    (channel, hog)
}

#[test]
fn the_others_are_accepted_whatever_one_peer_takes() {
    for buffers in OTHERS * OWN..OTHERS * OWN + 80 {
        let (mut channel, mut hog) = with_hog(buffers);
        let all = buffers - OTHERS * OWN;
        assert!(hog.receives(&channel) >= LEAST + (all / 2).min(OWN), "{buffers} buffers");
        for peer in [2, 3] {
            // At first too few buffers may be free. A peer that tries again is accepted, although the first
            // peer continues as before.
            let mut tries = 0;
            while channel.report(peer).ready == 0 {
                let claimed = Some(peer);
                let connection = ask(&mut channel, &hello(peer, 0));
                if settle(&mut channel)
                    == [ChannelEvent::Refused { claimed, refusal: ChannelRefusal::Buffers }]
                {
                    tries += 1;
                    assert!(tries < 20, "{buffers} buffers: rank {peer} is not accepted");
                    hog.burst(&mut channel);
                    continue;
                }
                let private = crate::port::memory::Private::EMPTY;
                let event = crate::port::memory::Event::Established { connection, private };
                channel.port_mut().events.push_back(event);
                settle(&mut channel);
            }
            // If there are enough buffers for all, no peer has to try again.
            assert!(tries == 0 || buffers < 2 * OTHERS * OWN, "{buffers} buffers");
        }
        assert!(channel.buffers.pool().is_sound());
    }
}

#[test]
fn a_second_peer_gets_a_share_although_the_first_continues() {
    let (mut channel, mut hog) = with_hog(100);
    let before = hog.receives(&channel);
    let mut second = GreedySender::enter(&mut channel, 2);
    for _ in 0..50 {
        second.burst(&mut channel);
        hog.burst(&mut channel);
    }
    let (first, second) = (hog.receives(&channel), second.receives(&channel));
    assert!(second > 2 * LEAST && first <= 2 * second + 1, "{first} and {second}, {before} before");
    assert!(channel.buffers.pool().is_sound());
}

#[test]
fn a_second_peer_grows_when_the_first_has_shrunk() {
    let (mut channel, mut hog) = with_hog(60);
    let before = hog.receives(&channel);
    let mut second = GreedySender::enter(&mut channel, 2);
    let mut most = 0;
    for turn in 0..50 {
        second.burst(&mut channel);
        if turn == 10 {
            most = second.receives(&channel);
        }
        if turn >= 10 {
            hog.give_up(&mut channel);
        }
    }
    let (first, second) = (hog.receives(&channel), second.receives(&channel));
    assert!(first < before && second > most, "{before} before, then {first}; {most}, then {second}");
    assert!(first >= LEAST);
}

#[test]
fn the_receives_that_a_peer_never_returns_are_at_most_its_share() {
    let (mut channel, hog) = with_hog(100);
    let spare = 100 - OTHERS * OWN;
    let first = hog.receives(&channel);
    assert!(first <= LEAST + spare / 2 + 1, "{first}");
    // The channel has recalled buffers of the first peer, which does not return them.
    let mut second = GreedySender::enter(&mut channel, 2);
    (0..50).for_each(|_| second.burst(&mut channel));
    assert_eq!(hog.receives(&channel), first);
    assert!(second.receives(&channel) >= LEAST + spare / 4, "{}", second.receives(&channel));
    let third = ask(&mut channel, &hello(3, 0));
    assert_eq!(channel.poll_event(Duration::ZERO), None, "{third:?} was refused");
}

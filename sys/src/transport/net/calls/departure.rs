//! Departures: a process that leaves tells it to the ranks of its world on other machines that it has not met.
//!
//! Nothing is asked of the other process: its kernel takes the connection and keeps the message until the process
//! looks.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nemesia_core::peers::PeerAddress;
use nemesia_core::port::placement::ByteStream as _;
use nemesia_core::wire::call::{CallDeparture, CallMessage};
use nemesia_core::wire::channel::CloseReason;
use nemesia_core::wire::hello::Proof;

use super::socket::CallSocket;
use super::{MOST_HEARD, NetCalls};

/// The most connections for departures at the same time.
const AT_ONCE: usize = 256;
/// The first and the longest pause between two looks at the connections.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(5)];

/// A connection for one departure.
#[derive(Debug)]
struct DepartureSocket {
    socket: CallSocket,
    message: CallMessage,
    sent: bool,
}

impl DepartureSocket {
    /// Makes progress. Returns whether nothing is left to do: the message has arrived in the other kernel, or never
    /// will.
    fn is_done(&mut self) -> bool {
        if !self.sent {
            match self.socket.stream_mut().is_connected() {
                None => return false,
                Some(Err(_)) => return true,
                Some(Ok(())) => {}
            }
            if !self.socket.send(&self.message) {
                return true;
            }
            self.socket.stream_mut().finish();
            self.sent = true;
        }
        self.socket.stream_mut().unconfirmed() == 0
    }
}

impl NetCalls {
    /// Returns the message that this process leaves, for the process with this address.
    pub(super) fn departure(&self, to: &PeerAddress, reason: CloseReason) -> CallMessage {
        let mut departure = CallDeparture { address: *self.own.bytes(), reason, proof: Proof::default() };
        departure.proof = self.key.departure_proof(&departure.proven(), to.bytes());
        CallMessage::Departure(departure)
    }

    /// Announces to these processes, which take calls at these places, that this one leaves. Returns when their kernels
    /// have the messages, at the latest at the deadline.
    pub(crate) fn announce_leave(
        &self,
        mut to: impl Iterator<Item = (PeerAddress, SocketAddr)>,
        finished: bool,
        deadline: Instant,
    ) {
        let reason = if finished { CloseReason::Finished } else { CloseReason::Dropped };
        let (mut sockets, [mut pause, longest]) = (Vec::new(), PAUSES);
        loop {
            let room = AT_ONCE - sockets.len();
            sockets.extend(to.by_ref().take(room).filter_map(|(address, at)| {
                // A process that cannot be reached sees a death when it calls.
                let socket = CallSocket::connect(at, self.sockets).ok()?;
                Some(DepartureSocket { socket, message: self.departure(&address, reason), sent: false })
            }));
            let before = sockets.len();
            sockets.retain_mut(|socket| !socket.is_done());
            if before == 0 || Instant::now() >= deadline {
                return;
            }
            if sockets.len() == before {
                std::thread::sleep(pause);
                pause = longest.min(2 * pause);
            }
        }
    }

    /// Records the departure of a process, if it is genuine.
    pub(super) fn hear_departure(&mut self, departure: &CallDeparture) {
        let is_genuine = self.key.accepts_departure(&departure.proven(), self.own.bytes(), &departure.proof);
        if is_genuine && self.leavers.len() < MOST_HEARD {
            self.leavers.push((PeerAddress::from_bytes(departure.address), departure.reason));
        }
    }

    /// Returns the next process that has announced that it leaves, and whether it has finished. There was no connection
    /// with it, as far as it knows.
    pub(crate) fn next_leaver(&mut self) -> Option<(PeerAddress, bool)> {
        self.leavers.pop().map(|(address, reason)| (address, reason == CloseReason::Finished))
    }

    /// Returns whether connections of others may be pending that were not accepted.
    pub(crate) const fn has_more(&self) -> bool {
        self.more
    }
}

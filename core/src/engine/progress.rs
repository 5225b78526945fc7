//! Progress: one step takes one packet from the port and passes it to its protocol, or continues the pending work of
//! every peer. The pending work is in the queues of the peers ([`PeerQueue`](super::peer::PeerQueue)).
//!
//! | file | contents |
//! |---|---|
//! | `progress.rs` | steps, and the delivery of packets |
//! | `progress/work.rs` | pending work of a peer: which protocol continues it |
#![forbid(unsafe_code)]

mod work;

use super::state::{PACKETS_A_TURN, Progress};
use super::{Engine, Storage};
#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::{Arrival, PeerFault, PeerId, Polled, Port, PortFault};
use crate::trace::Recorder as _;
use crate::wire::Kind;

impl<P: Port, S: Storage> Engine<P, S> {
    /// Delivers packets that have arrived and continues pending work. Does a bounded amount of work and never
    /// blocks.
    #[inline]
    pub fn progress(&mut self) -> Progress {
        let happened = |done: &Progress| *done != Progress::default();
        self.traced(("progress", 0), |engine| engine.progress_now(|_| false), happened)
    }

    /// As [`Engine::progress`], for a caller that takes completions next: it stops early if there is one, and no
    /// receive is posted. The next messages then stay where they are until the caller has seen this one. It may post a
    /// receive for them, and they need not be stored as unexpected messages.
    #[inline]
    pub fn progress_to_completions(&mut self) -> Progress {
        let happened = |done: &Progress| *done != Progress::default();
        let is_enough = |engine: &Self| engine.has_completions() && engine.awaits_no_message();
        self.traced(("progress", 0), |engine| engine.progress_now(is_enough), happened)
    }

    #[inline(always)]
    fn progress_now(&mut self, is_enough: impl Fn(&Self) -> bool) -> Progress {
        let mut done = Progress::default();
        while done.packets < PACKETS_A_TURN {
            let step = self.step();
            done.packets += step.packets;
            done.failed = step.failed.or(done.failed);
            if step == Progress::default() {
                return done;
            }
            if is_enough(self) {
                break;
            }
        }
        // Packets may arrive without end; pending work must progress nevertheless.
        if self.has_work() {
            let work = self.work();
            done.packets += work.packets;
            done.failed = work.failed.or(done.failed);
        }
        done
    }

    /// Delivers one packet, or continues pending work if no packet has arrived. For a caller that waits for
    /// one request and wants to test it after each packet.
    #[inline(always)]
    pub fn step(&mut self) -> Progress {
        match self.port.poll() {
            Polled::Idle if self.has_work() => self.work(),
            polled => self.settle(polled),
        }
    }

    /// Processes the result of a poll.
    #[inline(always)]
    fn settle(&mut self, polled: Polled<P::Token>) -> Progress {
        match polled {
            Polled::Idle => Progress::default(),
            Polled::Packet(arrival) => {
                let peer = arrival.peer;
                self.trace.enter(arrival.envelope.kind.name(), arrival.len as u64);
                let delivered = self.deliver(arrival);
                self.trace.leave(true);
                match delivered {
                    Ok(()) => Progress { packets: 1, failed: None },
                    Err(fault) => self.step_failed(PeerFault { peer, fault }),
                }
            }
            Polled::Fault(fault) => self.step_failed(fault),
        }
    }

    /// Delivers the remaining packets of a failed peer. Returns `true` when no valid packet is left; `false`
    /// after [`PACKETS_A_TURN`] packets: call again.
    #[cold]
    pub fn drain(&mut self, peer: PeerId) -> bool {
        for _ in 0..PACKETS_A_TURN {
            let polled = self.port.poll_peer(peer);
            if self.settle(polled).packets == 0 {
                return true;
            }
        }
        false
    }

    /// Delivers a packet other than an eager message to its protocol.
    #[inline(never)]
    pub(in crate::engine) fn deliver_other(&mut self, arrival: Arrival<P::Token>) -> Result<(), PortFault> {
        let kind = arrival.envelope.kind;
        #[cfg(nemesia_injected_fault)]
        let kind =
            if kind == Kind::Data && injected(InjectedFault::ForgetCount) { Kind::Eager } else { kind };
        self.peer(arrival.peer).tally.received[kind.index()].add(arrival.len);
        match arrival.envelope.kind {
            Kind::Eager | Kind::Rts => self.deliver_rts(arrival),
            Kind::Cts | Kind::Data | Kind::Fin => {
                let delivered = self.deliver_answer(&arrival);
                self.port.release(arrival);
                delivered
            }
            Kind::EagerImmediate | Kind::EagerAcknowledged | Kind::EagerBoth => {
                self.deliver_prefixed(arrival)
            }
            Kind::Active => self.deliver_active(arrival),
            Kind::Rma => {
                let delivered = self.deliver_request(&arrival);
                self.port.release(arrival);
                delivered
            }
            Kind::RmaReply => {
                let delivered = self.deliver_reply(&arrival);
                self.port.release(arrival);
                delivered
            }
        }
    }
}

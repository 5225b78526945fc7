//! The large message transfer interface (paper 4, section 3.2): a message is announced by an RTS, matched, and then moved by
//! one of several protocols. Any number may be in flight, in both directions.
//!
//! | protocol | file | bytes move |
//! |---|---|---|
//! | pull | `lmt/pull.rs` | in one copy: the receiver reads the sender's memory ([`MessagePort::pull`]); a sender that waits writes the receiver's at the same time, from the other end |
//! | stream | `lmt/stream.rs` | in packets, copied in and out at the same time by both sides (double buffering) |
//!
//! Which of the two is faster depends on the machine, on the cores of both processes and on what the sender does: the receiver
//! learns it for each peer and size (`lmt/choice.rs`), where the port has a clock ([`MessagePort::ticks`]). Else it pulls.
//!
//! Lists: a message that is not in one place is streamed, gathered into each packet; a receiver whose room is not in one place
//! pulls run by run, or streams when they are small. Neither shares its copy.
//!
//! A receiver that can't pull, or can't any more in the middle of a message, clears the rest to be streamed: nothing is
//! lost and nothing is moved twice.
#![forbid(unsafe_code)]

mod choice;
mod offer;
mod pull;
mod stream;

pub(super) use choice::Choices;
pub(super) use pull::{Pull, is_worth_pulling, may_be_shared};
pub(super) use stream::Stream;

use super::{Engine, Storage};
use crate::port::{Arrival, MessagePort, PeerFault, PeerId};
use crate::wire::rendezvous::Cts;

/// The seven functions of the paper, which each protocol fills as far as it has something of its own to do. A request is
/// named by its slot; each function finds it in the state and the queue in which the one before left it.
pub(super) trait Transfer<P: MessagePort, S: Storage> {
    /// Sender: announces the message (`initiate_lmt`). False when there is no room or credit for the RTS now.
    fn initiate(engine: &mut Engine<P, S>, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        engine.offer(to, index)
    }

    /// Receiver: a receive has matched the message (`start_recv_lmt`).
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32);

    /// Sender: the receiver has answered with CTS (`start_send_lmt`).
    fn start_send(engine: &mut Engine<P, S>, to: PeerId, index: u32, cts: &Cts) {
        let _ = (engine, to, index, cts);
    }

    /// Receiver: a packet of the transfer has come (`handle_cookie`). False when an honest peer would not have sent it.
    fn handle_cookie(engine: &mut Engine<P, S>, index: u32, arrival: &Arrival<P::Token>) -> bool {
        let _ = (engine, index, arrival);
        false
    }

    /// Either side: moves the next bytes (`lmt_progress`). False when there is no room.
    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault>;

    /// Sender: the receiver has all that it wants, or it is on the way (`done_send`).
    fn done_send(engine: &mut Engine<P, S>, to: PeerId, index: u32) {
        engine.complete_send(to, index);
    }

    /// Receiver: all that it wanted is here (`done_recv`).
    fn done_receive(engine: &mut Engine<P, S>, index: u32);
}

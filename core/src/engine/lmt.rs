//! The large message transfer interface (paper 4, section 3.2). An RTS announces a message; the receiver matches it;
//! one of several protocols then moves the data. Any number of transfers may be in progress, in both directions.
//!
//! - **Pull**: one copy. The receiver gets the bytes from the sender's memory ([`RemoteAccess`]), at once or with
//!   several accesses under way. A waiting sender may write into the receiver's memory at the same time, from the end
//!   of the message.
//! - **Put**: one copy. The receiver exposes its buffer, and the sender writes there. A packet, or the last write
//!   itself, reports the end.
//! - **Stream**: packets, which the sender fills while the receiver empties others (double buffering). If the
//!   receiver has granted credit for the whole message, and it is short enough, the packets may follow the RTS unasked.
//!
//! | state of a send | queue of the peer | next |
//! |---|---|---|
//! | `Sending` | `Pending` | `Offered`; `Streaming` if the bytes follow unasked |
//! | `Offered`: the RTS was sent | `Offered` | `Done` by a FIN; `Streaming` by a CTS |
//! | `Streaming`: the bytes are being sent or put | `Streaming` | `Done` |
//!
//! | phase of a receive (`Receiving`) | queue of the peer | next |
//! |---|---|---|
//! | `Pull` | `Pulling` | `Await`, `Assist`, `Lost`; `Finishing` when all bytes are there |
//! | `Await`: every access has begun | `Incoming` | `Pull`, `Lost` |
//! | `Assist`: the sender copies too | `Pulling` | `Broken`; `Finishing` |
//! | `Broken`, `Lost`: this process cannot read | `Pulling`, then `Answers` | `Stream` by the CTS |
//! | `Stream` | `Incoming` | `Done` |
//! | (`Finishing`): the FIN is to be sent | `Answers` | `Done` |
//!
//! | file | contents |
//! |---|---|
//! | `lmt/offer.rs` | the RTS; the CTS and the FIN, which answer it |
//! | `lmt/select.rs` | the adaptive selector of the protocol |
//! | `lmt/get.rs` | pull (paper 1: zero copy) |
//! | `lmt/assist.rs` | sender-assisted copy, a part of pull |
//! | `lmt/put.rs` | put (paper 1: rendezvous by RDMA write) |
//! | `lmt/stream.rs` | stream (paper 4: double buffering) |
//! | `lmt/unasked.rs` | stream without a question |
//! | `lmt/ask.rs` | whether a message that may leave unasked does so |
//!
//! The faster protocol depends on the machine, on the cores of both processes and on the sender's activity. If the
//! port has a clock ([`PacketPort::ticks`]), the receiver learns the fastest protocol for each peer and size, among
//! those that the port offers ([`RemoteAccess::rendezvous`]). Without a clock, the receiver pulls if it can, and
//! else requests puts.
//!
//! Lists: if at most [`FIRST_BYTES`](super::state::FIRST_BYTES) come before the last run of a message, they travel with
//! the RTS, and the rest is pulled as if it were contiguous. A list of a few long runs is described as a whole
//! ([`ListedBytes`](crate::wire::listed::ListedBytes)), and the receiver reads several runs at a time. Any other list
//! is streamed, and gathered into each packet. A receiver whose buffer is not contiguous fills several runs at a time,
//! or streams if the runs are short.
//!
//! If a receiver cannot pull, or can no longer pull in the middle of a message, it requests the remaining bytes as a
//! stream. No byte is lost.
//!
//! [`RemoteAccess`]: crate::port::RemoteAccess
//! [`PacketPort::ticks`]: crate::port::PacketPort::ticks
#![forbid(unsafe_code)]

mod ask;
mod assist;
mod get;
mod offer;
mod put;
mod select;
mod stream;
#[cfg(test)]
mod tests;
mod unasked;

pub(super) use get::{Pull, is_worth_pulling};
pub use select::PeerSelection;
pub(super) use select::ProtocolSelections;
pub(super) use stream::{Stream, send_part};

use super::{Engine, Storage};
use crate::port::{Arrival, PeerFault, PeerId, Port, PortFault};
use crate::wire::rendezvous::Cts;

/// The seven functions of the paper. Each protocol implements those in which it differs from the others. The slot
/// number names a request. Each function expects the request in the state and queue in which the preceding function
/// left it.
pub(super) trait Transfer<P: Port, S: Storage> {
    /// Sender: announces the message (`initiate_lmt`). Returns `false` if there is no space or credit for the RTS now.
    fn initiate(engine: &mut Engine<P, S>, to: PeerId, index: u32) -> Result<bool, PeerFault> {
        engine.offer(to, index)
    }

    /// Receiver: starts the transfer after a receive has matched the message (`start_recv_lmt`).
    fn start_receive(engine: &mut Engine<P, S>, from: PeerId, index: u32);

    /// Sender: starts sending after the receiver has answered with CTS (`start_send_lmt`).
    fn start_send(engine: &mut Engine<P, S>, to: PeerId, index: u32, cts: &Cts) {
        let _ = (engine, to, index, cts);
    }

    /// Receiver: handles a packet of the transfer (`handle_cookie`).
    ///
    /// # Errors
    /// The packet violates the protocol, or its sender has taken it back.
    fn handle_cookie(
        engine: &mut Engine<P, S>,
        index: u32,
        arrival: &Arrival<P::Token>,
    ) -> Result<(), PortFault> {
        let _ = (engine, index);
        Err(PortFault::Protocol { kind: arrival.envelope.kind })
    }

    /// Either side: moves the next bytes (`lmt_progress`). Returns `false` if there is no space.
    fn progress(engine: &mut Engine<P, S>, peer: PeerId, index: u32) -> Result<bool, PeerFault>;

    /// Sender: completes the send; the receiver has all bytes that it requested, or they are on the way (`done_send`).
    fn done_send(engine: &mut Engine<P, S>, to: PeerId, index: u32) {
        engine.complete_send(to, index);
    }

    /// Receiver: completes the receive; all requested bytes have arrived (`done_recv`).
    fn done_receive(engine: &mut Engine<P, S>, index: u32);
}

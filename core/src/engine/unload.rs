//! Copying packets out. A peer that has ended the connection may have taken its packets back
//! ([`PacketPort::read`](crate::port::PacketPort::read)): what was read of them counts as not received.
#![forbid(unsafe_code)]

use crate::payload::RecvBuf;
use crate::port::{Arrival, Port, PortFault};
use crate::wire::channel::CloseReason;

/// The fault of a peer that has ended the connection and has taken its packets back.
pub(super) const TAKEN_BACK: PortFault = PortFault::Left(CloseReason::Finished);

/// Reads a part of a packet.
#[inline(always)]
pub(super) fn read<P: Port>(
    port: &P,
    arrival: &Arrival<P::Token>,
    at: usize,
    to: &mut [u8],
) -> Result<(), PortFault> {
    if port.read(arrival, at, to) { Ok(()) } else { Err(TAKEN_BACK) }
}

/// Copies bytes of a packet, from `skip` on, into `len` bytes of a buffer from `at` on, as far as they fit. Returns
/// `false` if the peer has taken the packet back.
#[inline(always)]
pub(super) fn unload<P: Port>(
    port: &P,
    arrival: &Arrival<P::Token>,
    skip: usize,
    buf: &mut RecvBuf,
    (at, len): (usize, usize),
) -> bool {
    match buf.whole(at, len) {
        Some(to) => port.read(arrival, skip, to),
        None => scatter(port, *arrival, skip, buf, (at, len)),
    }
}

/// The arrival is passed by value, so that it stays in registers on the critical path.
#[cold]
#[inline(never)]
fn scatter<P: Port>(
    port: &P,
    arrival: Arrival<P::Token>,
    skip: usize,
    buf: &mut RecvBuf,
    (at, len): (usize, usize),
) -> bool {
    let mut whole = true;
    buf.each(at, len, |done, to| whole &= port.read(&arrival, skip + done, to));
    whole
}

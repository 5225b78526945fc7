//! Attacks by the content of packets.

use nemesia_core::flow::posted::MOST;
use nemesia_core::wire::Kind;
use nemesia_core::wire::channel::{CloseReason, HEADER_BYTES, Header, PacketKind, RingNotice};
use nemesia_core::wire::rendezvous::{Cts, Descriptor, Rts};
use nemesia_core::wire::ring::OFFER_BYTES;
use nemesia_core::wire::rma::{Head, Refusal, RmaOperation, Verb, WITHDRAWN};

use super::PACKET_BYTES;
use super::attacker::Attacker;
use super::honest::{LONG, TAG};
use crate::memory_port::{Fabric, Verdict, ensure, equal};

/// The number of an active message that has no handler: the victim drops it.
const NO_HANDLER: (PacketKind, u16, u64) = (PacketKind::Engine(Kind::Active), 77, 0);
/// A request that does not exist.
const NO_REQUEST: u64 = 0x0123_4567_89ab_cdef;

pub(super) fn empty<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.send(&[]).map(drop)
}

pub(super) fn half_a_header<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.header(NO_HANDLER).encode();
    it.send(&header[..HEADER_BYTES / 2]).map(drop)
}

pub(super) fn too_long<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.header(NO_HANDLER);
    it.packet(&header, &[0; PACKET_BYTES as usize + 1]).map(drop)
}

/// Sends a valid packet with one byte changed.
fn with_byte<F: Fabric>(it: &mut Attacker<'_, F>, at: usize, byte: u8) -> Verdict {
    let mut bytes = it.header(NO_HANDLER).encode();
    bytes[at] = byte;
    it.send(&bytes).map(drop)
}

pub(super) fn unknown_kind<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    with_byte(it, 0, Kind::COUNT as u8 + 1)
}

pub(super) fn reserved_bits<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    with_byte(it, 7, 0x80)
}

pub(super) fn full_update<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.update();
    it.packet(&header, &[1; 8]).map(drop)
}

pub(super) fn full_close<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.header((PacketKind::Close(CloseReason::Finished), 0, 0));
    it.packet(&header, &[1; 8]).map(drop)
}

pub(super) fn used_number<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.header(NO_HANDLER);
    it.packet(&header, &[])?;
    it.repeat_number();
    let header = it.header(NO_HANDLER);
    it.packet(&header, &[]).map(drop)
}

pub(super) fn number_far_ahead<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let mut header = it.header(NO_HANDLER);
    if let Some(packet) = &mut header.packet {
        packet.sequence = packet.sequence.wrapping_add(1 << 30);
    }
    it.packet(&header, &[]).map(drop)
}

pub(super) fn too_many_receives<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let mut header = it.update();
    header.stamp.posted = header.stamp.posted.wrapping_add(MOST + 1);
    it.packet(&header, &[]).map(drop)
}

pub(super) fn no_receives<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let mut header = it.update();
    header.stamp.target = 0;
    it.packet(&header, &[]).map(drop)
}

/// More packets than the victim can ever have answered with credits.
pub(super) fn overdrawn<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = it.update().encode();
    for _ in 0..1000 {
        if !it.send(&header)? {
            return Ok(());
        }
    }
    Err("a thousand packets have arrived".into())
}

/// The victim sends as many units as it likes.
pub(super) fn all_units<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    for units in [1, u64::MAX, 2, u64::MAX - 1] {
        let header = Header { units, ..it.update() };
        it.packet(&header, &[])?;
    }
    it.step()?;
    let message = it.hear_kind(Kind::Rts, |_, payload| Rts::decode(payload, payload.len()))?;
    equal("bytes of the message", message.total, LONG as u64)?;
    half_a_header(it)
}

pub(super) fn false_slots<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let header = Header { slots: 7, ..it.update() };
    it.packet(&header, &[]).map(drop)
}

fn notice<F: Fabric>(it: &mut Attacker<'_, F>, notice: RingNotice, payload: &[u8]) -> Verdict {
    let header = it.header((PacketKind::Ring(notice), 0, 0));
    it.packet(&header, payload).map(drop)
}

pub(super) fn false_stop<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    notice(it, RingNotice::Stop, &[])
}

pub(super) fn false_stopped<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    notice(it, RingNotice::Stopped, &[])
}

pub(super) fn false_ring<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let mut offer = [0; OFFER_BYTES];
    offer[16] = 3;
    notice(it, RingNotice::Open, &offer)
}

fn rts() -> Rts {
    Rts::of(100, NO_REQUEST, None)
}

/// Sends an RTS with these bytes.
pub(super) fn offer<F: Fabric>(it: &mut Attacker<'_, F>, bytes: &[u8]) -> Verdict {
    it.await_units()?;
    it.engine((Kind::Rts, 0, TAG), bytes).map(drop)
}

pub(super) fn half_an_rts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let rts = rts().encode();
    offer(it, &rts[..rts.len() / 2])
}

pub(super) fn huge_rts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    offer(it, &Rts { total: u64::MAX, ..rts() }.encode())
}

pub(super) fn overflowing_rts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let mut bytes = rts().encode().to_vec();
    (bytes[17], bytes[18]) = (Descriptor::REGION, u8::MAX);
    offer(it, &bytes)
}

fn cts() -> Cts {
    let descriptor = Descriptor::NONE;
    Cts { sender: NO_REQUEST, receiver: NO_REQUEST, start: 0, end: 8, descriptor }
}

/// Sends a CTS.
pub(super) fn request<F: Fabric>(it: &mut Attacker<'_, F>, cts: &Cts) -> Verdict {
    it.engine((Kind::Cts, 0, 0), &cts.encode()).map(drop)
}

pub(super) fn false_cts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    request(it, &cts())
}

/// Lets the victim send a message, and returns a CTS for all of it.
pub(super) fn lure<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<(Rts, Cts), String> {
    // The victim needs units for the RTS.
    let header = Header { units: 1000, ..it.update() };
    it.packet(&header, &[])?;
    it.step()?;
    let rts = it.hear_kind(Kind::Rts, |_, payload| Rts::decode(payload, payload.len()))?;
    Ok((rts, Cts { sender: rts.sender, end: rts.total, ..cts() }))
}

pub(super) fn cts_beyond_end<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (_, cts) = lure(it)?;
    request(it, &Cts { end: cts.end + 1, ..cts })
}

pub(super) fn second_cts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (_, cts) = lure(it)?;
    request(it, &cts)?;
    request(it, &cts)
}

pub(super) fn false_data<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::Data, 0, NO_REQUEST), &[7; 100]).map(drop)
}

pub(super) fn false_fin<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::Fin, 0, 0), &NO_REQUEST.to_le_bytes()).map(drop)
}

pub(super) fn half_acknowledged<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.await_units()?;
    it.engine((Kind::EagerAcknowledged, 0, TAG), &[1; 4]).map(drop)
}

pub(super) fn short_active<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::Active, 77, 100), &[1; 99]).map(drop)
}

pub(super) fn unknown_operation<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::Rma, 0x000f, 0), &[0; 32]).map(drop)
}

pub(super) fn half_a_put<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::Rma, Verb::plain(RmaOperation::Put).encode(), 0), &[0; 15]).map(drop)
}

/// A get in packets is refused by name; it does not end the connection.
pub(super) fn unknown_get<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let verb = Verb::plain(RmaOperation::Get);
    let head = Head { key: NO_REQUEST, offset: u64::MAX, value: u64::MAX, expected: 0 }.encode();
    it.engine((Kind::Rma, verb.encode(), TAG), &head[..verb.head_bytes()])?;
    let (context, tag, len) =
        it.hear_kind(Kind::RmaReply, |packet, payload| Some((packet.context, packet.tag, payload.len())))?;
    ensure((context, tag, len) == (Refusal::Key.code(), TAG, 0), || {
        format!("the answer has context {context}, tag {tag} and {len} bytes")
    })?;
    half_a_header(it)
}

pub(super) fn false_reply<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::RmaReply, 0, NO_REQUEST), &[7; 100]).map(drop)
}

pub(super) fn false_answer<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.engine((Kind::RmaReply, WITHDRAWN, 7), &[]).map(drop)
}

//! Attacks by writes into the ring of the fast path.

use nemesia_core::port::channel::OFFER_AFTER;
use nemesia_core::port::memory::RemoteRange;
use nemesia_core::wire::Kind;
use nemesia_core::wire::channel::{HEADER_BYTES, Header, PacketKind, RingNotice};
use nemesia_core::wire::ring::{ArrivedSlot, RingOffer, RingShape, SLOT_BYTES, SLOT_PAYLOAD, TRAILER_BYTES};

use super::attacker::Attacker;
use super::packets::half_a_header;
use crate::memory_port::{Fabric, Verdict, ensure};

const ACTIVE: (PacketKind, u16, u64) = (PacketKind::Engine(Kind::Active), 77, 0);
/// Bytes of a packet without payload in a slot.
const LEAST: usize = HEADER_BYTES + TRAILER_BYTES;

/// What the trailer of a packet with a whole header says.
const fn whole(len: usize) -> ArrivedSlot {
    ArrivedSlot { len, is_cached: false }
}

/// Sends small packets until the victim opens a ring.
fn opened<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RingOffer, String> {
    for _ in 0..OFFER_AFTER {
        it.engine((Kind::Active, 77, 0), &[])?;
    }
    it.hear("a ring", |header, payload| {
        let notice = header.packet?.kind;
        RingOffer::decode(payload.try_into().ok()?).filter(|_| notice == PacketKind::Ring(RingNotice::Open))
    })
}

/// Sends small packets until the victim opens a ring, and one packet through it.
fn ring<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RingOffer, String> {
    let ring = opened(it)?;
    let header = it.header(ACTIVE);
    packet(it, &ring, 0, &header)?;
    Ok(ring)
}

/// Returns the place of the last so many bytes of a slot.
const fn place(ring: &RingOffer, number: u32, len: usize) -> RemoteRange {
    let address = ring.address.wrapping_add(ring.shape.end(number)).wrapping_sub(len as u64);
    RemoteRange { address, key: ring.key }
}

/// Writes the end of a slot.
fn write<F: Fabric>(it: &mut Attacker<'_, F>, ring: &RingOffer, number: u32, bytes: &[u8]) -> Verdict {
    let is_done = it.write(bytes, place(ring, number, bytes.len()), None)?;
    ensure(is_done, || "a write into the ring was refused".into())
}

/// Writes a packet without payload.
fn packet<F: Fabric>(it: &mut Attacker<'_, F>, ring: &RingOffer, number: u32, header: &Header) -> Verdict {
    let trailer = ring.shape.trailer(number, whole(0)).to_le_bytes();
    write(it, ring, number, &[&header.encode()[..], &trailer].concat())
}

/// Opens a ring, and writes the second packet.
fn second<F: Fabric>(it: &mut Attacker<'_, F>, header: impl Fn(&mut Attacker<'_, F>) -> Header) -> Verdict {
    let ring = ring(it)?;
    let header = header(it);
    packet(it, &ring, 1, &header)
}

pub(super) fn long_packet<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = ring(it)?;
    let trailer = ring.shape.trailer(1, whole(SLOT_PAYLOAD + 1));
    let bytes = [&[0x11; SLOT_BYTES as usize - TRAILER_BYTES][..], &trailer.to_le_bytes()].concat();
    write(it, &ring, 1, &bytes)
}

fn filled_with<F: Fabric>(it: &mut Attacker<'_, F>, byte: u8) -> Verdict {
    let ring = ring(it)?;
    let trailer = ring.shape.trailer(1, whole(0));
    write(it, &ring, 1, &[&[byte; HEADER_BYTES][..], &trailer.to_le_bytes()].concat())
}

pub(super) fn zeros<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    filled_with(it, 0)
}

pub(super) fn ones<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    filled_with(it, 0xff)
}

/// Writes a packet with a cached header as the second one.
fn cached<F: Fabric>(it: &mut Attacker<'_, F>, word: u64, len: usize) -> Verdict {
    let ring = ring(it)?;
    let trailer = ring.shape.trailer(1, ArrivedSlot { len, is_cached: true });
    write(it, &ring, 1, &[word.to_le_bytes(), trailer.to_le_bytes()].concat())
}

pub(super) fn cached_reserved<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    cached(it, 1 << 63, 0)
}

pub(super) fn cached_report<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    cached(it, 0xffff << 32, 0)
}

pub(super) fn cached_long<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    cached(it, 0, SLOT_PAYLOAD + 1)
}

/// The first packet of a ring has none before.
pub(super) fn cached_first<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = opened(it)?;
    let trailer = ring.shape.trailer(0, ArrivedSlot { len: 0, is_cached: true });
    write(it, &ring, 0, &[0_u64.to_le_bytes(), trailer.to_le_bytes()].concat())
}

pub(super) fn update<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    second(it, |it| it.update())
}

pub(super) fn notice<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    second(it, |it| it.header((PacketKind::Ring(RingNotice::Stop), 0, 0)))
}

pub(super) fn false_report<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    second(it, |it| Header { slots: 7, ..it.header(ACTIVE) })
}

pub(super) fn far_ahead<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    second(it, |it| {
        let mut header = it.header(ACTIVE);
        if let Some(packet) = &mut header.packet {
            packet.sequence = packet.sequence.wrapping_add(1 << 30);
        }
        header
    })
}

/// No slot has the end of the packet that is due, so the victim sees none.
pub(super) fn noise<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = ring(it)?;
    let whole = ring.shape.bytes() as usize;
    for byte in [0xff, 0x01, 0x80, 0] {
        let place = RemoteRange { address: ring.address, key: ring.key };
        let is_done = it.write(&vec![byte; whole], place, None)?;
        ensure(is_done, || "a write into the ring was refused".into())?;
    }
    half_a_header(it)
}

pub(super) fn behind<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = ring(it)?;
    let end = place(&ring, ring.shape.slots() - 1, 0);
    it.write(&[0xff; LEAST], end, None).map(drop)
}

pub(super) fn before<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = ring(it)?;
    let before = place(&ring, 0, SLOT_BYTES as usize + 8);
    it.write(&[0xff; 8], before, None).map(drop)
}

pub(super) fn read<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let ring = ring(it)?;
    let got = it.read(8, place(&ring, 0, 8))?;
    ensure(got.is_none(), || "it was allowed".into())
}

/// The victim's next packet, which is small, is a write to that place.
pub(super) fn nowhere<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let shape = RingShape::new(8).ok_or("an impossible shape")?;
    let offer = RingOffer { address: 4096, key: 0x1234_5678, shape }.encode();
    let open = it.header((PacketKind::Ring(RingNotice::Open), 0, 0));
    it.packet(&Header { units: 1000, ..open }, &offer)?;
    it.step()
}

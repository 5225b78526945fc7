//! Attacks by reads, writes and additions. Those that the victim's device refuses end the connection.

use nemesia_core::port::memory::RemoteRange;
use nemesia_core::wire::Kind;
use nemesia_core::wire::direct::{DESCRIPTION_BYTES, DirectRegion};
use nemesia_core::wire::region::RegionBytes;
use nemesia_core::wire::rendezvous::{Cts, Descriptor, Rts};
use nemesia_core::wire::rma::{Access, DESCRIBED, RmaOperation, Verb};

use super::PACKET_BYTES;
use super::attacker::Attacker;
use super::honest::{ALLOWED, CHANGED, FORBIDDEN, GUARD_BYTES, TRAP_BYTES};
use super::packets::{lure, offer, request};
use crate::memory_port::{Fabric, Verdict, ensure};

/// Memory by a key that no rank has given.
const UNKNOWN: RemoteRange = RemoteRange { address: 4096, key: 0x1234_5678 };
const WORD: [u8; 8] = [FORBIDDEN; 8];
const LEN: u64 = TRAP_BYTES as u64;

pub(super) fn unknown_write<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.write(&WORD, UNKNOWN, None).map(drop)
}

/// Checks that a read is refused.
fn refused_read<F: Fabric>(it: &mut Attacker<'_, F>, len: usize, from: RemoteRange) -> Verdict {
    let got = it.read(len, from)?;
    ensure(got.is_none(), || "it was allowed".into())
}

pub(super) fn unknown_read<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    refused_read(it, 1 << 16, UNKNOWN)
}

pub(super) fn unknown_add<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let is_done = it.add(UNKNOWN)?;
    ensure(!is_done, || "it was allowed".into())
}

pub(super) fn unknown_immediate<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    it.write(&[], UNKNOWN, Some(0xdead_beef)).map(drop)
}

/// Returns the place of `at`, which may lie outside, from the first byte of a region on.
const fn place(bytes: &RegionBytes, at: i64) -> RemoteRange {
    RemoteRange { address: bytes.address.wrapping_add_signed(at), key: bytes.key }
}

/// Asks for the description of the victim's region, and changes the bytes that it may change.
fn describe<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RegionBytes, String> {
    let key = it.key;
    let context = Verb::plain(RmaOperation::Describe).encode();
    it.engine((Kind::Rma, context, key), &key.to_le_bytes())?;
    let region = it.hear_kind(Kind::RmaReply, |packet, payload| {
        let described: &[u8; DESCRIPTION_BYTES] = payload.try_into().ok()?;
        DirectRegion::decode(described).filter(|_| packet.context == DESCRIBED && packet.tag == key)
    })?;
    ensure(region.bytes.len == LEN, || format!("{region:?}"))?;
    if region.access.allows(Access::Write) {
        let changed = it.write(&[ALLOWED; 8], place(&region.bytes, CHANGED.start as i64), None)?;
        ensure(changed, || "a write into the region was refused".into())?;
    }
    if region.access.allows(Access::Read) {
        let got = it.read(TRAP_BYTES, place(&region.bytes, 0))?;
        ensure(got.is_some(), || "a read from the region was refused".into())?;
    }
    Ok(region.bytes)
}

/// Writes at a place, from the first byte of the victim's region on.
fn write_at<F: Fabric>(it: &mut Attacker<'_, F>, at: i64) -> Verdict {
    let region = describe(it)?;
    it.write(&WORD, place(&region, at), None).map(drop)
}

pub(super) fn across_end<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    write_at(it, TRAP_BYTES as i64 - 4)
}

pub(super) fn behind_region<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    write_at(it, TRAP_BYTES as i64)
}

pub(super) fn before_region<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    write_at(it, -8)
}

/// The end of the bytes is the end of all addresses.
pub(super) fn wrapping_place<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = describe(it)?;
    it.write(&WORD, RemoteRange { address: u64::MAX - 7, ..place(&region, 0) }, None).map(drop)
}

pub(super) fn read_across_end<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = describe(it)?;
    refused_read(it, TRAP_BYTES, place(&region, 8))
}

pub(super) fn behind_rights<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    write_at(it, 0)
}

pub(super) fn read_behind_rights<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = describe(it)?;
    refused_read(it, 8, place(&region, 0))
}

/// Atomic operations on regions travel in packets only.
pub(super) fn add_to_region<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = describe(it)?;
    let is_done = it.add(place(&region, 64))?;
    ensure(!is_done, || "it was allowed".into())
}

/// Lets the victim unexpose its region, without the answer to the withdrawal.
fn revoked<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RegionBytes, String> {
    let region = describe(it)?;
    it.step()?;
    Ok(region)
}

pub(super) fn write_revoked<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = revoked(it)?;
    it.write(&WORD, place(&region, 0), None).map(drop)
}

pub(super) fn read_revoked<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = revoked(it)?;
    refused_read(it, 8, place(&region, 0))
}

/// Offers a message of so many bytes, and returns the victim's buffer for it, and the victim's request.
fn requested<F: Fabric>(it: &mut Attacker<'_, F>, total: u64) -> Result<(RegionBytes, u64), String> {
    let rts = Rts::of(total, 9, None);
    offer(it, &rts.encode())?;
    let cts = it.hear_kind(Kind::Cts, |_, payload| Cts::decode(payload))?;
    let region = cts.descriptor.region().ok_or(format!("{cts:?} describes no memory"))?;
    ensure((cts.start, cts.end, region.len) == (0, LEN, LEN), || format!("{cts:?}"))?;
    Ok((region, cts.receiver))
}

pub(super) fn more_than_requested<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (_, receiver) = requested(it, isize::MAX as u64)?;
    let most = PACKET_BYTES as usize;
    // The victim has room for what it has requested. These bytes are those of the bait.
    let bait = super::honest::content(it.rank());
    for from in (0..TRAP_BYTES).step_by(most) {
        let rest = bait.get(from..TRAP_BYTES.min(from + most)).unwrap_or_default();
        // The last packet has a byte too many.
        let more = if from + most > TRAP_BYTES { &[FORBIDDEN][..] } else { &[] };
        it.engine((Kind::Data, 0, receiver), &[rest, more].concat())?;
    }
    Ok(())
}

pub(super) fn behind_receive<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (region, _) = requested(it, LEN)?;
    it.write(&WORD, place(&region, TRAP_BYTES as i64), None).map(drop)
}

pub(super) fn before_receive<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (region, _) = requested(it, LEN)?;
    it.write(&WORD, place(&region, -8), None).map(drop)
}

pub(super) fn read_receive<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (region, _) = requested(it, LEN)?;
    refused_read(it, 8, place(&region, 0))
}

/// Sends a whole message, so that the victim's receive completes.
fn complete<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RegionBytes, String> {
    let (region, receiver) = requested(it, LEN)?;
    let is_done = it.write(&[ALLOWED; TRAP_BYTES], place(&region, 0), region.notice)?;
    ensure(is_done, || "a write into the buffer was refused".into())?;
    if region.notice.is_none() {
        it.engine((Kind::Data, 0, receiver), &[])?;
    }
    it.step()?;
    Ok(region)
}

pub(super) fn after_receive<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = complete(it)?;
    it.write(&WORD, place(&region, 0), None).map(drop)
}

pub(super) fn second_immediate<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = complete(it)?;
    it.write(&[], place(&region, 0), region.notice).map(drop)
}

pub(super) fn false_key_in_cts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (_, cts) = lure(it)?;
    let region = RegionBytes { address: 4096, len: cts.end, key: UNKNOWN.key, notice: None };
    request(it, &Cts { descriptor: Descriptor::of_region(&region), ..cts })
}

pub(super) fn false_key_in_rts<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = RegionBytes { address: 4096, len: LEN, key: UNKNOWN.key, notice: None };
    let descriptor = Descriptor::of_region(&region);
    let rts = Rts { descriptor, ..Rts::of(LEN, 9, None) };
    offer(it, &rts.encode())
}

/// Lets the victim send a message, and returns its place in the victim's memory.
fn offered<F: Fabric>(it: &mut Attacker<'_, F>) -> Result<RegionBytes, String> {
    let (rts, _) = lure(it)?;
    let region = rts.descriptor.region().ok_or(format!("{rts:?} describes no memory"))?;
    let got = it.read(TRAP_BYTES, place(&region, 0))?;
    ensure(got.is_some() && region.len == LEN, || format!("{rts:?}: the message cannot be read"))?;
    Ok(region)
}

/// Whole pages are registered.
pub(super) fn behind_message<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = offered(it)?;
    refused_read(it, 8, place(&region, (TRAP_BYTES + GUARD_BYTES / 2) as i64))
}

/// After the end of the message.
pub(super) fn after_message<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let (rts, _) = lure(it)?;
    let region = rts.descriptor.region().ok_or(format!("{rts:?} describes no memory"))?;
    it.engine((Kind::Fin, 0, 0), &rts.sender.to_le_bytes())?;
    it.step()?;
    refused_read(it, 8, place(&region, 0))
}

pub(super) fn write_message<F: Fabric>(it: &mut Attacker<'_, F>) -> Verdict {
    let region = offered(it)?;
    it.write(&WORD, place(&region, 0), None).map(drop)
}

//! The payload of packets in their slots, in whole words only: a copy of some bytes of a word costs as much as several
//! words.
//!
//! The first slot holds a packet of at most [`FIRST_BYTES`] as a [`ShortMessage`], or the first bytes of a longer
//! one. Each further slot holds the next [`MORE_BYTES`], but the last slot holds the last ones of the packet, of which
//! some may also lie in slots before. A packet of fewer than `MORE_BYTES` has one further slot, whose first word holds
//! the last 8 bytes.
#![forbid(unsafe_code)]

use core::ops::Range;

use super::short::ShortMessage;
use super::{FIRST_BYTES, FastboxSlot, MORE_BYTES, slots_for};
use crate::wire::prefix::PrefixWords;

/// Stores tag and payload of the first slot.
#[inline(always)]
pub(super) fn store_first(slot: &FastboxSlot, tag: u64, payload: &[u8]) {
    let head = payload.get(..FIRST_BYTES).unwrap_or(payload);
    store_short(slot, tag, ShortMessage::new(head));
}

/// Stores tag and payload of a short message.
#[inline(always)]
pub(super) fn store_short(slot: &FastboxSlot, tag: u64, message: ShortMessage) {
    let [first, second, third] = &slot.body;
    first.set(tag);
    second.set(message.first);
    third.set(message.last);
}

/// Stores the payload of all further slots, with their stamp.
#[inline(always)]
pub(super) fn store_further(slots: &[FastboxSlot], stamp: u64, payload: &[u8]) {
    store_rest(slots, stamp, (payload.get(FIRST_BYTES..).unwrap_or_default(), payload));
}

/// As [`store_further`]: `rest` is the payload after the first slot, and `end` has at least as many bytes of its end as
/// the last slot holds.
#[inline(always)]
pub(super) fn store_rest(slots: &[FastboxSlot], stamp: u64, (rest, end): (&[u8], &[u8])) {
    let Some((last, slots)) = slots.split_last() else { return };
    for (slot, chunk) in slots.iter().zip(rest.as_chunks().0) {
        slot.stamp.store_relaxed(stamp);
        store_chunk(slot, chunk);
    }
    last.stamp.store_relaxed(stamp);
    store_last(last, end);
}

/// The payload of a packet that begins with words, as its slots hold it. The words and the body are not joined in
/// memory first: a load of a word that several earlier stores have written waits until these stores have left the
/// core.
#[derive(Debug)]
pub(super) struct PrefixedPayload<'a> {
    /// The first slot.
    pub(super) first: ShortMessage,
    /// The bytes of the further slots.
    rest: &'a [u8],
    body: &'a [u8],
    /// The words of the only further slot, if the body does not fill it.
    last: Option<[u64; 3]>,
}

impl<'a> PrefixedPayload<'a> {
    #[inline(always)]
    pub(super) fn new(words: PrefixWords, body: &'a [u8]) -> Self {
        let PrefixWords { first, second } = words;
        let one = |first| Self { first, rest: &[], body: &[], last: None };
        let (last, rest) = match (second, body.split_first_chunk()) {
            (None, None) => return one(ShortMessage::behind(first, body)),
            (None, Some((head, []))) => return one(ShortMessage::behind(first, head)),
            (None, Some((head, rest))) => (u64::from_le_bytes(*head), rest),
            (Some(last), _) if body.is_empty() => return one(ShortMessage { first, last, len: FIRST_BYTES }),
            (Some(last), _) => (last, body),
        };
        let first = ShortMessage { first, last, len: FIRST_BYTES };
        let last = (body.len() < MORE_BYTES).then(|| last_words(words, body));
        Self { first, rest, body, last }
    }

    /// Stores the payload of all further slots, with their stamp.
    #[inline(always)]
    pub(super) fn store_further(&self, slots: &[FastboxSlot], stamp: u64) {
        match (self.last, slots) {
            (None, _) => store_rest(slots, stamp, (self.rest, self.body)),
            (Some(last), [slot, ..]) => {
                slot.stamp.store_relaxed(stamp);
                for (place, word) in slot.body.iter().zip(last) {
                    place.set(word);
                }
            }
            (Some(_), []) => {}
        }
    }
}

/// Returns the words of the last slot of a packet with a short body, which also holds a part of the words before it.
#[inline(never)]
fn last_words(words: PrefixWords, body: &[u8]) -> [u64; 3] {
    let len = body.len();
    let head = ShortMessage::new(body.get(..8).unwrap_or(body)).word();
    let (before, second) = match words.second {
        Some(second) => (words.first, second),
        None => (0, words.first),
    };
    let joined =
        |low: u64, high: u64, skip: usize| ((u128::from(low) | u128::from(high) << 64) >> (8 * skip)) as u64;
    // Eight bytes of the packet, from `at` bytes after the first 16 bytes before the body on.
    let word = |at: usize| match at {
        0..8 => joined(before, second, at),
        8..16 => joined(second, head, at - 8),
        _ => body.get(at - 16..).and_then(<[u8]>::first_chunk).map_or(0, |chunk| u64::from_le_bytes(*chunk)),
    };
    let end = len + 16;
    if words.bytes() + len < MORE_BYTES {
        [word(end - 8), 0, 0]
    } else {
        [word(end - 24), word(end - 16), word(end - 8)]
    }
}

/// Stores the payload of further slot `number` of a packet of `count` slots.
pub(super) fn store_one(slot: &FastboxSlot, payload: &[u8], (number, count): (usize, usize)) {
    let at = FIRST_BYTES + (number - 1) * MORE_BYTES;
    match payload.get(at..).and_then(<[u8]>::first_chunk) {
        Some(chunk) if number + 1 < count => store_chunk(slot, chunk),
        _ => store_last(slot, payload),
    }
}

#[inline(always)]
fn store_chunk(slot: &FastboxSlot, chunk: &[u8; MORE_BYTES]) {
    for (word, bytes) in slot.body.iter().zip(chunk.as_chunks().0) {
        word.set(u64::from_le_bytes(*bytes));
    }
}

#[inline(always)]
fn store_last(slot: &FastboxSlot, payload: &[u8]) {
    if let Some(chunk) = payload.last_chunk() {
        store_chunk(slot, chunk);
    } else if let Some(bytes) = payload.last_chunk() {
        slot.body[0].set(u64::from_le_bytes(*bytes));
    }
}

/// Loads a short message of `len` bytes.
#[inline(always)]
pub(super) fn load_short(slot: &FastboxSlot, len: usize) -> ShortMessage {
    let [_, first, last] = &slot.body;
    ShortMessage { first: first.get(), last: last.get(), len }
}

/// Loads a whole packet of several slots.
#[inline(always)]
pub(super) fn load(first: &FastboxSlot, further: &[FastboxSlot], to: &mut [u8]) {
    let Some((head, rest)) = to.split_first_chunk_mut::<FIRST_BYTES>() else { return };
    load_short(first, FIRST_BYTES).write(head);
    let Some((last, slots)) = further.split_last() else { return };
    for (slot, chunk) in slots.iter().zip(rest.as_chunks_mut().0) {
        load_chunk(slot, chunk);
    }
    load_last(last, to);
}

/// Loads the payload of further slot `number` of a packet of `count` slots.
pub(super) fn load_one(slot: &FastboxSlot, to: &mut [u8], (number, count): (usize, usize)) {
    let at = FIRST_BYTES + (number - 1) * MORE_BYTES;
    match to.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        Some(chunk) if number + 1 < count => load_chunk(slot, chunk),
        _ => load_last(slot, to),
    }
}

/// Loads the payload of a packet of several slots from byte `at` on, if `at` is behind its first or second word, and
/// `to` has at least [`MORE_BYTES`]. Returns `false` in all other cases.
#[inline(always)]
pub(super) fn load_behind(first: &FastboxSlot, further: &[FastboxSlot], at: usize, to: &mut [u8]) -> bool {
    let (head, Some((last, slots))) = (FIRST_BYTES.wrapping_sub(at), further.split_last()) else {
        return false;
    };
    let Some((head, rest)) = to.split_at_mut_checked(head) else { return false };
    match head {
        [] => {}
        [_, _, _, _, _, _, _, _] => head.copy_from_slice(&first.body[2].get().to_le_bytes()),
        _ => return false,
    }
    for (slot, chunk) in slots.iter().zip(rest.as_chunks_mut().0) {
        load_chunk(slot, chunk);
    }
    load_last(last, to);
    true
}

#[inline(always)]
fn load_last(slot: &FastboxSlot, to: &mut [u8]) {
    if let Some(chunk) = to.last_chunk_mut() {
        load_chunk(slot, chunk);
    } else if let Some(bytes) = to.last_chunk_mut() {
        *bytes = slot.body[0].get().to_le_bytes();
    }
}

#[inline(always)]
fn load_chunk(slot: &FastboxSlot, chunk: &mut [u8; MORE_BYTES]) {
    for (word, bytes) in slot.body.iter().zip(chunk.as_chunks_mut().0) {
        *bytes = word.get().to_le_bytes();
    }
}

/// Returns the place of byte `at` of a packet of `len` bytes: the number of the slot, the word of its body, and the
/// bytes of this word from there on that are the next ones of the packet, as far as it goes.
pub(super) fn locate(len: usize, at: usize) -> (usize, usize, Range<usize>) {
    if at < FIRST_BYTES {
        let first = len.min(FIRST_BYTES);
        let width = ShortMessage::width(first);
        return if at < width { (0, 1, at..width) } else { (0, 2, at + width - first..width) };
    }
    let number = slots_for(at + 1) - 1;
    let start = match (number + 1 == slots_for(len), len) {
        (false, _) => FIRST_BYTES + (number - 1) * MORE_BYTES,
        (true, ..MORE_BYTES) => len - 8,
        (true, _) => len - MORE_BYTES,
    };
    (number, (at - start) / 8, (at - start) % 8..8)
}

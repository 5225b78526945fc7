//! The store of unexpected messages.
//!
//! Unexpected messages are copied out of the transport's cells at once, so that few cells suffice (paper 4, section
//! 3.1), and are received first in, first out (paper 2, section 2.3.4). The caller lends the memory. The memory has a
//! ceiling and belongs to the process, not to a connection (paper 2, section 2.3.2); [`crate::flow`] grants it to the
//! peers.
//!
//! The memory consists of [`Unit`]s, and of one word for each hash bucket. A message takes one unit, its head. If its
//! body is longer than [`INLINE`] bytes, it also takes a chain of further units. Any free unit fits, so there is no
//! fragmentation and [`cost`] is exact. The memory is committed in steps ([`UnitMemory`]). Units that are not
//! committed are neither touched nor granted to a peer.
//!
//! **Head.** Bytes 0-3 and 4-7: next and previous head in the order of arrival. 8-11: next head in its hash list.
//! 12-15: source. 16-23: tag. 24-27: body bytes. 28-29: context. 30: kind. 31: 1 if claimed. From 32: the body. If
//! the body is longer than 32 bytes, 28 of them are in the head, and the last four bytes of the head hold the number
//! of the next unit. **Further unit.** 60 bytes of body, and the number of the next unit. A free unit has the number
//! of the next free unit there. The head of an assigned message has other values in three fields: 0-3: the next
//! assigned message. 4-7: its receive. 8-11: its mark.
#![forbid(unsafe_code)]

mod assigned;
mod fill;
mod memory;

use core::borrow::BorrowMut;

use crate::matching::{Pattern, hash};
use crate::port::PeerId;
use crate::slab::{List, NONE};
use crate::wire::{Envelope, Kind};

pub use assigned::AssignedMessage;
pub use memory::{UNIT, Unit, UnitMemory};

/// Longest body that needs no further unit.
pub const INLINE: usize = UNIT - BODY;

const NEXT: usize = 0;
const PREV: usize = 4;
const CHAIN: usize = 8;
const SOURCE: usize = 12;
const TAG: usize = 16;
const LEN: usize = 24;
const CONTEXT: usize = 28;
const KIND: usize = 30;
const CLAIMED: usize = 31;
/// Offset of the body in a head.
const BODY: usize = 32;
/// Offset of the number of the next unit. The body ends here in every unit except a head without further units.
const LINK: usize = 60;
/// Bytes of a body in its head, if the body continues.
const FIRST: usize = LINK - BODY;

/// Returns the units of a message with a body of `body_len` bytes; `u32::MAX`, which exceeds every store, for 4 GiB
/// or more.
#[inline(always)]
pub const fn cost(body_len: usize) -> u32 {
    if body_len <= INLINE {
        1
    } else if body_len <= u32::MAX as usize {
        1 + (body_len - FIRST).div_ceil(LINK) as u32
    } else {
        u32::MAX
    }
}

/// Returns the longest body that takes at most `units` units; 0 for no units.
pub const fn most(units: u32) -> usize {
    match units {
        0 => 0,
        1 => INLINE,
        _ => FIRST + (units as usize - 1) * LINK,
    }
}

static_assertions::const_assert!(cost(most(137)) == 137 && cost(most(137) + 1) == 138 && cost(most(2)) == 2);

/// Returns how many units and lists to lend for a ceiling in bytes: one list for two to four units, together at most
/// the ceiling.
pub const fn split(ceiling: usize) -> (usize, usize) {
    let lists = match (ceiling / UNIT / 2).checked_ilog2() {
        Some(bits) => 1 << bits,
        None => 0,
    };
    ((ceiling - lists * size_of::<u32>()) / UNIT, lists)
}

// A million messages of up to 32 bytes, with their lists, fit into 64 MiB.
static_assertions::const_assert!(split(64 << 20).0 >= 1_000_000 && cost(INLINE) == 1);
static_assertions::const_assert!(split(64 << 20).0 * UNIT + split(64 << 20).1 * 4 <= 64 << 20);

/// The description of a stored message, without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Rank of the sender.
    pub source: PeerId,
    /// Kind of the packet.
    pub kind: Kind,
    /// Matching context.
    pub context: u16,
    /// The sender's tag.
    pub tag: u64,
    /// Bytes of the packet's body.
    pub len: usize,
}

impl Stored {
    #[inline(always)]
    fn of(head: &Unit) -> Self {
        Self {
            source: word(head, SOURCE),
            // `insert` wrote every head with a valid kind.
            kind: Kind::from_code(head[KIND]).unwrap_or(Kind::Eager),
            context: u16::from_le_bytes([head[CONTEXT], head[CONTEXT + 1]]),
            tag: u64::from(word(head, TAG)) | u64::from(word(head, TAG + 4)) << 32,
            len: word(head, LEN) as usize,
        }
    }

    #[inline(always)]
    fn is_for(&self, pattern: &Pattern) -> bool {
        let Self { source, kind, context, tag, len } = *self;
        pattern.matches(source, &Envelope { kind, context, tag, total: len as u64 })
    }

    #[inline(always)]
    fn hash(&self) -> u32 {
        hash(self.source, self.context, self.tag)
    }
}

/// The messages, in the order of arrival. `U` lends the units, `B` the hash lists. The number of its head identifies
/// a message from [`Store::insert`] until [`Store::remove`]. Other numbers are invalid; they have no effect outside
/// the store.
#[derive(Debug)]
pub struct Store<U: UnitMemory, B: BorrowMut<[u32]>> {
    units: U,
    /// First of the free units that were used before.
    free: u32,
    /// Units below this index were used at least once.
    fresh: u32,
    free_count: u32,
    /// Units from the first on that are committed, used or free.
    committed: u32,
    capacity: u32,
    order: List,
    /// The messages that are assigned to a receive; see [`Store::assign`].
    assigned: List,
    /// The hash lists. Each is a ring of heads in order of arrival; its word is the number of the last head plus one,
    /// or 0 if it is empty.
    lists: B,
    /// The shift that selects the high bits of a hash: they are the best distributed ones of a multiplicative hash.
    shift: u32,
    /// The only list if no storage was lent.
    spare: u32,
    /// Number of messages.
    stored: usize,
    /// Number of messages in the lists: all except the claimed ones.
    listed: usize,
}

impl<U: UnitMemory, B: BorrowMut<[u32]>> Store<U, B> {
    /// Returns an empty store. Units may have any content. Lists must be zero; of them the largest power of two is
    /// used.
    pub fn new(mut units: U, lists: B) -> Self {
        let capacity = units.units().len().min(NONE as usize - 1) as u32;
        let committed = units.commit(0).min(capacity);
        debug_assert!(lists.borrow().iter().all(|&list| list == 0));
        let bits = lists.borrow().len().checked_ilog2().unwrap_or(0).min(32);
        Self {
            units,
            free: NONE,
            fresh: 0,
            free_count: committed,
            committed,
            capacity,
            order: List::new(),
            assigned: List::new(),
            lists,
            shift: u32::BITS - bits,
            spare: 0,
            stored: 0,
            listed: 0,
        }
    }

    /// Returns the number of units, committed or not.
    pub const fn capacity_units(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of units that may be committed at present: the capacity, unless the memory has a lower
    /// ceiling at first.
    pub fn ceiling_units(&self) -> u32 {
        self.units.ceiling().min(self.capacity)
    }

    /// Commits `more` units, or as many as the memory can commit; it may round up. Returns the number of units
    /// that were added.
    #[cold]
    pub fn commit(&mut self, more: u32) -> u32 {
        let wanted = self.committed.saturating_add(more).min(self.capacity);
        if wanted == self.committed {
            return 0;
        }
        let added = self.units.commit(wanted).clamp(self.committed, self.capacity) - self.committed;
        self.committed += added;
        self.free_count += added;
        added
    }

    /// Returns the number of committed units, used or free.
    pub const fn committed_units(&self) -> u32 {
        self.committed
    }

    /// Returns the number of units that stored messages take.
    pub const fn used_units(&self) -> u32 {
        self.committed - self.free_count
    }

    /// Returns the number of committed units that are free.
    pub const fn free_units(&self) -> u32 {
        self.free_count
    }

    /// Returns the number of stored messages, claimed ones included.
    pub const fn len(&self) -> usize {
        self.stored
    }

    /// Returns whether there is no message that a receive could find.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Stores a packet's body of `body_len` bytes. `read` copies bytes from an offset of the packet, in pieces and in
    /// order. The store keeps all fields of the envelope except `total`. `None`, with nothing read, if fewer than
    /// [`cost`] units are free.
    pub fn insert(
        &mut self,
        source: PeerId,
        envelope: &Envelope,
        body_len: usize,
        mut read: impl FnMut(usize, &mut [u8]),
    ) -> Option<u32> {
        let units = cost(body_len);
        if units > self.free_count {
            return None;
        }
        self.free_count -= units;
        let id = self.take_unit();
        let head = self.unit_mut(id);
        put(head, SOURCE, source);
        head[TAG..TAG + 8].copy_from_slice(&envelope.tag.to_le_bytes());
        put(head, LEN, body_len as u32);
        head[CONTEXT..CONTEXT + 2].copy_from_slice(&envelope.context.to_le_bytes());
        head[KIND] = envelope.kind as u8;
        head[CLAIMED] = 0;
        let mut at = first_len(body_len);
        read(0, &mut head[BODY..BODY + at]);
        let mut last = id;
        while at < body_len {
            let next = self.take_unit();
            put(self.unit_mut(last), LINK, next);
            let count = LINK.min(body_len - at);
            read(at, &mut self.unit_mut(next)[..count]);
            (at, last) = (at + count, next);
        }
        self.link_order(id);
        self.link_list(id, hash(source, envelope.context, envelope.tag));
        self.stored += 1;
        self.listed += 1;
        Some(id)
    }

    /// Returns the description of a message.
    #[inline(always)]
    pub fn get(&self, id: u32) -> Stored {
        Stored::of(self.unit(id))
    }

    /// Copies the body from byte `at` on into `to`, as far as both reach. Returns the number of bytes copied.
    pub fn read(&self, id: u32, at: usize, to: &mut [u8]) -> usize {
        let head = self.unit(id);
        let len = word(head, LEN) as usize;
        let count = len.saturating_sub(at).min(to.len());
        let first = first_len(len);
        let here = first.saturating_sub(at).min(count);
        let (to, rest) = to[..count].split_at_mut(here);
        if here > 0 {
            to.copy_from_slice(&head[BODY + at..BODY + at + here]);
        }
        if rest.is_empty() {
            return count;
        }
        let mut unit = word(head, LINK);
        let skip = (at + here - first) / LINK;
        for _ in 0..skip {
            unit = word(self.unit(unit), LINK);
        }
        self.read_chain(unit, (at + here - first) % LINK, rest);
        count
    }

    /// Copies from byte `at` of a further unit on, and from the units after it.
    fn read_chain(&self, mut unit: u32, at: usize, to: &mut [u8]) {
        let (to, rest) = to.split_at_mut((LINK - at).min(to.len()));
        to.copy_from_slice(&self.unit(unit)[at..at + to.len()]);
        // Whole pieces are copied separately, because the compiler then knows their size.
        let (pieces, end) = rest.as_chunks_mut::<LINK>();
        for piece in pieces {
            unit = word(self.unit(unit), LINK);
            piece.copy_from_slice(&self.unit(unit)[..LINK]);
        }
        if !end.is_empty() {
            unit = word(self.unit(unit), LINK);
            end.copy_from_slice(&self.unit(unit)[..end.len()]);
        }
    }

    /// Removes a message, claimed or not. Returns the number of freed units, its [`cost`].
    pub fn remove(&mut self, id: u32) -> u32 {
        self.claim(id);
        self.release(id)
    }

    /// Removes a message from the lists, so that no receive finds it. It stays stored until it is removed.
    pub fn claim(&mut self, id: u32) {
        if core::mem::replace(&mut self.unit_mut(id)[CLAIMED], 1) != 0 {
            return;
        }
        self.listed -= 1;
        self.unlink_list(id);
        self.unlink_order(id);
    }

    /// Returns the first matching message in the order of arrival. A pattern with source and whole tag is searched by
    /// hash, at a cost that does not grow with the number of messages; other patterns compare each message.
    #[inline]
    pub fn find(&self, pattern: &Pattern) -> Option<u32> {
        if self.listed == 0 {
            return None;
        }
        self.search(pattern, |stored| stored.is_for(pattern))
    }

    /// Returns whether no stored message matches. The answer is `false` also if `most` comparisons do not decide.
    pub fn has_none(&self, pattern: &Pattern, most: usize) -> bool {
        let mut compared = 0;
        let stops = |stored: &Stored| {
            compared += 1;
            compared > most || stored.is_for(pattern)
        };
        self.listed == 0 || self.search(pattern, stops).is_none()
    }

    /// Returns the number of messages that [`Store::find`] compares. For measurements.
    pub fn steps(&self, pattern: &Pattern) -> usize {
        let mut steps = 0;
        self.search(pattern, |stored| {
            steps += 1;
            stored.is_for(pattern)
        });
        steps
    }

    /// Returns the first message for which `stops` holds, of those that the pattern may match.
    #[inline]
    fn search(&self, pattern: &Pattern, stops: impl FnMut(&Stored) -> bool) -> Option<u32> {
        match pattern.hash() {
            Some(hash) => self.find_in_list(hash, stops),
            None => self.find_in_order(stops),
        }
    }

    fn find_in_list(&self, hash: u32, mut stops: impl FnMut(&Stored) -> bool) -> Option<u32> {
        let last = self.list(hash).checked_sub(1)?;
        let mut id = last;
        loop {
            id = self.next_in_list(id);
            if stops(&self.get(id)) {
                return Some(id);
            }
            if id == last {
                return None;
            }
        }
    }

    fn find_in_order(&self, mut stops: impl FnMut(&Stored) -> bool) -> Option<u32> {
        let mut id = self.order.head;
        while id != NONE {
            let head = self.unit(id);
            if stops(&Stored::of(head)) {
                return Some(id);
            }
            id = word(head, NEXT);
        }
        None
    }

    /// Removes every message that satisfies the test, in the order of arrival, frees its units, and passes its
    /// description to `removed`. Claimed messages stay: the claimant removes them. For failures: visits all messages.
    #[cold]
    pub fn remove_where(
        &mut self,
        mut test: impl FnMut(&Self, u32, &Stored) -> bool,
        mut removed: impl FnMut(u32, &Stored),
    ) {
        let before = self.listed;
        let mut id = self.order.head;
        while id != NONE {
            let head = self.unit(id);
            let (next, stored) = (word(head, NEXT), Stored::of(head));
            if test(self, id, &stored) {
                self.unlink_order(id);
                self.listed -= 1;
                self.release(id);
                removed(id, &stored);
            }
            id = next;
        }
        if self.listed != before {
            self.relist();
        }
    }

    /// Rebuilds the hash lists in one pass. Removing messages one by one would search a list for each.
    fn relist(&mut self) {
        self.lists.borrow_mut().fill(0);
        self.spare = 0;
        let mut id = self.order.head;
        while id != NONE {
            self.link_list(id, self.get(id).hash());
            id = word(self.unit(id), NEXT);
        }
    }

    #[inline(always)]
    fn unit(&self, unit: u32) -> &Unit {
        &self.units.units()[unit as usize]
    }

    #[inline(always)]
    fn unit_mut(&mut self, unit: u32) -> &mut Unit {
        &mut self.units.units_mut()[unit as usize]
    }

    /// Takes a free unit, which the caller has counted.
    #[inline(always)]
    fn take_unit(&mut self) -> u32 {
        let unit = self.free;
        if unit == NONE {
            self.fresh += 1;
            return self.fresh - 1;
        }
        self.free = word(self.unit(unit), LINK);
        unit
    }

    /// Frees the units of a message that is in no list.
    fn release(&mut self, id: u32) -> u32 {
        let units = cost(word(self.unit(id), LEN) as usize);
        let mut last = id;
        for _ in 1..units {
            last = word(self.unit(last), LINK);
        }
        // The units of a message are linked in the same way as free units.
        let free = core::mem::replace(&mut self.free, id);
        put(self.unit_mut(last), LINK, free);
        self.free_count += units;
        self.stored -= 1;
        units
    }

    #[inline(always)]
    fn link_order(&mut self, id: u32) {
        let last = core::mem::replace(&mut self.order.tail, id);
        let head = self.unit_mut(id);
        put(head, NEXT, NONE);
        put(head, PREV, last);
        match last {
            NONE => self.order.head = id,
            last => put(self.unit_mut(last), NEXT, id),
        }
    }

    fn unlink_order(&mut self, id: u32) {
        let head = self.unit(id);
        let (prev, next) = (word(head, PREV), word(head, NEXT));
        match prev {
            NONE => self.order.head = next,
            prev => put(self.unit_mut(prev), NEXT, next),
        }
        match next {
            NONE => self.order.tail = prev,
            next => put(self.unit_mut(next), PREV, prev),
        }
    }

    #[inline(always)]
    fn place(&self, hash: u32) -> usize {
        (u64::from(hash) >> self.shift) as usize
    }

    #[inline(always)]
    fn list(&self, hash: u32) -> u32 {
        self.lists.borrow().get(self.place(hash)).copied().unwrap_or(self.spare)
    }

    #[inline(always)]
    fn list_mut(&mut self, hash: u32) -> &mut u32 {
        let place = self.place(hash);
        self.lists.borrow_mut().get_mut(place).unwrap_or(&mut self.spare)
    }

    #[inline(always)]
    fn next_in_list(&self, id: u32) -> u32 {
        #[cfg(test)]
        tests::count_step();
        word(self.unit(id), CHAIN)
    }

    #[inline(always)]
    fn link_list(&mut self, id: u32, hash: u32) {
        let list = core::mem::replace(self.list_mut(hash), id + 1);
        let first = match list.checked_sub(1) {
            Some(last) => {
                let last = self.unit_mut(last);
                let first = word(last, CHAIN);
                put(last, CHAIN, id);
                first
            }
            None => id,
        };
        put(self.unit_mut(id), CHAIN, first);
    }

    /// Removes a head from its hash list. The loop searches its predecessor; the found head is the first of those
    /// with the same envelope.
    fn unlink_list(&mut self, id: u32) {
        let hash = self.get(id).hash();
        let Some(last) = self.list(hash).checked_sub(1) else { return };
        let mut before = last;
        let mut next = self.next_in_list(before);
        while next != id {
            debug_assert_ne!(next, last, "message {id} is not in its list");
            before = next;
            next = self.next_in_list(before);
        }
        let next = word(self.unit(id), CHAIN);
        put(self.unit_mut(before), CHAIN, next);
        if id == last {
            *self.list_mut(hash) = if before == id { 0 } else { before + 1 };
        }
    }
}

/// Returns the number of body bytes in the head of a message with a body of `body_len` bytes.
#[inline(always)]
const fn first_len(body_len: usize) -> usize {
    if body_len <= INLINE { body_len } else { FIRST }
}

#[inline(always)]
fn word(unit: &Unit, at: usize) -> u32 {
    u32::from_le_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]])
}

#[inline(always)]
fn put(unit: &mut Unit, at: usize, value: u32) {
    unit[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests;

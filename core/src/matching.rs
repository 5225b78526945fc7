//! Matching: receive patterns and posted receives.
//!
//! A message matches a receive if the context is the same, the source is the requested one (or any), and the
//! tags agree in every bit that the receive does not ignore. Of several matching receives, the one posted
//! first takes the message; of several matching messages, the one that arrived first is taken (MPI 4.1,
//! section 3.5).
//!
//! Receives that name source and whole tag are found by hash, at a cost that does not grow with their number.
//! Receives with a wildcard are in lists, in order; those of a context are in one list. A sequence number decides
//! which of two receives was posted first.
//!
//! A blocking receive need not be posted if no posted receive can match a message that it matches
//! ([`Posted::is_apart`]; paper 4, section 3.3).
#![forbid(unsafe_code)]

use core::borrow::BorrowMut;

#[cfg(nemesia_injected_fault)]
use crate::injected_fault::{InjectedFault, injected};
use crate::port::PeerId;
use crate::slab::{List, Slab, Slot};
use crate::wire::Envelope;

/// The most posted receives, and the most stored messages, with which a blocking receive is compared before it
/// is posted. The receive repeats the comparison while it polls, so the limit keeps a poll short.
pub const MOST_COMPARED: usize = 32;
/// The number of lists of receives with a wildcard.
const WILD: usize = 4;

/// The source of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Any rank.
    Any,
    /// One rank.
    Rank(PeerId),
}

impl Source {
    /// Returns whether a message from this rank is accepted.
    #[inline(always)]
    pub fn accepts(self, rank: PeerId) -> bool {
        match self {
            Source::Any => true,
            Source::Rank(wanted) => wanted == rank,
        }
    }

    /// Returns whether a rank exists that both accept.
    #[inline]
    pub fn overlaps(self, other: Source) -> bool {
        match other {
            Source::Any => true,
            Source::Rank(rank) => self.accepts(rank),
        }
    }
}

/// The pattern that a receive matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The source.
    pub source: Source,
    /// Matching context.
    pub context: u16,
    /// The tag.
    pub tag: u64,
    /// Bits of the tag to ignore; `u64::MAX` accepts every tag.
    pub ignore: u64,
}

impl Pattern {
    /// Returns whether a message from `source` matches.
    #[inline(always)]
    pub fn matches(&self, source: PeerId, envelope: &Envelope) -> bool {
        self.context == envelope.context && self.accepts(envelope.tag) && self.source.accepts(source)
    }

    /// Returns whether the tag matches.
    #[inline(always)]
    pub const fn accepts(&self, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0
    }

    /// Returns whether a message can exist that both patterns match.
    #[inline]
    pub fn overlaps(&self, other: &Pattern) -> bool {
        let either_ignores = self.ignore | other.ignore;
        self.context == other.context
            && (self.tag ^ other.tag) & !either_ignores == 0
            && self.source.overlaps(other.source)
    }

    /// Returns the hash of matching messages, if the pattern names source and whole tag.
    #[inline(always)]
    pub fn hash(&self) -> Option<u32> {
        match self.source {
            Source::Rank(rank) if self.ignore == 0 => Some(hash(rank, self.context, self.tag)),
            _ => None,
        }
    }
}

/// Returns the hash of the values that identify a message to an exact receive. The hash is multiplicative and
/// not meant against adversaries: a peer whose tags collide slows only the matching of its own messages.
///
/// The factor was found by a search: it spreads consecutive tags as evenly as the usual one, which derives from the
/// golden ratio, and also tags whose distance is any power of two, where that one needs up to three comparisons. The
/// tests of this module and of the store measure it.
#[inline(always)]
pub fn hash(source: PeerId, context: u16, tag: u64) -> u32 {
    const FACTOR: u64 = 0x4acc_f5cc_bc96_b043;
    let key = tag ^ (u64::from(source) << 40) ^ (u64::from(context) << 24);
    let mixed = (key ^ (key >> 32)).wrapping_mul(FACTOR);
    (mixed >> 32) as u32
}

/// Returns the number of the list of receives with a wildcard in a context.
#[inline(always)]
const fn wild_of(context: u16) -> usize {
    context as usize % WILD
}

/// Returns by how many bits a hash exceeds the number of one of `lists` lists.
fn shift(lists: usize) -> u32 {
    u32::BITS - lists.checked_ilog2().unwrap_or(0).min(u32::BITS)
}

/// Hash buckets, each a list, over lent storage. Of its elements, the largest power of two is used.
#[derive(Debug)]
pub struct Buckets<B: BorrowMut<[List]>> {
    lists: B,
    /// The shift that selects the high bits of a hash: they are the best distributed ones of a multiplicative
    /// hash.
    shift: u32,
    /// The only list if no storage was lent.
    spare: List,
}

impl<B: BorrowMut<[List]>> Buckets<B> {
    /// Returns empty lists.
    pub fn new(lists: B) -> Self {
        let shift = shift(lists.borrow().len());
        Self { lists, shift, spare: List::new() }
    }

    /// Lets the storage grow. The caller must reinsert the content of the lists.
    fn grow(&mut self, grow: impl FnOnce(&mut B)) {
        grow(&mut self.lists);
        self.shift = shift(self.lists.borrow().len());
        self.clear();
    }

    #[inline(always)]
    fn index(&self, hash: u32) -> usize {
        (u64::from(hash) >> self.shift) as usize
    }

    /// Returns the list of a hash.
    #[inline(always)]
    pub fn get(&self, hash: u32) -> &List {
        self.lists.borrow().get(self.index(hash)).unwrap_or(&self.spare)
    }

    /// Returns the list of a hash for modification.
    #[inline(always)]
    pub fn get_mut(&mut self, hash: u32) -> &mut List {
        self.at_mut(self.index(hash))
    }

    /// Returns the list that [`Buckets::index`] of a hash names, for modification.
    #[inline(always)]
    fn at_mut(&mut self, index: usize) -> &mut List {
        self.lists.borrow_mut().get_mut(index).unwrap_or(&mut self.spare)
    }

    /// Takes list number `at`; the spare list comes after the others. `None` if there are no more.
    fn take(&mut self, at: usize) -> Option<List> {
        let lists = self.lists.borrow_mut();
        let list = if at == lists.len() { &mut self.spare } else { lists.get_mut(at)? };
        Some(core::mem::take(list))
    }

    /// Empties every list.
    pub fn clear(&mut self) {
        self.lists.borrow_mut().fill(List::new());
        self.spare = List::new();
    }
}

/// A request that may be a posted receive.
pub trait Posting {
    /// Returns the pattern, and the number in the order of posting.
    fn posted(&self) -> Option<(&Pattern, u64)>;
}

/// The first of the receives that may match a message.
#[derive(Debug)]
pub struct First<'a> {
    list: &'a mut List,
    count: &'a mut usize,
}

impl First<'_> {
    /// Removes the receive.
    #[inline(always)]
    pub fn take<T, S: BorrowMut<[Slot<T>]>>(self, requests: &mut Slab<T, S>) {
        *self.count -= 1;
        requests.pop_front(self.list);
    }
}

/// A posted receive that a message matches, and its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundReceive {
    /// The request.
    pub index: u32,
    list: PostedList,
}

/// A list of posted receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostedList {
    Exact(usize),
    Wild(usize),
}

/// The posted receives.
#[derive(Debug)]
pub struct Posted<B: BorrowMut<[List]>> {
    exact: Buckets<B>,
    /// The receives with a wildcard. Contexts with the same number modulo the number of lists share one: a message is
    /// not compared with the receives of most other contexts, which an MPI keeps posted beside its own.
    wild: [List; WILD],
    count: usize,
    next: u64,
}

impl<B: BorrowMut<[List]>> Posted<B> {
    /// Returns a queue without receives.
    pub fn new(buckets: B) -> Self {
        Self { exact: Buckets::new(buckets), wild: [List::new(); WILD], count: 0, next: 0 }
    }

    /// Returns whether no receive is posted.
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the next number in the order of posting.
    #[inline(always)]
    pub const fn take_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    #[inline(always)]
    fn list(&mut self, pattern: &Pattern) -> &mut List {
        match pattern.hash() {
            Some(hash) => self.exact.get_mut(hash),
            None => &mut self.wild[wild_of(pattern.context)],
        }
    }

    /// Appends a receive with this pattern to the requests, and returns its slot for the caller to fill.
    /// `None` if no slot is free.
    #[inline(always)]
    pub fn push<'s, T, S>(
        &mut self,
        requests: &'s mut Slab<T, S>,
        pattern: &Pattern,
    ) -> Option<(u32, &'s mut T)>
    where
        S: BorrowMut<[Slot<T>]>,
    {
        let reserved = requests.reserve_back(self.list(pattern))?;
        self.count += 1;
        Some(reserved)
    }

    /// Returns a receive with source, whole tag, this context and this hash, if it precedes all others that its
    /// message would match. `None` is possible even so: the caller takes the slow path.
    #[inline(always)]
    pub fn first(&mut self, context: u16, hash: u32, index: u32) -> Option<First<'_>> {
        let list = self.exact.get_mut(hash);
        let is_first = self.wild[wild_of(context)].is_empty() && list.head == index;
        is_first.then_some(First { list, count: &mut self.count })
    }

    /// Removes a receive.
    #[inline]
    pub fn remove<T, S>(&mut self, requests: &mut Slab<T, S>, index: u32, pattern: &Pattern)
    where
        S: BorrowMut<[Slot<T>]>,
    {
        self.count -= 1;
        requests.unlink(self.list(pattern), index);
    }

    /// Removes and returns the first receive that a message matches.
    #[inline(always)]
    pub fn take<T, S>(&mut self, requests: &mut Slab<T, S>, from: PeerId, envelope: &Envelope) -> Option<u32>
    where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        if self.count == 0 {
            return None;
        }
        let found = self.find(requests, (from, envelope), |_| true)?;
        self.remove_found(requests, found);
        Some(found.index)
    }

    /// Removes a receive that was found just now.
    #[inline(always)]
    pub fn remove_found<T, S>(&mut self, requests: &mut Slab<T, S>, found: FoundReceive)
    where
        S: BorrowMut<[Slot<T>]>,
    {
        let list = match found.list {
            PostedList::Exact(at) => self.exact.at_mut(at),
            PostedList::Wild(at) => &mut self.wild[at % WILD],
        };
        self.count -= 1;
        requests.unlink(list, found.index);
    }

    /// Puts a receive back to the place from which [`Posted::take`] has just removed it.
    pub fn restore<T, S>(&mut self, requests: &mut Slab<T, S>, index: u32, pattern: &Pattern)
    where
        S: BorrowMut<[Slot<T>]>,
    {
        self.count += 1;
        requests.relink(self.list(pattern), index);
    }

    /// Returns the first receive that a message matches and that satisfies the test. It stays in the queue.
    #[inline(always)]
    pub fn find<T, S>(
        &self,
        requests: &Slab<T, S>,
        (from, envelope): (PeerId, &Envelope),
        test: impl Fn(&T) -> bool,
    ) -> Option<FoundReceive>
    where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        let matches = |request: &T| {
            request.posted().is_some_and(|(pattern, _)| pattern.matches(from, envelope)) && test(request)
        };
        let (at, wild_at) =
            (self.exact.index(hash(from, envelope.context, envelope.tag)), wild_of(envelope.context));
        let exact = requests.find(self.exact.lists.borrow().get(at).unwrap_or(&self.exact.spare), &matches);
        let wild = &self.wild[wild_at];
        let wild = if wild.is_empty() { None } else { requests.find(wild, &matches) };
        #[cfg(nemesia_injected_fault)]
        let wild = wild.filter(|_| exact.is_none() || !injected(InjectedFault::PreferExact));
        let number = |index: u32| requests.get(index).posted().map_or(u64::MAX, |(_, number)| number);
        match (exact, wild) {
            (Some(exact), Some(wild)) if number(wild) >= number(exact) => Some((exact, true)),
            (Some(exact), None) => Some((exact, true)),
            (_, Some(wild)) => Some((wild, false)),
            (None, None) => None,
        }
        .map(|(index, is_exact)| {
            let list = if is_exact { PostedList::Exact(at) } else { PostedList::Wild(wild_at) };
            FoundReceive { index, list }
        })
    }

    /// Returns whether no posted receive can match a message that the pattern matches. The answer is `false`
    /// also if [`MOST_COMPARED`] comparisons do not decide.
    ///
    /// A pattern with source and whole tag is compared with the receives of its hash, and with all receives that
    /// have a wildcard. Other patterns are compared with all receives, for which the first slots are searched.
    pub fn is_apart<T, S>(&self, requests: &Slab<T, S>, pattern: &Pattern) -> bool
    where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        #[cfg(nemesia_injected_fault)]
        if injected(InjectedFault::BypassPosted) {
            return true;
        }
        let mut compared = 0;
        let mut stops = |request: &T| {
            compared += 1;
            compared > MOST_COMPARED || request.posted().is_some_and(|(posted, _)| posted.overlaps(pattern))
        };
        if self.wild.iter().any(|list| requests.find(list, &mut stops).is_some()) {
            return false;
        }
        if let Some(hash) = pattern.hash() {
            return requests.find(self.exact.get(hash), stops).is_none();
        }
        let mut exact = self.count - compared;
        let mut slots = requests.first_used(MOST_COMPARED).filter_map(Posting::posted);
        while exact > 0 {
            match slots.next() {
                Some((posted, _)) if posted.hash().is_none() => {}
                Some((posted, _)) if !posted.overlaps(pattern) => exact -= 1,
                _ => return false,
            }
        }
        true
    }

    /// Returns the number of receives that [`Posted::take`] would compare with a message. For measurements.
    pub fn steps<T, S>(&self, requests: &Slab<T, S>, from: PeerId, envelope: &Envelope) -> usize
    where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        let mut steps = 0;
        let exact = self.exact.get(hash(from, envelope.context, envelope.tag));
        for list in [exact, &self.wild[wild_of(envelope.context)]] {
            requests.find(list, |request| {
                steps += 1;
                request.posted().is_some_and(|(pattern, _)| pattern.matches(from, envelope))
            });
        }
        steps
    }

    /// Removes every receive whose pattern satisfies the test, and passes it to `taken`. For failures: visits
    /// all receives.
    pub fn extract<T, S>(
        &mut self,
        requests: &mut Slab<T, S>,
        test: impl Fn(&Pattern) -> bool,
        mut taken: impl FnMut(&mut Slab<T, S>, u32),
    ) where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        let mut lists = core::mem::replace(&mut self.wild, [List::new(); WILD]).into_iter();
        let mut at = 0..;
        while let Some(mut list) = lists.next().or_else(|| self.exact.take(at.next()?)) {
            let mut kept = List::new();
            while let Some(index) = requests.pop_front(&mut list) {
                match requests.get(index).posted() {
                    Some((pattern, _)) if test(pattern) => {
                        self.count -= 1;
                        taken(requests, index);
                    }
                    _ => requests.push_back(&mut kept, index),
                }
            }
            if let Some(first) = kept.first()
                && let Some((pattern, _)) = requests.get(first).posted()
            {
                let pattern = *pattern;
                *self.list(&pattern) = kept;
            }
        }
    }

    /// Lets the storage of the buckets grow, and redistributes the receives.
    pub fn grow<T, S>(&mut self, requests: &mut Slab<T, S>, grow: impl FnOnce(&mut B))
    where
        T: Posting,
        S: BorrowMut<[Slot<T>]>,
    {
        // Order matters only among receives for the same message, and those share a list.
        let mut all = List::new();
        for mut list in (0..).map_while(|at| self.exact.take(at)) {
            while let Some(index) = requests.pop_front(&mut list) {
                requests.push_back(&mut all, index);
            }
        }
        self.exact.grow(grow);
        while let Some(index) = requests.pop_front(&mut all) {
            if let Some((pattern, _)) = requests.get(index).posted() {
                let pattern = *pattern;
                requests.push_back(self.list(&pattern), index);
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! The rules of the cache in the simplest form: one vector, searched from end to end.

use std::collections::VecDeque;

use nemesia_core::regcache::{Limits, Range};

use crate::recorder::{Event, Id};

/// One registration.
struct Known {
    id: Id,
    range: Range,
    rights: u32,
    holders: u32,
    hit: bool,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The registration that is held.
    Held(Id),
    Range,
    Full,
    Refused,
}

/// The twin.
pub(crate) struct Twin {
    limits: Limits,
    capacity: usize,
    known: Vec<Known>,
    /// Unused registrations, the oldest first.
    unused: VecDeque<Id>,
    /// The requests that the registrar should have received in this operation.
    expected: Vec<Event>,
    /// The first so many of the expected requests may come in any order.
    any_order: usize,
}

/// The requests that the registrar did receive; the twin takes from it which registrations were granted.
pub(crate) struct Script<'a>(pub(crate) std::slice::Iter<'a, Event>);

impl Script<'_> {
    /// Returns the result of the next registration.
    fn next_grant(&mut self) -> Option<Event> {
        self.0.find(|event| matches!(event, Event::Registered { .. } | Event::Refused { .. })).copied()
    }
}

impl Twin {
    pub(crate) fn new(limits: Limits, capacity: usize) -> Self {
        Self {
            limits,
            capacity,
            known: Vec::new(),
            unused: VecDeque::new(),
            expected: Vec::new(),
            any_order: 0,
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.known.iter().map(|it| it.range.len()).sum()
    }

    pub(crate) fn registrations(&self) -> usize {
        self.known.len()
    }

    /// Checks that the registrar received exactly the expected requests, and forgets them.
    pub(crate) fn agrees(&mut self, events: &[Event]) -> Result<(), String> {
        let mut expected = std::mem::take(&mut self.expected);
        let mut found = events.to_vec();
        let any = std::mem::take(&mut self.any_order);
        expected[..any].sort();
        let sorted = any.min(found.len());
        found[..sorted].sort();
        if expected == found {
            Ok(())
        } else {
            Err(format!("asked {found:?}, should have asked {expected:?}"))
        }
    }

    /// Looks up or registers a range. `held` is the cache's choice, which decides between several that serve.
    pub(crate) fn acquire(
        &mut self,
        address: u64,
        len: u64,
        rights: u32,
        held: Option<Id>,
        mut script: Script<'_>,
    ) -> Answer {
        let Some(end) = address.checked_add(len.max(1)) else { return Answer::Range };
        let wanted = Range { start: address, end };
        let page = 1 << self.limits.page_shift;
        // If nothing reports changes, only the same pages count.
        let same = |range: &Range| {
            Some(range.end) == end.checked_next_multiple_of(page) && range.start == address / page * page
        };
        let covers = |range: &Range| range.contains(&wanted) && (self.limits.keep || same(range));
        let serves = |it: &&mut Known| it.hit && covers(&it.range) && it.rights & rights == rights;
        let mut hits: Vec<_> = self.known.iter_mut().filter(serves).collect();
        if !hits.is_empty() {
            let at = hits.iter().position(|it| Some(it.id) == held).unwrap_or(0);
            let it = &mut hits[at];
            it.holders += 1;
            let id = it.id;
            self.unused.retain(|unused| *unused != id);
            return Answer::Held(id);
        }
        let Some(end) = end.checked_next_multiple_of(page) else { return Answer::Range };
        let pages = Range { start: address / page * page, end };
        let (union, all) = self.merge(&pages, rights);
        if (union, all) != (pages, rights)
            && let held @ Answer::Held(_) = self.register(&union, all, false, &mut script)
        {
            return held;
        }
        self.register(&pages, rights, true, &mut script)
    }

    fn merge(&mut self, pages: &Range, rights: u32) -> (Range, u32) {
        let (mut union, mut all) = (*pages, rights);
        let keep = self.limits.keep;
        for it in self.known.iter().filter(|it| keep && it.hit && it.range.overlaps(pages)) {
            union = Range { start: union.start.min(it.range.start), end: union.end.max(it.range.end) };
            all |= it.rights;
        }
        self.withdraw(pages);
        (union, all)
    }

    fn withdraw(&mut self, range: &Range) -> usize {
        let mut count = 0;
        let (unused, expected) = (&mut self.unused, &mut self.expected);
        self.known.retain_mut(|it| {
            if !it.hit || !it.range.overlaps(range) {
                return true;
            }
            count += 1;
            it.hit = false;
            if it.holders == 0 {
                unused.retain(|unused| *unused != it.id);
                expected.push(Event::Deregistered(it.id));
            }
            it.holders > 0
        });
        self.any_order = self.expected.len();
        count
    }

    fn register(&mut self, range: &Range, rights: u32, insist: bool, script: &mut Script<'_>) -> Answer {
        if range.len() > self.limits.bytes {
            return Answer::Full;
        }
        while self.known.len() >= self.capacity || self.bytes() + range.len() > self.limits.bytes {
            if self.evict().is_none() {
                return Answer::Full;
            }
        }
        let Range { start, end } = *range;
        loop {
            match script.next_grant() {
                Some(Event::Registered { id, .. }) => {
                    self.expected.push(Event::Registered { start, end, rights, id });
                    self.known.push(Known { id, range: *range, rights, holders: 1, hit: true });
                    return Answer::Held(id);
                }
                _ => self.expected.push(Event::Refused { start, end, rights }),
            }
            let mut given = 0;
            while insist
                && given < range.len()
                && let Some(more) = self.evict()
            {
                given += more;
            }
            if given == 0 {
                return Answer::Refused;
            }
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let id = self.unused.pop_front()?;
        let at = self.known.iter().position(|it| it.id == id)?;
        self.expected.push(Event::Deregistered(id));
        Some(self.known.remove(at).range.len())
    }

    pub(crate) fn release(&mut self, id: Id) {
        let Some(at) = self.known.iter().position(|it| it.id == id) else { return };
        let it = &mut self.known[at];
        it.holders -= 1;
        if it.holders > 0 {
            return;
        }
        if self.limits.keep && it.hit {
            self.unused.push_back(id);
        } else {
            self.known.remove(at);
            self.expected.push(Event::Deregistered(id));
        }
    }

    pub(crate) fn invalidate(&mut self, range: &Range) -> usize {
        if range.is_empty() { 0 } else { self.withdraw(range) }
    }

    pub(crate) fn flush(&mut self) -> usize {
        let mut count = 0;
        while self.evict().is_some() {
            count += 1;
        }
        count
    }
}

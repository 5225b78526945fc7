//! A registrar that records its requests and refuses at random.

use std::collections::HashMap;

use nemesia_core::regcache::{Range, Registrar};

use crate::rng::Rng;

/// The name of a registration.
pub(crate) type Id = u64;

/// A request to the registrar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Event {
    Registered {
        start: u64,
        end: u64,
        rights: u32,
        id: Id,
    },
    Refused {
        start: u64,
        end: u64,
        rights: u32,
    },
    Deregistered(Id),
    /// A deregistration of an unknown registration: always a mistake.
    Unknown(Id),
}

/// The registrar.
pub(crate) struct Recorder {
    pub(crate) events: Vec<Event>,
    /// The registrations that exist now.
    live: HashMap<Id, Range>,
    next: Id,
    rng: Rng,
    /// One registration in so many is refused; 0 means none.
    refuse: usize,
}

impl Recorder {
    pub(crate) fn new(seed: u64, refuse: usize) -> Self {
        Self { events: Vec::new(), live: HashMap::new(), next: 1, rng: Rng::new(seed, 2), refuse }
    }

    pub(crate) fn is_live(&self, id: Id) -> bool {
        self.live.contains_key(&id)
    }

    /// Returns the number of bytes registered now.
    pub(crate) fn bytes(&self) -> u64 {
        self.live.values().map(Range::len).sum()
    }
}

impl Registrar for Recorder {
    type Handle = Id;
    type Error = ();

    fn register(&mut self, range: Range, rights: u32) -> Result<Id, ()> {
        let Range { start, end } = range;
        if self.rng.one_in(self.refuse) {
            self.events.push(Event::Refused { start, end, rights });
            return Err(());
        }
        let id = self.next;
        self.next += 1;
        self.live.insert(id, range);
        self.events.push(Event::Registered { start, end, rights, id });
        Ok(id)
    }

    fn deregister(&mut self, range: Range, id: Id) {
        let known = self.live.remove(&id) == Some(range);
        self.events.push(if known { Event::Deregistered(id) } else { Event::Unknown(id) });
    }
}
